"""What rules on logs share: messages that torch prints, made into findings."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base.callers import PLACE
from traceq.finding import NOWHERE, Evidence, Place

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import Any

    from traceq.finding import Finding, Severity
    from traceq.lint.rule import Rule

# A message may run over several lines, with its reason near the beginning: that of the
# recompile limit is in the third line. Chosen by judgement.
_LINES = 12
# Messages of one kind that are looked at, each with its lines. Chosen by judgement.
_MOST_HITS = 1_000
# Characters of a line that are shown.
_LONGEST = 200
# How torch's own loggers begin a line.
_TIME = r"^[A-Z]\d{4} [\d:.]+ \d+ "
_LIBRARY = re.compile(r"/(site|dist)-packages/|^<")
# Where a warning was raised, as Python writes it before the text.
WARNED_AT = r"(?:(?P<file>[^\s:]+\.py):(?P<line>\d+): \w*Warning: )?"


@dataclass(frozen=True)
class Message:
    """One message of a log; ``{name}`` in a text is a named group of the patterns.

    The groups ``file``, ``line`` and ``function`` are the place that it is about.
    """

    subject: str
    pattern: str
    """What to look for in a line, in the syntax that Python and Polars share."""
    means: str
    """The finding's message."""
    advice: str
    explains: tuple[str, ...] = ()
    severity: Severity | None = None
    details: tuple[str, ...] = ()
    """What else to look for, in this line and those after it."""
    to_confirm: bool = False
    """Whether it only matters if the trace has one of the findings it explains."""


def findings(
    rule: Rule, messages: Iterable[Message], log: pl.DataFrame
) -> Iterator[Finding]:
    """Yield a finding for each message and each place that it names."""
    for message in messages:
        by_place: dict[Place, list[dict[str, str]]] = {}
        counts: dict[Place, int] = {}
        for row in _hits(message, log).iter_rows(named=True):
            found = _groups(row) | {"at": str(row["line"]), "text": row["text"]}
            count = row["count"]
            place = _place(found)
            by_place.setdefault(place, []).append(found)
            counts[place] = counts.get(place, 0) + count
        for place, group in by_place.items():
            yield _finding(rule, message, place, group, counts[place])


def _hits(message: Message, log: pl.DataFrame) -> pl.DataFrame:
    """Return the lines that begin a message, how often each is printed, and groups.

    The groups are found by Polars, whose patterns take time in proportion to the text
    whatever stands in it.
    """
    text = pl.col("text")
    hits = log.with_row_index("row").filter(text.str.contains(message.pattern))
    if message.details:
        # Two equal lines may differ in the lines that follow them.
        hits = hits.head(_MOST_HITS).with_columns(count=pl.lit(1))
        lines = range(_LINES)
    else:
        hits = hits.group_by(text.str.replace(_TIME, ""), maintain_order=True).agg(
            pl.col("row", "line").first(), count=pl.len()
        )
        lines = range(1)
    after = [
        log["text"]
        .gather((hits["row"] + n).clip(upper_bound=max(0, log.height - 1)))
        .alias(str(n))
        for n in lines
    ]
    return hits.with_columns(
        pl.select(pl.concat_str(after, separator="\n")).to_series().alias("whole")
    ).with_columns(
        pl.col("whole").str.extract_groups(pattern).alias(f"groups_{number}")
        for number, pattern in enumerate((message.pattern, *message.details))
    )


def _groups(row: Mapping[str, Any]) -> dict[str, str]:
    """Return the named groups that were found."""
    return {
        name: value.strip()
        for column, groups in row.items()
        if column.startswith("groups_") and groups
        for name, value in groups.items()
        if value and not name.isdigit()
    }


def _place(found: Mapping[str, str]) -> Place:
    file = found.get("file")
    if not file or _LIBRARY.search(file):
        return NOWHERE
    line = int(found.get("line", 0)) or None
    return Place(file, line, found.get("function"), line_is="call")


def _finding(
    rule: Rule,
    message: Message,
    place: Place,
    group: list[dict[str, str]],
    count: int,
) -> Finding:
    # Numbers in such messages only grow, so the last one is the current one.
    last = _Filled(group[-1])
    text = re.sub(r"\s+", " ", last["text"]).strip()
    text = text if len(text) <= _LONGEST else f"{text[:_LONGEST]} …"
    return rule.finding(
        message.means.format_map(last),
        subject=message.subject,
        place=place,
        count=count,
        # The number of the line is a note: where it stands is not what it means.
        evidence=[
            Evidence(
                "line",
                text,
                count=count if count > 1 else None,
                note=f"(line {group[0]['at']})",
            )
        ],
        data={
            name: value
            for name, value in last.items()
            if name not in ("at", "text", *PLACE)
        },
        advice=message.advice.format_map(last),
        severity=message.severity,
        explains=message.explains,
        confirmed_by=message.explains if message.to_confirm else (),
    )


class _Filled(dict[str, str]):
    """The groups of a message, and ``?`` for those that it lacks."""

    def __missing__(self, name: str) -> str:
        return "?"
