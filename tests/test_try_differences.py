"""Differences between blocks: what they prove, and how often they are wrong."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest
from collecting import module

differences = module("shared.differences")
outcomes = module("launcher.outcomes")

STEP = 100.0


def block(on: str, ms: float, **facts: Any) -> dict[str, Any]:  # noqa: ANN401
    names = [on] if on else []
    return {"base": [], "on": names, "median_ms": ms, "mean_ms": ms, **facts}


def trial(
    effects: dict[str, float], rounds: int, noise: float, seed: int, drift: float = 0.0
) -> dict[str, Any]:
    """Return the state of a trial whose remedies save what ``effects`` says."""
    chance = random.Random(seed)  # noqa: S311 - noise
    blocks: list[dict[str, Any]] = []

    def add(on: str) -> None:
        ms = STEP - effects.get(on, 0.0) + chance.gauss(0, noise)
        blocks.append(block(on, ms + drift * len(blocks), loss=chance.gauss(1, 0.01)))

    names = ["no_op", *effects]
    add("")
    for number in range(rounds):
        for name in names if number % 2 == 0 else reversed(names):
            add(name)
            add("")
    return {"blocks": blocks, "remedies": {name: {} for name in names}}


def disturbed(saved: float, seed: int) -> dict[str, Any]:
    """Return a trial on a busy host: the median of a block varies, its p10 does not."""
    state = trial({"tf32": saved}, 8, 0.2, seed)
    chance = random.Random(seed)  # noqa: S311 - noise
    for item in state["blocks"]:
        item["p10_ms"] = item["median_ms"] - 2.0
        item["median_ms"] += chance.gauss(0, 10.0)
    state["statistic"] = differences.statistic(state["blocks"])
    return state


def test_the_tenth_percentile_shows_what_a_busy_host_hides() -> None:
    kernels = [judged(disturbed(2.0, seed))["tf32"] for seed in range(20)]

    assert [entry["outcome"] for entry in kernels] == ["faster"] * 20


def test_the_tenth_percentile_shows_no_difference_where_there_is_none() -> None:
    kernels = [judged(disturbed(0.0, seed))["tf32"] for seed in range(40)]

    assert sum(entry["outcome"] == "no difference" for entry in kernels) >= 38


def test_a_calm_program_is_compared_by_its_median() -> None:
    state = trial({"tf32": 2.0}, 8, 1.0, 0)
    for item in state["blocks"]:
        item["p10_ms"] = item["median_ms"] - 2.0

    assert differences.statistic(state["blocks"]) == "median_ms"


def judged(state: dict[str, Any]) -> dict[str, dict[str, Any]]:
    report = outcomes.outcomes(state, {})
    return {remedy["remedy"]: remedy for remedy in report["remedies"]}


def test_the_control_shows_no_difference_in_38_of_40_trials() -> None:
    states = [trial({"tf32": 5.0}, 4, 1.0, seed) for seed in range(40)]
    controls = [outcomes.outcomes(state, {})["control"] for state in states]

    assert sum(control["outcome"] == "no difference" for control in controls) >= 38


@pytest.mark.parametrize("saved", [2.0, 5.0, 20.0])
def test_a_planted_effect_has_its_sign_and_its_size(saved: float) -> None:
    kernels = [
        judged(trial({"tf32": saved}, 4, 0.25, seed))["tf32"] for seed in range(40)
    ]
    right = [
        entry
        for entry in kernels
        if entry["outcome"] == "faster"
        and abs(-entry["ms"] - saved) <= max(0.2 * saved, 2 * entry["smallest_ms"])
    ]

    assert len(right) >= 38


def test_a_steady_drift_is_no_effect() -> None:
    result = judged(trial({"tf32": 0.0}, 6, 0.2, 1, drift=0.5))["tf32"]

    assert result["outcome"] == "no difference"


def test_noise_that_hides_an_effect_is_inconclusive() -> None:
    result = judged(trial({"tf32": 5.0}, 4, 30.0, 2))["tf32"]

    assert result["outcome"] == "inconclusive"
    assert result["why"].startswith("noise")


def test_a_slower_program_is_called_slower() -> None:
    assert judged(trial({"tf32": -10.0}, 4, 0.5, 3))["tf32"]["outcome"] == "slower"


def test_an_outlier_does_not_hide_an_effect_that_many_blocks_show() -> None:
    state = trial({"tf32": 10.0}, 8, 0.5, 4)
    state["blocks"][7]["median_ms"] += 400

    assert judged(state)["tf32"]["outcome"] == "faster"


def test_two_blocks_prove_nothing() -> None:
    result = judged(trial({"tf32": 10.0}, 2, 0.1, 5))["tf32"]

    assert result["outcome"] == "inconclusive"


def test_discarded_blocks_do_not_count() -> None:
    state = trial({"tf32": 10.0}, 4, 0.5, 6)
    for item in state["blocks"]:
        if item["on"] == ["tf32"]:
            item["discarded"] = "the GPU was slowed down by heat or power"

    assert judged(state)["tf32"]["n"] == 0


def test_blocks_of_different_runs_are_not_compared() -> None:
    state = trial({"tf32": 10.0}, 1, 0.5, 7)
    for place, one in enumerate(state["blocks"]):
        one["run"] = place

    assert judged(state)["tf32"]["n"] == 0


@pytest.mark.parametrize(
    ("facts", "outcome"),
    [
        ({"error": "RuntimeError: no"}, "failed"),
        ({"why": "the program has no optimizer"}, "not applied"),
        ({"proof": {"applied": False, "text": ""}}, "not applied"),
        ({"proof": {"applied": True, "text": "_fused_adam_ runs"}}, "faster"),
    ],
)
def test_what_was_seen_of_a_remedy_comes_before_its_time(
    facts: dict[str, Any], outcome: str
) -> None:
    state = trial({"tf32": 10.0}, 4, 0.5, 8)
    state["remedies"]["tf32"] = facts

    assert judged(state)["tf32"]["outcome"] == outcome


def test_a_loss_beyond_the_own_drift_is_marked() -> None:
    state = trial({"tf32": 10.0}, 4, 0.5, 9)
    for item in state["blocks"]:
        item["loss"] += 1.0 if item["on"] == ["tf32"] else 0.0

    assert judged(state)["tf32"]["numerics"]["loss"]["beyond_drift"]


def test_a_loss_within_the_own_drift_is_not_marked() -> None:
    result = judged(trial({"tf32": 10.0}, 4, 0.5, 10))["tf32"]

    assert not result["numerics"]["loss"]["beyond_drift"]


def test_the_table_has_a_line_for_what_was_measured() -> None:
    state = trial({"tf32": 14.0}, 4, 0.2, 11)
    state["kept"] = ["tf32"]
    predicted = {"ms": 15, "low_ms": 11, "high_ms": 18}
    report = outcomes.outcomes(state, {"GEM001": {"remedies": {"tf32": predicted}}})
    lines = outcomes.table(report)

    assert lines[0].startswith("as it is")
    assert any("GEM001 tf32" in line and "faster" in line for line in lines)
    assert lines[-1].startswith("kept: tf32")


def test_steps_of_seconds_have_no_exponent_in_the_table() -> None:
    state = trial({"tf32": 300.0}, 4, 4000.0, 11)
    lines = outcomes.table(outcomes.outcomes(state, {}))

    assert not re.search(r"\de\+\d", "\n".join(lines))


def noise_and_values(state: dict[str, Any]) -> tuple[Any, list[float]]:
    comparisons = differences.compare(state["blocks"])
    noise = differences.Noise(comparisons.values(), "median_ms")
    return noise, comparisons["+", "tf32"].values("median_ms")


@pytest.mark.parametrize("saved", [0.0, 20.0])
def test_a_remedy_is_settled_once_its_interval_is_narrow(saved: float) -> None:
    noise, values = noise_and_values(trial({"tf32": saved}, 4, 0.1, 1))

    assert differences.is_settled(values, noise, STEP)


def test_a_difference_in_noise_is_not_settled() -> None:
    noise, values = noise_and_values(trial({"tf32": 5.0}, 4, 3.0, 1))

    assert not differences.is_settled(values, noise, STEP)


def test_two_blocks_settle_nothing() -> None:
    noise, values = noise_and_values(trial({"tf32": 20.0}, 2, 0.0, 1))

    assert not differences.is_settled(values, noise, STEP)
