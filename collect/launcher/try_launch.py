"""Launch of a trial: the program with remedies switched on and off inside it."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from .. import remedies
from ..shared import manifest, status_files
from . import (
    complete_run,
    launch,
    linting,
    options,
    outcomes,
    restarts,
    run_facts,
    run_folder,
    scratch,
    trial_folder,
    try_options,
    try_words,
)
from .scratch import Scratch
from .screen import Screen
from .tee import Tee

VERSION = 1  # of try.json, as in docs/schemas
TERM_S, KILL_S = 8.0, 8.0  # after the deadline: to end the program, then to kill it
STOPPING_S = 15.0  # for the program to end once it was stopped
WRITERS_S = 15.0  # for the recordings to be written
MARGIN_S = 6.0  # that must be left for blocks if the program runs again
BASELINE = "baseline"  # the status file: the first recording was made


def main(words: list[str], prog: str, lint: list[str] | None = None) -> int:
    """Run the command line and return the exit status.

    ``lint`` is a command that writes the findings of a run folder as JSON: with it,
    what it finds is tried, and has to be gone with the remedy.
    """
    began = time.time()
    chosen = try_options.parse(words, prog)
    screen = Screen(quiet=chosen.quiet)
    try:
        place = trial_folder.open_folder(chosen)
        status_folder = Path(tempfile.mkdtemp(prefix="traceq-"))
        try:
            trial = TrialLaunch(chosen, place, status_folder, screen, began)
            trial.lint = lint
            return trial.run()
        finally:  # processes that outlive the command may still write there
            shutil.rmtree(status_folder, ignore_errors=True)
    except run_folder.TakenError as error:
        screen.say(str(error))
    except OSError as error:  # before the start: what comes later is caught there
        why = f"{error.filename or chosen.out}: {error.strerror or error}"
        screen.say(f"nothing was written, and the program was not started: {why}")
    return options.CANNOT_WORK


class TrialLaunch(launch.Launch):
    """One trial of the user's command."""

    def __init__(
        self,
        chosen: Any,
        place: Path,
        status_folder: Path,
        screen: Screen,
        began: float,
    ) -> None:
        self.shown = place
        place = place.absolute()  # other runs are in other folders
        super().__init__(chosen, place, None, status_folder, screen)
        self.file = place / "try.json"
        self.before = manifest.read(self.file)
        self.began = began
        self.deadline = began + chosen.minutes * 60
        self.ended_by_us = False
        self._asked_to_end = 0.0
        self._progress = ""
        self.lint: list[str] | None = None
        self._linter: linting.Linter | None = None
        self.scratch: Scratch | None = None
        self.trial = trial_folder.TrialFolder(place)
        self.run_number = self.trial.runs + 1
        self.run_began = began
        self.previous = ""
        self.restart: list[str] | None = None  # on since the start of this run
        self.state_file = place / "none"
        self.interrupted = False
        self._crashed = False
        if self.before:
            self.previous = self.trial.newest_state()
        self.report = {
            "version": VERSION,
            "tool": "traceq try",
            "state": "running",
            "minutes": chosen.minutes,
            "asked": chosen.remedies,
            "command": self.facts["command"],
            "cwd": self.facts["cwd"],
            "system": self.facts["system"],
            "driver": self.facts["driver"],
            "git": run_facts.git_with_changes(chosen.command),
            "started": self.facts["started"],
            "predictions": chosen.predictions,
        }

    def run(self) -> int:
        """Run the program with its trial; write try.json; print the table."""
        status = self._run_once()
        first = status
        while self._goes_on(status):
            self._again()
            status = self._run_once()
        self._restart_with_remedies()
        try:
            return self._conclude(first)
        except OSError as error:
            self.screen.say(f"{self.file.name} cannot be written: {error.strerror}")
            return self._code(first) or options.CANNOT_WORK
        finally:
            if self.scratch is not None:
                self.scratch.remove()

    def _run_once(self) -> int:
        tee = self._open()
        try:
            status = self._execute(tee)
            self._add_logs(tee)
        finally:
            tee.close()
        return status

    def _goes_on(self, status: int) -> bool:
        """Return whether the program ended before its trial, and can run again."""
        state = (self.trial.states(self.previous) or [{}])[0]
        self.state_file = self.trial.state_file()
        if self.options.no_restart or self.interrupted or not state.get("steps"):
            return False
        if state.get("state") in ("done", "out of time", "failed"):
            return False
        self._note_crash(state, status)
        if status and not self._crashed:
            return False
        manifest.write(self.state_file, state)
        start = max(0.0, state.get("first_step_at", 0.0) - self.run_began)
        return time.time() + start + MARGIN_S < self.deadline

    def _restart_with_remedies(self) -> None:
        """Run the program in turns with and without what needs a restart."""
        state = (self.trial.states(self.previous) or [{}])[0]
        if self.options.no_restart or self.interrupted or state.get("state") != "done":
            return
        start = max(0.0, state["first_step_at"] - self.run_began)
        order = restarts.order(state, start, self.deadline - time.time())
        self.state_file = self.trial.state_file()
        manifest.write(self.state_file, state)
        for on in order:
            if self.interrupted or restarts.has_failed(state, on):
                continue
            self._again()
            self.restart = on
            status = self._run_once()
            if self.trial.state_file().is_file():
                self.state_file, state = (
                    self.trial.state_file(),
                    self.trial.states(self.previous)[0],
                )
            else:
                state["state"] = "no steps"
            why = self._crash() or self.trial.last_line() or f"exit status {status}"
            ended = restarts.is_complete(state, on, why)
            manifest.write(self.state_file, state)
            if not ended:
                return

    def _again(self) -> None:
        """Prepare another run, in a scratch copy of the working directory."""
        self.run_number += 1
        if self.scratch is None:
            self.scratch = Scratch()
            self.screen.say(self.scratch.make())
        self.previous = str(self.state_file)
        self.trial.begin_run()
        for name in ("stopped", "trial-active", "failed"):
            with contextlib.suppress(OSError):
                (self.status_folder / name).unlink()
        for file in self.status_folder.glob("status-*"):
            with contextlib.suppress(OSError):
                file.unlink()

    def _open(self) -> Tee:
        manifest.write(self.file, {**self.before, **self.report})
        return Tee(self.trial.log, self.screen.passed)

    def _environment(self) -> dict[str, str]:
        environment = super()._environment()
        settings = json.loads(environment[status_files.VARIABLE])
        settings["options"] = _plain(settings["options"])
        if self.restart is not None:
            settings["options"]["then_exit"] = True
        settings["try"] = {
            "deadline": self.deadline,
            "remedies": self.options.remedies,
            "only": self.options.remedies if self.options.only else [],
            "run": self.run_number,
            "previous": self.previous,
            "restart": self.restart,
            "awaits_findings": self._awaits_findings(),
            "allow": self.options.allow,
            "record": not self.options.no_record,
            "blocks": self.trial.blocks,
        }
        environment[status_files.VARIABLE] = json.dumps(settings)
        if self.scratch is not None:
            environment.update(scratch.QUIET)
        for name in self.restart or ():
            environment.update(remedies.facts(name)["environment"])
        return environment

    def _awaits_findings(self) -> bool:
        """Return whether the program waits until its first recording was linted."""
        asked = self.options.only or self.options.findings or self.options.no_record
        return self.lint is not None and not asked and not self.options.predictions

    def _lint_baseline(self) -> None:
        """Lint the first recording once it is written, and tell the program."""
        if self.lint is None or self._linter is not None or not self._has(BASELINE):
            return
        if self._has_writer():
            return
        self.trial.complete_recordings(self.facts)
        self._linter = linting.Linter(
            self.lint, self.folder / trial_folder.PLAIN, self.status_folder
        )

    def _pass_findings_on(self) -> None:
        linter = self._linter
        if linter is None or linter.passed or not linter.ended():
            return
        linter.passed = True
        predicted = linter.predictions()
        if self._awaits_findings():
            self.options.remedies = try_options.addressing(predicted)
        self.options.predictions = self.report["predictions"] = predicted
        names = json.dumps(self.options.remedies).encode()
        status_files.replace(self.status_folder / "findings", names)

    def _execute(self, tee: Tee) -> int:
        self.run_began = time.time()
        self._asked_to_end = 0.0
        if self.scratch is None:
            return super()._execute(tee)
        with self.scratch.entered():
            return super()._execute(tee)

    def _handle_signals(self, tee: Tee) -> None:
        super()._handle_signals(tee)
        for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT"):
            number = getattr(signal, name, None)
            handler = signal.getsignal(number) if number is not None else None
            if number is not None and callable(handler):
                signal.signal(number, self._noting(handler))

    def _noting(self, handler: Any) -> Any:
        def note(number: int, frame: Any) -> None:
            self.interrupted = True
            handler(number, frame)

        return note

    def _wait_for_writers(self) -> None:
        """Wait for the processes that write recordings, but not for long."""
        deadline = time.monotonic() + WRITERS_S
        while self._has_writer() and time.monotonic() < deadline:
            time.sleep(launch.POLL)

    def _show_progress(self) -> None:
        """Show where the trial is; end the program if it goes on for too long."""
        self._lint_baseline()
        self._pass_findings_on()
        late = time.time() - self.deadline
        if self._has("stopped"):  # it is ending
            late -= STOPPING_S
        if late > TERM_S and self._child is not None and not self._is_left_alone():
            self._end_child(late)
        for file in sorted(self.status_folder.glob("status-*"))[:1]:
            try:
                phase, blocks, _ = file.read_text().split("\t")
            except (OSError, ValueError):
                return
            if phase != self._progress and not self.options.quiet:
                self._progress = phase
                if not self.screen.moving:
                    self.screen.say(f"{_SENTENCES.get(phase, phase)}")
            if self.screen.moving and not self.options.quiet:
                self.screen.show(f"{_SENTENCES.get(phase, phase)}, block {blocks}")

    def _is_left_alone(self) -> bool:
        """Return whether the program may go on: its trial is over."""
        return bool(self.options.to_end) and bool(
            status_files_of(self.status_folder, "done")
        )

    def _end_child(self, late: float) -> None:
        child = self._child
        if child is None:
            return
        self.ended_by_us = True
        if not self._asked_to_end:
            self._asked_to_end = late
            self.screen.say("the time is over, and the program makes no steps: it ends")
            child.send_signal(signal.SIGTERM)
        elif late > self._asked_to_end + KILL_S:
            child.kill()

    def _conclude(self, status: int) -> int:
        states = self.trial.states(self.previous)
        self.trial.complete_recordings(self.facts)
        code = 0 if self.ended_by_us else self._code(status)
        result = states[0] if states else {}
        if self.lint is not None:
            predicted = self.options.predictions
            folders = (self.folder, predicted, self.lint, self.status_folder)
            linting.prove(result, *folders)
        self._note_crash(result, status)
        report = {
            **self.report,
            "state": result.get("state", "nothing was measured"),
            "ended_in": result.get("ended_in"),
            "ended": manifest.now(),
            "seconds": round(time.time() - self.began, 1),
            "exit": complete_run.exit_facts(
                status, stopped=self._has("stopped") or self.ended_by_us
            ),
            **{key: result.get(key) for key in _FROM_STATE},
            **outcomes.outcomes(
                result, self.options.predictions, self.options.remedies
            ),
            "blocks": result.get("blocks", []),
            "traceq_error": self._crash(),
        }
        manifest.write(self.file, report)
        measures = report["as_it_is"]["ms"] is not None
        if not measures:
            why = self._why_unmeasured(report)
            self.screen.say(f"nothing was measured: {why}")
        linted, fixes = self._linter is not None, self.lint is not None
        try_words.say(self.screen, report, self.shown, linted=linted, fixes=fixes)
        if self.options.json:
            sys.stdout.write(json.dumps(report, indent=1, ensure_ascii=False) + "\n")
        tried = measures or any(remedy["n"] for remedy in report["remedies"])
        if not tried and not self._has("failed"):
            return code or options.CANNOT_WORK
        return code

    def _note_crash(self, state: dict[str, Any], status: int) -> None:
        """Note a remedy that was on when the program failed."""
        ended = self._has("stopped") or self.ended_by_us or self.interrupted
        if not status or ended or not state:
            return
        active: list[str] = state.get("on_at_end") or []
        if not active:  # it was killed
            with contextlib.suppress(OSError):
                text = (self.status_folder / "trial-active").read_text()
                active = text.split(",")
        for name in filter(None, active):
            self._crashed = True
            facts = state.get("remedies", {}).get(name)
            if facts is not None and name != remedies.CONTROL:
                last = self.trial.last_line()
                facts["error"] = last or f"the program ended with {status}"

    def _crash(self) -> str | None:
        file = self.status_folder / "failed"
        return file.read_text() if file.exists() else None

    def _why_unmeasured(self, report: dict[str, Any]) -> str:
        if report.get("seen"):
            steps = f"{report['seen']} steps, too few to measure anything"
            return f"{report['state']} after {steps}"
        self.facts["exit"] = report["exit"]
        try:
            return self._why_nothing()
        except (OSError, KeyError):
            return "no steps were seen"


_FROM_STATE = (
    *("steps", "statistic", "versions", "devices", "cores", "first_step_time"),
    *("recordings", "notes", "phases", "block_steps", "seen"),
)
_SENTENCES = {
    "rounds": "measuring remedies",
    "combination": "measuring them together",
    "proof": "recording steps with each remedy",
    "done": "measured",
}


def status_files_of(folder: Path, beginning: str) -> list[Path]:
    """Return the status files whose text starts with ``beginning``."""
    result = []
    for file in folder.glob("status-*"):
        with contextlib.suppress(OSError):
            if file.read_text().startswith(beginning):
                result.append(file)
    return result


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a recording, without those of the trial."""
    hidden = ("predictions", "remedies", "findings", "only", "json")
    return {key: value for key, value in values.items() if key not in hidden}
