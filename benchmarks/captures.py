"""Folders of captures: where a file of one lies, and what its steps really take."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from traceq.formats.run import is_run, read_overhead
from traceq.inputs.load_trace import load
from traceq.model.run import Run

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from traceq.model.trace import Trace

_MS = 1_000_000


@dataclass(frozen=True)
class Captures:
    """A folder of captures, with what its captures.toml says."""

    folder: Path
    step_ms: Mapping[str, float]
    """What a step takes, measured without the profiler."""
    gpu_busy: Mapping[str, float]
    """The share of it that the GPU is busy, where that was measured."""
    elsewhere: Mapping[str, str]
    """Files that another folder holds, relative to this one."""
    recorder_overhead: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    """What recording cost where a capture was made, as collect writes it."""

    def path(self, file: str) -> Path:
        """Return where a file of a capture is, there or not."""
        return self.folder / self.elsewhere.get(file, file)

    def trace(self, name: str) -> Path:
        """Return where the trace of a capture is."""
        return self.path(f"{name}.trace.json.gz")

    def load(self, name: str) -> Trace:
        """Load the trace of a capture: a run folder of collect, or a file."""
        if is_run(self.folder / name):
            return load(self.folder / name)
        trace = load(self.trace(name))
        measured = read_overhead(self.recorder_overhead.get(name, {}))
        if measured is None:
            return trace
        run = Run(self.folder, (), {}, (), (), "finished", recorder_overhead=measured)
        return replace(trace, run=run)

    def paths(self, ending: str) -> dict[str, Path]:
        """Return all files with an ending by the names of their captures."""
        names = {*self.elsewhere, *(path.name for path in self.folder.iterdir())}
        wanted = sorted(name for name in names if name.endswith(ending))
        return {name.removesuffix(ending): self.path(name) for name in wanted}

    def step_ns(self, name: str) -> int:
        """Return what a step takes, in nanoseconds."""
        return round(self.step_ms[name] * _MS)


@dataclass(frozen=True)
class Pair:
    """A sick program and its repaired twin, each by the name of its capture."""

    captures: Captures
    sick: str
    twin: str
    fixes: tuple[str, ...] = ()
    """The codes of what the twin repairs; all findings where there are none."""


def read_captures(folder: Path) -> Captures:
    """Return the captures of a folder."""
    known = tomllib.loads((folder / "captures.toml").read_text(encoding="utf-8"))
    keys = ("step_ms", "gpu_busy", "elsewhere", "recorder_overhead")
    return Captures(folder, *(known.get(key, {}) for key in keys))


def read_pairs(file: Path) -> list[Pair]:
    """Return the pairs that a file names."""
    content = json.loads(file.read_text(encoding="utf-8"))
    captures = read_captures(file.parent / content["captures"])
    return [
        Pair(captures, sick, pair["twin"], tuple(pair.get("fixes", ())))
        for sick, pair in content["pairs"].items()
    ]
