"""Two jobs side by side: the step, who waits for whom, what became of the findings."""

from __future__ import annotations

import json
import re
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import recordings
from command import traceq
from ranking import Works, write_job

from traceq.api import diff as api

pytestmark = pytest.mark.real

EVEN = [Works()] * 4
LATE = [Works(), Works(), Works(sleep=400), Works()]
SLOW = [Works(), Works(compute=1300), Works(), Works()]
COMPARED: dict[tuple[Path, Path], object] = {}
FORMATS = ("full", "concise", "json", "github", "markdown", "html")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three jobs: all ranks alike, rank 2 sleeps, and rank 1 is slow."""
    folder = tmp_path_factory.mktemp("jobs")
    for name, ranks in (("even", EVEN), ("late", LATE), ("slow", SLOW)):
        write_job(folder / name, ranks)
    return folder


@pytest.fixture
def jobs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Go to where the jobs are, which no test changes: two are compared once."""

    def once(two: tuple[Path, Path], *more: Any) -> object:  # noqa: ANN401 - passed on
        if two not in COMPARED:
            COMPARED[two] = compare(two, *more)
        return COMPARED[two]

    compare = api._jobs  # noqa: SLF001 - what takes longest
    monkeypatch.setattr(api, "_jobs", once)
    monkeypatch.chdir(folder)
    return folder


@cache
def compared(*arguments: str | Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(
        traceq("diff", *arguments, "--no-cache", "--format", "json").out
    )
    return document


@pytest.mark.slow
@pytest.mark.usefixtures("jobs")
class TestTwoJobs:
    """Jobs of four ranks whose steps differ by what was put into them."""

    def test_the_step_and_the_waiting_are_what_the_sleep_adds(self) -> None:
        result = compared("even", "late")
        assert result["verdict"] == "slower"
        change = {
            name: both["after"] - both["before"]
            for name, both in result["metrics"].items()
        }
        assert change["step_ns"] == 400_000
        # Three of four ranks wait.
        assert change["waiting_ns"] == pytest.approx(300_000, rel=0.01)
        assert change["transfer_ns"] == pytest.approx(0, abs=1000)
        assert result["metrics"]["slowdown"]["before"] == 1
        assert result["metrics"]["slowdown"]["after"] == pytest.approx(1.3, rel=0.02)

    def test_waiting_is_by_kind_of_collective(self) -> None:
        (kind,) = compared("even", "late")["collectives"]
        assert kind["kind"] == "all_reduce"
        assert kind["before"]["waiting_ns"] == 0
        assert kind["after"]["waiting_ns"] == pytest.approx(300_000, rel=0.01)

    def test_a_straggler_is_new_or_gone_with_its_cause(self) -> None:
        (new,) = compared("even", "late")["stragglers"]
        assert (new["state"], new["ranks"], new["before"]) == ("new", [2], None)
        assert (new["after"]["cause"], new["after"]["region"]) == ("host", "log")
        (removed,) = compared("late", "even")["stragglers"]
        assert (removed["state"], removed["ranks"], removed["after"]) == (
            "gone",
            [2],
            None,
        )

    def test_another_straggler_takes_the_place_of_one(self) -> None:
        result = compared("late", "slow")["stragglers"]
        assert [(entry["state"], entry["ranks"]) for entry in result] == [
            ("new", [1]),
            ("gone", [2]),
        ]

    def test_findings_are_new_gone_and_as_before(self) -> None:
        result = compared("late", "slow")
        states = {
            (finding["state"], (finding["after"] or finding["before"])["code"])
            for finding in result["findings"]
        }
        assert states == {("new", "RNK002"), ("gone", "RNK001")}
        assert compared("late", "late")["findings"] == []

    def test_a_job_does_not_differ_from_itself(self) -> None:
        result = compared("late", "late")
        assert result["verdict"] == "no change"
        assert [straggler["state"] for straggler in result["stragglers"]] == ["same"]
        assert result["headline"].startswith(
            "1.71 ms a step, before and after: no change"
        )

    def test_limits_of_growth_fail_the_run(self) -> None:
        limits = "slower:5%,waiting:10%,new-findings"
        answer = traceq("diff", "even", "late", "--fail-on", limits)
        assert answer.status == 1
        assert [line.split(":")[0] for line in answer.lines[:3]] == [
            "FAILED slower",
            "FAILED waiting",
            "FAILED new-findings",
        ]
        assert traceq("diff", "late", "even", "--fail-on", limits).status == 0

    def test_what_jobs_have_not_cannot_be_limited(self) -> None:
        answer = traceq("diff", "even", "late", "--fail-on", "launches:+1")
        assert answer.status == 2
        assert "not both recordings have launches" in answer.err

    @pytest.mark.parametrize("form", FORMATS)
    def test_every_format_names_the_rank_and_the_change(self, form: str) -> None:
        answer = traceq("diff", "even", "late", "--format", form)
        assert answer.status == 0
        assert "400 µs slower as recorded" in answer.out
        assert "rank 2 holds the others up" in answer.out

    def test_what_is_not_there_for_jobs_is_said_in_one_line(self) -> None:
        answer = traceq("diff", "even", "late", "--step-ms", "1,2")
        assert answer.status == 2
        assert answer.out == ""
        assert "--step-ms is of one trace" in answer.err
        assert answer.err.count("\n") == 1

    def test_a_report_of_a_folder_of_ranks_shows_the_job(self) -> None:
        answer = traceq("report", "late", "-o", "job.html")
        assert answer.status == 0, answer.err
        page = Path("job.html").read_text(encoding="utf-8")
        parts = re.findall(r'<section id="([\w-]+)"', page)
        assert parts == ["job", "ranks", "what-if", "findings", "figures"]
        assert "Rank 2 of 4 holds the others up" in page

    def test_a_job_is_not_compared_with_a_trace(self, jobs: Path) -> None:
        for paths in (("even", "late/rank0.json"), ("late/rank0.json", "even")):
            answer = traceq("diff", *paths)
            assert answer.status == 2
            assert "even has the traces of several ranks" in answer.err
        write_job(jobs / "alone", [Works()])
        assert traceq("diff", "alone", "late/rank0.json").status == 0

    def test_ranks_that_are_missing_are_told(self, jobs: Path) -> None:
        shutil.copytree("late", "part")
        (jobs / "part" / "rank3.json").unlink()
        result = compared("late", "part")
        assert any("4 ranks before, 3 after" in text for text in result["caveats"])
        assert any(text.startswith("after: 1 of 4 ranks") for text in result["caveats"])

    def test_traces_that_have_nothing_in_common_are_refused(self, jobs: Path) -> None:
        folder = jobs / "strangers"
        folder.mkdir()
        for name in ("copies", "recompile"):
            shutil.copy(recordings.FIXTURE_TRACES[name], folder / f"{name}.json.gz")
        answer = traceq("diff", "strangers", "even")
        assert answer.status == 2
        assert "without a collective that two of them recorded" in answer.err
