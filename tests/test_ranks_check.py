"""Jobs held to what is expected of them, and new ones to those that are known."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest
from command import traceq
from ranking import Works, write_job
from test_schemas import errors

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("jobs")]


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two jobs: all ranks alike, and one in which rank 2 sleeps."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CI", raising=False)  # in which check does not update
    write_job(tmp_path / "even", [Works()] * 4)
    write_job(tmp_path / "late", [Works(), Works(), Works(sleep=400), Works()])
    return tmp_path


def checked(*arguments: str | Path) -> tuple[int, list[dict[str, Any]]]:
    answer = traceq("check", *arguments, "--no-cache", "--format", "json")
    document = json.loads(answer.out)
    assert errors("check", document) == []
    return answer.status, document["fixtures"][0]["differences"]


def kinds(differences: list[dict[str, Any]], *, fails: bool) -> list[str]:
    return [
        difference["kind"] for difference in differences if difference["fails"] == fails
    ]


def test_a_job_is_no_worse_than_itself() -> None:
    assert checked("late", "--against", "late") == (0, [])


def test_a_straggler_a_longer_step_and_a_slowdown_fail() -> None:
    status, result = checked("even", "--against", "late")
    assert status == 1
    assert kinds(result, fails=True) == ["new", "budget", "budget"]
    assert result[0]["finding"]["code"] == "RNK001"
    assert result[1]["text"] == "step-ms 1.71, the budget is 1.31 ± 10%"
    assert result[2]["text"].startswith("slowdown 1.3")


@pytest.mark.slow
def test_what_is_better_is_reported_and_does_not_fail() -> None:
    status, result = checked("late", "--against", "even")
    assert status == 0
    assert kinds(result, fails=True) == []
    assert kinds(result, fails=False) == ["gone", "budget", "budget"]


def test_findings_below_the_severity_that_fails_do_not_fail() -> None:
    _, result = checked("even", "--against", "late", "--fail-on", "error")
    assert kinds(result, fails=True) == ["budget", "budget"]
    assert kinds(result, fails=False) == ["new"]


@pytest.mark.slow
def test_budgets_beside_the_traces_take_the_place_of_what_they_show(
    jobs: Path,
) -> None:
    (jobs / "even" / "traceq.toml").write_text("[budgets]\nstep-ms = 2.0\n")
    _, result = checked("even", "--against", "late")
    assert [entry["text"] for entry in result if entry["kind"] == "budget"] == [
        "step-ms 1.71, the budget is 2"
    ]
    assert kinds(result, fails=True) == ["new"]


@pytest.mark.slow
def test_a_job_can_be_a_fixture(jobs: Path) -> None:
    (jobs / "late" / "origin.toml").write_text('program = "Rank 2 sleeps."\n')
    status, result = checked("late")
    assert (status, kinds(result, fails=True)) == (1, ["missing", "missing"])
    updated = traceq("check", "late", "--update")
    assert "findings.json, traceq.toml written" in updated.out
    assert checked("late") == (0, [])
    # A committed job does not change: less than the budget is as wrong as more.
    write_job(jobs / "late", [Works()] * 4)
    status, result = checked("late")
    assert (status, kinds(result, fails=True)) == (1, ["gone", "budget", "budget"])
    assert traceq("check", ".").status == 1


@pytest.mark.slow
def test_other_ranks_are_not_held_to_the_times(jobs: Path) -> None:
    write_job(jobs / "more", [Works(compute=4000)] * 8)
    status, result = checked("even", "--against", "more")
    assert status == 0
    assert {entry["text"] for entry in result if entry["kind"] == "budget"} == {
        "step-ms is not compared: 8 ranks, not 4",
        "slowdown is not compared: 8 ranks, not 4",
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("even", "--against", "even/rank0.json"), "give two of a kind"),
        (("even", "--against", "late", "--step-ms", "3"), "leave it out"),
        (("even", "--run"), "which --run does not start"),
        (("even", "--against", "nowhere"), "nowhere"),
    ],
)
def test_what_cannot_be_compared_exits_2(
    arguments: tuple[str, ...], message: str
) -> None:
    answer = traceq("check", *arguments)
    assert answer.status == 2
    assert message in answer.out + answer.err


def test_traces_without_a_common_collective_exit_2(jobs: Path) -> None:
    for rank in (0, 1):
        write_job(jobs / f"alone{rank}", [Works()])
    strangers = jobs / "strangers"
    strangers.mkdir()
    for rank in (0, 1):
        shutil.move(jobs / f"alone{rank}" / "rank0.json", strangers / f"{rank}.json")
    answer = traceq("check", "strangers", "--against", "even")
    assert answer.status == 2


@pytest.mark.slow
def test_lint_and_ranks_of_a_folder_name_each_other(jobs: Path) -> None:
    assert (
        "run traceq ranks on the traces of all of them"
        in traceq("lint", jobs / "late").out
    )
    assert traceq("ranks", "late").status == 1
    assert traceq("ranks", "late", "--fail-on", "error").status == 0
    assert traceq("ranks", "even", "--fail-on", "info").status == 1
