"""Remedies, their rules and their edits: both sides name the same."""

from __future__ import annotations

import pytest
from collecting import module
from linting import bundled_rules

from traceq.fix import remedies as fixes

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
