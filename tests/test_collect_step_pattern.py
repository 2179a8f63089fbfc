"""Step times that differ: how often steps take longer, and what is traced then."""

from __future__ import annotations

import random
from typing import Any

from collecting import module

step_pattern = module("agent.step_pattern")
trace_size = module("agent.trace_size")


def noisy(*steps: float, seed: int = 0) -> list[float]:
    """Return step times with 3% of noise."""
    draw = random.Random(seed)  # noqa: S311 - no secret
    return [step * draw.gauss(1, 0.03) for step in steps]


def rollouts(count: int) -> list[float]:
    """Return the steps of a program that collects a rollout every 16 steps."""
    return noisy(*(331.0 if step % 16 == 5 else 8.5 for step in range(count)))


def test_a_rollout_every_16_steps_is_a_period_of_16() -> None:
    assert step_pattern.period(rollouts(50)) == 16


def test_the_long_steps_are_told_with_their_share_and_their_time() -> None:
    long = step_pattern.long_steps(rollouts(48))
    assert long.share == 0.0625
    assert 320 < long.ms < 342
    assert 8 < long.typical_ms < 9


def test_steps_that_are_alike_have_no_period() -> None:
    for seed in range(50):
        laps = noisy(*[8.5] * 40, seed=seed)
        assert step_pattern.period(laps) is None
        assert step_pattern.long_steps(laps) is None


def test_a_long_step_now_and_then_has_no_period() -> None:
    draw = random.Random(7)  # noqa: S311 - no secret
    result = [
        step_pattern.period(
            noisy(*(90.0 if draw.random() < 0.1 else 9.0 for _ in range(50)), seed=seed)
        )
        for seed in range(40)
    ]
    assert sum(period is not None for period in result) <= 4


def test_a_usual_step_that_takes_long_hides_no_period() -> None:
    # Epochs of three batches with two loaders: one of the usual steps takes 1.5 times
    # the median.
    laps = [3.6, 3.3, 126, 108, 5.2, 4.3, 3.2, 3.1, 101, 104, 5.8, 5.5, 3.0, 3.0, 97]
    laps += [115, 6.7, 4.4, 3.0, 3.1]
    assert step_pattern.long_places(laps) == [2, 3, 8, 9, 14, 15]
    assert step_pattern.period(laps) == 6


def test_a_pattern_in_a_pattern_repeats_with_the_longer_one() -> None:
    steps = [100.0 if n % 12 == 3 else 40.0 if n % 3 == 0 else 10.0 for n in range(50)]
    assert step_pattern.period(noisy(*steps)) == 12


def test_steps_of_any_length_are_noise() -> None:
    laps = [10.0 + step % 17 for step in range(50)]  # of a busy machine
    assert step_pattern.long_places(laps) == []


def test_one_slow_step_that_adds_little_is_noise() -> None:
    assert step_pattern.long_places([10.0] * 99 + [30.0]) == []


WANTED = trace_size.TraceSize(3, stacks=True)
MOST = 1_800_000


def choose(
    events: int,
    period: int | None = None,
    most: int = MOST,
    *,
    free: bool = True,
) -> Any:  # noqa: ANN401 - of collect/, by path
    probe = trace_size.Probe(events, python_share=0.75)
    pattern = trace_size.Pattern(period=period)
    return trace_size.choose(WANTED, probe, pattern, most, free=free)


def test_small_steps_are_traced_as_wanted() -> None:
    assert choose(20_000) == WANTED


def test_a_whole_period_is_traced_if_it_stops_the_program_for_seconds_at_most() -> None:
    size = choose(2_000, 16)
    assert (size.steps, size.whole_period) == (16, True)
    assert choose(100_000, 16).whole_period is False


def test_a_short_period_is_traced_as_often_as_steps_are_wanted() -> None:
    assert choose(2_000, 2).steps == 4


def test_large_steps_are_traced_twice() -> None:
    size = choose(200_000)
    assert (size.steps, size.stacks) == (2, True)
    assert "200,000 events" in size.why


def test_a_number_of_steps_that_was_asked_for_is_kept() -> None:
    assert choose(200_000, free=False) == WANTED


def test_steps_that_are_too_large_together_are_fewer() -> None:
    size = choose(500_000, most=600_000)
    assert (size.steps, size.stacks) == (1, True)


def test_a_step_that_is_too_large_is_traced_without_stacks() -> None:
    size = choose(700_000, most=600_000)
    assert (size.steps, size.stacks) == (2, False)


def test_a_step_that_is_too_large_without_stacks_is_not_traced() -> None:
    assert choose(9_000_000, most=600_000).steps == 0


def test_the_events_of_long_steps_are_estimated_by_their_time() -> None:
    probe = trace_size.Probe(1_000, python_share=0.7, ms=8.5)  # of a typical step
    pattern = trace_size.Pattern(mean_ms=28.7, typical_ms=8.5, period=16)
    assert trace_size.choose(WANTED, probe, pattern, 50_000, free=True).steps == 3
    assert trace_size.choose(WANTED, probe, pattern, 60_000, free=True).steps == 16


def test_one_slow_step_while_timing_leaves_the_size_as_probed() -> None:
    probe = trace_size.Probe(1_000, python_share=0.7, ms=34.1)
    timed = trace_size.Pattern(mean_ms=69.9, typical_ms=34.1)
    size = trace_size.choose(WANTED, probe, timed, 1_800, free=False)
    assert (size.steps, size.stacks) == (1, True)
