"""Output shown in the tutorial, compared with the output of the commands."""

from __future__ import annotations

import difflib
import re

import pytest
from command import traceq
from conftest import ROOT
from goldens import assert_block

from traceq import lint

STATES = ROOT / "fixtures" / "tutorial"
PAGE = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")


@pytest.fixture(autouse=True)
def _in_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


@pytest.mark.real
@pytest.mark.golden
@pytest.mark.parametrize("state", range(6))
@pytest.mark.slow
def test_a_state_of_the_program_has_the_findings_that_are_shown(state: int) -> None:
    form = "brief" if state == 0 else "concise"
    text = traceq("lint", f"fixtures/tutorial/{state}", "--format", form, width=90).out

    assert_block(f"tutorial-{state}", text)


@pytest.mark.golden
@pytest.mark.parametrize("state", range(5))
def test_a_change_is_what_lies_between_two_states(state: int) -> None:
    before, after = (
        (STATES / str(number) / "train.py").read_text(encoding="utf-8").splitlines()
        for number in (state, state + 1)
    )
    changed = [
        line
        for line in difflib.unified_diff(before, after, lineterm="", n=0)
        if not line.startswith(("---", "+++", "@@"))
    ]

    assert_block(f"tutorial-change-{state}", "\n".join(changed) + "\n")


@pytest.mark.real
@pytest.mark.golden
@pytest.mark.slow
def test_the_causes_between_the_first_and_the_last_state_are_shown() -> None:
    result = traceq(
        "diff", "fixtures/tutorial/0", "fixtures/tutorial/5", width=90
    ).out.split("\n\n")
    causes, *_ = (part for part in result if part.startswith("Why"))

    assert_block("tutorial-diff", f"{causes}\n")


CHANGES = (
    ("pinned batches", ("CPY003",)),
    ("no cast there and back", ("CPY002",)),
    ("no clones, no changes of layout", ("CPY005",)),
    ("no `.item()`, fused optimizer", ("LCH004", "SYN001")),
    ("compiled", ("FUS001",)),
)
"""Change of each state, and the findings of the state before that it fixes."""
PARTS = {
    "no clones, no changes of layout": " for the clones alone",
}
"""Predictions that are for a part of the change, as no finding covers the rest."""


@pytest.mark.real
@pytest.mark.golden
@pytest.mark.slow
def test_the_table_has_what_lint_predicts_and_what_was_measured() -> None:
    measured = [
        float(re.findall(r"true_step_ms = ([\d.]+)", text)[0])
        for state in range(6)
        for text in [(STATES / str(state) / "origin.toml").read_text(encoding="utf-8")]
    ]
    rows = [f"| 0 | | | {measured[0]:.3g} ms |"]
    for state, (change, codes) in enumerate(CHANGES, 1):
        outcome = lint(STATES / str(state - 1)).report.outcomes[0]
        saved = (
            sum(
                finding.saves_ns
                for finding in outcome.findings
                if finding.code in codes
            )
            / 1e6
        )
        assert saved, f"state {state - 1} has none of {codes}"
        predicted = f"{measured[state - 1] - saved:.2f} ms{PARTS.get(change, '')}"
        rows.append(f"| {state} | {change} | {predicted} | {measured[state]:.2f} ms |")

    head = "| state | change | predicted | measured |\n| --- | --- | --- | --- |\n"
    assert_block("tutorial-table", head + "\n".join(rows) + "\n")
