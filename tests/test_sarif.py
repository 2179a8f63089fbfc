"""SARIF of every fixture is what code scanning takes.

GitHub's rules are those of Microsoft's Sarif.Multitool (``validate --rule-kind
"Sarif;Ghas"``). It comes from npm and runs on x86-64 only, so its rules that are errors
are held here too, and the tool itself where it is installed.
"""

from __future__ import annotations

import json
import platform
import re
import shutil
import subprocess
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
from conftest import ROOT
from linting import bundled_rules
from msgspec import structs
from recordings import by_trace

from traceq.check.fixture import Fixture, find_fixtures, read_fixture
from traceq.linter.config import Config
from traceq.linter.engine import lint
from traceq.linter.pack import load_rules
from traceq.linter.scaffold import new_rule
from traceq.model.finding import Finding, Place
from traceq.model.recording import Recording
from traceq.report.base.site import SITE
from traceq.report.lint import sarif
from traceq.testing import load_drawn

if TYPE_CHECKING:
    from pathlib import Path

    from traceq.linter.pack import Rules
    from traceq.model.lint_report import Report

RULES = bundled_rules()
TOOL = shutil.which("sarif-multitool")
FIXTURES = find_fixtures([ROOT / "fixtures"])
BY_NAME = {path.relative_to(ROOT / "fixtures").as_posix(): path for path in FIXTURES}
MOST = {"rules": 25_000, "results": 25_000, "tags": 20, "locations": 1_000}


def log_of(folder: Path) -> dict[str, Any]:
    fixture: Fixture = read_fixture(folder)
    report = lint([fixture.recording()], RULES, Config(), brief=True)
    document: dict[str, Any] = json.loads(sarif.render(report, RULES, ROOT))
    return document


@pytest.mark.parametrize("folder", by_trace(BY_NAME))
def test_every_result_can_be_shown_at_a_line_of_the_repository(folder: Path) -> None:
    (run,) = log_of(folder)["runs"]

    rules = run["tool"]["driver"]["rules"]
    for result in run["results"]:
        assert result["message"]["text"].strip()
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        (location,) = result["locations"]
        physical = location["physicalLocation"]
        artifact, region = physical["artifactLocation"], physical["region"]
        # GH1001, GH1005, GH1006, SARIF1002, SARIF1004: relative to a declared base.
        uri = urlsplit(artifact["uri"])
        assert uri.path
        assert (uri.scheme, uri.netloc, uri.query, uri.fragment) == ("", "", "", "")
        assert not uri.path.startswith("/")
        assert ".." not in uri.path.split("/")
        assert artifact["uriBaseId"] in run["originalUriBaseIds"]
        # GH1003, SARIF1007.
        assert 1 <= region["startLine"] <= region.get("endLine", region["startLine"])
        hashed = result["partialFingerprints"]["primaryLocationLineHash"]
        assert re.fullmatch(r"[0-9a-f]{16}:1", hashed)
        names = [
            logicalLocation["fullyQualifiedName"]
            for logicalLocation in location.get("logicalLocations", [])
        ]
        assert len(names) == len({*names})


def report_of_all(rules: Rules) -> Report:
    """Return a report with a finding of every rule."""
    findings = tuple(
        Finding(
            code=code,
            name=rule.name(),
            severity=rule.severity,
            message="wrong",
            advice="",
            place=Place("train.py", 3),
            subject="",
            count=1,
        )
        for code, rule in rules.items()
    )
    drawn = Recording("trace.json", load_drawn("host [aten::mm]"))
    report = lint([drawn], RULES, Config(select=("LOG001",)))
    (outcome,) = report.outcomes
    return structs.replace(
        report, outcomes=(structs.replace(outcome, findings=findings),)
    )


def test_only_rules_with_findings_are_described() -> None:
    (run,) = json.loads(sarif.render(lint([], RULES, Config()), RULES))["runs"]

    assert run["tool"]["driver"]["rules"] == []


def test_every_rule_has_the_texts_that_code_scanning_shows() -> None:
    (run,) = json.loads(sarif.render(report_of_all(RULES), RULES))["runs"]

    driver = run["tool"]["driver"]
    assert [rule["id"] for rule in driver["rules"]] == [*RULES]
    assert driver["name"]
    assert re.fullmatch(r"\d+\.\d+\.\d+\S*", driver["semanticVersion"])
    for rule in driver["rules"]:
        # GH2012: short and full description, and help.
        for key in ("shortDescription", "fullDescription"):
            assert 0 < len(rule[key]["text"].strip()) <= 1000
        assert rule["help"]["text"].strip()
        assert rule["helpUri"] == f"{SITE}/rules/{rule['id']}.html"
        assert rule["help"]["markdown"].startswith(f"# {rule['id']} ")
        assert re.fullmatch(r"[A-Z][A-Za-z0-9]+", rule["name"])
        assert rule["properties"]["precision"] in ("very-high", "high", "medium", "low")
        assert 1 <= len(rule["properties"]["tags"]) <= MOST["tags"]
        severity = rule["properties"]["problem.severity"]
        assert severity in ("error", "warning", "recommendation")
    assert len(driver["rules"]) <= MOST["rules"]
    assert len({rule["id"] for rule in driver["rules"]}) == len(driver["rules"])


def test_a_rule_of_another_pack_has_no_page_on_our_site(tmp_path: Path) -> None:
    (tmp_path / "theirs.py").write_text(new_rule("their-own", "USR001"))
    rules = load_rules([tmp_path])

    (run,) = json.loads(sarif.render(report_of_all(rules), rules))["runs"]

    linked = {
        rule["id"] for rule in run["tool"]["driver"]["rules"] if "helpUri" in rule
    }
    assert linked == {*RULES}
    assert {*rules} - linked == {"USR001"}


@pytest.mark.real
@pytest.mark.skipif(
    TOOL is None or platform.machine() != "x86_64",
    reason="needs `npm install --global @microsoft/sarif-multitool`, on x86-64",
)
def test_the_tool_of_microsoft_finds_no_error(tmp_path: Path) -> None:
    for number, folder in enumerate(FIXTURES):
        (tmp_path / f"{number}.sarif").write_text(json.dumps(log_of(folder)))

    process = subprocess.run(
        [str(TOOL), "validate", "--rule-kind", "Sarif;Ghas", "*.sarif"],
        cwd=tmp_path,
        check=False,
        capture_output=True,
        text=True,
        timeout=600,
    )

    assert not re.findall(r"error \w+.*", process.stdout)
