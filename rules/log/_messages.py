"""Shared code of rules on logs: torch's messages, turned into findings."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base import callers
from traceq.linter import NOWHERE, Evidence, Place, dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import Any

    from traceq.linter import Finding, Rule, Severity

# Lines of one message that are searched for its reason. Heuristic threshold: the reason
# of torch's recompile limit is in the third line.
_LINES = 12
# Messages of one kind that are read, each with its lines. Heuristic threshold.
_MOST_HITS = 1_000
# Characters of a line that are shown.
_LONGEST = 200
# How torch's own loggers begin a line: when and which thread, which source line, then
# the code that is compiled and the kind of message.
_TIME = r"^[A-Z]\d{4} [\d:.]+ \d+ "
_LOGGED = r"^([A-Z]\d{4} [\d:.]+ \d+ \S+\] )"
_HEAD = r"^[A-Z]\d{4} [\d:.]+ \d+ \S+\] (?:\[[\d/!]+\] )?(?:\[__\w+\] )?"
_FRAME_ID = r"[A-Z]\d{4} [\d:.]+ \d+ \S+\] \[(!?\d+)/"
_LIBRARY = r"/(site|dist)-packages/|/lib/python3\.\d+/|/torch/_(dynamo|inductor)/|^<"
_FRAME = r'File "([^"\n]+)", line (\d+), in ([^\s,]+)'
RESUME = r"^torch_dynamo_resume_in_(.+)_at_\d+$"
# Where a warning was raised, as Python writes it before the text.
WARNED_AT = r"(?:(?P<file>[^\s:]+\.py):(?P<line>\d+): \w*Warning: )?"


@dataclass(frozen=True)
class Message:
    """One message of a log; ``{name}`` in a text is a named group of the patterns.

    The groups ``file``, ``line`` and ``function`` are the place that it is about.
    """

    subject: str
    pattern: str
    """Pattern of the line, in the syntax that Python and Polars share."""
    means: str
    """The finding's message."""
    advice: str
    explains: tuple[str, ...] = ()
    severity: Severity | None = None
    details: tuple[str, ...] = ()
    """Second pattern, in this line and those after it."""
    to_confirm: bool = False
    """True if it only matters with one of the findings it explains."""
    lines: int = _LINES
    """Maximum number of its lines."""


def findings(
    rule: Rule, messages: Iterable[Message], log: pl.DataFrame
) -> Iterator[Finding]:
    """Yield a finding for each message and each place that it names."""
    for message in messages:
        by_place: dict[Place, list[Hit]] = {}
        for hit in hits(message, log):
            by_place.setdefault(place_of(hit.groups), []).append(hit)
        for place, group in by_place.items():
            yield _finding(rule, message, place, group)


@dataclass(frozen=True)
class Hit:
    """One message as a log has it."""

    groups: Mapping[str, str]
    """The named groups that were found."""
    at: int
    """The number of its line."""
    text: str
    """That line."""
    whole: str
    """All its lines, without what loggers write before each."""
    count: int
    """Number of times that it is printed in these words."""

    @property
    def frame(self) -> str | None:
        """The number of the compiled function that it is about."""
        match = re.match(_FRAME_ID, self.text)
        return match[1] if match else None

    @property
    def evidence(self) -> Evidence:
        """Return the line as evidence."""
        return _line(self.text, self.at, self.count)


def hits(message: Message, log: pl.DataFrame) -> list[Hit]:
    """Return where a log has a message.

    The groups are found by Polars, whose patterns take time in proportion to the text
    whatever stands in it.
    """
    text = pl.col("text")
    matching = log.with_row_index("row").filter(text.str.contains(message.pattern))
    if message.details:
        # Two equal lines may differ in the lines that follow them.
        matching = matching.head(_MOST_HITS).with_columns(count=pl.lit(1))
        lines = message.lines
    else:
        matching = matching.group_by(
            text.str.replace(_TIME, ""), maintain_order=True
        ).agg(pl.col("row", "line").first(), count=pl.len())
        lines = 1
    if not matching.height:
        return []
    rows = matching.with_columns(whole=_whole(log["text"], matching["row"], lines))
    patterns = enumerate((message.pattern, *message.details))
    rows = rows.with_columns(
        pl.col("whole").str.extract_groups(pattern).alias(f"groups_{number}")
        for number, pattern in patterns
    )
    return [
        Hit(_groups(row), row["line"], row["text"], row["whole"], row["count"])
        for row in rows.iter_rows(named=True)
    ]


def _whole(text: pl.Series, rows: pl.Series, lines: int) -> pl.Series:
    """Return the messages that begin in these rows, as far as they may reach.

    A logger writes the same words before all lines of a message; a line that begins
    with other ones is of another message.
    """
    last = max(0, len(text) - 1)
    parts = [text.gather((rows + n).clip(upper_bound=last)) for n in range(lines)]
    begins = parts[0].str.extract(_LOGGED)
    there = [rows + n <= last for n in range(lines)]
    message_parts = [
        pl.when(
            same & (begins.is_null() | part.str.extract(_LOGGED).eq_missing(begins))
        )
        .then(part.str.replace(_HEAD, ""))
        .alias(str(number))
        for number, (part, same) in enumerate(zip(parts, there, strict=True))
    ]
    return pl.select(
        pl.concat_str(message_parts, separator="\n", ignore_nulls=True)
    ).to_series()


def _groups(row: Mapping[str, Any]) -> dict[str, str]:
    """Return the named groups that were found."""
    return {
        name: value.strip()
        for column, groups in row.items()
        if column.startswith("groups_") and groups
        for name, value in groups.items()
        if value and not name.isdigit()
    }


def library_file(file: str) -> bool:
    """Return whether a file is one of torch, Python or another library."""
    return bool(re.search(_LIBRARY, file))


def place_of(parts: Mapping[str, str]) -> Place:
    """Return the place that the groups of a message name, if it is the user's."""
    file = parts.get("file")
    if not file or library_file(file):
        return NOWHERE
    line = int(parts.get("line", 0)) or None
    return Place(file, line, parts.get("function"), line_is="call")


def frames_of(whole: str) -> list[Place]:
    """Return the user's functions of a stack that a message has, outermost first."""
    return [
        Place(file, int(line), resumed(function), line_is="call")
        for file, line, function in re.findall(_FRAME, whole)
        if not library_file(file)
    ]


def resumed(function: str) -> str:
    """Return the function that a name of torch's stands for.

    >>> resumed("torch_dynamo_resume_in_forward_at_60")
    'forward'
    """
    match = re.match(RESUME, function)
    return match[1] if match else function


def _line(text: str, at: int, count: int) -> Evidence:
    text = re.sub(r"\s+", " ", re.sub(_HEAD, "", text)).strip()
    text = text if len(text) <= _LONGEST else f"{text[:_LONGEST]} …"
    # The number of the line is a note: where it stands is not what it means.
    return Evidence(
        "line", text, count=count if count > 1 else None, note=f"(line {at})"
    )


def _finding(rule: Rule, message: Message, place: Place, group: list[Hit]) -> Finding:
    # Numbers in such messages only grow, so the last one is the current one.
    last = _Filled(group[-1].groups)
    count = sum(hit.count for hit in group)
    return rule.finding(
        message.means.format_map(last),
        subject=message.subject,
        place=place,
        count=count,
        evidence=[_line(group[-1].text, group[0].at, count)],
        data={name: value for name, value in last.items() if name not in callers.PLACE},
        advice=message.advice.format_map(last),
        severity=message.severity,
        explains=message.explains,
        confirmed_by=message.explains if message.to_confirm else (),
    )


class _Filled(dict[str, str]):
    """The groups of a message, and ``?`` for those that it lacks."""

    def __missing__(self, name: str) -> str:
        return "?"
