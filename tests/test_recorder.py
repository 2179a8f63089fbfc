"""Profiler stalls that the trace shows; they are no time of the program."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import polars as pl
import pytest
from linting import outcome

from traceq.analysis.base.assumptions import GRAPH_LAUNCH_SLOWDOWN
from traceq.analysis.base.profiler_overhead import recorder_stalls
from traceq.analysis.replay.bound import bound_of, host_account_of, replay_of
from traceq.analysis.replay.compile_wrappers import wrapper_time
from traceq.analysis.time.host_activity import COMPILED as COMPILED_KIND
from traceq.analysis.time.op_calls import op_calls
from traceq.inputs.load_trace import load
from traceq.model.recording import Recording
from traceq.testing import draw, load_drawn

if TYPE_CHECKING:
    from pathlib import Path

    from traceq.model.trace import Trace

SHORT = """
host  [ProfilerStep#1                              ]
host   [aten::copy_        ]   [aten::mm          ]
host      [cudaMemcpyAsync>1]   [cudaLaunchKernel>2]
gpu 7                  [Memcpy HtoD<1]           [gemm<2]
"""
LONG = """
host  [ProfilerStep#1                                                          ]
host   [aten::copy_                                    ]   [aten::mm          ]
host                                  [cudaMemcpyAsync>1]   [cudaLaunchKernel>2]
gpu 7                                              [Memcpy HtoD<1]           [gemm<2]
"""
GRAPH = """
host  [ProfilerStep#1                                         ]
host  [cudaGraphLaunch>1                           ]
gpu 7                                                  [a<1][b<1]
"""
# WRAPPER is a file that inductor wrote, the call takes long to make its calls.
COMPILED = """
host  [ProfilerStep#1                                                          ]
host   [WRAPPER(1596): call                                                   ]
host                         [aten::mm       ]               [aten::mm       ]
host                          [cudaLaunch>1 ]                 [cudaLaunch>2 ]
gpu 7                                     [gemm<1]                       [gemm<2]
"""
COMPILED_SHORT = """
host  [ProfilerStep#1                        ]
host   [WRAPPER(1596): call                 ]
host    [aten::mm       ]  [aten::mm       ]
host     [cudaLaunch>1 ]    [cudaLaunch>2 ]
gpu 7                [gemm<1]           [gemm<2]
"""
GENERATED = "/cache/ab/c" + "a2" * 25 + "b.py"
REQUEST = "Activity Buffer Request"


def recorded(
    folder: Path, drawing: str, *overhead: tuple[str, float, float], scale: int = 10
) -> Trace:
    """Load a drawing in which a character is so many microseconds."""
    drawn = draw(drawing)
    for event in drawn["traceEvents"]:
        event["ts"] *= scale
        event["dur"] = event.get("dur", 0) * scale
    drawn["traceEvents"] += [
        {
            "ph": "X",
            "cat": "overhead",
            "name": name,
            "pid": -1,
            "tid": 0,
            "ts": ts * scale,
            "dur": dur * scale,
        }
        for name, ts, dur in overhead
    ]
    path = folder / "trace.json"
    path.write_text(json.dumps(drawn), encoding="utf-8")
    return load(path, cache=False)


@pytest.mark.real
def test_a_buffer_that_the_profiler_asks_for_is_no_time_of_the_step(
    tmp_path: Path,
) -> None:
    held = recorded(tmp_path, LONG, (REQUEST, 2.5, 28))
    short = recorded(tmp_path, SHORT)

    assert recorder_stalls(held).rows() == [(25_000, 305_000)]
    assert bound_of(held, None).step_ns == pytest.approx(
        bound_of(short, None).step_ns, rel=0.02
    )
    assert bound_of(held, None).recorded_step_ns > bound_of(short, None).step_ns


@pytest.mark.real
def test_without_the_profilers_word_the_time_is_the_operators(tmp_path: Path) -> None:
    trace, other = (recorded(tmp_path, drawing) for drawing in (LONG, SHORT))

    assert bound_of(trace, None).step_ns > 1.2 * bound_of(other, None).step_ns


def test_loading_a_kernel_is_the_programs_own_time(tmp_path: Path) -> None:
    trace = recorded(tmp_path, LONG, ("Lazy Function Loading", 2.5, 28))

    assert recorder_stalls(trace).is_empty()


def test_what_the_profiler_does_beside_a_program_that_goes_on_holds_nobody_up(
    tmp_path: Path,
) -> None:
    trace = recorded(tmp_path, SHORT, ("Buffer Flush", 2, 40))

    assert recorder_stalls(trace).is_empty()


def test_an_operator_that_the_profiler_held_up_is_not_slower_than_usual(
    tmp_path: Path,
) -> None:
    calls = op_calls(recorded(tmp_path, LONG, (REQUEST, 2.5, 28))).select("name", "own")

    assert dict(calls.iter_rows())["aten::copy_"] < 60_000


def test_a_single_step_says_how_long_the_profiler_held_it_up(tmp_path: Path) -> None:
    trace = recorded(tmp_path, LONG, (REQUEST, 2.5, 28))
    (finding,) = outcome(Recording("drawn", trace), "TRC002").findings

    assert finding.message == (
        "only one step was recorded, and it may not be typical; the profiler itself"
        " held the host up for 280 µs of it"
    )


def test_the_launch_of_a_graph_is_slowed_down_by_the_kernels_that_are_recorded() -> (
    None
):
    trace = load_drawn(GRAPH)
    call = trace.runtime.row(0, named=True)
    ((start, end),) = recorder_stalls(trace).rows()

    assert end == call["ts"] + call["dur"]
    assert start == call["ts"] + call["dur"] / GRAPH_LAUNCH_SLOWDOWN


def test_a_graph_whose_kernels_are_not_recorded_is_launched_as_fast_as_ever() -> None:
    trace = load_drawn(GRAPH.replace("[a<1][b<1]", "[k]"))

    assert recorder_stalls(trace).is_empty()


def test_the_host_takes_what_a_launch_does_unrecorded_and_no_less() -> None:
    trace = load_drawn(GRAPH)
    (launch_ns,) = trace.runtime["dur"]
    rest_ns = trace.steps["dur"][0] - launch_ns
    own_ns = replay_of(trace).model.host["own"].sum()

    assert own_ns == pytest.approx(launch_ns / GRAPH_LAUNCH_SLOWDOWN + rest_ns)


def test_a_graph_begins_earlier_by_what_the_profiler_held_its_launch_up() -> None:
    trace = load_drawn(GRAPH)
    (launch_ns,) = trace.runtime["dur"]
    recorded_ns = trace.kernels["ts"][0] - trace.runtime["ts"][0]

    assert replay_of(trace).work["latency"][0] == pytest.approx(
        recorded_ns - launch_ns * (1 - 1 / GRAPH_LAUNCH_SLOWDOWN)
    )


def test_a_single_step_says_nothing_of_launches_of_graphs() -> None:
    trace = load_drawn(SHORT.replace("[cudaLaunchKernel>2]", "[cudaGraphLaunch>2 ]"))
    (finding,) = outcome(Recording("drawn", trace), "TRC002").findings

    assert not recorder_stalls(trace).is_empty()
    assert "held" not in finding.message


@pytest.mark.real
def test_what_a_wrapper_of_compiled_code_takes_between_its_calls_is_the_profilers(
    tmp_path: Path,
) -> None:
    slow, fast = (
        recorded(tmp_path, drawing.replace("WRAPPER", GENERATED))
        for drawing in (COMPILED, COMPILED_SHORT)
    )

    assert wrapper_time(slow)["end"].sum() > wrapper_time(slow)["start"].sum()
    assert bound_of(slow, None).step_ns == pytest.approx(
        bound_of(fast, None).step_ns, rel=0.02
    )


@pytest.mark.real
def test_what_a_function_of_the_users_takes_between_its_calls_is_its_own(
    tmp_path: Path,
) -> None:
    slow, fast = (
        recorded(tmp_path, drawing.replace("WRAPPER", "train.py"))
        for drawing in (COMPILED, COMPILED_SHORT)
    )

    assert wrapper_time(slow).is_empty()
    assert bound_of(slow, None).step_ns > 1.2 * bound_of(fast, None).step_ns


def test_the_account_of_the_host_has_nothing_for_what_is_the_profilers(
    tmp_path: Path,
) -> None:
    trace = recorded(tmp_path, COMPILED.replace("WRAPPER", GENERATED))
    account = host_account_of(trace, None)
    (taken,) = account.kinds.filter(pl.col("kind") == COMPILED_KIND)["estimated"]

    assert taken < 0.01 * bound_of(trace, None).step_ns
