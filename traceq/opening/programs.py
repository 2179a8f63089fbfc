"""Programs that a user names: the files of each, before any of them is loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceq.errors import TraceqError
from traceq.given import found_in, joined, refuse_two_stdins
from traceq.watching import expect, reading, say

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from traceq.given import Program


def programs(paths: Sequence[Path], *, cache: bool) -> tuple[list[Program], int]:
    """Return what was given of each program, and how many paths cannot be read.

    One path that cannot be read is an error; of several it is said.
    """
    refuse_two_stdins(paths)
    found: list[Program] = []
    unread = 0
    for path in paths:
        here = _found_in(path, cache=cache, alone=len(paths) == 1)
        found += here
        unread += not here
    together = joined(found, say)
    expect(len(together))
    return together, unread


def _found_in(path: Path, *, cache: bool, alone: bool) -> list[Program]:
    """Return the programs of a path; none if it cannot be read and is not alone."""
    try:
        with reading(path.name) as progress:
            return found_in(path, say=say, cache=cache, progress=progress)
    except TraceqError as error:
        if alone:
            raise
        say(str(error))
        return []


def traces(paths: Sequence[Path], *, cache: bool) -> tuple[list[Path], int]:
    """Return the traces and run folders of all paths, and how many cannot be read."""
    found, unread = programs(paths, cache=cache)
    traced = [one.trace for one in found if one.trace]
    # Alone, another kind of file is refused by who reads traces, which says what it is.
    others = [one.snapshot or one.logs[0] for one in found if not one.trace]
    return (traced, unread) if traced else (others, unread)
