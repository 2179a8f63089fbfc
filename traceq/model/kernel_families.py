"""Families of kernels: what a kernel computes, known by its name.

To add a family, add a row to ``FAMILIES``: the kind, a pattern, and whose kernels these
are. Rows are tried from the top, and the first that matches decides; a name that no row
matches is ``unknown``. ``tests/data/kernel_names.tsv`` lists the names of real traces
with their reviewed kinds.

Patterns are in lowercase and are matched against lowercase names, in the syntax of
Rust's regex crate; each distinct name of a trace is matched once.
"""

from __future__ import annotations

from itertools import groupby

import polars as pl
from msgspec import Struct

from traceq.common.expressions import ascii_only
from traceq.model import schema
from traceq.model.names import (
    any_case,
    first_match,
    matches,
    once_for_names,
    with_small_letters,
)

UNKNOWN = "unknown"
"""The kind of a kernel whose name is in no family."""


class Family(Struct, frozen=True):
    """Kernels of one kind that one project or one kind of program launches."""

    kind: str
    pattern: str
    source: str
    """Repository and file, or library, where these names come from."""


# What Inductor fuses lists the ops that a kernel computes a part of: a kernel that adds
# the bias of a convolution is no convolution, so its families come first.
_INDUCTOR = r"^triton_(poi|red|per|spl|for|mix)_fused_"
_POINTWISE = r"^triton_(poi|for)_"

FAMILIES = (
    # torch.compile.
    Family(
        "norm",
        rf"{_INDUCTOR}\w*(layer|rms|group|batch|instance)_norm",
        "torch/_inductor: norms",
    ),
    Family("softmax", rf"{_INDUCTOR}\w*softmax", "torch/_inductor: softmax"),
    Family("embedding", rf"{_INDUCTOR}\w*embedding", "torch/_inductor: embeddings"),
    Family("pooling", rf"{_INDUCTOR}\w*pool[23]d", "torch/_inductor: pooling"),
    Family(
        "copy",
        r"^triton_poi_fused_((_to_copy|clone|copy_?|cat|_unsafe_view|view|permute"
        r"|transpose|t|expand)_)+\d+$",
        "torch/_inductor: copies, casts, concatenations",
    ),
    Family(
        "memory", r"^triton_poi_fused_(zeros|full|new_zeros)", "torch/_inductor: fills"
    ),
    Family("reduction", r"^triton_(red|per|spl|mix)_", "torch/_inductor: reductions"),
    Family("elementwise", _POINTWISE, "torch/_inductor: pointwise kernels"),
    Family(
        "attention",
        r"^triton_tem_fused_\w*flex_(attention|decoding)",
        "torch/_inductor/kernel/flex",
    ),
    Family(
        "gemm", r"^triton_tem_fused_\w*mm", "torch/_inductor/kernel: mm, addmm, bmm"
    ),
    Family("conv", r"^triton_tem_fused_\w*convol", "torch/_inductor/kernel/conv.py"),
    Family(
        "fused",
        r"^triton__(\d+d?)+(\b|_|$)",
        "torch 2.0, _inductor: pointwise kernels and reductions without a name",
    ),
    # Communication.
    Family("communication", r"nccl|rccl", "NVIDIA/nccl, ROCm/rccl"),
    Family("communication", r"nvshmem|rocshmem", "NVIDIA/nvshmem, ROCm/rocSHMEM"),
    Family("communication", r"mscclpp|mscclkernel", "microsoft/mscclpp"),
    Family(
        "communication",
        r"userbuffers",
        "NVIDIA/TransformerEngine, comm_gemm_overlap/userbuffers",
    ),
    Family(
        "communication",
        r"oneccl_|(\b|\d)ccl::|\bhccl|\bhcom_",
        "uxlfoundation/oneCCL; HCCL of Gaudi and Ascend",
    ),
    Family(
        "routing",
        r"get_dispatch_layout",
        "deepseek-ai/DeepEP, csrc/kernels/layout.cu: counts tokens, sends nothing",
    ),
    Family(
        "communication",
        r"deep_ep::|dpsk::ep::",
        "deepseek-ai/DeepEP, csrc/kernels: intranode, internode, internode_ll",
    ),
    Family(
        "communication",
        r"(\b|[_0-9a-ln-z])all_?reduce|all_?gather|reduce_?scatter|all_?to_?all",
        "torch symm_mem; TensorRT-LLM; quickreduce of vLLM, SGLang and AITER",
    ),
    Family(
        "communication",
        r"cross_device_reduce|cross_device_store|local_device_load|multimem_"
        r"|symmetric_memory::",
        "custom_all_reduce.cuh of vLLM, SGLang and AITER; torch symm_mem",
    ),
    # Tokens to and from experts.
    Family(
        "routing",
        r"(\b|_)routing|_bitmatrix|^_topk_(forward|backward)|^_finalize_matmul",
        "triton-lang/triton, python/triton_kernels: topk, routing, sums of experts",
    ),
    Family(
        "routing",
        r"topk_?gating|grouped_topk|moe_align_block|count_and_sort_expert|moe_sum\b"
        r"|moe_sum_|moe_(un)?permute|(un)?permute_tokens|moe_?sorting"
        r"|expand_?input_?rows|finalize_?moe|moe::dev::(routing|finalize)"
        r"|buildexpertmaps|computeexperttokens|moe_fused_gate|biased_grouped",
        "vLLM and SGLang csrc/moe; TensorRT-LLM and FlashInfer moe; CK moe_sorting",
    ),
    Family(
        "routing",
        r"expand_to_fused|reduce_fused|get_fused_mapping|clean_and_count_expert"
        r"|topk_sum_and_topk|aux_fi_|unique_group_indices",
        "deepseek-ai/TileKernels, moe",
    ),
    Family(
        "routing",
        r"_ep_(scatter|gather)|src2dst|seg_indptr|deepep_permute"
        r"|(pre|post)_reorder_triton",
        "sgl-project/sglang, layers/moe/ep_moe/kernels.py",
    ),
    # Attention.
    Family("gemm", r"(\b|_)bmm_chunk", "state-spaces/mamba, ssd_bmm.py"),
    Family("softmax", r"attn_softmax", "DeepSpeed: the softmax of its attention"),
    Family(
        "attention",
        r"flash_(fwd|bwd|attn)|flash::|flashattn|flashattention|fmha|mha_(fwd|bwd)",
        "Dao-AILab/flash-attention; xFormers; CK; TensorRT-LLM fmha",
    ),
    Family(
        "attention",
        r"flash_?mla|(\b|[_0-9])mla_(dec|pre|fwd|a\d+w)",
        "FlashMLA; AITER mla",
    ),
    Family(
        "attention",
        r"natten|neighborhoodattention|flash_decod|do_o_dot",
        "NATTEN; LightLLM; Triton kernels of flash-attention",
    ),
    Family(
        "attention",
        r"batch(decode|prefill)with|single(decode|prefill)with|merge_?states?"
        r"|persistentvariablelengthmergestates",
        "flashinfer-ai/flashinfer",
    ),
    Family(
        "attention",
        r"sage_fwd|sageattn|qk_int8?_sv|qk_int4_sv",
        "thu-ml/SageAttention; ROCm/aiter, Triton",
    ),
    Family(
        "attention",
        r"_sdpa_|micro_sdpa|compute_dot_do_o|convert_dq_to",
        "cuDNN; oneDNN",
    ),
    Family(
        "attention",
        r"reduce_segments|_fwd_(grouped_)?kernel_stage[12]",
        "vLLM triton_unified_attention.py and triton_decode_attention.py; SGLang",
    ),
    Family(
        "attention",
        r"chunk_(fwd|bwd|gated|gla|delta|kda)|fused_recurrent|gated_delta",
        "fla-org/flash-linear-attention",
    ),
    Family(
        "attention",
        r"(\b|[_0-9]|paged|unified|flex|mem_?eff|linear|multihead)(attn|attention)",
        "vLLM, SGLang, AITER and others: paged, unified, decode, extend",
    ),
    # Norms and softmax.
    Family(
        "norm",
        r"layer_?norm|rms_?norm|group_?norm|batch_?norm|instance_?norm|\bbn_(fw|bw)_"
        r"|\bln_(fwd|bwd)_|rmsnorm2d|layernorm2d|l2norm_(fwd|bwd)",
        "ATen, cuDNN, MIOpen, Apex, TransformerEngine, vLLM, AITER, Liger",
    ),
    Family(
        "norm",
        r"gammabeta|rowwisemoments|cucompute(part)?grad|compute(backward)?fusedparams"
        r"|computeinternalgradients",
        "ATen group_norm_kernel.cu and layer_norm_kernel.cu; Apex",
    ),
    Family("softmax", r"soft_?max", "ATen, Apex, TransformerEngine, Liger"),
    # Copies: of layout, of the KV cache.
    Family(
        "copy",
        r"nchwtonhwc|nhwctonchw|nhwctofolded|nhwcaddpadding|batched_transpose"
        r"|^transpose_|utils::transpose",
        "cuDNN and MIOpen: changes of layout; DeepGEMM: transposition of scales",
    ),
    Family(
        "copy",
        r"reshape_and_cache|concat_and_cache|store_kv_?cache|set_(mla_)?kv"
        r"|append_?paged_?kv|kv_?cache_(copy|store|append)|swap_blocks|copy_blocks"
        r"|kv_indices|page_indices",
        "vLLM csrc/cache_kernels.cu; SGLang; FlashInfer page.cuh",
    ),
    # Positions of tokens: not embeddings, though named so.
    Family("elementwise", r"rotary|(\b|_)m?rope", "vLLM, SGLang, flash-attn, Liger"),
    # Indexing.
    Family(
        "embedding",
        r"embedding|indexselect|indexing_backward|index_elementwise|indexfunc"
        r"|gather_kernel|sum_and_scatter|compute_grad_weight|partial_segment"
        r"|partials_per_segment|compute_cuda_kernel",
        "ATen Indexing.cu, Embedding.cu, EmbeddingBag.cu, Repeat.cu",
    ),
    Family(
        "embedding",
        r"permute_(pooled|indices|[12]d)|bounds_check_ind|linearize_index"
        r"|offsets_range|jagged",
        "pytorch/FBGEMM fbgemm_gpu",
    ),
    # Matmuls whose names have a word of another family.
    Family(
        "gemm",
        r"(\b|_)matmul|matmul_ogs",
        "triton-lang/triton, python/triton_kernels: matmul_ogs; Triton tutorials",
    ),
    Family("embedding", r"scatter", "ATen ScatterGatherKernel.cu"),
    # Convolutions.
    Family(
        "conv",
        r"convol|implicit_gemm|(\b|[_0-9])(fprop|dgrad|wgrad)|winograd|scudnn|im2col"
        r"|im2d2col|col2im|fft2d_|\bigemm_(fwd|bwd|wrw)|grouped_conv|conv_depthwise"
        r"|bwd_weight|gcgemm|asmconv|naive_conv|compute(b|wgrad\w*)?offsets|cudnn::cnn::|(\b|_)conv[123]d",
        "cuDNN, MIOpen, CK, ATen DepthwiseConv; causal_conv1d",
    ),
    # Copies by ATen.
    Family(
        "copy",
        r"copyfunctor|\bcopy<|catarraybatchedcopy|copy_kernel|copy_device_to_device"
        r"|\b_?copy_\w+_kernel",
        "ATen Copy.cu, Shape.cu, ForeachUnaryOp.cu",
    ),
    # Optimizers.
    Family(
        "optimizer",
        r"multi_tensor_|fused_?(adam|sgd|lamb|adagrad)|amp_update_scale|lpnorm_cleanup"
        r"|koptimizer",
        "ATen MultiTensorApply.cuh; Apex; DeepSpeed; bitsandbytes",
    ),
    Family("elementwise", r"silu_mul_fp8_quant", "vLLM: what goes into DeepGEMM"),
    # Matmuls. FBGEMM is none: it is a library of embeddings and quantised dtypes.
    Family(
        "gemm",
        r"(\b|[_0-9ac-z]|(\b|[_0-9a-eg-z])b)gemm|nvjet|gemv|split_?k_?reduce|reduce_?splitk|cublas"
        r"|\bdot_kernel|epilogue::impl|_scaled_mm",
        "cuBLAS, cuBLASLt, CUTLASS, DeepGEMM, CK, oneDNN, bitsandbytes",
    ),
    Family("gemm", r"^(custom_)?cijk_|wvsplitk", "hipBLASLt, Tensile; vLLM for ROCm"),
    Family("gemm", r"^bmm_[a-z0-9]+_", "TensorRT-LLM: trtllm-gen batched matmuls"),
    Family(
        "gemm",
        r"fused_moe|(\b|_|\d)fmoe|moe_mk|mfma_moe|flatmm",
        "fused_moe.py of vLLM and SGLang; AITER and CK experts",
    ),
    Family(
        "gemm",
        r"marlin|machete|allspark|exllama|\bgptq|\bawq",
        "vLLM csrc/quantization: Marlin, Machete, AllSpark, ExLlama, AWQ",
    ),
    Family(
        "gemm",
        r"grouped_mm|(\b|_)t?gmm_|lora_(shrink|expand)|(\b|_)[bs]gmv_|_(sdd|dsd|dds)_kernel|(\b|_)b?mm_kernel",
        "ATen GroupedMM; AITER gmm; MegaBlocks; LoRA of vLLM and Punica",
    ),
    # Fills.
    Family("memory", r"fillfunctor|\bfill_kernel", "ATen FillKernel.cu"),
    # Sorting and choosing.
    Family(
        "sort",
        r"radix_?sort|merge_?sort|segmented_?sort|bitonic|sortkv|topk|top_[kp]|deviceselect"
        r"|devicecompact|deviceunique|devicepartition|write_indices|partition_config"
        r"|block_sort",
        "CUB, rocPRIM, ATen Sort.cu, TensorTopK.cu and Nonzero.cu",
    ),
    Family(
        "sort",
        r"sampling|sample_from|rejection_\w*sample",
        "FlashInfer sampling.cuh; vLLM",
    ),
    # Reductions and scans.
    Family(
        "reduction",
        r"reduce_kernel|reducekernel|devicereduce|devicescan|tensor_kernel_scan"
        r"|arg(max|min)|scan_config|reduce_config|lookback_scan",
        "ATen Reduce.cuh and ScanKernels.cu; CUB; rocPRIM",
    ),
    Family(
        "reduction",
        r"nll_?(loss|criterion)|cross_entropy|ctc_loss|kl_div",
        "ATen NLLLoss2d.cu; Liger cross entropy",
    ),
    Family(
        "reduction",
        r"selective_scan|chunk_(scan|state|cumsum)|state_passing|selective_state",
        "state-spaces/mamba",
    ),
    # Elementwise.
    Family(
        "elementwise",
        r"elementwise|fused_dropout|subtensorop|scalepackedtensor|optensor|triu_tril"
        r"|transform_config",
        "ATen Loops.cuh; cuDNN and MIOpen tensor ops; rocPRIM transform",
    ),
    Family(
        "elementwise",
        r"_and_mul|swiglu|geglu|silu|gelu|(\b|_)relu",
        "vLLM and SGLang activation_kernels.cu; Liger; DeepSeek",
    ),
    Family(
        "elementwise",
        r"quant|_to_float|cast_to_fp8|cast_back|cast_(and_)?transpose|fp8_qparam",
        "casts to and from small dtypes: vLLM, TensorRT-LLM, AITER, FBGEMM, DeepSeek,"
        " TransformerEngine",
    ),
    Family(
        "elementwise",
        r"resolve_future_token|(compute|clamp)_position|apply_penalt|advance_step",
        "SGLang and vLLM: tokens and positions of a batch",
    ),
    # Images.
    Family(
        "pooling",
        r"max_?pool|avg_?pool|average_?pool|pooling|upsample|interpolat|grid_sampl",
        "ATen pooling, UpSample and GridSampler; cuDNN",
    ),
    # Known, but of none of these.
    Family(
        "other",
        r"spin_kernel|\bfft|_fft|rnn|lstm|\bgru_|cusolver|getrf|potrf|geqrf|curand",
        "torch.cuda._sleep; cuFFT; RNNs of cuDNN; cuSOLVER; cuRAND",
    ),
)


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
    ("nvshmem", r"(?i)nvshmem"),
    ("oneccl", r"(?i)oneccl_|(\b|\d)ccl::"),
    ("deepep", r"deep_ep::|dpsk::ep::"),
    ("triton", r"^triton_|^_?\w+_kernel_0d1d|^_(matmul|finalize_matmul)_"),
    (
        "flash-attention",
        r"flash_(fwd|bwd)|FlashAttn|FlashAttention|\bfmha_(fwd_loop|bwd_\w+)_kernel",
    ),
    ("flashinfer", r"flashinfer::"),
    ("tensorrt-llm", r"tensorrt_llm::|^fmhaSm\d+|^bmm_[A-Z]|moe::dev::"),
    ("aiter", r"(\b|\d)aiter(::|\d)"),
    ("xformers", r"\bfmha_"),
    ("cudnn", r"cudnn|^\w+_scudnn|nchwToNhwc|nhwcToNchw|convolve_sgemm|fft2d_"),
    ("transformer-engine", r"transformer_engine::"),
    ("fbgemm", r"fbgemm|split_embedding|permute_pooled|bounds_check_ind"),
    ("deepgemm", r"deep_gemm::|dpsk::grouped_gemm|^void sm\d+_fp8_gemm_"),
    (
        "aten",
        r"at::native|at::cuda|at_cuda_detail::|cunn_|softmax_warp_|\bindexing_backward",
    ),
    ("vllm", r"\bvllm::"),
    ("sglang", r"(?i)\bsglang|sgl_hip|sgl_kernel"),
    ("aten", r"^void \(anonymous namespace\)::"),
    ("ck", r"(^_ZN|\b)(2)?ck(16|::)|ck_tile"),
    ("hipblaslt", r"^(Custom_)?Cijk_"),
    (
        "miopen",
        r"^igemm_|MIOpen|batched_transpose_|SubTensorOp|transpose_NCHW|_CNHW2NCHW"
        r"|^Im2d2Col",
    ),
    ("cublas", r"nvjet|gemm|gemv|cublas|splitKreduce|epilogue::impl"),
    ("cutlass", r"cutlass"),
    ("cub", r"\bcub::"),
    ("rocprim", r"\brocprim::"),
)


def _kinds() -> tuple[tuple[str, str], ...]:
    """Return kinds and patterns; neighbours of one kind are one pattern."""
    return tuple(
        (kind, any_case("|".join(family.pattern for family in families)))
        for kind, families in groupby(FAMILIES, key=lambda family: family.kind)
    )


@once_for_names
def describe_kernels(names: pl.Series) -> pl.DataFrame:
    """Return the kind, dtype and library of each kernel name."""
    name = pl.col("name")
    copy, memset = name.str.starts_with("Memcpy"), name.str.starts_with("Memset")
    copy |= name.str.starts_with("Copy")
    return with_small_letters(names).select(
        name,
        kind=pl.when(copy)
        .then(pl.lit("copy"))
        .when(memset)
        .then(pl.lit("memory"))
        .otherwise(first_match(_kinds()).fill_null(UNKNOWN))
        .cast(pl.Enum(schema.KINDS)),
        dtype=pl.when(~copy & ~memset & ~matches(_NO_DTYPE)).then(
            first_match(_DTYPE).fill_null(
                name.str.replace_all(ascii_only(_NO_DATA), "")
                .str.extract(ascii_only(_CPP_TYPE))
                .replace_strict(_DTYPE_OF_CPP_TYPE, return_dtype=pl.String)
            )
        ),
        library=pl.when(copy | memset)
        .then(pl.lit("driver"))
        .otherwise(first_match(_LIBRARY)),
    )
