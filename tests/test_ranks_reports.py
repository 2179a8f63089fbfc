"""The report of a job as a page and as Markdown: complete, escaped, self-contained."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser
from xml.etree import ElementTree as ET

import polars as pl
import pytest
from ranking import NAMES, real_job

from traceq.ranks.analysis import Analysis, analyse
from traceq.report.ranks import html, markdown
from traceq.report.ranks.content import content, verdict


@cache
def analysed(name: str) -> Analysis:
    return analyse(real_job(name))


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
        assert not any(key in ("src", "href", "onclick") for key, _ in attrs)

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
    page = html.render(analysed(name))
    tags = _Tags()
    tags.feed(page)
    assert tags.open == []
    assert not {"script", "link", "img", "iframe"} & set(tags.seen)
    assert "default-src 'none'" in page
    assert "http" not in page.replace("http-equiv", "")
    assert len(page) < 2_000_000


@pytest.mark.parametrize("name", NAMES)
def test_a_page_has_the_words_of_the_terminal(name: str) -> None:
    words = content(analysed(name))
    text = re.sub(r"<[^>]*>", "\n", html.render(analysed(name)))
    assert words.verdict.replace('"', "&quot;") in text
    for _, fact in words.screen.facts:
        assert fact.replace("'", "&#x27;") in text


def test_the_map_has_a_row_for_each_rank_and_paints_the_late_one() -> None:
    page = html.render(analysed("torchrec_a2a"))
    drawing = ET.fromstring(re.search("<svg.*?</svg>", page, re.DOTALL)[0])  # type: ignore[index] # noqa: S314 - our own
    rows = drawing.findall("g")
    numbers = [row.findtext("text") for row in rows]
    assert numbers == ["0", "1", "2", "3"]
    late = [
        number
        for number, row in zip(numbers, rows, strict=True)
        if any(path.get("class") == "late" for path in row.findall("path"))
    ]
    waiting = [
        number
        for number, row in zip(numbers, rows, strict=True)
        if any(path.get("class") == "wait" for path in row.findall("path"))
    ]
    assert late == ["2"]
    assert waiting == ["0", "1", "3"]


def test_names_of_a_trace_stay_text() -> None:
    found = analysed("torchrec_a2a")
    evil = "<script>alert(1)</script>|`x`"
    straggler = found.stragglers[0]
    cause = replace(straggler.cause, region=evil)
    hostile = replace(
        found,
        stragglers=(replace(straggler, cause=cause),),
        job=replace(
            found.job,
            said=(evil,),
            ranks=found.job.ranks.with_columns(device=pl.lit(evil)),
        ),
    )
    page, text = html.render(hostile), markdown.render(hostile)
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert "<script" not in text


@pytest.mark.parametrize("name", NAMES)
def test_markdown_has_verdict_tables_and_map(name: str) -> None:
    text = markdown.render(analysed(name))
    assert text.startswith("**")
    assert verdict(analysed(name)).split(":")[0] in text
    assert "| rank |" in text
    assert "```text" in text
