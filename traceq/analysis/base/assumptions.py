"""Numbers that the analyses assume, each with its unit and where it comes from.

Nothing here is computed from the trace at hand. Each number states its origin: measured
(on what, with which script, when) or heuristic. Names end in their unit (``_NS``,
``_BYTES``); those without one are fractions, factors or counts.
"""

from __future__ import annotations

from typing import NamedTuple

from traceq.model.run import HostCost

# -- The host's time without the profiler ---------------------------------------------
#
# Time of a host event, and the time that recording adds. Only the ratio matters: a
# slower machine is slower at both. These are used for traces without a run folder;
# `traceq collect` measures them on the machine that records.
#
# Fitted by hand on 17 host-bound captures: those of benchmarks/pairs.json, and five
# programs recorded with collect, two of them without stacks too (H200, torch 2.11, CUDA
# 13.0, 2026-11-15). Estimate over measured step: 0.99 at the mean, standard deviation
# 12%, from 0.83 to 1.28. On the 5 of pairs_held_out.json it is 0.86, 15%, 0.69 to 1.06;
# they were looked at too, but these costs are the best ones without them. A lower cost
# of operators gives GPU-bound captures too slow a host; their repaired twins show its
# true speed. `benchmarks/fit_host_costs.py` fits the costs again.

# A call of a Python function, recorded with stacks.
PYTHON_CALL_COST_NS = HostCost(400, 700)
# A PyTorch operator. Without stacks the time inside of operators and calls is slowed
# down as much as with them, 2.5 times, and Python between them not at all. Measured on
# 112 recordings of 14 programs (benchmarks/options, H200, torch 2.11, 2026-11-16).
OP_DISPATCH_COST_NS = HostCost(3_300, 4_800)
# A call of the CUDA runtime or driver, as a kernel launch.
LAUNCH_CALL_COST_NS = HostCost(3_000, 3_500)

# The same costs while the host launches nothing, such as during data loading: operators
# are then views and other cheap ones, and the host's time beyond its events is work.
# Fitted by hand on five programs that load by rows, recorded with stacks
# (benchmarks/options/loading.json, H200, torch 2.11, 2026-11-17). Median error of the
# loading time: 55% without, 8% with; 31% and 22% on six held-out programs. Only the
# measurement of `traceq collect` reveals a slower machine here.
QUIET_PYTHON_CALL_COST_NS = HostCost(400, 850)
QUIET_OP_DISPATCH_COST_NS = HostCost(350, 1_700)
# Time that recording shapes adds per operator; from the same programs, recorded with
# stacks alone.
SHAPES_NS = 1_300
# The part of an operator's recording time that lies outside of it, if it has no parent:
# without stacks it would count as Python. Fitted on the same five programs. Error of
# the loading time: 55% without this and the costs above, 14% with them; held out, 29%
# and 9%.
OUTSIDE_OP_NS = 1_000
# Lower bound of Python between operators, as a fraction of its recorded time.
# Heuristic.
LEAST_BETWEEN_OPS = 0.2

# Slowdown of a CUDA graph launch while kernels are recorded, the same as inside of
# operators. Measured by the cost of a sync after each token and of Python between
# tokens, with the profiler and without: 300 µs instead of 100 to 180 for 177 kernels
# (H200, torch 2.11, 2026-11-16, benchmarks/models/serving.json).
GRAPH_LAUNCH_SLOWDOWN = 2.5

# Length of the windows in which the host's time is compared with its events: an event's
# time is spent around the instant at which it begins. Heuristic: a few dozen operators
# long, so that a single slow one does not count as the host's own work.
SMOOTHING_NS = 500_000
# Host time beyond this multiple of the cost of its events counts as the host's own
# work, which recording does not slow down. On the captures above 2 and 3 do equally
# well.
TOLERATED_OVERHEAD = 3.0

# Largest slowdown of the host by recording with stacks. Measured on the host-bound
# captures of benchmarks/: their steps take 1.5 to 3.0 times as long.
PROFILER_SLOWDOWN = 3.0

# -- Launches and streams --------------------------------------------------------------
#
# Latency from a launch to an idle GPU, if no launch of the trace shows it. Heuristic;
# in the captures of fixtures/ the median is 7 to 17 µs, with the time of recording the
# launch (H200, torch 2.11, 2026-11-15).
LAUNCH_LATENCY_NS = 5_000
# If host and GPU clocks differ by more than this, the latency is not usable. Heuristic
# threshold: ten times the usual latency.
LONGEST_LAUNCH_LATENCY_NS = 50_000
# Depth of the launch queue: a launch blocks once this many are pending. Measured by
# benchmarks/launch_queue.py: 1,021 on an H200 with CUDA 13.0, 2026-11-15.
LAUNCH_QUEUE = 1000
# A launch that takes this long, and this many times the median, while the GPU idles for
# less than this fraction of it, waits for room in the queue. Heuristic thresholds:
# recorded launches take 5 to 10 µs, and one that waits takes as long as a kernel.
BLOCKED_LAUNCH_NS = 100_000
BLOCKED_LAUNCH = 20
IDLE_WHILE_BLOCKED = 0.1
# Work that begins this much later than its stream and its launch allow was waiting for
# another stream. Heuristic threshold: above the usual gap between two kernels.
STREAM_WAIT_NS = 2_000

# -- Syncs -----------------------------------------------------------------------------
#
# A sync that returns sooner hardly waits for the GPU: inside an operator, and outside
# of all. Microseconds. Heuristic thresholds, above the time of the call itself.
SHORT_OP_SYNC_US, SHORT_PROGRAM_SYNC_US = 5, 10
# Between two syncs too little is launched to keep the GPU busy, if it is less than this
# fraction of the longer wait: without the first, the second waits as long. Heuristic
# threshold.
LITTLE_LAUNCHED = 0.5
# A copy from pageable memory to the GPU ends in a sync of its own, which takes less
# than this unless the GPU is behind. Heuristic threshold.
COPY_SYNC_NS = 50_000
# Such copies of at least this size are reported as copies (CPY003), with their syncs.
# Heuristic threshold: the driver stages smaller ones without waiting.
PAGEABLE_COPY_BYTES = 64 * 1024
# A copy to the host ends in a sync as well. If it takes more than this fraction of the
# host's wait, it is a slow copy, else a wait for earlier GPU work. Heuristic threshold:
# without the profiler the host is faster and waits longer, so that the fraction is
# smaller than recorded.
COPYING_SHARE = 0.8

# -- Calibration of host and GPU speed -------------------------------------------------
#
# Range of the error of the estimated host time, as factors. The captures of benchmarks/
# need 0.78 to 1.45 to match their measured steps. On other machines recording slowed
# hosts down by as little as 1.3 times, while these costs predict 2.2, so they would
# need 1.7.
FASTEST_HOST, SLOWEST_HOST = 0.7, 1.7
# The GPU's clock may differ between the recording and the measured step. Heuristic
# range; the GPU-bound captures need 0.98 to 1.01.
FASTEST_GPU, SLOWEST_GPU = 0.8, 1.25
# Relative uncertainty of a measured step. Heuristic.
MEASURED_SPREAD = 0.05
# How likely launches that the GPU hides take what their events should, not what a
# measured step says of the others. Heuristic: TF32 saved esm 16% of a step (3% if they
# are as slow as the others, 15% if not), wav2vec2 7% (20%, 8%), nerf 36% (36%, 38%);
# bfloat16 attention saved DiT 6% (7%, 12%). H200, torch 2.11, 2026-11.
HIDDEN_AS_EXPECTED = 0.5
# Relative difference between two runs of a program with a host-bound step. Measured: 7%
# between two twins whose repair changes nothing, 15% between runs on a busy machine.
HOST_RUN_SPREAD = 0.1
# Error of a predicted saving, by what bounds the step: the 10% and the 90% quantile of
# (measured - predicted) / (predicted + a tenth of the step), over the 31 GPU-bound and
# 47 host-bound pairs of benchmarks/pairs*.json and benchmarks/fresh. The tenth stands
# for differences between two runs. With quantiles of the others alone, the range
# contains the measured saving of 25 of 31 and 39 of 47 (benchmarks/fit_ranges.py,
# 2026-11-19).
SAVING_ERRORS = {"gpu": (-0.05, 0.43), "host": (-0.15, 0.81)}
SAVING_ERROR_OF_STEP = 0.1
# The least of a predicted step that may really remain after fixes. Of the 51 pairs the
# lowest is 0.55, attn_fp32. 2026-11-18.
LEAST_LEFT = 0.5
# Calibration searches the host's speed between 0 and this factor, by bisection.
SLOWEST_SEARCHED = 3.0
BISECTIONS = 7

# -- Kernels ---------------------------------------------------------------------------
#
# Kernels shorter than this count as small: about the launch overhead on the host, so
# that a stream of them cannot keep the GPU busy. Heuristic threshold.
SMALL_KERNEL_NS = 5_000

# -- What bounds a step ----------------------------------------------------------------
#
# A step is GPU-bound if the GPU has work for at least this fraction of it. If the GPU
# alone needs this fraction of a measured step, the step only gives an upper bound of
# the host's time. Heuristic threshold; it agrees with the measurements on all pairs of
# benchmarks/.
GPU_BOUND = 0.9

# -- Optimizers ------------------------------------------------------------------------
#
# Fraction of the time of an optimizer step with one op per parameter that is saved if
# one op updates many. Measured on the twins optimizer_loop_sync and optimizer_fused
# (AdamW, 52 parameters, H200, torch 2.11, 2026-11): fused saves 80% on the host,
# rounded down here, and 64% of the kernels' time; the loop has 20 reads and writes of
# each parameter's size, the fused kernel 7. Of lit_llama's 171 it saved 84%.
FUSED_HOST_SAVED = 0.75
FUSED_KERNELS_SAVED = 0.64
# The same for an optimizer that is to be rewritten: values are not written and read
# again between kernels. Heuristic.
OPTIMIZER_KERNELS_SAVED = 0.5
# The same on the host by foreach: SGD saves 80% of a step of 160 parameters, with
# momentum and without, and 82% to 92% fused (loop_of_sgd of
# benchmarks/models/advice.py, H200, torch 2.11, 2026-11). Of others nothing was
# measured.
FOREACH_HOST_SAVED = 0.75
# The same for an optimizer that is to be rewritten with foreach. Heuristic.
REWRITTEN_HOST_SAVED = 0.5
# Fraction of the kernels' time that foreach saves; they read and write as much as those
# of a loop. Derived from the fractions that fused saves of either, 64% and 58%.
FOREACH_KERNELS_SAVED = 0.15
# Reads and writes of a parameter's size by the fused SGD, without momentum and with it;
# and by an op of a loop, except the one that scales the momentum, which has one less.
# Counted.
FUSED_SGD_PASSES = (3, 5)
UPDATE_PASSES = 3
# Fractions that fused saves over foreach ops on lists of parameters: of the host's time
# from the first of these ops to the last, and of their kernels' time. Measured on
# traces of Adam and AdamW both ways, normalised by the host's speed at the rest of each
# (H200, torch 2.11, 2026-11-16): on bert, dense_adamw, groups, llama_big, mobile_adam
# and vit_amp of benchmarks/options/optimizers.json 0.91 and 0.58 at the median, 0.83 to
# 1.07 and 0.46 to 0.62; rounded down. On the five others 0.93 and 0.58, and their steps
# are predicted to get 8% faster at the mean, as measured; they are not part of the fit,
# but were seen when the op from which the host's time counts was chosen.
FUSED_FOREACH_HOST_SAVED = 0.9
FUSED_FOREACH_KERNELS_SAVED = 0.55

# -- Loops -----------------------------------------------------------------------------
#
# Loops over small kernels with fewer iterations are not reported, unless the user sets
# another number. Heuristic threshold.
FEWEST_ITERATIONS = 8
# torch.compile unrolls loops: with four layers of 64 iterations each it did not finish
# in 100 s (torch 2.11). Heuristic threshold of where it begins to hurt.
UNROLLED_ITERATIONS = 32

# -- Comparing two recordings ----------------------------------------------------------
#
# Two runs of one program differ by these fractions of a step on an otherwise idle
# machine: measured without the profiler, as recorded over several steps, and over a
# single one. Heuristic; tests/test_diff_cases.py checks that two runs of one program
# are not a change.
MEASURED_NOISE = 0.02
RECORDED_NOISE = 0.05
SINGLE_STEP_NOISE = 0.1
# A change of the GPU's work by this fraction of the step is reported whatever the host
# does. Heuristic threshold.
GPU_CHANGE = 0.05
# The host's time for the same ops and launches differs by these fractions of the step
# between runs: without and with stacks. Heuristic, checked by the same tests.
HOST_VARIES, RECORDED_HOST_VARIES = 0.25, 0.6
# The host's activity in idle time is compared if the idle time changed by this fraction
# of the step. Heuristic threshold.
HOST_CHANGE = 0.01
# Upper bound of a launch's cost, with the operators and the Python around it. Operators
# take 26 to 46 µs for each launch as recorded with stacks in host-bound pairs of
# benchmarks/, 9 to 15 µs without the profiler (H200, torch 2.11, 2026-11); rounded up.
MAX_HOST_TIME_PER_LAUNCH_NS = 50_000

# -- Attention, norms, matmuls: rooflines and efficiencies -----------------------------
#
# Peaks are the vendor's (traceq.model.gpu_peaks). The fractions of them that kernels
# reach began as heuristics on 2026-11-15, on the cautious side, so that a predicted
# saving is rather too small. "Measured" below is the check of the same day on traces of
# benchmarks/pairs.json: H200, torch 2.11, CUDA 13.0, bf16, 4 or 8 sequences of 1,024
# tokens, width 768, heads of 64. tests/test_roofline.py keeps the two within a third of
# each other.


class Efficiency(NamedTuple):
    """Fractions of a GPU's peaks that kernels reach."""

    bandwidth: float
    compute: float = 1.0
    """Of the matmul rate in the dtype; unused for work that only moves memory."""


# A kernel that does real work takes at least this long, with the gap to the next.
# Heuristic: the smallest ones of an H200 take 1 to 3 µs.
SHORTEST_KERNEL_NS = 5_000
# Matmuls on tensor cores. Measured: 0.72 to 0.73 of the roofline over all matmuls of a
# step, 0.48 to 0.56 for the slowest tenth of them.
MATMUL_EFFICIENCY = Efficiency(bandwidth=0.6, compute=0.6)
# A copy of a contiguous tensor. Heuristic.
COPY_EFFICIENCY = Efficiency(bandwidth=0.6)
# The FlashAttention kernels that torch ships, by major compute capability: they were
# written for 8 (A100), and do not use what newer GPUs add. Measured on 9: 0.15 to 0.17
# with a causal mask and the backward; 8 and 10, and the bandwidth, are heuristic.
FLASH_EFFICIENCY = {
    8: Efficiency(bandwidth=0.5, compute=0.3),
    9: Efficiency(bandwidth=0.5, compute=0.15),
    10: Efficiency(bandwidth=0.5, compute=0.1),
}
# The backward of attention computes 5 matmuls where the forward computes 2. Counted.
ATTENTION_BACKWARD = 2.5
# Fraction of the time of cuDNN's attention with a lower-triangular mask, with its
# backward, that is_causal=True saves. Measured on an H200 (torch 2.11): 722 -> 467 µs
# for sequences of 512, compiled; 1.66 -> 1.08 ms for longer ones, eager. For sequences
# of 2,048, 4,096 and 8,192, in eager steps, it is 0.59, 0.61 and 0.63.
CAUSAL_MASK_SAVING = 0.35
LONG_CAUSAL_MASK, LONG_CAUSAL_MASK_SAVING = 2048, 0.6
# Kernels of one call of fused attention, and of its backward. Counted in the traces.
FLASH_KERNELS, FLASH_BACKWARD_KERNELS = 1, 3
# Fused norms. Measured with the backward: LayerNorm 0.20 to 0.21, RMSNorm 0.27; the
# forward alone 0.25 to 0.28 and 0.54. So the predicted saving of a LayerNorm in
# training is slightly too large.
NORM_EFFICIENCY = Efficiency(bandwidth=0.3)
# Reads and writes of its input's size by a fused norm, and its kernels: forward alone,
# and with the backward. Counted.
NORM_PASSES, NORM_KERNELS = (2, 5), (1, 3)

# Batch norms in channels_last, by the kernel that does the same in NCHW: its reads and
# writes of the input's size, counted, and the efficiency of its counterpart. Measured
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
    # cuDNN's: the passes over the images that the algorithm needs. The efficiency was
    # chosen with one measurement at hand and is tested on no other: ResNet-50 in
    # float32, 128 images, 65.7 to 47.7 ms in alternating blocks; this gives 46.9.
    "bn_fw_tr": (3, Efficiency(bandwidth=0.85)),
    "bn_bw": (5, Efficiency(bandwidth=0.85)),
}

# -- Fusion ----------------------------------------------------------------------------
#
# Fitted on twelve programs, eager and compiled (a Llama, a ResNet-50, a BERT, a scan as
# of mamba.py, a U-Net, two DiTs, ConvNeXt, a transformer with rotary embeddings, a VAE,
# a HiFi-GAN, GPT-2; H200, torch 2.11, 2026-11-18). Fitted on eleven each time, they
# predict the memory-bound kernels of the twelfth with a median error of 6%, 24% at
# most, and its GPU time with one of 4%, 10% at most (benchmarks/fusion/compare.py).
# What is counted was chosen with all twelve in view.
#
# Generated kernels that compute a chain of memory-bound ops: the share of the bandwidth
# that they reach, and the time of a pass that moves nothing.
FUSED_EFFICIENCY = Efficiency(bandwidth=0.78)
FUSED_KERNEL_NS = 3_000
# Chains with a norm over a batch or over groups take this many times as long as their
# bytes say: values between their two passes are written and read.
FUSED_TWICE = 1.6
# Chains without a norm, a softmax or a sum take this many times as long: they only
# stream, as eager pointwise ops do.
FUSED_POINTWISE = 0.85
# Tensors that a chain has in two orders, as in channels_last and in rows, take this
# many times as long: one of them is read or written with gaps, and the compiler copies
# some to the order of a convolution's backward.
FUSED_TRANSPOSED = 2.3
# Of the time of kernels that make gradients of views, and add gradients up, the share
# that goes: they are part of the kernels before or after.
LOOSE_SAVED = 0.75
# The same of kernels that add up rows for the gradient of a bias.
BIAS_SUM_SAVED = 0.35
# Of the host's time for ops that are fused whole, the share that goes. Fitted on the
# scan, which the host would bound once it is fused: a step took 4.9 ms, and 5.3 ms are
# predicted with it, 8.9 ms without. Of the seven GPU-bound programs the median error is
# then 8%, the largest 23%; of the four of them that were held out 2% and 11%.
FUSED_OPS_HOST_SAVED = 0.9

# -- The account of the GPU ------------------------------------------------------------
#
# Rates that kernels of a class reach, by a pattern of the op's name; matmuls first, as
# the rest. Medians of ops of 20 µs or more in the captures of fixtures/ and in eight of
# benchmarks/models (H200, torch 2.11, 2026-11): matmuls 0.67 to 0.72, batched ones
# bound by memory 0.75 to 0.78; pointwise ops 0.85 to 0.91, softmaxes 0.45 to 0.9, norms
# 0.17 to 0.63, copies 0.44 to 0.53, sums 0.2 to 0.31, convolutions 0.15 to 0.67,
# optimizers 0.55 to 0.72.
MATMUL_REACHED = Efficiency(bandwidth=0.78, compute=0.7)
ACCOUNT_EFFICIENCY = {
    r"^aten::": Efficiency(bandwidth=0.85, compute=0.7),
    r"mm$": MATMUL_REACHED,
    r"norm": Efficiency(bandwidth=0.4),
    r"softmax|logsumexp": Efficiency(bandwidth=0.65),
    r"aten::(sum|mean|var|std|amax|amin|max|min|norm|linalg_vector_norm)": Efficiency(
        bandwidth=0.3
    ),
    r"copy_|cat$": Efficiency(bandwidth=0.5),
    r"conv": Efficiency(bandwidth=0.6, compute=0.4),
    r"_foreach_|_fused_(adam|sgd|adagrad)": Efficiency(bandwidth=0.65),
    r"embedding|gather|index|scatter|pool": Efficiency(bandwidth=0.2),
    r"attention": Efficiency(bandwidth=0.5),
    r"^triton_": Efficiency(bandwidth=0.7),
}
# An op that needs less than this share of its time runs a slow algorithm. Heuristic
# threshold: half of the op's class reach more than twice that.
SLOW_ALGORITHM = 0.5

# With fewer of its warps than that a multiprocessor cannot hide how long memory takes.
# Heuristic threshold: with 64 warps it is 16, four for each of its schedulers.
LOW_OCCUPANCY = 0.25
# A loss is named after multiprocessors without a block if these have this share of it.
MOST_OF_A_LOSS = 0.5
# Instructions for each element of pointwise kernels that compute its address, as those
# of strided and broadcast tensors, and of a thread of torch's layer norm. By Nsight
# Compute on one program (dit_infer of benchmarks/fusion, H200, torch 2.11, 2026-11):
# 62, and 396 in a norm of 768 elements. Not used for it: such pointwise kernels of
# eight other programs take 2.4 to 5 ps an element whatever their dtype, of a U-Net
# up to 8 (60 instructions: 1.8 ps at least), and norms of 96 to 768 elements 1.6 to
# 3.1 ns a row (of 128 threads: 1.5 ns at least).
ELEMENT_INSTRUCTIONS = 60
THREAD_INSTRUCTIONS = {r"vectorized_layer_norm_kernel": 400}

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
# Upper bound of the saved fraction, whatever the bytes allow: some rows are still added
# to the same address. Measured: 0.88 to 0.97.
ADDED_ROWS_MOST_SAVED = 0.875
# Atomic adds in float32 to few addresses, with the casts, as a fraction of the
# bandwidth for the bytes of the 16-bit ones. Measured: 0.01 to 0.05.
FLOAT32_ATOMICS_EFFICIENCY = 0.01
# A one-hot matrix and its matmul. Measured: 0.07 to 0.25, least where millions of
# narrow rows are added up.
ONE_HOT_EFFICIENCY = Efficiency(bandwidth=0.1)
# Depthwise convolutions in channels_last instead of torch's own kernels for NCHW, with
# the backward: the saved fraction, in 16-bit dtypes and in float32 for at most 5 by 5.
# Measured: 0.67 to 0.8, and 0.51 to 0.7; float32 with 7 by 7 took 2.8 times as long.
DEPTHWISE_SAVED, FLOAT32_DEPTHWISE_SAVED = 0.65, 0.5
# Depthwise convolutions in channels_last, forward or backward, as a fraction of the
# peaks by the size of the window. Measured: in 16-bit dtypes 0.18 for 3 by 3, 0.13 for
# 5 by 5, 0.05 to 0.06 for 7 by 7; in float32 0.4 and 0.14.
DEPTHWISE_EFFICIENCY = {3: 0.18, 5: 0.12}
FLOAT32_DEPTHWISE_EFFICIENCY = {3: 0.4, 5: 0.14}
# A convolution that cuDNN does by Fourier transforms, by another of its algorithms. In
# the one program that had some, forward passes of the same shapes reached 0.12.
WITHOUT_TRANSFORMS_EFFICIENCY = 0.1
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
# Of the time of kernels, where the GPU or the shapes are not known. Heuristic.
UNKNOWN_SAVING = 0.5
# Of handwritten attention in float32, which has no FlashAttention, only mem-efficient
# kernels. Heuristic.
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
# An activation as one op with one kernel, as are the ops by hand. Heuristic: its op and
# its backward are no longer than one and a half of theirs.
FUSED_ACTIVATION_LAUNCHES = (1.5, 1.5)

# -- Model FLOP utilisation ------------------------------------------------------------
#
# At least this fraction of the time of matmuls, convolutions and attention must have
# shapes, else no rate is computed. Heuristic threshold.
COUNTED_SHARE = 0.9

# -- Copies and collectives ------------------------------------------------------------
#
# GB/s that copies from and to pinned memory reach, by the major compute capability of
# the GPU from which on it holds: PCIe 5, 4 and 3, at two thirds of their nominal rate.
PINNED_RATES = ((9, 40.0), (8, 20.0), (0, 10.0))
# The rate of pinned copies is read off those of at least this size in the trace, if
# there are any. Heuristic threshold: the fixed cost of a copy dominates smaller ones.
RATED_COPY_BYTES = 1 << 20
# The fraction of the program's own casts and layout copies that a fix can remove, if
# nothing is known about a single one of them. Heuristic.
REMOVABLE_COPIES = 0.5
# Of what batched matmuls copy since batch dims come last in memory. None is needed with
# these first; what else reads the tensors may need one then. Heuristic.
BATCH_LAST_COPIES = 0.8
# A collective takes this long to start and to meet the other ranks. Heuristic
# threshold: far above NCCL's time on one machine, so that a wait is certain.
COLLECTIVE_LATENCY_NS = 100_000
# Work that was queued behind a collective begins this soon after it, or something else
# held it; and a call that waits for one returns this soon. Heuristic thresholds: a
# stream takes 1 to 10 µs to go on after an event, a host thread 100 µs to wake up.
STREAM_HANDOVER_NS = 30_000
HELD_SYNC_NS = 200_000
# Lower bound of the GB/s between GPUs of one machine, over PCIe 3. Heuristic.
SLOW_MACHINE_LINK = 10.0

# -- The account of the host -----------------------------------------------------------
#
# An operator call is slower than usual if its self time exceeds both. Heuristic
# thresholds: on an H200 with torch 2.11 a matmul takes 14 to 22 µs on a known shape and
# about 200 µs on a new one, a convolution 2 ms, cuDNN attention 44 ms (2026-11).
EXCESS_NS = 100_000
EXCESS_FACTOR = 4.0
# Time of such a call on a known shape, with stacks recorded, if the trace has none to
# compare with. Heuristic: 14 to 57 µs were measured without the profiler.
USUAL_PLANNED_OP_NS = 60_000
# An op that no list names makes plans too if this many calls on new shapes are slow, in
# two steps or more, and hardly one on a known shape. Heuristic threshold.
SEEN_PLANNED_CALLS = 4
# Python time around a call of an operator in the user's function, without the profiler:
# reading arguments, looking up names. Measured: 1 to 8 µs in the functions of the
# captures that do nothing else (H200, 2026-11); a little more here.
PYTHON_PER_OP_NS = 10_000

# Without stacks, a gap between two operators is Python of the model if it is no longer
# than this. In 20 host-bound traces without stacks the longest such gap takes
# 1.03 ms where operators follow each other; where data is loaded, or the program sleeps
# or compiles, it takes 2 ms to 13 s (2026-11).
MOST_BETWEEN_OPS_NS = 2_000_000
# The same limit for a compiled model: a longer gap is the program around it. Heuristic,
# set before nine programs were compiled that nothing here is fitted to. Mean error of
# their savings: 9 points with this limit, 12 with the one above (H200, torch 2.13,
# 2026-11).
MOST_OF_MODEL_NS = 200_000
# The same if a trainer runs the step in the optimizer's closure, with Python of its own
# around everything. Fitted on three programs with Lightning: they saved 19, 28 and 58%
# compiled; predicted 30, 36 and 54% with this limit, 38, 51 and 61% with the one above.
MOST_IN_TRAINER_NS = 50_000
# An ATen operator with a longer self time on the host does more than dispatch: it
# computes on the host, or is the first to use something. Heuristic threshold: on a GPU
# they take 5 to 100 µs, and those for lists of hundreds of tensors less than 1 ms.
MOST_DISPATCH_NS = 1_000_000

# -- The start of the GPU --------------------------------------------------------------
#
# The call that makes the context takes this long at least, and this share of the steps
# where their time is that of the start. It took 110 to 140 ms on an H200 (torch 2.11,
# 2026-11) and 30 s on somebody's A100; any later call of its name takes microseconds.
# The fraction is a heuristic: loading kernels and libraries takes as much or more.
CONTEXT_NS = 20_000_000
CONTEXT_SHARE = 0.05
# A call of the runtime that neither waits nor copies, and still takes this long, loads
# something. Heuristic threshold.
FIRST_USE_NS = 1_000_000

# -- Loading data ----------------------------------------------------------------------
#
# Time of the training process for each tensor of a batch that a worker has loaded: it
# maps the memory that the worker names over a socket. With pin_memory=True a thread
# does so, which stalls the program as much. Measured on the five programs of
# benchmarks/options/loading.json that are for fitting (H200, torch 2.11, 2026-11-17): a
# step took this much longer than the rest of it without loading, 0.5, 0.5, 0.7 and 1.5
# ms for 2, 2, 2 and 6 tensors, and 0.4 less for 3. Without pinning the next batch alone
# took 1.1 to 2.3 ms. A V100 machine took 83 µs at least for the two of a batch.
WORKER_TENSOR_NS = 250_000
# Slowdown of a worker for a batch, relative to the training process: it allocates the
# memory that it writes to, and shares the machine. Measured where workers bound the
# step: 1.39 and 1.40 (2 and 4 of them, `pil` of the same five), 1.28
# (8, `loader_alone` of benchmarks/models).
WORKER_SLOWDOWN = 1.3
# Time of a DataLoader for a batch of a TensorDataset that a BatchSampler picks whole:
# for each tensor, for each row of each tensor, and for each byte. Measured on a core of
# a server without a GPU (torch 2.13, 2026-11-17) with 1 to 6 tensors, 64 to 1,024 rows
# and 8 to 49,152 floats in each: 0.15 to 1.6 ms, largest error 22%. Picking the rows
# one by one took 3 to 11 times as long, but for rows of 3,072 floats 1.3 to 1.9 times,
# and for those of 49,152 half.
WHOLE_BATCH_TENSOR_NS = 30_000
WHOLE_BATCH_ROW_NS = 500
WHOLE_BATCH_BYTE_NS = 0.25
# Recommended number of workers if the number of cores is not known. Heuristic.
USUAL_WORKERS = 8
# One worker has no slack: a batch that takes longer than usual stalls the step.
FEWEST_WORKERS = 2

# -- CUDA graphs -----------------------------------------------------------------------
#
# Lower bound of compiled kernels' GPU time, as a fraction of the eager time: fewer of
# them move less memory. Measured: 2.24 of 3.87 ms for a small Llama, compiled with CUDA
# graphs (H200, torch 2.11, 2026-11); rounded down.
COMPILED_GPU_SHARE = 0.55
# Fraction of the host's time that is saved for ops that are launched one by one next to
# graphs, or in decode loops and in code that is compiled without graphs: guards,
# wrappers, the replay and a gradient for each weight stay. Measured on training steps:
# 0.88 on the same Llama, 0.75 to 0.8 on a small BERT, ViT, T5 and MobileNet (H200,
# torch 2.11, 2026-11-16, benchmarks/options/compiled.json); the least-squares fit of
# all five.
GRAPH_HOST_SAVED = 0.83
# Host cost of a call of a model that torch.compile replays as a CUDA graph, for guards,
# wrappers and copies of inputs, in kernels with their ops as launched before; and the
# same of its backward. The gradients of weights are accumulated as before. Fitted on 17
# programs (the f_ of graphs.json and those of trainers.json, in benchmarks/options, and
# a NeRF; H200, 2026-11-17): mean error 5 points of the step, against 13 for saving 83%
# of all but the optimizer.
COMPILED_CALL_KERNELS = 10
COMPILED_BACKWARD_KERNELS = 15
# Host time of a graph launch, as a fraction of that for the kernels in it one by one.
# As recorded, it took 1.1 to 1.6 µs for each kernel in four of the f_ programs, 2.5
# times as long as without the profiler, where a kernel with its ops took 18 to 39 µs.
GRAPH_LAUNCH_SHARE = 0.03

# -- Many ranks ------------------------------------------------------------------------
#
# A collective ends on all its ranks within this time. On the public jobs of 2 to 8
# ranks of one machine the ends differ by 1 to 5 µs at the median (2026-11-15); those of
# an all-to-all with unequal sizes by up to 100 µs.
ALIGNED_END_NS = 5_000
# Largest drift between the clocks of two machines; 50 ppm is the tolerance of a usual
# quartz.
CLOCK_DRIFT = 100e-6
# Clocks that differ by less are used as they are if nothing else distinguishes
# collectives. Heuristic threshold: NTP in a cluster keeps machines within 1 ms.
TRUSTED_CLOCK_NS = 500_000
# Relative difference of the same work from step to step. Heuristic: 0.2% to 3% in the
# captures of fixtures/.
USUAL_NOISE = 0.01
# A drift is fitted if a rank shares at least this many collectives over at least this
# long: 50 ppm of less cannot be seen. Heuristic thresholds.
LEAST_ENDS_FOR_DRIFT = 6
SHORTEST_FOR_DRIFT_NS = 500_000_000
# Required log-likelihood ratio of the best shift of a rank's window to the next one;
# natural logarithm, 3 is 20 to 1. Heuristic threshold.
SURE_OF_SHIFT = 3.0
# A rank is a straggler if the job takes this much less time with it as its peers; and a
# quarter of the ranks or fewer are, if that saves this share of what all at the median
# save. Above what 2% of noise makes of one rank: at most 0.63% in 24 jobs of 8 and 64
# ranks, by python benchmarks/ranks.py planted. A finding of it is a warning from what
# two measured runs of a program differ by (MEASURED_NOISE).
STRAGGLER = 0.01
TOGETHER = 0.5
# Of 16 ranks or more one is a straggler, too, whose own time is this much more than its
# peers', as a fraction of the job's time, and this many standard deviations beyond all.
# Heuristic thresholds: the largest of 4,096 normal deviates is below 4.5.
ALWAYS_LATE = 0.015
STANDS_OUT = 6.0
# Of 16 ranks or more, one is late by more than chance from this many standard errors
# on: of 4,096 equal ranks, one in 75 jobs has such a one. Heuristic threshold.
SURE_OF_MANY = 4.5
# A cause is named if it explains this fraction of a rank's delay.
EXPLAINED = 0.8
# Lines are known if this fraction of the GPU's time has one. Heuristic threshold.
LINES_KNOWN = 0.9
# Operations of a matmul that takes a GPU longer than its launch takes the host: 15 us
# at the 67 TFLOPS in float32 of an H100. Heuristic threshold.
LARGE_MATMUL_FLOPS = 1e9
