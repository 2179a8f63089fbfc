"""Memory snapshots drawn as text: which place holds how much, and when.

One line is one place in the program, one character is one microsecond, and an
allocation runs from its ``[`` to its ``]``::

    loss = at::_ops::mm::call, model.py:41 forward, train.py:9 main
    region              [ProfilerStep#1][ProfilerStep#2]
    weights            <500M
    loss                 [64M    ]       [64M    ]
    train.py:12 main           [16M
    segment train.py:9 main              [64M      ]
    oom train.py:9 main                           [512M of 1G]

What is not closed is still live at the end; what begins with ``<`` was there before the
recording began, without a stack. A place is its frames, the innermost first, or a name
for them. A ``region`` is one of record_function. A ``segment`` is what the allocator
reserves from the driver, and the place that does; for what fits into none, there was
one from the start. An ``oom`` is what was requested, and how much was free on the
device.
"""

from __future__ import annotations

import pickle
import re
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from traceq.formats.snapshot import read_snapshot

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.model.snapshot import Snapshot

_SPAN = re.compile(r"([\[<])([^\[\]<]*)(\]?)")
_NAME = re.compile(r"^(\w[\w ]*?) = (.+)$")
_FRAME = re.compile(r"^(\S+):(\d+) (.+)$")
_SIZE = re.compile(r"([\d.]+)([KMG]?)")
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_ROUND = 512
_SEGMENT = 2 << 20
_APART = 1 << 40
_OUTER = ("segment", "region")

Frames = list[dict[str, Any]]


@dataclass(frozen=True)
class _Span:
    lane: str
    text: str
    begin: int
    end: int | None
    """None if it is live at the end."""
    before: bool
    """True if it was there before the recording began."""

    @property
    def kind(self) -> str:
        """The kind: the first word of its lane."""
        return self.lane.partition(" ")[0]

    @property
    def sizes(self) -> list[int]:
        """The sizes in its text, in bytes."""
        return [
            round(float(number) * _UNITS[unit])
            for number, unit in _SIZE.findall(self.text)
        ]


@dataclass
class _Segment:
    address: int
    size: int
    drawn: _Span | None = None
    taken: dict[int, tuple[_Span, Frames | None]] = field(default_factory=dict)
    """Spans in the segment, by address."""

    def gaps(self) -> Iterator[tuple[int, int]]:
        """Yield the sizes and addresses of what is free."""
        at = self.address
        for address in sorted(self.taken):
            if address > at:
                yield address - at, at
            at = address + _rounded(self.taken[address][0].sizes[0], _ROUND)
        if self.address + self.size > at:
            yield self.address + self.size - at, at


def load_history(text: str) -> Snapshot:
    """Return a drawing as a snapshot, through the reader that reads real ones."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "drawn.pickle"
        path.write_bytes(pickle.dumps(draw_history(text), protocol=4))
        return read_snapshot(path)


def draw_history(text: str) -> dict[str, Any]:
    """Return the snapshot that a drawing shows, as torch would pickle it."""
    names: dict[str, str] = {}
    spans: list[_Span] = []
    for line in filter(str.strip, text.splitlines()):
        if match := _NAME.match(line.strip()):
            names[match[1]] = match[2]
        else:
            spans += _spans(line)
    allocator = _Allocator(names)
    # Where two begin at once, the segment is there before what it holds.
    moments = [
        (-1 if span.before else span.begin, span.kind not in _OUTER, number, True)
        for number, span in enumerate(spans)
    ]
    moments += [
        (span.end, span.kind in _OUTER, number, False)
        for number, span in enumerate(spans)
        if span.end is not None
    ]
    for _, _, number, begins in sorted(moments):
        allocator.happens(spans[number], begins=begins)
    return allocator.snapshot()


def _spans(line: str) -> Iterator[_Span]:
    first = re.search(r"[\[<]", line)
    if first is None:
        msg = f"nothing is drawn in the line {line!r}"
        raise ValueError(msg)
    lane = line[: first.start()].strip()
    for match in _SPAN.finditer(line, first.start()):
        end = match.end() - 1 if match[3] else None
        yield _Span(lane, match[2].strip(), match.start(), end, match[1] == "<")


class _Allocator:
    """Does what a drawing shows, and records it as torch does."""

    def __init__(self, names: dict[str, str]) -> None:
        self._names = names
        self._segments: list[_Segment] = []
        self._events: list[dict[str, Any]] = []
        self._annotations: list[dict[str, Any]] = []

    def happens(self, span: _Span, *, begins: bool) -> None:
        kind = span.kind
        if kind == "region":
            self._annotate(span, begins=begins)
        elif kind == "segment":
            self._reserve(span, begins=begins)
        elif kind == "oom" and begins:
            requested, *free = span.sizes
            place = span.lane.partition(" ")[2]
            self._record("oom", span.begin, requested, place, device_free=sum(free))
        elif kind != "oom":
            self._hold(span) if begins else self._release(span)

    def _annotate(self, span: _Span, *, begins: bool) -> None:
        self._annotations.append(
            {
                "name": span.text,
                "stage": "START" if begins else "END",
                "device": 0,
                "time_us": span.begin if begins else span.end,
            }
        )

    def _reserve(self, span: _Span, *, begins: bool) -> None:
        (size,) = span.sizes
        who = span.lane.partition(" ")[2]
        if begins:
            made = self._segment(size)
            made.drawn = span
            if not span.before:
                self._record("segment_alloc", span.begin, size, who, addr=made.address)
            return
        removed = next(segment for segment in self._segments if segment.drawn is span)
        if removed.taken:
            msg = f"the segment of {span.text} ends while something is in it"
            raise ValueError(msg)
        self._segments.remove(removed)
        self._record("segment_free", span.end, size, who, addr=removed.address)

    def _segment(self, size: int) -> _Segment:
        last = max((segment.address for segment in self._segments), default=0)
        made = _Segment(last + _APART, _rounded(size, _SEGMENT))
        self._segments.append(made)
        return made

    def _hold(self, span: _Span) -> None:
        (size,) = span.sizes
        room = [
            (free, address, at)
            for at, segment in enumerate(self._segments)
            for free, address in segment.gaps()
            if free >= _rounded(size, _ROUND)
        ]
        if room:
            _, address, at = min(room)
            segment = self._segments[at]
        else:
            segment = self._segment(size)
            address = segment.address
        segment.taken[address] = (
            span,
            None if span.before else self._frames(span.lane),
        )
        if not span.before:
            self._record("alloc", span.begin, size, span.lane, addr=address)

    def _release(self, span: _Span) -> None:
        for segment in self._segments:
            for address, (held, _) in list(segment.taken.items()):
                if held is span:
                    del segment.taken[address]
                    for action in ("free_requested", "free_completed"):
                        self._record(action, span.end, span.sizes[0], "", addr=address)

    def _record(
        self, action: str, at: int | None, size: int, lane: str, **more: int
    ) -> None:
        event = {"action": action, "size": size, "stream": 0, "time_us": at, **more}
        frames = self._frames(lane)
        self._events.append(event | ({"frames": frames} if frames else {}))

    def _frames(self, lane: str) -> Frames:
        texts = filter(None, self._names.get(lane, lane).split(", "))
        hit = [(_FRAME.match(text), text) for text in texts]
        return [
            {"filename": match[1], "line": int(match[2]), "name": match[3]}
            if match
            else {"filename": "??", "line": 0, "name": text}
            for match, text in hit
        ]

    def snapshot(self) -> dict[str, Any]:
        return {
            "segments": [_drawn_segment(segment) for segment in self._segments],
            "device_traces": [self._events],
            "external_annotations": self._annotations,
            "allocator_settings": {"expandable_segments": False},
        }


def _drawn_segment(segment: _Segment) -> dict[str, Any]:
    blocks: list[dict[str, Any]] = [
        {"address": address, "size": free, "requested_size": 0, "state": "inactive"}
        for free, address in segment.gaps()
    ]
    for address, (span, frames) in segment.taken.items():
        size = span.sizes[0]
        block = {
            "address": address,
            "size": _rounded(size, _ROUND),
            "requested_size": size,
            "state": "active_allocated",
        }
        blocks.append(block | ({"frames": frames} if frames else {}))
    held = [block for block in blocks if block["state"] != "inactive"]
    allocated = sum(block["size"] for block in held)
    return {
        "device": 0,
        "address": segment.address,
        "total_size": segment.size,
        "allocated_size": allocated,
        "active_size": allocated,
        "requested_size": sum(block["requested_size"] for block in held),
        "stream": 0,
        "segment_type": "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "blocks": sorted(blocks, key=lambda block: block["address"]),
    }


def _rounded(size: int, to: int) -> int:
    return -(-size // to) * to
