"""The page of `traceq report`, as files and in a real browser."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from importlib.util import find_spec
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from browser import browser
from command import traceq
from recordings import CAPTURES, FIXTURE_TRACES

from traceq.common import units
from traceq.report.page.page import render
from traceq.report.page.section import Section
from traceq.testing import draw

if TYPE_CHECKING:
    from collections.abc import Iterator

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
    assert links <= {f"#{name}" for name in ids}


@pytest.mark.slow
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
    document = json.loads(traceq("lint", TRACE, "--format", "json").out)
    (recording,) = document["recordings"]
    text = report.read_text(encoding="utf-8")
    (inside,) = re.findall(r'id="data-findings">(.*)</script>', text)
    data = json.loads(inside)

    costs = [finding["saves_ns"] for finding in recording["findings"]]
    assert sorted(data["costs"]) == sorted(costs)
    assert data["step_ns"] == recording["step_ns"]
    assert recording["bound"]["text"][1:] in text


def test_the_numbers_are_those_of_summary(report: Path) -> None:
    document = json.loads(traceq("summary", TRACE, "--format", "json").out)
    (trace,) = document["traces"]
    text = report.read_text(encoding="utf-8")
    gpu = part_of(report, "flame")["graphs"]["gpu"]

    assert trace["bound"]["text"][1:] in text
    assert len(trace["bound"]["causes"]) > 3
    for cause in trace["bound"]["causes"]:
        assert units.time(cause["ns"]) in text
    assert round(gpu["total"]) == round(trace["gpu_time_ns"])


def test_lint_as_html_is_a_view_of_the_report(report: Path) -> None:
    view = traceq("lint", TRACE, "--format", "html").out
    whole = report.read_text(encoding="utf-8")

    for part in ("verdict", "step_bar", "fixes", "findings"):
        pattern = rf'<section id="\w+" data-part="{part}".*?</section>'
        (ours,) = re.findall(pattern, view, re.DOTALL)
        (theirs,) = re.findall(pattern, whole, re.DOTALL)
        assert ours.count("<li>") == theirs.count("<li>")


@pytest.mark.slow
def test_several_recordings_are_on_one_page(tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    snapshot = CAPTURES.path("copies.snapshot.pickle.gz")

    answer = traceq("report", TRACE, OTHER, snapshot, "-o", file)

    assert answer.status == 0, answer.err
    tags = _Tags(file.read_text(encoding="utf-8")).tags
    ids = [attrs["id"] for _, attrs in tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    assert {"verdict-1", "verdict-2", "findings-2"} <= set(ids)
    listed = [attrs["href"] for tag, attrs in tags if tag == "a"]
    assert "#verdict-2" in listed
    assert "#findings-2" not in listed


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


@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True])
def test_axe_finds_nothing_serious(dark: bool, report: Path, page: Page) -> None:  # noqa: FBT001
    axe = find_spec("axe_core_python")
    assert axe is not None
    assert axe.origin
    script = (Path(axe.origin).parent / "axe.min.js").read_text(encoding="utf-8")
    page.look(1400, 900, dark=dark)
    page.open(report)

    page.value(script + ";0")
    result = page.value("axe.run(document, {resultTypes: ['violations']})", wait=True)

    serious = [
        violation
        for violation in result["violations"]
        if violation["impact"] != "minor"
    ]
    assert [(problem["id"], problem["nodes"][0]["html"]) for problem in serious] == []


CANVAS = "document.querySelector('[data-part={}] canvas')"
PICTURE, FLAME = CANVAS.format("timeline"), CANVAS.format("flame")
DETAIL = "document.querySelector('[data-part=timeline] [data-detail]')"
# When the pictures have drawn what they were told.
DRAWN = "new Promise((done) => requestAnimationFrame(() => setTimeout(done, 0)))"


def part_of(report: Path, part: str) -> Any:  # noqa: ANN401 - what the part has
    text = report.read_text(encoding="utf-8")
    (inside,) = re.findall(rf'id="data-{part}">(.*)</script>', text)
    return json.loads(inside)


def test_every_finding_is_in_the_picture(report: Path) -> None:
    data = part_of(report, "timeline")
    document = json.loads(traceq("lint", TRACE, "--format", "json").out)

    drawn = [(finding["code"], finding["name"]) for finding in data["findings"]]
    (recording,) = document["recordings"]
    expected = [(finding["code"], finding["name"]) for finding in recording["findings"]]
    assert sorted(drawn) == sorted(expected)
    for item in data["findings"]:
        assert item["lengths"]
        assert min(item["starts"]) >= 0
        ends = map(sum, zip(item["starts"], item["lengths"], strict=True))
        assert max(ends) <= data["span"]


def test_marks_lie_on_the_kernels_that_a_finding_is_about(report: Path) -> None:
    data = part_of(report, "timeline")
    (copy,) = [finding for finding in data["findings"] if finding["code"] == "CPY003"]
    (lane,) = [item for item in data["lanes"] if item["gpu"]]
    starts, lengths, names = lane["rows"][0][:3]
    kernels = [
        (start, start + length, data["texts"][name])
        for start, length, name in zip(accumulate(starts), lengths, names, strict=True)
    ]

    marks = zip(copy["lanes"], copy["starts"], copy["lengths"], strict=True)
    on_gpu = [(start, start + length) for lane, start, length in marks if lane == 0]
    assert on_gpu
    for start, end in on_gpu:
        under = [name for a, b, name in kernels if a < end and b > start]
        assert any("Pageable" in name for name in under)


@pytest.mark.slow
def test_a_card_leads_to_its_marks(report: Path, page: Page) -> None:
    page.look(1400, 900, dark=False)
    page.open(report)
    number = page.value("document.querySelector('[data-show]').dataset.show")

    page.value("document.querySelector('[data-show]').click()")
    page.value(DRAWN, wait=True)

    assert page.value(f"{PICTURE}.dataset.marked") == number
    assert page.value(f"document.activeElement === {PICTURE}")
    link = "document.querySelector('[data-part=timeline] [data-detail] a').hash"
    assert page.value(f"document.querySelector({link}) !== null")


@pytest.mark.slow
def test_the_picture_is_used_by_keyboard(report: Path, page: Page) -> None:
    page.look(1400, 900, dark=False)
    page.open(report)
    span = float(page.value(f"{PICTURE}.dataset.to"))
    page.value(f"{PICTURE}.focus()")

    page.press("ArrowRight")
    page.press("ArrowDown")
    page.value(DRAWN, wait=True)
    output = page.value(
        "document.querySelector('[data-part=timeline] [data-detail]').textContent"
    )
    page.press("+", text="+")
    page.value(DRAWN, wait=True)
    zoomed = float(page.value(f"{PICTURE}.dataset.to - {PICTURE}.dataset.from"))
    page.press("Home")
    page.value(DRAWN, wait=True)

    assert "takes" in output
    assert zoomed < span * 0.7
    assert float(page.value(f"{PICTURE}.dataset.to - {PICTURE}.dataset.from")) == span


@pytest.mark.slow
def test_the_wheel_zooms_only_while_the_picture_has_the_focus(
    report: Path, page: Page
) -> None:
    page.look(1400, 900, dark=False)
    page.open(report)
    page.value(f"{PICTURE}.scrollIntoView({{block: 'center', behavior: 'instant'}})")
    shown = f"{PICTURE}.dataset.to - {PICTURE}.dataset.from"
    span = page.value(shown)

    page.wheel(700, 450, 0.001)
    page.value(DRAWN, wait=True)
    without = page.value(shown)
    page.value(f"{PICTURE}.focus({{preventScroll: true}})")
    page.wheel(700, 450, -100)
    page.value(DRAWN, wait=True)

    assert without == span
    assert page.value(shown) < span


@pytest.mark.slow
def test_hovering_tells_what_a_slice_is(report: Path, page: Page) -> None:
    page.look(1400, 900, dark=False)
    page.open(report)
    page.value(f"{PICTURE}.scrollIntoView({{block: 'center', behavior: 'instant'}})")
    left, top, width = page.value(
        f"(() => {{ const r = {PICTURE}.getBoundingClientRect();"
        " return [r.x, r.y, r.width]; })()"
    )
    data = part_of(report, "timeline")
    starts, lengths, names, *_ = data["lanes"][0]["rows"][0]
    one = lengths.index(max(lengths))
    middle = (sum(starts[: one + 1]) + lengths[one] / 2) / data["span"]
    # Below the axis and a row for each finding, right of the names.
    down = 22 + 13 * len(data["findings"]) + 7 + 12

    page.move_mouse(left + 148 + (width - 148) * middle, top + down)

    assert page.value("document.getElementById('tip').hidden") is False
    output = page.value("document.getElementById('tip').textContent")
    assert data["texts"][names[one]] in output
    assert "CPY003" in output


@pytest.mark.slow
def test_the_flame_graph_is_used_by_keyboard(report: Path, page: Page) -> None:
    page.look(1400, 900, dark=False)
    page.open(report)
    page.value(f"{FLAME}.focus()")

    for key in ("ArrowDown", "ArrowDown", "Enter"):
        page.press(key)
    page.value(DRAWN, wait=True)
    zoomed = page.value(f"{FLAME}.dataset.root")
    page.value("document.querySelector('[data-graph=idle]').click()")
    page.value(DRAWN, wait=True)

    assert zoomed in ("forward", "backward")
    assert page.value(f"{FLAME}.dataset.graph") == "idle"
    assert page.value(f"{FLAME}.dataset.root") == "step"


@pytest.mark.slow
def test_names_of_strangers_do_nothing_in_a_browser(folder: Path, page: Page) -> None:
    tags = "<img src=x onerror=window.hit=1></script><script>window.hit=1</script>"
    hostile = f"{tags}\u202e'\""
    drawing = """
        host     [ProfilerStep#1                                        ]
        host      [NAME.py(3): NAME                                    ]
        host       [nn.Module: NAME             ]
        host        [aten::mm                  ]  [aten::NAME        ]
        host          [cudaLaunchKernel>1]         [cudaLaunchKernel>2]
        gpu 7                        [gemm NAME<1 ]         [NAME<2      ]
    """
    text = json.dumps(draw(drawing)).replace("NAME", json.dumps(hostile)[1:-1])
    trace, file = folder / "hostile.json", folder / "hostile.html"
    trace.write_text(text, encoding="utf-8")

    answer = traceq("report", trace, "-o", file)
    page.look(1400, 900, dark=False)
    page.open(file)

    assert answer.status == 0, answer.err
    assert "window.hit" in file.read_text(encoding="utf-8")
    assert "\u202e" not in file.read_text(encoding="utf-8")
    assert page.value("window.hit === undefined")
    assert page.complaints() == []
    assert page.asked_for() == [file.as_uri()]


@pytest.mark.slow
def test_a_page_of_very_many_names_stays_small(folder: Path) -> None:
    events = [
        {
            "ph": "X",
            "cat": "kernel" if number % 2 else "cpu_op",
            "name": f"{number}" * 50,
            "pid": 0,
            "tid": 7 if number % 2 else number % 60,
            "ts": number * 10,
            "dur": 9,
            "args": {"device": 0, "stream": number % 40} if number % 2 else {},
        }
        for number in range(12_000)
    ]
    trace, file = folder / "many.json", folder / "many.html"
    trace.write_text(json.dumps({"traceEvents": events}), encoding="utf-8")

    assert traceq("report", trace, "-o", file).status == 0
    assert file.stat().st_size < 2_000_000


def test_a_step_that_is_not_there_is_refused(tmp_path: Path) -> None:
    answer = traceq("report", TRACE, "-o", tmp_path / "page.html", "--step", "99")

    assert answer.status == 2
    assert answer.err == "traceq: there is no step 99; there are 1, 2\n"
