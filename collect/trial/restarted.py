"""The trial of a process that was started with a remedy, or without: one block."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Iterator

from ..shared import differences, manifest
from .machine import Machine
from .program import Program
from .switches import Switches, error_line
from .trial import Trial

BLOCK_S = 2.0  # of the block, at least


class Restarted(Trial):
    """Measures one block, and records two steps with each remedy once."""

    def _continue(self) -> None:
        """Take over everything that earlier processes have measured."""
        self.state.update(manifest.read(Path(self.settings["previous"])))
        self.state["run"] = differences.RESTARTS
        self._total = 0
        self.earlier = {}

    def _plan(self) -> Iterator[None]:
        self._switch_number = int(self.settings["run"])
        yield from self._warm_up()
        self.machine = Machine()
        self._first_state = self.machine.state()
        self.program = Program()
        self.program.names = self.state["names"]
        self.numerics.install()
        self._use(self.state["first_step_time"])
        self.switches = Switches(self.program, [], allow=True)
        for name, (remedy, error) in self.session.started_with.items():
            self.switches.adopt(name, remedy, error)
        steps = round(BLOCK_S * 1000 / self.step_ms)
        self.block_steps = max(int(self.state["block_steps"]), steps)
        if self.state["total"]:  # the program ends after as many steps as before
            left = self.state["total"] - self.session.schedule.seen
            self.block_steps = max(1, min(self.block_steps, left // 2))
        yield from self._block((), tuple(self.settings["restart"]))
        yield from self._note()

    def _note(self) -> Iterator[None]:
        """Note what speaks against the remedies of this process; record them once."""
        for name in self.session.started_with:
            if name == differences.CONTROL:
                continue
            facts = self.state["remedies"][name]
            own = self._switches().facts[name]
            facts["error"] = own["error"]
            facts["why"] = self._switches()[name].idle()
            facts["late"] = ""
            if facts["proof"] is None and not facts["why"]:
                yield from self._record((name,))
                facts["proof"] = own["proof"]

    def _switch(
        self,
        on: tuple[str, ...],
        steps: int,
        base: tuple[str, ...] = (),
        measured: int = 0,
    ) -> Iterator[None]:
        """Let some steps pass on all ranks: what is on is on since the start."""
        if self.agreement is not None:
            switch = {"on": (), "steps": steps, "base": base, "measured": measured}
            at = self._publish({**switch, "wanted": ["", *on]})
            while self.session.schedule.seen < at:
                yield
        for _ in range(steps):
            yield
            self._check_time()


def start(names: list[str]) -> dict[str, tuple[Any, str]]:
    """Apply remedies at the start of the process; return each with its error."""
    from .. import remedies  # noqa: PLC0415 - most processes start without any

    started = {}
    for name in names:
        remedy, error = remedies.load(name), ""
        try:
            remedy.apply(None)
        except Exception as problem:  # noqa: BLE001 - the program must continue
            error = error_line(problem)
        started[name] = (remedy, error)
    return started
