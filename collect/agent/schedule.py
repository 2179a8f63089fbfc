"""The schedule: a state machine fed with step boundaries. It does not need torch.

waiting → timing → meeting (in a job of several ranks) → tracing → memory → done. Every
call of ``boundary`` is the end of one step and the start of the next, and returns what
to do there, in order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable

WAITING, TIMING, MEETING, TRACING, MEMORY, DONE = (
    "waiting",
    "timing",
    "meeting",
    "tracing",
    "memory",
    "done",
)

# What the waiting phase waits for.
FIRST_STEPS, COMPILATION, OTHER_PROFILER = "first steps", "compilation", "profiler"

LEAD_IN = 1  # the profiler's own warm-up steps: set up, but not recording


@dataclass(frozen=True)
class Plan:
    """Steps and seconds of each phase; a phase of 0 steps is skipped."""

    warmup: int = 10
    quiet: int = 3  # steps without compilation that end the warm-up
    patience: int = 50  # further steps after which warm-up ends even if it compiles
    patience_s: float = 120.0
    timed: int = 20
    timed_at_least: int = 3  # enough for slow steps, ...
    timed_s: float = 10.0  # ... once they took this long in total
    lead_in: int = LEAD_IN
    active: int = 3
    memory: int = 2


class Schedule:
    """The current phase, and what is due at each step boundary."""

    def __init__(self, plan: Plan, meet: Callable[[], Any] = lambda: None) -> None:
        """Follow ``plan``; ``meet`` returns the meeting of a job's ranks, or None."""
        self.plan = plan
        self.meet = meet
        self.phase = WAITING
        self.seen = 0  # boundaries so far
        self.in_phase = 0  # steps done of this phase
        self.still_compiling = False
        self.waits_for = FIRST_STEPS
        self._quiet_since = 0
        self._compiles = 0
        self._warm_at: float | None = None
        self._phase_began = 0.0

    def boundary(self, now: float, compiles: int, *, hold: bool = False) -> list[str]:
        """Return what to do at this boundary.

        ``compiles`` is a number that changes when something was compiled. ``hold``
        delays the next phase: another profiler is running.
        """
        self.seen += 1
        self.in_phase += 1
        compiled = compiles != self._compiles
        if compiled:
            self._compiles = compiles
            self._quiet_since = self.seen
        if self.phase == WAITING:
            return self._waiting(now, hold=hold)
        if self.phase == TIMING:
            return self._timing(now, compiled=compiled, hold=hold)
        if self.phase == MEETING:
            return self._meeting(now, hold=hold)
        if self.phase == TRACING:
            return self._tracing(now)
        if self.phase == MEMORY:
            return self._memory(now)
        return []

    def skip(self, now: float) -> list[str]:
        """Skip the current phase, which is not possible; return what is due instead."""
        following = {TRACING: MEMORY, MEMORY: DONE}
        return self._enter(following[self.phase], now)

    def again(self) -> None:
        """Start the traced steps again."""
        self.phase = TRACING
        self.in_phase = 0

    def total(self) -> int:
        """Return the number of steps of the current phase, as far as it is known."""
        return {
            WAITING: self.plan.warmup,
            TIMING: self.plan.timed,
            TRACING: self.plan.lead_in + self.plan.active,
            MEMORY: self.plan.memory,
        }.get(self.phase, 0)

    def _waiting(self, now: float, *, hold: bool) -> list[str]:
        self.waits_for = FIRST_STEPS
        if self.seen < self.plan.warmup:
            return []
        if self._warm_at is None:
            self._warm_at = now
        # The first boundary ends no step: quiet steps lie between boundaries.
        busy = self.seen - self._quiet_since < self.plan.quiet and self._compiles != 0
        if hold:
            self.waits_for = OTHER_PROFILER
            return []
        if busy and not self._impatient(now):
            self.waits_for = COMPILATION
            return []
        self.still_compiling = busy
        return self._enter(TIMING, now)

    def _impatient(self, now: float) -> bool:
        began = now if self._warm_at is None else self._warm_at
        return (
            self.seen >= self.plan.warmup + self.plan.patience
            or now - began >= self.plan.patience_s
        )

    def _timing(self, now: float, *, compiled: bool, hold: bool) -> list[str]:
        if hold or (compiled and not self._impatient(now)):
            self.phase = WAITING
            self.waits_for = OTHER_PROFILER if hold else COMPILATION
            return ["drop timing"]
        enough = self.in_phase >= self.plan.timed or (
            self.in_phase >= self.plan.timed_at_least
            and now - self._phase_began >= self.plan.timed_s
        )
        if not enough:
            return ["lap"]
        return ["lap", "end timing", *self._enter(TRACING, now)]

    def _meeting(self, now: float, *, hold: bool) -> list[str]:
        """Wait for the step at which all ranks start, which they agree on."""
        if hold or not self.meet().starts(self.seen, now):
            return []
        return self._enter(TRACING, now, met=True)

    def _tracing(self, now: float) -> list[str]:
        if self.in_phase < self.plan.lead_in + self.plan.active:
            return ["trace step"]
        return ["end trace", *self._enter(MEMORY, now)]

    def _memory(self, now: float) -> list[str]:
        if self.in_phase < self.plan.memory:
            return ["memory step"]
        return ["memory step", "end memory", *self._enter(DONE, now)]

    def _enter(self, phase: str, now: float, *, met: bool = False) -> list[str]:
        """Enter a phase, or the next one that the plan has steps for."""
        steps = {
            TIMING: self.plan.timed,
            TRACING: self.plan.active,
            MEMORY: self.plan.memory,
        }
        order = (TIMING, TRACING, MEMORY)
        while phase in order and steps[phase] == 0:
            place = order.index(phase) + 1
            phase = order[place] if place < len(order) else DONE
        meeting = self.meet() if phase == TRACING and not met else None
        if meeting is not None:
            phase = MEETING
            meeting.ready(self.seen, now)
        self.phase = phase
        self.in_phase = 0
        self._phase_began = now
        return {
            TIMING: ["begin timing"],
            MEETING: [],
            TRACING: ["begin trace"],
            MEMORY: ["begin memory"],
            DONE: ["done"],
        }[phase]
