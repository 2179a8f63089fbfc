"""Roofline of ops: their time compared with the GPU's lower bound."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest
from command import traceq
from recordings import FIXTURE_TRACES, TRACES, loaded

from traceq.analysis.replay.roofline_savings import by_op
from traceq.analysis.time.bytes_moved import Call, least_bytes
from traceq.analysis.time.flops import op_flops
from traceq.analysis.time.roofline import roofline
from traceq.inputs.load_trace import load
from traceq.testing.timeline import load_drawn

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

BF16, FP32 = "c10::BFloat16", "float"
# Every training step of ours that runs without CUDA graphs.
TRAINING = [
    name
    for name in TRACES
    if "/" not in name and not name.startswith("graph_") and name != "moe_loop"
]


def call(name: str, *dims: list[int], types: str = BF16, **more: object) -> Call:
    plain = [[1] * len(dim) for dim in dims]
    result = Call(name, [*dims], [types] * len(dims), plain, None, None, "", "", float)
    return result._replace(**more)  # type: ignore[arg-type]  # fields of Call


def test_an_elementwise_op_reads_its_inputs_and_writes_what_they_broadcast_to() -> None:
    assert least_bytes(call("aten::add", [8, 4], [1, 4])) == 2 * (32 + 4 + 32)


def test_an_op_in_place_writes_its_first_input() -> None:
    assert least_bytes(call("aten::mul_", [8, 4], [8, 4])) == 2 * (32 + 32 + 32)


def test_a_comparison_writes_a_byte_for_each_element() -> None:
    assert least_bytes(call("aten::eq", [8, 4], [8, 4])) == 2 * (32 + 32) + 32


def test_an_expanded_dimension_is_stored_once() -> None:
    expanded = call("aten::sum", [8, 4], strides=[[0, 1]])

    assert least_bytes(expanded) == 2 * 4


def test_a_product_reads_two_matrices_and_writes_one() -> None:
    product = call("aten::mm", [8, 16], [16, 4])

    assert least_bytes(product) == 2 * (8 * 16 + 16 * 4 + 8 * 4)


def test_an_embedding_reads_the_rows_that_it_returns_not_the_table() -> None:
    result = call("aten::embedding", [32000, 64], [2, 8], types=FP32)
    rows = result._replace(types=[FP32, "long int"])

    assert least_bytes(rows) == 16 * (8 + 2 * 64 * 4)


def test_what_an_index_picks_is_not_known() -> None:
    assert least_bytes(call("aten::index", [8, 4], [])) is None


def test_a_batch_norm_reads_its_input_twice() -> None:
    assert least_bytes(call("aten::native_batch_norm", [2, 3, 4])) == 2 * 24 * 3


def test_gradients_of_norms_read_their_inputs_in_each_of_two_kernels() -> None:
    rows = call("aten::native_layer_norm_backward", [8, 16], [8, 16])

    assert least_bytes(rows) == 2 * (2 * 2 * 128 + 128)


@pytest.mark.parametrize(("of_image", "moved"), [("True", 2 * 160), ("False", 160)])
def test_gradients_of_a_convolution_are_a_kernel_each(
    of_image: str, moved: int
) -> None:
    image, weight = [1, 4, 4, 4], [4, 4, 2, 1]
    back = call("aten::convolution_backward", image, image, weight)
    values = [""] * 10 + [f"[{of_image}, True, False]"]

    assert least_bytes(back._replace(values=values)) == 2 * moved


def test_the_gradient_of_attention_multiplies_the_output_by_its_own_before() -> None:
    name = "aten::_scaled_dot_product_flash_attention_backward"
    heads = [[1, 2, 8, 4]] * 4

    assert least_bytes(call(name, *heads)) == 2 * 64 * (4 + 3 + 3)


def test_the_gradient_of_a_resized_image_is_as_large_as_the_image_was() -> None:
    result = call("aten::upsample_bilinear2d_backward", [2, 3, 64, 64])
    small = result._replace(values=["", "[64, 64]", "[2, 3, 4, 4]", "False", "16.", ""])

    assert least_bytes(small) == 2 * (2 * 3 * 64 * 64 + 2 * 3 * 4 * 4)


def test_without_arguments_a_resize_reads_its_gradient() -> None:
    result = call("aten::upsample_nearest2d_backward", [2, 3, 64, 64])

    assert least_bytes(result) == 2 * 2 * 3 * 64 * 64


def test_inputs_that_do_not_fit_the_op_are_not_counted() -> None:
    assert least_bytes(call("aten::mm", [8, 16])) is None
    assert least_bytes(call("aten::copy_")) is None


@pytest.mark.parametrize("name", TRAINING)
def test_nine_tenths_of_the_gpu_time_of_a_training_step_are_judged(name: str) -> None:
    assert roofline(loaded(TRACES[name])).covered >= 0.9


@pytest.mark.parametrize("name", TRAINING)
def test_hardly_anything_larger_than_the_cache_is_faster_than_the_peaks(
    name: str,
) -> None:
    result = roofline(loaded(TRACES[name]))
    above = result.ops.filter(
        pl.col("least") > 1.05 * pl.col("gpu"), pl.col("bytes") > 64 << 20
    )

    assert above["gpu"].sum() <= 0.03 * result.judged_ns


def test_a_scan_over_a_dimension_that_is_not_the_last_is_found() -> None:
    trace = loaded(TRACES["moe_batched"])
    worst = by_op(trace, roofline(trace)).row(0, named=True)

    assert worst["name"] == "aten::cumsum"
    assert worst["efficiency"] < 0.01
    assert worst["recoverable"] > 1e6


SLOW = """
    host   [ProfilerStep#1                                                    ]
    host     [aten::add          ]
    host      [cudaLaunchKernel>1]
    gpu 7                        [add<1                            ]
"""


def test_without_a_known_gpu_nothing_is_judged() -> None:
    shapes = {"Input Dims": [[1024], [1024]], "Input type": [FP32, FP32]}
    result = roofline(load_drawn(SLOW, {"aten::add": shapes}))

    assert result.ops["bytes"].to_list() == [3 * 4096]
    assert result.ops["least"].to_list() == [None]


def test_the_command_names_op_bound_and_place() -> None:
    answer = traceq("roofline", FIXTURE_TRACES["attn_mask_fmha"])

    assert answer.status == 0
    assert "NVIDIA H200: 4,800 GB/s" in answer.out
    assert "aten::mm" in answer.out
    assert "bandwidth" in answer.out


def test_a_trace_without_shapes_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(
        '{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k",'
        ' "pid": 0, "tid": 7, "ts": 1, "dur": 2, "args": {"stream": 7}}]}'
    )
    answer = traceq("roofline", path)

    assert (answer.status, answer.err.count("\n")) == (2, 1)
    assert "shapes" in answer.err


def test_every_format_has_the_same_ops() -> None:
    path = FIXTURE_TRACES["attn_mask_fmha"]
    document = json.loads(traceq("roofline", path, "--format", "json").out)
    rows = traceq("roofline", path, "--format", "csv").lines

    assert len(document["ops"]) == len(rows) - 1
    assert "aten::mm" in traceq("roofline", path, "--format", "markdown").out


def _backward(module: str, *shape: int) -> Callable[[Any], object]:
    def run(torch: Any) -> object:  # noqa: ANN401 - a module
        nn = torch.nn
        made = eval(module, {"nn": nn})  # noqa: S307 - the texts below
        return made(torch.randn(*shape)).sum().backward()

    return run


PROGRAMS: dict[str, Callable[[Any], object]] = {
    "linear": _backward("nn.Linear(64, 32)", 16, 64),
    "mlp": _backward(
        "nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 10))", 8, 64
    ),
    "bmm": lambda torch: torch.bmm(torch.randn(4, 8, 16), torch.randn(4, 16, 32)),
    "baddbmm": lambda torch: torch.baddbmm(
        torch.randn(4, 8, 32), torch.randn(4, 8, 16), torch.randn(4, 16, 32)
    ),
    "einsum": lambda torch: torch.einsum(
        "bhqd,bhkd->bhqk", torch.randn(2, 4, 16, 8), torch.randn(2, 4, 32, 8)
    ),
    "conv1d": _backward("nn.Conv1d(8, 16, 3, padding=1)", 2, 8, 32),
    "conv2d": _backward("nn.Conv2d(3, 16, 7, stride=2, padding=3)", 2, 3, 32, 32),
    "conv transposed": _backward(
        "nn.ConvTranspose2d(8, 4, 4, stride=2, padding=1)", 2, 8, 9, 9
    ),
    "conv grouped": lambda torch: torch.nn.functional.conv2d(
        torch.randn(2, 16, 20, 20), torch.randn(16, 4, 3, 3), groups=4, dilation=2
    ),
    "transformer": _backward(
        "nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)", 2, 10, 32
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS)
def test_operations_are_as_many_as_torch_counts(program: str, tmp_path: Path) -> None:
    # Not on top: whoever collects would load torch.
    torch: Any = pytest.importorskip("torch")
    from torch.profiler import ProfilerActivity, profile  # noqa: PLC0415
    from torch.utils.flop_counter import FlopCounterMode  # noqa: PLC0415

    run = PROGRAMS[program]
    with FlopCounterMode(display=False) as counter:
        run(torch)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recorded:
        run(torch)
    recorded.export_chrome_trace(str(tmp_path / "trace.json"))

    counted = op_flops(load(tmp_path / "trace.json", cache=False))["flops"].sum()
    assert counted == pytest.approx(counter.get_total_flops(), rel=0.01)
