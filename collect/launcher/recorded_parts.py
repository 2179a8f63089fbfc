"""Sentences on what the ranks of a run recorded, and on what is missing."""

from __future__ import annotations

from typing import Any

from ..shared import rank_set

_DIFFERENT = 0.1  # share by which mean and median differ where some steps do more work
_RARE = 0.4  # share of long steps below which "1 in N" says it


def has_recording(rank: dict[str, Any]) -> bool:
    """Return whether a rank has a step time, a trace or an out-of-memory report."""
    return bool(rank["step_time"] or rank["trace"] or rank.get("oom"))


def memory_errors(ranks: list[dict[str, Any]]) -> list[str]:
    """Return which ranks ran out of memory, and at which step."""
    failed = [(rank["rank"], rank["oom"]) for rank in ranks if rank.get("oom")]
    several = len(ranks) > 1
    return [
        (f"rank {number} " if several else "")
        + f"ran out of GPU memory in step {oom['step']}; "
        + (f"snapshot: {oom['snapshot']}" if oom["snapshot"] else "no snapshot")
        for number, oom in failed
    ]


def recorded_parts(rank: dict[str, Any]) -> list[str]:
    """Return the recorded parts of a rank, a sentence each."""
    texts = [step_time(rank["step_time"])] if rank["step_time"] else []
    if rank["trace"]:
        texts.append(_traced(rank["trace"], rank.get("pause")))
    return texts


def step_time(timed: dict[str, Any]) -> str:
    """Return the measured step time, and how steps differ."""
    text = (
        f"{timed['ms']:.2f} ms per step, measured without the profiler over"
        f" {timed['steps']} steps"
    )
    long = timed.get("long_steps")
    if long:
        return f"{text}; {_long_steps(long, timed.get('period'))}"
    if abs(timed["ms"] - timed["median_ms"]) > _DIFFERENT * timed["median_ms"]:
        text += f"; {timed['median_ms']:.2f} ms at the median, as steps differ"
    return text


def _long_steps(long: dict[str, float], period: int | None) -> str:
    often = f"1 in {1 / long['share']:.0f}" if long["share"] < _RARE else "some"
    regular = f", every {period} steps the same" if period else ""
    return (
        f"{often} take {long['ms']:.2f} ms, the others {long['typical_ms']:.2f} ms"
        f"{regular}"
    )


def _traced(trace: dict[str, Any], pause: dict[str, Any] | None) -> str:
    count = len(trace["steps"])
    steps = "1 step" if count == 1 else f"{count} steps"
    what = {
        "period": f"traced {steps}, a whole period",
        "typical": f"traced {steps}, all of them typical",
        "time": "traced a few seconds, as no steps were seen",
    }.get(trace.get("window", ""), f"traced {steps}")
    if pause is None:
        return what
    return f"{what}; recording stopped the program for {pause['seconds']:.1f} s"


def copied_sources(count: int) -> str:
    """Return how many source files were copied, and how to avoid it."""
    files = "1 source file" if count == 1 else f"{count} source files"
    return f"copied {files} of the program to name lines; not with --no-source"


def missing_parts(ranks: list[dict[str, Any]]) -> list[str]:
    """Return the missing parts, one sentence per reason."""
    missing: dict[str, list[str]] = {}
    for rank in ranks:
        for entry in rank["missing"]:
            what = entry["what"].replace("_", " ")
            known = missing.setdefault(entry["why"], [])
            if what not in known:
                known.append(what)
    return [f"no {', '.join(what)}: {why}" for why, what in missing.items()]


def different_windows(ranks: list[dict[str, Any]]) -> list[str]:
    """Return which steps the ranks traced, if not all of them the same."""
    by_first: dict[int, list[int]] = {}
    for rank in ranks:
        first = (rank["trace"] or {}).get("first_step")
        if first is not None and rank["steps"]["by"] != "forward":
            by_first.setdefault(first, []).append(rank["rank"])
    if len(by_first) <= 1:
        return []
    parts = [
        f"{rank_set.written(by_first[number])} from step {number}"
        for number in by_first
    ]
    return [f"the ranks traced different steps: {', '.join(parts)}"]
