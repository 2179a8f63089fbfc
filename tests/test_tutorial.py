"""Output shown in the tutorial, compared with the output of the commands."""

from __future__ import annotations

import difflib
import re

import pytest
from command import traceq
from conftest import ROOT
from goldens import assert_block

STATES = ROOT / "fixtures" / "tutorial"
PAGE = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")


@pytest.fixture(autouse=True)
def _in_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


@pytest.mark.real
@pytest.mark.golden
@pytest.mark.parametrize("state", range(6))
def test_a_state_of_the_program_has_the_findings_that_are_shown(state: int) -> None:
    form = "brief" if state == 0 else "concise"
    found = traceq("lint", f"fixtures/tutorial/{state}", "--format", form, width=90).out

    assert_block(f"tutorial-{state}", found)


@pytest.mark.golden
@pytest.mark.parametrize("state", range(5))
def test_a_change_is_what_lies_between_two_states(state: int) -> None:
    before, after = (
        (STATES / str(one) / "train.py").read_text(encoding="utf-8").splitlines()
        for one in (state, state + 1)
    )
    changed = [
        line
        for line in difflib.unified_diff(before, after, lineterm="", n=0)
        if not line.startswith(("---", "+++", "@@"))
    ]

    assert_block(f"tutorial-change-{state}", "\n".join(changed) + "\n")


@pytest.mark.real
@pytest.mark.golden
def test_the_causes_between_the_first_and_the_last_state_are_shown() -> None:
    found = traceq(
        "diff", "fixtures/tutorial/0", "fixtures/tutorial/5", width=90
    ).out.split("\n\n")
    causes, *_ = (part for part in found if part.startswith("Why"))

    assert_block("tutorial-diff", f"{causes}\n")


def test_the_measured_steps_of_the_table_are_those_of_the_recordings() -> None:
    said = re.findall(r"^\| (\d) \|.*\| ([\d.]+) ms \|$", PAGE, re.MULTILINE)

    measured = [
        float(re.findall(r"true_step_ms = ([\d.]+)", text)[0])
        for state in range(6)
        for text in [(STATES / str(state) / "origin.toml").read_text(encoding="utf-8")]
    ]
    assert [float(ms) for _, ms in said] == pytest.approx(measured, rel=0.005)
