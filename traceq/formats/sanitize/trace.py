"""Trace as text that can be rewritten: its events, and the text around them.

Content that is known to be harmless is kept, byte by byte as the profiler wrote it;
content that is not on the lists here is omitted, as it may be anything.
"""

from __future__ import annotations

import gzip
import io
import json
import re
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import polars as pl

from traceq.errors import InputError
from traceq.formats.chunks import Cut, chunks
from traceq.formats.events import joined, nanoseconds
from traceq.formats.facts import RECORDER, integer
from traceq.formats.gc_pause import collecting_paused
from traceq.formats.sanitize.fields import Fields, header_value
from traceq.formats.sanitize.members import Member, changed, members, rewritten
from traceq.formats.sanitize.paths import Paths
from traceq.formats.sanitize.regions import Regions
from traceq.formats.source import Source

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

_CHUNK = 4 << 20
_SAMPLE = 1000

_HEADER = {
    "schemaVersion",
    "deviceProperties",
    "record_shapes",
    "profile_memory",
    "with_stack",
    "with_modules",
    "with_flops",
    "distributedInfo",
    "cupti_version",
    "cuda_runtime_version",
    "cuda_driver_version",
    "hip_runtime_version",
    "hip_driver_version",
    "roctracer_version",
    "rocprofiler-sdk_version",
    "DISABLE_CUPTI_LAZY_REINIT",
    "displayTimeUnit",
    "baseTimeNanoseconds",
    "traceEvents",
    RECORDER,
}
# Allowed members of the objects in the header.
_INSIDE = {
    "deviceProperties": {
        "id",
        "name",
        "totalGlobalMem",
        "computeMajor",
        "computeMinor",
        "maxThreadsPerBlock",
        "maxThreadsPerMultiprocessor",
        "maxSharedMemoryPerMultiProcessor",
        "regsPerBlock",
        "regsPerMultiprocessor",
        "warpSize",
        "sharedMemPerBlock",
        "sharedMemPerBlockOptin",
        "sharedMemPerMultiprocessor",
        "numSms",
    },
    "distributedInfo": {"backend", "rank", "world_size", "nccl_version"},
}
_EVENT = {"ph", "cat", "name", "caller", "pid", "tid", "ts", "dur", "s", "args"}
_ARROWS = ("s", "t", "f")
# In the name of a call, or in a stack of them.
_FILES = re.compile(r'[";]\s*([^";]+?)\(\d+\): ')

EVENTS = pl.Schema(
    {
        "text": pl.String(),  # as the file has it, without its braces and first quote
        "phase": pl.String(),
        "category": pl.String(),
        "name": pl.String(),
        "lane": pl.String(),
        "ts": pl.Int64(),  # nanoseconds, as the file counts them
        "end": pl.Int64(),
        "correlation": pl.Int64(),
        "device_type": pl.Int64(),  # of a memory event, 0 for the CPU
        "device": pl.Int64(),
        "allocated": pl.Int64(),
    }
)


@dataclass(frozen=True)
class Written:
    """A trace that can be written: nothing private is in it any more."""

    head: str
    """All that comes before the first event's first key."""
    separator: str
    foot: str
    """All that comes after the last event's last value."""
    events: pl.DataFrame
    """As EVENTS says, in the order of the file."""
    paths: Paths
    regions: Regions
    unreadable: int = 0
    """Events that are not JSON, which are left out."""
    arrows: int = 0
    """Arrows between events, whose ids are enough, and events without known members."""

    def keeping(self, condition: pl.Expr) -> Written:
        """Return the trace with some of its events."""
        return replace(self, events=self.events.filter(condition))

    def json(self) -> bytes:
        """Return the file's content."""
        events = self.separator.join(self.events["text"])
        return (self.head + events + self.foot).encode()

    @cached_property
    def gzipped(self) -> bytes:
        """The file's content, packed; the same bytes for the same content."""
        return packed(self.json())


def packed(content: bytes) -> bytes:
    """Return content as a gzip file that knows no name and no time."""
    file = io.BytesIO()
    with gzip.GzipFile("", "wb", 9, file, mtime=0) as stream:
        stream.write(content)
    return file.getvalue()


def read_written(
    path: Path,
    progress: Callable[[int, int], None] | None = None,
    files: Iterable[str] = (),
    *,
    keep_regions: bool = False,
) -> Written:
    """Read a trace's text and take out what could be private.

    ``files`` are source files that are named elsewhere, and belong to the same
    program. With ``keep_regions`` the texts of regions stay. Raises ``InputError``
    for a file that is not a whole trace.
    """
    with collecting_paused():
        return _cleaned(path, _parts(path, progress), files, keep_regions=keep_regions)


def _cleaned(
    path: Path,
    parts: tuple[str, list[str], str, str],
    files: Iterable[str],
    *,
    keep_regions: bool,
) -> Written:
    head, texts, separator, foot = parts
    header = members(_inside(head) + "]") if "{" in head.partition("[")[0] else []
    if header is None:
        msg = f"{path} cannot be shrunk: its header is not JSON"
        raise InputError(msg)
    hosts = [str(member.value) for member in header if member.key == "host_name"]
    paths = Paths(sorted(_source_files(texts).union(files)), hosts)
    taken = (text for text in texts if "region-" in text)
    regions = Regions(paths, keep=keep_regions, taken=taken)
    fields = Fields(paths, regions)
    rows: list[tuple[Any, ...]] = []
    unreadable = arrows = 0
    for text in texts:
        event = members('"' + text)
        row = _row(event, fields) if event else None
        if row:
            rows.append(row)
        elif event:
            arrows += 1
        else:
            unreadable += 1
    if not rows:
        msg = f"{path} cannot be shrunk: it has no events"
        raise InputError(msg)
    return Written(
        head=_head(head, header),
        separator=separator,
        foot=_foot(foot),
        events=_framed(rows),
        paths=paths,
        regions=regions,
        unreadable=unreadable,
        arrows=arrows,
    )


def _source_files(texts: Iterable[str]) -> set[str]:
    """Return the source files that Python calls are of."""
    return {
        file.replace("\\\\", "\\")
        for text in texts
        if "): " in text
        for file in _FILES.findall(text)
    }


def _parts(
    path: Path, progress: Callable[[int, int], None] | None
) -> tuple[str, list[str], str, str]:
    """Return the text before the events, their texts, the text between and after."""
    source, cut = Source(path, progress), Cut()
    blocks: list[bytes] = []

    def recorded_blocks() -> Iterator[bytes]:
        for block in source.blocks():
            blocks.append(block)
            yield block

    pieces = [
        part for chunk in chunks(path, recorded_blocks(), cut, _CHUNK) for part in chunk
    ]
    separator = cut.layout.separator
    events = joined(pieces, separator)
    content = b"".join(blocks).removeprefix(b"\xef\xbb\xbf")
    if source.damage or not cut.whole or cut.broken_header:
        msg = f"{path} cannot be shrunk: it is incomplete; record again"
        raise InputError(msg)
    start = content.index(events[:_SAMPLE])
    return (
        content[:start].decode(errors="replace"),
        events.decode(errors="replace").split(separator.decode()),
        separator.decode(),
        content[start + len(events) :].decode(errors="replace"),
    )


def _inside(head: str) -> str:
    """Return the header's members, from after its brace to the events' bracket."""
    opened = head.rstrip('"').rstrip().removesuffix("{").rstrip()
    return opened[opened.index("{") + 1 :]


def _head(head: str, header: list[Member]) -> str:
    """Return the text before the events, with known harmless members only."""
    if not header:
        return head
    start = head.index("{")
    text = changed(header, _header_value)
    rest = head[start + 1 + len(_inside(head)) :]
    return head[: start + 1] + text.removesuffix("]") + rest


def _header_value(member: Member) -> str | None:
    """Return the text to write for a member of the header, None to remove it."""
    if member.key == "traceEvents":
        return member.written
    if member.key not in _HEADER:
        return None
    if member.key not in _INSIDE:
        return _written(member, header_value(member.key, member.value))
    entries = member.value if isinstance(member.value, list) else [member.value]
    if not all(isinstance(entry, dict) for entry in entries):
        return None
    fields = _INSIDE[member.key]
    values = [
        {
            key: clean
            for key, value in entry.items()
            if key in fields and (clean := header_value(key, value)) is not None
        }
        for entry in entries
    ]
    return _written(member, values if isinstance(member.value, list) else values[0])


def _written(member: Member, clean: Any) -> str | None:  # noqa: ANN401 - JSON
    """Return a value's own text if it is clean, another text, or None without one."""
    if clean is None:
        return None
    return member.written if clean == member.value else json.dumps(clean)


def _foot(foot: str) -> str:
    """Return the text after the events, with known harmless members only."""
    events, bracket, rest = foot.partition("]")
    rest = rest.rstrip()
    parsed = members(rest.removesuffix("}").lstrip().removeprefix(","))
    if not rest.endswith("}") or parsed is None:
        return events + bracket + ("\n}" if rest.endswith("}") else "")
    texts = {member.key: _header_value(member) for member in parsed}
    if all(texts[member.key] == member.written for member in parsed):
        return foot
    text = "".join(
        f",{member.before}{texts[member.key]}{member.after}"
        for member in parsed
        if texts[member.key]
    )
    return events + bracket + text + "\n}\n"


def _row(event: list[Member], fields: Fields) -> tuple[Any, ...] | None:
    """Return an event as a row of EVENTS, with times as text.

    None for an arrow, and for an event without any known member.
    """
    values = {member.key: member for member in event}
    by_key = {key: member.value for key, member in values.items()}
    if by_key.get("ph") in _ARROWS:
        return None
    args = by_key.get("args")
    args = args if isinstance(args, dict) else {}
    category = str(by_key.get("cat", ""))
    name = str(by_key.get("name"))
    # Only what lasts, and has no category, is an operator of before Kineto.
    kind = category if category or by_key.get("ph") == "X" else "metadata"
    clean = fields.name(name, kind)
    text = changed(event, lambda member: _event_value(member, name, clean, fields))
    if not text:
        return None
    return (
        text.removeprefix('"'),
        str(by_key.get("ph", "")),
        str(fields.outer("cat", category)),
        clean,
        f"{by_key.get('pid')}\n{by_key.get('tid')}",
        values["ts"].written if "ts" in values else None,
        values["dur"].written if "dur" in values else "0",
        integer(args.get("correlation")),
        integer(args.get("Device Type")),
        integer(args.get("Device Id")),
        integer(args.get("Total Allocated")),
    )


def _event_value(member: Member, name: str, clean: str, fields: Fields) -> str | None:
    """Return the text to write for a member of an event, None to remove it."""
    if member.key not in _EVENT:
        return None
    if member.key == "args":
        text = rewritten(
            member.written,
            lambda arg: _written(arg, fields.argument(arg.key, arg.value, name)),
        )
        return text if text != "{}" else None
    if member.key == "name":
        return member.written if clean == member.value else json.dumps(clean)
    if isinstance(member.value, str):
        return _written(member, fields.outer(member.key, member.value))
    return member.written if isinstance(member.value, (int, float)) else None


def _framed(rows: list[tuple[Any, ...]]) -> pl.DataFrame:
    texts = dict(EVENTS) | {"ts": pl.String(), "end": pl.String()}
    frame = pl.DataFrame(rows, schema=texts, orient="row")
    start, length = (
        nanoseconds(pl.col(column).str.strip_chars(' "')) for column in ("ts", "end")
    )
    return frame.with_columns(ts=start, end=start + length.fill_null(0))
