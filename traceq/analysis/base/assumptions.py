"""Numbers that the analyses assume, each with its unit and where it comes from.

Nothing here is computed from the trace at hand. Each number has how it was found:
measured (on what, with which script, when) or chosen by judgement. Names end in their
unit (``_NS``, ``_BYTES``); those without are shares, factors or counts.
"""

from __future__ import annotations

from typing import NamedTuple

from traceq.model.run import HostCost

# -- The host's time without the profiler ---------------------------------------------
#
# What an event of the host takes, and what recording adds. Only the shares count: where
# a machine is slower, it is slower at both. These are used for traces without a run
# folder; `traceq collect` measures them where a trace is recorded.
#
# Found by hand on 17 host-bound captures: those of benchmarks/pairs.json, and five
# programs recorded with collect, two of them without stacks too (H200, torch 2.11, CUDA
# 13.0, 2026-11-15). Estimate over measured step: 0.99 at the mean, standard deviation
# 12%, from 0.83 to 1.28. On the 5 of pairs_held_out.json it is 0.86, 15%, 0.69 to 1.06;
# they were looked at too, but these costs are the best ones without them. With less for
# an operator GPU-bound captures, whose repaired twin shows how fast their host is, get
# too slow a host. `benchmarks/fit_host_costs.py` fits the costs again.

# A call of a Python function, recorded with stacks.
FRAME_COST = HostCost(400, 700)
# A PyTorch operator. Without stacks the time inside of operators and calls is slowed
# down as much as with them, 2.5 times, and Python between them not at all. Measured on
# 112 recordings of 14 programs (benchmarks/options, H200, torch 2.11, 2026-11-16).
OP_COST = HostCost(3_300, 4_800)
# A call of the CUDA runtime or driver.
CALL_COST = HostCost(3_000, 3_500)

# Where nothing is asked of the GPU for a while, as when data is loaded, operators are
# views and others that take little themselves, and what the host takes beyond its
# events is work: these are what it takes itself. Fitted by hand on five programs that
# load by rows, recorded with stacks (benchmarks/options/loading.json, H200, torch 2.11,
# 2026-11-17): loading was told 55% wrong at the median without them, and 8% with them;
# of six that were held out 31% and 22%. Nothing tells a slower machine apart here, but
# what `traceq collect` measures.
QUIET_FRAME_COST = HostCost(400, 850)
QUIET_OP_COST = HostCost(350, 1_700)
# What recording the shapes adds to that of an operator; by the same programs, recorded
# with stacks alone.
SHAPES_NS = 1_300
# Of recording an operator this is outside of it, where no other operator is around it:
# without stacks it counts as Python otherwise. By the same five, where loading was told
# 55% wrong without this and what is above, and 14% with it; held out, 29% and 9%.
OUTSIDE_OP_NS = 1_000
# Python between operators takes this share of its time at least. By judgement.
LEAST_BETWEEN_OPS = 0.2

# The launch of a CUDA graph takes this many times as long while kernels are recorded:
# as much as what is inside of operators. Measured by what a sync after each token
# costs, and Python between tokens, with the profiler and without: 300 µs instead of 100
# to 180 for 177 kernels (H200, torch 2.11, 2026-11-16, benchmarks/models/serving.json).
GRAPH_LAUNCH_SLOWDOWN = 2.5

# The host's time is compared with its events in windows of this length: an event's
# time is spent around the instant at which it begins. Chosen by judgement: a few dozen
# operators long, so that a single slow one does not count as work of its own.
SMOOTHING_NS = 500_000
# Time beyond this many times what its events should take counts as the host's own work,
# which recording does not slow down. On the captures above 2 and 3 do equally well.
TOLERATED_OVERHEAD = 3.0

# Recording with stacks makes the host up to this many times slower. Measured on the
# host-bound captures of benchmarks/: their steps take 1.5 to 3.0 times as long.
PROFILER_SLOWDOWN = 3.0

# -- Launches and streams --------------------------------------------------------------
#
# What a launch takes to reach an idle GPU, where no launch of the trace shows it.
# Judgement; in the captures of fixtures/ it is 7 to 17 µs at the median, recording the
# launch included (H200, torch 2.11, 2026-11-15).
LAUNCH_LATENCY_NS = 5_000
# Where host and GPU clocks differ by more than this, the latency is not usable.
# Chosen by judgement: ten times the usual latency.
LONGEST_LAUNCH_LATENCY_NS = 50_000
# A launch blocks from this many launches on that the GPU has not begun. Measured by
# benchmarks/launch_queue.py: 1,021 on an H200 with CUDA 13.0, 2026-11-15.
LAUNCH_QUEUE = 1000
# A launch that takes this long, and this many times the median, while the GPU idles for
# less than this share of it, waits for room in the queue. Chosen by judgement: recorded
# launches take 5 to 10 µs, and one that waits takes as long as a kernel.
BLOCKED_LAUNCH_NS = 100_000
BLOCKED_LAUNCH = 20
IDLE_WHILE_BLOCKED = 0.1
# Work that begins this much later than its stream and its launch allow was waiting for
# another stream. Chosen by judgement: above the usual gap between two kernels.
STREAM_WAIT_NS = 2_000

# -- Syncs -----------------------------------------------------------------------------
#
# A sync that returns sooner found the GPU done, or nearly: in an operator, and outside
# of all. Microseconds; chosen by judgement, above what the call itself takes.
SHORT_OP_SYNC_US, SHORT_PROGRAM_SYNC_US = 5, 10
# Between two syncs too little is launched to keep the GPU busy, if it is less than this
# share of what the longer one waits: without the first, the second waits as long.
# Chosen by judgement.
LITTLE_LAUNCHED = 0.5
# A copy from pageable memory to the GPU ends in a sync of its own, which takes less
# than this unless the GPU is behind. Chosen by judgement.
COPY_SYNC_NS = 50_000
# Such copies of at least this size are reported as copies (CPY003), with their syncs.
# Chosen by judgement: smaller ones are staged by the driver without waiting.
PAGEABLE_COPY_BYTES = 64 * 1024
# A copy to the host ends in a sync as well. Where it takes more than this share of what
# the host waits, that is a slow copy, and else a wait for what the GPU did before.
# Chosen by judgement: without the profiler the host is faster and waits longer, so that
# the share is smaller than recorded.
COPYING_SHARE = 0.8

# -- Calibration of host and GPU speed -------------------------------------------------
#
# How far off the estimate of the host's time may be, as factors. The captures of
# benchmarks/ need 0.78 to 1.45 to match their measured steps. On other machines
# recording slowed hosts down by as little as 1.3 times, where these costs make it 2.2,
# so they would need 1.7.
FASTEST_HOST, SLOWEST_HOST = 0.7, 1.7
# The GPU's clock may differ between the recording and the measured step. Chosen by
# judgement; the GPU-bound captures need 0.98 to 1.01.
FASTEST_GPU, SLOWEST_GPU = 0.8, 1.25
# A measured step is known within this share. Chosen by judgement.
MEASURED_SPREAD = 0.05
# Two runs of one program with a host-bound step differ by up to this share. Measured:
# 7% between two twins whose repair changes nothing, 15% between runs on a busy machine.
HOST_RUN_SPREAD = 0.1
# What fixes leave of a step is known less well the more of it they remove: within this
# many times the share that they remove. With it, and the spreads above, the repaired
# twin's step is in the range for 20 of the 22 pairs of benchmarks/pairs.json and
# pairs_held_out.json; with 0.45 for 19. Chosen with both in view; on pairs_models.json,
# which was recorded later, it is for 27 of 28. 2026-11-15.
FIX_SPREAD = 0.6
# Calibration looks for the host's speed between 0 and this factor, by halving.
SLOWEST_SEARCHED = 3.0
BISECTIONS = 7

# -- Kernels ---------------------------------------------------------------------------
#
# Kernels shorter than this are counted as small: about what one launch takes the host,
# so that a stream of them cannot keep the GPU busy. Chosen by judgement.
SMALL_KERNEL_NS = 5_000

# -- What bounds a step ----------------------------------------------------------------
#
# From this share of the step on in which the GPU has work, the step is GPU-bound. From
# the same share on that the GPU alone needs of a measured step, the host's speed cannot
# be read off the step: it only has an upper limit.
# Chosen by judgement; agrees with what was measured on all pairs of benchmarks/.
GPU_BOUND = 0.9

# -- Optimizers ------------------------------------------------------------------------
#
# What is saved of a step that updates parameters one by one, as a share of its time,
# if one op updates many. Measured on the twins optimizer_loop_sync and optimizer_fused
# (AdamW, 52 parameters, H200, torch 2.11, 2026-11): fused saves 80% on the host and 64%
# of the kernels' time, rounded down here.
FUSED_HOST_SAVED = 0.75
# Values are not written and read again between kernels.
OPTIMIZER_KERNELS_SAVED = 0.5
# The same on the host by foreach: SGD saves 80% of a step of 160 parameters, with
# momentum and without, and 82% to 92% fused (loop_of_sgd of
# benchmarks/models/advice.py, H200, torch 2.11, 2026-11). Of others nothing was
# measured.
FOREACH_HOST_SAVED = 0.75
# The same for an optimizer that is to be rewritten with foreach. Judgement.
REWRITTEN_HOST_SAVED = 0.5
# What foreach saves of the kernels' time, which read and write as much as those of a
# loop do. By what fused saves of the time of either, 64% and 58%.
FOREACH_KERNELS_SAVED = 0.15
# How often the fused SGD reads or writes a parameter's size, without momentum and with
# it; and how often an op of a loop does, but for the one that scales the momentum,
# which does so once less. Counted.
FUSED_SGD_PASSES = (3, 5)
UPDATE_PASSES = 3
# What fused saves where foreach ops update lists of parameters, as shares of the host's
# time from the first of these ops to the last, and of their kernels' time. Measured on
# traces of Adam and AdamW both ways, by how fast the host was at the rest of each
# (H200, torch 2.11, 2026-11-16): on bert, dense_adamw, groups, llama_big, mobile_adam
# and vit_amp of benchmarks/options/optimizers.json 0.91 and 0.58 at the median, 0.83 to
# 1.07 and 0.46 to 0.62; rounded down. On the five others 0.93 and 0.58, and their steps
# are predicted to get 8% faster at the mean, as measured; the shares are not of them,
# but they were seen when it was chosen from which op on the host's time counts.
FUSED_FOREACH_HOST_SAVED = 0.9
FUSED_FOREACH_KERNELS_SAVED = 0.55

# -- Loops -----------------------------------------------------------------------------
#
# With fewer iterations a loop over small kernels is not worth a word, unless the user
# says otherwise. Chosen by judgement.
FEWEST_ITERATIONS = 8
# torch.compile unrolls loops: of four layers with 64 iterations each it did not end in
# 100 s (torch 2.11). Where it begins to hurt is judgement.
UNROLLED_ITERATIONS = 32

# -- Comparing two recordings ----------------------------------------------------------
#
# Two runs of one program differ by these shares of a step on an otherwise idle machine:
# measured without the profiler, as recorded over several steps, and over a single one.
# Chosen by judgement; tests/test_diff_cases.py holds that two runs of one program are
# not a change.
MEASURED_NOISE = 0.02
RECORDED_NOISE = 0.05
SINGLE_STEP_NOISE = 0.1
# A change of the GPU's work by this share of the step is reported whatever the host
# does. Chosen by judgement.
GPU_CHANGE = 0.05
# The host's time for the same ops and launches differs by these shares of the step
# between runs: without and with stacks. Chosen by judgement, held by the same tests.
HOST_VARIES, RECORDED_HOST_VARIES = 0.25, 0.6
# What the host did in idle time is looked at if that changed by this share of the step.
# Chosen by judgement.
HOST_CHANGE = 0.01
# What a launch costs at most, with the operators and the Python around it. Operators
# take 26 to 46 µs for each launch as recorded with stacks in host-bound pairs of
# benchmarks/, 9 to 15 µs without the profiler (H200, torch 2.11, 2026-11); rounded up.
MOST_LAUNCH_NS = 50_000

# -- Attention, norms, matmuls: rooflines and efficiencies -----------------------------
#
# Peaks are the vendor's (traceq.model.gpu_peaks). What kernels reach of them was first
# chosen by judgement on 2026-11-15, on the cautious side, so that a predicted saving is
# rather too small. "Measured" below is the check of the same day on the traces of
# benchmarks/pairs.json: H200, torch 2.11, CUDA 13.0, bf16, 4 or 8 sequences of 1,024
# tokens, width 768, heads of 64. tests/test_roofline.py keeps the two within a third of
# each other.


class Efficiency(NamedTuple):
    """What kernels reach of a GPU's peaks, as shares."""

    bandwidth: float
    compute: float = 1.0
    """Of the matmul rate in the dtype; for what only moves memory it does not count."""


# A kernel that does real work takes at least this long, with the gap to the next.
# Chosen by judgement: the smallest ones of an H200 take 1 to 3 µs.
SHORTEST_KERNEL_NS = 5_000
# Matmuls on tensor cores. Measured: 0.72 to 0.73 of the roofline over all matmuls of a
# step, 0.48 to 0.56 for the slowest tenth of them.
MATMUL_EFFICIENCY = Efficiency(bandwidth=0.6, compute=0.6)
# A copy of a contiguous tensor. Chosen by judgement.
COPY_EFFICIENCY = Efficiency(bandwidth=0.6)
# The FlashAttention kernels that torch ships, by major compute capability: they were
# written for 8 (A100), and do not use what newer GPUs add. Measured on 9: 0.15 to 0.17
# with a causal mask and the backward; 8 and 10, and the bandwidth, by judgement.
FLASH_EFFICIENCY = {
    8: Efficiency(bandwidth=0.5, compute=0.3),
    9: Efficiency(bandwidth=0.5, compute=0.15),
    10: Efficiency(bandwidth=0.5, compute=0.1),
}
# The backward of attention computes 5 matmuls where the forward computes 2. Counted.
ATTENTION_BACKWARD = 2.5
# What is_causal=True saves of the time of cuDNN's attention, with its backward, that is
# given the lower triangle as a mask. Measured on an H200 (torch 2.11): 722 -> 467 µs
# for sequences of 512, compiled; 1.66 -> 1.08 ms for longer ones, eager. Of sequences
# of 2,048, 4,096 and 8,192, in eager steps, it is 0.59, 0.61 and 0.63.
CAUSAL_MASK_SAVING = 0.35
LONG_CAUSAL_MASK, LONG_CAUSAL_MASK_SAVING = 2048, 0.6
# Kernels of one call of fused attention, and of its backward. Counted in the traces.
FLASH_KERNELS, FLASH_BACKWARD_KERNELS = 1, 3
# Fused norms. Measured with the backward: LayerNorm 0.20 to 0.21, RMSNorm 0.27; the
# forward alone 0.25 to 0.28 and 0.54. So what is saved of a LayerNorm in training is
# predicted slightly too large.
NORM_EFFICIENCY = Efficiency(bandwidth=0.3)
# How often a fused norm reads or writes its input's size, and its kernels: forward
# alone, and with the backward. Counted.
NORM_PASSES, NORM_KERNELS = (2, 5), (1, 3)

# Batch norms in channels_last, by the kernel that does the same in NCHW: how often it
# reads or writes its input's size, counted, and what its counterpart reaches. Measured
# on a ResNet-18 in bf16, 256 images of 224 pixels, of which the first layers take most
# of the time (H200, torch 2.11, 2026-11): 0.12, 0.42 and 0.48. A ResNet-50 with 128
# images takes 30.6 ms in its batch norms in NCHW and 13.5 ms by these numbers; with its
# transposes that saves 23.5 ms, where 24 to 26 ms were measured. In NCHW they reach
# 0.07, 0.27 and 0.16. Max pooling takes as long in the forward and 19% less in the
# backward, 0.2 ms there: not counted.
CHANNELS_LAST_BATCH_NORM = {
    "collect_statistics": (1, Efficiency(bandwidth=0.12)),
    "transform_input": (2, Efficiency(bandwidth=0.42)),
    "backward": (5, Efficiency(bandwidth=0.48)),
}

# -- Slow kernels ----------------------------------------------------------------------
#
# Measured on an H200 with torch 2.11 (2026-11), forward and backward of the op alone as
# a CUDA graph, each with what may replace it, over 250 shapes, none of them kept apart;
# the pages of the rules KRN002 on have figures. benchmarks/models/advice.py measures
# some again.
#
# Rows that are added to those of a table by index, by sorting as embedding's gradient
# does: this long at least for its 30 small kernels, and with this share of the
# bandwidth. Measured: 94 to 110 µs for 8,192 rows of 768, and 0.15 of the bandwidth
# for 100,000 rows of 256; rounded down.
SORTED_ROWS_NS = 100_000
ADDED_ROWS_EFFICIENCY = 0.1
# Whatever the bytes allow, no more than this share goes: some rows are still added to
# the same place. Measured: 0.88 to 0.97.
ADDED_ROWS_MOST_SAVED = 0.875
# Additions in float32 to few places by atomics, with the casts, as a share of the
# bandwidth for the bytes of the 16-bit ones. Measured: 0.01 to 0.05.
FLOAT32_ATOMICS_EFFICIENCY = 0.01
# A one-hot matrix and its matmul. Measured: 0.07 to 0.25, least where millions of
# narrow rows are added up.
ONE_HOT_EFFICIENCY = Efficiency(bandwidth=0.1)
# Depthwise convolutions in channels_last instead of torch's own kernels for NCHW, with
# the backward: the share that goes, in 16-bit dtypes and in float32 for at most 5 by 5.
# Measured: 0.67 to 0.8, and 0.51 to 0.7; float32 with 7 by 7 took 2.8 times as long.
DEPTHWISE_SAVED, FLOAT32_DEPTHWISE_SAVED = 0.65, 0.5
# Patches as a matmul instead of a convolution, in 16-bit dtypes. Measured: 0.86.
PATCHES_SAVED = 0.8
# A batch of tiny matmuls as a product and a sum. Measured: 0.47 to 0.95.
TINY_MATMULS_SAVED = 0.6
# Multiplications of one of them at most. Measured: 64 take a fourth as a product and a
# sum, 216 and 256 a half, 512 more time than as matmuls.
TINY_MULTIPLICATIONS = 128
# One matmul instead of a batch with the same matrix. Measured: 0.86, twice.
SHARED_MATRIX_SAVED = 0.8
# Batch norms in channels_last with few channels, forward or backward. Measured: 0.12
# to 0.6, least in 16-bit dtypes.
FEW_CHANNELS_EFFICIENCY = 0.1
# A softmax along the last dimension between two transpositions, and norms and softmaxes
# of a few long rows in two stages, forward or backward. Measured: 0.05 to 0.2.
STAGED_EFFICIENCY = 0.05
STAGED_KERNELS = 4
# A sum over the rows of a matrix as a matmul with ones. Measured: 0.37 to 0.75 from 16
# columns on; with fewer it is slower.
ONES_EFFICIENCY = 0.4

# -- Shares that a fix removes where there is no roofline ------------------------------
#
# Of the time of kernels, where the GPU or the shapes are not known. Judgement.
UNKNOWN_SAVING = 0.5
# Of attention written by hand in float32, which has no FlashAttention, only
# mem-efficient kernels. Chosen by judgement.
FLOAT32_ATTENTION_SAVING = 0.5
# Of a fused norm in float32, if it runs in bf16 or fp16. Measured on the traces above,
# forward and backward: LayerNorm 91 µs and 63 µs, RMSNorm 70 µs and 48 µs.
FLOAT32_NORM_SAVING = 1 / 3
# Of a softmax in float32, if it runs in bf16 or fp16: it is memory-bound, and moves
# half the bytes. Computed, not measured.
FLOAT32_SOFTMAX_SAVING = 0.5

# -- Host time of fused ops ------------------------------------------------------------
#
# A call of a fused op takes the host as long as this many launches of the ops that it
# replaces, in the forward and in the backward. From recorded times in the captures of
# fixtures/ and benchmarks/held_out (H200, torch 2.11, 2026-11): RMSNorm takes 57 and
# 63 µs, and 259 and 291 µs with 8 and 16 launches without fusion, so 2 and 3.4 of
# them; FlashAttention 116 and 103 µs, attention by hand 306 to 434 and 311 to 321 µs
# with 11 or 12 and 11 to 14 launches, so 3 to 4.5 of them. Rounded up.
FUSED_NORM_LAUNCHES = (3, 4)
FUSED_ATTENTION_LAUNCHES = (4, 5)

# -- Model FLOP utilisation ------------------------------------------------------------
#
# Of the time of matmuls, convolutions and attention at least this share must have
# shapes: a rate of less would be made up. Chosen by judgement.
COUNTED_SHARE = 0.9

# -- Copies and collectives ------------------------------------------------------------
#
# GB/s that copies from and to pinned memory reach, by the major compute capability of
# the GPU from which on it holds: PCIe 5, 4 and 3, at two thirds of their nominal rate.
PINNED_RATES = ((9, 40.0), (8, 20.0), (0, 10.0))
# The rate of pinned copies is read off those of at least this size in the trace, where
# there are any. Chosen by judgement: the fixed cost of a copy dominates smaller ones.
RATED_COPY_BYTES = 1 << 20
# The share of the program's own casts and layout copies that a fix can remove, where
# nothing is known about a single one of them. Chosen by judgement.
REMOVABLE_COPIES = 0.5
# A collective takes this long to start and to meet the other ranks. Chosen by
# judgement: far above what NCCL needs on one machine, so that a wait is certain.
COLLECTIVE_LATENCY_NS = 100_000
# Work that was queued behind a collective begins this soon after it, or something else
# held it; and a call that waits for one returns this soon. Chosen by judgement: a
# stream takes 1 to 10 µs to go on after an event, a host thread 100 µs to wake up.
STREAM_HANDOVER_NS = 30_000
HELD_SYNC_NS = 200_000
# GB/s that GPUs of one machine reach at least, over PCIe 3. Chosen by judgement.
SLOW_MACHINE_LINK = 10.0

# -- The account of the host -----------------------------------------------------------
#
# An operator call takes more than usual if its own time is beyond both. Chosen by
# judgement: on an H200 with torch 2.11 a matmul takes 14 to 22 µs on a known shape and
# about 200 µs on a new one, a convolution 2 ms, cuDNN attention 44 ms (2026-11).
EXCESS_NS = 100_000
EXCESS_FACTOR = 4.0
# What such a call takes on a known shape, with stacks recorded, where the trace has
# none to compare with. By judgement: 14 to 57 µs were measured without the profiler.
USUAL_PLANNED_OP_NS = 60_000
# An op that no list names makes plans too if this many calls on new shapes are slow, in
# two steps or more, and hardly one on a known shape. Chosen by judgement.
SEEN_PLANNED_CALLS = 4
# What Python takes around a call of an operator in the user's function, without the
# profiler: reading arguments, looking names up. Measured as 1 to 8 µs in the functions
# of the captures that do nothing else (H200, 2026-11); a little more here.
PYTHON_PER_OP_NS = 10_000

# Without stacks, what the host does between two operators is Python of the model if it
# takes no longer. In 20 host-bound traces without stacks the longest such gap takes
# 1.03 ms where operators follow each other; where data is loaded, or the program sleeps
# or compiles, it takes 2 ms to 13 s (2026-11).
MOST_BETWEEN_OPS_NS = 2_000_000
# A compiled model takes less of it along: what is longer is the program around it. By
# judgement, before nine programs were compiled that nothing here is fitted to: at the
# mean their savings were told 9 points too high or too low then, and 12 with the limit
# above (H200, torch 2.13, 2026-11).
MOST_OF_MODEL_NS = 200_000
# The same where a trainer runs the step in the optimizer's closure, with Python of its
# own around everything. Chosen by three programs with Lightning: they saved 19, 28 and
# 58% compiled, with 30, 36 and 54% told then, and 38, 51 and 61% with the limit above.
MOST_IN_TRAINER_NS = 50_000
# An operator of ATen's that takes the host longer itself does not only call a kernel:
# it computes on the host, or is the first to use something. By judgement: on a GPU they
# take 5 to 100 µs, and those for lists of hundreds of tensors less than 1 ms.
MOST_DISPATCH_NS = 1_000_000

# -- The start of the GPU --------------------------------------------------------------
#
# The call that makes the context takes this long at least, and this share of the steps
# where their time is that of the start. It took 110 to 140 ms on an H200 (torch 2.11,
# 2026-11) and 30 s on somebody's A100; any later call of its name takes microseconds.
# The share is by judgement: as much or more goes to loading kernels and libraries.
CONTEXT_NS = 20_000_000
CONTEXT_SHARE = 0.05
# A call of the runtime that neither waits nor copies, and still takes this long, loads
# something. By judgement.
FIRST_USE_NS = 1_000_000

# -- Loading data ----------------------------------------------------------------------
#
# What the training process still does for each tensor of a batch that a worker has
# loaded: map its memory, which the worker names over a socket. With pin_memory=True a
# thread does it, which holds the program up as much. Measured on the five programs of
# benchmarks/options/loading.json that are for fitting (H200, torch 2.11, 2026-11-17): a
# step took this much longer than the rest of it without loading, 0.5, 0.5, 0.7 and 1.5
# ms for 2, 2, 2 and 6 tensors, and 0.4 less for 3. Without pinning the next batch alone
# took 1.1 to 2.3 ms. A V100 machine took 83 µs at least for the two of a batch.
WORKER_TENSOR_NS = 250_000
# A worker takes this many times as long for a batch as the training process does: it
# writes into memory that it must get first, and shares the machine. Measured where
# workers bound the step: 1.39 and 1.40 (2 and 4 of them, `pil` of the same five), 1.28
# (8, `loader_alone` of benchmarks/models).
WORKER_SLOWDOWN = 1.3
# What a DataLoader takes for a batch of a TensorDataset that a BatchSampler picks
# whole: for each tensor, for each row of each tensor, and for each byte. Measured on a
# core of a server without a GPU (torch 2.13, 2026-11-17) with 1 to 6 tensors, 64 to
# 1,024 rows and 8 to 49,152 floats in each: 0.15 to 1.6 ms, told 22% wrong at most.
# Picking the rows one by one took 3 to 11 times as long, but for rows of 3,072 floats
# 1.3 to 1.9 times, and for those of 49,152 half.
WHOLE_BATCH_TENSOR_NS = 30_000
WHOLE_BATCH_ROW_NS = 500
WHOLE_BATCH_BYTE_NS = 0.25
# Workers that are advised where the number of cores is not known. Judgement.
USUAL_WORKERS = 8
# One worker has no slack: a batch that takes longer than usual stalls the step.
FEWEST_WORKERS = 2

# -- CUDA graphs -----------------------------------------------------------------------
#
# What compiled kernels take at least of the GPU's time, since fewer of them move less
# memory. Measured: 2.24 of 3.87 ms for a small Llama, compiled with CUDA graphs (H200,
# torch 2.11, 2026-11); rounded down.
COMPILED_GPU_SHARE = 0.55
# What is saved of the host's time for ops that are launched one by one beside graphs,
# or in decode loops and in code that is compiled without graphs: guards, wrappers, the
# replay and a gradient for each weight stay. Measured on
# steps of training: 0.88 on the same Llama, 0.75 to 0.8 on a small BERT, ViT, T5 and
# MobileNet (H200, torch 2.11, 2026-11-16, benchmarks/options/compiled.json); with this
# the squares of all five errors are least.
GRAPH_HOST_SAVED = 0.83
# A call of a model that torch.compile replays as a CUDA graph takes the host as long as
# this many of its kernels did with their ops: for guards, wrappers and copies of
# inputs; and its backward as long as these. The gradients of weights are
# accumulated as before. Fitted on 17 programs (the f_ of graphs.json and those of
# trainers.json, in benchmarks/options, and a NeRF; H200, 2026-11-17): 5 points of the
# step off at the mean, where 83% of all but the optimizer was 13 off.
COMPILED_CALL_KERNELS = 10
COMPILED_BACKWARD_KERNELS = 15
# What the launch of a graph takes of the host's time for the kernels in it. Recorded,
# it took 1.1 to 1.6 µs for each kernel in four of the f_ programs, 2.5 times as long as
# without the profiler, where a kernel with its ops took 18 to 39 µs.
GRAPH_LAUNCH_SHARE = 0.03

# -- Many ranks ------------------------------------------------------------------------
#
# A collective ends on all its ranks within this time. On the public jobs of 2 to 8
# ranks of one machine the ends differ by 1 to 5 µs at the median (2026-11-15); those of
# an all-to-all with unequal sizes by up to 100 µs.
ALIGNED_END_NS = 5_000
# Clocks of two machines drift apart by no more than this; 50 ppm is the tolerance of
# a usual quartz.
CLOCK_DRIFT = 100e-6
# Clocks that differ by less are taken as they are where nothing else tells collectives
# apart. Chosen by judgement: NTP in a cluster keeps machines within 1 ms.
TRUSTED_CLOCK_NS = 500_000
# The same work takes this much longer or less long a step later. Chosen by judgement:
# 0.2% to 3% in the captures of fixtures/.
USUAL_NOISE = 0.01
# A drift is looked for where a rank shares at least this many collectives over at least
# this long: 50 ppm of less is not seen. Chosen by judgement.
LEAST_ENDS_FOR_DRIFT = 6
SHORTEST_FOR_DRIFT_NS = 500_000_000
# How much more must speak for the best shift of a rank's window than for the next one;
# natural logarithm of a likelihood ratio, 3 is 20 to 1. Chosen by judgement.
SURE_OF_SHIFT = 3.0
# A rank is a straggler if the job takes this much less time with it as its peers; and a
# quarter of the ranks or fewer are, if that saves this share of what all at the median
# save. Above what 2% of noise makes of one rank: at most 0.63% in 24 jobs of 8 and 64
# ranks, by python benchmarks/ranks.py planted. A finding of it is a warning from what
# two measured runs of a program differ by (MEASURED_NOISE).
STRAGGLER = 0.01
TOGETHER = 0.5
# Of 16 ranks or more one is a straggler, too, whose own time is this much more than its
# peers', as a share of the job's time, and this many standard deviations beyond all.
# Chosen by judgement: the largest of 4,096 normal deviates is below 4.5.
ALWAYS_LATE = 0.015
STANDS_OUT = 6.0
# Of 16 ranks or more, one is late by more than chance from this many standard errors
# on: of 4,096 ranks that are alike, one in 75 jobs has such a one. Chosen by judgement.
SURE_OF_MANY = 4.5
# A cause is named if it explains this share of what a rank is late by.
EXPLAINED = 0.8
# Lines are known where this share of the GPU's time has one. Chosen by judgement.
LINES_KNOWN = 0.9
