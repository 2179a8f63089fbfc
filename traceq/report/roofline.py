"""Roofline as text, Markdown, CSV and JSON: ops and their efficiency."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson
import polars as pl

from traceq import __version__
from traceq.common import units
from traceq.common.safe_text import as_unicode, plain_json, printable
from traceq.model.gpu_peaks import GIGA, TERA
from traceq.report.base.columns import Column, cut_list, cut_middle, cut_place
from traceq.report.base.content import Content, TextTable
from traceq.report.base.markdown import section
from traceq.report.base.screen import line_width, screen
from traceq.report.base.text import rendered
from traceq.report.query import render_csv

if TYPE_CHECKING:
    from traceq.analysis.time.roofline import Roofline

VERSION = 1
# More than a peak by this much needs a reason.
_ABOVE = 1.05
# Cache size of a large GPU: data this small need not come from its memory.
_CACHE_BYTES = 64 << 20
_FIELDS = {
    "op": pl.col("name"),
    "shapes": pl.col("shapes"),
    "dtype": pl.col("dtype"),
    "phase": pl.col("phase"),
    "file": pl.col("file"),
    "line": pl.col("call_line"),
    "function": pl.col("function"),
    "layer": pl.col("layer"),
    "kernel": pl.col("kernel"),
    "calls_per_step": pl.col("calls"),
    "kernels_per_step": pl.col("launched"),
    "gpu_ns": pl.col("gpu"),
    "least_ns": pl.col("least"),
    "recoverable_ns": pl.col("recoverable"),
    "flop_per_call": pl.col("flops"),
    "bytes_per_call": pl.col("bytes"),
    "bound": pl.col("bound"),
    "efficiency": pl.col("efficiency"),
}


@dataclass(frozen=True)
class Shown:
    """Roofline of the recording, ready for any format."""

    path: str
    roofline: Roofline
    ops: pl.DataFrame
    step_ns: float
    top: int
    dtypes_inferred: bool = False
    """True if no dtype was recorded: operations and bytes are of inferred ones."""


def text(shown: Shown, *, width: int | None, color: bool) -> str:
    """Return a screen: what the GPU can do, and the ops that are slow for it."""
    room = line_width(width)
    return rendered(list(screen(content(shown), room)), width=room, color=color)


def markdown(shown: Shown) -> str:
    """Return a section with the same table."""
    return section(content(shown))


def csv(shown: Shown) -> str:
    """Return a row for each op, all of them."""
    return render_csv(shown.ops.select(**_FIELDS))


def json(shown: Shown) -> str:
    """Return one object; ``version`` is that of its fields, times are ns of a step."""
    roofline, peak = shown.roofline, shown.roofline.gpu.peak
    document: dict[str, Any] = {
        "version": VERSION,
        "traceq": __version__,
        "path": as_unicode(shown.path),
        "gpu": {
            "name": roofline.gpu.name,
            "bytes_per_second": peak.bandwidth if peak else None,
            "flop_per_second": dict(peak.flops) if peak else {},
        },
        "steps": roofline.steps,
        "step_ns": shown.step_ns,
        "dtypes_inferred": shown.dtypes_inferred,
        "judged_ns": roofline.judged_ns / roofline.steps,
        "not_judged_ns": roofline.other_ns / roofline.steps,
        "transfers_and_collectives_ns": roofline.apart_ns / roofline.steps,
        "ops": shown.ops.select(**_FIELDS).to_dicts(),
    }
    written = orjson.dumps(document, option=orjson.OPT_INDENT_2).decode()
    return plain_json(written) + "\n"


def content(shown: Shown) -> Content:
    """Return the words for a trace."""
    roofline = shown.roofline
    steps = roofline.steps
    least = float(shown.ops["least"].sum() or 0)
    judged, other, apart = (
        ns / steps for ns in (roofline.judged_ns, roofline.other_ns, roofline.apart_ns)
    )
    facts = [
        ("GPU", _gpu(roofline)),
        (
            "step",
            f"{units.time(shown.step_ns)}, kernels {_whole(judged + other, apart)}",
        ),
        (
            "judged",
            f"{units.time(judged)}, {units.share(judged, judged + other)} of the"
            f" kernels' time; the peaks allow it in {units.time(least)}"
            f" ({units.share(least, judged)})",
        ),
        (
            "columns",
            "a step's; of peak: the share of its time that the peaks need;"
            " recoverable: by replay, if it were as fast as its kind is elsewhere",
        ),
    ]
    if shown.dtypes_inferred:
        facts.insert(-1, ("dtypes", "inferred from kernel names: none were recorded"))
    rows = tuple(_row(row) for row in shown.ops.head(shown.top).to_dicts())
    return Content(
        printable(shown.path), (), tuple(facts), (TextTable(_COLUMNS, rows),)
    )


def _whole(kernels: float, apart: float) -> str:
    """Return the time of kernels, and of work that is left out of the roofline."""
    text = units.time(kernels)
    if not apart:
        return text
    return (
        f"{text}, and {units.time(apart)} in transfers and collectives, left out here"
    )


def _gpu(roofline: Roofline) -> str:
    peak = roofline.gpu.peak
    if peak is None:
        return f"{printable(roofline.gpu.name or 'not named')}: its peaks are not known"
    rates = ", ".join(
        f"{dtype} {rate / TERA:,.0f}" for dtype, rate in peak.flops.items()
    )
    return (
        f"{printable(roofline.gpu.name)}: {peak.bandwidth / GIGA:,.0f} GB/s, TFLOP/s:"
        f" {rates} (dense)"
    )


_COLUMNS = (
    Column("op", cut=cut_middle),
    *(
        Column(title, number=True)
        for title in ("calls", "GPU", "of peak", "recoverable")
    ),
    Column("bound by"),
    Column("shapes", cut=cut_list),
    Column("where", cut=cut_place, weight=2),
)


def _row(row: dict[str, Any]) -> tuple[str, ...]:
    efficiency = row["efficiency"]
    return (
        printable(row["name"]),
        units.number(row["calls"]),
        units.time(row["gpu"]),
        "-" if efficiency is None else _of_peak(efficiency, row["bytes"]),
        units.time(row["recoverable"]) if row["recoverable"] else "",
        row["bound"] or "",
        printable(row["shapes"] or ""),
        printable(_where(row)),
    )


def _of_peak(efficiency: float, moved: float | None) -> str:
    if efficiency <= _ABOVE:
        return units.share(efficiency, 1)
    cached = moved is not None and moved <= _CACHE_BYTES
    return "in cache" if cached else "above it"


def _where(row: dict[str, Any]) -> str:
    if row["file"] and row["call_line"]:
        return f"{row['file']}:{row['call_line']} {row['function'] or ''}".strip()
    if row["file"]:
        line = f":{row['line']}" if row["line"] else ""
        return f"{row['function']} ({row['file']}{line})"
    return row["layer"] or ""
