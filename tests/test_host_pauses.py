"""Host pauses: what the host does for long in a few steps alone is its own part."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl
import pytest
from linting import bundled_rules, priced_findings

from traceq.analysis.time.host_activity import NO_STACKS, PAUSED
from traceq.linter import Fix, View
from traceq.linter.savings import Savings
from traceq.testing import load_drawn

if TYPE_CHECKING:
    from traceq.analysis.replay.host_account import HostAccount

RESET = "[env.py(9): reset" + " " * 6_000 + "][env.py(30): build" + " " * 7_000 + "]"
STOP = " " * 13_000


def steps(*insides: str) -> str:
    """Draw a step for each text, which is what the host does between its two ops."""
    marks = rows = inner = kernels = ""
    for number, inside in enumerate(insides, 1):
        two = f"[aten::sum      ] {inside} [aten::mul]"
        rows += f"   {two}  "
        inner += f"    [cuLaunch>{number}]".ljust(len(two) + 5)
        kernels += f"          [k<{number}]".ljust(len(two) + 5)
        marks += f"[ProfilerStep#{number}".ljust(len(two) + 3) + "] "
    frame = "[train.py(3): main".ljust(len(rows)) + "]"
    return f"""
        host   {frame}
        host   {marks.rstrip()}
        host   {rows.rstrip()}
        host   {inner.rstrip()}
        gpu 7  {kernels.rstrip()}
    """


def without_stacks(drawing: str) -> str:
    """Return a drawing without its Python."""
    return "\n".join(row for row in drawing.splitlines() if "train.py" not in row)


def account(drawing: str) -> HostAccount:
    return View(load_drawn(drawing)).host_account


def paused_ns(result: HostAccount) -> float:
    """Return how long the host pauses in a step."""
    return float(result.kinds.filter(pl.col("kind") == PAUSED)["recorded"].sum())


@pytest.mark.parametrize("pause", [RESET, STOP])
def test_what_takes_long_in_one_step_of_four_is_a_part_of_its_own(pause: str) -> None:
    result = account(steps("", pause, "", ""))

    assert paused_ns(result) == pytest.approx(len(pause) * 1000 / 4, rel=0.01)
    assert result.entries["recorded"].sum() == pytest.approx(
        (result.host.windows["end"] - result.host.windows["start"]).sum() / 4, rel=0.01
    )


def test_what_each_step_does_for_long_is_no_pause() -> None:
    assert not paused_ns(account(steps(RESET, RESET, RESET, RESET)))


def test_what_half_of_the_steps_do_is_no_pause() -> None:
    assert not paused_ns(account(steps(RESET, "", RESET, "")))


def test_what_a_single_recorded_step_does_for_long_is_no_pause() -> None:
    assert not paused_ns(account(steps(RESET)))


def test_operators_in_one_step_alone_are_work_and_no_pause() -> None:
    work = "[aten::mm" + " " * 13_000 + "]"

    assert not paused_ns(account(steps("", work, "", "")))


def test_a_wait_for_the_gpu_in_one_step_alone_is_no_pause() -> None:
    wait = "[cudaDeviceSynchronize" + " " * 13_000 + "]"

    assert not paused_ns(account(steps("", wait, "", "")))


def test_steps_that_each_stop_at_another_place_pause_nowhere() -> None:
    result = account(
        "\n".join(
            (
                "host "
                + "".join(
                    f"[ProfilerStep#{number}".ljust(len(STOP) + 40) + "]"
                    for number in range(1, 5)
                ),
                "host "
                + "".join(
                    f" [aten::{op}]{STOP}[aten::sum]".ljust(len(STOP) + 41)
                    for op in ("add", "sub", "exp", "log")
                ),
                "gpu 7 [k]",
            )
        )
    )

    assert not paused_ns(result)


def test_a_pause_leaves_the_means_of_other_python_as_in_the_other_steps() -> None:
    quiet, paused = (
        account(without_stacks(steps("", pause, "", ""))) for pause in ("", STOP)
    )

    means = [
        result.kinds.filter(pl.col("kind") == NO_STACKS)["recorded"].sum()
        for result in (quiet, paused)
    ]
    assert means[1] == pytest.approx(means[0], rel=0.2)


def test_a_reset_in_one_step_of_four_is_named_by_its_function() -> None:
    (finding,) = priced_findings(steps("", RESET, "", ""), "HST004")

    assert "`build`" in finding.message
    assert "1 of 4 steps" in finding.message
    assert "fewer steps" in finding.advice
    assert "gc." not in finding.advice
    assert finding.saves_ns == pytest.approx(13e6 / 4, rel=0.05)


@pytest.mark.parametrize(("of_pause", "left_out"), [(False, True), (True, False)])
def test_a_fix_of_more_than_a_pause_leaves_it_to_the_fix_of_the_pause(
    *, of_pause: bool, left_out: bool
) -> None:
    view = View(load_drawn(steps("", STOP, "", "")))
    windows = view.steady.windows[["start", "end"]]
    spans = view.host_account.pauses[["start", "end"]] if of_pause else windows
    rule = bundled_rules()["LCH001"]()
    finding = rule.finding("", subject="loop", fix=Fix(spans=spans))

    removed = Savings(view).removed(finding)

    assert (removed.host_ns < 1_000_000) is left_out
