"""Use of the page in a real browser: search, ranges, keys, and links between pages."""

from __future__ import annotations

import json
import re
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from browser import browser
from command import traceq
from ranking import Works, write_job
from recordings import FIXTURE_TRACES

from traceq.common import units
from traceq.testing import draw

if TYPE_CHECKING:
    from collections.abc import Iterator

    from browser import Page

pytestmark = pytest.mark.slow

TRACE = FIXTURE_TRACES["copies"]
PICTURE = "document.querySelector('[data-part=timeline] canvas')"
FLAME = "document.querySelector('[data-part=flame] canvas')"
SUMS = "document.querySelector('[data-sums]')"
DETAIL = "document.querySelector('[data-part=timeline] [data-detail]').textContent"
HITS = "document.querySelector('[data-part={}] [data-hits]').textContent"
# When the pictures have drawn what they were told.
DRAWN = "new Promise((done) => requestAnimationFrame(() => setTimeout(done, 0)))"
START, LENGTH, NAME, COUNT = 0, 1, 2, 6
BOX = (
    f"(() => {{ const box = {PICTURE}.getBoundingClientRect();"
    " return [box.x, box.y, box.width]; })()"
)
SHOWN = f"[{PICTURE}.dataset.from, {PICTURE}.dataset.to].map(Number)"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pages")


@pytest.fixture(scope="module")
def report(folder: Path) -> Path:
    """Return the report of a trace with findings, whose slices are all drawn."""
    file = folder / "report.html"
    answer = traceq("report", TRACE, "-o", file)
    assert answer.status == 0, answer.err
    return file


@pytest.fixture(scope="module")
def browsing(folder: Path) -> Iterator[Page]:
    with browser(folder / "profile") as opened:
        opened.look(1400, 900, dark=False)
        yield opened


@pytest.fixture
def page(browsing: Page, report: Path) -> Page:
    """Return the report, just opened."""
    browsing.open(report)
    return browsing


@pytest.fixture(scope="module")
def timeline(report: Path) -> dict[str, Any]:
    return data_of(report, "timeline")


def data_of(report: Path, part: str) -> dict[str, Any]:
    text = report.read_text(encoding="utf-8")
    (inside,) = re.findall(rf'id="data-{part}">(.*)</script>', text)
    data: dict[str, Any] = json.loads(inside)
    return data


def press(page: Page, *keys: str) -> None:
    """Press keys, one after the other, and wait until all is drawn."""
    for key in keys:
        page.press(key, text=key if len(key) == 1 else "")
    page.value(DRAWN, wait=True)


def slices(timeline: dict[str, Any], *, gpu: bool) -> list[tuple[str, int]]:
    """Return name and length of the slices of the GPU or of the host."""
    return [
        (timeline["texts"][name], length)
        for lane in timeline["lanes"]
        if lane["gpu"] is gpu
        for row in lane["rows"]
        for name, length in zip(row[NAME], row[LENGTH], strict=True)
    ]


def rows_of(page: Page, number: int) -> list[list[str]]:
    """Return the cells of a table of sums: of the GPU, or of the host."""
    rows: list[list[str]] = page.value(
        f"[...{SUMS}.querySelectorAll('table')[{number}].tBodies[0].rows]"
        ".map((row) => [...row.cells].map((cell) => cell.textContent))"
    )
    return rows


def test_a_slash_searches_slices_and_enter_goes_to_them(
    page: Page, timeline: dict[str, Any]
) -> None:
    named = [name for name, _ in slices(timeline, gpu=True) if "Memcpy" in name]
    page.value(f"{PICTURE}.focus()")

    press(page, "/")
    page.write("memcpy htod")
    press(page, "Enter")

    result = int(page.value(f"{PICTURE}.dataset.found"))
    assert result >= len([name for name in named if "HtoD" in name]) > 0
    assert f"{result} slice" in page.value(HITS.format("timeline"))
    assert "Memcpy HtoD" in page.value(DETAIL)
    assert page.value("document.activeElement.type") == "search"


def test_keys_of_the_picture_are_letters_in_a_search_field(page: Page) -> None:
    page.value(f"{PICTURE}.focus()")
    before = page.value(SHOWN)

    press(page, "/", "w", "a", "?")

    assert page.value(SHOWN) == before
    assert page.value("document.activeElement.value") == "wa?"
    assert not page.value("document.getElementById('keys').open")


def test_escape_clears_a_search(page: Page) -> None:
    page.value(f"{PICTURE}.focus()")
    press(page, "/")
    page.write("copy")

    press(page, "Escape")

    assert page.value(f"{PICTURE}.dataset.found") == ""
    assert page.value(f"document.activeElement === {PICTURE}")


def test_w_a_s_d_zoom_and_move(page: Page) -> None:
    page.value(f"{PICTURE}.focus()")
    first, last = page.value(SHOWN)

    press(page, "w", "w")
    zoomed = page.value(SHOWN)
    press(page, "d")
    right = page.value(SHOWN)
    press(page, "a", "a")
    left = page.value(SHOWN)
    press(page, "s", "s", "s")

    assert zoomed[1] - zoomed[0] == pytest.approx((last - first) * 0.36)
    assert right[0] > zoomed[0] > left[0]
    assert page.value(SHOWN) == [first, last]


def test_sums_of_the_whole_window_are_those_of_its_slices(
    page: Page, timeline: dict[str, Any]
) -> None:
    sums: Counter[str] = Counter()
    for name, length in slices(timeline, gpu=True):
        sums[name] += length
    calls = Counter(name for name, _ in slices(timeline, gpu=True))
    page.value(f"{PICTURE}.focus()")

    press(page, "m")

    expected = [
        [units.time(ns), f"{calls[name]:,}", name] for name, ns in sums.most_common(5)
    ]
    shown = [[row[0], row[2], row[3]] for row in rows_of(page, 0)[:5]]
    assert sorted(shown) == sorted(expected)


def test_idle_time_by_cause_is_that_of_the_legend(page: Page) -> None:
    legend = "[data-part=timeline] .keys[aria-label^='What the host does'] li .number"
    times = page.value(
        f"[...document.querySelectorAll({legend!r})].map((one) => one.textContent)"
    )
    page.value(f"{PICTURE}.focus()")

    press(page, "m")

    text = page.value(f"{SUMS}.querySelector('p').textContent")
    assert len(times) > 2
    assert [time for time in times[:4] if time not in text] == []


def test_host_sums_leave_out_what_is_nested(
    page: Page, timeline: dict[str, Any]
) -> None:
    lanes = [lane for lane in timeline["lanes"] if not lane["gpu"]]
    outermost = sum(sum(lane["rows"][0][LENGTH]) for lane in lanes)

    self_times = page.value(
        "(() => { const [{ data }] = window.traceq.parts('timeline');"
        "for (const lane of data.lanes) for (const row of lane.rows) {"
        " let at = 0; row[0] = row[0].map((step) => (at += step)); row[7] = row[1]; }"
        "return window.traceq.sumsOf(data, -1e12, 1e12).host"
        ".reduce((sum, one) => sum + one.ns, 0); })()"
    )

    assert self_times == pytest.approx(outermost)


@pytest.mark.parametrize("on_axis", [False, True])
def test_a_range_is_dragged_with_shift_or_along_the_axis(
    on_axis: bool,  # noqa: FBT001
    page: Page,
    timeline: dict[str, Any],
) -> None:
    page.value(f"{PICTURE}.scrollIntoView({{block: 'center', behavior: 'instant'}})")
    left, top, width = page.value(BOX)
    gutter, span = 148, timeline["span"]
    a_quarter = left + gutter + (width - gutter) / 4
    half = left + gutter + (width - gutter) / 2
    window = page.value(SHOWN)

    page.drag((a_quarter, top + (8 if on_axis else 200)), half, shift=not on_axis)
    page.value(DRAWN, wait=True)

    start, end = map(float, page.value(f"{PICTURE}.dataset.range").split(","))
    assert (start, end) == pytest.approx((span / 4, span / 2), rel=0.01)
    assert page.value(SHOWN) == window
    text = page.value(f"{SUMS}.textContent")
    assert f"{units.time(end - start)} selected" in text
    assert "The GPU works for" in text


def test_a_drag_without_shift_moves_and_selects_nothing(page: Page) -> None:
    page.value(f"{PICTURE}.scrollIntoView({{block: 'center', behavior: 'instant'}})")
    page.value(f"{PICTURE}.focus({{preventScroll: true}})")
    press(page, "w")
    before = page.value(SHOWN)
    left, top, _ = page.value(BOX)

    page.drag((left + 600, top + 200), left + 700, shift=False)
    page.value(DRAWN, wait=True)

    assert page.value(SHOWN)[0] < before[0]
    assert page.value(f"{PICTURE}.dataset.range") == ""
    assert page.value(f"{SUMS}.hidden")


def test_the_range_of_a_slice_is_selected_and_cleared_by_keyboard(page: Page) -> None:
    page.value(f"{PICTURE}.focus()")

    press(page, "ArrowRight", "ArrowRight", "m")
    one = page.value(f"{PICTURE}.dataset.range").split(",")
    press(page, "ArrowRight", "M")
    two = page.value(f"{PICTURE}.dataset.range").split(",")
    press(page, "Escape")

    assert float(two[0]) == float(one[0])
    assert float(two[1]) > float(one[1])
    assert page.value(f"{SUMS}.hidden")


def test_a_row_of_the_sums_leads_to_its_slices(
    page: Page, timeline: dict[str, Any]
) -> None:
    page.value(f"{PICTURE}.focus()")
    press(page, "m")
    name = rows_of(page, 0)[0][3]

    page.value(f"{SUMS}.querySelector('tbody button').click()")
    page.value(DRAWN, wait=True)

    every = slices(timeline, gpu=True) + slices(timeline, gpu=False)
    count = sum(one == name for one, _ in every)
    assert int(page.value(f"{PICTURE}.dataset.found")) == count
    assert page.value(DETAIL).startswith(name)


def test_a_row_of_the_kernels_leads_to_its_slices(
    page: Page, timeline: dict[str, Any]
) -> None:
    row = "document.getElementById('table-kernels').closest('.sortable')"
    button = f"{row}.querySelectorAll('tbody button')[1]"
    name = page.value(f"{button}.textContent")

    page.value(f"{button}.click()")
    page.value(DRAWN, wait=True)

    count = sum(one == name for one, _ in slices(timeline, gpu=True))
    assert int(page.value(f"{PICTURE}.dataset.found")) == count > 0
    assert page.value(f"document.activeElement === {PICTURE}")
    assert page.value(DETAIL).startswith(name)


def test_every_row_of_the_tables_has_slices(page: Page) -> None:
    result = page.value(
        "[...document.querySelectorAll('.sortable tbody button')].map((button) => {"
        f" button.click(); return [button.textContent, {HITS.format('timeline')}]; }})"
    )

    assert result
    for name, hits in result:
        assert "slice" in hits, name
        assert "no slice" not in hits, name


def test_frames_of_the_flame_graph_are_searched(page: Page, report: Path) -> None:
    data = data_of(report, "flame")
    graph = data["graphs"]["gpu"]
    names = [data["texts"][name] for name in graph["names"]]
    page.value(f"{FLAME}.focus()")

    press(page, "/")
    page.write("copy")
    press(page, "Enter")

    count = sum("copy" in name.lower() for name in names)
    assert int(page.value(f"{FLAME}.dataset.found")) == count > 1
    assert page.value(HITS.format("flame")).startswith(f"{count} frames")
    assert "copy" in page.value(f"{FLAME}.dataset.focus").lower()


def test_a_function_has_all_its_callers_and_callees(page: Page, report: Path) -> None:
    data = data_of(report, "flame")
    graph = data["graphs"]["gpu"]
    names = [data["texts"][name] for name in graph["names"]]
    whole = sum(
        value
        for name, value in zip(names, graph["values"], strict=True)
        if name == "aten::copy_"
    )
    page.value(f"{FLAME}.focus()")
    press(page, "/")
    page.write("aten::copy_")
    press(page, "Enter")
    page.value(f"{FLAME}.focus()")

    press(page, "c")
    opened = page.value(f"{FLAME}.dataset.sandwich")
    text = "document.querySelector('[data-part=flame] [data-detail]').textContent"
    output = page.value(text)
    press(page, "ArrowUp")
    caller = page.value(f"{FLAME}.dataset.focus")
    press(page, "ArrowDown", "ArrowDown")
    callee = page.value(f"{FLAME}.dataset.focus")
    press(page, "Escape")

    assert opened == "aten::copy_"
    assert units.time(whole) in output
    at = names.index("aten::copy_")
    assert caller == names[at - 1]
    assert callee == names[at + 1]
    assert page.value(f"{FLAME}.dataset.sandwich") == ""
    assert page.value(f"{FLAME}.dataset.root") == "step"


def test_a_question_mark_lists_the_keys(page: Page) -> None:
    shown = "document.getElementById('keys').open"

    press(page, "?")
    opened = page.value(shown)
    listed = page.value("document.getElementById('keys').textContent")
    page.press("Escape", 27)

    assert opened
    assert "callers and callees" in listed
    assert not page.value(shown)


def test_minor_findings_are_folded_and_a_link_opens_them(page: Page) -> None:
    fold = "document.querySelector('details.minor')"
    card = f"{fold}.querySelector('.card')"
    folded = page.value(f"{fold}.open")

    page.value(f"location.hash = {card}.id")
    page.value(DRAWN, wait=True)

    assert not folded
    assert page.value(f"{fold}.open")
    assert page.value(f"{card}.getBoundingClientRect().height") > 0


def test_names_of_strangers_do_nothing_in_sums_and_searches(
    folder: Path, browsing: Page
) -> None:
    hostile = "<img src=x onerror=window.hit=1></script><script>window.hit=1</script>"
    drawing = """
        host     [ProfilerStep#1                                        ]
        host        [aten::NAME                ]  [aten::NAME        ]
        host          [cudaLaunchKernel>1]         [cudaLaunchKernel>2]
        gpu 7                        [gemm NAME<1 ]         [NAME<2      ]
    """
    text = json.dumps(draw(drawing)).replace("NAME", json.dumps(hostile)[1:-1])
    trace, file = folder / "hostile.json", folder / "hostile.html"
    trace.write_text(text, encoding="utf-8")
    assert traceq("report", trace, "-o", file).status == 0
    browsing.open(file)
    browsing.value(f"{PICTURE}.focus()")

    press(browsing, "m")
    browsing.value(f"{SUMS}.querySelector('tbody button').click()")
    press(browsing, "/")
    browsing.write("onerror")
    press(browsing, "Enter")
    browsing.value(f"{FLAME}.focus()")
    press(browsing, "ArrowDown", "ArrowDown", "ArrowDown", "c")

    assert int(browsing.value(f"{PICTURE}.dataset.found")) > 0
    assert browsing.value("window.hit === undefined")
    assert browsing.value("document.images.length") == 0
    assert browsing.complaints() == []
    assert browsing.asked_for() == [file.as_uri()]


@pytest.mark.parametrize("width", [400, 1400])
def test_a_page_with_a_range_does_not_scroll_sideways(
    width: int, report: Path, browsing: Page
) -> None:
    browsing.look(width, 900, dark=False)
    browsing.open(report)
    browsing.value(f"{PICTURE}.focus()")

    press(browsing, "m")
    scrolled = browsing.value("document.documentElement.scrollWidth")
    browsing.look(1400, 900, dark=False)

    assert scrolled <= width


@pytest.fixture(scope="module")
def job(folder: Path) -> Path:
    """Return the page of a job whose file name is no address as it is."""
    traces = write_job(folder / "job", [Works(), Works(), Works(2000), Works()])
    file = folder / "a job #1.html"
    answer = traceq("report", traces, "-o", file)
    assert answer.status == 0, answer.err
    return file


def test_a_job_leads_to_the_page_of_each_rank_and_back(
    job: Path, browsing: Page
) -> None:
    browsing.open(job)
    links = "[...document.querySelectorAll('.pages a')]"

    assert browsing.value(f"{links}.map((link) => link.textContent)") == [
        "rank 0",
        "rank 1",
        "rank 2",
        "rank 3",
    ]
    page = job.with_name("a job #1-ranks") / "rank-2.html"
    assert browsing.follow(f"{links}[2].click()") == page.as_uri()
    assert browsing.value("document.title").startswith("Rank 2")
    assert browsing.value(f"{PICTURE} !== null")
    assert browsing.complaints() == []
    up = "document.querySelector('.up').click()"
    assert browsing.follow(up) == job.as_uri()


def test_the_map_and_the_table_of_ranks_lead_to_their_pages(
    job: Path, browsing: Page
) -> None:
    browsing.open(job)
    href = "a[href$='rank-3.html']"

    places = browsing.value(
        f"[...document.querySelectorAll({href!r})]"
        ".map((link) => link.closest('section').id)"
    )

    assert places == ["job", "ranks", "figures"]


def test_axe_finds_nothing_on_a_job_and_on_a_page_in_use(
    job: Path, report: Path, browsing: Page
) -> None:
    axe = find_spec("axe_core_python")
    assert axe is not None
    assert axe.origin
    script = (Path(axe.origin).parent / "axe.min.js").read_text(encoding="utf-8")
    run = "axe.run(document, {resultTypes: ['violations']})"
    serious = []
    for file, keys in ((job, ()), (report, ("m", "/", "c", "Enter")), (report, ("?",))):
        browsing.open(file)
        if keys:
            browsing.value(f"{PICTURE}.focus()")
        press(browsing, *keys)
        browsing.value(script + ";0")
        result = browsing.value(run, wait=True)["violations"]
        serious += [(entry["id"], entry["nodes"][0]["html"]) for entry in result]

    assert serious == []
