"""Meaning of the names of runtime calls, regions, ops and Python frames."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import polars as pl
import pytest

from traceq.model import kernel_families, names
from traceq.testing import load_drawn

if TYPE_CHECKING:
    from types import ModuleType

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
        "/src/traceq/collect/trial/numerics.py(46): _backward",
        "collect/remedies/base.py(9): apply",
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


@pytest.mark.parametrize(
    ("module", "of"),
    [
        (kernel_families, "_DTYPE"),
        (kernel_families, "_LIBRARY"),
        (names, "_PHASE_OF_REGION"),
    ],
)
def test_what_matches_any_letters_is_written_in_small_ones(
    module: ModuleType, of: str
) -> None:
    # It is matched against names in small letters: a large one would match nothing.
    for _, pattern in getattr(module, of):
        assert "(?i)" not in pattern[1:]
        if pattern.startswith("(?i)"):
            assert not re.search(r"(?<!\\)[A-Z]", pattern)
