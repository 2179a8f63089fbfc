"""Report of `traceq shrink`: the kept and removed parts, and the origin."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from traceq.check.fixture import TRACES
from traceq.check.whole import written_whole
from traceq.common import toml
from traceq.common.safe_text import printable
from traceq.common.units import NS_PER_MS, NS_PER_S
from traceq.common.words import counted
from traceq.formats.fixture_origin import ORIGIN
from traceq.formats.sanitize.fields import gpu_name
from traceq.shrink.shrink import OTHER_STEPS

if TYPE_CHECKING:
    from pathlib import Path

    from traceq.model.trace import Trace
    from traceq.shrink import Shrunk

_KILOBYTE = 1000


@dataclass(frozen=True, kw_only=True)
class Result:
    """A fixture as it was written."""

    folder: Path
    named: bool
    """True if the program is named."""
    whole: bool
    """True if its command is complete."""
    written: tuple[str, ...] = ()
    """Files with what is expected of it; none if that is for ``--update`` to write."""
    on_gpu: bool = True
    """True if it was recorded on a GPU, or that is unknown."""


def render(result: Result, shrunk: Shrunk, max_kb: int) -> str:
    """Return what was done and the next steps, in a few lines."""
    folder = printable(str(result.folder))
    lines = _of_trace(result.folder, shrunk, max_kb) if shrunk.trace is not None else []
    findings = counted(len(shrunk.seen.findings), "finding")
    lines.append(f"{findings} before and after; private data is left out")
    if shrunk.unseen:
        listed = printable(", ".join(shrunk.unseen))
        lines.append(f"  {ORIGIN} has what only the whole run shows: {listed}")
    if result.written:
        lines.append(f"written as what is expected: {', '.join(result.written)}")
    if not result.whole:
        lines.append(
            f"words of the command were left out: write them into {ORIGIN}, for traceq"
            " check to run it"
        )
    return "\n".join([*lines, *_next(result, folder)]) + "\n"


def _next(result: Result, folder: str) -> list[str]:
    """Return what is left to do, a line each."""
    if not result.written:
        first = "" if result.named else f"name the program in {ORIGIN}, then "
        return [f"next: {first}traceq check --update {folder}, and read findings.json"]
    lines = [f"next: read findings.json, and git add {folder}; then traceq check"]
    if result.on_gpu:
        lines.append(
            f"for machines without a GPU: traceq check --run --cpu --update {folder}"
        )
    return lines


def _of_trace(folder: Path, shrunk: Shrunk, max_kb: int) -> list[str]:
    size = len(shrunk.trace or b"") / _KILOBYTE
    lines = [
        f"{printable(str(folder / TRACES[0]))}: {size:,.0f} kB, {_contents(shrunk)}",
        *(f"  left out: {count:,} {what}" for what, count in shrunk.dropped.items()),
    ]
    if size > max_kb:
        lines.append(f"  larger than {max_kb} kB, since the rest is needed:")
        lines += [
            f"  without {what}: {printable('; '.join(changes))}"
            for what, changes in shrunk.stays.items()
        ]
    return lines


def _contents(shrunk: Shrunk) -> str:
    steps, of = shrunk.steps
    events, of_events = shrunk.events
    return f"{steps} of {of} steps, {events:,} of {of_events:,} events"


def origin(shrunk: Shrunk, previous: dict[str, Any], step_ns: int | None) -> str:
    """Return an origin.toml with all that is known of how a fixture was made."""
    table: dict[str, Any] = {"program": "", **previous}
    if shrunk.loaded is not None:
        table |= _recorded(shrunk.loaded, shrunk.steps[1]) | previous
        table["trimmed"] = _trimmed(shrunk)
    lines = ["# How this fixture was made.", *toml.lines(table)]
    if step_ns:
        lines.append("# Milliseconds a step, measured without the profiler.")
        lines += toml.lines({"true_step_ms": step_ns / NS_PER_MS})
    lines += written_whole(shrunk.run)
    return "\n".join(lines) + "\n"


def _recorded(trace: Trace, steps: int) -> dict[str, Any]:
    """Return the facts in a trace about its recording."""
    facts = trace.facts
    parts = [word for word in ("shapes", "stacks", "memory") if getattr(facts, word)]
    with_parts = f" with {', '.join(parts)}" if parts else ""
    names = trace.devices.filter("used")["name"]
    origin_facts: dict[str, Any] = {
        "recorded": f"{counted(steps, 'step')}, torch.profiler{with_parts}",
        "torch": facts.torch.removeprefix("torch "),
        "gpu": (gpu_name(names[0] or "") or "unknown") if len(names) else "none",
    }
    if facts.start_ns:
        moment = dt.datetime.fromtimestamp(facts.start_ns / NS_PER_S, dt.timezone.utc)
        origin_facts["date"] = moment.date()
    return origin_facts


def _trimmed(shrunk: Shrunk) -> str:
    removed = ", ".join(what for what in shrunk.dropped if what != OTHER_STEPS)
    text = f"by traceq shrink: {_contents(shrunk)}"
    return f"{text}; without {removed}" if removed else text
