"""An op table's slowdown and what it is made of: text, Markdown and JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson

from traceq import __version__
from traceq.common import units
from traceq.common.safe_text import plain_json, printable
from traceq.common.words import counted
from traceq.report.base.columns import Column
from traceq.report.base.content import Content, TextTable
from traceq.report.base.markdown import escaped, section
from traceq.report.base.screen import line_width, screen
from traceq.report.base.text import rendered, wrapped

if TYPE_CHECKING:
    from traceq.ranks.op_table_analysis import Explained, OpTableAnalysis

VERSION = 1
_NAMES = {
    "stage": "stage",
    "dp_rank": "data-parallel group",
    "rank": "rank",
    "optype": "",
}
# Parts of each kind to list, and the share of the slowdown that is worth a line.
_LISTED = 4
_WORTH = 0.01


def verdict(analysis: OpTableAnalysis) -> str:
    """Return the one sentence that says what slows the job down."""
    took, culprit = analysis.step_ns, analysis.culprit
    if culprit is None:
        return (
            f"No straggler: with every op at the mean of its type a step of"
            f" {units.time(took)} would take {units.time(analysis.ideal_ns)}."
        )
    return printable(
        f"{_name(culprit).capitalize()} holds the others up: a step takes"
        f" {units.time(took)} and would take {units.time(took - culprit.saved_ns)} with"
        " its ops at the mean of their types."
    )


def render(analysis: OpTableAnalysis, *, width: int | None, color: bool) -> str:
    """Return the text of a screen."""
    wide = line_width(width)
    lines = wrapped(verdict(analysis), wide)
    parts = [*lines, "", *screen(_content(analysis), wide)]
    return rendered(parts, width=wide, color=color).rstrip("\n") + "\n"


def render_markdown(analysis: OpTableAnalysis) -> str:
    """Return the verdict, the facts and the table, for a pull request or a note."""
    parts = [f"**{escaped(verdict(analysis))}**\n", section(_content(analysis))]
    return "\n".join(parts).rstrip() + "\n"


def render_json(analysis: OpTableAnalysis) -> str:
    """Return one object; ``version`` is that of its fields."""
    culprit = analysis.culprit
    data = {
        "version": VERSION,
        "traceq": __version__,
        "verdict": verdict(analysis),
        "ranks": analysis.ranks,
        "stages": analysis.stages,
        "steps": analysis.steps,
        "step_ns": analysis.step_ns,
        "ideal_ns": analysis.ideal_ns,
        "slowdown": analysis.slowdown,
        "culprit": None if culprit is None else _data(culprit),
        "parts": [_data(part) for part in analysis.parts],
    }
    text = orjson.dumps(data, option=orjson.OPT_INDENT_2).decode()
    return plain_json(text) + "\n"


def _data(part: Explained) -> dict[str, object]:
    return {
        "of": part.of,
        "name": part.name,
        "saved_ns": part.saved_ns,
        "share": part.share,
    }


def _name(part: Explained) -> str:
    return f"{_NAMES[part.of]} {part.name}".strip()


def _content(analysis: OpTableAnalysis) -> Content:
    rows = [
        (
            printable(_name(explained)),
            units.milliseconds(explained.saved_ns),
            f"{100 * explained.share:.0f}%",
        )
        for of in _NAMES
        for explained in [part for part in analysis.parts if part.of == of][:_LISTED]
        if explained.share >= _WORTH
    ]
    columns = (
        Column("at the mean of its type"),
        Column("saves ms/step", number=True),
        Column("of the slowdown", number=True),
    )
    ranks, stages = counted(analysis.ranks, "rank"), counted(analysis.stages, "stage")
    return Content(
        title=f"{ranks} in {stages}",
        warnings=(),
        facts=(
            (
                "step",
                f"{units.time(analysis.step_ns)} without gaps, mean of"
                f" {counted(analysis.steps, 'step')}",
            ),
            (
                "slowdown",
                f"{analysis.slowdown:.2f}: the step's time over that with every op at"
                " the mean of its type",
            ),
        ),
        tables=(TextTable(columns, tuple(rows)),) if rows else (),
    )
