"""JUnit and GitLab's code quality: what CI systems read, of lint and of check."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import pytest
from command import traceq
from conftest import ROOT

if TYPE_CHECKING:
    from pathlib import Path

SICK = ROOT / "fixtures" / "copies"
CLEAN = ROOT / "fixtures" / "twins" / "copies_fixed"
_LEVELS = {"info", "minor", "major", "critical", "blocker"}


def junit(*words: str | Path) -> tuple[int, ET.Element]:
    answer = traceq(*words, "--format", "junit")
    return answer.status, ET.fromstring(answer.out)  # noqa: S314


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """A fixture with a budget that is not kept, in a folder with a hostile name."""
    folder = tmp_path / 'a "<&> b'
    shutil.copytree(SICK, folder)
    budgets = folder / "traceq.toml"
    budgets.write_text(budgets.read_text().replace("launches = 114", "launches = 100"))
    return folder


def test_a_finding_is_a_test_that_fails_at_its_line() -> None:
    status, result = junit("lint", SICK / "trace.json.gz")

    failed = [
        item for item in result.iter("testcase") if item.find("failure") is not None
    ]
    assert status == 1
    assert failed
    assert failed[0].attrib["name"].startswith("CPY003")
    assert failed[0].attrib["file"] == "dev_cases.py"
    assert int(failed[0].attrib["line"]) > 0


def test_a_finding_below_the_limit_is_a_test_that_passes() -> None:
    status, result = junit("lint", SICK / "trace.json.gz", "--fail-on", "error")

    assert (status, result.findall(".//failure")) == (0, [])
    assert result.findall(".//system-out")


def test_rules_that_were_skipped_are_skipped_tests() -> None:
    _, result = junit("lint", CLEAN / "trace.json.gz")

    (suite,) = result.findall("testsuite")
    assert int(suite.attrib["skipped"]) == len(result.findall(".//skipped")) > 0
    assert int(suite.attrib["tests"]) == len(result.findall(".//testcase"))


def test_a_fixture_is_a_test(broken: Path) -> None:
    status, result = junit("check", "--no-run", broken, CLEAN)

    names = {item.attrib["name"]: item for item in result.iter("testcase")}
    assert status == 1
    assert len(names) == 2
    (failure,) = names[str(broken)].findall("failure")
    assert "launches 114, the budget is 100" in (failure.text or "")
    assert names[str(CLEAN)].find("failure") is None


def test_a_finding_is_an_issue_of_gitlab_at_its_line() -> None:
    answer = traceq("lint", SICK / "trace.json.gz", "--format", "gitlab")

    issues = json.loads(answer.out)
    prints = {issue["fingerprint"] for issue in issues}
    assert len(prints) == len(issues) > 0
    assert issues[0]["check_name"] == "CPY003"
    assert issues[0]["location"]["path"] == "dev_cases.py"
    assert {issue["severity"] for issue in issues} <= _LEVELS
    assert all(issue["location"]["lines"]["begin"] > 0 for issue in issues)


def test_fingerprints_are_the_same_in_another_run() -> None:
    outs = [
        traceq("lint", SICK / "trace.json.gz", "--format", "gitlab").out
        for _ in range(2)
    ]

    assert outs[0] == outs[1]


def test_a_difference_is_an_issue_of_gitlab(broken: Path) -> None:
    answer = traceq("check", "--no-run", broken, "--format", "gitlab")

    (issue,) = json.loads(answer.out)
    assert "launches 114, the budget is 100" in issue["description"]
    assert issue["location"]["path"] == str(broken / "origin.toml")


def test_without_differences_there_is_an_empty_report() -> None:
    answer = traceq("check", "--no-run", CLEAN, "--format", "gitlab")

    assert (answer.status, json.loads(answer.out)) == (0, [])


def test_sarif_names_the_site() -> None:
    answer = traceq("lint", CLEAN / "trace.json.gz", "--format", "sarif")

    (run,) = json.loads(answer.out)["runs"]
    assert run["tool"]["driver"]["informationUri"].startswith("https://")


def test_the_markdown_table_has_whole_sentences() -> None:
    answer = traceq("lint", SICK / "trace.json.gz", "--format", "markdown")

    (row,) = [
        line for line in answer.lines if line.startswith("| **warning** | CPY003")
    ]
    assert "…" not in row.split(" | ")[1]
    assert "from pageable memory to the GPU once a step" in row.replace("\\", "")
