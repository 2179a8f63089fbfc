"""The table of findings: one line each, cut to the width."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from msgspec import Struct

from traceq.common.safe_text import printable
from traceq.common.units import share, size, time
from traceq.report.base.columns import cells, cut_module
from traceq.report.base.text import styled
from traceq.report.lint import content as words
from traceq.report.lint import cpu
from traceq.report.lint.out_of_memory import is_failure

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from traceq.model.finding import Finding, Place
    from traceq.model.lint_report import RecordingReport

_GAP = "  "
_MORE = "…"
# The location takes at most this share of a line.
_LOCATION = 0.24
# A text is cut after a clause if that keeps this share of the room.
_MOST_OF_IT = 0.5
_CLAUSE_END = re.compile(r"(?=[:;] )|(?=,? (?:because|since|although) )")
# A narrower terminal has no room for the step after each fix.
_WIDE = 90
# Longer locations are not aligned with those of other lines.
_ALIGNED = 0.35
_UNKNOWN = "unknown"
_PAIRS = (("(", ")"), ("[", "]"), ("{", "}"))


class Row(Struct, frozen=True):
    """The texts of one finding."""

    code: str
    saves: str
    share: str
    then: str
    location: str
    message: str
    style: str


def row(finding: Finding, outcome: RecordingReport, step_ns: int | None) -> Row:
    """Return the texts of a finding; ``step_ns`` is the step with it fixed."""
    saves, part = _saves(finding, outcome)
    doubt = cpu.LEVEL if finding.would_matter_on_gpu else words.doubt(finding)
    mark = "error" if finding.severity.value == "error" else doubt
    if finding.minor:
        style = "dim"
    else:
        style = "cyan" if finding.doubt else words.SEVERITY_COLORS[finding.severity]
    return Row(
        code=finding.code,
        saves=saves,
        share=part,
        then=time(step_ns) if step_ns is not None else "",
        location=location(finding.place),
        message=printable(f"{mark}: {finding.message}" if mark else finding.message),
        style=style,
    )


def _saves(finding: Finding, outcome: RecordingReport) -> tuple[str, str]:
    """Return what a fix saves, and its share of the step or of the memory."""
    if is_failure(finding):
        return "", ""
    if finding.cost_bytes and outcome.memory:
        part = share(finding.cost_bytes, outcome.memory.reserved)
        return size(finding.cost_bytes), part
    if words.saves_time(finding, outcome):
        # What it saves alone is not known, or little: its figure is after the others.
        then = "then " if words.after_others(finding, outcome) else ""
        part = share(finding.saves_ns, outcome.step_ns)
        return f"{then}{time(finding.saves_ns)}", part
    # Idle time that matters, though no fix is known.
    matters = finding.residual and finding.gpu_idle_ns and not finding.minor
    return (_UNKNOWN if matters else ""), ""


def location(place: Place) -> str:
    """Return the file and the line, and the function if the line is where it begins.

    >>> from traceq.model.finding import Place
    >>> location(Place("a.py", 42, "f", line_is="call"))
    'a.py:42'
    >>> location(Place("a.py", 4, "f"))
    'a.py:4 in f'
    """
    if not place.source:
        return printable(place.module or "")
    line = "" if place.line is None else f":{place.line}"
    function = f" in {place.function}" if place.function and not place.exact else ""
    return printable(f"{place.source}{line}{function}")


def cut_location(text: str, width: int) -> str:
    """Cut a location: the function first, then folders; file and line stay whole.

    >>> cut_location("src/model.py:42 in forward", 16)
    'src/model.py:42'
    >>> cut_location("src/of/model.py:42", 13), cut_location("src/model.py:42", 9)
    ('…/model.py:42', 'model.py:42')
    >>> cut_location("LM_0/Block_3/RMSNorm_7", 12)
    '…/RMSNorm_7'
    """
    if cells(text) <= width:
        return text
    file = text.partition(" in ")[0]
    if cells(file) <= width:
        return file
    if ":" not in file and "." not in file:
        return cut_module(file, width)
    folders = re.split(r"(?<=[/\\])", file)
    while len(folders) > 1 and cells("".join(folders)) + 2 > width:
        del folders[0]
    shorter = "".join(folders)
    cut = f"{_MORE}/{shorter}" if shorter != file else file
    return cut if cells(cut) <= width else shorter


def cut_text(text: str, width: int) -> str:
    """Cut a text after a clause if much of it stays so, else within it.

    >>> cut_text("SDPA falls back: it has a mask", 20)
    'SDPA falls back'
    >>> cut_text("pin the tensor (with f(x); or g(x))", 31)
    'pin the tensor (with f(x); or…'
    """
    if cells(text) <= width:
        return text
    clauses = [text[: end.start()] for end in _CLAUSE_END.finditer(text)]
    whole = [
        clause
        for clause in clauses
        if _MOST_OF_IT * width <= cells(clause) <= width
        and all(clause.count(one) == clause.count(other) for one, other in _PAIRS)
    ]
    if whole:
        return whole[-1]
    cut = text[: max(0, width)]
    while cells(cut) > max(0, width - 1):
        cut = cut[:-1]
    words_of, _, _ = cut.rpartition(" ")
    beginning = words_of if cells(words_of) >= _MOST_OF_IT * width else cut
    return beginning.rstrip(" ,;:") + _MORE if width > 0 else ""


def table(rows: Sequence[Row], width: int, *, color: bool) -> list[str]:
    """Return the titles and a line for each row, none longer than the width."""
    most = max(8, round(_LOCATION * width))
    places = [cut_location(item.location, most) for item in rows]
    columns = [
        _column("", [item.code for item in rows], align=str.ljust),
        _column("saves", _with_shares(rows), align=str.rjust),
        _column("step after", [item.then for item in rows], align=str.rjust)
        if width >= _WIDE
        else [],
        _column("where", places, align=str.ljust, most=round(_ALIGNED * width)),
    ]
    titles, *lines = (
        _GAP.join(texts)
        for texts in zip(*(column for column in columns if column), strict=True)
    )
    shown = [styled(titles.rstrip(), "dim", color=color)] if titles.strip() else []
    for one, before in zip(rows, lines, strict=True):
        message = cut_text(one.message, width - cells(before) - len(_GAP))
        code = styled(one.code, one.style, color=color)
        shown.append(f"{code}{before[len(one.code) :]}{_GAP}{message}".rstrip())
    return shown


def _with_shares(rows: Sequence[Row]) -> list[str]:
    """Return the savings with their shares, these below each other."""
    widest = max(len(item.share) for item in rows)
    return [
        f"{item.saves} {item.share.rjust(widest)}" if item.saves else ""
        for item in rows
    ]


def _column(
    title: str,
    texts: Sequence[str],
    *,
    align: Callable[[str, int], str],
    most: int | None = None,
) -> list[str]:
    """Return the title and the texts in one width; nothing if all are empty."""
    if not any(texts):
        return []
    widths = [cells(text) for text in (title, *texts)]
    widest = max(width for width in widths if most is None or width <= most)
    return [
        align(text, widest - width + len(text))
        for text, width in zip((title, *texts), widths, strict=True)
    ]
