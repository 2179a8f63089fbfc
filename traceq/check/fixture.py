"""Fixtures: a folder with a small trace, its origin and its expected findings."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from traceq.errors import InputError, UsageError
from traceq.formats.fixture_origin import ORIGIN, origin_step_ns, read_origin
from traceq.formats.log import read_log
from traceq.inputs.load_trace import load
from traceq.model.recording import Recording

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping
    from pathlib import Path

    from traceq.model.snapshot import Snapshot

TRACES = ("trace.json.gz", "trace.json")
SNAPSHOTS = ("snapshot.pickle.gz", "snapshot.pickle")
LOG = "log.txt"
FINDINGS = "findings.json"
BUDGETS = "traceq.toml"
CPU = "cpu.json"
_PARTS = (*TRACES, *SNAPSHOTS, ORIGIN, FINDINGS, CPU)


@dataclass(frozen=True)
class Fixture:
    """One folder; files that are not there are None."""

    folder: Path
    trace: Path | None
    snapshot: Path | None
    log: Path | None
    origin: Mapping[str, Any] = field(default_factory=dict)
    """Content of origin.toml; empty if it is not there."""

    @property
    def step_ns(self) -> int | None:
        """Duration of a step without the profiler, if that is known."""
        return origin_step_ns(self.origin)

    @property
    def graph_breaks(self) -> int | None:
        """Graph breaks of the program until the recording ended, if that is known."""
        breaks = self.origin.get("graph_breaks")
        return breaks if type(breaks) is int and breaks >= 0 else None

    @property
    def cpu_only(self) -> bool:
        """True if only a CPU part was recorded."""
        recorded = self.trace or self.snapshot
        return recorded is None and (self.folder / CPU).is_file()

    def recording(
        self, *, own: Collection[str] = (), steps_by: str = "", cache: bool = True
    ) -> Recording:
        """Return the recording; raise ``InputError`` if it cannot be read.

        ``own`` are packages that are the user's own; ``steps_by`` is as of ``load``.
        """
        if self.trace is None and self.snapshot is None:
            msg = f"{self.folder} has no {TRACES[0]} and no {SNAPSHOTS[0]}"
            raise InputError(msg)
        return Recording(
            str(self.trace or self.snapshot),
            load(self.trace, own=own, steps_by=steps_by, cache=cache)
            if self.trace
            else None,
            read_log(self.log).lines if self.log else None,
            self.step_ns,
            {0: _snapshot(self.snapshot)} if self.snapshot else {},
        )


def _snapshot(path: Path) -> Snapshot:
    from traceq.formats.snapshot import read_snapshot  # noqa: PLC0415 - few need it

    return read_snapshot(path)


def is_fixture(folder: Path) -> bool:
    """Return whether a folder has any part of a fixture."""
    return any((folder / name).is_file() for name in _PARTS)


def find_fixtures(places: Iterable[Path]) -> list[Path]:
    """Return the folders of fixtures at or below some places, in order."""
    folders: dict[Path, None] = {}
    for place in places:
        if not place.is_dir():
            msg = f"{place} is not a folder of fixtures: check the name"
            raise UsageError(msg)
        below = sorted(file for file in place.rglob("*") if file.is_dir())
        visible = [path for path in below if not _is_hidden(path.relative_to(place))]
        paths = [folder for folder in (place, *visible) if is_fixture(folder)]
        if not paths:
            msg = f"{place} has no fixture in it: make one with traceq shrink"
            raise UsageError(msg)
        folders.update(dict.fromkeys(paths))
    return list(folders)


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def read_fixture(folder: Path) -> Fixture:
    """Return the fixture in a folder."""

    def first(names: Iterable[str]) -> Path | None:
        return next(
            (folder / name for name in names if (folder / name).is_file()), None
        )

    parts = first(TRACES), first(SNAPSHOTS), first([LOG])
    return Fixture(folder, *parts, read_origin(folder))
