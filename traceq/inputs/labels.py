"""Labels of recordings and their true step time, as the user gives them.

Run folders have labels of their own, by ``traceq collect --label``; plain traces get
them from the command line, ``FILE:KEY=VALUE``, or from a TOML file of runs::

    ["seq512.json.gz"]
    seq_len = 512
    step_ms = 12.3      # measured without the profiler; no label
"""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from traceq.common import toml
from traceq.common.units import NS_PER_MS
from traceq.errors import UsageError
from traceq.inputs.display_path import Url, parse_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from traceq.model.run import Run

STEP_MS = "step_ms"
"""The key that is no label: the step time measured without the profiler."""
# A file's name may have a colon in it, as a URL has.
_LABEL = re.compile(r"(?P<file>.+?):(?P<key>[A-Za-z_][\w.-]*)=(?P<value>.*)", re.DOTALL)


@dataclass(frozen=True)
class LabelEntry:
    """Labels given for one path: a recording, or a folder of recordings."""

    path: Path
    labels: Mapping[str, str]
    step_ns: int | None = None
    """The step time measured without the profiler."""
    source: str = ""
    """The option or file that it comes from, for error messages."""

    def fits(self, path: Path) -> bool:
        """Return whether it applies to a path; a bare name matches in any folder."""
        if str(path) == str(self.path):
            return True
        here, place = _place(path), _place(self.path)
        bare = len(self.path.parts) == 1 and not self.path.exists()
        return place in (here, *here.parents) or (bare and path.name == self.path.name)


@dataclass(frozen=True)
class Labels:
    """All labels that the user gives for the recordings."""

    entries: tuple[LabelEntry, ...] = ()
    runs: tuple[Path, ...] = field(default=())
    """The recordings that a file of runs names, in its order."""

    def of(self, path: Path, run: Run | None = None) -> dict[str, str]:
        """Return the labels of a recording; they override those of the run folder."""
        labels = dict(run.labels) if run else {}
        for entry in self.entries:
            if entry.fits(path):
                labels |= entry.labels
        return labels

    def step_ns(self, path: Path) -> int | None:
        """Return the measured step time that the user gives for a recording."""
        times = [
            entry.step_ns
            for entry in self.entries
            if entry.step_ns and entry.fits(path)
        ]
        return times[-1] if times else None

    def refuse_unused(self, paths: Iterable[Path]) -> None:
        """Raise ``UsageError`` for labels that apply to none of these recordings."""
        read = list(paths)
        for entry in self.entries:
            if entry.path not in self.runs and not any(map(entry.fits, read)):
                names = ", ".join(sorted({path.name for path in read})) or "none"
                msg = (
                    f"{entry.source}: {entry.path} is not among the recordings: {names}"
                )
                raise UsageError(msg)


def read_labels(texts: Sequence[str], runs: Path | None = None) -> Labels:
    """Return the labels of texts of the form ``FILE:KEY=VALUE`` and a file of runs.

    The file's paths are relative to its folder. Raises ``UsageError`` for texts of
    another form.
    """
    listed = _read_runs(runs) if runs else ()
    return Labels(
        (*listed, *map(_read_text, texts)),
        tuple(label_entry.path for label_entry in listed),
    )


def labelled(
    paths: Sequence[Path] | None, texts: Sequence[str] | None, runs: Path | None
) -> tuple[list[Path], Labels]:
    """Return the recordings of the command line, else of a file of runs, and labels.

    Raises ``UsageError`` if there are none.
    """
    labels = read_labels(texts or (), runs)
    files = list(paths or labels.runs)
    if not files:
        msg = "missing argument 'PATH': give one, or --runs FILE that lists some"
        raise UsageError(msg)
    return files, labels


def _read_text(text: str) -> LabelEntry:
    match = _LABEL.fullmatch(text)
    if not match:
        msg = f"--label {text!r} is not FILE:KEY=VALUE, as trace.json:seq_len=512"
        raise UsageError(msg)
    labels = {match["key"]: match["value"]}
    return _entry(parse_path(match["file"]), labels, f"--label {text}")


def _read_runs(file: Path) -> tuple[LabelEntry, ...]:
    content = toml.read(file, UsageError)
    if not content:
        msg = f'{file} names no run: write a table for each, as ["trace.json"]'
        raise UsageError(msg)
    entries = []
    for name, labels in content.items():
        plain = isinstance(labels, dict) and not any(
            isinstance(value, (dict, list)) for value in labels.values()
        )
        if not plain:
            msg = f'{file}: {name} must be a table of labels, as ["{name}"] seq_len = 1'
            raise UsageError(msg)
        path = parse_path(name)
        here = path if isinstance(path, Url) else file.parent / path
        entries.append(_entry(here, labels, str(file)))
    return tuple(entries)


def _entry(path: Path, labels: Mapping[str, object], source: str) -> LabelEntry:
    rest = dict(labels)
    measured = rest.pop(STEP_MS, None)
    step_ns = None if measured is None else _step_ns(measured, source)
    return LabelEntry(path, {key: _text(rest[key]) for key in rest}, step_ns, source)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _step_ns(value: object, source: str) -> int:
    try:
        ms = float(str(value))
    except ValueError:
        ms = math.nan
    if not 0 < ms < math.inf:
        msg = f"{source}: {STEP_MS} must be a number above 0, not {value!r}"
        raise UsageError(msg)
    return max(1, round(ms * NS_PER_MS))


def _place(path: Path) -> Path:
    return Path(os.path.abspath(path))  # noqa: PTH100 - links are not followed
