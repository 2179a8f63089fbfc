"""The page of `traceq report`, as files and in a real browser."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any

import pytest
from browser import browser
from command import traceq
from recordings import CAPTURES, FIXTURE_TRACES

from traceq.report.page.page import render
from traceq.report.page.section import Section

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from browser import Page

TRACE = FIXTURE_TRACES["copies"]
OTHER = FIXTURE_TRACES["attn_mask_fmha"]
HOSTILE = "<script>alert(1)</script>\"'>\u202egnp.exe</style>"


class _Tags(HTMLParser):
    """The tags and attributes of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pages")


@pytest.fixture(scope="module")
def report(folder: Path) -> Path:
    """Return the report of a trace with findings."""
    file = folder / "report.html"
    answer = traceq("report", TRACE, "-o", file)
    assert answer.status == 0, answer.err
    return file


@pytest.fixture(scope="module")
def page(folder: Path) -> Iterator[Page]:
    """Return the one browser of these tests."""
    with browser(folder / "profile") as opened:
        yield opened


def section(**context: object) -> Section:
    return Section("verdict", HOSTILE, "verdict.html", VERDICT | context)


VERDICT: dict[str, Any] = {
    "sentence": "",
    "verdict": "",
    "figures": [],
    "recorded": "",
    "notes": [],
    "skipped": [],
    "skipped_count": "",
}


def test_texts_of_strangers_stay_text() -> None:
    text = render(HOSTILE, [section(sentence=HOSTILE, notes=[HOSTILE])])

    assert "<script>alert" not in text
    assert "\u202e" not in text
    assert text.count(r"&lt;script&gt;alert(1)&lt;/script&gt;") >= 4


def test_data_cannot_end_its_element() -> None:
    data = {HOSTILE: [HOSTILE, {"a": HOSTILE}, 1, None]}
    made = Section("verdict", "", "verdict.html", VERDICT, data)

    text = render("", [made])
    (inside,) = re.findall(r'id="data-verdict">(.*)</script>', text)

    assert "<" not in inside
    shown = HOSTILE.replace("\u202e", r"\u202e")
    assert json.loads(inside) == {shown: [shown, {"a": shown}, 1, None]}


def test_a_page_has_no_address_and_no_style_in_its_tags(report: Path) -> None:
    tags = _Tags(report.read_text(encoding="utf-8")).tags
    links = [attrs.get("href") for tag, attrs in tags if tag == "a"]

    assert links
    assert all(link and link.startswith("#") for link in links)
    assert not {"link", "img", "iframe", "object"} & {tag for tag, _ in tags}
    assert not [attrs for _, attrs in tags if {"src", "style", "onclick"} & set(attrs)]


def test_every_link_of_a_page_leads_somewhere_on_it(report: Path) -> None:
    tags = _Tags(report.read_text(encoding="utf-8")).tags
    ids = [attrs["id"] for _, attrs in tags if "id" in attrs]
    links = {attrs["href"] for tag, attrs in tags if tag == "a"}

    assert len(ids) == len(set(ids))
    assert links <= {f"#{one}" for one in ids}


def test_a_report_is_written_again_but_no_other_file(tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    assert traceq("report", TRACE, "-o", file).status == 0
    first = file.read_bytes()

    assert traceq("report", TRACE, "-o", file).status == 0
    assert file.read_bytes() == first
    file.write_text("<h1>mine</h1>")
    refused = traceq("report", TRACE, "-o", file)

    assert (refused.status, file.read_text()) == (2, "<h1>mine</h1>")
    assert "exists already" in refused.err
    assert traceq("report", TRACE, "-o", file, "--overwrite").status == 0


def test_the_numbers_are_those_of_lint(report: Path) -> None:
    found = json.loads(traceq("lint", TRACE, "--format", "json").out)
    (recording,) = found["recordings"]
    text = report.read_text(encoding="utf-8")
    (inside,) = re.findall(r'id="data-findings">(.*)</script>', text)
    data = json.loads(inside)

    costs = [one["saves_ns"] for one in recording["findings"]]
    assert sorted(data["costs"]) == sorted(costs)
    assert data["step_ns"] == recording["step_ns"]
    assert recording["bound"]["text"][1:] in text


def test_lint_as_html_is_a_view_of_the_report(report: Path) -> None:
    view = traceq("lint", TRACE, "--format", "html").out
    whole = report.read_text(encoding="utf-8")

    for part in ("verdict", "step_bar", "fixes", "findings"):
        pattern = rf'<section id="\w+" data-part="{part}".*?</section>'
        (ours,) = re.findall(pattern, view, re.DOTALL)
        (theirs,) = re.findall(pattern, whole, re.DOTALL)
        assert ours.count("<li>") == theirs.count("<li>")


def test_several_recordings_are_on_one_page(tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    snapshot = CAPTURES.path("copies.snapshot.pickle.gz")

    answer = traceq("report", TRACE, OTHER, snapshot, "-o", file)

    assert answer.status == 0, answer.err
    tags = _Tags(file.read_text(encoding="utf-8")).tags
    ids = [attrs["id"] for _, attrs in tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    assert {"verdict-1", "verdict-2", "findings-2"} <= set(ids)


@pytest.mark.slow
def test_a_page_opens_without_errors_and_requests(report: Path, page: Page) -> None:
    page.look(1400, 900, dark=False)
    page.open(report)

    assert page.asked_for() == [report.as_uri()]
    assert page.complaints() == []


@pytest.mark.slow
@pytest.mark.parametrize("width", [400, 500, 1400])
def test_a_page_does_not_scroll_sideways(width: int, report: Path, page: Page) -> None:
    page.look(width, 900, dark=False)
    page.open(report)

    assert page.value("document.documentElement.scrollWidth") <= width


@pytest.mark.slow
def test_findings_are_filtered_by_severity(report: Path, page: Page) -> None:
    page.look(1400, 900, dark=False)
    page.open(report)
    shown = "document.querySelectorAll('.cards > li:not([hidden])').length"
    every = page.value(shown)

    page.value("document.querySelector('.chip[data-severity=minor]').click()")
    fewer = page.value(shown)
    page.value("document.querySelector('.chip[data-severity=minor]').click()")

    assert 0 < fewer < every
    assert page.value(shown) == every


@pytest.mark.slow
def test_the_switch_changes_the_theme(report: Path, page: Page) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    page.look(1400, 900, dark=True)
    page.open(report)
    dark = page.value(ground)

    page.value("document.getElementById('theme').click()")

    assert page.value(ground) != dark
    page.look(1400, 900, dark=False)
    page.open(report)
    assert page.value(ground) != dark
