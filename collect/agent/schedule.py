"""The schedule: a state machine fed with step boundaries. It does not need torch.

waiting → timing → probing → meeting (in a job of several ranks) or aligning (where some
steps take longer) → tracing → memory → done. Every call of ``boundary`` is the end of
one step and the start of the next, and returns what to do there, in order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable

WAITING, TIMING, PROBING, MEETING, ALIGNING, TRACING, MEMORY, DONE = (
    "waiting",
    "timing",
    "probing",
    "meeting",
    "aligning",
    "tracing",
    "memory",
    "done",
)

# Reasons of the waiting phase.
FIRST_STEPS, COMPILATION, OTHER_PROFILER = "first steps", "compilation", "profiler"

LEAD_IN = 1  # the profiler's own warm-up steps: set up, but not recording
PROBED = 1  # steps whose events are counted, before it is decided how much to trace


@dataclass(frozen=True)
class Plan:
    """Steps and seconds of each phase; a phase of 0 steps is skipped."""

    warmup: int = 10
    warmup_at_least: int = 10  # enough for slow steps, ...
    warmup_s: float = 10.0  # ... once they took this long in total
    quiet: int = 3  # steps without compilation that end the warm-up
    patience: int = 50  # further steps after which warm-up ends even if it compiles
    patience_s: float = 120.0
    timed: int = 20
    timed_at_least: int = 3  # enough for slow steps, ...
    timed_s: float = 10.0  # ... once they took this long in total
    timed_most: int = 50  # to see how often long steps occur, ...
    timed_most_s: float = 20.0  # ... or for this long
    probed: int = PROBED
    lead_in: int = LEAD_IN
    active: int = 3
    memory: int = 2


class Schedule:
    """The current phase, and what is due at each step boundary."""

    ASK_EVERY = 8  # timed steps between two looks for a pattern, which take a while

    def __init__(self, plan: Plan, meet: Callable[[], Any] = lambda: None) -> None:
        """Follow ``plan``; ``meet`` returns the meeting of a job's ranks, or None."""
        self.plan = plan
        self.meet = meet
        self.active = plan.active
        """Steps to trace, which the probe may change."""
        self.starts_well: Callable[[int], bool] = lambda _seen: True
        """Says if the traced steps may start after this many boundaries."""
        self.pattern_is_open: Callable[[], bool] = lambda: False
        """Says if some steps take longer, and it is not seen yet how often."""
        self.phase = WAITING
        self.seen = 0  # boundaries so far
        self.in_phase = 0  # steps done of this phase
        self.still_compiling = False
        self.waits_for = FIRST_STEPS
        self._quiet_since = 0
        self._compiles = 0
        self._began: float | None = None
        self._warm_at: float | None = None
        self._phase_began = 0.0

    def boundary(self, now: float, compiles: int, *, hold: bool = False) -> list[str]:
        """Return the actions at this boundary.

        ``compiles`` is a number that changes when something was compiled. ``hold``
        delays the next phase: another profiler is running.
        """
        self.seen += 1
        self.in_phase += 1
        if self._began is None:
            self._began = now
        compiled = compiles != self._compiles
        if compiled:
            self._compiles = compiles
            self._quiet_since = self.seen
        following: dict[str, Callable[[], list[str]]] = {
            WAITING: lambda: self._waiting(now, hold=hold),
            TIMING: lambda: self._timing(now, compiled=compiled, hold=hold),
            PROBING: lambda: self._probing(now),
            MEETING: lambda: self._meeting(now, hold=hold),
            ALIGNING: lambda: self._aligning(now, hold=hold),
            TRACING: lambda: self._tracing(now),
            MEMORY: lambda: self._memory(now),
            DONE: list,
        }
        return following[self.phase]()

    def skip(self, now: float) -> list[str]:
        """Leave the current phase as it is; return what is due instead."""
        return self._enter(DONE if self.phase == MEMORY else MEMORY, now)

    def again(self, phase: str = TRACING) -> None:
        """Start the traced or probed steps again."""
        self.phase = phase
        self.in_phase = 0

    def total(self) -> int:
        """Return the number of steps of the current phase, as far as it is known."""
        return {
            WAITING: self.plan.warmup,
            TIMING: max(self.plan.timed, self.in_phase),
            PROBING: self.plan.lead_in + self.plan.probed,
            TRACING: self.plan.lead_in + self.active,
            MEMORY: self.plan.memory,
        }.get(self.phase, 0)

    def _waiting(self, now: float, *, hold: bool) -> list[str]:
        self.waits_for = FIRST_STEPS
        if self.seen < self._warmup(now):
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

    def _warmup(self, now: float) -> int:
        """Return the steps of the warm-up: fewer if they are slow."""
        slow = self._began is not None and now - self._began >= self.plan.warmup_s
        warmup = self.plan.warmup
        return min(warmup, self.plan.warmup_at_least) if slow else warmup

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
        seconds = now - self._phase_began
        enough = self.in_phase >= self.plan.timed or (
            self.in_phase >= self.plan.timed_at_least and seconds >= self.plan.timed_s
        )
        if not enough or self._needs_more(seconds):
            return ["lap"]
        return ["lap", "end timing", *self._enter(PROBING, now)]

    def _needs_more(self, seconds: float) -> bool:
        """Return whether more steps are timed, to see how often they take longer."""
        if self.in_phase >= self.plan.timed_most or seconds >= self.plan.timed_most_s:
            return False
        due = (self.in_phase - self.plan.timed) % self.ASK_EVERY == 0
        return not due or self.pattern_is_open()

    def _probing(self, now: float) -> list[str]:
        if self.in_phase < self.plan.lead_in + self.plan.probed:
            return ["probe step"]
        return ["end probe", *self._enter(TRACING, now)]

    def _meeting(self, now: float, *, hold: bool) -> list[str]:
        """Wait for the step at which all ranks start, which they agree on."""
        if hold or not self.meet().starts(self.seen, now):
            return []
        return self._enter(TRACING, now, met=True)

    def _aligning(self, now: float, *, hold: bool) -> list[str]:
        """Wait for a step from which on no long one comes for a while."""
        late = now - self._phase_began >= self.plan.patience_s
        if hold or not (late or self.starts_well(self.seen)):
            return []
        return self._enter(TRACING, now, met=True)

    def _tracing(self, now: float) -> list[str]:
        if self.in_phase < self.plan.lead_in + self.active:
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
            PROBING: self.plan.probed if self.plan.active else 0,
            TRACING: self.plan.active,
            MEMORY: self.plan.memory,
        }
        order = (TIMING, PROBING, TRACING, MEMORY)
        while phase in order and steps[phase] == 0:
            place = order.index(phase) + 1
            phase = order[place] if place < len(order) else DONE
        if phase == TRACING and not met:
            phase = self._before_tracing(now)
        self.phase = phase
        self.in_phase = 0
        self._phase_began = now
        return {
            TIMING: ["begin timing"],
            PROBING: ["begin probe"],
            MEETING: [],
            ALIGNING: [],
            TRACING: ["begin trace"],
            MEMORY: ["begin memory"],
            DONE: ["done"],
        }[phase]

    def _before_tracing(self, now: float) -> str:
        """Return the phase in which the start of the traced steps is waited for."""
        meeting = self.meet()
        if meeting is not None:
            meeting.ready(self.seen, now)
            return MEETING
        # After a probe, its outcome decides: it is known at the next boundary.
        ready = not self.plan.probed and self.starts_well(self.seen)
        return TRACING if ready else ALIGNING
