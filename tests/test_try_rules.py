"""Remedies, their rules and their edits: both sides name the same."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from collecting import module
from linting import bundled_rules
from recordings import ROOT

from traceq.fix import remedies as fixes

if TYPE_CHECKING:
    from pathlib import Path

remedies = module("remedies")
CODES = set(bundled_rules())


@pytest.mark.parametrize(("code", "name"), fixes.TRIED.items())
def test_the_remedy_of_a_finding_addresses_its_rule(code: str, name: str) -> None:
    assert code in remedies.facts(name)["rules"]


@pytest.mark.parametrize(
    ("code", "name"),
    [(code, name) for code, name in fixes.EDITS.items() if name in remedies.NAMES],
)
def test_the_remedy_of_an_edit_addresses_its_rule(code: str, name: str) -> None:
    assert code in remedies.facts(name)["rules"]


@pytest.mark.parametrize("name", remedies.NAMES)
def test_the_rules_of_a_remedy_exist(name: str) -> None:
    assert set(remedies.facts(name)["rules"]) <= CODES


def test_a_trial_names_the_rules_to_fix() -> None:
    outcomes = module("launcher.outcomes")
    retained = {"remedy": "tf32", "predicted": {"rule": "GEM001"}}
    other = {"remedy": "compile", "predicted": {"rule": "LCH001"}}
    report = {"kept": {"remedies": ["tf32"]}, "remedies": [retained, other]}

    assert outcomes.rules_to_fix(report) == ["GEM001"]


def test_a_prediction_is_of_the_remedies_that_its_advice_names(tmp_path: Path) -> None:
    options, file = module("launcher.try_options"), tmp_path / "lint.json"
    findings = [
        {"code": "HST003", "saves_ns": 3_000_000, "advice": "call gc.freeze() once"},
        {"code": "HST003", "saves_ns": 9_000_000, "advice": "replace loops"},
        {"code": "GEM001", "saves_ns": 1_000_000, "advice": "allow TF32"},
    ]
    file.write_text(json.dumps({"recordings": [{"findings": findings}]}))

    predicted = options.predictions(str(file))

    assert predicted["HST003"]["ms"] == 12
    frozen = remedies.addressed("gc_freeze", predicted)
    assert {rule: entry["ms"] for rule, entry in frozen.items()} == {"HST003": 3}
    assert options.addressing(predicted) == ["gc_freeze", "tf32"]


WITH_ADVICE = [name for name in remedies.NAMES if remedies.facts(name)["advice"]]


@pytest.mark.parametrize("name", WITH_ADVICE)
def test_the_words_of_a_remedy_are_in_the_advice_of_its_rules(name: str) -> None:
    """Rules write their advice themselves, or a module beside them does."""
    facts = remedies.facts(name)
    folders = {
        file.parent
        for file in (ROOT / "rules").rglob("*.py")
        if any(f'"{code}"' in file.read_text() for code in facts["rules"])
    }
    texts = [file.read_text() for folder in folders for file in folder.glob("*.py")]

    assert any(facts["advice"] in text for text in texts)
