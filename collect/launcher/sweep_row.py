"""Row of a run: its figures, or the reason why there are none."""

from __future__ import annotations

import re
import statistics
from pathlib import Path
from typing import Any, Iterable, Mapping

from ..shared import manifest, own_numbers
from ..shared.figures import digits
from . import last_words, sweep_options, sweep_plan
from .sweep_plan import Run

FORMAT = 1
FILE = "row.json"
OK, OUT_OF_MEMORY, FAILED, TIMED_OUT, NOT_MEASURED = (
    "ok",
    "out of memory",
    "failed",
    "timed out",
    "not measured",
)
_OUT_OF_MEMORY = re.compile(
    r"\bOutOfMemoryError\b|CUDA out of memory|\bMemoryError\b"
    r"|DefaultCPUAllocator: (can't allocate|not enough) memory"
    r"|CUDA error: out of memory|CUDA_ERROR_OUT_OF_MEMORY"
)


def row(  # noqa: PLR0913 - what is known of a run
    run: Run,
    chosen: Any,
    facts: dict[str, Any],
    folder: Path,
    printed: Mapping[str, list[float]],
    *,
    timed_out: bool,
) -> dict[str, Any]:
    """Return the row of a run that has ended."""
    rank = (facts.get("ranks") or [{}])[0]
    status, reason = _outcome(chosen, facts, rank, folder, timed_out=timed_out)
    numbers = dict(facts.get("numbers") or {})
    for name, values in printed.items():
        numbers[name] = own_numbers.summary(values)
    known = {name: number["mean"] for name, number in numbers.items()}
    trace = rank.get("trace")
    devices = rank.get("devices") or []
    return {
        "format": FORMAT,
        "name": run.name,
        "labels": run.labels,
        "repeat": run.repeat,
        "status": status,
        "reason": reason,
        "exit": facts.get("exit"),
        "started": facts.get("started"),
        "seconds": facts.get("seconds"),
        "step_time": _step_time(rank.get("step_time")),
        "peak_memory": rank.get("peak_memory"),
        "parameters": known.get("params", rank.get("parameters")),
        "numbers": numbers,
        "tokens": _stated("tokens", known, chosen, run.labels),
        "flops": _stated("flops", known, chosen, run.labels),
        "peak_tflops": sweep_options.peak_of(chosen.peak_tflops, run.labels),
        "device": devices[0]["name"] if devices else rank.get("device"),
        "versions": rank.get("versions"),
        "trace": trace["file"] if trace else None,
    }


def read(folder: Path) -> dict[str, Any]:
    """Return the row of a run folder; empty if the run has not ended."""
    return manifest.read(folder / FILE)


def text(row: Mapping[str, Any]) -> str:
    """Return a row in a few words."""
    if row["status"] != OK:
        reason = row["reason"]
        return f"{row['status']}{f': {reason}' if reason else ''}"
    timed = row["step_time"]
    parts = [f"{digits(timed['mean_ms'], 4)} ms"]
    if timed["std_ms"] is not None:
        parts[0] += f" ±{digits(timed['std_ms'], 2)}"
    parts[0] += f" (n {timed['n']})"
    peak = (row["peak_memory"] or {}).get("allocated")
    if peak:
        parts.append(f"{digits(peak / 2**30)} GiB")
    parts += [
        f"{name} {digits(number['last'], 4)}"
        for name, number in row["numbers"].items()
        if number["last"] is not None
    ]
    return ", ".join(parts)


def table(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return a line for each run, by its labels."""
    listed = sorted(rows, key=lambda row: (_order(row["labels"]), row["repeat"]))
    names = [
        " ".join(f"{key}={value}" for key, value in row["labels"].items())
        for row in listed
    ]
    widest = max(map(len, names), default=0)
    return [f"{name:<{widest}}  {text(row)}" for name, row in zip(names, listed)]


def _order(labels: Mapping[str, str]) -> list[tuple[int, float, str]]:
    return [_place(value) for value in labels.values()]


def _place(value: str) -> tuple[int, float, str]:
    try:
        return (0, float(value), "")
    except ValueError:
        return (1, 0.0, value)


def _step_time(timed: dict[str, Any] | None) -> dict[str, Any] | None:
    if not timed:
        return None
    laps = timed["laps_ms"]
    return {
        "mean_ms": timed["ms"],
        "std_ms": round(statistics.stdev(laps), 4) if len(laps) > 1 else None,
        "n": timed["steps"],
        "median_ms": timed["median_ms"],
        "clock": timed["clock"],
        "laps_ms": laps,
    }


def _outcome(
    chosen: Any,
    facts: dict[str, Any],
    rank: dict[str, Any],
    folder: Path,
    *,
    timed_out: bool,
) -> tuple[str, str]:
    ended = facts.get("exit") or {"status": 1, "signal": None}
    log = folder / "stderr.log"
    if timed_out:
        return TIMED_OUT, f"it took longer than --timeout {chosen.timeout:g}"
    if ended["status"] and not ended.get("stopped_by_traceq"):
        error = last_words.last_error(log)
        memory = _OUT_OF_MEMORY.search(last_words.tail(log))
        kind = OUT_OF_MEMORY if memory else FAILED
        if memory and not _OUT_OF_MEMORY.search(error):
            error = memory[0]  # what came after it is a consequence
        if ended["signal"] and kind == FAILED:
            error = f"ended by {ended['signal']}"
            if ended["signal"] == "SIGKILL":
                error += ", as the system does when memory runs out"
        return kind, error or f"ended with status {ended['status']}"
    if rank.get("step_time"):
        return OK, ""
    missing = [*(rank.get("missing") or []), *(facts.get("missing") or [])]
    reasons = [
        part["why"] for part in missing if part["what"] in ("step_time", "ranks")
    ]
    return NOT_MEASURED, reasons[0] if reasons else "no step was timed"


def _stated(
    name: str, known: Mapping[str, Any], chosen: Any, labels: dict[str, str]
) -> float | None:
    """Return tokens or FLOPs of a step: as recorded, else as the command says."""
    recorded = known.get(name)
    if recorded is not None:
        return float(recorded)
    value = getattr(chosen, name)
    return None if value is None else sweep_plan.amount(value, labels)
