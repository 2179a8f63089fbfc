"""Families of kernels: every name of a real trace has its reviewed kind."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import polars as pl
import pytest
from recordings import PUBLIC, ROOT, SHARED, TRACES, by_trace, loaded

from traceq.model import schema
from traceq.model.kernel_families import FAMILIES, UNKNOWN, describe_kernels

if TYPE_CHECKING:
    from pathlib import Path

_LIST = ROOT / "tests" / "data" / "kernel_names.tsv"
# The list has this many characters of a name, and one name of those that differ in
# numbers alone, as sizes of tiles.
_LENGTH = 240


def _key(name: str) -> str:
    """Return a name without its numbers, as far as the list has it."""
    return re.sub(r"\d+", "0", name[:_LENGTH])


def _reviewed() -> list[tuple[str, str]]:
    """Return the kind and the name of each line of the reviewed list."""
    lines = _LIST.read_text(encoding="utf-8").splitlines()
    return [(kind, name) for kind, _, name in (line.partition("\t") for line in lines)]


def _kinds(names: list[str]) -> list[str]:
    described = describe_kernels(pl.Series(names, dtype=pl.String))
    return described["kind"].cast(pl.String).to_list()


def test_every_name_of_the_reviewed_list_has_its_kind() -> None:
    listed = _reviewed()
    kinds = _kinds([name for _, name in listed])

    wrong = [
        (name, kind, computed)
        for (kind, name), computed in zip(listed, kinds, strict=True)
        if kind != computed
    ]
    assert not wrong


_VLLM = {
    f"vllm/{path.name.removesuffix('.json.gz')}": path
    for path in sorted((SHARED / "vllm").glob("*.json.gz"))
}
_JOBS = {
    f"jobs/{path.parent.name}/{path.name.removesuffix('.json.gz')}": path
    for path in sorted((SHARED / "jobs").glob("*/*.json.gz"))
}
_PAIRS = {
    f"pairs/{path.name.removesuffix('.json.gz')}": path
    for path in sorted((SHARED / "pairs").glob("*.json.gz"))
}


@pytest.mark.parametrize("path", by_trace(TRACES | _VLLM | _JOBS | _PAIRS))
def test_every_kernel_name_of_a_recording_is_on_the_reviewed_list(path: Path) -> None:
    kind_of = {_key(name): kind for kind, name in _reviewed()}
    names = loaded(path).kernels["name"].unique().cast(pl.String).to_list()

    missing = [name for name in names if _key(name) not in kind_of]
    assert not missing
    assert _kinds(names) == [kind_of[_key(name)] for name in names]


def _unknown(path: Path) -> tuple[int, int]:
    """Return the time of unknown kernels of a trace, and of all."""
    kernels = loaded(path).kernels
    unknown = kernels.filter(pl.col("kind") == UNKNOWN)
    return int(unknown["dur"].sum()), int(kernels["dur"].sum())


@pytest.mark.slow
@pytest.mark.skipif(not PUBLIC, reason="../shared is not there")
def test_unknown_kernels_take_three_percent_of_public_traces_and_ten_of_any() -> None:
    times = {name: _unknown(path) for name, path in (PUBLIC | _VLLM).items()}

    assert all(part <= 0.10 * whole for part, whole in times.values())
    unknown, whole = map(sum, zip(*times.values(), strict=True))
    assert unknown <= 0.03 * whole


# Names of libraries that no trace at hand has, as their sources declare them.
DECLARED = {
    "communication": [
        "void deep_ep::intranode::dispatch<8, 768, 8192>(int4*, float*)",
        "void deep_ep::internode_ll::combine<true, 7168, 9>(void*, void*)",
        "nvshmemi_transfer_rma_nbi(int)",
        "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*)",
        "void sglang::cross_device_reduce_2stage<__nv_bfloat16, 8>(sglang::RankData*)",
        "void quickreduce::allreduce_prototype_twoshot<AllReduceTwoshot<__half>>(P)",
        "void aiter::reduce_scatter_cross_device_store<__hip_bfloat16, 8>(P)",
        "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot(P)",
        "rcclGenericKernel<1, false>(ncclDevKernelArgsStorage<4096ul>)",
        "oneccl_allreduce_pcie",
        "void mscclpp::allreduce<int>(int*)",
        "void c10d::symmetric_memory::barrier_kernel(unsigned int**)",
        "void userbuffers_fp16_sum_inplace_gpu_rw_ag<8>(int, int, void**)",
    ],
    "routing": [
        "void deep_ep::layout::get_dispatch_layout<256, 32, 8>(long const*)",
        "void vllm::moe::topkGatingSoftmax<4, 64, 4, 16, 32, int>(float const*)",
        "void vllm::moe::moe_align_block_size_kernel<int>(int*, int*)",
        "void vllm::moe::moe_sum_kernel<c10::BFloat16, 8>(c10::BFloat16*)",
        "_fwd_kernel_ep_scatter_1",
        "_fwd_kernel_ep_gather",
        "deepep_compute_src2dst_triton_kernel",
        "deepep_permute_triton_kernel",
        "post_reorder_triton_kernel",
    ],
    "gemm": [
        "fused_moe_kernel",
        "void deep_gemm::sm90_fp8_gemm_1d2d_impl<0u, 4096u, 7168u>(float*, int*)",
        "void marlin::Marlin<__nv_bfloat16, 4l, 256, 1, 8, 8, 4>(int4 const*)",
        "void marlin_moe_wna16::Marlin<__nv_bfloat16, 4l>(int4 const*)",
        "void machete::MacheteKernelTemplate<int>::kernel(P)",
        "_ZN5aiter48fmoe_bf16_pertokenFp8_g1u1_vs_silu_1tg_ps_32x256E",
        "void wvSplitK_hf_sml_<__hip_bfloat16, 64, 2, 16, 8, 2, 1>(int, int)",
        "grouped_gemm_kernel",
        "void at::native::(anonymous namespace)::grouped_mm_kernel<int>(P)",
        "triton_tem_fused_mm_0",
        "matmul_kernel",
        "gemm_kernel",
        "_bmm_chunk_fwd_kernel",
        "_lora_shrink_kernel",
    ],
    "attention": [
        "void flashinfer::BatchPrefillWithPagedKVCacheKernel<flashinfer::Params>(P)",
        "void flashinfer::PersistentVariableLengthMergeStatesKernel<8u, 16u>(P)",
        "void flash_fwd_splitkv_mla_kernel<Flash_fwd_kernel_traits_mla<576, 64>>(P)",
        "flash_mla_decode_kernel",
        "_fwd_grouped_kernel_stage1",
        "kernel_unified_attention_2d",
        "void vllm::paged_attention_v2_kernel<unsigned short, 128>(float*)",
        "void vllm::merge_attn_states_kernel<__nv_bfloat16, 128u>(P)",
        "void qk_int_sv_f16_attn_kernel<128u, 64u, 32u>(signed char*)",
        "_attn_fwd",
        "_fwd_kernel_flash_decode_stage1",
        "_bwd_preprocess_do_o_dot",
        "_ZN5aiter37mla_dec_stage1_bf16_a16w16_subQ16_mqa16E",
        "void natten::cuda::fna::FusedNeighborhoodAttentionKernel<int>(P)",
        "chunk_gated_delta_rule_fwd_kernel_h_blockdim64",
        "micro_sdpa",
    ],
    "conv": [
        "triton_tem_fused_convolution_0",
        "void causal_conv1d_fwd_kernel<Causal_conv1d_fwd_kernel_traits<128>>(P)",
        "miopenSp3AsmConv_v21_1_3_gfx9_fp32_f2x3_stride1",
    ],
    "copy": [
        "void vllm::concat_and_cache_mla_kernel<__nv_bfloat16, unsigned char>(P)",
        "void flashinfer::AppendPagedKVCacheKernel<128u, 8u>(P)",
    ],
    "elementwise": [
        "triton_poi_fused_all_reduce_wait_tensor_add_3",
        "_triton_rope",
        "void vllm::act_and_mul_kernel<c10::BFloat16, vllm::silu_kernel>(P)",
        "_per_token_group_quant_8bit",
        "_silu_mul_fp8_quant_deep_gemm",
        "void transformer_engine::cast_transpose_fused_kernel_notaligned<true>(P)",
        "quant_per_block_int8_kernel",
        "void at::native::xpu::VectorizedElementwiseKernel<4, float>(P)",
        "_penalized_apply_penalties_kernel",
    ],
    "reduction": [
        "triton_red_fused_reduce_scatter_tensor_sum_1",
        "liger_cross_entropy_kernel",
        "void selective_scan_fwd_kernel<Selective_Scan_fwd_kernel_traits<128>>(P)",
        "void small_reduce_kernel<float>(float*)",
    ],
    "softmax": ["void attn_softmax_v2<float, 8>(float*, float*)"],
    "norm": ["l2norm_fwd_kernel"],
    "sort": [
        "void flashinfer::sampling::TopKTopPSamplingFromProbKernel<1024u>(P)",
        "rejection_greedy_sample_kernel",
    ],
    "optimizer": ["void kOptimizer32bit2State<float, 0>(float*, float*)"],
    "memory": ["triton_poi_fused_zeros_0"],
    "other": ["void vector_fft<64u, 8u, 8u>(kernel_arguments_t<unsigned int>)"],
    "unknown": ["add_kernel_of_mine", "_fwd_kernel", "ampere_something"],
}


@pytest.mark.parametrize(
    ("name", "kind"),
    [(name, kind) for kind, names in DECLARED.items() for name in names],
)
def test_a_name_that_a_library_declares_has_the_kind_of_its_function(
    name: str, kind: str
) -> None:
    assert _kinds([name]) == [kind]


def test_every_family_knows_a_name() -> None:
    names = [name for _, name in _reviewed()]
    names += [name for some in DECLARED.values() for name in some]
    names += [row[0] for row in KERNELS]
    small = pl.Series([name.lower() for name in names])

    unused = [
        family.source
        for family in FAMILIES
        if not small.str.contains(family.pattern).any()
    ]
    assert not unused


def test_families_have_known_kinds_lowercase_patterns_and_sources() -> None:
    for family in FAMILIES:
        assert family.kind in schema.KINDS
        assert re.sub(r"\\[A-Za-z]", "", family.pattern).islower()
        assert family.source


_ATEN = "at::native::"
_LAMBDA = "::operator()() const::{lambda()#7}::operator()() const::{lambda(float)#1}"
_FLASH = (
    "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4,"
    " false, false, cutlass::bfloat16_t>, false, true>(pytorch_flash::Flash_fwd_params)"
)
_FLASH_3 = (
    "void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90<"
    "flash::CollectiveMainloopFwdSm90<2, cutlass::bfloat16_t>>>>(Params)"
)
_FMHA = (
    "fmha_cutlassF_f32_aligned_64x64_rf_sm80(PyTorchMemEffAttention::"
    "AttentionKernel<float, cutlass::arch::Sm80, true, 64, 64, 64, true>::Params)"
)
_SUM = (
    f"void {_ATEN}reduce_kernel<128, 4, {_ATEN}ReduceOp<c10::BFloat16,"
    f" {_ATEN}func_wrapper_t<c10::BFloat16, {_ATEN}sum_functor<c10::BFloat16, float,"
    " c10::BFloat16>::operator()(at::TensorIterator&)::{lambda(float, float)#1}>>"
)
_FOREACH = f"void {_ATEN}(anonymous namespace)::multi_tensor_apply_kernel<{_ATEN}"
_MUL = (
    f"void {_ATEN}vectorized_elementwise_kernel<8, {_ATEN}BinaryFunctor<c10::BFloat16,"
    f" c10::BFloat16, c10::BFloat16, {_ATEN}binary_internal::MulFunctor<float> > >"
)
_WHERE = (
    f"void {_ATEN}elementwise_kernel<128, 2, {_ATEN}gpu_kernel_impl<{_ATEN}where_kernel"
    "_impl(at::TensorIterator&)::{lambda()#1}::operator()() const"
    "::{lambda(bool, float, float)#1}>>"
)
_FILL = f"void {_ATEN}vectorized_elementwise_kernel<4, {_ATEN}FillFunctor<float>>(int)"

# Name, kind, number format, library.
KERNELS = [
    # Matrix products.
    ("nvjet_sm90_tst_128x160_64x5_2x4_h_bz_NTT", "gemm", "bf16", "cublas"),
    ("nvjet_hsh_256x128_64x4_1x2_h_bz_coopA_TNT", "gemm", "fp16", "cublas"),
    ("nvjet_sm100_qqtst_128x256_128x6_2x1_2cta_v_bz_TNT", "gemm", "fp8", "cublas"),
    (
        "ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x4_tn",
        "gemm",
        "bf16",
        "cublas",
    ),
    ("volta_fp16_s884gemm_fp16_64x64_ldg8_f2f_nn", "gemm", "fp16", "cublas"),
    ("volta_h884gemm_64x128_ldg8_nn", "gemm", "fp16", "cublas"),
    ("ampere_sgemm_128x64_nn", "gemm", "fp32", "cublas"),
    ("volta_dgemm_64x64_nn", "gemm", "fp64", "cublas"),
    (
        "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x64x8_stage3_ffma_cublas",
        "gemm",
        "fp32",
        "cublas",
    ),
    (
        "void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_128x128_32x3_nn_align1>(P)",
        "gemm",
        "tf32",
        "cublas",
    ),
    (
        "void cutlass::Kernel2<cutlass_80_simt_sgemm_256x128_8x4_nn_align1>(P)",
        "gemm",
        "fp32",
        "cublas",
    ),
    ("Cijk_Ailk_Bjlk_BBS_BH_MT32x32x64_MI16x16x16x1_SN", "gemm", "bf16", "hipblaslt"),
    ("Cijk_Alik_Bljk_HHS_BH_MT64x16x32_MI16x16x1_SN", "gemm", "fp16", "hipblaslt"),
    ("Cijk_Ailk_Bjlk_SB_Bias_AS_SAV_UserArgs_MT64x16x16", "gemm", "fp32", "hipblaslt"),
    (
        "void splitKreduce_kernel<32, 16, int, __nv_bfloat16, __nv_bfloat16, float>(P)",
        "gemm",
        "bf16",
        "cublas",
    ),
    (
        "void gemvNSP_kernel<float, float, float, float, 1, 16>(P)",
        "gemm",
        "fp32",
        "cublas",
    ),
    ("triton_tem_fused_addmm_relu_3", "gemm", None, "triton"),
    # Attention.
    (_FLASH, "attention", "bf16", "flash-attention"),
    (_FLASH_3, "attention", "bf16", "flash-attention"),
    ("fmha_fwd_loop_kernel", "attention", None, "flash-attention"),
    (_FMHA, "attention", "fp32", "xformers"),
    (
        "fmha_cutlassB_bf16_aligned_64x64_k64_seqaligned_sm80(P)",
        "attention",
        "bf16",
        "xformers",
    ),
    (
        "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x64",
        "attention",
        None,
        "cudnn",
    ),
    (
        "void cudnn::fusion::compute_dot_do_o_specialized<true, 64>(float const*)",
        "attention",
        None,
        "cudnn",
    ),
    ("triton_tem_fused_flex_attention_1", "attention", None, "triton"),
    ("attn_fwd", "attention", None, None),
    # Norms.
    (
        f"void {_ATEN}(anonymous namespace)::vectorized_layer_norm_kernel"
        "<c10::BFloat16, float, true>(int, float)",
        "norm",
        "bf16",
        "aten",
    ),
    (
        f"void {_ATEN}(anonymous namespace)::GammaBetaBackwardCUDAKernel<float, float>",
        "norm",
        "fp32",
        "aten",
    ),
    (
        "void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, 512>(P)",
        "norm",
        "fp32",
        "cudnn",
    ),
    (
        f"void {_ATEN}unrolled_elementwise_kernel_for_multi_outputs<3, {_ATEN}batch_"
        "norm_update_stats_and_invert(at::Tensor const&, double)::{lambda(float)#1}>",
        "norm",
        "fp32",
        "aten",
    ),
    ("triton_per_fused_add_native_layer_norm_view_1", "norm", None, "triton"),
    ("_rms_norm_forward_kernel", "norm", None, None),
    # Softmax.
    (
        "void (anonymous namespace)::softmax_warp_forward<c10::Half, c10::Half, float>",
        "softmax",
        "fp16",
        "aten",
    ),
    (
        f"void {_ATEN}(anonymous namespace)::cunn_SoftMaxBackward<8, c10::BFloat16,"
        " float, c10::BFloat16>",
        "softmax",
        "bf16",
        "aten",
    ),
    ("triton_per_fused__softmax_3", "softmax", None, "triton"),
    # Elementwise.
    (_MUL, "elementwise", "bf16", "aten"),
    (_WHERE, "elementwise", "fp32", "aten"),
    ("triton_poi_fused_gelu_view_2", "elementwise", None, "triton"),
    (
        f"void {_ATEN}vectorized_elementwise_kernel<4, {_ATEN}nan_to_num_kernel_cuda("
        f"at::TensorIteratorBase&, c10::optional<double>)::{{lambda()#1}}{_LAMBDA}>",
        "elementwise",
        "fp32",
        "aten",
    ),
    (
        "void at::native::vectorized_elementwise_kernel<4,"
        " fbgemm_gpu::_float_to_hfp8_gpu(at::Tensor const&)::{lambda(float)#1}>",
        "elementwise",
        "fp8",
        "fbgemm",
    ),
    # Copies: of the same format, casts, concatenations, changes of layout.
    (
        f"void {_ATEN}elementwise_kernel<128, 2, {_ATEN}gpu_kernel_impl<{_ATEN}direct_"
        f"copy_kernel_cuda(at::TensorIteratorBase&)::{{lambda()#2}}{_LAMBDA}>>",
        "copy",
        "fp32",
        "aten",
    ),
    (
        f"void {_ATEN}vectorized_elementwise_kernel<8, {_ATEN}bfloat16_copy_kernel_cuda"
        "(at::TensorIteratorBase&)::{lambda(float)#1}>",
        "copy",
        "bf16",
        "aten",
    ),
    (
        f"void {_ATEN}vectorized_elementwise_kernel<4, {_ATEN}float16_copy_kernel_cuda"
        "(at::TensorIteratorBase&)::{lambda(float)#1}>",
        "copy",
        "fp16",
        "aten",
    ),
    (
        f"void {_ATEN}(anonymous namespace)::CatArrayBatchedCopy<float, unsigned int>",
        "copy",
        "fp32",
        "aten",
    ),
    (
        "void cudnn::ops::nchwToNhwcKernel<float, float, float>(P)",
        "copy",
        "fp32",
        "cudnn",
    ),
    ("batched_transpose_16x32_half", "copy", "fp16", "miopen"),
    (
        f"{_FOREACH}TensorListMetadata<2>, {_ATEN}UnaryOpFunctor<c10::BFloat16, 2, 1>,"
        f" {_ATEN}Copy<c10::BFloat16, c10::BFloat16> >",
        "copy",
        "bf16",
        "aten",
    ),
    ("triton_poi_fused__to_copy_clone_7", "copy", None, "triton"),
    ("Memcpy HtoD (Pageable -> Device)", "copy", None, "driver"),
    ("CopyHostToDevice", "copy", None, "driver"),
    # Reductions.
    (_SUM, "reduction", "bf16", "aten"),
    ("triton_red_fused_gelu_gelu_backward_sum_view_6", "reduction", None, "triton"),
    (
        "void at_cuda_detail::cub::DeviceScanKernel<at_cuda_detail::cub::Policy, long>",
        "reduction",
        None,
        "aten",
    ),
    (
        f"void {_ATEN}(anonymous namespace)::nll_loss_forward_reduce_cuda_kernel_2d"
        "<c10::BFloat16, float, long>",
        "reduction",
        "bf16",
        "aten",
    ),
    # Optimizers.
    (
        f"{_FOREACH}FusedOptimizerTensorListMetadata<4>, {_ATEN}FusedAdamMathFunctor"
        f"<c10::BFloat16, 4, ({_ATEN}ADAM_MODE)1, false>, float const*, double>",
        "optimizer",
        "bf16",
        "aten",
    ),
    (
        f"{_FOREACH}TensorListScalarListMetadata<float, 1>, {_ATEN}BinaryOpScalarList"
        "Functor<c10::BFloat16, 1, 1, 0>, std::divides<float> >",
        "optimizer",
        "bf16",
        "aten",
    ),
    # Embeddings and other indexing.
    (
        f"void {_ATEN}(anonymous namespace)::embedding_backward_feature_kernel<float>",
        "embedding",
        "fp32",
        "aten",
    ),
    (
        f"void {_ATEN}vectorized_gather_kernel<16, long>(char*)",
        "embedding",
        None,
        "aten",
    ),
    (
        "void split_embedding_codegen_forward_unweighted_kernel<c10::Half, c10::Half>",
        "embedding",
        "fp16",
        "fbgemm",
    ),
    (
        "void fbgemm_gpu::permute_2D_data_kernel<false, int, int>(int)",
        "embedding",
        None,
        "fbgemm",
    ),
    # Convolutions.
    (
        "sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc_cudnn_infer",
        "conv",
        "tf32",
        "cudnn",
    ),
    (
        "void cutlass_cudnn_infer::Kernel<cutlass_tensorop_s1688dgrad_optimized_tf32>",
        "conv",
        "tf32",
        "cudnn",
    ),
    (
        "volta_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v1",
        "conv",
        "fp32",
        "cudnn",
    ),
    ("igemm_wrw_gtcx3_nhwc_bf16_bx0_ex1_bt128x64x32", "conv", "bf16", "miopen"),
    ("void cudnn::cnn::im2col4d_kernel<float, long>(P)", "conv", "fp32", "cudnn"),
    # Communication.
    (
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "communication",
        "fp32",
        "nccl",
    ),
    (
        "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(P)",
        "communication",
        "bf16",
        "nccl",
    ),
    (
        "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long)",
        "communication",
        "fp32",
        "nccl",
    ),
    # Memory.
    (_FILL, "memory", "fp32", "aten"),
    ("Memset (Device)", "memory", None, "driver"),
    # Images, sorting, and what there is no kind for.
    (
        f"void {_ATEN}(anonymous namespace)::max_pool_forward_nchw<float>(int)",
        "pooling",
        "fp32",
        "aten",
    ),
    ("void cub::DeviceRadixSortHistogramKernel<long, int>(int*)", "sort", None, "cub"),
    ("at::cuda::(anonymous namespace)::spin_kernel(long)", "other", None, "aten"),
    ("my_own_kernel", "unknown", None, None),
]


@pytest.mark.parametrize(
    ("name", "kind", "dtype", "library"), KERNELS, ids=[row[0][:60] for row in KERNELS]
)
def test_a_kernel_name_says_what_it_computes_in_which_format_by_whom(
    name: str, kind: str, dtype: str | None, library: str | None
) -> None:
    described = describe_kernels(pl.Series([name]))

    assert described.row(0) == (name, kind, dtype, library)
