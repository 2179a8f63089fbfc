"""Host activity while the GPU waits for it: the verdict names the largest part."""

from __future__ import annotations

import json

import pytest
from command import traceq
from recordings import CAPTURES, FIXTURE_TRACES, loaded

from traceq.analysis.replay.bound import bound_of, waits_after
from traceq.analysis.replay.host_account import NEW_SHAPE
from traceq.analysis.replay.simulation import Change
from traceq.analysis.time.host_activity import DISPATCH, HOOKS, WITH_LIBRARIES
from traceq.common.intervals import spans
from traceq.model.host_work import host_work_name
from traceq.report.bound import bar, sentence
from traceq.testing import load_drawn

HOST_BOUND = ("moe_loop", "optimizer_loop_sync", "optimizer_fused")
SLOW_PYTHON = """
    host  [ProfilerStep#1                                                             ]
    host   [train.py(3): main                                                        ]
    host    [train.py(9): tokenise                      ] [aten::mm           ]
    host                                                   [cudaLaunchKernel>1]
    gpu 7                                                            [gemm<1     ]
"""

# The GPU is done in the middle of what the host does before the second launch.
DONE_BETWEEN = """
    host  [ProfilerStep#1                                                         ]
    host   [train.py(3): main                                                    ]
    host    [aten::mm       ][train.py(9): early][train.py(12): late][aten::mm       ]
    host     [cuLaunchKernel>1]                                      [cuLaunchKernel>2]
    gpu 7                   [gemm<1                     ]                      [gemm<2]
"""

# A launch that was not recorded divides what the host does at no beginning or end.
WORK_OF_A_GRAPH = """
    host  [ProfilerStep#1                                                             ]
    host   [train.py(3): main                                                        ]
    host    [train.py(9): tokenise                      ] [aten::mm           ]
    host                                                   [cudaLaunchKernel>1]
    gpu 7                 [add]                                      [gemm<1     ]
"""


@pytest.mark.parametrize("name", HOST_BOUND)
def test_the_entries_add_up_to_the_time_in_which_the_gpu_idles(name: str) -> None:
    bound = bound_of(loaded(CAPTURES.trace(name)), CAPTURES.step_ns(name))

    assert bound.waits is not None
    assert bound.bottleneck is not None
    assert bound.waits.idle_ns == pytest.approx(bound.bottleneck.idle_ns)
    lines = waits_after(loaded(CAPTURES.trace(name)), CAPTURES.step_ns(name)).lines
    assert lines["time"].sum() == pytest.approx(bound.waits.idle_ns)
    assert sum(ns for _, ns in bound.waits.kind_rows) == pytest.approx(
        bound.waits.idle_ns
    )


def test_a_call_during_which_work_begins_has_its_time_before_and_after() -> None:
    idle_account = waits_after(load_drawn(WORK_OF_A_GRAPH), 80_000)

    # As recorded nothing is open for 2 microseconds of the step's 77.
    assert dict(idle_account.kind_rows)["unknown"] < 4_000


def test_a_gpu_bound_step_has_no_such_entries() -> None:
    assert bound_of(loaded(CAPTURES.trace("attn_flash")), None).waits is None


def test_the_verdict_names_the_function_that_the_gpu_waits_for() -> None:
    bound = bound_of(load_drawn(SLOW_PYTHON), 80_000)

    assert bound.waits is not None
    assert bound.waits.largest is not None
    assert (bound.waits.largest.kind, bound.waits.largest.function) == (
        WITH_LIBRARIES,
        "tokenise",
    )
    assert "mostly for Python code and the libraries it calls (" in sentence(bound)
    assert "tokenise (train.py:9))" in sentence(bound)
    assert "running" not in sentence(bound)
    assert "P Python " in bar(bound)


@pytest.mark.parametrize(
    ("fixture", "kind", "name"),
    [
        ("varying_length", NEW_SHAPE, "aten::_cudnn_attention"),
        ("forward_hooks", HOOKS, "keep"),
    ],
)
def test_the_verdict_names_what_was_planted(fixture: str, kind: str, name: str) -> None:
    bound = bound_of(loaded(FIXTURE_TRACES[fixture]), None)

    assert bound.waits is not None
    largest = bound.waits.largest
    assert largest is not None
    assert (largest.kind, (largest.name or "").startswith(name)) == (kind, True)
    assert f" for {host_work_name(kind)} (" in sentence(bound)
    assert f"{fixture}.py:" in sentence(bound)


def test_what_a_change_removes_is_waited_for_no_longer() -> None:
    trace = load_drawn(SLOW_PYTHON)
    frames = trace.frames.filter(trace.frames["function"] == "tokenise")

    before = waits_after(trace, 80_000)
    after = waits_after(trace, 80_000, [Change(spans=spans(frames), host_share=1.0)])

    removed = before.idle_ns - after.idle_ns
    assert removed == pytest.approx(before.step_ns - after.step_ns)
    assert removed > 0.4 * before.idle_ns
    assert "tokenise" not in after.lines["function"].to_list()


def test_the_gpu_waits_for_what_comes_last_before_a_launch() -> None:
    lines = waits_after(load_drawn(DONE_BETWEEN), 70_000).lines

    assert "late" in lines["function"].to_list()
    assert "early" not in lines["function"].to_list()


def test_calls_are_those_that_the_gpu_waits_for() -> None:
    waits = waits_after(load_drawn(DONE_BETWEEN), 70_000)

    calls = dict(waits.kinds.select("kind", "calls").iter_rows())
    # Of two operators; of three functions the first is over before the GPU waits.
    assert (calls[DISPATCH], calls[WITH_LIBRARIES]) == (2, 2)


def test_where_the_gpu_never_waits_there_is_nothing_to_name() -> None:
    waits = waits_after(load_drawn(DONE_BETWEEN), None)

    assert waits.idle_ns == 0
    assert not waits.kinds.height
    assert waits.largest is None


def test_the_same_changes_have_one_answer() -> None:
    trace = load_drawn(SLOW_PYTHON)
    changes = (Change(spans=spans(trace.frames), host_share=0.5),)

    assert waits_after(trace, None, changes) is waits_after(trace, None, changes)


def test_the_json_has_the_entries() -> None:
    answer = traceq(
        "summary", FIXTURE_TRACES["twins/optimizer_fused"], "--format", "json"
    )

    (result,) = json.loads(answer.out)["traces"]
    waits = result["bound"]["waits"]
    assert sum(kind["ns"] for kind in waits["kinds"]) == pytest.approx(
        waits["idle_ns"], rel=1e-3
    )
    assert waits["entries"][0].keys() >= {"kind", "name", "file", "line", "ns", "calls"}
