"""Name patterns of runtime calls, regions and files, with their meaning.

Every list is tried from the top, and the first pattern that matches decides. Patterns
are in the syntax of Rust's regex crate, which Polars uses, and are matched against the
distinct names of a trace, not against its events. A pattern that two modules need
stands here.

A pattern that begins with (?i) is in lowercase, and is matched against lowercase names:
compiled as it stands, it takes twice as long.
"""

from __future__ import annotations

import re
from functools import lru_cache, wraps
from typing import TYPE_CHECKING

import polars as pl

from traceq.common.expressions import ascii_only
from traceq.model import schema
from traceq.model.owners import NOBODY, Owners, owned

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

# Names that are described again and again are those of small traces, and of ranks.
_FEW_NAMES = 1000

# Regions that torch names itself.
STEP = r"^(?:ProfilerStep|traceq: step)#([0-9]+)"
# The name of steps by traceq collect, where the program marks its own ProfilerStep#N.
COLLECTED_STEP = "traceq: step#"
OPTIMIZER_STEP = r"^Optimizer\.step#"
DATA_REGION = r"^enumerate\(DataLoader\)#"
# Regions of torch.distributed backends that communicate through the host.
HOST_COLLECTIVE = r"^(gloo|mpi):(\w+)$"
# Ops of vLLM and SGLang on CPUs, which communicate through shared memory.
SHARED_MEMORY_COLLECTIVE = r"^(?:_C|sgl_kernel)::(shm)_(\w+)$"
# Prefixes of the regions that torch and traceq collect name.
REGIONS = (
    "ProfilerStep#",
    "traceq: step#",
    "Optimizer.step#",
    "Optimizer.zero_grad#",
    "enumerate(DataLoader)#",
)
REGION = f"^({'|'.join(map(re.escape, REGIONS))})"
# Regions that torch opens, whatever the program marks, and that stand for no step.
TORCH_REGION = r"^Optimizer\.(step|zero_grad)#|^enumerate\(DataLoader\)#"
MODULE = r"^nn\.Module: (.+)$"
_WRAPPER = r"^nn\.Module: OptimizedModule_\d+$"

# Functions that step an environment of reinforcement learning.
ENVIRONMENT_STEP = r": (step|step_wait|step_async|send)$"
# Files of environments: packages of them, or named so by whoever wrote one.
ENVIRONMENT_FILE = (
    r"(?i)(^|/)(gym|gymnasium|pettingzoo|dm_env|dm_control|envpool|ale_py|minigrid"
    r"|procgen|shimmy|supersuit|metaworld|robosuite|mo_gymnasium|stable_baselines3"
    r"/common/(vec_env|monitor)[^/]*|torchrl/envs)(/|\.py)"
    r"|(^|/)(\w+_)?(envs?|environments?)(_\w+)?(/|\.py$)"
)

# Phases of a step, by the regions and ops that stand for them.
_PHASE_OF_REGION = (
    ("optimizer", r"^Optimizer\."),
    ("data", r"^enumerate\(DataLoader\)#"),
    ("optimizer", r"(?i)\boptim(izer)?(\b|_)|\bclip_grad"),
    ("backward", r"(?i)\b(backward|bwd)(\b|_)"),
    ("forward", r"(?i)\b(forward|fwd)(\b|_)"),
    ("data", r"(?i)\b(data[ _]?load(er|ing)?|next_batch|get_batch)\b"),
)
# A region around both passes does not tell which one is inside.
_BOTH_PASSES = r"(?i)\b(forward|fwd)[^0-9a-z]*(and[^0-9a-z]*)?(backward|bwd)(\b|_)"
BACKWARD_OP = (
    r"^autograd::engine::evaluate_function|Backward\d*$"
    r"|^torch::autograd::(AccumulateGrad|CppNode)"
)
# A compilation runs ops on fake tensors; this is what they run inside of.
_COMPILING = (
    "dynamo",
    "entire_frame_compile",
    "entire_backward_compile",
    "backend_compile",
    "inductor_compile",
    "async_compile.wait",
    "CachingAutotuner.benchmark_all_configs",
)
_TIMED = "(dynamo_timed)"
# Timed by the same means, but it captures a CUDA graph of what was compiled before.
GRAPH_CAPTURE = r"^(CUDAGraphNode\.record|cudagraphify)"

# Torch's name of the call of a compiled graph, with the hash of its code.
CALL_OF_GRAPH = r"^## Call CompiledFxGraph ([0-9A-Za-z_]+) ##$"

# Iterations that engines and trainers mark with record_function. Where others mark
# none, steps are known by the profiler's marks or the optimizer's calls.
ITERATIONS = (
    # SGLang: build_step_span_name in srt/utils/profile_utils.py, as
    # step[EXTEND bs=2 toks=12] or step[DECODE bs=32]. Before vLLM's: it may write both.
    ("SGLang's step[…]", r"^step\[[A-Z_]+ bs=\d+"),
    # vLLM's worker, as
    # execute_context_1(512)_generation_3(3); with detailed_trace_annotation the sums
    # of lengths too, as execute_515_context_1(sq512sk512sqsq..)_generation_3(..).
    ("vLLM's execute_…", r"^execute_(\d+_)?context_\d+\(.*_generation_\d+\("),
    # ATOM, as prefill[bs=2 tok=16384] or decode[bs=64 tok=64 …].
    ("ATOM's prefill[…] and decode[…]", r"^(prefill|decode)\[bs=\d+"),
    # vLLM-Omni, as execute_diffusion_1_1024x1024.
    ("vLLM-Omni's execute_diffusion_…", r"^execute_diffusion_\d+_\d+x\d+"),
    # Lightning: start in pytorch/profilers/pytorch.py puts [pl][profile] before the
    # names of actions; this one is of loops/training_epoch_loop.py.
    ("Lightning's run_training_batch", r"^\[pl\]\[profile\]run_training_batch$"),
)
# Scopes of vLLM (VLLM_NVTX_SCOPES_FOR_PROFILING), several in an iteration, in
# v1/worker/gpu_model_runner.py: the first is preprocess.
VLLM_SCOPE = r"^gpu_model_runner: \w+"
VLLM_FIRST_SCOPE = "gpu_model_runner: preprocess"
# Common names of iterations in users' programs.
USER_ITERATION = (
    r"(?i)(^|[^a-z])(train(ing)?|eval(uation)?|validation|inference|decode|generation"
    r"|denoising|diffusion)?[ _-]?(step|iter(ation)?|batch|request|timed region)"
    r"([^a-z]|$)"
)
# Events that occur once an iteration and not once a layer, the surest first.
LANDMARKS = {
    "optimizer": r"^aten::_fused_(adam|sgd|adagrad)|^aten::(addcdiv|addcmul|lerp)_$"
    r"|^aten::_foreach_(add|addcdiv|addcmul|lerp|mul|div|sqrt|neg|sub)_?$"
    r"|^Optimizer\.step#|multi_tensor_apply_kernel",
    "backward": r"^autograd::engine::evaluate_function|^CompiledFunctionBackward$",
    "embedding": r"^aten::(_?embedding_bag|embedding)$|^fbgemm::.*lookup|indexSelect",
    "graph": r"GraphLaunch",
    "wait": r"^aten::(item|is_nonzero)$|(Stream|Device|Event)Synchronize|Memcpy",
}

# Work of the GPU that copies between it and the host. CUPTI also names the memory:
# "Memcpy HtoD (Pageable -> Device)"; roctracer does not: "CopyHostToDevice".
HTOD = r"HtoD|HostToDevice"
DTOH = r"DtoH|DeviceToHost"
TRANSFER = rf"{HTOD}|{DTOH}"
PAGEABLE = r"Pageable"
PINNED = r"Pinned"

# Runtime calls. Copies that return only when they are done:
BLOCKING_COPY = r"^cudaMemcpy$|^hipMemcpy(WithStream|DtoH)?$"
# Frees that return only when the GPU is done with all its work:
BLOCKING_FREE = r"^(cuda|hip)Free(Host)?$|^cuMemUnmap$"
# GPU memory that the driver hands out and takes back. What is ordered on a stream, as
# cudaMallocAsync, blocks nobody and is not here.
DEVICE_ALLOC = r"^(cuda|hip)Malloc(Managed)?$|^cuMem(Create|Map|SetAccess)"
DEVICE_FREE = r"^(cuda|hip)Free$|^cuMem(Unmap|Release)"
# Host memory that is pinned and unpinned:
HOST_PIN = r"^(cuda|hip)(HostAlloc|MallocHost|HostMalloc|HostRegister)"
HOST_UNPIN = r"^(cuda|hip)(FreeHost|HostFree|HostUnregister)"
# The capture of a CUDA graph:
BEGIN_CAPTURE = r"BeginCapture"
END_CAPTURE = r"EndCapture"

_CALL = (
    ("graph launch", r"GraphLaunch"),
    # Those of Intel's GPUs are of Unified Runtime (ur) and Level Zero (ze).
    ("launch", r"Launch(Cooperative)?Kernel|LaunchHostFunc|EnqueueKernelLaunch"),
    ("copy", r"Memcpy|AppendMemoryCopy|EnqueueMemBufferCopy"),
    ("set", r"Memset|EnqueueUSMFill|AppendMemoryFill"),
    (
        "sync",
        r"(Stream|Device|Event|Ctx|Context|Host|CommandQueue)Synchronize"
        r"|^ur(EventWait|QueueFinish)$",
    ),
    (
        "capture",
        r"(Begin|End)Capture|GraphInstantiate|Graph(Exec)?Destroy|GraphGetNodes",
    ),
    (
        "allocation",
        r"^(cuda|hip)(Malloc|Free)|Host(Alloc|Malloc|Free|Register|Unregister)"
        r"|^cuMem(Create|Map|Unmap|Release|SetAccess|AddressReserve)"
        r"|^urUSM(Device|Host|Shared)Alloc|^urUSMFree|^zeMem(Alloc|Free)",
    ),
)

_FRAME = r"^(?<file>.+?)\((?<line>\d+)\): (?<function>.+)$"


def once_for_names(
    describe: Callable[..., pl.DataFrame],
) -> Callable[..., pl.DataFrame]:
    """Return a function that describes names, and the same few names only once.

    To compile the patterns takes longer than to match them against few names.
    """

    @lru_cache
    def describe_few(names: tuple[str | None, ...], *others: Hashable) -> pl.DataFrame:
        return describe(pl.Series("name", names, pl.String), *others)

    @wraps(describe)
    def describe_once(names: pl.Series, *others: Hashable) -> pl.DataFrame:
        if len(names) > _FEW_NAMES:
            return describe(names, *others)
        return describe_few(tuple(names), *others)

    return describe_once


def with_small_letters(names: pl.Series) -> pl.DataFrame:
    """Return the names as ``name``, and in small letters as ``small``."""
    return pl.DataFrame([names.alias("name"), names.str.to_lowercase().alias("small")])


_ANY_CASE = "(?i)"


def any_case(pattern: str) -> str:
    """Return a pattern in lowercase as one of names in any case."""
    return _ANY_CASE + pattern


def matches(pattern: str) -> pl.Expr:
    """Return whether a name matches a pattern."""
    column = pl.col("small" if pattern.startswith(_ANY_CASE) else "name")
    return column.str.contains(ascii_only(pattern.removeprefix(_ANY_CASE)))


def first_match(patterns: tuple[tuple[str, str], ...]) -> pl.Expr:
    """Return the value of the first pattern that a name matches."""
    return pl.coalesce(
        pl.when(matches(pattern)).then(pl.lit(value)) for value, pattern in patterns
    )


def _compiles(name: pl.Expr) -> pl.Expr:
    """Return whether an op or a region is of a compilation."""
    compiling = name.is_in(_COMPILING) | name.str.ends_with(_TIMED)
    return compiling & ~name.str.contains(ascii_only(GRAPH_CAPTURE))


@once_for_names
def describe_calls(names: pl.Series) -> pl.DataFrame:
    """Return the kind of each runtime function."""
    call = first_match(_CALL).fill_null("other")
    return names.to_frame("name").select("name", call=call.cast(pl.Enum(schema.CALLS)))


@once_for_names
def describe_regions(names: pl.Series) -> pl.DataFrame:
    """Return the step that each annotation opens, and the phase that it stands for."""
    name = pl.col("name")
    return with_small_letters(names).select(
        name,
        step=name.str.extract(STEP).cast(pl.Int64, strict=False),
        phase=pl.when(~matches(_BOTH_PASSES))
        .then(first_match(_PHASE_OF_REGION))
        .cast(pl.Enum(schema.PHASES)),
        compiling=_compiles(name),
    )


@once_for_names
def describe_ops(names: pl.Series) -> pl.DataFrame:
    """Return for each op whether it is autograd's, and whether it compiles."""
    name = pl.col("name")
    return names.to_frame("name").select(
        name,
        backward=name.str.contains(ascii_only(BACKWARD_OP)),
        compiling=_compiles(name),
    )


def frame_places(names: pl.Series) -> pl.DataFrame:
    """Return the source location of each Python call: file, line and function."""
    return (
        names.to_frame("name")
        .with_columns(
            pl.col("name").str.extract_groups(ascii_only(_FRAME)).alias("frame")
        )
        .unnest("frame")
        .with_columns(pl.col("line").cast(pl.UInt32, strict=False))
    )


def describe_frames(names: pl.Series, owners: Owners = NOBODY) -> pl.DataFrame:
    """Return the source location of each Python call, and the owner of the code.

    ``library`` is the file in the package, where it is neither the user's nor torch's.
    """
    return owned(frame_places(names), owners).select(
        "name",
        "file",
        "line",
        "function",
        "own",
        # torch.compile's wrapper is no module of the program.
        module=pl.when(~pl.col("name").str.contains(ascii_only(_WRAPPER))).then(
            pl.col("name").str.extract(MODULE)
        ),
        library="library",
    )
