"""Idle time of the GPU that the findings explain, and the rest of it."""

from __future__ import annotations

import json

import pytest
from command import traceq
from linting import linted, outcome
from msgspec import structs
from recordings import CAPTURES, FIXTURE_TRACES, loaded

from traceq.model.finding import Severity
from traceq.model.recording import Recording
from traceq.report.lint import content as words
from traceq.testing import load_drawn

HOST_BOUND = (
    "graph_record",
    "graph_rerecord",
    "memory_leak",
    "moe_loop",
    "optimizer_fused",
    "optimizer_loop_sync",
    "recompile",
)
ENOUGH = 0.7
# The host sleeps in every step, which no rule is about.
SLEEPS = """
    host  [ProfilerStep#1                      ][ProfilerStep#2                      ]
    host   [train.py(3): main                 ]  [train.py(3): main                 ]
    host    [<built-in time.sleep ][aten::mm  ]   [<built-in time.sleep ][aten::mm  ]
    host                           [cuLaunch>1]                          [cuLaunch>2]
    gpu 7                                [k<1]                                [k<2]
"""


@pytest.mark.parametrize("case", HOST_BOUND)
def test_findings_explain_most_of_the_idle_time_or_the_text_names_the_rest(
    case: str,
) -> None:
    found = linted(CAPTURES.trace(case), CAPTURES.step_ns(case))

    assert found.idle is not None
    assert found.idle.share >= ENOUGH or "largest unexplained" in words.idle(found)


@pytest.mark.parametrize("case", HOST_BOUND)
def test_nothing_is_explained_twice(case: str) -> None:
    found = linted(CAPTURES.trace(case), CAPTURES.step_ns(case)).idle

    assert found is not None
    assert 0 <= found.explained_ns <= found.with_residual_ns <= found.idle_ns
    if found.unexplained:
        left = found.idle_ns - found.explained_ns
        assert found.unexplained.ns <= left * 1.001


def test_findings_with_the_same_fix_explain_it_once() -> None:
    found = linted(CAPTURES.trace("moe_loop"), CAPTURES.step_ns("moe_loop"))

    # The loop's finding removes the syncs too, which have a finding of their own.
    assert {"LCH001", "SYN001"} <= {one.code for one in found.findings}
    assert found.idle is not None
    assert found.idle.share == pytest.approx(1, abs=0.05)


def test_a_gpu_bound_step_has_no_idle_time_to_explain() -> None:
    found = linted(CAPTURES.trace("attn_fp32"))

    assert found.idle is None
    assert words.idle(found) == ""


def test_idle_time_that_no_rule_explains_is_a_finding_that_fails() -> None:
    found = outcome(Recording("drawn", load_drawn(SLEEPS)))

    (one,) = (one for one in found.findings if one.severity is not Severity.info)
    assert one.code == "LCH002"
    assert one.message.endswith("mostly locks and I/O")
    assert one.saves_ns < 0.5 * found.step_ns
    assert one.gpu_idle_ns > 0.4 * found.step_ns
    assert "88%: locks and I/O (all of that: main (train.py:3))" in words.idle(found)
    assert "largest unexplained" in words.idle(found)


def test_a_finding_on_what_remains_explains_idle_time_alone() -> None:
    found = outcome(Recording("drawn", load_drawn(SLEEPS)))
    assert found.idle is not None
    idle = structs.replace(
        found.idle, explained_ns=0, with_residual_ns=0.66 * 2e6, idle_ns=2e6
    )

    said = words.idle(structs.replace(found, idle=idle))

    assert said.startswith("LCH002 explains 66% of the 2.00 ms in which the GPU idles")


def test_a_general_finding_sees_what_the_others_leave() -> None:
    case = CAPTURES.trace("optimizer_loop_sync")
    alone = outcome(Recording("case", loaded(case)), "LCH002").findings[0]
    found = linted(case)

    (among,) = (one for one in found.findings if one.code == "LCH002")
    assert among.data["idle_ns"] < 0.8 * alone.data["idle_ns"]  # type: ignore[operator]  # a number
    assert "once the other findings are fixed" in words.cost(among, found)
    assert among.evidence[0].label == "remains"


def test_what_remains_comes_after_the_others_and_saves_the_last_part_of_the_plan() -> (
    None
):
    case = "optimizer_loop_sync"
    found = linted(CAPTURES.trace(case), CAPTURES.step_ns(case))

    worth = [one for one in found.findings if one.severity is Severity.warning]
    assert [one.code for one in worth] == ["LCH003", "SYN001", "LCH002"]
    *_, before, after = found.together
    assert worth[-1].saves_ns == pytest.approx(before.step_ns - after.step_ns, abs=2)


def test_the_json_says_how_much_is_explained() -> None:
    file = FIXTURE_TRACES["twins/optimizer_loop_sync"]

    answer = traceq("lint", file, "--format", "json")

    (found,) = json.loads(answer.out)["recordings"]
    assert found["idle"].keys() == {
        "idle_ns",
        "explained_ns",
        "explained_share",
        "with_residual_ns",
        "residual",
        "largest_unexplained",
    }
    assert found["idle"]["residual"] == ["LCH002"]
    assert found["idle"]["largest_unexplained"]["kind"]
    residual = {one["code"] for one in found["findings"] if one["residual"]}
    assert residual == {"LCH002"}
