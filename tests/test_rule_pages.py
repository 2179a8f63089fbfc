"""A rule's page: a finding as lint prints it, drawings, and links."""

from __future__ import annotations

import inspect
import re
import shlex
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from command import traceq
from conftest import ROOT
from goldens import updating
from linting import bundled_rules

from traceq.api.lint import lint
from traceq.common import toml
from traceq.errors import TraceqError
from traceq.linter import Need
from traceq.linter.config import Config
from traceq.linter.engine import lint as run_rules
from traceq.linter.rule import Bad
from traceq.ranks.findings import lint_job
from traceq.report.base.site import SITE
from traceq.report.base.torch_docs import TORCH_PAGES
from traceq.report.lint.full import block
from traceq.report.rule_pages import page
from traceq.testing.examples import drawn, drawn_job

if TYPE_CHECKING:
    from traceq.linter import Rule
    from traceq.model.lint_report import Report

RULES = bundled_rules()
SEEN = {
    code: (rule.seen.of, textwrap.dedent(rule.seen.text).strip("\n"))
    for code, rule in RULES.items()
    if rule.seen is not None
}
RECORDINGS = sorted({of for of, _ in SEEN.values() if of})
# No page of torch is about what these say.
WITHOUT_LINKS = {"SRV005"}
# In a rule's file it is indented by 8, and quotes in it are escaped.
_WIDTH = 76


@pytest.fixture(autouse=True)
def _in_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def printed(report: Report, code: str) -> str:
    """Return what lint prints of the worst finding of a rule, minor or not.

    The page has the code before and after already.
    """
    outcome, finding = next(
        (outcome, finding)
        for outcome in report.outcomes
        for finding in outcome.findings
        if finding.code == code
    )
    lines = block(replace(finding, example=""), outcome, _WIDTH, color=False)
    return "\n".join(line.rstrip() for line in lines)


def assert_seen(code: str, result: str) -> None:
    """Compare a finding with the one of the page, or write it into the rule's file."""
    if updating():
        file = Path(inspect.getfile(RULES[code]))
        source = file.read_text(encoding="utf-8")
        written = result.replace("\\", r"\\").replace('"""', r"\"\"\"")
        text = textwrap.indent(written, " " * 8)
        # As a new rule has it.
        empty = '    seen = Seen(\n        text="""\n        """,\n    )\n'
        source = source.replace('    seen = Seen(text="")\n', empty)
        (match,) = re.finditer(
            r'^    seen = Seen\(.*?text="""\n(.*?)^        """,\n    \)$',
            source,
            re.DOTALL | re.MULTILINE,
        )
        begin, end = match.span(1)
        file.write_text(f"{source[:begin]}{text}\n{source[end:]}", encoding="utf-8")
    else:
        assert SEEN[code][1] == result


@pytest.mark.slow
@pytest.mark.golden
@pytest.mark.parametrize("recording", RECORDINGS)
def test_a_finding_of_a_recording_is_what_lint_prints(recording: str) -> None:
    path, *options = shlex.split(recording)
    captures = [word for word in options if word != "--capture"]
    report = lint(path, captures=captures).report

    for code, (of, _) in SEEN.items():
        if of == recording:
            assert_seen(code, printed(report, code))


@pytest.mark.real
@pytest.mark.golden
@pytest.mark.parametrize("code", [code for code, (of, _) in SEEN.items() if not of])
def test_a_finding_of_a_drawing_is_what_lint_prints(code: str) -> None:
    rule = RULES[code]
    example = next(bad for bad in rule.examples if isinstance(bad, Bad))
    alone = {code: rule}
    everything = Config(select=("ALL",), min_cost_us=0)
    job = drawn_job(example)
    report = (
        lint_job("drawn", job, alone, everything)
        if job
        else run_rules([drawn(example)], alone, everything)
    )

    assert_seen(code, printed(report, code))


@pytest.mark.parametrize("code", RULES)
def test_a_page_has_all_its_parts(code: str) -> None:
    text = page(RULES[code])
    headings = re.findall(r"^## (.*)$", text, re.MULTILINE)

    file = inspect.getfile(RULES[code])
    assert "A finding" in headings, (
        f'add seen = Seen(text="") to the class in {file}, and run make goldens'
    )
    # A rule on trial may get its links later.
    unlinked = code in WITHOUT_LINKS or RULES[code].preview
    assert headings[-2:] == ["Examples", "In torch's documentation"] or (
        unlinked and headings[-1] == "Examples"
    ), (
        f"add examples and see = (...) to the class in {file}: names of torch's"
        " documentation that have an address in traceq/report/base/torch_docs.py"
    )
    assert "\nSince 0." in text, (
        f'add since = "VERSION" to the class in {file}: the first version that has it'
    )
    # Every example shows something.
    assert not re.search(r"^### (Bad|Good)\s+(>|###|##|\Z)", text, re.MULTILINE)


def test_every_name_that_a_rule_links_has_a_page_and_every_page_is_linked() -> None:
    named = {name for rule in RULES.values() for name in rule.see}

    assert named == set(TORCH_PAGES)
    assert len(set(TORCH_PAGES.values())) == len(TORCH_PAGES)


_RESOLVE = """
import pkgutil, sys
for name in sys.argv[1:]:
    pkgutil.resolve_name(name)
"""


@pytest.mark.slow
def test_every_name_that_is_linked_is_one_of_torch() -> None:
    pytest.importorskip("torch")
    names = [name for name in TORCH_PAGES if name.startswith("torch.")]

    # In a process of its own: what it imports replaces distutils, and fails where
    # another test has imported that.
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _RESOLVE, *names],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "code", [code for code, rule in RULES.items() if Need.JOB in rule.needs]
)
def test_the_page_of_a_rule_on_jobs_draws_each_rank(code: str) -> None:
    ranks = next(example.ranks for example in RULES[code].examples)

    text = page(RULES[code])

    assert all(f"Rank {number}:\n\n    " in text for number in range(len(ranks)))


def test_the_command_prints_the_page() -> None:
    assert traceq("rule", "ATT001").out == page(RULES["ATT001"])


def test_a_name_that_has_no_page_is_named_without_a_link() -> None:
    rule: type[Rule] = RULES["ATT001"]
    other = type("Other", (rule,), {"see": ("torch.compile", "apex.of_a_pack")})

    assert page(other).endswith(
        "\n\n- [torch.compile](https://docs.pytorch.org/docs/stable/generated/"
        "torch.compile.html)\n- apex.of_a_pack\n"
    )


def test_the_site_is_named_alike_in_the_two_places() -> None:
    project = toml.read(ROOT / "pyproject.toml", TraceqError)

    assert project["project"]["urls"]["Documentation"] == SITE


@pytest.mark.parametrize("code", sorted(bundled_rules()))
def test_an_example_changes_each_line_that_it_replaces(code: str) -> None:
    examples = re.findall(r"```diff\n(.*?)```", bundled_rules()[code].page(), re.DOTALL)
    for example in examples:
        lines = textwrap.dedent(example).splitlines()
        before, after = (
            [line[1:] for line in lines if line.startswith(sign)] for sign in "-+"
        )
        assert before or after
        # A line that is only moved, or indented, is elsewhere.
        assert all(old != new for old, new in zip(before, after, strict=False))
