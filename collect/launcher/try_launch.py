"""Launch of a trial: the program with remedies switched on and off inside it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from .. import remedies
from ..shared import additions, manifest, status_files
from . import (
    complete_run,
    launch,
    options,
    outcomes,
    restarts,
    run_facts,
    run_folder,
    scratch,
    slowest_rank,
    try_options,
)
from .scratch import Scratch
from .screen import Screen
from .tee import Tee

VERSION = 1  # of try.json, as in docs/schemas
TERM_S, KILL_S = 8.0, 8.0  # after the deadline: to end the program, then to kill it
STOPPING_S = 15.0  # for the program to end once it was stopped
WRITERS_S = 15.0  # for the recordings to be written
MARGIN_S = 6.0  # that must be left for blocks if the program runs again
LINT_S = 120.0  # for the findings of a recording
BASELINE = "baseline"  # the status file: the first recording was made
BLOCKS = "blocks"


def main(words: list[str], prog: str, lint: list[str] | None = None) -> int:
    """Run the command line and return the exit status.

    ``lint`` is a command that writes the findings of a run folder as JSON: with it,
    what it finds is tried, and has to be gone with the remedy.
    """
    began = time.time()
    chosen = try_options.parse(words, prog)
    screen = Screen(quiet=chosen.quiet)
    try:
        place = _place(chosen)
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


def _place(chosen: Any) -> Path:
    """Return the trial's folder: a new one, or the one of this name to continue."""
    if chosen.name is not None:
        known = Path(chosen.out, chosen.name)
        if (known / "try.json").is_file():
            return known
    return run_folder.create(Path(chosen.out), chosen.name, chosen.command, None)


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
        self._linter: Linter | None = None
        self.scratch: Scratch | None = None
        self.run_number = len(list(place.glob(f"{BLOCKS}*"))) + 1
        self.run_began = began
        self.previous = ""
        self.restart: list[str] | None = None  # on since the start of this run
        self.state_file = place / "none"
        self.interrupted = False
        self._crashed = False
        self.blocks = _free(place, BLOCKS)
        if self.before:
            files = sorted(place.glob(f"{BLOCKS}*/rank-0.json"), key=os.path.getmtime)
            self.previous = str(files[-1]) if files else ""
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
            "git": _git(chosen.command),
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
        state = (self._states() or [{}])[0]
        self.state_file = self._state_file()
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
        state = (self._states() or [{}])[0]
        if self.options.no_restart or self.interrupted or state.get("state") != "done":
            return
        start = max(0.0, state["first_step_at"] - self.run_began)
        order = restarts.order(state, start, self.deadline - time.time())
        self.state_file = self._state_file()
        manifest.write(self.state_file, state)
        for on in order:
            if self.interrupted or restarts.has_failed(state, on):
                continue
            self._again()
            self.restart = on
            status = self._run_once()
            if self._state_file().is_file():
                self.state_file, state = self._state_file(), self._states()[0]
            else:
                state["state"] = "no steps"
            why = self._crash() or self._last_line() or f"exit status {status}"
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
        self.blocks = _free(self.folder, BLOCKS)
        for name in ("stopped", "trial-active", "failed"):
            with contextlib.suppress(OSError):
                (self.status_folder / name).unlink()
        for file in self.status_folder.glob("status-*"):
            with contextlib.suppress(OSError):
                file.unlink()

    def _open(self) -> Tee:
        manifest.write(self.file, {**self.before, **self.report})
        return Tee(
            self.folder / f"{self.blocks.replace(BLOCKS, 'stderr')}.log",
            self.screen.passed,
        )

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
            "blocks": self.blocks,
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
        self._complete_recordings()
        self._linter = Linter(self.lint, self.folder / "plain", self.status_folder)

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
        states = self._states()
        self._complete_recordings()
        code = 0 if self.ended_by_us else self._code(status)
        found = states[0] if states else {}
        self._prove(found)
        self._note_crash(found, status)
        report = {
            **self.report,
            "state": found.get("state", "nothing was measured"),
            "ended_in": found.get("ended_in"),
            "ended": manifest.now(),
            "seconds": round(time.time() - self.began, 1),
            "exit": complete_run.exit_facts(
                status, stopped=self._has("stopped") or self.ended_by_us
            ),
            **{key: found.get(key) for key in _FROM_STATE},
            **outcomes.outcomes(found, self.options.predictions, self.options.remedies),
            "blocks": found.get("blocks", []),
            "traceq_error": self._crash(),
        }
        manifest.write(self.file, report)
        self._say(report)
        if self.options.json:
            sys.stdout.write(json.dumps(report, indent=1, ensure_ascii=False) + "\n")
        measured = any(one["n"] for one in report["remedies"])
        tried = report["as_it_is"]["ms"] is not None
        if not measured and not tried and not self._has("failed"):
            return code or options.CANNOT_WORK
        return code

    def _state_file(self) -> Path:
        files = sorted((self.folder / self.blocks).glob("rank-*.json"))
        return files[0] if files else self.folder / self.blocks / "none"

    def _prove(self, state: dict[str, Any]) -> None:
        """Lint the recordings with remedies: what they address has to be gone."""
        if self.lint is None:
            return
        for name, facts in state.get("remedies", {}).items():
            folder = self.folder / name
            rules = [
                rule
                for rule in remedies.facts(name)["rules"]
                if rule in self.options.predictions
            ]
            if not rules or not (folder / "run.json").is_file():
                continue
            linter = Linter(self.lint, folder, self.status_folder)
            linter.wait(LINT_S)
            left = linter.predictions() if linter.read() else None
            if left is not None:
                stay = [rule for rule in rules if rule in left]
                proof = facts.get("proof") or {"applied": True, "text": ""}
                gone = len(stay) < len(rules)
                facts["proof"] = {**proof, "rules": rules, "stay": stay}
                facts["proof"]["applied"] = bool(proof["applied"]) and gone

    def _states(self) -> list[dict[str, Any]]:
        files = sorted((self.folder / self.blocks).glob("rank-*.json"))
        if not files and self.previous:  # a restarted program made no steps
            files = [Path(self.previous)]
        states = [manifest.read(file) for file in files]
        states = [state for state in states if state]
        order = sorted(states, key=lambda state: -len(state.get("blocks", [])))
        return slowest_rank.merged(order)

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
                facts["error"] = self._last_line() or f"the program ended with {status}"

    def _last_line(self) -> str:
        log = self.folder / f"{self.blocks.replace(BLOCKS, 'stderr')}.log"
        try:
            lines = log.read_text(errors="replace").strip().splitlines()
        except OSError:
            return ""
        return lines[-1].strip()[:300] if lines else ""

    def _crash(self) -> str | None:
        file = self.status_folder / "failed"
        return file.read_text() if file.exists() else None

    def _complete_recordings(self) -> None:
        """Write the run file of each recording, labelled with its remedy."""
        for folder in sorted(self.folder.iterdir()):
            files = sorted(folder.glob("rank-*.json")) if folder.is_dir() else []
            if not files or folder.name.startswith(BLOCKS):
                continue
            ranks = [complete_run.complete_manifest(file) for file in files]
            ranks = [rank for rank in ranks if rank.get("name")]
            for rank in ranks:
                complete_run.complete_if_killed(rank)
                complete_run.complete_if_not_written(rank, folder)
                additions.remove(folder, rank["name"])
            labels = {} if folder.name == "plain" else {"remedy": folder.name}
            facts = {
                **self.facts,
                "name": folder.name,
                "labels": {**self.facts["labels"], **labels},
                "state": "finished",
                "ended": manifest.now(),
                "world_size": max((rank["world_size"] for rank in ranks), default=None),
                "ranks": ranks,
            }
            manifest.write(folder / "run.json", facts)

    def _say(self, report: dict[str, Any]) -> None:
        crash = report["traceq_error"]
        if crash:
            self.screen.say(f"traceq crashed: {crash}")
        lines = outcomes.table(report)
        if not lines:
            self.screen.say(f"nothing was measured: {self._why_unmeasured(report)}")
        for line in lines:
            self.screen.line(line)
        if self._linter is not None and not report["remedies"]:
            self.screen.say(_NOTHING_TO_TRY)
        for words in outcomes.left_out(report):
            self.screen.say(words)
        for note in report.get("notes") or []:
            self.screen.say(note)
        if report["state"] == "out of time":
            self.screen.say(f"--minutes {self.options.minutes:g} were over")
        if self.lint is not None and (codes := outcomes.rules_to_fix(report)):
            run = self.shown / "plain"
            self.screen.line(f"Next: traceq fix {run} --only {','.join(codes)} --diff")
        self.screen.say(f"see {self.shown / self.file.name}")

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


_NOTHING_TO_TRY = (
    "no finding of the program has a remedy; --only tries others: see --help"
)


class Linter:
    """A process that lints a run folder and writes what it finds to a file."""

    def __init__(self, command: list[str], folder: Path, place: Path) -> None:
        self.file = place / f"lint-{folder.name}.json"
        self.passed = False
        with self.file.open("wb") as output:
            self._process = subprocess.Popen(
                [*command, str(folder)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.DEVNULL,
            )

    def ended(self) -> bool:
        """Return whether it has ended."""
        return self._process.poll() is not None

    def wait(self, seconds: float) -> None:
        """Wait for its end; kill it after ``seconds``."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def read(self) -> bool:
        """Return whether it has written a report."""
        try:
            try_options.predictions(str(self.file))
        except (OSError, ValueError, KeyError, AttributeError):
            return False
        return True

    def predictions(self) -> dict[str, dict[str, Any]]:
        """Return what it predicts; nothing if it failed."""
        return try_options.predictions(str(self.file)) if self.read() else {}


def status_files_of(folder: Path, beginning: str) -> list[Path]:
    """Return the status files whose text starts with ``beginning``."""
    found = []
    for file in folder.glob("status-*"):
        with contextlib.suppress(OSError):
            if file.read_text().startswith(beginning):
                found.append(file)
    return found


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a recording, without those of the trial."""
    hidden = ("predictions", "remedies", "findings", "only", "json")
    return {key: value for key, value in values.items() if key not in hidden}


def _free(place: Path, name: str) -> str:
    """Return a name of a folder that is not there yet."""
    number = 1
    while (place / (name if number == 1 else f"{name}-{number}")).exists():
        number += 1
    return name if number == 1 else f"{name}-{number}"


def _git(command: list[str]) -> dict[str, Any] | None:
    """Return the commit of the program, and its dirty files."""
    place = run_facts.program_folder(command)
    known = run_facts.git(place)
    if known is None:
        return None
    ask = ["git", "--no-optional-locks", "-C", str(place), "status", "--porcelain"]
    try:
        done = subprocess.run(
            [*ask, "-uno"], capture_output=True, timeout=10, check=False, text=True
        )
        files = [line[3:] for line in done.stdout.splitlines()]
    except (OSError, subprocess.SubprocessError):
        files = []
    return {**known, "dirty_files": files[:100]}
