"""Rates of wrong outcomes, by the noise of recorded blocks.

    python benchmarks/ledger/noise.py [TRIAL.json...]

Blocks without a remedy and with the control, of each trial of the ledger, are the noise
of its program. Trials are made of it: blocks are taken in the order in which they were
measured, from a random start to the end of their process, then from another start, as
if the program had run again. A control that changes nothing goes through the same
rounds as one remedy, which saves 0, 2, 5 or 20% of each of its blocks. Rounds end by
the rule of `traceq try`. Programs with fewer than 12 such blocks are left out.

Prints for each program and each effect: in how many of 200 trials the outcome is
"no difference" or inconclusive, faster, slower; and how many of those that are faster
have the right size within 20% or twice the noise. Then the same of the controls.
"""

from __future__ import annotations

import itertools
import json
import random
import statistics
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent))

from collect.launcher import outcomes  # noqa: E402
from collect.shared import differences  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

TRIALS = 200
EFFECTS = (0.0, 0.02, 0.05, 0.2)
ROUNDS = (4, 8)  # as in collect/trial
_FEWEST = 12  # blocks of noise
_SHORTEST = 5  # blocks of a process
_FIGURES = ("median_ms", "mean_ms", "p10_ms")
_REMEDY = "tf32"


def noise_of(trial: dict[str, Any]) -> list[list[dict[str, float]]]:
    """Return the times of blocks in which nothing was changed, by process, in order."""
    runs: dict[Any, list[dict[str, float]]] = {}
    for block in trial["blocks"]:
        if not block.get("discarded") and block["on"] in ([], [differences.CONTROL]):
            times = {key: block[key] for key in _FIGURES}
            runs.setdefault(block.get("run"), []).append(times)
    return [blocks for blocks in runs.values() if len(blocks) >= _SHORTEST]


def drawn(
    runs: list[list[dict[str, float]]], chance: random.Random
) -> Iterator[tuple[int, dict[str, float]]]:
    """Yield blocks without end, each with the number of the process that it is of."""
    for number in itertools.count():
        (blocks,) = chance.choices(runs, weights=list(map(len, runs)))
        start = chance.randrange(len(blocks) - _SHORTEST + 1)
        for block in blocks[start:]:
            yield number, block


def made(
    runs: list[list[dict[str, float]]], effect: float, chance: random.Random
) -> dict[str, Any]:
    """Return the state of a trial whose remedy saves a share of each block."""
    names = (differences.CONTROL, _REMEDY)
    blocks: list[dict[str, Any]] = []
    due: list[str] = []
    last, count, figure = -1, 0, ""
    for number, times in drawn(runs, chance):
        plain = number != last or bool(blocks[-1]["on"])
        last = number
        if plain:
            on = ""
        else:
            due = due or list(names if count % 2 == 0 else reversed(names))
            on = due.pop(0)
            count += not due
        share = 1 - effect if on == _REMEDY else 1.0
        figures = {key: value * share for key, value in times.items()}
        blocks.append({"run": number, "base": [], "on": [on] if on else [], **figures})
        if plain and not due and count >= ROUNDS[0]:
            figure = differences.statistic(blocks)
            if count >= ROUNDS[1] or _is_settled(blocks, figure):
                break
    remedies: dict[str, Any] = {name: {} for name in names}
    return {"blocks": blocks, "statistic": figure, "remedies": remedies}


def _is_settled(blocks: list[dict[str, Any]], figure: str) -> bool:
    comparisons = differences.compare(blocks)
    noise = differences.Noise(comparisons.values(), figure)
    values = comparisons["+", _REMEDY].values(figure)
    plain = [block["median_ms"] for block in blocks if not block["on"]]
    return differences.is_settled(values, noise, statistics.median(plain))


def _is_right(entry: dict[str, Any], step_ms: float, effect: float) -> bool:
    """Return whether a saving has its size, within 20% or twice the noise."""
    saved = effect * step_ms
    return bool(abs(-entry["ms"] - saved) <= max(0.2 * saved, 2 * entry["smallest_ms"]))


def judged(
    runs: list[list[dict[str, float]]], effect: float, seed: int
) -> Counter[str]:
    """Return how many trials had which outcome, of the remedy and of the control."""
    chance = random.Random(seed)  # noqa: S311 - a simulation
    result: Counter[str] = Counter()
    for _ in range(TRIALS):
        state = made(runs, effect, chance)
        report = outcomes.outcomes(state, {})
        (entry,) = report["remedies"]
        result[entry["outcome"]] += 1
        result[f"control {report['control']['outcome']}"] += 1
        result["rounds"] += entry["n"]
        if entry["outcome"] == differences.FASTER:
            step = report["as_it_is"]["ms"]
            result["right"] += bool(effect) and _is_right(entry, step, effect)
    return result


def main(files: list[Path]) -> None:
    """Print a line for each program and each effect."""
    controls: Counter[str] = Counter()
    print(
        f"{'program':<30} {'effect':>6} {'faster':>7} {'right':>7} {'slower':>7}"
        f" {'neither':>8} {'rounds':>7}"
    )
    for file in sorted(files):
        runs = noise_of(json.loads(file.read_text(encoding="utf-8")))
        if sum(map(len, runs)) < _FEWEST:
            continue
        for effect in EFFECTS:
            result = judged(runs, effect, 1)
            controls += result
            neither = (
                result[differences.NO_DIFFERENCE] + result[differences.INCONCLUSIVE]
            )
            print(
                f"{file.stem:<30} {effect:>6.0%} {result['faster']:>7}"
                f" {result['right']:>7} {result['slower']:>7} {neither:>8}"
                f" {result['rounds'] / TRIALS:>7.1f}"
            )
    same = controls["control no difference"] + controls["control inconclusive"]
    total = sum(count for key, count in controls.items() if key.startswith("control "))
    if total:
        print(f"controls: no difference in {same} of {total}, {same / total:.1%}")


if __name__ == "__main__":
    main(
        [Path(argument) for argument in sys.argv[1:]]
        or list((HERE / "trials").glob("*.json"))
    )
