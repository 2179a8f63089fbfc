"""Digests of runs for a history: of traces, run folders, jobs and lint JSON."""

from __future__ import annotations

import hashlib
import time
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
from msgspec import Struct

from traceq.api.preload import rules_of
from traceq.cache.store import digest as content_of
from traceq.common.git_repository import (
    changed_files,
    commit_of,
    commits_between,
    find_root,
)
from traceq.common.progress import notify
from traceq.common.units import NS_PER_S
from traceq.errors import InputError, UsageError
from traceq.history.bisection import Bisection, bisect
from traceq.history.make import (
    Origin,
    digest_of_job,
    digest_of_recording,
    digests_of_lint,
)
from traceq.history.store import Run, add, reading
from traceq.inputs.discovery import localize, several_runs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from traceq.api.settings import LintOptions
    from traceq.history.digest import Digest
    from traceq.history.jumps import Name

# The JSON of lint begins so.
_LINT_JSON = b'{"version"'
_LARGEST_JSON = 256 << 20
_EMPTY = hashlib.sha256().hexdigest()
# A path of a history may name any folder: one with more files is not looked into.
_MOST_FILES = 10_000


class DigestOptions(Struct, frozen=True):
    """Options of digests: what cannot be read from the recording."""

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


def add_runs(
    file: Path, paths: Sequence[Path], options: LintOptions, chosen: DigestOptions
) -> list[Added]:
    """Add the digests of runs to a file, all or none."""
    entries: list[tuple[str, Digest]] = []
    for path in paths:
        entries += digests_of(path, options, chosen)
    changed = add(file, entries)
    return [
        Added(digest, new) for (_, digest), new in zip(entries, changed, strict=True)
    ]


def digests_of(
    path: Path, options: LintOptions, chosen: DigestOptions
) -> list[tuple[str, Digest]]:
    """Return the keys and digests of the runs at a path."""
    here = localize(path, cache=options.load.use_cache)
    if runs := several_runs(here):
        return [row for run in runs for row in digests_of(run, options, chosen)]
    if not here.exists():
        msg = f"{path} is not there"
        raise InputError(msg)
    key = key_of(here)
    document = _lint_json(here)
    if document is not None:
        origin = _origin((path, here), options, chosen, {}, _started(document))
        digests = digests_of_lint(document, origin)
        return [(f"{key}-{at}", digest) for at, digest in enumerate(digests)]
    return [(key, _digest(path, here, options, chosen))]


def key_of(path: Path, most: int | None = None) -> str:
    """Return a hash of the content of a file, or of all files in a folder.

    Raises ``ValueError`` for a folder with more than ``most`` entries.
    """
    if path.is_file():
        return _content(path)[:32]
    entries = list(islice(path.rglob("*"), None if most is None else most + 1))
    if most is not None and len(entries) > most:
        msg = f"{path} has more than {most} files"
        raise ValueError(msg)
    whole = hashlib.sha256()
    for file in sorted(entries):
        if file.is_file() and not file.is_symlink():
            name = file.relative_to(path).as_posix().encode(errors="surrogateescape")
            whole.update(name + b"\0" + _content(file).encode())
    return whole.hexdigest()[:32]


def _content(file: Path) -> str:
    # Files of /proc have no size, and may never end.
    status = file.stat()
    return content_of(file, status) if status.st_size else _EMPTY


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
    for recording in document["recordings"]:
        facts = recording.get("facts") if isinstance(recording, dict) else None
        start = facts.get("start_ns") if isinstance(facts, dict) else None
        if isinstance(start, int):
            return start
    return None


def _digest(
    path: Path, here: Path, options: LintOptions, chosen: DigestOptions
) -> Digest:
    from traceq.ranks.load_job import is_job  # noqa: PLC0415 - few have jobs

    if is_job(here):
        return _digest_of_job(path, here, options, chosen)
    from traceq.inputs.load_recording import load_recording  # noqa: PLC0415
    from traceq.linter.engine import lint  # noqa: PLC0415

    recording = load_recording(here, options.load)
    if options.step_ns:
        recording = replace(recording, step_ns=options.step_ns)
    config = options.config
    (outcome,) = lint([recording], rules_of(config.packs), config, brief=True).outcomes
    for rule in outcome.crashed:
        notify(f"{rule.code} crashed on {path}: {rule.error}; it is not in the digest")
    trace = recording.trace
    run = trace.run if trace else None
    manifest = run.manifest if run else {}
    started = trace.facts.start_ns if trace else None
    origin = _origin((path, here), options, chosen, manifest, started)
    return digest_of_recording(recording, outcome, origin)


def _digest_of_job(
    path: Path, here: Path, options: LintOptions, chosen: DigestOptions
) -> Digest:
    from traceq.formats.run import is_run, read_run  # noqa: PLC0415
    from traceq.ranks.findings import lint_job  # noqa: PLC0415
    from traceq.ranks.load_job import analysed  # noqa: PLC0415

    analysis = analysed([here], options.load, on=chosen.on)
    config = options.config
    report = lint_job(str(path), analysis, rules_of(config.packs), config)
    manifest = read_run(here).manifest if is_run(here) else {}
    origin = _origin((path, here), options, chosen, manifest, None)
    return digest_of_job(analysis, report.outcomes[0], origin)


def _origin(
    paths: tuple[Path, Path],
    options: LintOptions,
    chosen: DigestOptions,
    manifest: Mapping[str, Any],
    started_ns: int | None,
) -> Origin:
    """Return what is known of a run; its path as given, and on this machine."""
    root = options.root or find_root(Path.cwd())
    commit, dirty, at_ns = _commit(root, chosen.commit, manifest)
    return Origin(
        name=str(paths[0]),
        series=chosen.series or _series(manifest),
        at_ns=at_ns or started_ns or paths[1].stat().st_mtime_ns or time.time_ns(),
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
        return commit, bool(recorded.get("dirty")) and not name, seconds * NS_PER_S
    return commit, bool(changed_files(root)), seconds * NS_PER_S


def _series(manifest: Mapping[str, Any]) -> str:
    """Return the script and the labels of a run."""
    command = [str(word) for word in manifest.get("command") or ()]
    scripts = [Path(word).name for word in command if word.endswith(".py")]
    labels = [f"{key}={value}" for key, value in (manifest.get("labels") or {}).items()]
    return " ".join([*scripts[:1], *labels])


# -- Reading ---------------------------------------------------------------------------


def still_there(run: Run) -> Path | None:
    """Return the recording of a run, if the same content is still at its path."""
    path = Path(run.name)
    try:
        if (path.is_file() or path.is_dir()) and key_of(path, _MOST_FILES) == run.key:
            return path
    except (OSError, ValueError):
        return None
    return None


def bisection(
    file: Path,
    good: str,
    bad: str,
    *,
    series: str = "",
    number: Name | None = None,
    root: Path | None = None,
) -> Bisection:
    """Return which commit to measure next between a good and a bad one."""
    folder = root or find_root(Path.cwd())
    ends = [_full(folder, name) for name in (good, bad)]
    with reading(file) as history:
        chosen = [run for run in history.runs() if not series or run.series == series]
    ends = [_measured_commit(chosen, end) for end in ends]
    groups = [{run.group for run in chosen if run.commit == end} for end in ends]
    common = sorted(groups[0] & groups[1])
    if not common:
        msg = f"{good} and {bad} have no runs of one series: add them first"
        raise UsageError(msg)
    runs = [run for run in chosen if run.group == common[0]]
    between = commits_between(folder, *ends) if folder else None
    if between is None:
        msg = (
            f"git does not know the commits from {good} to {bad} here: give the"
            " repository as --root"
        )
        raise UsageError(msg)
    if not between or between[-1] != ends[1]:
        msg = f"{bad} does not come after {good}: give the good one first"
        raise UsageError(msg)
    return bisect([ends[0], *between], runs, number)


def _full(root: Path | None, name: str) -> str:
    """Return the hash of a commit by its name, as far as git knows it."""
    known = commit_of(root, name) if root else None
    return known[0] if known else name


def _measured_commit(runs: Sequence[Run], name: str) -> str:
    commits = {run.commit for run in runs if run.commit.startswith(name)}
    if len(commits) > 1:
        msg = f"{name} is the beginning of several commits: give more of it"
        raise UsageError(msg)
    return commits.pop() if commits else name
