"""The evaluation of agents, with scripted ones: no test calls a model."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from agents import harness
from agents.scripted import apply_edits, certain_edits
from conftest import ROOT

if TYPE_CHECKING:
    from pathlib import Path

SICK = "optimizer_loop_sync"
SCRIPTED = ROOT / "benchmarks" / "agents" / "scripted.py"
PROMPT = """
[1] LCH004 unfused-optimizer id=1
edit: certain train.py:2
- a = f(1)
+ a = f(1, fused=True)
verify: traceq diff a b

edit: example, not this program's code
- x
+ y
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Return the folder of a program as `record` leaves it."""
    folder = tmp_path / SICK
    (folder / "sick").mkdir(parents=True)
    for name in (SICK, "loops"):
        shutil.copy(harness.FIXTURES / f"{name}.py", folder / "sick")
    shutil.copytree(ROOT / "fixtures" / "lines" / SICK, folder / "run")
    return folder


def run(kind: str, folder: Path, prompt: str) -> None:
    words = [sys.executable, str(SCRIPTED), kind]
    subprocess.run(words, cwd=folder, input=prompt, text=True, check=True)


def test_only_certain_edits_are_read() -> None:
    assert certain_edits(PROMPT) == [
        ("train.py", 2, ["a = f(1)"], ["a = f(1, fused=True)"])
    ]


def test_an_edit_of_other_code_is_not_applied(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("\nb = 1\n", encoding="utf-8")

    assert apply_edits(tmp_path, PROMPT) == 0


@pytest.mark.slow
def test_the_literal_agent_makes_the_repair_of_the_twin(place: Path) -> None:
    program = next(row for row in harness.PROGRAMS if row.name == SICK)
    prompt = harness.prompt_of(program, place, "agent")
    run("literal", place / "sick", prompt)

    text = (place / "sick" / f"{SICK}.py").read_text(encoding="utf-8")
    assert "lr=1e-4, fused=True)" in text
    assert "foreach=False" not in text


def test_without_findings_there_is_nothing_to_apply(place: Path) -> None:
    program = next(row for row in harness.PROGRAMS if row.name == SICK)
    before = (place / "sick" / f"{SICK}.py").read_bytes()
    run("literal", place / "sick", harness.prompt_of(program, place, "nothing"))

    assert (place / "sick" / f"{SICK}.py").read_bytes() == before


def test_a_broken_program_has_no_time(place: Path) -> None:
    run("breaker", place / "sick", "")

    assert harness.step_ms(place / "sick", f"{SICK}.py") is None


def test_the_share_of_the_saving_is_judged(tmp_path: Path) -> None:
    told = {"characters": 9, "status": 0}
    (tmp_path / "literal-agent.json").write_text(json.dumps(told), encoding="utf-8")
    result = harness.judged(
        {
            "sick": [10.0, 10.0, 11.0],
            "twin": [5.0, 5.0, 5.0],
            "literal-agent": [6.0, 6.0, 6.0],
            "breaker-agent": [None, 3.0, 3.0],
            "other-agent": [12.0, 12.0, 12.0],
        },
        tmp_path,
    )

    assert result["literal-agent"] == {"ms": 6.0, "reached": 0.8, "wrong": False} | told
    assert (result["breaker-agent"]["ms"], result["breaker-agent"]["wrong"]) == (
        None,
        True,
    )
    assert result["other-agent"]["wrong"]


def test_every_program_is_there() -> None:
    for program in harness.PROGRAMS:
        assert (program.folder / f"{program.name}.py").is_file()
    assert sum(row.mechanical for row in harness.PROGRAMS) == 5
