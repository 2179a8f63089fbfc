"""Discovery of each program's files from the paths that the user typed.

A path may be a file of any kind and compression, a folder of them, a run folder, an
archive, standard input or a URL.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from msgspec import Struct, structs

from traceq.common.progress import expect, notify, reading
from traceq.common.words import counted
from traceq.errors import InputError, TraceqError, UsageError
from traceq.formats.archives import is_archive, members, unpack
from traceq.formats.kinds import (
    PACKED,
    is_compile_log,
    is_log,
    is_snapshot_database,
    is_snapshot_name,
    kind_of,
)
from traceq.formats.nsys.recognition import is_export
from traceq.formats.run import is_run
from traceq.formats.strangers import stranger
from traceq.inputs import remote
from traceq.inputs.display_path import DisplayPath, Url
from traceq.inputs.nsys_report import exported, is_report
from traceq.inputs.temporary import stash

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import TypeAlias

    from traceq.formats.kinds import Kind

    Progress: TypeAlias = Callable[[int, int], None] | None

STDIN = "-"
RUNS = Path("traceq-runs")
"""Folder in which ``traceq collect`` writes its runs."""
MOST_BYTES = 64 << 30
"""Largest size of the data from standard input or from an archive."""
_BLOCK = 1 << 20
_TRIAL = "try.json"
_SHOWN = 6
_FILES_OF = {"trace": "trace.json", "snapshot": "snapshot.pickle", "log": "log.txt"}
_NUMBERS = re.compile(r"(\d+)")


class Program(Struct, frozen=True):
    """The files of one program that the user named."""

    name: str
    trace: Path | None = None
    """A trace, or a run folder."""
    snapshot: Path | None = None
    logs: tuple[Path, ...] = ()
    folder: Path | None = None
    """The folder that holds these and nothing else of the kind."""


class _Files(Struct, frozen=True):
    """Files by kind, in order."""

    traces: tuple[Path, ...] = ()
    snapshots: tuple[Path, ...] = ()
    logs: tuple[Path, ...] = ()

    @classmethod
    def of(cls, kinds: Mapping[Path, Kind]) -> _Files:
        """Sort files by their kind."""

        def are(kind: Kind) -> tuple[Path, ...]:
            return tuple(
                path for path, kind_of_path in kinds.items() if kind_of_path == kind
            )

        return cls(are("trace"), are("snapshot"), are("log"))

    @property
    def is_single_program(self) -> bool:
        """True if all of them belong to one program."""
        return len(self.traces) <= 1 and len(self.snapshots) <= 1

    def __str__(self) -> str:
        words = (
            (self.traces, "trace"),
            (self.snapshots, "memory snapshot"),
            (self.logs, "log"),
        )
        counts = [counted(len(files), word) for files, word in words if files]
        return ", ".join(counts)


def discover(
    path: Path,
    *,
    say: Callable[[str], None],
    cache: bool = True,
    progress: Progress = None,
) -> list[Program]:
    """Return the programs whose files are at a path, in order."""
    here = localize(path, cache=cache, progress=progress)
    return (
        _in_folder(here, say) if _is_plain_folder(here) else [_program(here, progress)]
    )


def newest_run(folder: Path = RUNS) -> Path:
    """Return the run that was written last; raise ``UsageError`` if there is none."""
    runs = [path for path in folder.glob("*") if is_run(path)]
    if not runs:
        msg = (
            f"no path was named, and {folder} has no run: record one with traceq"
            " collect, or name a trace"
        )
        raise UsageError(msg)
    return max(runs, key=_written)


def _written(run: Path) -> int:
    """Return when the launcher wrote a run file last; the folder's time without one."""
    file = run / "run.json"
    return (file if file.exists() else run).stat().st_mtime_ns


def several_runs(path: Path) -> list[Path]:
    """Return the runs in a folder that is none itself, if it has more than one."""
    if not _is_plain_folder(path) or _plain_of_trial(path):
        return []
    runs = sorted(
        (folder for folder in path.glob("*") if is_run(folder)), key=_by_numbers
    )
    return runs if len(runs) > 1 else []


def refuse_two_stdins(paths: Sequence[Path]) -> None:
    """Raise if standard input is named twice: it can be read once."""
    if sum(_is_stdin(path) for path in paths) > 1:
        msg = "standard input can be read once: give - only once"
        raise UsageError(msg)


def single_program(
    path: Path, *, cache: bool = True, progress: Progress = None
) -> Program:
    """Return the program at a path; raise if there are several."""
    notes: list[str] = []
    candidates = discover(path, say=notes.append, cache=cache, progress=progress)
    if len(candidates) > 1:
        names = _listed(
            str(candidate.trace or candidate.snapshot) for candidate in candidates
        )
        msg = f"{path} has {len(candidates)} recordings in it: give one of {names}"
        raise InputError(msg)
    return candidates[0]


def resolve_trace(path: Path, *, cache: bool = True, progress: Progress = None) -> Path:
    """Return the trace at a path; a plain file is taken as one."""
    here = localize(path, cache=cache, progress=progress)
    if not _is_plain_folder(here) and not is_archive(here):
        return here
    program = single_program(here, progress=progress)
    if program.trace is None:
        msg = f"{path} has no trace in it, only {program.name}"
        raise InputError(msg)
    return program.trace


def localize(path: Path, *, cache: bool = True, progress: Progress = None) -> Path:
    """Return a local file or folder: standard input and URLs are copied."""
    if isinstance(path, Url):
        return remote.fetched(path, stash, keep=cache, progress=progress)
    if _is_stdin(path):
        if sys.stdin.isatty():
            msg = (
                "standard input is a terminal: pipe a trace into traceq, or give the"
                " name of a file"
            )
            raise UsageError(msg)
        return _spooled(sys.stdin.buffer, "standard input", progress)
    if path.is_fifo():
        return _piped(path, progress)
    if plain := _plain_of_trial(path):
        notify(f"{path} is a trial: its recording without remedies is read")
        return plain
    if is_report(path):
        return exported(path, progress)
    if path.is_file() and (verdict := stranger(path)):
        msg = f"{path} {verdict}"
        raise InputError(msg)
    return path


def _piped(path: Path, progress: Progress) -> Path:
    """Copy the data of a named pipe, which can be read once."""
    try:
        with path.open("rb") as file:
            return _spooled(file, str(path), progress)
    except OSError as error:
        msg = f"{path} cannot be read: {error.strerror or error}"
        raise InputError(msg) from None


def _spooled(stream: BinaryIO, name: str, progress: Progress) -> Path:
    place = stash() / "input"
    done = 0
    try:
        with place.open("xb") as file:
            while block := stream.read(_BLOCK):
                done += len(block)
                if done > MOST_BYTES:
                    msg = f"{name} is larger than {MOST_BYTES >> 30} GiB: give a file"
                    raise InputError(msg)
                file.write(block)
                if progress:
                    progress(done, 0)
    except OSError as error:
        msg = f"{name} cannot be copied to {place.parent}: {error.strerror or error}"
        raise InputError(msg) from None
    return DisplayPath.of(place, name)


def _is_stdin(path: Path) -> bool:
    return str(path) == STDIN and not isinstance(path, DisplayPath)


def _plain_of_trial(path: Path) -> Path | None:
    """Return the recording of a trial of ``traceq try`` that has no remedy on."""
    folder = path.parent if path.name == _TRIAL else path
    plain = folder / "plain"
    return plain if (folder / _TRIAL).is_file() and is_run(plain) else None


def _is_plain_folder(path: Path) -> bool:
    return path.is_dir() and not is_run(path) and not is_export(path)


def _program(path: Path, progress: Progress = None) -> Program:
    """Return the program of a file, an archive or a run folder."""
    if path.is_dir():
        return Program(str(path), trace=path)
    if is_archive(path):
        return _in_archive(path, progress)
    if path.is_file():
        kind = kind_of(path)
        if is_log(path.name) and kind != "snapshot":
            return Program(str(path), logs=(path,))
        if (
            kind == "snapshot"
            or is_snapshot_name(path.name)
            or is_snapshot_database(path)
        ):
            return Program(str(path), snapshot=path)
    # Left to the trace reader, which reports what the file is.
    return Program(str(path), trace=path)


def _in_folder(folder: Path, say: Callable[[str], None]) -> list[Program]:
    """Return the programs whose files lie in a folder, by name."""
    try:
        inside = sorted(folder.iterdir(), key=_by_numbers)
    except OSError as error:
        msg = f"{folder} cannot be read: {error.strerror or error}"
        raise InputError(msg) from None
    kinds = {path: _kind_in_folder(path) for path in inside if path.is_file()}
    files = _Files.of(kinds)
    if not files.traces and not files.snapshots:
        if runs := [path for path in inside if is_run(path)]:
            return [_program(path) for path in runs]
        if of_ranks := [path for path in files.logs if is_compile_log(path)]:
            return [_program(path) for path in of_ranks]
        raise InputError(_nothing_in(folder, inside))
    if files.is_single_program:
        return [structs.replace(_together(str(folder), files), folder=folder)]
    if files.traces and files.snapshots:
        say(
            f"{folder} has {files}: which of them belong together is not known, so each"
            " stands alone; give TRACE and SNAPSHOT of one program by name"
        )
    alone = [*files.traces, *files.snapshots]
    return [_program(path) for path in alone]


def _kind_in_folder(path: Path) -> Kind:
    """Return the kind of a file; a text is a log only if its name says so."""
    kind = kind_of(path)
    if kind == "log" and is_note(path.name):
        return ""
    return "" if kind in ("zip", "tar") else kind


def is_note(name: str) -> bool:
    """Return whether a text file next to a trace is not a log, by its name.

    >>> is_note("requirements.txt"), is_note("train_log.txt"), is_note("a.out")
    (True, False, False)
    """
    return name.lower().endswith(".txt") and "log" not in name.lower()


def _nothing_in(folder: Path, inside: Sequence[Path]) -> str:
    if other := next(
        (path for path in inside if path.is_file() and stranger(path)), None
    ):
        return f"{other} {stranger(other)}"
    deeper = next(
        (path for path in _some_below(inside) if kind_of(path) == "trace"), None
    )
    if deeper:
        return f"{folder} has no trace in it: give {deeper.parent}"
    return (
        f"{folder} is a directory, but not a run folder of traceq collect and without a"
        " trace in it: give the trace itself"
    )


def _some_below(folders: Iterable[Path]) -> list[Path]:
    """Return files with the names of traces, at most three folders down."""
    patterns = ("*.json", *(f"*.json{end}" for end in PACKED))
    return [
        path
        for folder in [path for path in folders if path.is_dir()][:100]
        for depth in ("", "*/", "*/*/")
        for pattern in patterns
        for path in sorted(folder.glob(depth + pattern))[:3]
    ]


def _by_numbers(path: Path) -> list[tuple[int, str]]:
    """Sort names by the numbers in them: rank 2 before rank 10."""
    parts = _NUMBERS.split(path.name)
    return [
        (int(part), "") if part.isdigit() and part.isascii() else (-1, part)
        for part in parts
    ]


def _in_archive(path: Path, progress: Progress = None) -> Program:
    """Return the program whose files are in an archive, unpacked under other names."""
    inside = [
        member
        for member in members(path)
        if not (member.kind == "log" and is_note(member.name))
    ]
    named = {
        kind: [member.name for member in inside if member.kind == kind]
        for kind in ("trace", "snapshot", "log")
    }
    most_of_each = max(map(len, named.values()))
    if most_of_each > 1 or not (named["trace"] or named["snapshot"]):
        raise InputError(
            _why_not_single(path, named, [member.name for member in inside])
        )
    folder = stash()
    places = {
        names[0]: folder / _FILES_OF[kind] for kind, names in named.items() if names
    }
    free = shutil.disk_usage(folder).free
    unpack(path, places, min(MOST_BYTES, free), progress)
    renamed = {
        kind: DisplayPath.of(places[names[0]], f"{path}: {names[0]}")
        for kind, names in named.items()
        if names
    }
    logs = (renamed["log"],) if "log" in renamed else ()
    return Program(str(path), renamed.get("trace"), renamed.get("snapshot"), logs)


def _why_not_single(
    path: Path, named: Mapping[str, list[str]], names: list[str]
) -> str:
    if any(Path(name).name == "run.json" for name in names):
        return f"{path} has a run folder in it: unpack it and give the folder"
    every = [name for of_kind in named.values() for name in of_kind]
    if not every:
        return f"{path} has no trace in it, but {_listed(names) or 'nothing'}"
    return (
        f"{path} has more in it than one trace, memory snapshot and log: unpack it and"
        f" give one of {_listed(every)}"
    )


def _listed(names: Iterable[str]) -> str:
    texts = list(names)
    more = f" and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else ""
    return ", ".join(texts[:_SHOWN]) + more


def _together(name: str, files: _Files) -> Program:
    trace, snapshot = (
        next(iter(of_kind), None) for of_kind in (files.traces, files.snapshots)
    )
    return Program(name, trace, snapshot, files.logs)


def group_by_program(
    programs: list[Program], say: Callable[[str], None]
) -> list[Program]:
    """Join files of one program that the user named one by one.

    A trace, a memory snapshot and logs are of one program if no other trace and no
    other snapshot is among them; ``say`` receives a notice if that is ambiguous.
    """
    alone = [program for program in programs if _is_single(program)]
    files = _Files(
        tuple(program.trace for program in alone if program.trace),
        tuple(program.snapshot for program in alone if program.snapshot),
        tuple(log for program in alone for log in program.logs),
    )
    kinds = sum(map(bool, (files.traces, files.snapshots, files.logs)))
    if len(programs) == 1 or kinds <= 1:
        return programs
    if len(alone) == len(programs) and files.is_single_program:
        program = _together("", files)
        return [structs.replace(program, name=str(program.trace or program.snapshot))]
    say(
        f"of {len(programs)} recordings it is not known which belong together, so each"
        " stands alone; give TRACE, SNAPSHOT and LOG of one program"
    )
    return programs


def _is_single(program: Program) -> bool:
    """Return whether it is a single file, which may belong to another one."""
    parts = [part for part in (program.trace, program.snapshot, *program.logs) if part]
    return len(parts) == 1 and not parts[0].is_dir()


def programs(paths: Sequence[Path], *, cache: bool) -> tuple[list[Program], int]:
    """Return the files of each program, and the number of unreadable paths.

    A single unreadable path is an error; one of several is a notice.
    """
    refuse_two_stdins(paths)
    read: list[Program] = []
    unread = 0
    for path in paths:
        here = _programs_in(path, cache=cache, alone=len(paths) == 1)
        read += here
        unread += not here
    together = group_by_program(read, notify)
    expect(len(together))
    return together, unread


def _programs_in(path: Path, *, cache: bool, alone: bool) -> list[Program]:
    """Return the programs of a path; none if it is unreadable and one of several."""
    try:
        with reading(path.name) as progress:
            return discover(path, say=notify, cache=cache, progress=progress)
    except TraceqError as error:
        if alone:
            raise
        notify(str(error))
        return []


def traces(paths: Sequence[Path], *, cache: bool) -> tuple[list[Path], int]:
    """Return the traces and run folders, and the number of unreadable paths."""
    recordings, unread = programs(paths, cache=cache)
    traced = [recording.trace for recording in recordings if recording.trace]
    # Without any trace, the trace reader refuses the others and reports their kind.
    others = [
        recording.snapshot or recording.logs[0]
        for recording in recordings
        if not recording.trace
    ]
    return (traced, unread) if traced else (others, unread)
