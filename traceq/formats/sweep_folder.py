"""Reader of ``traceq sweep`` folders: one file for the sweep, one for each run."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import orjson

from traceq.common.units import NS_PER_MS
from traceq.errors import InputError
from traceq.model.sweep_run import OwnNumber, SweepRun, SweepRuns

if TYPE_CHECKING:
    from pathlib import Path

_FORMAT = 1
_FILE, _ROW = "sweep.json", "row.json"
_LARGEST = 16 << 20
_LARGEST_NUMBER = 1e30


def is_sweep(folder: Path) -> bool:
    """Return whether a folder is one of ``traceq sweep``."""
    return (folder / _FILE).is_file()


def read_sweep(folder: Path) -> SweepRuns:
    """Return the runs of a sweep that have ended; raise ``InputError`` if none has."""
    if not is_sweep(folder):
        msg = f"{folder} is no folder of traceq sweep: there is no {_FILE} in it"
        raise InputError(msg)
    facts = _read(folder / _FILE)
    runs = [
        _run(file.parent, content)
        for file in sorted(folder.glob(f"*/{_ROW}"))
        if (content := _read(file))
    ]
    if not runs:
        msg = f"{folder} has no run that has ended; continue it with --resume {folder}"
        raise InputError(msg)
    seed = facts.get("seed")
    return SweepRuns(
        folder=folder,
        command=tuple(map(str, _list(facts.get("command")))),
        planned=max(len(_list(facts.get("order"))), len(runs)),
        seed=seed if isinstance(seed, int) else None,
        runs=tuple(runs),
        grid=_grid(facts.get("grid")),
    )


def _grid(content: object) -> dict[str, tuple[str, ...]]:
    if not isinstance(content, dict):
        return {}
    return {str(key): tuple(map(str, _list(of))) for key, of in content.items()}


def _read(file: Path) -> dict[str, Any]:
    try:
        content = file.read_bytes() if file.stat().st_size < _LARGEST else b""
        result = orjson.loads(content)
    except (OSError, orjson.JSONDecodeError):
        result = None
    if not isinstance(result, dict):
        msg = f"{file} is no JSON object: the sweep cannot be read"
        raise InputError(msg)
    version = result.get("format")
    if isinstance(version, int) and version > _FORMAT:
        msg = f"{file} was written by a newer traceq (format {version}): update traceq"
        raise InputError(msg)
    return result


def _run(folder: Path, row: dict[str, Any]) -> SweepRun:
    timed, peak = _dict(row, "step_time"), _dict(row, "peak_memory")
    step = _number(timed.get("mean_ms"))
    spread = _number(timed.get("std_ms"))
    allocated = _number(peak.get("allocated"))
    status = str(row.get("status", "failed"))
    trace = row.get("trace")
    traced = isinstance(trace, str) and (folder / "run.json").is_file()
    return SweepRun(
        name=folder.name,
        labels={str(key): str(one) for key, one in _dict(row, "labels").items()},
        repeat=int(_number(row.get("repeat")) or 1),
        status=status if status != "ok" or step else "not measured",
        reason=str(row.get("reason", "")),
        step_ns=step * NS_PER_MS if step else None,
        step_std_ns=None if spread is None else spread * NS_PER_MS,
        steps=int(_number(timed.get("n")) or 0),
        peak_bytes=None if allocated is None else int(allocated),
        no_peak=str(peak.get("why", "")),
        parameters=_number(row.get("parameters")),
        tokens=_number(row.get("tokens")),
        flops=_number(row.get("flops")),
        peak_tflops=_number(row.get("peak_tflops")),
        numbers={
            str(name): _own(one)
            for name, one in _dict(row, "numbers").items()
            if isinstance(one, dict)
        },
        device=str(row.get("device") or ""),
        folder=folder if traced else None,
    )


def _own(entry: dict[str, Any]) -> OwnNumber:
    return OwnNumber(
        last=_number(entry.get("last")),
        mean=_number(entry.get("mean")),
        std=_number(entry.get("std")),
        n=int(_number(entry.get("n")) or 0),
    )


def _number(value: object) -> float | None:
    """Return a number that can be computed with."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    usable = math.isfinite(value) and abs(value) <= _LARGEST_NUMBER
    return float(value) if usable else None


def _dict(content: dict[str, Any], key: str) -> dict[str, Any]:
    result = content.get(key)
    return result if isinstance(result, dict) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
