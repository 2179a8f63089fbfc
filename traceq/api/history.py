"""Runs over time: what `traceq history` adds to a file, reads of it and explains."""

from __future__ import annotations

import hashlib
import time
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
from msgspec import Struct

from traceq.api.preload import rules_of
from traceq.cache.store import digest as content_of
from traceq.common.git_repository import changed_files, commit_of, find_root
from traceq.common.progress import say
from traceq.errors import InputError, TraceqError, UsageError
from traceq.history.changes import Difference, difference
from traceq.history.jumps import NEIGHBOURS, Jump, jumps_of
from traceq.history.make import (
    Origin,
    digest_of_job,
    digest_of_recording,
    digests_of_lint,
)
from traceq.history.store import Run, add, reading
from traceq.inputs.discovery import local, several_runs

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from traceq.api.settings import LintOptions
    from traceq.history.digest import Digest
    from traceq.history.store import History

_NS = 1_000_000_000
# The JSON of lint begins so.
_LINT_JSON = b'{"version"'
_LARGEST_JSON = 256 << 20
_SHORTEST_COMMIT = 4
# Runs of each side that the cause of a jump is taken from.
_COMPARED = 5


class Given(Struct, frozen=True):
    """What the user says of runs."""

    commit: str = ""
    """Commit of the program; of the run folder or the working directory if empty."""
    series: str = ""
    """Name of what is measured; of the run's labels and script if empty."""
    on: str | None = None
    """Address of a Dask scheduler that reads the ranks of a job."""


class Added(Struct, frozen=True):
    """A run that was added."""

    digest: Digest
    new: bool
    """False if the file had it already."""


class ExplainedJump(Struct, frozen=True):
    """A jump with what differs between the runs on its sides."""

    jump: Jump
    difference: Difference


class Series(Struct, frozen=True):
    """Runs that are compared with each other, in order."""

    runs: tuple[Run, ...]
    jumps: tuple[ExplainedJump, ...]

    @property
    def name(self) -> str:
        """Series, GPU, ranks and source of the step time."""
        run = self.runs[0]
        ranks = f"{run.ranks} ranks" if run.ranks > 1 else ""
        parts = (run.series, run.gpu, ranks)
        return ", ".join(part for part in parts if part) or "runs"


# -- Adding ----------------------------------------------------------------------------


def add_runs(
    file: Path, paths: Sequence[Path], options: LintOptions, given: Given
) -> list[Added]:
    """Add the digests of runs to a file, all or none."""
    entries: list[tuple[str, Digest]] = []
    for path in paths:
        entries += _entries(path, options, given)
    changed = add(file, entries)
    return [
        Added(digest, new) for (_, digest), new in zip(entries, changed, strict=True)
    ]


def _entries(
    path: Path, options: LintOptions, given: Given
) -> list[tuple[str, Digest]]:
    here = local(path, cache=options.load.use_cache)
    if runs := several_runs(here):
        return [one for run in runs for one in _entries(run, options, given)]
    if not here.exists():
        msg = f"{path} is not there"
        raise InputError(msg)
    key = key_of(here)
    document = _lint_json(here)
    if document is not None:
        origin = _origin(path, here, options, given, {}, _started(document))
        digests = digests_of_lint(document, origin)
        return [(f"{key}-{at}", digest) for at, digest in enumerate(digests)]
    return [(key, _digest(path, here, options, given))]


def key_of(path: Path) -> str:
    """Return a hash of the content of a file, or of all files in a folder."""
    if path.is_file():
        return content_of(path, path.stat())[:32]
    whole = hashlib.sha256()
    for file in sorted(path.rglob("*")):
        if file.is_file() and not file.is_symlink():
            name = file.relative_to(path).as_posix().encode(errors="surrogateescape")
            whole.update(name + b"\0" + content_of(file, file.stat()).encode())
    return whole.hexdigest()[:32]


def _lint_json(path: Path) -> Any:  # noqa: ANN401 - any JSON
    """Return the JSON of lint in a file; None if it is something else."""
    if not path.is_file() or path.stat().st_size > _LARGEST_JSON:
        return None
    with path.open("rb") as stream:
        if stream.read(len(_LINT_JSON)) != _LINT_JSON:
            return None
    try:
        document = orjson.loads(path.read_bytes())
    except orjson.JSONDecodeError:
        return None
    return document if isinstance(document.get("recordings"), list) else None


def _started(document: Mapping[str, Any]) -> int | None:
    for one in document["recordings"]:
        facts = one.get("facts") if isinstance(one, dict) else None
        start = facts.get("start_ns") if isinstance(facts, dict) else None
        if isinstance(start, int):
            return start
    return None


def _digest(path: Path, here: Path, options: LintOptions, given: Given) -> Digest:
    from traceq.ranks.load_job import is_job  # noqa: PLC0415 - few have jobs

    if is_job(here):
        return _digest_of_job(path, here, options, given)
    from traceq.inputs.load_recording import load_recording  # noqa: PLC0415
    from traceq.linter.engine import lint  # noqa: PLC0415

    recording = load_recording(here, options.load)
    config = options.config
    (outcome,) = lint([recording], rules_of(config.packs), config, brief=True).outcomes
    for rule in outcome.crashed:
        say(f"{rule.code} crashed on {path}: {rule.error}; it is not in the digest")
    trace = recording.trace
    run = trace.run if trace else None
    manifest = run.manifest if run else {}
    started = trace.facts.start_ns if trace else None
    origin = _origin(path, here, options, given, manifest, started)
    return digest_of_recording(recording, outcome, origin)


def _digest_of_job(
    path: Path, here: Path, options: LintOptions, given: Given
) -> Digest:
    from traceq.formats.run import is_run, read_run  # noqa: PLC0415
    from traceq.ranks.findings import lint_job  # noqa: PLC0415
    from traceq.ranks.load_job import analysed  # noqa: PLC0415

    analysis = analysed([here], options.load, on=given.on)
    config = options.config
    report = lint_job(str(path), analysis, rules_of(config.packs), config)
    manifest = read_run(here).manifest if is_run(here) else {}
    origin = _origin(path, here, options, given, manifest, None)
    return digest_of_job(analysis, report.outcomes[0], origin)


def _origin(
    path: Path,
    here: Path,
    options: LintOptions,
    given: Given,
    manifest: Mapping[str, Any],
    started_ns: int | None,
) -> Origin:
    root = options.root or find_root(Path.cwd())
    commit, dirty, at_ns = _commit(root, given.commit, manifest)
    return Origin(
        name=str(path),
        series=given.series or _series(manifest),
        at_ns=at_ns or started_ns or here.stat().st_mtime_ns or time.time_ns(),
        commit=commit,
        dirty=dirty,
    )


def _commit(
    root: Path | None, name: str, manifest: Mapping[str, Any]
) -> tuple[str, bool, int | None]:
    """Return the commit, whether files differed from it, and its time."""
    recorded = manifest.get("git") or {}
    wanted = name or str(recorded.get("commit") or "")
    known = commit_of(root, wanted or "HEAD") if root else None
    if wanted and not known:
        return wanted, bool(recorded.get("dirty")) and not name, None
    if not known or root is None:
        return "", False, None
    commit, seconds = known
    if wanted:
        return commit, bool(recorded.get("dirty")) and not name, seconds * _NS
    return commit, bool(changed_files(root)), seconds * _NS


def _series(manifest: Mapping[str, Any]) -> str:
    """Return the script and the labels of a run."""
    command = [str(word) for word in manifest.get("command") or ()]
    scripts = [Path(word).name for word in command if word.endswith(".py")]
    labels = [f"{key}={value}" for key, value in (manifest.get("labels") or {}).items()]
    return " ".join([*scripts[:1], *labels])


# -- Reading ---------------------------------------------------------------------------


def series_of(
    history: History, *, name: str = "", last: int | None = None
) -> list[Series]:
    """Return the runs by series, with the jumps and their causes.

    ``last`` runs of each are returned; jumps are looked for in all.
    """
    chosen = [run for run in history.runs() if not name or run.series == name]
    if name and not chosen:
        msg = f"{history.file} has no runs of the series {name}"
        raise UsageError(msg)
    return [
        _series_of(history, list(group), last)
        for _, group in groupby(chosen, key=lambda run: run.group)
    ]


def _series_of(history: History, runs: Sequence[Run], last: int | None) -> Series:
    first = max(0, len(runs) - last) if last else 0
    jumps = [jump for jump in jumps_of(runs) if jump.at >= first]
    explained = [
        ExplainedJump(
            Jump(jump.at - first, jump.first, jump.last, jump.shifts, jump.confirmed),
            difference(*_sides(history, runs, jump)),
        )
        for jump in jumps
    ]
    return Series(tuple(runs[first:]), tuple(explained))


def _sides(
    history: History, runs: Sequence[Run], jump: Jump
) -> tuple[list[Digest], list[Digest]]:
    """Return the digests of the runs next to a jump."""
    before = runs[max(jump.first, jump.at - _COMPARED) : jump.at]
    after = runs[jump.at : min(jump.last + 1, jump.at + _COMPARED)]
    return history.digests(before), history.digests(after)


def find_runs(history: History, name: str) -> list[Run]:
    """Return the runs that a name means: of a commit, or of a path; raise if none.

    A commit may be shortened; ``last`` is the newest run, ``last~2`` the second before.
    """
    runs = history.runs()
    if found := [run for run in runs if run.name == name]:
        return found
    if found := [run for run in runs if str(run.id) == name.removeprefix("#")]:
        return found
    if len(name) >= _SHORTEST_COMMIT:
        found = [run for run in runs if run.commit.startswith(name)]
        if len({run.commit for run in found}) > 1:
            msg = f"{name} is the beginning of several commits: give more of it"
            raise UsageError(msg)
        if found:
            return found
    word, _, back = name.partition("~")
    if word == "last" and (not back or back.isdigit()):
        ordered = sorted(runs, key=lambda run: (run.at_ns, run.id))
        at = len(ordered) - 1 - int(back or 0)
        if at >= 0:
            return [ordered[at]]
    msg = f"{history.file} has no run {name}: traceq history show lists all"
    raise UsageError(msg)


class Explained(Struct, frozen=True):
    """Two runs, or all runs of two commits, and what differs."""

    before: tuple[Run, ...]
    after: tuple[Run, ...]
    difference: Difference


def explain(file: Path, before: str, after: str) -> Explained:
    """Return what differs between two runs, or two commits, by their digests."""
    with reading(file) as history:
        sides = [find_runs(history, name) for name in (before, after)]
        groups = [{run.group for run in side} for side in sides]
        common = groups[0] & groups[1]
        # Of commits that were measured in several series, one that both have.
        if common:
            group = min(common)
            sides = [[run for run in side if run.group == group] for side in sides]
        else:
            first, second = (side[0] for side in sides)
            say(
                f"{first.name} and {second.name} are of different series, or on other"
                " GPUs: their times say little about each other"
            )
        digests = [history.digests(side) for side in sides]
    return Explained(
        tuple(sides[0]), tuple(sides[1]), difference(digests[0], digests[1])
    )


def still_there(run: Run) -> Path | None:
    """Return the recording of a run, if the same content is still at its path."""
    path = Path(run.name)
    try:
        if (path.is_file() or path.is_dir()) and key_of(path) == run.key:
            return path
    except (OSError, ValueError, TraceqError):
        return None
    return None


def all_series(
    file: Path, *, name: str = "", last: int | None = None
) -> Iterator[Series]:
    """Yield the series of a file."""
    with reading(file) as history:
        yield from series_of(history, name=name, last=last)


def neighbours() -> int:
    """Return the number of runs that a run is compared with."""
    return NEIGHBOURS
