"""Memory snapshots as a page: a chart with a tooltip, and the tables.

The page is one file that loads no other. The chart needs no script; the script adds
what was live under the mouse. All names go through ``html.escape``, or into JSON in
which no tag can end.
"""

from __future__ import annotations

import json
from html import escape
from typing import TYPE_CHECKING, Any

from traceq import __version__, units
from traceq.analysis.memory.timeline import highest_moments, timeline
from traceq.report.base.html import page
from traceq.report.base.text import as_unicode, printable
from traceq.report.memory.content import content

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import polars as pl

    from traceq.analysis.memory.summary import MemorySummary
    from traceq.report.base.content import TextTable

_MOMENTS = 600
_WIDTH, _HEIGHT = 1000, 320
_LEFT, _BOTTOM = 70, 24
_LINES = 4
# From the bottom of the stack, in colours that differ in lightness, too.
_COLORS = {
    "weights": "#1f4e79",
    "optimizer state": "#2e9cca",
    "CUDA-graph pools": "#8a8a8a",
    "communication buffers": "#5c6bc0",
    "gradients": "#8e44ad",
    "activations": "#3a9d5d",
    "attention scores": "#d1495b",
    "logits and loss": "#edae49",
    "temporaries": "#b9a89a",
    "unknown": "#d9d9d9",
}

_STYLE = """
body { font: 14px/1.45 system-ui, sans-serif; margin: 2em auto; max-width: 70em;
       padding: 0 1em; color: #1a1a1a; background: #fff; }
h1 { font-size: 1.3em; } h2 { font-size: 1.1em; overflow-wrap: anywhere; }
dl { display: grid; grid-template-columns: 7em 1fr; gap: .2em 1em; }
dt { font-weight: 600; } dd { margin: 0; overflow-wrap: anywhere; }
.lost { color: #b00020; }
table { border-collapse: collapse; margin: 1.2em 0; width: 100%; }
th, td { text-align: left; padding: .15em .8em .15em 0; vertical-align: top;
         border-bottom: 1px solid #e6e6e6; overflow-wrap: anywhere; }
.number { text-align: right; white-space: nowrap; overflow-wrap: normal; }
figure { margin: 1em 0; position: relative; }
svg { width: 100%; height: auto; display: block; }
svg text { font: 11px system-ui, sans-serif; fill: #555; }
.line { stroke: #e6e6e6; } .reserved { fill: none; stroke: #1a1a1a; stroke-width: 1;
        stroke-dasharray: 4 3; } .at { stroke: #1a1a1a; visibility: hidden; }
.legend span { display: inline-block; margin-right: 1.2em; }
.legend i { display: inline-block; width: .8em; height: .8em; margin-right: .35em; }
.tip { position: absolute; top: 8px; background: #fffffff2; border: 1px solid #bbb;
       padding: .4em .7em; pointer-events: none; visibility: hidden;
       white-space: pre; font-variant-numeric: tabular-nums; }
"""

_SCRIPT = """
for (const figure of document.querySelectorAll("figure")) {
  const data = JSON.parse(figure.querySelector("script").textContent);
  const svg = figure.querySelector("svg"), tip = figure.querySelector(".tip");
  const at = figure.querySelector(".at");
  svg.addEventListener("mousemove", (event) => {
    const box = svg.getBoundingClientRect();
    const x = (event.clientX - box.left) / box.width * data.width;
    const part = (x - data.left) / (data.width - data.left);
    if (part < 0 || part > 1) { return hide(); }
    const index = Math.min(data.moments.length - 1,
                           Math.floor(part * data.moments.length));
    tip.textContent = data.moments[index];
    tip.style.visibility = at.style.visibility = "visible";
    at.setAttribute("x1", x); at.setAttribute("x2", x);
    const pixel = x / data.width * box.width;
    tip.style.left = pixel < box.width / 2 ? pixel + 12 + "px" : "auto";
    tip.style.right = pixel < box.width / 2 ? "auto" : box.width - pixel + 12 + "px";
  });
  function hide() { tip.style.visibility = at.style.visibility = "hidden"; }
  svg.addEventListener("mouseleave", hide);
}
"""


def render(summaries: Sequence[MemorySummary]) -> str:
    """Return the page: a section for each device."""
    title = f"GPU memory: {as_unicode(printable(summaries[0].name))}"
    body = [
        "<h1>GPU memory</h1>",
        *map(_section, summaries),
        f"<p>traceq {_text(__version__)}</p>",
    ]
    return page(title, _STYLE, body, _SCRIPT)


def _section(summary: MemorySummary) -> str:
    words = content(summary)
    facts = [
        f'<dt class="lost">Incomplete</dt><dd>{_text(w)}</dd>' for w in words.warnings
    ]
    facts += [f"<dt>{_text(a)}</dt><dd>{_text(b)}</dd>" for a, b in words.facts]
    parts = [
        f"<section>\n<h2>{_text(words.title)}</h2>",
        _figure(summary),
        "<dl>\n" + "\n".join(facts) + "\n</dl>",
        *map(_table, words.tables),
        "</section>",
    ]
    return "\n".join(parts)


def _figure(summary: MemorySummary) -> str:
    """Return the chart: categories stacked over time, and what was reserved."""
    if not summary.peak["allocated"]:
        return ""
    moments = highest_moments(summary.curve, _MOMENTS)
    found = timeline(summary.curves, moments["event"])
    sizes = {
        (event, category): size
        for event, category, size in found.iter_rows()
        if size > 0
    }
    events = moments["event"].to_list()
    top = max(summary.peak["allocated"], *moments["reserved"].to_list())
    shown = [
        name for name in _COLORS if any((event, name) in sizes for event in events)
    ]
    bottom = [0] * len(events)
    areas = []
    for name in shown:
        upper = [
            low + sizes.get((event, name), 0)
            for low, event in zip(bottom, events, strict=True)
        ]
        areas.append(
            f'<path fill="{_COLORS[name]}" d="{_area(bottom, upper, top)}">'
            f"<title>{_text(name)}</title></path>"
        )
        bottom = upper
    legend = "".join(
        f'<span><i style="background:{_COLORS[name]}"></i>{_text(name)}</span>'
        for name in reversed(shown)
    )
    data = {
        "width": _WIDTH,
        "left": _LEFT,
        "moments": _tips(summary, moments, sizes, shown),
    }
    return "\n".join(
        [
            "<figure>",
            f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img"'
            f' aria-label="allocated over time, by category">',
            *_axes(summary, top),
            *areas,
            f'<path class="reserved" d="{_steps(moments["reserved"].to_list(), top)}">'
            "<title>reserved</title></path>",
            f'<line class="at" y1="0" y2="{_HEIGHT - _BOTTOM}"/>',
            "</svg>",
            '<div class="tip"></div>',
            f'<figcaption class="legend">{legend}',
            "<span>- - reserved</span></figcaption>",
            f'<script type="application/json">{_json(data)}</script>',
            "</figure>",
        ]
    )


def _tips(
    summary: MemorySummary,
    moments: pl.DataFrame,
    sizes: dict[tuple[int | None, str], int],
    shown: list[str],
) -> list[str]:
    """Return the tooltip of each moment, in lines."""
    rows = moments.join(
        summary.phases.select("event", "step", "phase"),
        on="event",
        how="left",
        maintain_order="left",
    )
    return ["\n".join(_tip(row, sizes, shown)) for row in rows.iter_rows(named=True)]


def _tip(
    row: dict[str, Any], sizes: dict[tuple[int | None, str], int], shown: list[str]
) -> Iterator[str]:
    parts = [units.time(row["ts"])] if row["ts"] is not None else []
    parts += [row["phase"]] if row["phase"] else []
    parts += [f"step {row['step']}"] if row["step"] is not None else []
    yield ", ".join(parts) or "before the first event"
    yield f"{units.size(row['allocated']):>10}  allocated"
    for name in reversed(shown):
        if (row["event"], name) in sizes:
            yield f"{units.size(sizes[row['event'], name]):>10}  {name}"
    yield f"{units.size(row['reserved']):>10}  reserved"


def _axes(summary: MemorySummary, top: int) -> Iterator[str]:
    for line in range(_LINES + 1):
        y = _y(top * line / _LINES, top)
        yield f'<line class="line" x1="{_LEFT}" x2="{_WIDTH}" y1="{y}" y2="{y}"/>'
        label = units.size(top * line / _LINES)
        yield f'<text x="{_LEFT - 6}" y="{y + 4}" text-anchor="end">{label}</text>'
    last = summary.curve["ts"].max()
    end = f"{summary.curve.height - 1:,} events"
    if isinstance(last, int) and last:
        end = units.time(last)
    yield f'<text x="{_LEFT}" y="{_HEIGHT - 6}">0</text>'
    yield f'<text x="{_WIDTH}" y="{_HEIGHT - 6}" text-anchor="end">{end}</text>'


def _area(lower: list[int], upper: list[int], top: int) -> str:
    """Return the path around what is between two lines of steps."""
    back = " ".join(reversed(_points(lower, top)))
    return f"M{' '.join(_points(upper, top))} L{back} Z"


def _steps(values: list[int], top: int) -> str:
    return f"M{' '.join(_points(values, top))}"


def _points(values: list[int], top: int) -> list[str]:
    """Return the corners of a line of steps, without those that are on it anyway."""
    points = []
    for at, value in enumerate(values):
        before = values[at - 1] if at else None
        after = values[at + 1] if at + 1 < len(values) else None
        if value != before:
            points.append(f"{_x(at / len(values))},{_y(value, top)}")
        if value != after:
            points.append(f"{_x((at + 1) / len(values))},{_y(value, top)}")
    return points


def _x(part: float) -> float:
    return round(_LEFT + part * (_WIDTH - _LEFT), 1)


def _y(value: float, top: int) -> float:
    return round((_HEIGHT - _BOTTOM) * (1 - value / top) + 4 * value / top, 1)


def _table(table: TextTable) -> str:
    kinds = [' class="number"' if column.number else "" for column in table.columns]
    head = "".join(
        f"<th{kind}>{_text(column.title)}</th>"
        for kind, column in zip(kinds, table.columns, strict=True)
    )
    rows = [
        "<tr>"
        + "".join(
            f"<td{kind}>{_text(cell)}</td>"
            for kind, cell in zip(kinds, row, strict=True)
        )
        + "</tr>"
        for row in table.rows
    ]
    return f"<table>\n<tr>{head}</tr>\n" + "\n".join(rows) + "\n</table>"


def _text(text: str) -> str:
    return escape(as_unicode(printable(text)))


def _json(data: dict[str, Any]) -> str:
    """Return JSON in which nothing can end the script around it."""
    text = json.dumps(data, ensure_ascii=True)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
