"""The schedule of a recording alone, fed with step boundaries."""

from __future__ import annotations

from typing import Any

from collecting import module

schedule = module("agent.schedule")


def drive(one: Any, boundaries: int, *, every: float = 0.01) -> list[tuple[int, str]]:  # noqa: ANN401
    """Feed boundaries of an eager program; return at which one what was asked for."""
    asked = []
    for number in range(1, boundaries + 1):
        asked += [(number, action) for action in one.boundary(number * every, 0)]
    return asked


def test_the_phases_follow_each_other_with_a_step_after_the_probe() -> None:
    one = schedule.Schedule(schedule.Plan(warmup=2, timed=2, active=2, memory=1))
    assert drive(one, 20) == [
        (2, "begin timing"),
        (3, "lap"),
        (4, "lap"),
        (4, "end timing"),
        (4, "begin probe"),
        (5, "probe step"),
        (6, "end probe"),
        (7, "begin trace"),
        (8, "trace step"),
        (9, "trace step"),
        (10, "end trace"),
        (10, "begin memory"),
        (11, "memory step"),
        (11, "end memory"),
        (11, "done"),
    ]


def test_the_defaults_wait_for_10_time_20_probe_1_and_trace_3_steps() -> None:
    asked = {
        action: number
        for number, action in drive(schedule.Schedule(schedule.Plan()), 60)
    }
    assert asked["begin timing"] == 10
    assert asked["begin probe"] == 30
    assert asked["begin trace"] == 33
    assert asked["end trace"] == 37
    assert asked["done"] == 39


def test_a_phase_of_no_steps_is_left_out() -> None:
    plan = schedule.Plan(warmup=1, timed=0, probed=0, active=1, memory=0)
    asked = [action for _, action in drive(schedule.Schedule(plan), 9)]
    assert asked == ["begin trace", "trace step", "end trace", "done"]


def test_slow_steps_are_timed_only_three_times() -> None:
    plan = schedule.Plan(warmup=1, timed=20)
    asked = drive(schedule.Schedule(plan), 8, every=10.0)
    assert (4, "end timing") in asked


def test_the_warm_up_lasts_until_three_steps_compile_nothing() -> None:
    one = schedule.Schedule(schedule.Plan(warmup=2))
    compiles = [1, 2, 2, 2, 3, 3, 3, 3]
    asked = [one.boundary(float(i), count) for i, count in enumerate(compiles)]
    assert asked == [[]] * 7 + [["begin timing"]]
    assert not one.still_compiling


def test_a_program_that_always_compiles_is_recorded_in_the_end() -> None:
    one = schedule.Schedule(schedule.Plan(warmup=2, patience=5))
    asked = [one.boundary(float(i), i) for i in range(1, 8)]
    assert asked[-1] == ["begin timing"]
    assert one.still_compiling


def test_patience_ends_by_time_too() -> None:
    one = schedule.Schedule(schedule.Plan(warmup=1, patience_s=60.0))
    assert one.boundary(0.0, 1) == []
    assert one.boundary(59.0, 2) == []
    assert one.boundary(61.0, 3) == ["begin timing"]


def test_a_compilation_while_steps_are_timed_sends_it_back_to_waiting() -> None:
    one = schedule.Schedule(schedule.Plan(warmup=1, timed=5))
    assert one.boundary(0.0, 0) == ["begin timing"]
    assert one.boundary(1.0, 0) == ["lap"]
    assert one.boundary(2.0, 1) == ["drop timing"]
    assert [one.boundary(float(i), 1) for i in (3, 4, 5)] == [[], [], ["begin timing"]]


def test_nothing_begins_while_another_profiler_is_on() -> None:
    one = schedule.Schedule(schedule.Plan(warmup=1, timed=5))
    assert one.boundary(0.0, 0, hold=True) == []
    assert one.boundary(1.0, 0) == ["begin timing"]
    assert one.boundary(2.0, 0, hold=True) == ["drop timing"]
    assert one.boundary(3.0, 0) == ["begin timing"]


def test_it_knows_what_the_warm_up_waits_for() -> None:
    one = schedule.Schedule(schedule.Plan(warmup=2))
    waited_for = []
    for compiles, hold in ((0, False), (0, True), (1, False), (1, True)):
        one.boundary(0.0, compiles, hold=hold)
        waited_for.append(one.waits_for)
    assert waited_for == [
        schedule.FIRST_STEPS,
        schedule.OTHER_PROFILER,
        schedule.COMPILATION,
        schedule.OTHER_PROFILER,
    ]


def test_traced_steps_can_be_had_again() -> None:
    plan = schedule.Plan(warmup=1, timed=0, probed=0, active=1, memory=0)
    one = schedule.Schedule(plan)
    assert drive(one, 2) == [(1, "begin trace"), (2, "trace step")]
    one.again()
    assert drive(one, 2) == [(1, "trace step"), (2, "end trace"), (2, "done")]


def test_a_phase_that_cannot_be_is_skipped() -> None:
    one = schedule.Schedule(schedule.Plan(warmup=1, timed=0, probed=0, memory=2))
    assert one.boundary(0.0, 0) == ["begin trace"]
    assert one.skip(0.0) == ["begin memory"]
    assert one.skip(0.0) == ["done"]


def test_slow_steps_need_fewer_for_their_warm_up() -> None:
    plan = schedule.Plan(warmup=10, warmup_at_least=3)
    asked = drive(schedule.Schedule(plan), 5, every=6.0)
    assert asked[0] == (3, "begin timing")


def test_more_steps_are_timed_until_it_is_seen_how_often_they_take_longer() -> None:
    one = schedule.Schedule(schedule.Plan(warmup=1, timed=4, timed_most=30))
    one.pattern_is_open = lambda: one.in_phase < 15
    assert (1 + 4 + 2 * one.ASK_EVERY, "end timing") in drive(one, 40)


def test_no_more_than_the_most_steps_are_timed() -> None:
    one = schedule.Schedule(schedule.Plan(warmup=1, timed=4, timed_most=30))
    one.pattern_is_open = lambda: True
    assert (1 + 30, "end timing") in drive(one, 40)


def test_the_traced_steps_start_where_no_long_one_is_expected() -> None:
    plan = schedule.Plan(warmup=1, timed=0, probed=0, active=1, memory=0)
    one = schedule.Schedule(plan)
    one.starts_well = lambda seen: seen % 5 == 2
    assert drive(one, 7)[0] == (2, "begin trace")


def test_the_probe_may_change_how_many_steps_are_traced() -> None:
    one = schedule.Schedule(schedule.Plan(warmup=1, timed=0, active=3, memory=0))
    drive(one, 3)
    one.active = 5
    assert (1 + 1 + 5, "end trace") in drive(one, 12)
