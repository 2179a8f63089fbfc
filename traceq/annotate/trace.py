"""Annotated copy of one trace: all of it, or a few of its steps."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from traceq.annotate.gzip_splice import spliced_packed
from traceq.annotate.splice import Copied, Output, Window, copy
from traceq.annotate.steps import chosen_steps
from traceq.annotate.tracks import tracks_of
from traceq.common.atomic_files import written_whole
from traceq.common.progress import reading

if TYPE_CHECKING:
    from pathlib import Path

    from traceq.annotate.tracks import Added
    from traceq.linter.view import View
    from traceq.model.lint_report import RecordingReport

# Of the file's text; what is written has to be at most 2% larger, unpacked and packed.
_SHARE = 0.015
# Of the file, packed: what is added is packed to a ninth of it, measured on 20 traces.
_SHARE_OF_FILE = 0.018 * 8
# Nobody looks at more, whatever the size of the file.
_MOST_ROOM = 8_000_000
# A small file is opened fast, whatever is added to it.
_SMALL, _LEAST_ROOM = 1_000_000, 250_000


@dataclass(frozen=True)
class Annotated:
    """Sizes and contents of the annotated copy."""

    added: Added
    bytes_before: int
    bytes_after: int
    steps: tuple[int, ...] = ()
    """The steps that it was cut to."""
    copied: Copied = field(default_factory=lambda: Copied(None))
    """The file's own events that were copied, and those that were left out."""


def room_for(text_bytes: int, file_bytes: int) -> int:
    """Return the maximum number of bytes to add, by the sizes of text and file.

    >>> room_for(100_000_000, 8_000_000), room_for(3_000_000, 250_000)
    (1152000, 250000)
    """
    least = _LEAST_ROOM if file_bytes < _SMALL else 0
    shares = int(_SHARE * text_bytes), int(_SHARE_OF_FILE * file_bytes)
    return max(least, min(_MOST_ROOM, *shares))


def is_packed(file: Path) -> bool:
    """Return whether a file of this name is compressed."""
    return file.name.endswith(".gz")


def write_annotated(
    view: View,
    outcome: RecordingReport,
    source: Path,
    file: Path,
    *,
    steps: str | None = None,
) -> Annotated:
    """Write a trace's file with its findings: all of it, or only some steps.

    Raises ``InputError`` for a file that is cut off, ``UsageError`` for steps that are
    not there.
    """
    trace = view.trace
    origin = trace.facts.origin_ns
    chosen = chosen_steps(trace.steps, steps) if steps else None
    tracks: list[Added] = []

    def made(text_bytes: int) -> bytes:
        window = (chosen[0]["start"], chosen[-1]["end"]) if chosen else None
        tracks.append(
            tracks_of(
                view,
                outcome,
                origin_ns=origin,
                room=room_for(text_bytes, source.stat().st_size),
                window=window,
            )
        )
        return tracks[0].text

    copied = Copied(None)
    added = b"" if chosen else made(trace.facts.unpacked_bytes)
    with reading(file.name) as progress, written_whole(file) as stream:
        packed = is_packed(file)
        as_it_is = packed and not chosen
        if not as_it_is or not spliced_packed(source, added, stream, progress):
            output = Output(stream, packed=packed)
            if chosen:
                window = Window(chosen[0]["start"] + origin, chosen[-1]["end"] + origin)
                copied = copy(source, output, made, window=window, progress=progress)
            else:
                copied = copy(source, output, lambda _: added, progress=progress)
            output.finish()
        after = stream.tell()
    return Annotated(
        tracks[0],
        source.stat().st_size,
        after,
        tuple(row["step"] for row in chosen or ()),
        copied,
    )
