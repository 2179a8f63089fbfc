"""Blocks of steps in one process: switches, measurements and recordings.

The GPU is synchronised at the ends of blocks only, and no block is measured under the
profiler.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, Iterator

import torch

from .. import remedies
from ..agent import process_facts, torch_state
from ..agent.step_timer import StepTimer
from ..shared import manifest
from .agreement import MARGIN, Agreement
from .machine import Machine, why_discarded
from .numerics import Numerics, gradient_norm
from .program import Program
from .recordings import Recording
from .switches import Switches

QUIET = 3  # steps without compilation that end the warm-up
PATIENCE = 60  # steps after which it ends even if the program compiles
BLOCK_STEPS = (4, 500)
ROUNDS = (4, 8)  # at least, if there is time; at most
LONG_MS = 50.0  # a step from which on one is enough after a switch
RECORDED = (2, 8)  # steps of a recording; of a whole period, at most
RECORD_S = 1.5  # for a recording whose duration is not known yet
STACKS_S = 1.5  # of traced steps, above which stacks take too long


class OutOfTime(Exception):  # noqa: N818 - an end, no error
    """The time of the trial is over."""


class Blocks:
    """Measured blocks; ``state`` is written whenever something was measured.

    ``run`` is a generator that waits for the end of a step at each ``yield``.
    """

    def __init__(self, session: Any, settings: dict[str, Any], file: Path) -> None:
        self.session = session
        self.settings = settings
        self.file = file
        self.numerics = Numerics()
        self.deadline = float(settings["deadline"])  # of time.time()
        self.machine: Machine | None = None
        self.program: Program | None = None
        self.switches: Switches | None = None
        self.dirty = ""  # why the running block cannot be used
        self.step_ms = 0.0
        self.period = 1  # steps after which their times repeat
        self.block_steps = BLOCK_STEPS[0]
        self._first_state: dict[str, Any] = {}
        self._record_s = RECORD_S
        self._plain_names: Any = None  # of the plain steps and of the control's
        self._rounds_least = ROUNDS[0]
        self._recording: Recording | None = None  # that is being made
        self._packages: Any = None
        self._primed: set[str] = set()  # remedies that were on before
        self._switch_number = 0  # the last, as all ranks number it
        self.state: dict[str, Any] = {
            "format": 1,
            "state": "warm-up",
            "began": manifest.now(),
            "first_step_at": time.time(),
            "rank": process_facts.rank()[0],
            "steps": None,
            "statistic": "median_ms",
            "remedies": {},
            "blocks": [],
            "first_step_time": None,
            "recordings": [],
            "notes": [],
            "kept": [],
            "phases": {},
            "names": None,
            "total": 0,
            "run": int(settings["run"]),
        }
        self.agreement: Agreement | None = session.agreement
        self._continue()

    def _continue(self) -> None:
        """Take over what an earlier run of the program has measured."""
        earlier = manifest.read(Path(self.settings["previous"] or os.devnull))
        for key in (
            "blocks",
            "recordings",
            "notes",
            "kept",
            "first_step_time",
            "names",
        ):
            if earlier.get(key):
                self.state[key] = earlier[key]
        self._total = int(earlier.get("seen", 0))  # steps of the whole program
        self.state["total"] = self._total
        self.earlier: dict[str, Any] = earlier.get("remedies", {})

    def run(self) -> Iterator[None]:
        """Follow the plan; ends when all is measured, or the time is over."""
        try:
            yield from self._plan()
            self.state["state"] = "done"
        except OutOfTime:
            self.state["state"] = "out of time"
        yield from self._end_together()
        self.end()

    def _plan(self) -> Iterator[None]:
        """Measure; each kind of trial has its own plan."""
        raise NotImplementedError

    def _end_together(self) -> Iterator[None]:
        """Let the other ranks end at the same step, if this one leads them."""
        if self.agreement is None or not self.agreement.leads:
            return
        at = self._publish({"end": True})
        self.agreement.over = True
        while self.session.schedule.seen < at:
            yield

    def end(self) -> None:
        """Switch everything off and write what is known."""
        recording, self._recording = self._recording, None
        if recording is not None:
            recording.end()
        if self.switches is not None:
            self.switches.set(())
        shared = self.agreement
        if shared is not None and shared.leads and not shared.over:
            self._publish({"end": True})  # it ends before its plan does
        self.numerics.remove()
        self.state["seen"] = self.session.schedule.seen
        self.save()

    def _phase(self, name: str, steps: Iterator[None]) -> Iterator[None]:
        self.state["state"] = name
        began = time.monotonic()
        try:
            yield from steps
        finally:
            self.state["phases"][name] = round(time.monotonic() - began, 3)
            self.save()

    def _begin(self) -> None:
        self.machine = Machine()
        self._first_state = self.machine.state()
        self.program = Program()
        self.numerics.install()
        self.state["steps"] = {
            "by": self.session.steps_by(),
            "of": self.session.source.of,
            "warmup": self.session.schedule.seen,
        }
        self.state["versions"] = process_facts.versions()
        self.state["devices"] = process_facts.devices()
        self.state["cores"] = process_facts.cores()

    def _use(self, timed: dict[str, Any]) -> None:
        """Plan with these step times."""
        self.step_ms = timed["ms"] if timed["period"] else timed["median_ms"]
        # Where long steps are regular, the median says nothing about the total.
        if timed["period"]:
            self.period = timed["period"]
            self.state["statistic"] = "mean_ms"

    def _block(self, base: tuple[str, ...], on: tuple[str, ...]) -> Iterator[None]:
        """Measure one block with ``on`` switched on; ``base`` is what it is for."""
        switches = self._switches()
        settle = max([self._settle(), *(switches[name].settle for name in on)])
        yield from self._switch(on, settle, base, self.block_steps)
        yield from self._measure(base)

    def _measure(self, base: tuple[str, ...]) -> Iterator[None]:
        """Measure a block of steps with what is on."""
        switches, machine = self._switches(), self.machine
        self.dirty = ""
        torch_cuda = torch_state.uses_cuda()
        if torch_cuda:
            torch.cuda.reset_peak_memory_stats()
        self.numerics.begin()
        compiles = torch_state.compilations()
        timer = StepTimer(on_cuda=torch_cuda)
        for _ in range(self.block_steps):
            yield
            timer.lap()
            switches.step()
            self._check_time()
        timed = timer.result() or {}
        machine_state = machine.state() if machine is not None else {}
        if torch_state.compilations() != compiles:
            self.dirty = self.dirty or "something was compiled"
        self.state["blocks"].append(
            {
                "run": self.state["run"],
                "switch": self._switch_number,
                "base": list(base),
                "on": list(switches.on),
                "at": manifest.now(),
                "step": self.session.schedule.seen,
                "steps": timed["steps"],
                "median_ms": timed["median_ms"],
                "mean_ms": timed["ms"],
                "p10_ms": timed["p10_ms"],
                "p90_ms": timed["p90_ms"],
                "max_ms": timed["max_ms"],
                "loss": self.numerics.end(),
                "gradient_norm": self._gradient_norm(),
                "peak_bytes": torch.cuda.max_memory_allocated() if torch_cuda else None,
                **machine_state,
                "discarded": self.dirty
                or why_discarded(machine_state, self._first_state),
            }
        )
        self.session.report(len(self.state["blocks"]))

    def _gradient_norm(self) -> float | None:
        assert self.program is not None  # noqa: S101 - for the type checker
        return gradient_norm(self.program.optimizers)

    def _switch(
        self,
        on: tuple[str, ...],
        steps: int,
        base: tuple[str, ...] = (),
        measured: int = 0,
    ) -> Iterator[None]:
        """Switch these remedies on, on all ranks, and let some steps pass.

        ``measured`` steps follow, which the other ranks measure, too.
        """
        switches, compiles = self._switches(), torch_state.compilations()
        if self.agreement is not None:
            switch = {"on": on, "steps": steps, "base": base, "measured": measured}
            at = self._publish({**switch, "wanted": list(switches.facts)})
            while self.session.schedule.seen < at:
                yield
                self._check_time()
        switches.set(on)
        for _ in range(steps):
            yield
            switches.step()
            self._check_time()
        if torch_state.compilations() != compiles:
            yield from self._until_quiet()

    def _publish(self, switch: dict[str, Any]) -> int:
        """Publish a switch for all ranks; return the step at which they make it."""
        at = int(self.session.schedule.seen) + MARGIN
        assert self.agreement is not None  # noqa: S101 - for the type checker
        self._switch_number = self.agreement.publish({"at": at, **switch})
        return at

    def _until_quiet(self) -> Iterator[None]:
        """Wait until nothing has been compiled for a few steps."""
        quiet, compiles = 0, torch_state.compilations()
        for _ in range(PATIENCE):
            yield
            now = torch_state.compilations()
            quiet = quiet + 1 if now == compiles else 0
            compiles = now
            self._check_time()
            if quiet >= QUIET:
                return

    def _settle(self) -> int:
        """Return the steps that pass after a switch."""
        return 2 if self.step_ms < LONG_MS else 1

    def _between(self) -> int:
        """Return the steps between two blocks."""
        return self._settle() + (MARGIN if self.agreement is not None else 0)

    def left(self) -> float:
        """Return the seconds that are left."""
        return self.deadline - time.time()

    def _check_time(self) -> None:
        if self.left() < 0:
            raise OutOfTime

    def _switches(self) -> Switches:
        assert self.switches is not None  # noqa: S101 - for the type checker
        return self.switches

    def save(self) -> None:
        """Write the state, so that whatever happens it can be read."""
        manifest.write(self.file, self.state)

    # Recordings.

    def _record(self, on: tuple[str, ...]) -> Iterator[None]:
        """Record a few steps with these remedies; note what their names show."""
        if not self.settings["record"]:
            return
        name = on[0] if on else "plain"
        if self.switches is not None:
            yield from self._switch(on, 3)
        began = time.monotonic()
        count = RECORDED[0]
        if not on and self.period <= RECORDED[1]:
            count = max(count, self.period)
        seconds = (count + 1) * self.step_ms / 1000
        recording = Recording(
            self.session, self.session.rank.folder / name, self._recorded_facts(on)
        )
        self._recording = recording
        stacks = not on and seconds <= STACKS_S
        yield from recording.steps(count, stacks=stacks)
        self._recording = None
        self._packages = recording.rank.facts.get("packages")
        taken = time.monotonic() - began
        # The first start of the profiler takes seconds, later ones do not.
        self._record_s = max(0.2, taken if on else min(taken, RECORD_S))
        entry: dict[str, Any] = {"remedy": name, "folder": name, "why": recording.why}
        entry["seconds"] = round(taken, 3)
        self.state["recordings"].append(entry)
        if self.program is not None and not on:
            self.program.names = self.state["names"] = recording.names
        elif recording.names is not None:
            if name == remedies.CONTROL and self.program is not None:
                plain = self.program.names or {}
                self._plain_names = {**recording.names, **plain}
            self._prove(name, recording.names)
        if on:
            yield from self._switch((), 2)
        self.save()

    def _prove(self, name: str, names: Any) -> None:
        facts = self._switches().facts[name]
        plain = self._plain_names
        if plain is None and self.program is not None:
            plain = self.program.names
        if plain is not None:
            text = self._switches()[name].proof(plain, names)
            facts["proof"] = {"applied": bool(text), "text": text}

    def _recorded_facts(self, on: tuple[str, ...]) -> dict[str, Any]:
        """Return what is known of the steps' time without the profiler."""
        if not on:
            return {"step_time": self.state["first_step_time"]}
        return {"packages": self._packages}
