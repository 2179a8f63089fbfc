"""Chains of memory-bound ops: their extent, and what they move once fused."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl
import pytest
from conftest import ROOT

from traceq import load
from traceq.analysis.base.assumptions import FUSED_TRANSPOSED
from traceq.analysis.base.steady import steady_steps
from traceq.analysis.time.fused_bytes import Unit, fused_bytes
from traceq.analysis.time.fusible_chains import fusible_chains
from traceq.linter import inputs
from traceq.testing import load_drawn

if TYPE_CHECKING:
    from traceq.model.trace import Trace

H200 = {"id": 0, "name": "NVIDIA H200", "numSms": 132, "totalGlobalMem": 1}
ROWS = [1024, 1024]
SIZE = 4 * 1024 * 1024


def unit(name: str, *dims: list[int], place: int = 0, fusible: bool = True) -> Unit:
    shapes: list[list[int] | None] = [*dims]
    return Unit(name, shapes, ["float"] * len(dims), None, None, place, fusible)


MAKES = unit("aten::mm", [1024, 512], [512, 1024], fusible=False)
USES = unit("aten::mm", ROWS, [1024, 512], fusible=False)


def drawn(*names: str) -> Trace:
    width = 24
    ops = "".join(f"[{name:<{width - 2}}]" for name in names)
    calls = "".join(
        f"[{f'cudaLaunchKernel>{at}':<{width - 2}}]" for at in range(len(names))
    )
    kernels = "".join(f"[{f'k{at}<{at}':<{width - 2}}]" for at in range(len(names)))
    return load_drawn(
        f"""
        host   [ProfilerStep#1{" " * width * (len(names) + 1)}]
        host    {ops}
        host    {calls}
        gpu 7   {" " * width}{kernels}
        """,
        args={name: inputs([ROWS, ROWS], ["float", "float"]) for name in names},
        device=H200,
    )


def chained(trace: Trace) -> list[int]:
    return fusible_chains(trace).kernels["kernel"].sort().to_list()


def test_pointwise_ops_in_a_row_are_a_chain() -> None:
    chains = fusible_chains(drawn("aten::mul", "aten::tanh", "aten::add"))

    assert chains.chains["kernels"].to_list() == [3]
    assert 0.5 < chains.kernels["share"].min() < 1  # type: ignore[operator]  # a float


def test_a_matmul_that_uses_the_last_value_ends_a_chain() -> None:
    trace = drawn("aten::mul", "aten::tanh", "aten::mm", "aten::add", "aten::exp")

    assert fusible_chains(trace).chains["kernels"].to_list() == [2, 2]


def test_a_matmul_is_in_no_chain() -> None:
    assert chained(drawn("aten::mul", "aten::tanh", "aten::mm")) == [0, 1]


def test_the_gradient_of_the_weight_of_a_prelu_is_in_its_chain() -> None:
    """A gradient of the input's size, and its sum to a number for each channel."""
    trace = load_drawn(
        """
        host   [ProfilerStep#1                                                       ]
        host    [aten::_prelu_kernel    ]
        host    [cudaLaunchKernel>1]
        host 2                           [PreluKernelBackward0                       ]
        host 2                           [aten::_prelu_kernel_backward][aten::sum   ]
        host 2                           [cudaLaunchKernel>2]          [cuLaunch>3  ]
        gpu 7                       [k1<1    ]             [k2<2      ]         [k3<3]
        """,
        args={
            "aten::_prelu_kernel": {
                **inputs([ROWS, [1, 1]], ["float", "float"]),
                "Sequence number": 1,
                "Fwd thread id": 0,
            },
            "PreluKernelBackward0": {"Sequence number": 1, "Fwd thread id": 1},
            "aten::_prelu_kernel_backward": inputs(
                [ROWS, ROWS, [1, 1]], ["float", "float", "float"]
            ),
            "aten::sum": inputs([ROWS], ["float"]),
        },
        device=H200,
    )

    back = fusible_chains(trace).kernels.filter("back")

    assert back["kernel"].len() == 2
    assert (back["share"] > 0).all()


def test_an_op_alone_saves_nothing() -> None:
    assert fusible_chains(drawn("aten::mul")).saved_ns == 0


def test_kernels_of_other_findings_are_left_out() -> None:
    chains = fusible_chains(drawn("aten::mul", "aten::tanh", "aten::add"))

    assert chains.without({0, 1}).kernels["kernel"].to_list() == [2]


def test_a_gated_layer_reads_both_matmuls_and_writes_once() -> None:
    chain = [unit("aten::silu", ROWS), MAKES, unit("aten::mul", ROWS, ROWS)]

    moved = fused_bytes([MAKES], chain, [USES])

    assert moved.forward == 3 * SIZE
    assert moved.backward == 5 * SIZE


def test_a_value_of_the_same_function_is_read_once() -> None:
    chain = [
        unit("aten::pow", ROWS),
        unit("aten::tanh", ROWS),
        unit("aten::add", ROWS, ROWS),
    ]

    assert fused_bytes([MAKES], chain, [USES]).forward == 2 * SIZE


def test_a_residual_sum_before_a_norm_is_written_too() -> None:
    chain = [unit("aten::add", ROWS, ROWS), unit("aten::native_layer_norm", ROWS)]

    assert fused_bytes([MAKES], chain, [USES]).forward == 4 * SIZE


def test_the_gradient_of_a_relu_reads_a_byte_of_each_element() -> None:
    moved = fused_bytes([MAKES], [unit("aten::relu", ROWS)], [USES])

    assert moved.forward == 2 * SIZE + SIZE / 4
    assert moved.backward == 2 * SIZE + SIZE / 4


def test_a_tensor_in_two_orders_takes_longer() -> None:
    images = [8, 16, 64, 128]
    rows, channels_last = [131072, 8192, 128, 1], [131072, 1, 2048, 16]
    both = unit("aten::add", images, images)
    before = [unit("aten::convolution", images, fusible=False)]

    same, other = (
        fused_bytes(before, [both._replace(strides=[rows, group])], [])
        for group in (rows, channels_last)
    )

    assert other.forward == pytest.approx(FUSED_TRANSPOSED * same.forward)


def test_a_tensor_that_is_broadcast_is_in_no_other_order() -> None:
    column = unit("aten::mul", ROWS, [1024, 1])
    plain = fused_bytes([MAKES], [column], [USES])

    assert (
        fused_bytes([MAKES], [column._replace(strides=[[1024, 1], [1, 1]])], [USES])
        == plain
    )


def test_a_chain_that_only_streams_is_faster() -> None:
    streams, reduces = (
        fusible_chains(drawn("aten::mul", name, "aten::add")).chains
        for name in ("aten::tanh", "aten::_softmax")
    )

    assert streams["bytes"].to_list() == reduces["bytes"].to_list()
    assert streams["fused"][0] < reduces["fused"][0]


def test_what_a_compiler_leaves_alone_is_in_no_chain() -> None:
    assert chained(drawn("aten::mul", "aten::sort", "aten::tanh")) == [0, 2]


@pytest.mark.real
def test_norms_and_gelus_are_as_long_as_in_the_compiled_recording() -> None:
    eager, compiled = (
        load(ROOT / "tests" / "data" / "compiled" / name)
        for name in ("transformer-eager", "transformer")
    )
    chains = fusible_chains(eager)
    # The loss is outside of the compiled model.
    loss = eager.ops["name"][chains.kernels["op"]].cast(pl.String).str.contains("loss")
    of_loss = chains.kernels["chain"].filter(loss).unique()
    rows = chains.kernels.filter(~pl.col("chain").is_in(of_loss.implode()))
    predicted = (rows["dur"] * (1 - rows["share"])).sum()
    generated = compiled.kernels.filter(
        pl.col("name").cast(pl.String).str.contains("^triton_(poi|per|red)_"),
        ~pl.col("name").cast(pl.String).str.contains("embedding"),
    )

    assert predicted == pytest.approx(generated["dur"].sum(), rel=0.3)


@pytest.mark.real
@pytest.mark.parametrize("name", ["vae", "dit_infer", "rotary", "mamba"])
def test_the_gpu_time_of_a_compiled_program_is_predicted(name: str) -> None:
    folder = ROOT / "benchmarks" / "fusion"
    eager, compiled = (
        load(folder / f"{name}.{form}.json.gz") for form in ("eager", "compiled")
    )
    before, after = steady_steps(eager), steady_steps(compiled)
    predicted = (before.gpu_busy - fusible_chains(eager).saved_ns) / before.count

    assert predicted == pytest.approx(after.gpu_busy / after.count, rel=0.15)
