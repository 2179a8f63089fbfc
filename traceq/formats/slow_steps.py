"""Read the slow steps that ``traceq collect --keep-slow`` wrote."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from traceq.common.units import NS_PER_MS
from traceq.model.oom import Line
from traceq.model.slow_steps import SlowRun, SlowStep

if TYPE_CHECKING:
    from pathlib import Path

_LARGEST = 16 << 20
_MOST = 10_000
_LONGEST_MS = 1e12
_MOST_COUNT = 1 << 50


def read_slow_steps(file: Path) -> SlowRun | None:
    """Return the watched steps of a process; none if the file cannot be read."""
    try:
        content = orjson.loads(
            file.read_bytes() if file.stat().st_size < _LARGEST else b""
        )
    except (OSError, orjson.JSONDecodeError):
        return None
    if not isinstance(content, dict):
        return None
    factor, steps = content.get("factor"), _count(content.get("steps"))
    if not isinstance(factor, (int, float)) or not steps:
        return None
    listed = tuple(map(_step, _dicts(content.get("kept"))))
    return SlowRun(
        factor=float(factor),
        steps=steps,
        ns=_ns(content.get("seconds"), 1000 * NS_PER_MS),
        median_ns=_ns(content.get("median_ms")),
        slow=max(len(listed), _count(content.get("slow"))),
        listed=listed,
    )


def _step(entry: dict[str, Any]) -> SlowStep:
    spent = entry.get("by_ms")
    by_ms = spent if isinstance(spent, dict) else {}
    return SlowStep(
        step=_count(entry.get("step")),
        ns=_ns(entry.get("ms")),
        median_ns=_ns(entry.get("median_ms")),
        cpu_ns=_ns(entry.get("cpu_ms")),
        queued_ns=_ns(entry.get("queued_ms")),
        gc_ns=_ns(by_ms.get("gc")),
        data_ns=_ns(by_ms.get("data")),
        checkpoint_ns=_ns(by_ms.get("checkpoint")),
        marks=tuple(
            name for name in _list(entry.get("marks")) if isinstance(name, str)
        ),
        compiles=_count(entry.get("compiles")),
        alloc_retries=_count(entry.get("alloc_retries")),
        cuda_mallocs=_count(entry.get("cuda_mallocs")),
        clock=_count(entry.get("clock_mhz")) or None,
        highest_clock=_count(entry.get("highest_clock_mhz")) or None,
        line=next(filter(None, map(_line, _dicts(entry.get("lines")))), None),
        watched_ns=_ns(entry.get("watched_ms")),
        others_queued_ns=_ns(entry.get("others_queued_ms")),
    )


def _line(entry: dict[str, Any]) -> Line | None:
    file, function = entry.get("file"), entry.get("function")
    line = _count(entry.get("line"))
    if not isinstance(file, str) or not isinstance(function, str) or not line:
        return None
    return Line(file, line, function)


def _ns(value: object, unit: float = NS_PER_MS) -> int:
    known = isinstance(value, (int, float)) and 0 <= value < _LONGEST_MS
    return round(value * unit) if known else 0  # type: ignore[operator]  # just checked


def _count(value: object) -> int:
    return value if type(value) is int and 0 <= value < _MOST_COUNT else 0


def _list(value: object) -> list[Any]:
    return value[:_MOST] if isinstance(value, list) else []


def _dicts(value: object) -> list[dict[str, Any]]:
    return [entry for entry in _list(value) if isinstance(entry, dict)]
