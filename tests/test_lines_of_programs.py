"""Findings stand at the line of the program that a person would name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from conftest import ROOT
from linting import linted

from traceq.common import toml
from traceq.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

    from traceq.model.finding import Finding

PROGRAMS = ROOT / "fixtures/programs"
EXPECTED = toml.read(ROOT / "benchmarks/lines.toml", InputError)
RECORDED = sorted((ROOT / "fixtures/lines").glob("*/trace.json.gz"))


def _texts(program: str, finding: Finding) -> list[str]:
    known = EXPECTED[program]
    return known.get(f"{finding.code} {finding.subject}") or known.get(finding.code, [])


@pytest.mark.parametrize("trace", RECORDED, ids=lambda path: path.parent.name)
@pytest.mark.slow
def test_a_finding_is_at_the_call_in_the_program(trace: Path) -> None:
    program = trace.parent.name
    source = (PROGRAMS / f"{program}.py").read_text().splitlines()
    placed = [item for item in linted(trace).findings if item.place.file]
    assert placed
    for finding in placed:
        assert finding.place.exact, finding.code
        there = source[(finding.place.line or 0) - 1]
        assert any(text in there for text in _texts(program, finding)), there


def test_fixtures_recorded_with_lines_are_committed() -> None:
    assert len(RECORDED) >= 5
