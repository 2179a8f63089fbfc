"""Selection of the steps that a user asks for."""

from __future__ import annotations

import re

import polars as pl

from traceq.common.words import counted
from traceq.errors import UsageError

_RANGE = re.compile(r"(\d+)(?:-(\d+))?")


def chosen_steps(steps: pl.DataFrame, text: str) -> list[dict[str, int]]:
    """Return the steps that a text asks for: how many, or from which to which.

    ``2`` are the first two that are no warm-up; ``3-5`` are those numbers.
    """
    match = _RANGE.fullmatch(text.strip())
    if match is None or match[0] == "0":
        msg = f"--steps {text} is neither a number of steps nor a range, as 3-5"
        raise UsageError(msg)
    if not steps.height:
        msg = "the trace has no steps to cut it to: leave --steps out"
        raise UsageError(msg)
    steps = steps.select("step", "start", "end", "warmup").sort("start")
    if match[2]:
        chosen = steps.filter(pl.col("step").is_between(int(match[1]), int(match[2])))
    else:
        steady = steps.filter(~pl.col("warmup"))
        chosen = (steady if steady.height else steps).head(int(match[1]))
    if not chosen.height:
        first, last = steps["step"][0], steps["step"][-1]
        msg = (
            f"the trace has no step of {text}:"
            f" it has {counted(steps.height, 'step')}, {first} to {last}"
        )
        raise UsageError(msg)
    return chosen.to_dicts()
