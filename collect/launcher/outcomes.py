"""Outcomes of a trial, computed from its blocks, and the table that shows them."""

from __future__ import annotations

import math
import statistics
from typing import Any, Sequence

from .. import remedies
from ..shared import differences
from ..shared.figures import digits

_GIB = 1 << 30
_SAME = 0.01  # of the peak: below, memory is called the same


def outcomes(
    state: dict[str, Any],
    predicted: dict[str, dict[str, Any]],
    asked: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the figures of a trial: as it is, the control, each remedy, the kept."""
    blocks, restarts = _by_process(state.get("blocks", []))
    figure = state.get("statistic", "median_ms")
    comparisons = differences.compare(blocks)
    apart = differences.compare(restarts)
    plain = [
        block for block in blocks if not block["on"] and not block.get("discarded")
    ]
    # The least disturbed steps show differences; a step takes the usual time.
    usual = "mean_ms" if figure == "mean_ms" else "median_ms"
    step_ms = _median([block[usual] for block in plain]) or _first_ms(state)
    noises, noises_apart = _noises(comparisons), _noises(apart)
    entries = []
    for name, facts in state.get("remedies", {}).items():
        if name == remedies.CONTROL:
            if name not in asked:
                continue
            facts = {**facts, "why": "it changes nothing"}  # noqa: PLW2901
        own = _own_figure(name, figure)
        comparison, noise = comparisons.get(("+", name)), noises
        if comparison is None and ("+", name) in apart:
            comparison, noise = apart[("+", name)], noises_apart
        entry = _entry(name, facts, comparison, noise, own, step_ms)
        entry["predicted"] = _predicted(name, predicted)
        if entry["outcome"] is None:
            expected = entry["predicted"]["ms"] if entry["predicted"] else None
            values = comparison.values(own) if comparison is not None else []
            entry["outcome"], entry["why"] = differences.judge(
                values, noise[own], step_ms or 0.0, expected
            )
        entries.append(entry)
    retained = tuple(state.get("kept", []))
    return {
        "as_it_is": {
            "ms": step_ms,
            "half_width_ms": _spread(plain, usual),
            "blocks": len(plain),
            "statistic": figure,
            "peak_bytes": _median([block.get("peak_bytes") for block in plain]),
            "loss": _median([block.get("loss") for block in plain]),
        },
        "control": _control(comparisons, noises[figure], figure, step_ms),
        "restart_control": _control(apart, noises_apart[figure], figure, step_ms),
        "drift": {
            figure_name: _finite(_drift(noises[figure_name], comparisons))
            for figure_name in _NUMERIC
        },
        "remedies": entries,
        "kept": _combination(retained, comparisons, noises, figure, step_ms, entries),
    }


def _by_process(blocks: list[Any]) -> tuple[list[Any], list[Any]]:
    """Return the blocks within a process, and those that are processes."""
    parts: tuple[list[Any], list[Any]] = ([], [])
    for block in blocks:
        parts[block.get("run") == differences.RESTARTS].append(block)
    return parts


def _noises(
    comparisons: dict[tuple[str, ...], differences.Comparison],
) -> dict[str, differences.Noise]:
    """Return the noise of each figure."""
    return {
        name: differences.Noise(
            [
                each
                for key, each in comparisons.items()
                if name in _TIMES or _is_aa(key)
            ],
            name,
        )
        for name in differences.FIGURES
    }


_TIMES = ("median_ms", "mean_ms", "p10_ms")
_NUMERIC = ("loss", "gradient_norm")


def _is_aa(key: tuple[str, ...]) -> bool:
    return key == ("+", remedies.CONTROL)


def _own_figure(name: str, figure: str) -> str:
    return "mean_ms" if name == "gc_freeze" else figure


def _entry(  # noqa: PLR0913, PLR0917 - the parts of one line
    name: str,
    facts: dict[str, Any],
    comparison: differences.Comparison | None,
    noises: dict[str, differences.Noise],
    figure: str,
    step_ms: float | None,
) -> dict[str, Any]:
    remedy = remedies.facts(name)
    values = comparison.values(figure) if comparison is not None else []
    noise = noises[figure]
    half = noise.half_width(values) if values else math.inf
    entry: dict[str, Any] = {
        "remedy": name,
        "rules": list(remedy["rules"]),
        "summary": remedy["summary"],
        "class": remedy["kind"],
        "when": remedy["when"],
        "edit": remedy["edit"],
        "outcome": None,
        "why": "",
        "n": len(values),
        "ms": round(differences.centre(values), 4) if values else None,
        "median_ms": round(statistics.median(values), 4) if values else None,
        "half_width_ms": _finite(half),
        "smallest_ms": _finite(noise.smallest(len(values))) if values else None,
        "share": None,
        "predicted": None,
        "proof": facts.get("proof"),
        "peak_bytes": comparison.centre("peak_bytes")
        if comparison is not None
        else None,
        "numerics": _numerics(comparison, noises),
    }
    if values and step_ms:
        entry["share"] = round(differences.centre(values) / step_ms, 4)
    for key in ("compile_seconds", "first_seconds"):
        if key in facts:
            entry[key] = facts[key]
    if entry.get("compile_seconds") and entry["ms"] and entry["ms"] < 0:
        entry["pays_off_after_steps"] = math.ceil(
            entry["compile_seconds"] * 1000 / -entry["ms"]
        )
    if facts.get("error"):
        entry["outcome"], entry["why"] = differences.FAILED, facts["error"]
    elif facts.get("why"):
        entry["outcome"], entry["why"] = differences.NOT_APPLIED, facts["why"]
    elif facts.get("late") and not values:
        entry["outcome"], entry["why"] = differences.INCONCLUSIVE, facts["late"]
    elif (facts.get("proof") or {}).get("applied") is False:
        why = "the same ops and kernels ran with it"
        entry["outcome"], entry["why"] = differences.NOT_APPLIED, why
    return entry


def _numerics(
    comparison: differences.Comparison | None, noises: dict[str, differences.Noise]
) -> dict[str, Any]:
    """Return how loss and gradients changed, and whether beyond the own drift."""
    numerics: dict[str, Any] = {}
    for figure in _NUMERIC:
        values = comparison.values(figure) if comparison is not None else []
        if not values:
            numerics[figure] = None
            continue
        noise = noises[figure]
        middle = differences.centre(values)
        limit = _limit(noise, len(values))
        numerics[figure] = {
            "difference": middle,
            "drift": _finite(limit),
            "beyond_drift": middle != 0 and abs(middle) > limit,
        }
    return numerics


def _limit(noise: differences.Noise, count: int) -> float:
    """Return the largest difference that the program's own drift explains."""
    return noise.smallest(count)


def _drift(noise: differences.Noise, comparisons: dict[Any, Any]) -> float:
    control = comparisons.get(("+", remedies.CONTROL))
    count = len(control.values(noise.figure)) if control is not None else 0
    return _limit(noise, count) if count else math.inf


def _control(
    comparisons: dict[Any, differences.Comparison],
    noise: differences.Noise,
    figure: str,
    step_ms: float | None,
) -> dict[str, Any] | None:
    control = comparisons.get(("+", remedies.CONTROL))
    if control is None:
        return None
    values = control.values(figure)
    half = noise.half_width(values)
    middle = control.centre(figure)
    # Against its own interval: the floor of the others is made of this control.
    differs = middle is not None and abs(middle) > half
    outcome = differences.NO_DIFFERENCE
    if len(values) < differences.FEWEST:
        outcome = differences.INCONCLUSIVE
    elif differs:
        outcome = differences.FASTER if (middle or 0) < 0 else differences.SLOWER
    return {
        "outcome": outcome,
        "n": len(values),
        "ms": middle,
        "half_width_ms": _finite(half),
        "smallest_ms": _finite(noise.smallest(len(values))),
        "deviation_ms": _finite(noise.deviation),
        "share": middle / step_ms if step_ms and middle is not None else None,
    }


def _combination(  # noqa: PLR0913, PLR0917 - the parts of one line
    retained: tuple[str, ...],
    comparisons: dict[Any, differences.Comparison],
    noises: dict[str, differences.Noise],
    figure: str,
    step_ms: float | None,
    entries: list[dict[str, Any]],
) -> dict[str, Any] | None:
    """Return the combination of the remedies that help, as measured."""
    applied = {
        entry["remedy"] for entry in entries if entry["outcome"] == differences.FASTER
    }
    retained = tuple(name for name in retained if name in applied)
    if not retained:
        return None
    comparison = comparisons.get(("+", *retained))
    values = comparison.values(figure) if comparison is not None else []
    combination: dict[str, Any] = {
        "remedies": list(retained),
        "n": len(values),
        "ms": differences.centre(values) if values else None,
        "half_width_ms": _finite(noises[figure].half_width(values)),
        "predicted_ms": _sum_predicted(retained, entries),
        "peak_bytes": comparison.centre("peak_bytes")
        if comparison is not None
        else None,
        "numerics": _numerics(comparison, noises),
        "share": None,
    }
    if values and step_ms:
        combination["share"] = differences.centre(values) / step_ms
    return combination


def _sum_predicted(
    retained: tuple[str, ...], entries: list[dict[str, Any]]
) -> float | None:
    predictions = [
        entry["predicted"]["ms"]
        for entry in entries
        if entry["remedy"] in retained and entry["predicted"]
    ]
    return sum(predictions) if predictions else None


def _predicted(
    name: str, predicted: dict[str, dict[str, Any]]
) -> dict[str, Any] | None:
    """Return the largest prediction of the rules that a remedy addresses."""
    entries = remedies.addressed(name, predicted)
    if not entries:
        return None
    best = max(entries, key=lambda rule: entries[rule]["ms"])
    return {"rule": best, **entries[best]}


def _median(values: list[Any]) -> float | None:
    numbers = [value for value in values if isinstance(value, (int, float))]
    return statistics.median(numbers) if numbers else None


def _first_ms(state: dict[str, Any]) -> float | None:
    timed = state.get("first_step_time") or {}
    return timed.get("median_ms")


def _spread(plain: list[dict[str, Any]], figure: str) -> float | None:
    values = [block[figure] for block in plain]
    if len(values) < 2:  # noqa: PLR2004
        return None
    return (
        differences.t99(len(values) - 1) * statistics.stdev(values) / len(values) ** 0.5
    )


def _finite(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else round(value, 6)


# The table.


def table(report: dict[str, Any]) -> list[str]:
    """Return the lines of a trial's table."""
    plain, control = report["as_it_is"], report["control"]
    if plain["ms"] is None:
        return []
    head = f"{digits(plain['ms'], 4)} ms"
    if plain["half_width_ms"] is not None:
        head += f" ±{digits(plain['half_width_ms'], 2)}"
    if control and control["smallest_ms"] is not None:
        smallest = f"{digits(control['smallest_ms'], 2)} ms"
        head += f"   (A/A control: differences below {smallest} are noise"
        by = ", by the 10th percentile of steps" if _is_low(plain) else ""
        head += f"{by})"
    peak = plain["peak_bytes"]
    if peak:
        head += f"   {peak / _GIB:.1f} GiB"
    drift = report["drift"]["loss"]
    rows: list[tuple[str, ...]] = [
        ("", "predicted", "measured", "", "peak", _loss_head(drift))
    ]
    rows += [_row(entry, peak) for entry in report["remedies"] if _is_shown(entry)]
    retained = report["kept"]
    if retained and retained["ms"] is not None:
        rows.append(_kept_row(retained, peak))
    widths = [max(len(row[place]) for row in rows) for place in range(5)]
    first = max(widths[0], len("as it is"))
    lines = [f"{'as it is':<{first}}  {head}"]
    for row in rows:
        padded = [f"{row[0]:<{first}}"]
        padded += [f"{row[place]:<{widths[place]}}" for place in range(1, 5)]
        lines.append("  ".join([*padded, row[5]]).rstrip())
    return lines


def _is_shown(entry: dict[str, Any]) -> bool:
    return bool(
        entry["n"] or entry["outcome"] == differences.FAILED or entry["predicted"]
    )


def _is_low(plain: dict[str, Any]) -> bool:
    return bool(plain["statistic"] == "p10_ms")


def left_out(report: dict[str, Any]) -> list[str]:
    """Return the remedies that are not in the table and why, a line per outcome."""
    whys: dict[str, list[str]] = {}
    for entry in report["remedies"]:
        if not _is_shown(entry):
            text = f"{entry['remedy']} ({entry['why']})"
            whys.setdefault(entry["outcome"], []).append(text)
    return [f"{outcome}: {'; '.join(texts)}" for outcome, texts in whys.items()]


def rules_to_fix(report: dict[str, Any]) -> list[str]:
    """Return the rules whose findings the kept remedies address."""
    retained = report["kept"]["remedies"] if report["kept"] else []
    return [
        entry["predicted"]["rule"]
        for entry in report["remedies"]
        if entry["predicted"] and entry["remedy"] in retained
    ]


def _loss_head(drift: float | None) -> str:
    return "loss" if drift is None else f"loss (own drift {drift:.1g})"


def _row(entry: dict[str, Any], peak: float | None) -> tuple[str, ...]:
    label = entry["remedy"].replace("_", " ")
    predicted = entry["predicted"]
    if predicted:
        label = f"{predicted['rule']} {label}"
    outcome, why = entry["outcome"], entry["why"]
    if outcome in (differences.FASTER, differences.SLOWER):
        measured, word = _difference(entry["ms"], entry["half_width_ms"]), outcome
    elif outcome == differences.NO_DIFFERENCE:
        measured, word = f"{outcome} {why}", ""
    else:
        return (label, _range(predicted), f"{outcome}: {why}", "", "", "")
    memory = _peak(entry["peak_bytes"], peak)
    return (label, _range(predicted), measured, word, memory, _loss(entry["numerics"]))


def _kept_row(retained: dict[str, Any], peak: float | None) -> tuple[str, ...]:
    predicted = retained["predicted_ms"]
    return (
        "kept: " + " + ".join(retained["remedies"]),
        f"-{digits(predicted)}" if predicted else "",
        _difference(retained["ms"], retained["half_width_ms"]),
        "",
        _peak(retained["peak_bytes"], peak),
        _loss(retained["numerics"]),
    )


def _difference(ms: float, half: float | None) -> str:
    return digits(ms, sign=True) + (f" ±{digits(half, 2)}" if half is not None else "")


def _range(predicted: dict[str, Any] | None) -> str:
    if not predicted:
        return ""
    low, high = predicted["low_ms"], predicted["high_ms"]
    text = f"-{digits(predicted['ms'])}"
    return f"{text} (-{digits(high, 2)} to -{digits(low, 2)})" if high else text


def _peak(difference: float | None, peak: float | None) -> str:
    if difference is None or not peak:
        return ""
    if abs(difference) < _SAME * peak:
        return "same"
    return f"{difference / _GIB:+.2f} GiB"


def _loss(numerics: dict[str, Any]) -> str:
    parts = []
    for figure, words in (("loss", ""), ("gradient_norm", "gradients ")):
        entry = numerics.get(figure)
        if entry is None:
            continue
        if entry["difference"] == 0:
            text = "same"
        elif entry["beyond_drift"]:
            text = f"{entry['difference']:+.1g}, beyond drift"
        else:
            text = f"{entry['difference']:+.1g}, within drift"
        if figure == "loss" or entry["beyond_drift"]:
            parts.append(words + text)
    return "; ".join(parts)
