"""The key of lint's findings in the cache: files, settings and code.

In doubt it is found again: nothing is kept where other files matter than those below.
"""

from __future__ import annotations

import hashlib
import os
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from traceq.cache import store
from traceq.common.locations import bundled
from traceq.errors import TraceqError
from traceq.formats.run import is_run, read_run

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from traceq.inputs.discovery import Program
    from traceq.inputs.options import LoadOptions
    from traceq.linter.config import Config

_MOST_FILES = 10_000
_LARGEST_CODE = 16 << 20


class Subject(Struct, frozen=True):
    """A program to lint, with what the user adds to its recording."""

    program: Program
    log: Path | None = None
    step_ns: int | None = None
    """Step time measured without the profiler, as the user states it."""


def question(
    subject: Subject, code: str, config: Config, options: LoadOptions
) -> store.Question | None:
    """Return all that lint's outcome depends on; none if that cannot be known.

    ``code`` is as ``code_of`` returns it.
    """
    program, log = subject.program, subject.log
    # Inductor's output lies in a folder of thousands of files.
    if not code or options.inductor_code:
        return None
    with suppress(OSError, TraceqError):
        files, others = _files(program, log)
        files += options.captures
        if any(not file.is_file() for file in files):
            return None
        rest = (
            code,
            program.name,
            [str(path) for path in (program.trace, program.snapshot, *program.logs)],
            others,
            str(log),
            subject.step_ns,
            sorted(options.own_code),
            options.steps_by,
            options.rank,
            [str(capture) for capture in options.captures],
            (config.select, config.ignore, config.min_cost_us, config.rules),
            config.allow,
        )
        return store.Question.of(files, repr(rest))
    return None


def code_of(packs: Iterable[Path]) -> str:
    """Return a digest of traceq's and the rules' code; empty if unknown.

    traceq's own files are many and change when it is installed: as git does, they are
    told by their status. Those of packs are read.
    """
    digest = hashlib.sha256(repr((sys.version_info, _polars())).encode())
    left = _LARGEST_CODE
    with suppress(OSError):
        for folder in (Path(store.__file__).parents[1], bundled("rules")):
            own = [(entry.path, entry.stat()) for entry in _below(folder)]
            if not all(store.settled(status) for _, status in own):
                return ""
            identities = sorted((name, *store.identity(status)) for name, status in own)
            digest.update(repr(identities).encode(errors="replace"))
        for folder in packs:
            for name in sorted(entry.path for entry in _below(folder)):
                content = Path(name).read_bytes()
                digest.update(repr((name, len(content))).encode(errors="replace"))
                digest.update(content)
                left -= len(content)
                if left < 0:
                    return ""
        return digest.hexdigest()
    return ""


def _polars() -> list[str]:
    """Return the names of what is installed of Polars, which have its version."""
    spec = find_spec("polars")
    if spec is None or spec.origin is None:
        return []
    return sorted(entry.name for entry in Path(spec.origin).parents[1].glob("polars*"))


def _below(folder: Path | str) -> Iterator[os.DirEntry[str]]:
    """Yield the files of a folder of code, without those that Python makes of them."""
    with os.scandir(folder) as inside:
        for entry in inside:
            if entry.name.startswith((".", "__pycache__")):
                continue
            if entry.is_dir():
                yield from _below(entry.path)
            elif entry.is_file():
                yield entry


def _files(program: Program, log: Path | None) -> tuple[list[Path], list[str]]:
    """Return the files that are read, and the names of others that must be there."""
    files = [*program.logs]
    others: list[str] = []
    files += [file for file in (program.snapshot, log) if file]
    if program.folder:
        # A fixture says in one of them what a step takes.
        files += sorted(program.folder.glob("*.toml"))
    if program.trace and is_run(program.trace):
        unread = _other_ranks(program.trace)
        inside = sorted(file for file in program.trace.rglob("*") if file.is_file())
        files += [file for file in inside if file not in unread]
        others = [str(file) for file in inside if file in unread]
    elif program.trace:
        files.append(program.trace)
    if len(files) > _MOST_FILES:
        msg = f"{program.name} has too many files"
        raise OSError(msg)
    return files, others


def _other_ranks(folder: Path) -> set[Path]:
    """Return the traces of a run folder that are not loaded: all but the first."""
    ranks = [rank for rank in read_run(folder).ranks if rank.trace]
    return {
        file
        for rank in ranks[1:]
        for file in (rank.trace, *rank.captures)
        if file is not None
    }
