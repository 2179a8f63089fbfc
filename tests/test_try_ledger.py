"""The ledger of trials: predicted and measured savings by rule, and what helped."""

from __future__ import annotations

import json
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest
import trials
from conftest import ROOT
from goldens import assert_block

from traceq.common.import_folder import mount

if TYPE_CHECKING:
    from pathlib import Path

mount(ROOT / "benchmarks" / "ledger", "_ledger")
add = import_module("_ledger.add")

LEDGER = trials.ledger()
PROGRAMS = list(map(trials.program, LEDGER))


def remedy(name: str, outcome: str, ms: float, **facts: Any) -> dict[str, Any]:  # noqa: ANN401
    predicted = {"rule": "GEM001", "ms": 15.0, "bound": "gpu"}
    known = {"remedy": name, "class": "rounding", "outcome": outcome, "why": ""}
    return {"predicted": predicted, "n": 4, "ms": ms, **known, **facts}


def trial(*remedies: dict[str, Any], **facts: Any) -> dict[str, Any]:  # noqa: ANN401
    return {
        "program": "one",
        "tool": trials.TOOL,
        "minutes": 2.0,
        "state": "done",
        "asked": ["tf32"],
        "bound": "gpu",
        "as_it_is": {"ms": 100.0},
        "control": {"smallest_ms": 1.0},
        "remedies": list(remedies),
        **facts,
    }


PROVED = {"proof": {"applied": True}}


def test_the_error_is_a_share_of_the_step() -> None:
    one = trial(
        remedy("tf32", "faster", -14.0), remedy("tf32", "no difference", ms=0.0)
    )

    errors = [predicted.error for predicted in trials.predicted([one])]

    assert errors == [pytest.approx(0.01), pytest.approx(0.15)]


def test_what_was_not_concluded_does_not_count() -> None:
    assert not trials.predicted([trial(remedy("tf32", "inconclusive", -14.0))])


def test_a_range_is_fitted_on_half_of_the_programs() -> None:
    known = [
        {**trial(remedy("tf32", "faster", -15.0 - number)), "program": f"p{number:02}"}
        for number in range(12)
    ]

    text = trials.validated(trials.predicted(known), "gpu")

    assert "fitted on 6 predictions" in text
    assert "of 6 predictions of other programs" in text


def test_a_range_is_not_fitted_on_few_predictions() -> None:
    known = [trial(remedy("tf32", "faster", -15.0))]

    assert "too few" in trials.validated(trials.predicted(known), "gpu")


def test_the_speed_up_is_that_of_the_remedies_together() -> None:
    retained = {"remedies": ["tf32", "gc_freeze"], "share": -0.5}
    entries = [
        remedy("tf32", "faster", -40.0, **PROVED),
        remedy("gc_freeze", "faster", -20.0, **PROVED),
    ]

    assert trials.program(trial(*entries, kept=retained)).speed_up == 2


def test_a_remedy_that_changes_results_gives_no_speed_up() -> None:
    one = remedy("x", "faster", -50.0, **PROVED, **{"class": "changes_results"})

    assert trials.program(trial(one)).speed_up == 1


def test_a_speed_up_without_a_recording_is_not_proved() -> None:
    program = trials.program(trial(remedy("tf32", "faster", -50.0)))

    assert (program.speed_up, program.unproved) == (1, ("tf32",))


def test_a_program_with_an_inconclusive_remedy_is_not_one_without_help() -> None:
    program = trials.program(trial(remedy("tf32", "inconclusive", -1.0)))

    assert not program.without_help


def folder(place: Path, blocks: int) -> Path:
    """Write a trial of a program in which TF32 saves a fifth."""
    plain = {"run": 1, "base": [], "on": [], "discarded": ""}
    listed = [{**plain, "median_ms": 100.0, "mean_ms": 100.0, "p10_ms": 99.9}]
    for number in range(blocks):
        for name, ms in (("no_op", 100.0), ("tf32", 80.0)):
            for on in ([name], []):
                took = (ms if on else 100.0) + number % 2 / 10
                times = {"median_ms": took, "mean_ms": took, "p10_ms": took}
                listed.append({**plain, **times, "on": on, "host": "secret"})
    entry = remedy("tf32", "faster", -20.0, **PROVED)
    predicted = {"ms": 15.0, "low_ms": 1.0, "high_ms": 25.0, "bound": "gpu"}
    content = {
        **trial(entry),
        "blocks": listed,
        "command": ["/home/me/bin/python", "train.py"],
        "cwd": "/home/me",
        "predictions": {"GEM001": {**predicted, "remedies": {"tf32": predicted}}},
    }
    (place / "try.json").write_text(json.dumps(content))
    return place


def test_a_row_has_the_outcome_of_its_blocks(tmp_path: Path) -> None:
    result = add.row(folder(tmp_path, 4), "one")

    (entry,) = result["remedies"]
    assert (entry["outcome"], entry["ms"]) == ("faster", pytest.approx(-20.05, abs=0.1))
    assert result["bound"] == "gpu"


def test_a_row_names_no_folder_and_no_machine(tmp_path: Path) -> None:
    text = add.text(add.row(folder(tmp_path, 4), "one"))

    assert json.loads(text)["program"] == "one"
    assert "/" not in text
    assert "secret" not in text


def test_an_error_keeps_the_names_of_files_only() -> None:
    text = add.without_folders("OSError: '/home/me/data/x.bin' at C:\\me\\run.py: 1/2")

    assert text == "OSError: 'x.bin' at run.py: 1/2"


def test_a_trial_that_is_too_short_is_refused(tmp_path: Path) -> None:
    with pytest.raises(add.UnusableError, match="2 blocks, fewer than 3"):
        add.row(folder(tmp_path, 2), "one")


@pytest.mark.parametrize("entry", LEDGER, ids=lambda entry: entry["program"])
def test_a_committed_row_names_no_folder(entry: dict[str, Any]) -> None:
    whys = [item["why"] for item in entry["remedies"]]

    assert whys == list(map(add.without_folders, whys))
    assert not {"command", "cwd", "git"} & set(entry)


@pytest.mark.golden
def test_what_the_ledger_proves_is_stated_with_what_it_leaves_open() -> None:
    assert_block("ledger", trials.front(PROGRAMS))


@pytest.mark.golden
def test_the_errors_by_rule_are_those_of_the_ledger() -> None:
    assert_block("ledger-rules", trials.rules_table(LEDGER))


@pytest.mark.golden
def test_each_trial_is_shown_with_what_it_left_open() -> None:
    assert_block("ledger-trials", trials.trials_table(PROGRAMS))
