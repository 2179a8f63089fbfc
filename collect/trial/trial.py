"""The trial of one process: blocks of steps with and without each remedy."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Iterator

from .. import remedies
from ..agent import torch_state
from ..agent.step_timer import StepTimer
from ..remedies.base import has
from ..shared import differences, manifest, status_files
from .blocks import BLOCK_STEPS, PATIENCE, QUIET, ROUNDS, Blocks, OutOfTime
from .switches import Switches

WARM_STEPS, WARM_LEAST, WARM_S = 10, 3, 5.0
PLAIN_S, PLAIN_STEPS = 1.5, 24  # of the first, plain block, at most
BLOCK_S = (0.1, 1.0)  # seconds of a block: at least, at most
SHORT_STEPS = 3  # of a block if time is short
SLOW_MS = 200.0  # a step from which on fewer of them are let pass
FEWEST_FIRST = 3  # of those after the first switch
SCOUTED = 2  # steps with all remedies that count their own work
SHORT_S = 120.0  # of a trial whose blocks are shorter
LINT_S = 60.0  # for the findings of the first recording
COMPILE_S = 90.0  # that must be left for a remedy that compiles


class Trial(Blocks):
    """Each remedy in several rounds, then those that help together, then recordings.

    Those that compile come last: nobody knows how long torch takes.
    """

    _for_slow = 0.0  # seconds that are left to them

    # The plan.

    def _plan(self) -> Iterator[None]:
        yield from self._phase("warm-up", self._warm_up())
        self._begin()
        if not self.state["first_step_time"]:
            yield from self._phase("plain", self._plain())
        self._use(self.state["first_step_time"])
        if self.program is not None and self.state["names"] is not None:
            self.program.names = self.state["names"]
        else:
            yield from self._phase("baseline", self._record(()))
        yield from self._phase("lint", self._await_findings())
        self._choose()
        yield from self._phase("scouting", self._scout())
        slow, quick = self._by_speed(self._affordable())
        self._for_slow = COMPILE_S if slow else 0.0
        quick = self._fit(quick)
        yield from self._phase("rounds", self._rounds(quick))
        self._for_slow = 0.0
        yield from self._phase("compiled", self._rounds(slow))
        names = [name for name in (*quick, *slow) if self._goes_on(name)]
        yield from self._phase("combination", self._combine(names))
        yield from self._phase("proof", self._proofs(names))

    def _warm_up(self) -> Iterator[None]:
        began = time.monotonic()
        steps, quiet = 0, 0
        compiles = torch_state.compilations()
        while True:
            yield
            steps += 1
            now = torch_state.compilations()
            quiet = quiet + 1 if now == compiles else 0
            compiles = now
            seconds = time.monotonic() - began
            enough = steps >= WARM_STEPS or (steps >= WARM_LEAST and seconds >= WARM_S)
            if enough and (quiet >= QUIET or steps >= PATIENCE):
                self.step_ms = seconds / steps * 1000
                return
            if self.left() < 0:
                raise OutOfTime

    def _plain(self) -> Iterator[None]:
        """Time the program as it is, before the profiler is ever started."""
        until = time.monotonic() + min(PLAIN_S, 0.05 * self.left())
        timer = StepTimer(on_cuda=torch_state.uses_cuda())
        for steps in range(PLAIN_STEPS):
            if steps >= BLOCK_STEPS[0] and time.monotonic() > until:
                break
            yield
            timer.lap()
            self._check_time()
        self.state["first_step_time"] = timer.result() or {}

    def _await_findings(self) -> Iterator[None]:
        """Let the program go on until its first recording was linted."""
        if not self.settings["awaits_findings"]:
            return
        folder = Path(self.session.settings["status_folder"])
        status_files.mark("baseline")
        until = time.time() + min(LINT_S, self.left() / 2)
        while time.time() < until:
            yield
            names = manifest.read_list(folder / "findings")
            if names is not None:
                self.settings["remedies"] = names
                return
        self.state["notes"].append("the findings came too late: all remedies are tried")

    def _choose(self) -> None:
        """Decide which remedies are tried."""
        assert self.program is not None  # noqa: S101 - for the type checker
        wanted = list(self.settings["remedies"])
        allow = bool(self.settings["allow"])
        self.switches = Switches(self.program, wanted, allow=allow)
        for name, facts in self.switches.facts.items():
            earlier = self.earlier.get(name, {})
            for key in ("why", "error"):  # what spoke against it speaks still
                facts[key] = earlier.get(key) or facts[key]
            facts["proof"] = earlier.get("proof")
            if self.switches.is_usable(name) and name not in self.switches.usable():
                facts["late"] = "it needs a restart, and there was no time for it"
        self.state["remedies"] = self.switches.facts

    def _scout(self) -> Iterator[None]:
        """Switch on what counts its own work for two steps, to drop what has none."""
        switches = self._switches()
        names = [name for name in switches.usable() if switches[name].counts]
        names = [name for name in names if not self.earlier.get(name)]
        if not names:
            return
        yield from self._switch(tuple(names), SCOUTED)
        for name in names:
            if switches.is_usable(name):
                switches.facts[name]["why"] = switches[name].idle()
        yield from self._switch((), 1)

    def _affordable(self) -> list[str]:
        """Return the remedies that can be tried in the time that is left."""
        switches = self._switches()
        names = []
        for name in switches.usable():
            if self._compiles_too_long(name):
                switches.facts[name]["late"] = "there is too little time to compile"
            else:
                names.append(name)
        return names

    def _by_speed(self, names: list[str]) -> tuple[list[str], list[str]]:
        """Return the remedies that compile, which come last, and the others."""
        slow = [name for name in names if self._switches()[name].slow]
        return slow, [name for name in names if name not in slow]

    def _compiles_too_long(self, name: str) -> bool:
        """Return whether a remedy makes torch compile, for which there is no time."""
        switch = self._switches()[name]
        if self.left() >= COMPILE_S or name in self.settings["only"]:
            return False
        known = self.program.names if self.program is not None else None
        compiled = has(known or {}, "Torch-Compiled", "CompiledFunction", "Compiled Gr")
        return bool(switch.slow or (switch.recompiles and compiled))

    def _first_switch(self, name: str) -> Iterator[None]:
        """Switch a remedy on for the first time, and see whether it does anything."""
        switches = self._switches()
        switch, facts = switches[name], switches.facts[name]
        began = time.monotonic()
        steps = switch.first if self.step_ms < SLOW_MS else FEWEST_FIRST
        most = self.left() / 2
        for _ in self._switch((name,), steps):
            yield
            if switch.slow and time.monotonic() - began > most:
                facts["late"] = f"torch still compiled after {most:.0f} s"
                yield from self._switch((), 1)
                return
        if switch.slow:
            yield from self._until_quiet()
            facts["compile_seconds"] = round(time.monotonic() - began, 3)
        extra = time.monotonic() - began - steps * self.step_ms / 1000
        facts["first_seconds"] = round(max(0.0, extra), 3)
        self._primed.add(name)
        if not facts["error"]:
            facts["why"] = switch.idle()

    # Blocks.

    def _rounds(self, names: list[str]) -> Iterator[None]:
        """Measure each remedy between two plain blocks, in both orders in turns.

        What is settled after a few rounds is left out of the others.
        """
        if not names:
            return
        yield from self._block((), ())
        done = self._rounds_done(names)
        if done >= self._rounds_least:  # in earlier runs
            names = self._unsettled(names)
        for number in range(done, ROUNDS[1]):
            began, first = time.monotonic(), 0.0
            for name in names if number % 2 == 0 else reversed(names):
                if name not in self._primed and self._goes_on(name):
                    first -= time.monotonic()
                    yield from self._first_switch(name)
                    first += time.monotonic()
                if self._goes_on(name):
                    yield from self._block((), (name,))
                    yield from self._block((), ())
            if self.state["statistic"] != "mean_ms":
                self.state["statistic"] = differences.statistic(self.state["blocks"])
            self.save()
            if number + 1 >= self._rounds_least:
                names = self._unsettled(names)
            left = self.left() - self._reserve(names) - self._for_slow
            if not names or left < time.monotonic() - began - first:
                return

    def _goes_on(self, name: str) -> bool:
        """Return whether a remedy is measured further."""
        switches = self._switches()
        return switches.is_usable(name) and not switches.facts[name].get("late")

    def _rounds_done(self, names: list[str]) -> int:
        """Return the rounds that earlier runs have completed."""
        comparisons = differences.compare(self.state["blocks"])
        figure = self.state["statistic"]
        counts = [
            len(comparisons[key].values(figure)) if key in comparisons else 0
            for key in (("+", name) for name in names)
        ]
        return min(counts, default=0)

    def _fit(self, names: list[str]) -> list[str]:
        """Choose the length of a block; drop the last remedies if time is short."""
        comparisons = differences.compare(self.state["blocks"])

        def measured(name: str) -> int:
            comparison = comparisons.get(("+", name))
            return len(comparison.values("median_ms")) if comparison is not None else 0

        names = sorted(names, key=measured)  # those that earlier runs did not reach
        self._rounds_least, fewest = ROUNDS[0], BLOCK_STEPS[0]
        each = self._block_s(names)
        if each < fewest * self.step_ms / 1000:
            self._rounds_least, fewest = differences.FEWEST, SHORT_STEPS
            each = self._block_s(names)
        while each < fewest * self.step_ms / 1000 and len(names) > 2:  # noqa: PLR2004
            last = names.pop()
            self._switches().facts[last]["late"] = "there was no time for it"
            each = self._block_s(names)
        longest = BLOCK_S[1] if self.left() > SHORT_S else BLOCK_S[1] / 2
        each = min(longest, max(BLOCK_S[0], each))
        steps = round(each * 1000 / self.step_ms)
        if self._total:  # the program ends after as many steps as before
            left = self._total - self.session.schedule.seen
            steps = min(steps, left // (2 * len(names) + 2) - 2)
        self.block_steps = max(fewest, min(BLOCK_STEPS[1], steps))
        self.block_steps = -(-self.block_steps // self.period) * self.period
        self.state["block_steps"] = self.block_steps
        return names

    def _block_s(self, names: list[str]) -> float:
        """Return the seconds that a block can take if all rounds are to fit."""
        left = self.left() - self._reserve(names) - self._for_slow
        seconds = max(0.0, left)
        blocks = self._rounds_least * (2 * len(names) + 1)
        return seconds / blocks - self._between() * self.step_ms / 1000

    def _reserve(self, names: list[str]) -> float:
        """Return the seconds that recordings and the combination need."""
        recordings = 0.8 * len(names) * self._record_s if self.settings["record"] else 0
        return min(recordings, 0.25 * self.left()) + 0.1 * self.left()

    def _unsettled(self, names: list[str]) -> list[str]:
        """Return the remedies that need more rounds, with the control; or none."""
        rest = [
            name
            for name in names
            if name != remedies.CONTROL
            and self._goes_on(name)
            and not self._is_settled((), (name,))
        ]
        return [remedies.CONTROL, *rest] if rest else []

    def _is_settled(self, base: tuple[str, ...], on: tuple[str, ...]) -> bool:
        """Return whether more blocks would not change what is known of remedies."""
        figure = self._figure(on[-1])
        comparisons = differences.compare(self.state["blocks"])
        comparison = comparisons.get((*base, "+", *on))
        values = comparison.values(figure) if comparison is not None else []
        noise = differences.Noise(comparisons.values(), figure)
        return differences.is_settled(values, noise, self.step_ms)

    # Combination.

    def _combine(self, names: list[str]) -> Iterator[None]:
        """Add the remedies that help one after the other, the best first."""
        figure = self.state["statistic"]
        comparisons = differences.compare(self.state["blocks"])
        noise = differences.Noise(comparisons.values(), figure)
        gains = {}
        for name in names:
            comparison = comparisons.get(("+", name))
            if comparison is None or name == remedies.CONTROL:
                continue
            values = comparison.values(self._figure(name))
            outcome, _ = differences.judge(values, noise, self.step_ms)
            if outcome == differences.FASTER:
                gains[name] = differences.centre(values)
        order = sorted(gains, key=lambda name: gains[name])
        retained = order[:1]
        self.state["kept"] = list(retained)
        for name in order[1:]:
            if self.left() < self._reserve(names) + 0.2 * self._round_s(4):
                self.state["notes"].append(f"no time to add {name} to the others")
                break
            if (yield from self._adds(tuple(retained), name)):
                retained.append(name)
                self.state["kept"] = list(retained)
        if len(retained) > 1 and self.left() > self._round_s(3):
            yield from self._pairs((), tuple(retained))

    def _adds(self, base: tuple[str, ...], name: str) -> Any:
        """Measure a remedy on top of others; return whether it helps there, too."""
        yield from self._pairs(base, (*base, name))
        figure = self._figure(name)
        comparisons = differences.compare(self.state["blocks"])
        noise = differences.Noise(comparisons.values(), figure)
        comparison = comparisons.get((*base, "+", *base, name))
        values = comparison.values(figure) if comparison is not None else []
        outcome, _ = differences.judge(values, noise, self.step_ms)
        return outcome == differences.FASTER

    def _pairs(self, base: tuple[str, ...], on: tuple[str, ...]) -> Iterator[None]:
        yield from self._block(base, base)
        for number in range(ROUNDS[0]):
            yield from self._block(base, on)
            yield from self._block(base, base)
            if number + 1 < differences.FEWEST:
                continue
            if self.left() < self._round_s(2) or self._is_settled(base, on):
                return

    def _figure(self, name: str) -> str:
        plain = self._switches()[name].plain_mean
        return "mean_ms" if plain else str(self.state["statistic"])

    def _round_s(self, blocks: int) -> float:
        return blocks * (self.block_steps + self._between()) * self.step_ms / 1000

    # Recordings.

    def _proofs(self, names: list[str]) -> Iterator[None]:
        """Record two steps with each remedy, those that changed most first."""
        if not self.settings["record"]:
            return
        figure = self.state["statistic"]
        comparisons = differences.compare(self.state["blocks"])

        def effect(name: str) -> float:
            comparison = comparisons.get(("+", name))
            return -abs(
                (comparison.centre(figure) if comparison is not None else None) or 0.0
            )

        ordered = sorted((n for n in names if n != remedies.CONTROL), key=effect)
        control = [name for name in names if name == remedies.CONTROL]
        done = {
            recording["remedy"]
            for recording in self.state["recordings"]
            if not recording["why"]
        }
        for name in [*control, *ordered]:  # the control shows what differs anyway
            if name in done:
                continue
            if self.left() < 1.2 * self._record_s:
                self.state["notes"].append(f"no time to record steps with {name}")
                continue
            yield from self._record((name,))
