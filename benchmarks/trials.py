"""Predicted and measured savings of trials, by rule.

    python benchmarks/savings.py trials/*/try.json

A file is what `traceq try` writes. A remedy counts if it was measured to be faster,
slower or no different, and a finding predicted what it saves.
"""

from __future__ import annotations

import json
import statistics
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

TOOL = "traceq try"
_COUNTED = ("faster", "slower", "no difference")


def is_trial(file: Path) -> bool:
    """Return whether a file is what `traceq try` writes."""
    content = json.loads(file.read_text(encoding="utf-8"))
    return isinstance(content, dict) and content.get("tool") == TOOL


def errors(files: Iterable[Path]) -> dict[tuple[str, str], list[float]]:
    """Return predicted less measured savings, as shares of the step.

    By rule, and by what bounds the step: ``gpu`` or ``host``.
    """
    results: dict[tuple[str, str], list[float]] = {}
    for file in files:
        trial: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        step_ms = (trial.get("as_it_is") or {}).get("ms")
        for one in trial.get("remedies", []):
            predicted = one["predicted"]
            if step_ms and predicted and one["n"] and one["outcome"] in _COUNTED:
                key = (predicted["rule"], str(predicted.get("bound") or "unknown"))
                error = (predicted["ms"] + one["ms"]) / step_ms
                results.setdefault(key, []).append(error)
    return results


def report(files: Iterable[Path]) -> list[str]:
    """Return a table of the errors: a line per rule and bound."""
    rows = [f"{'rule':<8} {'bound':<8} {'n':>3} {'median':>8} {'worst':>8}"]
    for (rule, bound), values in sorted(errors(files).items()):
        worst = max(values, key=abs)
        middle = statistics.median(map(abs, values))
        rows.append(
            f"{rule:<8} {bound:<8} {len(values):>3} {middle:>8.1%} {worst:>+8.1%}"
        )
    return rows
