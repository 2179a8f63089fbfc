"""Name patterns of kernels, runtime calls, regions and files, with their meaning.

Every list is tried from the top, and the first pattern that matches decides. Patterns
are in the syntax of Rust's regex crate, which Polars uses, and are matched against the
distinct names of a trace, not against its events. A pattern that two modules need
stands here.

A pattern that begins with (?i) is in lowercase, and is matched against lowercase names:
compiled as it stands, it takes twice as long.
"""

from __future__ import annotations

import re

import polars as pl

from traceq.common.expressions import ascii_only
from traceq.model import schema
from traceq.model.owners import NOBODY, Owners, owned

# Regions that torch names itself.
STEP = r"^(?:ProfilerStep|traceq: step)#([0-9]+)"
# The name of steps by traceq collect, where the program marks its own ProfilerStep#N.
COLLECTED_STEP = "traceq: step#"
OPTIMIZER_STEP = r"^Optimizer\.step#"
DATA_REGION = r"^enumerate\(DataLoader\)#"
# Regions of torch.distributed backends that communicate through the host.
HOST_COLLECTIVE = r"^(gloo|mpi):(\w+)$"
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

_KIND = (
    ("communication", r"(?i)nccl|rccl|nvshmem|all_?reduce|all_?gather|reduce_?scatter"),
    ("communication", r"(?i)all_?to_?all|^deep_ep::|cross_device_reduce"),
    (
        "attention",
        r"(?i)flash_(fwd|bwd|attn)|fmha|_sdpa_sm\d+_|flashattn|flashattention"
        r"|flex_(attention|decoding)|attn_(fwd|bwd)|paged_attention|decode_attention"
        r"|batch(decode|prefill)with|merge_attn_states|unified_attention"
        r"|compute_dot_do_o|convert_dq_to",
    ),
    (
        "norm",
        r"(?i)layer_?norm|rms_?norm|group_?norm|batch_?norm|instance_?norm|gammabeta"
        r"|rowwisemoments|cucompute(part)?grad|\bbn_(fw|bw)_|\bln_(fwd|bwd)_",
    ),
    ("copy", r"(?i)nchwtonhwc|nhwctonchw|nhwctofolded|batched_transpose|^transpose_"),
    ("softmax", r"(?i)soft_?max"),
    (
        "embedding",
        r"(?i)embedding|indexselect|indexing_backward|index_elementwise|indexfunc"
        r"|gather_kernel|scatter|compute_grad_weight|partial_segment|partials_per_segment"
        r"|sum_and_scatter|permute_(pooled|indices|2d)|bounds_check_ind|linearize_index",
    ),
    (
        "conv",
        r"(?i)convol|implicit_gemm|(\b|[_0-9])(fprop|dgrad|wgrad)|winograd|scudnn|im2col|col2im"
        r"|fft2d_|\bigemm_(fwd|bwd|wrw)|grouped_conv|conv_depthwise|bwd_weight|gcgemm"
        r"|compute(b|wgrad\w*)?offsets|cudnn::cnn::",
    ),
    (
        "copy",
        r"CopyFunctor|\bCopy<|CatArrayBatchedCopy|copy_kernel|copy_device_to_device"
        r"|^triton_poi_fused_((_to_copy|clone|copy_?|cat|_unsafe_view|view|permute"
        r"|transpose|t|expand)_)+\d+$",
    ),
    (
        "optimizer",
        r"(?i)multi_tensor_apply|fused_?(adam|sgd|lamb|adagrad)|amp_update_scale",
    ),
    (
        "gemm",
        # Not FBGEMM, which is a library of embeddings and quantised dtypes.
        r"(?i)(^b?|[^b]|[^f]b)gemm|nvjet|^cijk_|gemv|split_?k_?reduce|reduce_?splitk|cublas|\bdot_kernel|fused_moe|marlin"
        r"|triton_tem_fused_\w*mm|epilogue::impl|_scaled_mm|\bmatmul",
    ),
    ("memory", r"FillFunctor"),
    ("memory", r"(?i)\bfill_kernel|triton_poi_fused_(zeros|full|new_zeros)"),
    ("reduction", r"reduce_kernel|DeviceReduce|DeviceScan"),
    (
        "reduction",
        r"(?i)triton_(red|per|spl)_|nll_?(loss|criterion)|cross_entropy"
        r"|tensor_kernel_scan|arg(max|min)",
    ),
    (
        "elementwise",
        r"(?i)elementwise|triton_(poi|for)_|fused_dropout|subtensorop|scalepackedtensor"
        r"|optensor|_and_mul_kernel|quantize|_to_float|swiglu|geglu|rotary|(\b|_)rope_",
    ),
)
_KIND_OF_COPY = "copy"
_KIND_OF_SET = "memory"

# First what GEMM libraries write into their names, then the C++ type that comes
# first in a templated name: later ones are often sizes or accumulators.
_DTYPE = (
    ("fp4", r"nvjet_(sm\d+_)?oo\w+_|e2m1|ue4m3x"),
    ("fp8", r"(?i)e4m3|e5m2|_f8_|nvjet_(sm\d+_)?qq\w+_|fp8"),
    ("bf16", r"bf16|nvjet_(sm\d+_)?t[st][st]_|^Cijk_\w+_B[BS]S_"),
    (
        "fp16",
        r"f16f16|h\d+gemm_|gemm_(\w+_)?fp?16_|nvjet_(sm\d+_)?h[sh][sh]_|_f16_|fp16",
    ),
    ("fp16", r"_half\b|^Cijk_\w+_H([HS]S|B)_|\bfloat16(to|_copy_kernel)"),
    ("tf32", r"tf32|tensorop_s1688(gemm|dgrad|fprop|wgrad)_"),
    ("int8", r"i8i8|imma|s8_s8|int8"),
    ("fp64", r"f64f64|(\b|_)dgemm|d884|_f64_|^Cijk_\w+_DB_"),
    ("fp32", r"sgemm|scudnn|f32f32|_f32_|^Cijk_\w+_SB_"),
)
# cuDNN writes f16 for fp16 and bf16 alike into the names of its attention kernels.
_NO_DTYPE = r"_sdpa_sm\d+_|^void cudnn::fusion::"
# Types of arguments that are not data: defaults, and the scalars of foreach ops.
_NO_DATA = r"optional<double>|TensorListScalarListMetadata<\w+|, double"
_CPP_TYPE = r"(BFloat16|bfloat16|Half\b|half\b|\bdouble\b|(?:\b|_)float\b)"
_DTYPE_OF_CPP_TYPE = {
    "BFloat16": "bf16",
    "bfloat16": "bf16",
    "Half": "fp16",
    "half": "fp16",
    "double": "fp64",
    "float": "fp32",
    "_float": "fp32",
}

_LIBRARY = (
    ("nccl", r"(?i)nccl|rccl"),
    ("triton", r"^triton_|^_?\w+_kernel_0d1d"),
    (
        "flash-attention",
        r"flash_(fwd|bwd)|FlashAttn|FlashAttention|\bfmha_(fwd_loop|bwd_\w+)_kernel",
    ),
    ("xformers", r"\bfmha_"),
    ("cudnn", r"cudnn|^\w+_scudnn|nchwToNhwc|nhwcToNchw|convolve_sgemm|fft2d_"),
    ("transformer-engine", r"transformer_engine::"),
    ("fbgemm", r"fbgemm|split_embedding|permute_pooled|bounds_check_ind"),
    (
        "aten",
        r"at::native|at::cuda|at_cuda_detail::|cunn_|softmax_warp_|\bindexing_backward",
    ),
    ("aten", r"^void \(anonymous namespace\)::"),
    ("ck", r"(^_ZN|\b)(2)?ck(16|::)|ck_tile"),
    ("hipblaslt", r"^Cijk_"),
    (
        "miopen",
        r"^igemm_|MIOpen|batched_transpose_|SubTensorOp|transpose_NCHW|_CNHW2NCHW",
    ),
    ("cublas", r"nvjet|gemm|gemv|cublas|splitKreduce|epilogue::impl"),
    ("cutlass", r"cutlass"),
    ("cub", r"\bcub::"),
)

_CALL = (
    ("graph launch", r"GraphLaunch"),
    ("launch", r"Launch(Cooperative)?Kernel|LaunchHostFunc"),
    ("copy", r"Memcpy"),
    ("set", r"Memset"),
    ("sync", r"(Stream|Device|Event|Ctx|Context)Synchronize"),
    (
        "capture",
        r"(Begin|End)Capture|GraphInstantiate|Graph(Exec)?Destroy|GraphGetNodes",
    ),
    (
        "allocation",
        r"^(cuda|hip)(Malloc|Free)|Host(Alloc|Malloc|Free|Register|Unregister)"
        r"|^cuMem(Create|Map|Unmap|Release|SetAccess|AddressReserve)",
    ),
)

_FRAME = r"^(?<file>.+?)\((?<line>\d+)\): (?<function>.+)$"


def _with_small_letters(names: pl.Series) -> pl.DataFrame:
    """Return the names as ``name``, and in small letters as ``small``."""
    return pl.DataFrame([names.alias("name"), names.str.to_lowercase().alias("small")])


def _matches(pattern: str) -> pl.Expr:
    """Return whether a name matches a pattern."""
    any_case = "(?i)"
    column = pl.col("small" if pattern.startswith(any_case) else "name")
    return column.str.contains(ascii_only(pattern.removeprefix(any_case)))


def _first_match(patterns: tuple[tuple[str, str], ...]) -> pl.Expr:
    return pl.coalesce(
        pl.when(_matches(pattern)).then(pl.lit(value)) for value, pattern in patterns
    )


def _compiles(name: pl.Expr) -> pl.Expr:
    """Return whether an op or a region is of a compilation."""
    compiling = name.is_in(_COMPILING) | name.str.ends_with(_TIMED)
    return compiling & ~name.str.contains(ascii_only(GRAPH_CAPTURE))


def describe_kernels(names: pl.Series) -> pl.DataFrame:
    """Return the kind, dtype and library of each kernel name."""
    name = pl.col("name")
    copy, memset = name.str.starts_with("Memcpy"), name.str.starts_with("Memset")
    copy |= name.str.starts_with("Copy")
    return _with_small_letters(names).select(
        name,
        kind=pl.when(copy)
        .then(pl.lit(_KIND_OF_COPY))
        .when(memset)
        .then(pl.lit(_KIND_OF_SET))
        .otherwise(_first_match(_KIND).fill_null("other"))
        .cast(pl.Enum(schema.KINDS)),
        dtype=pl.when(~copy & ~memset & ~_matches(_NO_DTYPE)).then(
            _first_match(_DTYPE).fill_null(
                name.str.replace_all(ascii_only(_NO_DATA), "")
                .str.extract(ascii_only(_CPP_TYPE))
                .replace_strict(_DTYPE_OF_CPP_TYPE, return_dtype=pl.String)
            )
        ),
        library=pl.when(copy | memset)
        .then(pl.lit("driver"))
        .otherwise(_first_match(_LIBRARY)),
    )


def describe_calls(names: pl.Series) -> pl.DataFrame:
    """Return the kind of each runtime function."""
    call = _first_match(_CALL).fill_null("other")
    return names.to_frame("name").select("name", call=call.cast(pl.Enum(schema.CALLS)))


def describe_regions(names: pl.Series) -> pl.DataFrame:
    """Return the step that each annotation opens, and the phase that it stands for."""
    name = pl.col("name")
    return _with_small_letters(names).select(
        name,
        step=name.str.extract(STEP).cast(pl.Int64, strict=False),
        phase=pl.when(~_matches(_BOTH_PASSES))
        .then(_first_match(_PHASE_OF_REGION))
        .cast(pl.Enum(schema.PHASES)),
        compiling=_compiles(name),
    )


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
