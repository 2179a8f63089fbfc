"""Implementation of `traceq shrink`: from a recording to a fixture."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
from msgspec import structs

from traceq.api.settings import configuration, nanoseconds
from traceq.check.check import check
from traceq.check.fixture import LOG, SNAPSHOTS, TRACES, is_fixture, read_fixture
from traceq.check.program import LEFT_OUT, repository
from traceq.check.run import check_run
from traceq.cli import output
from traceq.common.atomic_files import write_folder
from traceq.errors import UsageError
from traceq.formats.fixture_origin import ORIGIN
from traceq.formats.nsys.recognition import is_export
from traceq.formats.run import is_run, read_run
from traceq.formats.sanitize.trace import packed
from traceq.inputs.discovery import single_program
from traceq.inputs.load_recording import load_log, load_recording
from traceq.inputs.load_trace import load
from traceq.inputs.options import UNCACHED
from traceq.inputs.temporary import chrome_trace
from traceq.linter.pack import load_rules
from traceq.report import shrink as shrink_report
from traceq.shrink import Shrunk, shrink
from traceq.shrink.command_line import collect_command, shown_command
from traceq.shrink.shrink import ShrinkInput

if TYPE_CHECKING:
    from traceq.check.fixture import Fixture
    from traceq.linter.config import Config

_KILOBYTE = 1000
_TRUE_STEP = "true_step_ms"
_VERSION = re.compile(
    r"\d+(?:\.\d+)+(?:(?:a|b|rc|\.dev)\d+)?(?:\+(?:cu|rocm|cpu|xpu)[\d.]*)?"
)


@dataclass(frozen=True)
class _Source:
    """The recording to shrink, and its origin."""

    recording: ShrinkInput
    origin: dict[str, Any] = field(default_factory=dict)
    origin_text: str | None = None
    """An origin.toml that goes along as it is."""


@dataclass(frozen=True)
class Request:
    """Arguments of the command."""

    path: Path
    folder: Path
    program: str | None
    run_by: str | None
    log: Path | None
    snapshot: Path | None
    step_ms: float | None
    keep_regions: bool
    replace_it: bool
    max_kb: int
    rank: int | None = None


def make(request: Request) -> None:
    """Write a fixture, and say what is in it."""
    folder, replace_it = request.folder, request.replace_it
    before = _before(folder, replace_it=replace_it)
    source = _source(request.path, repository(folder), request.rank)
    recording = _shrink_input(source, request)
    wanted = structs.replace(configuration(None), min_cost_us=0)
    with output.reading(request.path.name) as progress:
        shrunk = shrink(
            replace(recording, keep_regions=request.keep_regions),
            load_rules(wanted.packs),
            wanted,
            limit=request.max_kb * _KILOBYTE,
            progress=progress,
        )
    origin_facts = _origin(source, before, request.program, request.run_by)
    origin = _origin_text(source, request.step_ms) or shrink_report.origin(
        shrunk, origin_facts, recording.step_ns
    )
    _write(folder, shrunk, origin, replace_it=replace_it)
    result = shrink_report.Result(
        folder=folder,
        named=bool(source.origin_text or origin_facts.get("program")),
        whole=LEFT_OUT not in str(origin_facts.get("command", "")),
        written=() if replace_it else _expectations(folder, recording, wanted),
        on_gpu=_on_gpu(recording),
    )
    output.write(shrink_report.render(result, shrunk, request.max_kb))


def _expectations(
    folder: Path, recording: ShrinkInput, config: Config
) -> tuple[str, ...]:
    """Hold a new fixture to what it shows, and its program to what it asked of torch.

    Returns the files that were written; none if the program has no name yet.
    """
    if not read_fixture(folder).origin.get("program"):
        return ()
    rules = load_rules(config.packs)
    written = check(folder, rules, config, update=True, cache=False).written
    has_command = bool(read_fixture(folder).origin.get("command"))
    read = recording.recording
    if has_command and read and read.trace and not _on_gpu(recording):
        ran = check_run(folder, read, rules, config, update=True)
        written = (*written, *(name for name in ran.written if name not in written))
    return written


def _on_gpu(recording: ShrinkInput) -> bool:
    trace = recording.recording.trace if recording.recording else None
    return trace is None or bool(trace.facts.gpu)


def _shrink_input(source: _Source, request: Request) -> ShrinkInput:
    """Return what to shrink: the source, with what the command adds to it."""
    recording = source.recording
    if request.log:
        recording = replace(recording, log=load_log(request.log))
    if request.snapshot:
        recording = replace(recording, snapshot=request.snapshot)
    if not source.origin_text:
        # Check reads it so, too: with lines, captures and packages that a run knows.
        read = load_recording(
            request.path,
            structs.replace(UNCACHED, rank=request.rank),
            log=request.log,
        )
        recording = replace(recording, recording=read, step_ns=read.step_ns)
    recording = replace(
        recording, step_ns=nanoseconds(request.step_ms) or recording.step_ns
    )
    if recording.recording:
        read = replace(recording.recording, step_ns=recording.step_ns)
        recording = replace(recording, recording=read)
    return recording


def _before(folder: Path, *, replace_it: bool) -> Fixture | None:
    """Return the fixture to replace, if that is asked for."""
    if replace_it:
        if not folder.is_dir() or not is_fixture(folder):
            msg = (
                f"{folder} is not a fixture that --replace could replace: leave it out"
            )
            raise UsageError(msg)
        return read_fixture(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        hint = ", or --replace" if folder.is_dir() and is_fixture(folder) else ""
        msg = f"{folder} exists already and is not empty: give another name{hint}"
        raise UsageError(msg)
    return None


def _origin(
    source: _Source, before: Fixture | None, program: str | None, run_by: str | None
) -> dict[str, Any]:
    """Return what is known of how it was made; what people wrote before stays."""
    entries = before.origin if before else {}
    written = {
        key: entries[key]
        for key in ("program", "command", "folder")
        if entries.get(key)
    }
    options = {"program": program, "command": run_by}
    return source.origin | written | {key: one for key, one in options.items() if one}


def _origin_text(source: _Source, step_ms: float | None) -> str | None:
    """Return the origin.toml of a fixture, with a step time that was measured."""
    if source.origin_text is None or step_ms is None:
        return source.origin_text
    lines = [
        line
        for line in source.origin_text.splitlines()
        if not line.startswith(_TRUE_STEP)
    ]
    tables = (at for at, line in enumerate(lines) if line.startswith("["))
    first = next(tables, len(lines))
    return (
        "\n".join([*lines[:first], f"{_TRUE_STEP} = {step_ms}", *lines[first:]]) + "\n"
    )


def _source(path: Path, root: Path, rank: int | None) -> _Source:
    """Return what a path stands for; the program's files are below ``root``."""
    if is_run(path):
        run = read_run(path)
        recorded = [item for item in run.ranks if item.trace or item.memory]
        ranks = [item for item in recorded if rank in {None, item.rank}]
        if recorded and not ranks:
            numbers = ", ".join(str(item.rank) for item in recorded)
            msg = f"{path} has no rank {rank}, the ranks are {numbers}"
            raise UsageError(msg)
        if not ranks:
            msg = f"{path} has no trace and no snapshot: nothing was recorded"
            raise UsageError(msg)
        first = ranks[0]
        versions = _first(run.manifest, first.name).get("versions")
        torch_versions = versions if isinstance(versions, dict) else {}
        lines = [load_log(item) for item in run.logs]
        command = shown_command(run.command, root)
        options = run.manifest.get("options")
        options = options if isinstance(options, dict) else {}
        breaks = first.compiled.graph_breaks if first.compiled else None
        return _Source(
            ShrinkInput(
                first.trace,
                first.memory,
                pl.concat(lines) if lines else None,
                sources=first.sources,
                compiled=first.compiled_code,
                owners=first.owners,
            ),
            {
                "program": command,
                "command": collect_command(command, options),
                **_torch(torch_versions),
                **({"graph_breaks": len(breaks)} if breaks is not None else {}),
            },
        )
    if path.is_dir() and is_fixture(path):
        fixture = read_fixture(path)
        lines = [load_log(fixture.log)] if fixture.log else []
        recording = ShrinkInput(
            fixture.trace,
            fixture.snapshot,
            pl.concat(lines) if lines else None,
            fixture.step_ns,
        )
        file = path / ORIGIN
        text = file.read_text(encoding="utf-8") if file.is_file() else None
        return _Source(recording, {}, text)
    program = single_program(path)
    lines = [load_log(item) for item in program.logs]
    log = pl.concat(lines) if lines else None
    trace = program.trace
    if trace and is_export(trace):
        trace = chrome_trace(trace, load(trace, rank=rank, cache=False))
    return _Source(ShrinkInput(trace, program.snapshot, log))


def _torch(versions: dict[str, Any]) -> dict[str, str]:
    version = str(versions.get("torch") or "")
    return {"torch": version} if _VERSION.fullmatch(version) else {}


def _first(manifest: Any, name: str) -> dict[str, Any]:  # noqa: ANN401 - JSON
    ranks = manifest.get("ranks")
    for rank in ranks if isinstance(ranks, list) else []:
        if isinstance(rank, dict) and rank.get("name") == name:
            return rank
    return {}


def _write(folder: Path, shrunk: Shrunk, origin: str, *, replace_it: bool) -> None:
    snapshot = shrunk.snapshot
    contents = {
        TRACES[0]: shrunk.trace,
        SNAPSHOTS[0]: packed(snapshot) if snapshot is not None else None,
        LOG: shrunk.log.encode() if shrunk.log is not None else None,
        ORIGIN: origin.encode(),
    }
    new = {name: content for name, content in contents.items() if content is not None}
    write_folder(folder, new)
    if replace_it:
        for name in (*TRACES, *SNAPSHOTS, LOG):
            if name not in new:
                (folder / name).unlink(missing_ok=True)
