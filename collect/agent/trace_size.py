"""Size of a trace: the number of steps and the detail, from one probed step.

torch's profiler stops the program for about 10 us per event when it ends (1.6 s for
199,000 events, 13.7 s for 1,324,000: H200, torch 2.11), and an event has 550 bytes in
the file. A trace that turns out too large would have to be thrown away.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

QUICK_EVENTS = 300_000  # that stop the program for no more than about 3 s
LONGEST_PERIOD = 64  # steps
FEWEST = 2  # steps that are traced even if they stop the program for longer
EVENT_MEMORY = 2_000  # bytes that an event takes until it is written


@dataclass(frozen=True)
class Probe:
    """One step under the profiler."""

    events: int
    python_share: float
    """Fraction of the events that stacks add."""
    ms: float = 1.0
    """Time of such a step without the profiler."""


@dataclass(frozen=True)
class Pattern:
    """The step times of the program."""

    mean_ms: float = 1.0
    typical_ms: float = 1.0
    """Mean time of the steps that are not long."""
    period: int | None = None
    """The number of steps after which they repeat, where some take longer."""


@dataclass(frozen=True)
class TraceSize:
    """The steps to trace; 0 if not even one fits."""

    steps: int
    stacks: bool
    whole_period: bool = False
    why: str = ""
    """The reason, if it is less than what was asked for."""


def choose(
    wanted: TraceSize, probe: Probe, pattern: Pattern, most: int, *, free: bool
) -> TraceSize:
    """Return the size of a trace: that ``wanted``, within at most ``most`` events.

    If ``free``, the number of steps may change: to a whole period, or to fewer steps
    so that the program is not stopped for long.
    """
    # Events are in proportion to the time of a step, as far as is known before.
    per_ms = probe.events / max(probe.ms, 1e-6)
    events = max(1.0, per_ms * pattern.typical_ms)
    if free and pattern.period is not None:
        steps = -(-wanted.steps // pattern.period) * pattern.period
        quick = steps * per_ms * pattern.mean_ms <= min(most, QUICK_EVENTS)
        if quick and steps <= LONGEST_PERIOD:
            return replace(wanted, steps=steps, whole_period=True)
    if free:
        few = int(QUICK_EVENTS / events)
        steps = max(min(wanted.steps, FEWEST), min(wanted.steps, few))
        if steps < wanted.steps:
            why = f"a step has {_thousands(events)} events, more stop it for seconds"
            wanted = replace(wanted, steps=steps, why=why)
    fitting = int(most / events)
    if fitting >= wanted.steps:
        return wanted
    why = f"a step has {_thousands(events)} events"
    if fitting >= 1:
        return replace(wanted, steps=fitting, why=why)
    without = events * (1 - probe.python_share) if wanted.stacks else events
    fitting = int(most / max(1.0, without))
    return TraceSize(min(wanted.steps, fitting), stacks=False, why=why)


def _thousands(events: float) -> str:
    return f"{round(events, -3):,.0f}"
