"""Table of predicted and measured steps of programs that no rule was tuned on.

    python benchmarks/fresh/table.py

``predictions.json`` has what ``traceq lint`` predicted for recordings on an H200 before
anything was changed because of them, ``measured.jsonl`` the steps of the same programs
with one change switched on and off in alternating blocks (A B B A) of one process, or
of two where a switch needs a new process. The first 17 programs and 24 more, which
were linted at the commits that ``linted`` names, have lines of their own.
"""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).parent
# Their steps come in cycles of unlike ones: the mean is the step.
CYCLES = ("dcgan", "esm_extract", "hf_t5_beam", "llama2c_sample")
# What is no longer advised: convolutions next to instance norms.
WITHDRAWN = {("cyclegan", "channels_last")}
# Another change than the one that is priced.
OTHER = {("dit_sample", "autocast"), ("pyg_gin_mutag", "workers")}


def pairs() -> list[dict[str, Any]]:
    """Return each change with its predicted and measured step, in ms."""
    measured: dict[tuple[str, str], dict[str, Any]] = {}
    for line in (HERE / "measured.jsonl").read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        kind = "mean_ms" if entry["program"] in CYCLES else "trimmed_ms"
        for name, figures in entry["variants"].items():
            if chosen := figures.get(kind) or figures.get("mean_ms"):
                measured[entry["program"], name] = chosen
    rows = []
    text = (HERE / "predictions.json").read_text(encoding="utf-8")
    for load in json.loads(text):
        key = (load["program"], load["variant"])
        if key not in measured or key in OTHER:
            continue
        steps = measured[key]
        share = load["saves_ms"] / load["step_ms"]
        low, high = (load[end] or load["saves_ms"] for end in ("low_ms", "high_ms"))
        saved = 1 - steps["b"] / steps["a"]
        predicted = steps["a"] * (1 - share)
        rows.append(
            {
                **{
                    name: load[name] for name in ("program", "variant", "code", "bound")
                },
                "later": "linted" in load,
                "withdrawn": key in WITHDRAWN,
                "step": load["step_ms"],
                "step_after": load["predicted_ms"],
                "before": steps["a"],
                "after": steps["b"],
                "predicted": predicted,
                "error": predicted / steps["b"] - 1,
                "in_range": low <= saved * load["step_ms"] <= high,
                "overlap": steps["overlap"],
            }
        )
    return rows


def table() -> str:
    """Return the changes whose rounds do not overlap, and a line on the others."""
    every = pairs()
    clear = [entry for entry in every if not entry["overlap"]]
    lines = [
        "| program | change | rule | bound | before | predicted | measured | error |"
        " in the range |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    lines += [
        f"| {entry['program']} | {entry['variant']} | {entry['code']} |"
        f" {entry['bound']} | {entry['before']:.1f} ms | {entry['predicted']:.1f} ms |"
        f" {entry['after']:.1f} ms |"
        f" {entry['error']:+.0%} | {'yes' if entry['in_range'] else 'no'} |"
        for entry in sorted(clear, key=lambda entry: (entry["bound"], entry["program"]))
    ]
    for later, what in ((False, "first 17 programs"), (True, "24 more programs")):
        for bound in ("gpu", "host"):
            lines.append(_median(clear, what, later=later, bound=bound))
    unclear = sorted(
        f"{entry['program']} {entry['variant']}" for entry in every if entry["overlap"]
    )
    lines += ["", f"Rounds overlap, and count for nothing: {', '.join(unclear)}."]
    return "\n".join(lines) + "\n"


def _median(rows: list[dict[str, Any]], what: str, *, later: bool, bound: str) -> str:
    """Return the line with the median error of some of the changes."""
    some = [row for row in rows if (row["later"], row["bound"]) == (later, bound)]
    error = median(abs(row["error"]) for row in some)
    inside = sum(row["in_range"] for row in some)
    return (
        f"| **{what}, {bound}-bound** | {len(some)} changes | | | | | |"
        f" {error:.0%} at the median | {inside} |"
    )


if __name__ == "__main__":
    print(table())
