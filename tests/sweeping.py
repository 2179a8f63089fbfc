"""Folders of sweeps with known figures, as `traceq sweep` leaves them behind."""

from __future__ import annotations

import json
from itertools import product
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path


def run(ms: float, std: float | None = None, **more: Any) -> dict[str, Any]:  # noqa: ANN401 - of a row
    """Return what is measured of a run: its step, and more."""
    timed: dict[str, Any] = {"mean_ms": ms, "std_ms": std, "n": 20, "laps_ms": []}
    return {"status": "ok", "reason": "", "step_time": timed, **more}


def failed(status: str, reason: str) -> dict[str, Any]:
    """Return a run that was not measured."""
    return {"status": status, "reason": reason, "step_time": None}


def write_sweep(
    folder: Path,
    grid: Mapping[str, list[Any]],
    make: Callable[..., dict[str, Any]],
    repeat: int = 1,
) -> Path:
    """Write a sweep; ``make`` is called with the labels and the number of the run."""
    order = []
    for values in product(*grid.values()):
        labels = dict(zip(grid, values, strict=True))
        for number in range(1, repeat + 1):
            name = "-".join(f"{key}={one}" for key, one in labels.items())
            order.append(f"{name}-{number}")
            place = folder / order[-1]
            place.mkdir(parents=True)
            row = {
                "format": 1,
                "labels": {key: str(one) for key, one in labels.items()},
                "repeat": number,
                **make(**labels, number=number),
            }
            (place / "row.json").write_text(json.dumps(row))
    facts = {"format": 1, "command": ["python", "bench.py"], "order": order, "seed": 1}
    (folder / "sweep.json").write_text(json.dumps(facts))
    return folder
