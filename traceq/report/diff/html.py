"""A comparison as one page of HTML that needs nothing else: no script, no network."""

from __future__ import annotations

from html import escape
from itertools import accumulate
from typing import TYPE_CHECKING

from traceq.report.base import html
from traceq.report.base.text import printable
from traceq.report.diff import content as words
from traceq.report.diff import memory as memory_diff_content
from traceq.report.diff import modules as by_module
from traceq.units import time

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from traceq.analysis.memory.diff import MemoryDiff
    from traceq.differ.compare import Diff
    from traceq.differ.findings import FindingChanges
    from traceq.differ.limits import Broken

_STYLE = """
:root { color-scheme: light dark; --more: #c2410c; --less: #15803d; --step: #64748b;
  --line: #8886; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 68rem; margin: 2rem auto;
  padding: 0 1rem; }
h1 { font-size: 1.35rem; } h2 { font-size: 1.05rem; margin-top: 2rem; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .3rem .6rem;
  border-bottom: 1px solid var(--line); overflow-wrap: anywhere; }
td:first-child { white-space: nowrap; }
.number { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
.track { width: 38%; min-width: 9rem; }
.track div { position: relative; height: 1.2rem; }
.track span { position: absolute; top: 0; bottom: 0; min-width: 2px; }
.more { background: var(--more); } .less { background: var(--less); }
.step { background: var(--step); }
.failed { color: var(--more); font-weight: bold; }
small { opacity: .75; display: block; }
"""
_WIDE = 110


def render(diff: Diff, broken: Sequence[Broken] = ()) -> str:
    """Return the page."""
    names = (diff.before.name, diff.after.name)
    return page(words.headline(diff), names, broken, _body(diff))


def page(
    title: str, names: tuple[str, str], broken: Sequence[Broken], body: Iterable[str]
) -> str:
    """Return a page on two recordings."""
    failed = (
        f'<p class="failed">{_text(failure)}</p>' for failure in words.failures(broken)
    )
    head = [
        f"<h1>{_text(title)}</h1>",
        f"<p>before {_name(names[0])}<br>after {_name(names[1])}</p>",
    ]
    return html.page(title, _STYLE, [*failed, *head, *body])


def memory_part(memory: MemoryDiff) -> Iterator[str]:
    """Yield the change of the peak, as the terminal shows it."""
    text = memory_diff_content.text(memory, width=_WIDE, color=False)
    yield f"<pre>{_text(text)}</pre>"


def findings_part(found: FindingChanges) -> Iterator[str]:
    """Yield what became of the findings."""
    yield f"<h2>Findings: {_text(words.findings_verdict(found))}</h2>"
    rows = [(change.state, words.finding_line(change)) for change in found.changes]
    if rows:
        yield from _table(("", "finding"), rows)


def _body(diff: Diff) -> Iterator[str]:
    yield from (
        f"<p>{title}: {_text(bound)}</p>" for title, _, bound in words.sides(diff)
    )
    titles = (words.compared(diff), "before", "after", "change")
    yield from _table(titles, words.metric_rows(diff), numbers=True)
    yield from _waterfall(diff)
    if diff.modules is not None:
        yield f"<h2>{_text(by_module.TITLE)}</h2>"
        yield from _table(by_module.TITLES, by_module.rows(diff.modules), numbers=True)
        yield from (f"<p>{_text(note)}</p>" for note in by_module.notes(diff.modules))
    calls = [("before", diff.calls.before), ("after", diff.calls.after)]
    for side, names in calls:
        if names:
            yield f"<p>Only {side}: {_text(words.only(names))}</p>"
    yield from findings_part(diff.findings)
    if diff.memory is not None:
        yield from memory_part(diff.memory)
    caveats = words.caveats(diff)
    if caveats:
        yield "<h2>Caveats</h2><ul>"
        yield from (f"<li>{_text(caveat)}</li>" for caveat in caveats)
        yield "</ul>"


def _waterfall(diff: Diff) -> Iterator[str]:
    """Draw the causes as steps from one length of a step to the other."""
    reasons = words.reasons(diff)
    if not reasons:
        return
    changes = [reason.ns for reason in reasons]
    before, after = diff.before.step.ns, diff.after.step.ns
    levels = list(accumulate(changes, initial=before))
    low, high = min(0.0, *levels), max(before, after, *levels)
    yield "<h2>Why, biggest first</h2>"
    yield "<table>"
    yield _bar("before", time(before), "step", (0.0, before), (low, high))
    for reason, start, end in zip(reasons, levels, levels[1:], strict=False):
        more = "<br>".join(
            _text(line) for line in (reason.where, *reason.details) if line
        )
        text = _text(reason.text) + (f"<small>{more}</small>" if more else "")
        side = "more" if reason.ns > 0 else "less"
        yield _bar(text, reason.change, side, (start, end), (low, high))
    yield _bar("after", time(after), "step", (0.0, after), (low, high))
    yield "</table>"


def _bar(
    text: str,
    amount: str,
    kind: str,
    span: tuple[float, float],
    scale: tuple[float, float],
) -> str:
    whole = (scale[1] - scale[0]) or 1.0
    left = 100 * (min(span) - scale[0]) / whole
    width = 100 * abs(span[1] - span[0]) / whole
    style = f"left:{left:.2f}%;width:{width:.2f}%"
    title = f"{time(span[0])} to {time(span[1])}"
    return (
        f'<tr><td class="number">{_text(amount)}</td><td class="track"><div>'
        f'<span class="{kind}" style="{style}" title="{_text(title)}"></span>'
        "</div></td>"
        f"<td>{text}</td></tr>"
    )


def _table(
    titles: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: bool = False
) -> Iterator[str]:
    yield "<table>"
    kind = ' class="number"' if numbers else ""
    for tag, row in (("th", titles), *(("td", row) for row in rows)):
        first, *rest = (_text(cell) for cell in row)
        cells = "".join(f"<{tag}{kind}>{cell}</{tag}>" for cell in rest)
        yield f"<tr><{tag}>{first}</{tag}>{cells}</tr>"
    yield "</table>"


def _name(name: str) -> str:
    return f"<code>{_text(printable(name))}</code>"


def _text(text: str) -> str:
    return escape(text, quote=True)
