"""``origin.toml`` of a fixture: its origin, and the step time at that time."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any

from traceq.common import toml
from traceq.common.units import NS_PER_MS
from traceq.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

ORIGIN = "origin.toml"


def read_origin(folder: Path) -> dict[str, Any]:
    """Return the content of a folder's origin.toml; empty if there is none."""
    file = folder / ORIGIN
    return toml.read(file, InputError) if file.is_file() else {}


def origin_step_ns(origin: Mapping[str, Any]) -> int | None:
    """Return the step time without the profiler, if it is known."""
    step_ms = origin.get("true_step_ms")
    if isinstance(step_ms, bool) or not isinstance(step_ms, (int, float)):
        return None
    return round(step_ms * NS_PER_MS) if 0 < step_ms < inf else None
