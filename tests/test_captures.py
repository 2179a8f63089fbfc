"""The kernels of replayed CUDA graphs are of the ops that were captured."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import polars as pl
import pytest

from traceq.graph.cuda_graphs.captures import mapped
from traceq.testing import load_drawn

if TYPE_CHECKING:
    from traceq.model.trace import Trace

BEGIN, END, FORK = (
    "cudaStreamBeginCapture",
    "cudaStreamEndCapture",
    "cudaStreamWaitEvent",
)
TRITON = "triton_poi_fused_mul_"
GEMM = "nvjet_sm90_tst_128x64"
ADD = "at::native::elementwise_kernel add"
_WIDTH = 60
_CALLS = {"Memcpy": "cudaMemcpyAsync", "Memset": "cudaMemsetAsync"}


def host(*events: str) -> str:
    """Draw what a thread does: calls of the runtime, and ops with one call each.

    An op may be followed by the calls it makes, ``aten::mm cudaMemsetAsync``.
    """
    outer, inner = "", ""
    for event in events:
        name, *calls = event.split(" ")
        if name.startswith("cuda"):
            outer += f"[{name}]".ljust(_WIDTH)
            inner += " " * _WIDTH
            continue
        made = "".join(f"[{call}]" for call in calls or ["cudaLaunchKernel"])
        width = max(_WIDTH, len(made) + 8)
        outer += f"[{name.ljust(width - 3)}]".ljust(width)
        inner += f"  {made}".ljust(width)
    return f"host   {outer}\nhost   {inner}\n"


def gpu(*kernels: str, after: int = 0) -> str:
    """Draw what the GPU does, kernels as ``name<1``."""
    return f"gpu 7  {' ' * after}{''.join(f'[{kernel}]' for kernel in kernels)}\n"


def with_captures(trace: Trace, *captures: Trace) -> Trace:
    tables = mapped(
        trace.frames_by_name(), [item.frames_by_name() for item in captures]
    )
    return replace(trace, **tables)  # type: ignore[arg-type]  # tables are its fields


def ops_of(trace: Trace) -> list[tuple[str, str | None, bool | None]]:
    """Return each kernel with the name of its op, and whether that is certain."""
    kernels = trace.kernels
    return [
        (name, op, certain)
        for name, op, certain in zip(
            kernels["name"].cast(pl.String).to_list(),
            trace.ops["name"][kernels["op"]].cast(pl.String).to_list(),
            kernels["certain"].to_list(),
            strict=True,
        )
    ]


def replay(*kernels: str) -> Trace:
    """Return a trace of one replay of these kernels."""
    return load_drawn(
        host("cudaGraphLaunch>1") + gpu(*(f"{kernel}<1" for kernel in kernels))
    )


def capture(*events: str) -> Trace:
    """Return a trace of one capture of these ops."""
    return load_drawn(host(BEGIN, *events, END))


def test_kernels_of_a_replay_are_of_the_ops_captured_in_the_trace() -> None:
    trace = load_drawn(
        host(BEGIN, "aten::mm", "aten::add", END, "cudaGraphLaunch>1")
        + gpu(f"{GEMM}<1", f"{ADD}<1")
    )

    assert ops_of(trace) == [(GEMM, "aten::mm", True), (ADD, "aten::add", True)]


def test_each_replay_has_its_own_copy_of_the_captured_ops() -> None:
    trace = load_drawn(
        host(BEGIN, "aten::mm", END, "cudaGraphLaunch>1", "cudaGraphLaunch>2")
        + gpu(f"{GEMM}<1", f"{GEMM}<2", after=200)
    )

    copies = trace.ops.filter(pl.col("ts") < 0)
    assert trace.kernels["op"].to_list() == copies["id"].to_list() == [1, 2]
    assert copies["captured"].to_list() == [True, True]
    assert trace.kernels["launch"].n_unique() == 2


def test_copies_are_not_what_the_host_ran() -> None:
    trace = load_drawn(
        host(
            BEGIN, "aten::mm", END, "cudaGraphLaunch>1", "aten::add cudaLaunchKernel>2"
        )
        + gpu(f"{GEMM}<1", f"{ADD}<2", after=250)
    )

    assert trace.host_ops["name"].to_list() == ["aten::mm", "aten::add"]
    assert trace.kernel_ops["name"].to_list() == ["aten::add", "aten::mm"]


def test_the_capture_may_be_another_trace() -> None:
    trace = with_captures(replay(GEMM, ADD), capture("aten::mm", "aten::add"))

    assert ops_of(trace) == [(GEMM, "aten::mm", True), (ADD, "aten::add", True)]


def test_copies_and_sets_are_nodes_of_a_graph_and_host_functions_are_not() -> None:
    memset, memcpy = "Memset (Device)", "Memcpy DtoD (Device -> Device)"
    trace = with_captures(
        replay(memset, GEMM, memcpy),
        capture(
            "aten::mm cudaMemsetAsync cudaLaunchKernel",
            "aten::rand cudaLaunchHostFunc",
            "aten::copy_ cudaMemcpyAsync",
        ),
    )

    assert ops_of(trace) == [
        (memset, "aten::mm", True),
        (GEMM, "aten::mm", True),
        (memcpy, "aten::copy_", True),
    ]


def test_what_ran_while_a_graph_was_captured_is_not_in_it() -> None:
    trace = load_drawn(
        host(BEGIN, "aten::mm", END, "cudaGraphLaunch>1")
        + "host 2 "
        + " " * 40
        + "[aten::add            ]\n"
        + "host 2 "
        + " " * 42
        + "[cudaLaunchKernel>2]\n"
        + gpu(f"{ADD}<2", f"{GEMM}<1", after=60)
    )

    assert ops_of(trace) == [(ADD, "aten::add", None), (GEMM, "aten::mm", True)]


@pytest.mark.real
def test_ops_of_the_backward_are_captured_on_their_own_thread() -> None:
    whole = host(BEGIN, "aten::mm", "cudaEventQuery", END)
    backward = f"host 2 {' ' * 2 * _WIDTH}[AddBackward0        ]\n"
    backward += f"host 2 {' ' * 2 * _WIDTH} [cudaLaunchKernel]\n"
    trace = with_captures(replay(GEMM, ADD), load_drawn(whole + backward))

    assert ops_of(trace) == [(GEMM, "aten::mm", True), (ADD, "AddBackward0", True)]


@pytest.mark.real
def test_two_graphs_have_each_their_capture() -> None:
    trace = with_captures(
        load_drawn(
            host("cudaGraphLaunch>1", "cudaGraphLaunch>2")
            + gpu(f"{ADD}<1", f"{GEMM}<2", f"{ADD}<2")
        ),
        capture("aten::mm", "aten::add"),
        capture("aten::sub"),
    )

    assert [op for _, op, _ in ops_of(trace)] == ["aten::sub", "aten::mm", "aten::add"]


@pytest.mark.real
def test_graphs_alike_in_a_step_are_replayed_in_the_order_of_their_captures() -> None:
    trace = with_captures(
        load_drawn(
            "host   [ProfilerStep#1".ljust(2 * _WIDTH)
            + "]\n"
            + host("cudaGraphLaunch>1", "cudaGraphLaunch>2")
            + gpu(f"{ADD}<1", f"{ADD}<2", after=20)
        ),
        *(
            load_drawn(f"host [net.py({line}): f {' ' * 200}]\n" + host(BEGIN, op, END))
            for line, op in ((10, "aten::add"), (20, "aten::add"))
        ),
    )

    assert trace.kernels["line"].to_list() == [10, 20]
    assert trace.kernels["certain"].to_list() == [False, False]


def test_a_graph_captured_again_is_the_later_one_from_then_on() -> None:
    calls = f"host [net.py(10): f{' ' * 170}][net.py(20): g{' ' * 300}]\n"
    launch, again = "cudaGraphLaunch>1", "cudaGraphLaunch>2"
    trace = load_drawn(
        calls
        + host(BEGIN, "aten::add", END, launch, BEGIN, "aten::add", END, again)
        + gpu(f"{ADD}<1", f"{ADD}<2", after=260)
    )

    assert trace.kernels["line"].to_list() == [10, 20]


def test_between_branches_a_kernel_is_known_by_its_name_alone() -> None:
    one, two, three = (f"{TRITON}{number}" for number in range(3))
    trace = with_captures(
        replay(three, two, one, f"{TRITON}9"),
        capture(FORK, one, two, three, FORK, f"{TRITON}9"),
    )

    assert ops_of(trace) == [
        (name, name, True) for name in (three, two, one, f"{TRITON}9")
    ]


def test_between_branches_ops_that_look_alike_stay_unknown() -> None:
    relu = "at::native::elementwise_kernel relu"
    trace = with_captures(
        replay(relu, ADD, GEMM),
        capture(FORK, "aten::add", "aten::relu", FORK, "aten::mm"),
    )

    assert ops_of(trace) == [
        (relu, None, None),
        (ADD, None, None),
        (GEMM, "aten::mm", True),
    ]


def test_between_branches_one_of_several_calls_is_not_certain() -> None:
    trace = with_captures(
        replay(GEMM, ADD, GEMM),
        capture(FORK, "aten::mm", "aten::add", "aten::mm", FORK),
    )

    assert ops_of(trace) == [
        (GEMM, "aten::mm", False),
        (ADD, None, None),
        (GEMM, "aten::mm", False),
    ]


def test_numbered_nodes_tell_the_order_of_branches() -> None:
    relu = "at::native::elementwise_kernel relu"
    numbered = load_drawn(
        host("cudaGraphLaunch>1") + gpu(f"{relu}<1", f"{ADD}<1"),
        {relu: {"graph node id": 8}, ADD: {"graph node id": 7}},
    )
    trace = with_captures(numbered, capture(FORK, "aten::add", "aten::relu", FORK))

    assert ops_of(trace) == [(relu, "aten::relu", True), (ADD, "aten::add", True)]


@pytest.mark.parametrize(
    "captured",
    [
        pytest.param(("aten::mm",), id="fewer"),
        pytest.param(("aten::add", "aten::mm"), id="another order"),
        pytest.param(("aten::mm", f"{TRITON}0"), id="another kernel"),
        pytest.param(("aten::mm", "aten::add cudaMemsetAsync"), id="another activity"),
    ],
)
def test_a_capture_that_does_not_fit_names_no_kernel(captured: tuple[str, ...]) -> None:
    trace = with_captures(replay(GEMM, ADD), capture(*captured))

    assert ops_of(trace) == [(GEMM, None, None), (ADD, None, None)]
    assert trace.ops.is_empty()


@pytest.mark.real
def test_a_capture_of_another_shape_does_not_fit() -> None:
    """Its own replay shows that it runs other grids."""
    other = load_drawn(
        host(BEGIN, "aten::mm", END, "cudaGraphLaunch>1") + gpu(f"{GEMM}<1", after=200),
        {GEMM: {"grid": [64, 1, 1]}},
    )
    replayed = load_drawn(
        host("cudaGraphLaunch>1") + gpu(f"{GEMM}<1"), {GEMM: {"grid": [96, 1, 1]}}
    )

    assert ops_of(with_captures(replayed, other)) == [(GEMM, None, None)]


def test_a_capture_that_is_cut_off_names_no_kernel() -> None:
    trace = with_captures(replay(GEMM), load_drawn(host(BEGIN, "aten::mm")))

    assert ops_of(trace) == [(GEMM, None, None)]


@pytest.mark.real
def test_a_captured_module_has_the_number_that_the_replay_knows() -> None:
    """In the recording of one block's capture that block is the first."""
    block = "nn.Module: Block_{}"
    spread = " " * 170
    trace = with_captures(
        load_drawn(
            f"host [{block.format(3)}{spread}]\n"
            + host("cudaGraphLaunch>1")
            + gpu(f"{GEMM}<1")
        ),
        load_drawn(
            f"host [{block.format(0)}{spread}]\n"
            f"host  [nn.Module: Linear_0{spread[:-9]}]\n" + host(BEGIN, "aten::mm", END)
        ),
    )

    assert trace.kernels["module"].to_list() == ["Block_3/Linear_0"]


def test_copies_belong_to_the_step_that_replays_them() -> None:
    trace = with_captures(
        load_drawn(
            "host   [ProfilerStep#4".ljust(2 * _WIDTH)
            + "]\n"
            + host("cudaGraphLaunch>1")
            + gpu(f"{GEMM}<1", after=20)
        ),
        capture("aten::mm"),
    )

    assert trace.ops.select("name", "step").rows() == [("aten::mm", 4)]
    assert trace.steps.select("kernels", "launches").rows() == [(1, 1)]


@pytest.mark.real
def test_where_captures_of_several_shapes_fit_the_shapes_are_not_known() -> None:
    sizes = ([[64, 8], [8, 8]], [[32, 8], [8, 8]])
    captures = [
        load_drawn(
            host(BEGIN, "aten::mm", END),
            {"aten::mm": {"Input Dims": dims, "Input type": ["float", "float"]}},
        )
        for dims in sizes
    ]
    alone = with_captures(replay(GEMM), captures[0])
    either = with_captures(replay(GEMM), *captures)

    assert alone.ops["inputs"].null_count() == 0
    assert ops_of(either) == [(GEMM, "aten::mm", False)]
    assert either.ops["inputs"].null_count() == 1


def test_a_captured_call_outside_of_ops_has_none() -> None:
    trace = with_captures(replay(ADD, GEMM), capture("cudaLaunchKernel", "aten::mm"))

    assert ops_of(trace) == [(ADD, None, None), (GEMM, "aten::mm", True)]


def test_of_very_many_replays_only_launching_ops_are_copied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("traceq.graph.cuda_graphs.replayed_ops._MOST_COPIES", 2)
    around = f"host   {' ' * (2 * _WIDTH - 1)}[aten::linear{' ' * 46}]\n"
    view = "aten::view cudaStreamIsCapturing"
    captured = load_drawn(around + host(BEGIN, view, "aten::mm", END))
    trace = with_captures(replay(GEMM), captured)

    assert trace.ops["name"].to_list() == ["aten::linear", "aten::mm"]
    assert trace.ops["parent"].to_list() == [None, 0]
