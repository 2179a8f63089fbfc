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
    report = linted(CAPTURES.trace(case), CAPTURES.step_ns(case))

    assert report.idle is not None
    assert report.idle.share >= ENOUGH or "largest unexplained" in words.idle(report)


@pytest.mark.parametrize("case", HOST_BOUND)
def test_nothing_is_explained_twice(case: str) -> None:
    explained_idle = linted(CAPTURES.trace(case), CAPTURES.step_ns(case)).idle

    assert explained_idle is not None
    assert (
        0
        <= explained_idle.explained_ns
        <= explained_idle.with_residual_ns
        <= explained_idle.idle_ns
    )
    if explained_idle.unexplained:
        left = explained_idle.idle_ns - explained_idle.explained_ns
        assert explained_idle.unexplained.ns <= left * 1.001


def test_findings_with_the_same_fix_explain_it_once() -> None:
    report = linted(CAPTURES.trace("moe_loop"), CAPTURES.step_ns("moe_loop"))

    # The loop's finding removes the syncs too, which have a finding of their own.
    assert {"LCH001", "SYN001"} <= {finding.code for finding in report.findings}
    assert report.idle is not None
    assert report.idle.share == pytest.approx(1, abs=0.05)


def test_a_gpu_bound_step_has_no_idle_time_to_explain() -> None:
    report = linted(CAPTURES.trace("attn_fp32"))

    assert report.idle is None
    assert words.idle(report) == ""


def test_idle_time_that_no_rule_explains_is_a_finding_that_fails() -> None:
    report = outcome(Recording("drawn", load_drawn(SLEEPS)))

    (finding,) = (
        item for item in report.findings if item.severity is not Severity.info
    )
    assert finding.code == "LCH002"
    assert finding.message.endswith("mostly locks and I/O")
    assert finding.saves_ns < 0.5 * report.step_ns
    assert finding.gpu_idle_ns > 0.4 * report.step_ns
    assert "88%: locks and I/O (all of that: main (train.py:3))" in words.idle(report)
    assert "largest unexplained" in words.idle(report)


def test_a_finding_on_what_remains_explains_idle_time_alone() -> None:
    report = outcome(Recording("drawn", load_drawn(SLEEPS)))
    assert report.idle is not None
    idle = structs.replace(
        report.idle, explained_ns=0, with_residual_ns=0.66 * 2e6, idle_ns=2e6
    )

    text = words.idle(structs.replace(report, idle=idle))

    assert text.startswith("LCH002 explains 66% of the 2.00 ms in which the GPU idles")


def test_a_general_finding_sees_what_the_others_leave() -> None:
    case = CAPTURES.trace("optimizer_loop_sync")
    alone = outcome(Recording("case", loaded(case)), "LCH002").findings[0]
    report = linted(case)

    (among,) = (finding for finding in report.findings if finding.code == "LCH002")
    assert among.data["idle_ns"] < 0.8 * alone.data["idle_ns"]  # type: ignore[operator]  # a number
    assert "once the other findings are fixed" in words.cost(among, report)
    assert among.evidence[0].label == "remains"


def test_what_remains_comes_after_the_others_and_saves_the_last_part_of_the_plan() -> (
    None
):
    case = "optimizer_loop_sync"
    report = linted(CAPTURES.trace(case), CAPTURES.step_ns(case))

    worth = [
        finding for finding in report.findings if finding.severity is Severity.warning
    ]
    assert [finding.code for finding in worth] == ["LCH003", "SYN001", "LCH002"]
    *_, before, after = report.together
    assert worth[-1].saves_ns == pytest.approx(before.step_ns - after.step_ns, abs=2)


def test_the_json_says_how_much_is_explained() -> None:
    file = FIXTURE_TRACES["twins/optimizer_loop_sync"]

    answer = traceq("lint", file, "--format", "json")

    (result,) = json.loads(answer.out)["recordings"]
    assert result["idle"].keys() == {
        "idle_ns",
        "explained_ns",
        "explained_share",
        "with_residual_ns",
        "residual",
        "largest_unexplained",
    }
    assert result["idle"]["residual"] == ["LCH002"]
    assert result["idle"]["largest_unexplained"]["kind"]
    residual = {
        finding["code"] for finding in result["findings"] if finding["residual"]
    }
    assert residual == {"LCH002"}
