"""Fit the range of a predicted saving to the measured pairs, cross-validated.

    python benchmarks/fit_ranges.py

Reads ``savings.json``, which ``savings.py`` writes, and the changes of ``fresh`` whose
rounds do not overlap. The error of a saving is measured
minus predicted, divided by the predicted saving plus a share of the step. Prints its
10% and 90% quantiles, which are ``SAVING_ERRORS`` in traceq/analysis/base, and how many
pairs have their measured saving in the range that the other programs' quantiles give.
"""

from __future__ import annotations

import statistics

from fresh.table import pairs as fresh_pairs
from savings import read_results

_SHARES = (0.02, 0.05, 0.1, 0.15, 0.2)
_LOW, _HIGH = 0, -1  # of nine deciles


def main() -> None:
    """Print a line for each bound and share of the step."""
    results = read_results()
    for bound in ("gpu", "host"):
        pairs = [
            (result.before_alone.true, result.after.likely, result.after.true)
            for result in results
            if result.bound == bound
        ]
        pairs += [
            (row["step"], row["step_after"], row["step"] * row["after"] / row["before"])
            for row in fresh_pairs()
            if row["bound"] == bound and not row["overlap"] and not row["withdrawn"]
        ]
        for share in _SHARES:
            print(bound, share, *_fitted(pairs, share))


def _fitted(
    pairs: list[tuple[float, float, float]], share: float
) -> tuple[float, float, str]:
    """Return the quantiles, and in how many ranges the measured saving is."""
    saved = [
        (max(0.0, step - predicted), step - true, step)
        for step, predicted, true in pairs
    ]
    bases = [predicted + share * step for predicted, _, step in saved]
    errors = [
        (true - predicted) / base
        for (predicted, true, _), base in zip(saved, bases, strict=True)
    ]
    inside = 0
    for at, (predicted, true, _) in enumerate(saved):
        deciles = statistics.quantiles(errors[:at] + errors[at + 1 :], n=10)
        low = max(0.0, predicted + deciles[_LOW] * bases[at])
        inside += low <= max(0.0, true) <= predicted + deciles[_HIGH] * bases[at]
    deciles = statistics.quantiles(errors, n=10)
    return (
        round(deciles[_LOW], 2),
        round(deciles[_HIGH], 2),
        f"{inside} of {len(pairs)}",
    )


if __name__ == "__main__":
    main()
