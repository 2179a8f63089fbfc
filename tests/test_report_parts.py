"""The parts of the page on kernels, limits, layers, memory and several recordings."""

from __future__ import annotations

import json
import re
from functools import cache
from html import unescape
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import pytest
from browser import browser
from command import traceq
from conftest import ROOT
from recordings import FIXTURE_TRACES, loaded, path_of

from traceq.model.lint_report import RecordingReport
from traceq.model.recording import Recording
from traceq.report.page.page import render
from traceq.report.page.parts.kernels import kernels
from traceq.report.page.parts.layers import layers
from traceq.report.page.parts.lengths import lengths
from traceq.report.page.parts.roofline import roofline
from traceq.report.page.section import Subject
from traceq.testing import draw

if TYPE_CHECKING:
    from collections.abc import Iterator

    from browser import Page

    from traceq.report.page.section import Section

MANUAL = "attn_manual.trace.json.gz"
RUNS = ROOT / "fixtures" / "sweep" / "runs.toml"


def subject(path: Path) -> Subject:
    """Return a trace that was not linted: the parts here need no findings."""
    nothing = RecordingReport(str(path), None, None, 1, 0, (), (), 0, (), (), (), 0)
    return Subject(nothing, Recording(str(path), loaded(path)))


@cache
def shown() -> dict[str, Section]:
    """Return the parts of a trace with attention written by hand."""
    one = subject(path_of(MANUAL))
    sections = [part(one) for part in (kernels, roofline, lengths, layers)]
    return {section.key: section for section in sections if section}


@cache
def summary(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(
        traceq("summary", path, "--format", "json").out
    )
    return document["traces"][0]


# Tables.


def test_times_and_calls_of_the_tables_are_those_of_the_summary() -> None:
    tables: Any = shown()["kernels"].context["tables"]
    result = summary(path_of(MANUAL))

    for table, key in zip(tables, ("kernels", "ops"), strict=True):
        rows = [(row[1].value, row[3].value) for row in table.rows]
        known = [(row["time_ns"], row["calls"]) for row in result[key]]
        assert rows[: len(known)] == known


# Limits.


def test_each_dot_of_the_roofline_is_an_op_of_the_command() -> None:
    pictures: Any = shown()["roofline"].context["pictures"]
    (_, computing), (_, moving) = pictures
    order = ("roofline", path_of(MANUAL), "--format", "json")
    ops = json.loads(traceq(*order).out)["ops"]

    assert _bubbles(computing) == sum(bool(op["flop_per_call"]) for op in ops)
    without = [op for op in ops if not op["flop_per_call"] and op["bytes_per_call"]]
    assert _bubbles(moving) == len(without)


def _bubbles(picture: Any) -> int:  # noqa: ANN401 - a picture of the page
    return sum(
        "bubble" in str(mark.attributes["class"])
        for mark in picture.marks
        if mark.tag == "circle"
    )


def test_no_dot_of_matmuls_is_above_its_roof() -> None:
    pictures: Any = shown()["roofline"].context["pictures"]
    picture = pictures[0][1]
    roof = next(m for m in picture.marks if m.attributes.get("class") == "roof")
    top = float(str(roof.attributes["d"]).split()[-1])

    dots = [m for m in picture.marks if m.tag == "circle"]
    assert dots
    assert all(float(dot.attributes["cy"]) >= top for dot in dots)


def test_the_histogram_has_all_kernels_and_the_cost_of_a_launch() -> None:
    pictures: Any = shown()["lengths"].context["pictures"]
    counts = pictures[0][1]
    result = summary(path_of(MANUAL))

    total = sum(float(row[2].replace(",", "")) for row in counts.table.rows)
    every = sum(row["kernels"] for row in result["kinds"])
    copied = sum(
        row["calls"] for row in result["kernels"] if row["name"].startswith("Mem")
    )
    assert total == pytest.approx(every - copied)
    assert any(mark.text.startswith("a launch: ") for mark in counts.marks)


# Layers.


def test_layers_add_up_to_the_gpu_time_of_a_step() -> None:
    rows: Any = shown()["layers"].context["rows"]

    names = [row.name for row in rows]
    assert [name for name in names if name.startswith("Block")] == [
        f"Block_{number}" for number in range(4)
    ]
    whole = sum(row.total.value for row in rows)
    assert whole == pytest.approx(summary(path_of(MANUAL))["gpu_time_ns"])


def test_attention_by_hand_is_attention_in_each_layer() -> None:
    context: Any = shown()["layers"].context
    at = context["kinds"].index("attention")

    blocks = [row for row in context["rows"] if row.name.startswith("Block")]
    assert all(row.cells[at].level == 6 for row in blocks)


# Sweeps.


@cache
def sweep() -> str:
    """Return the page of the recorded sweep."""
    answer = traceq("summary", "--runs", RUNS, "--format", "html")
    assert answer.status == 0, answer.err
    return answer.out


@pytest.mark.slow
def test_the_sweep_says_quadratic_attention_against_linear_rest() -> None:
    text = unescape(sweep())

    assert (
        "Attention grows quadratically with seq_len, and the rest of the GPU's time"
        " grows linearly (fits within 2% and 1%, from 4 points)."
    ) in text
    assert "Attention overtakes the rest at seq_len ≈ 1,300, within the sweep." in text
    assert "A step is host-bound up to 1,024, GPU-bound from 2,048 on." in text


def test_the_picture_of_the_sweep_bends_for_attention_and_not_for_the_rest() -> None:
    drawing = _picture("attention, the rest against seq_len")

    heights = {}
    for mark in drawing:
        points = re.findall(r"([\d.]+) ([\d.]+)", mark.get("d", ""))
        if "fit" in mark.get("class", ""):
            (_, first), *_ = points
            (_, middle), (_, last) = points[len(points) // 2], points[-1]
            low, half, high = (-float(entry) for entry in (first, middle, last))
            heights[mark.get("class", "")[-1]] = (half - low) / (high - low)
    attention, rest = heights["2"], heights["8"]
    assert attention < 0.35
    assert rest == pytest.approx(0.5, abs=0.01)


def test_the_picture_marks_where_attention_overtakes() -> None:
    drawing = _picture("attention, the rest against seq_len")

    assert [mark.text for mark in drawing if (mark.text or "").startswith("≈")] == [
        "≈ 1,300"
    ]
    assert sum(mark.get("class") == "crossing" for mark in drawing) == 1


def test_the_picture_shows_which_steps_are_host_bound() -> None:
    drawing = _picture("step, attention, matmuls, copies, norms against seq_len")

    dots = [mark for mark in drawing if "dot" in mark.get("class", "")]
    steps = [mark for mark in dots if mark.get("class", "").endswith("0")]
    assert ["hollow" in mark.get("class", "") for mark in steps] == [
        True,
        True,
        False,
        False,
    ]


def _picture(label: str) -> ET.Element:
    pattern = rf'<svg [^>]*aria-label="{label}">.*?</svg>'
    match = re.search(pattern, sweep(), re.DOTALL)
    assert match
    return ET.fromstring(match[0])  # noqa: S314 - our own


def test_the_figures_of_the_sweep_are_those_of_the_summary() -> None:
    out = traceq("summary", "--runs", RUNS, "--format", "json").out
    steps = [trace["bound"]["step_ns"] for trace in json.loads(out)["traces"]]

    result = [float(match) for match in re.findall(r'data-value="([\d.]+)"', sweep())]
    assert result == pytest.approx(steps)


# Two recordings.


@pytest.mark.slow
def test_a_report_of_two_has_the_causes_that_diff_has(tmp_path: Path) -> None:
    two = (FIXTURE_TRACES["copies"], path_of("copies_fixed.trace.json.gz"))
    file = tmp_path / "two.html"

    assert traceq("report", *two, "-o", file).status == 0
    causes = json.loads(traceq("diff", *two, "--format", "json").out)["causes"]

    page = file.read_text(encoding="utf-8")
    section = re.search(r'<section id="causes".*?</section>', page, re.DOTALL)
    assert section
    values = [
        float(match) for match in re.findall(r'data-value="([-\d.e]+)"', section[0])
    ]
    before, *changes, after = values
    assert before + sum(changes) == pytest.approx(after)
    assert changes[0] == pytest.approx(causes[0]["ns"], abs=1)


# Strangers.


def test_names_of_a_trace_stay_text_in_every_part(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>'\"\u202e"
    document = draw(
        """
        host   [ProfilerStep#1                          ]
        host    [nn.Module: EVIL_0                      ]
        host     [aten::linear          ]
        host      [cudaLaunchKernel>1]
        gpu 7                      [NAME<1              ]
        """
    )
    for event in document["traceEvents"]:
        name = event["name"].replace("NAME", evil).replace("EVIL", evil)
        event["name"] = evil if name == "aten::linear" else name
    file = tmp_path / "evil.json"
    file.write_text(json.dumps(document))
    one = subject(file)
    sections = [part(one) for part in (kernels, roofline, lengths, layers)]

    page = render(evil, [section for section in sections if section])

    assert "<script>alert" not in page
    assert "\u202e" not in page
    assert "alert(1)" in page


@pytest.mark.real
@pytest.mark.slow
def test_names_as_long_as_books_make_no_large_page(tmp_path: Path) -> None:
    kernel = "gpu 7                      [K{}<{}              ]\n"
    document = draw(
        "host   [ProfilerStep#1                                ]\n"
        "host     [aten::linear          ]\n"
        "host      [cudaLaunchKernel>1]\n" + kernel.format("x", 1)
    )
    last = document["traceEvents"][-1]
    for number in range(200):
        name = f"void {'long_name' * 3000}{number}<float>(int)"
        document["traceEvents"].append(last | {"name": name})
    file = tmp_path / "long.json"
    file.write_text(json.dumps(document))

    page = render("", [section for section in [kernels(subject(file))] if section])

    assert len(page) < 600_000


# In a browser.


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """Return a browser that shows the parts of one trace."""
    folder = tmp_path_factory.mktemp("parts")
    file = folder / "parts.html"
    file.write_text(render("parts", list(shown().values())), encoding="utf-8")
    with browser(folder / "profile") as opened:
        opened.open(file)
        yield opened


FIRST = "document.querySelector('.sortable')"


def test_a_click_sorts_a_table_and_another_one_reverses_it(tab: Page) -> None:
    rows = f"[...{FIRST}.querySelectorAll('tbody tr')]"
    order = f"{rows}.map(row => row.cells[3].dataset.value * 1)"
    click = f"{FIRST}.querySelectorAll('th button')[3].click()"

    tab.value(click)
    result = tab.value(order)
    assert result == sorted(result, reverse=True)
    tab.value(click)
    assert tab.value(order) == sorted(result)
    assert tab.value(f"{FIRST}.querySelectorAll('th')[3].ariaSort") == "ascending"


def test_a_search_shows_the_rows_that_match(tab: Page) -> None:
    field = f"{FIRST}.querySelector('input')"
    search = (
        f"{field}.value = 'SOFTMAX bf16'; {field}.dispatchEvent(new Event('input'))"
    )
    there = f"[...{FIRST}.querySelectorAll('tbody tr:not([hidden])')]"
    rows = f"{there}.map(row => row.innerText)"

    tab.value(search)
    result = tab.value(rows)
    output = tab.value(f"{FIRST}.querySelector('.count').textContent")
    tab.value(search.replace("SOFTMAX bf16", ""))

    assert result
    assert all("softmax" in row and "bf16" in row for row in result)
    assert output.startswith(f"{len(result)} of ")
    assert len(tab.value(rows)) > len(result)


def test_a_dot_tells_its_op(tab: Page) -> None:
    dot = "document.querySelector('.bubble')"
    tab.value(f"{dot}.scrollIntoView({{behavior: 'instant', block: 'center'}})")
    box = json.loads(tab.value(f"JSON.stringify({dot}.getBoundingClientRect())"))

    tab.move_mouse(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)

    text = tab.value("document.getElementById('tip').innerText")
    assert text.startswith("aten::")
    assert "of peak" in text


def test_the_parts_ask_for_nothing_and_complain_of_nothing(tab: Page) -> None:
    assert len(tab.asked_for()) == 1
    assert tab.complaints() == []


@pytest.mark.parametrize("width", [1400, 500])
def test_no_part_is_wider_than_its_window(tab: Page, width: int) -> None:
    tab.look(width, 900, dark=False)

    assert tab.value("document.documentElement.scrollWidth") <= width


@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True])
def test_axe_finds_nothing_in_the_views(dark: bool, tab: Page, tmp_path: Path) -> None:  # noqa: FBT001
    axe = find_spec("axe_core_python")
    assert axe is not None
    assert axe.origin
    script = (Path(axe.origin).parent / "axe.min.js").read_text(encoding="utf-8")
    two = (FIXTURE_TRACES["copies"], path_of("copies_fixed.trace.json.gz"))
    snapshot = ROOT / "fixtures" / "attn_manual" / "snapshot.pickle.gz"
    views = (
        ("memory", snapshot),
        ("diff", *two),
        ("summary", two[0]),
        ("summary", "--runs", RUNS),
    )
    tab.look(1400, 900, dark=dark)

    for view in views:
        file = tmp_path / "view.html"
        order = (*view, "--format", "html", "-o", file, "--overwrite")
        assert traceq(*order).status == 0
        tab.open(file)
        tab.value(script + ";0")
        result = tab.value(
            "axe.run(document, {resultTypes: ['violations']})", wait=True
        )
        assert [
            (violation["id"], violation["nodes"][0]["html"])
            for violation in result["violations"]
        ] == []
