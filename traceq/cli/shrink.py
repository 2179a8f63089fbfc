"""`traceq shrink`: a trace small enough to commit, in which the same is found."""

from __future__ import annotations

import datetime as dt
import shlex
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import polars as pl
import typer

from traceq import toml_text as toml
from traceq.check.fixture import (
    LOG,
    ORIGIN,
    SNAPSHOTS,
    TRACES,
    is_fixture,
    read_fixture,
)
from traceq.cli import output
from traceq.cli.recordings import is_snapshot
from traceq.errors import UsageError
from traceq.formats.log import read_log
from traceq.formats.run import is_run, read_run
from traceq.formats.sanitize.trace import packed
from traceq.lint.config import find_config
from traceq.lint.pack import load_rules
from traceq.report.base.text import printable
from traceq.shrink import Shrunk, shrink
from traceq.shrink.shrink import OTHER_STEPS, Given

_KILOBYTE = 1000
_MILLISECOND = 1_000_000


@dataclass(frozen=True)
class _Source:
    """What was given, and what it says of how it was made."""

    given: Given
    origin: dict[str, Any] = field(default_factory=dict)
    kept: str | None = None
    """An origin.toml that goes along as it is."""


def command(  # noqa: PLR0913 - one parameter an option
    path: Annotated[
        Path,
        typer.Argument(
            help="A trace, a memory snapshot, a run folder or a fixture.",
            metavar="PATH",
        ),
    ],
    *,
    folder: Annotated[
        Path,
        typer.Option(
            "--output", "-o", help="The fixture's new folder.", metavar="FOLDER"
        ),
    ],
    program: Annotated[
        str | None,
        typer.Option(help="What the traced program is, for origin.toml."),
    ] = None,
    log: Annotated[
        Path | None,
        typer.Option(
            help="What the program printed; lines that rules read are kept.",
            metavar="FILE",
        ),
    ] = None,
    snapshot: Annotated[
        Path | None,
        typer.Option(help="A memory snapshot of the same program.", metavar="FILE"),
    ] = None,
    step_ms: Annotated[
        float | None,
        typer.Option(
            help="What a step takes without the profiler.", metavar="MS", min=0.000001
        ),
    ] = None,
    max_kb: Annotated[
        int, typer.Option(help="How large the trace may be, in kB.", min=1)
    ] = 256,
) -> None:
    """Make a small trace of a large one, with the same findings and nothing private.

    Whole steps are kept, and of them what the findings need; that they are the same is
    checked before anything is written. Paths, host and user names, and whatever is not
    known to be harmless are left out. The result is a fixture for traceq check.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        msg = f"{folder} exists already and is not empty: give another name"
        raise UsageError(msg)
    source = _source(path)
    given = source.given
    if log:
        given = replace(given, log=read_log(log))
    if snapshot:
        given = replace(given, snapshot=snapshot)
    if step_ms:
        given = replace(given, step_ns=round(step_ms * _MILLISECOND))
    wanted = replace(find_config(Path.cwd()), min_cost_us=0)
    rules = load_rules(wanted.packs)
    with output.reading(path.name) as progress:
        shrunk = shrink(
            given, rules, wanted, limit=max_kb * _KILOBYTE, progress=progress
        )
    said = source.origin | ({"program": program} if program else {})
    origin = source.kept or _origin(shrunk, said, given.step_ns)
    _write(folder, shrunk, origin)
    named = bool(source.kept or said.get("program"))
    output.write(_report(folder, shrunk, max_kb, named=named))


def _source(path: Path) -> _Source:
    """Return what a path stands for."""
    if is_run(path):
        run = read_run(path)
        ranks = [rank for rank in run.ranks if rank.trace or rank.memory]
        if not ranks:
            msg = f"{path} has no trace and no snapshot: nothing was recorded in it"
            raise UsageError(msg)
        first = ranks[0]
        versions = _first(run.manifest, first.name).get("versions")
        known = versions if isinstance(versions, dict) else {}
        lines = [read_log(one) for one in run.logs]
        return _Source(
            Given(
                first.trace,
                first.memory,
                pl.concat(lines) if lines else None,
                first.step_time.ns if first.step_time else None,
            ),
            {
                "program": shlex.join(run.command),
                "command": "traceq collect -- " + shlex.join(run.command),
                **({"torch": known["torch"]} if known.get("torch") else {}),
            },
        )
    if path.is_dir() and is_fixture(path):
        fixture = read_fixture(path)
        lines = [read_log(fixture.log)] if fixture.log else []
        given = Given(
            fixture.trace,
            fixture.snapshot,
            pl.concat(lines) if lines else None,
            fixture.step_ns,
        )
        file = path / ORIGIN
        kept = file.read_text(encoding="utf-8") if file.is_file() else None
        return _Source(given, {}, kept)
    if is_snapshot(path):
        return _Source(Given(None, path))
    return _Source(Given(path))


def _first(manifest: Any, name: str) -> dict[str, Any]:  # noqa: ANN401 - JSON
    ranks = manifest.get("ranks")
    for rank in ranks if isinstance(ranks, list) else []:
        if isinstance(rank, dict) and rank.get("name") == name:
            return rank
    return {}


def _origin(shrunk: Shrunk, said: dict[str, Any], step_ns: int | None) -> str:
    """Return an origin.toml that says all that is known."""
    table: dict[str, Any] = {"program": "", **said}
    trace = shrunk.loaded
    if trace is not None:
        facts = trace.facts
        parts = [
            word for word in ("shapes", "stacks", "memory") if getattr(facts, word)
        ]
        with_parts = f" with {', '.join(parts)}" if parts else ""
        table["recorded"] = f"{shrunk.steps[1]} steps, torch.profiler{with_parts}"
        table.setdefault("torch", facts.torch.removeprefix("torch "))
        names = trace.devices.filter("used")["name"]
        table["gpu"] = names[0] if len(names) else "none"
        if facts.start_ns:
            moment = facts.start_ns / 1e9
            table["date"] = dt.datetime.fromtimestamp(moment, dt.timezone.utc).date()
        table["trimmed"] = _trimmed(shrunk)
    lines = ["# How this fixture was made.", *toml.lines(table)]
    if step_ns:
        lines.append("# Milliseconds a step, measured without the profiler.")
        lines += toml.lines({"true_step_ms": step_ns / _MILLISECOND})
    return "\n".join(lines) + "\n"


def _trimmed(shrunk: Shrunk) -> str:
    kept, of = shrunk.steps
    events, of_events = shrunk.events
    gone = ", ".join(what for what in shrunk.dropped if what != OTHER_STEPS)
    text = f"by traceq shrink: {kept} of {of} steps, {events:,} of {of_events:,} events"
    return f"{text}; without {gone}" if gone else text


def _write(folder: Path, shrunk: Shrunk, origin: str) -> None:
    snapshot = shrunk.snapshot
    contents = {
        TRACES[0]: shrunk.trace,
        SNAPSHOTS[0]: packed(snapshot) if snapshot is not None else None,
        LOG: shrunk.log.encode() if shrunk.log is not None else None,
        ORIGIN: origin.encode(),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            if content is not None:
                (folder / name).write_bytes(content)
    except OSError as error:
        msg = f"{folder} cannot be written: {error.strerror or error}"
        raise UsageError(msg) from None


def _report(folder: Path, shrunk: Shrunk, max_kb: int, *, named: bool) -> str:
    """Return what was done, in a few lines."""
    lines = []
    if shrunk.trace is not None:
        size = len(shrunk.trace)
        kept, of = shrunk.steps
        events, of_events = shrunk.events
        lines.append(
            f"{printable(str(folder / TRACES[0]))}: {size / _KILOBYTE:,.0f} kB,"
            f" {kept} of {of} steps, {events:,} of {of_events:,} events"
        )
        lines += [f"  left out: {n:,} {what}" for what, n in shrunk.dropped.items()]
        if size > max_kb * _KILOBYTE:
            lines.append(
                f"  that is more than {max_kb} kB, and what is left is needed:"
            )
            lines += [
                f"  without {what}: {printable('; '.join(changes))}"
                for what, changes in shrunk.stays.items()
            ]
    count = len(shrunk.seen.findings)
    findings = "1 finding" if count == 1 else f"{count} findings"
    lines.append(f"{findings} before and after; what may be private is left out")
    first = "" if named else f"say in {ORIGIN} what the program is, then "
    lines.append(
        f"next: {first}traceq check --update {printable(str(folder))}, and read"
        " findings.json"
    )
    return "\n".join(lines) + "\n"
