"""The session of a process under trial: the agent's steps, and the trial's plan."""

from __future__ import annotations

import atexit
import time
from pathlib import Path
from typing import Any, Iterator

from ..agent import background, forking, process_facts
from ..agent.schedule import DONE
from ..agent.session import Session
from ..shared import manifest, status_files
from . import agreement, restarted
from .blocks import Blocks
from .follower import Follower
from .restarted import Restarted
from .trial import Trial

RESTARTS = 3  # of a trial whose steps turned out to be others
REPORT_S = 0.2


def begin() -> None:
    """Arm this process: it has just imported torch."""
    TrialSession(status_files.settings()).arm()


class TrialSession(Session):
    """Counts the steps of a process and drives its trial."""

    def __init__(self, settings: dict[str, Any]) -> None:
        super().__init__(settings)
        self.asked: dict[str, Any] = settings["try"]
        self.blocks = Path(settings["folder"], self.asked["blocks"])
        self.trial: Blocks | None = None
        self.agreement: agreement.Agreement | None = None
        self.started_with: dict[str, tuple[Any, str]] = {}
        self.step_name = ""  # of traced steps, once that is known
        self._plan: Iterator[None] | None = None
        self._restarts = 0
        self._reported = 0.0

    def arm(self) -> None:
        self.started_with = restarted.start(self.asked["restart"] or [])
        super().arm()
        if self.window is not None:  # seconds without steps prove nothing
            self.window.remove()
            self.window = None

    def steps_by(self) -> str:
        """Return what the steps are counted by."""
        return self._by()

    def report(self, blocks: int) -> None:
        """Report progress to the launcher, a few times per second."""
        now = time.monotonic()
        if now - self._reported > REPORT_S and self.trial is not None:
            self._reported = now
            text = f"{self.trial.state['state']}\t{blocks}\t0"
            status_files.mark(f"status-{self.rank.name}", text)

    def _boundary(self) -> None:
        with self._choosing:
            if self.rank.name is None:
                if not self._is_chosen():
                    self._leave_out()
                    return
                self.blocks.mkdir(exist_ok=True)
                self.rank.name = manifest.claim(self.blocks, process_facts.rank()[0])
        self.schedule.seen += 1
        self._last_at = time.monotonic()
        if self._plan is None:
            file = self.blocks / f"{self.rank.name}.json"
            if self.agreement is None:
                self.agreement = agreement.of_job(self.job, self.options["ranks"])
            self.trial = self._kind()(self, self.asked, file)
            self._plan = self.trial.run()
        if self.trial is not None and self.others.active:
            self.trial.dirty = "a profiler of the program was running"
        try:
            next(self._plan)
        except StopIteration:
            self._end_trial()

    def _kind(self) -> type[Blocks]:
        """Return the trial of this process."""
        if self.agreement is not None and not self.agreement.leads:
            return Follower
        return Trial if self.asked["restart"] is None else Restarted

    def _end_trial(self) -> None:
        self.schedule.phase = DONE
        status_files.mark(f"status-{self.rank.name}", "done\t0\t0")
        self._disarm()

    def _restart(self) -> bool:
        """Begin the trial again: the steps turned out to be others."""
        if self.schedule.phase == DONE or self._restarts >= RESTARTS:
            return False
        self._restarts += 1
        trial, self.trial, self._plan = self.trial, None, None
        if trial is not None:
            trial.end()
        self.schedule = self._make_schedule()
        self._thread = None
        return True

    def _restart_stale(self) -> bool:
        return self._restart()

    def _program_ends(self, what: str) -> None:
        """Write what was measured when the program ends before the trial does."""
        trial, self.trial = self.trial, None
        self._disarm()
        if trial is None or self.schedule.phase == DONE:
            return
        trial.state["ended_in"] = trial.state["state"]
        trial.state["state"] = what
        # What is on may be why the program ends.
        on = trial.switches.on if trial.switches is not None else ()
        trial.state["on_at_end"] = list(on)
        trial.end()

    def _fail(self, error: Exception) -> None:
        """Remove everything after an error of ours, and report it."""
        self.off = True
        text = f"{type(error).__name__}: {error}"
        status_files.mark("failed", text)
        trial, self.trial = self.trial, None
        self._disarm()
        if trial is not None:
            trial.state["ended_in"] = trial.state["state"]
            trial.state["state"] = "failed"
            trial.state["notes"].append(f"traceq crashed: {text}")
            try:
                trial.end()
            except Exception as second:  # noqa: BLE001 - nothing more can be done
                status_files.mark("failed", f"{text}; then {second}")

    def _in_child(self) -> None:
        """Leave the trial to the parent; a forked process begins its own."""
        if background.forks():
            return
        forking.leave(self, self.trial, self._plan)
        has_steps = self.schedule.seen > 0
        self.off = True
        self.rank.name = None
        self.trial, self._plan = None, None
        atexit.unregister(self._at_exit)
        forking.renew_locks(self, self.captures, self.source)
        self._disarm()
        settings = forking.settings_of_child(
            self.settings, parent_has_steps=has_steps, parent_is_traced=False
        )
        if settings is not None and not has_steps:
            TrialSession(settings).arm()
