"""Launch of a sweep: its folder, its runs in order, and the remaining time."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import statistics
import tempfile
from pathlib import Path
from typing import Any

from ..shared import manifest, redact
from . import options, run_facts, run_folder, sweep_options, sweep_plan, sweep_row
from .screen import Screen
from .sweep_plan import Run
from .sweep_run import Interruption, SweepRun

FORMAT = 1
FILE = "sweep.json"
INTERRUPTED = 130
_MINUTE = 60.0
_ENDED_WELL = (sweep_row.OK, sweep_row.NOT_MEASURED)
_KEPT = (
    *("grid", "repeat", "seed", "number", "tokens", "flops", "peak_tflops"),
    *("timeout", "words", "label"),
)


def main(words: list[str], prog: str) -> int:
    """Run the command line and return the exit status."""
    chosen = sweep_options.parse(words, prog)
    screen = Screen(quiet=chosen.quiet)
    try:
        folder = _folder(chosen)
        return Sweep(chosen, folder, screen, prog).run()
    except (run_folder.TakenError, ValueError) as error:
        screen.say(str(error))
    except OSError as error:
        why = f"{error.filename or chosen.out}: {error.strerror or error}"
        screen.say(f"the sweep cannot go on: {why}")
    return options.CANNOT_WORK


def _folder(chosen: Any) -> Path:
    """Return the sweep's folder: a new one, or the one to continue."""
    if chosen.resume is not None:
        known = Path(chosen.resume)
        _take_over(chosen, manifest.read(known / FILE), known)
        return known
    if chosen.name is not None:
        known = Path(chosen.out, chosen.name)
        before = manifest.read(known / FILE)
        if before:
            _compare(chosen, before, known)
            return known
    return run_folder.create(Path(chosen.out), chosen.name, chosen.command, None)


def _take_over(chosen: Any, before: dict[str, Any], folder: Path) -> None:
    """Set the options of a sweep that is continued without its command line."""
    command = before.get("command")
    if not command:
        msg = f"{folder} has no sweep to continue: there is no {FILE} in it"
        raise ValueError(msg)
    if any(redact.REDACTED in word for word in command):
        msg = (
            f"the command of {folder} had a secret, which is not stored: repeat the"
            f" whole command with --out {folder.parent} --name {folder.name}"
        )
        raise ValueError(msg)
    if chosen.grid or chosen.command != ["resumed"]:
        msg = "--resume takes grid and command from the folder: leave them out"
        raise ValueError(msg)
    command = [os.path.expanduser(word) for word in command]
    recording = options.chosen(before["words"], command)
    for key, value in vars(recording).items():
        setattr(chosen, key, value)
    for key in (*_KEPT, *sweep_options.SAME):
        setattr(chosen, key, before[key])
    chosen.label = [tuple(pair) for pair in before["label"]]
    sweep_options.check(chosen)


def _compare(chosen: Any, before: dict[str, Any], folder: Path) -> None:
    """Refuse to continue a sweep with runs that would not be comparable."""
    chosen.seed = before["seed"]
    stored = _stored(chosen)
    for key in ("command", *sweep_options.SAME):
        if before.get(key) != stored[key]:
            msg = (
                f"{folder} is a sweep with another {key.replace('_', ' ')}, so it"
                " cannot be continued: choose another --name"
            )
            raise ValueError(msg)


def _stored(chosen: Any) -> dict[str, Any]:
    """Return the options of a sweep as its folder has them."""
    retained = {key: getattr(chosen, key) for key in (*_KEPT, *sweep_options.SAME)}
    command = redact.arguments(chosen.command)
    if not chosen.keep_paths:
        cwd, home = str(Path.cwd()), str(Path.home())
        command = [redact.paths(word, cwd=cwd, home=home) for word in command]
    return {"command": command, **retained}


class Sweep:
    """All runs of a sweep."""

    def __init__(self, chosen: Any, folder: Path, screen: Screen, prog: str) -> None:
        self.options = chosen
        self.folder = folder
        self.screen = screen
        self.prog = prog
        self.runs = sweep_plan.runs(chosen.grid, chosen.repeat, chosen.seed)
        self.interruption = Interruption()
        self._number = 0  # of the run that runs
        self._left = ""  # of the time, when it began

    def run(self) -> int:
        """Run what has not run yet, and say what came of it."""
        left = [run for run in self.runs if not sweep_row.read(self.folder / run.name)]
        done = len(self.runs) - len(left)
        self._write("running")
        if done:
            self.screen.say(f"{done} of {len(self.runs)} runs have ended before")
        for run in left:
            done += 1
            self._number = done
            one = self._one(run)
            if self.interruption.came or not one:
                return self._interrupted(done - 1)
            if not self.options.quiet:
                text = sweep_row.text(one)
                self.screen.say(f"{self._place(run)}: {text}{self._remaining()}")
        return self._conclude()

    def _one(self, run: Run) -> dict[str, Any]:
        """Run one configuration; return its row, none if it was interrupted."""
        self._left = self._remaining()
        place = self.folder / run.name
        if place.is_dir():  # it was interrupted
            shutil.rmtree(place)
        place.mkdir()
        chosen = argparse.Namespace(**vars(self.options))
        chosen.command = [
            sweep_plan.filled(word, run.labels) for word in self.options.command
        ]
        chosen.label = [*self.options.label, *run.labels.items()]
        recorded = argparse.Namespace(
            **{key: one for key, one in vars(chosen).items() if key not in _HIDDEN}
        )
        recorded.number, recorded.timeout = chosen.number, chosen.timeout
        status_folder = Path(tempfile.mkdtemp(prefix="traceq-"))
        try:
            launch = SweepRun(
                recorded,
                place,
                status_folder,
                self.screen,
                self.interruption,
                lambda seconds: self._show(run, seconds),
            )
            launch.run()
        finally:
            shutil.rmtree(status_folder, ignore_errors=True)
        if self.interruption.came:
            return {}
        one = sweep_row.row(
            run,
            chosen,
            launch.facts,
            place,
            launch.printed.values,
            timed_out=launch.timed_out,
        )
        manifest.write(place / sweep_row.FILE, one)
        return one

    def _show(self, run: Run, seconds: float) -> None:
        if not self.options.quiet:
            self.screen.show(f"{self._place(run)}, {seconds:.0f} s{self._left}")

    def _place(self, run: Run) -> str:
        labels = " ".join(f"{key}={value}" for key, value in run.labels.items())
        again = f" again ({run.repeat})" if run.repeat > 1 else ""
        return f"run {self._number} of {len(self.runs)}, {labels}{again}"

    def _remaining(self) -> str:
        """Return how long the rest takes, by the runs so far."""
        rows = [sweep_row.read(self.folder / run.name) for run in self.runs]
        seconds = [row["seconds"] for row in rows if row and row["seconds"]]
        left = len(self.runs) - len([row for row in rows if row])
        if not seconds or not left:
            return ""
        return f", about {_duration(left * statistics.fmean(seconds))} left"

    def _write(self, state: str) -> None:
        before = manifest.read(self.folder / FILE)
        manifest.write(
            self.folder / FILE,
            {
                "format": FORMAT,
                "tool": "traceq sweep",
                "state": state,
                "started": before.get("started", manifest.now()),
                "ended": None if state == "running" else manifest.now(),
                **_stored(self.options),
                "order": [run.name for run in self.runs],
                "git": before.get("git")
                or run_facts.git(run_facts.program_folder(self.options.command)),
            },
        )

    def _interrupted(self, done: int) -> int:
        self._write("interrupted")
        self.screen.say(
            f"interrupted after {done} of {len(self.runs)} runs; continue with:"
        )
        self.screen.say(f"  {self.prog} --resume {shlex.quote(str(self.folder))}")
        return INTERRUPTED

    def _conclude(self) -> int:
        self._write("finished")
        rows = [sweep_row.read(self.folder / run.name) for run in self.runs]
        for line in sweep_row.table(rows):
            self.screen.line(line)
        for pattern in self._unmatched(rows):
            self.screen.say(f"--number {pattern} matched nothing in any run's output")
        measured = sum(row["status"] == sweep_row.OK for row in rows)
        self.screen.say(
            f"{measured} of {len(rows)} runs measured, in {self.folder}; next:"
        )
        self.screen.say(f"  traceq sweep report {shlex.quote(str(self.folder))}")
        return 0 if measured else options.CANNOT_WORK

    def _unmatched(self, rows: list[dict[str, Any]]) -> list[str]:
        """Return the patterns of numbers that no run printed, if one ended well."""
        ended = [row for row in rows if row["status"] in _ENDED_WELL]
        return [
            pattern
            for pattern in self.options.number
            if ended
            and not any(
                sweep_options.number_name(pattern) in entry["numbers"]
                for entry in ended
            )
        ]


_HIDDEN = (
    *("grid", "repeat", "seed", "tokens", "flops", "peak_tflops", "words"),
    *("resume", "number", "timeout", "times_only"),
)


def _duration(seconds: float) -> str:
    if seconds < _MINUTE:
        return f"{seconds:.0f} s"
    return f"{seconds / _MINUTE:.0f} min"
