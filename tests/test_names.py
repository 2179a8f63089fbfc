"""Meaning of the names of kernels, runtime calls, regions, ops and Python frames."""

from __future__ import annotations

import re

import polars as pl
import pytest

from traceq.model import names
from traceq.testing import load_drawn

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
    # What there is no kind for.
    (
        f"void {_ATEN}(anonymous namespace)::max_pool_forward_nchw<float>(int)",
        "other",
        "fp32",
        "aten",
    ),
    ("void cub::DeviceRadixSortHistogramKernel<long, int>(int*)", "other", None, "cub"),
    ("my_own_kernel", "other", None, None),
]


@pytest.mark.parametrize(
    ("name", "kind", "dtype", "library"), KERNELS, ids=[row[0][:60] for row in KERNELS]
)
def test_a_kernel_name_says_what_it_computes_in_which_format_by_whom(
    name: str, kind: str, dtype: str | None, library: str | None
) -> None:
    described = names.describe_kernels(pl.Series([name]))

    assert described.row(0) == (name, kind, dtype, library)


CALLS = {
    "launch": [
        "cudaLaunchKernel",
        "cudaLaunchKernelExC",
        "cudaLaunchKernel_ptsz",
        "cudaLaunchCooperativeKernel",
        "cuLaunchKernel",
        "cuLaunchKernelEx",
        "hipLaunchKernel",
        "hipExtModuleLaunchKernel",
        "hipExtLaunchKernel",
    ],
    "graph launch": ["cudaGraphLaunch", "hipGraphLaunch"],
    "copy": ["cudaMemcpyAsync", "cudaMemcpy", "hipMemcpyWithStream"],
    "set": ["cudaMemsetAsync", "hipMemsetAsync"],
    "sync": [
        "cudaDeviceSynchronize",
        "cudaStreamSynchronize",
        "cudaEventSynchronize",
        "hipDeviceSynchronize",
    ],
    "allocation": [
        "cudaMalloc",
        "cudaFree",
        "cudaHostAlloc",
        "cudaFreeHost",
        "cuMemCreate",
        "cuMemUnmap",
        "hipMalloc",
        "hipHostMalloc",
        "hipHostFree",
    ],
    "capture": [
        "cudaStreamBeginCapture",
        "cudaStreamEndCapture",
        "cudaGraphInstantiateWithFlags",
        "cudaGraphGetNodes",
        "cudaGraphDestroy",
        "cudaGraphExecDestroy",
    ],
    "other": [
        "cudaStreamIsCapturing",
        "cudaStreamGetCaptureInfo_v2",
        "cudaStreamWaitEvent",
        "cudaEventRecord",
        "cudaFuncGetAttributes",
        "INVALID",
    ],
}


@pytest.mark.parametrize(
    ("name", "call"), [(name, call) for call in CALLS for name in CALLS[call]]
)
def test_a_runtime_function_is_known_by_what_it_does(name: str, call: str) -> None:
    assert names.describe_calls(pl.Series([name]))["call"].item() == call


@pytest.mark.parametrize(
    ("name", "phase"),
    [
        ("FORWARD", "forward"),
        ("## forward ##", "forward"),
        ("DistributedDataParallel.forward", "forward"),
        ("forward_pass", "forward"),
        ("BACKWARD", "backward"),
        ("loss.backward", "backward"),
        ("backward_step", "backward"),
        ("forward_backward", None),
        ("forward-backward", None),
        ("forward and backward", None),
        ("Optimizer.step#AdamW.step", "optimizer"),
        ("Optimizer.zero_grad#SGD.zero_grad", "optimizer"),
        ("## optimizer ##", "optimizer"),
        ("optimizer_step", "optimizer"),
        ("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", "data"),
        ("## data_load ##", "data"),
        ("ProfilerStep#3", None),
        ("nccl:all_reduce", None),
        ("cudagraphify.get_container_data: is_backward=False, compile_id=0/1", None),
        ("## Call CompiledFxGraph fjbhzuny ##", None),
    ],
)
def test_a_region_stands_for_a_phase_if_its_name_says_so(
    name: str, phase: str | None
) -> None:
    assert names.describe_regions(pl.Series([name]))["phase"].item() == phase


@pytest.mark.parametrize(
    ("name", "step"),
    [("ProfilerStep#12", 12), ("ProfilerStep", None), ("my ProfilerStep#1", None)],
)
def test_a_step_is_numbered_by_its_region(name: str, step: int | None) -> None:
    assert names.describe_regions(pl.Series([name]))["step"].item() == step


@pytest.mark.parametrize(
    ("name", "compiling"),
    [
        ("_compile.compile_inner (dynamo_timed)", True),
        ("entire_frame_compile", True),
        ("backward._backward_impl (dynamo_timed)", True),
        ("CachingAutotuner.benchmark_all_configs", True),
        ("async_compile.wait", True),
        ("Torch-Compiled Region: 0/1", False),
        ("TorchDynamo Cache Lookup", False),
        ("CompiledFunction", False),
        # Recording a CUDA graph is timed like a compilation, but is none.
        ("CUDAGraphNode.record (dynamo_timed)", False),
        ("cudagraphify (dynamo_timed)", False),
    ],
)
def test_compilation_is_told_from_running_what_was_compiled(
    name: str,
    compiling: bool,  # noqa: FBT001 - a row of the table
) -> None:
    assert names.describe_ops(pl.Series([name]))["compiling"].item() is compiling


@pytest.mark.parametrize(
    "name", ["CUDAGraphNode.record (dynamo_timed)", "cudagraphify.get_container"]
)
def test_recording_a_graph_has_a_marker(name: str) -> None:
    assert pl.Series([name]).str.contains(names.GRAPH_CAPTURE).item()


@pytest.mark.parametrize(
    ("name", "backward"),
    [
        ("autograd::engine::evaluate_function: AddmmBackward0", True),
        ("AddmmBackward0", True),
        ("CompiledFunctionBackward", True),
        ("torch::autograd::AccumulateGrad", True),
        ("aten::native_layer_norm_backward", False),
        ("aten::addmm", False),
    ],
)
def test_ops_of_autograd_are_known_by_name(
    name: str,
    backward: bool,  # noqa: FBT001 - a row of the table
) -> None:
    assert names.describe_ops(pl.Series([name]))["backward"].item() is backward


@pytest.mark.parametrize(
    "name",
    [
        "train.py(12): main",
        "models/block.py(7): forward",
        "/home/me/project/train.py(3): <module>",
        "/opt/torch_project/run.py(1): <lambda>",
        "datasets/mine.py(4): __getitem__",
        "test.py(1): main",
    ],
)
def test_a_frame_of_the_users_own_is_theirs(name: str) -> None:
    assert names.describe_frames(pl.Series([name]))["own"].item()


@pytest.mark.parametrize(
    "name",
    [
        "torch/nn/modules/linear.py(130): forward",
        "/usr/lib/python3/dist-packages/torch/nn/functional.py(1): linear",
        "/home/me/.venv/lib/python3.11/site-packages/einops/einops.py(9): rearrange",
        "/home/me/src/torch/nn/modules/module.py(1): _call_impl",
        "transformers/trainer.py(1500): train",
        "threading.py(1002): _bootstrap",
        "json/encoder.py(1): encode",
        "<frozen importlib._bootstrap>(1): _find_and_load",
        "<string>(1): <lambda>",
        "/tmp/torchinductor_me/n6/cn6djab.py(44): call",  # noqa: S108 - only its name
        "<built-in method linear of type object at 0x7f>",
        "nn.Module: Linear_0",
        "collect/agent/steps.py(97): after",
        "/env/traceq/_bundled/collect/shared/manifest.py(5): write",
        "collect/inline/recording.py(97): step",
        "traceq/api/profile.py(9): step",
    ],
)
def test_a_frame_of_a_library_is_not_the_users(name: str) -> None:
    assert not names.describe_frames(pl.Series([name]))["own"].item()


def test_a_frame_says_its_file_line_and_function() -> None:
    described = names.describe_frames(pl.Series(["lib (old)/a.py(12): <lambda>"]))

    assert described.row(0)[1:4] == ("lib (old)/a.py", 12, "<lambda>")


def test_a_matrix_product_made_for_a_convolution_is_a_convolution() -> None:
    trace = load_drawn(
        """
        host   [aten::cudnn_convolution ]  [aten::mm               ]
        host     [cudaLaunchKernel>1   ]      [cudaLaunchKernel>2 ]
        gpu 7             [volta_sgemm_32x128_nn<1] [volta_sgemm_32x128_nn<2]
        """
    )

    assert trace.kernels["kind"].to_list() == ["conv", "gemm"]


def test_plain_kernels_of_the_optimizer_are_its_own_but_not_its_matrix_products() -> (
    None
):
    trace = load_drawn(
        """
        host   [Optimizer.step#Muon.step                               ]
        host     [aten::mul            ]    [aten::mm                 ]
        host      [cudaLaunchKernel>1 ]        [cudaLaunchKernel>2   ]
        gpu 7                [elementwise_kernel<1] [nvjet_sm90_tst<2 ]
        """
    )

    assert trace.kernels["kind"].to_list() == ["optimizer", "gemm"]


@pytest.mark.parametrize("of", ["_KIND", "_DTYPE", "_LIBRARY", "_PHASE_OF_REGION"])
def test_what_matches_any_letters_is_written_in_small_ones(
    of: str,
) -> None:
    # It is matched against names in small letters: a large one would match nothing.
    for _, pattern in getattr(names, of):
        assert "(?i)" not in pattern[1:]
        if pattern.startswith("(?i)"):
            assert not re.search(r"(?<!\\)[A-Z]", pattern)
