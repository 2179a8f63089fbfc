"""The report of a job as a page and as Markdown: complete, escaped, self-contained."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import cache
from html import unescape
from html.parser import HTMLParser
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import polars as pl
import pytest
import recordings
from command import traceq
from linting import bundled_rules, outcome
from ranking import NAMES, real_job

from traceq.linter.config import Config
from traceq.model.recording import Recording
from traceq.ranks.analysis import Analysis, analyse
from traceq.ranks.findings import lint_job
from traceq.report.page.views import ranks_page
from traceq.report.ranks import markdown
from traceq.report.ranks.content import content, verdict
from traceq.testing import load_drawn

if TYPE_CHECKING:
    from traceq.model.lint_report import Report


@cache
def analysed(name: str) -> Analysis:
    return analyse(real_job(name))


@cache
def report_of(name: str) -> Report:
    return lint_job(name, analysed(name), bundled_rules(), Config())


class _Tags(HTMLParser):
    """Which tags are open at the end, and which there were."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        if tag not in ("meta", "br"):
            self.open.append(tag)
        assert not any(key in ("src", "style", "onclick") for key, _ in attrs)
        assert all(str(value)[0] == "#" for key, value in attrs if key == "href")

    def handle_startendtag(
        self,
        tag: str,
        attrs: list[tuple[str, str | None]],  # noqa: ARG002 - as HTMLParser has it
    ) -> None:
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize("name", NAMES)
def test_a_page_is_one_file_that_loads_nothing(name: str) -> None:
    page = ranks_page(analysed(name), report_of(name))
    tags = _Tags()
    tags.feed(page)
    assert tags.open == []
    assert not {"link", "img", "iframe"} & set(tags.seen)
    assert "default-src 'none'" in unescape(page)
    # Scripts name the namespace of SVG, which is no address.
    shown = re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)
    assert "http" not in shown.replace("http-equiv", "")
    assert len(page) < 2_000_000


@pytest.mark.parametrize("name", NAMES)
def test_a_page_has_the_words_of_the_terminal(name: str) -> None:
    words = content(analysed(name))
    text = re.sub(r"<[^>]*>", "\n", ranks_page(analysed(name), report_of(name)))
    shown = unescape(text)
    assert words.verdict in shown
    for _, fact in words.screen.facts:
        assert fact in shown


def test_the_map_has_a_row_for_each_rank_and_paints_the_late_one() -> None:
    page = ranks_page(analysed("torchrec_a2a"), report_of("torchrec_a2a"))
    match = re.search(r'<svg viewBox="0 0 1100.*?</svg>', page, re.DOTALL)
    assert match
    drawing = ET.fromstring(match[0])  # noqa: S314 - our own

    def ranks(name: str) -> list[str | None]:
        marks = [item for item in drawing if item.get("class") == name]
        return list(dict.fromkeys(mark.get("data-rank") for mark in marks))

    assert sorted(map(str, ranks("rank-own"))) == ["0", "1", "2", "3"]
    assert ranks("rank-late") == ["2"]
    assert sorted(map(str, ranks("rank-wait"))) == ["0", "1", "3"]


def test_names_of_a_trace_stay_text() -> None:
    analysis = analysed("torchrec_a2a")
    evil = "<script>alert(1)</script>|`x`"
    straggler = analysis.stragglers[0]
    cause = replace(straggler.cause, region=evil)
    hostile = replace(
        analysis,
        stragglers=(replace(straggler, cause=cause),),
        job=replace(
            analysis.job,
            notices=(evil,),
            ranks=analysis.job.ranks.with_columns(device=pl.lit(evil)),
        ),
    )
    report = lint_job("job", hostile, bundled_rules(), Config())
    page, text = ranks_page(hostile, report), markdown.render(hostile, report)
    assert "<script>alert" not in page
    assert "&lt;script&gt;" in page
    assert "<script" not in text


@pytest.mark.parametrize("name", NAMES)
def test_markdown_has_verdict_tables_and_map(name: str) -> None:
    text = markdown.render(analysed(name), report_of(name))
    assert text.startswith("**")
    assert verdict(analysed(name)).split(":")[0] in text
    assert "| rank |" in text
    assert "```text" in text


def test_the_sleeping_rank_is_a_finding_with_place_and_saving() -> None:
    findings = report_of("torchrec_a2a").outcomes[0].findings
    worst = findings[0]
    assert (worst.code, worst.subject) == ("RNK001", "host")
    assert worst.message.startswith("rank 2 holds the others up")
    assert worst.saves_ns > 10_000_000
    assert ("region", "# running sparse arch") in [
        (evidence.label, evidence.name) for evidence in worst.evidence
    ]


@pytest.mark.parametrize("name", NAMES)
def test_findings_of_a_job_are_like_any_other(name: str) -> None:
    (outcome,) = report_of(name).outcomes
    assert not outcome.crashed
    assert not outcome.skipped
    for finding in outcome.findings:
        assert 0 <= finding.saves_ns <= outcome.step_ns
        assert finding.advice
        assert all(len(entry.label) <= 8 for entry in finding.evidence)


@pytest.mark.real
@pytest.mark.slow
def test_a_job_with_a_straggler_exits_1_unless_told_otherwise() -> None:
    paths = recordings.job("torchrec_a2a")
    assert traceq("ranks", *paths).status == 1
    assert traceq("ranks", *paths, "--fail-on", "error").status == 0
    answer = traceq("ranks", *paths, "--format", "json")
    data = json.loads(answer.out)
    assert data["failing"] >= 1
    assert data["findings"][0]["code"] == "RNK001"


def test_a_rank_alone_is_told_where_its_job_is_looked_at() -> None:
    trace = load_drawn("host   [ProfilerStep#1 ]", job={"rank": 1, "world_size": 8})
    skipped = outcome(Recording("drawn", trace)).skipped
    assert "traceq ranks" in next(
        item.reason for item in skipped if item.code == "RNK001"
    )
