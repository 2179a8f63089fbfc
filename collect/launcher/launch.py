"""Launch of the user's command with our agent in every Python process."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from ..shared import manifest, own_numbers, rank_set, status_files
from . import after, bound, last_words, options, overhead, run_facts, run_folder
from .complete_run import (
    complete_if_killed,
    complete_if_not_written,
    complete_manifest,
    exit_facts,
    folder_bytes,
    readable_bytes,
    remove_partial_files,
)
from .recorded_parts import (
    copied_sources,
    different_windows,
    has_recording,
    memory_errors,
    missing_parts,
    recorded_parts,
)
from .screen import Screen
from .tee import Tee

BOOTSTRAP = Path(__file__).resolve().parent.parent / "bootstrap"
POLL = 0.1
LINGER = 1.0  # seconds for processes that outlive the command to write to stderr
AGAIN = 1.0  # seconds after which a second interrupt is passed on
WRITING_S = 600.0  # seconds for the processes that write the traces
NOT_FOUND = 127
NOT_RUN = 126
_NO_GPU_WORK = (
    "the trace has no GPU work, so it says little: record again, with --no-stack or"
    " --steps-by another kind of step"
)
_PASSED_ON = ("SIGTERM", "SIGUSR1", "SIGUSR2")
_LEFT_TO_THE_PROGRAM = ("SIGINT", "SIGHUP", "SIGQUIT")


def main(words: list[str], prog: str) -> int:
    """Run the command line and return the exit status."""
    chosen = options.parse(words, prog)
    screen = Screen(quiet=chosen.quiet)
    index = chosen.node
    if index is None:
        index = run_folder.launch_index(chosen.command, os.environ)
    try:
        place = run_folder.create(Path(chosen.out), chosen.name, chosen.command, index)
        status_folder = Path(tempfile.mkdtemp(prefix="traceq-"))
        try:
            launch = Launch(chosen, place, index, status_folder, screen)
            code = launch.run()
            if launch.has_something and not index:
                after.look(chosen, place, screen)
            return code
        finally:  # processes that outlive the command may still write there
            shutil.rmtree(status_folder, ignore_errors=True)
    except run_folder.TakenError as error:
        screen.say(str(error))
    except OSError as error:  # before the start: what comes later is caught there
        why = f"{error.filename or chosen.out}: {error.strerror or error}"
        screen.say(f"nothing was written, and the program was not started: {why}")
    return options.CANNOT_WORK


class Launch:
    """One run of the user's command."""

    def __init__(
        self,
        chosen: Any,
        place: Path,
        index: int | None,
        status_folder: Path,
        screen: Screen,
    ) -> None:
        self.options = chosen
        self.folder = place
        self.index = index
        self.status_folder = status_folder
        self.screen = screen
        self.file = place / run_folder.run_file(index)
        self.facts = run_facts.at_start(chosen, place.name, index)
        self._child: subprocess.Popen[bytes] | None = None

    def run(self) -> int:
        """Run the command to its end, write the run file, report what was recorded."""
        tee = self._open()
        began = time.monotonic()
        try:
            status = self._execute(tee)
            self._add_logs(tee)
        finally:
            tee.close()
        try:
            self._finish(status, time.monotonic() - began, tee)
            self._measure_overhead()
            return self._report(status)
        except OSError as error:  # the disk is full, or the folder was deleted
            self.screen.say(self._incomplete(error.strerror or str(error)))
            return self._code(status) or options.CANNOT_WORK
        except Exception as error:  # noqa: BLE001 - the program's status must not change
            self.screen.say(self._incomplete(f"{type(error).__name__}: {error}"))
            return self._code(status)

    @property
    def has_something(self) -> bool:
        """True if a rank of this launcher was traced, or ran out of memory."""
        return any(rank["trace"] or rank.get("oom") for rank in self.facts["ranks"])

    def _open(self) -> Tee:
        """Begin the run file and the log, or leave nothing behind."""
        log = self.folder / run_folder.log_file(self.index)
        self.file.touch(exist_ok=False)
        try:
            manifest.write(self.file, self.facts)
            return Tee(log, self.screen.passed)
        except OSError:
            for file in (self.file, log):
                with contextlib.suppress(OSError):
                    file.unlink()
            with contextlib.suppress(OSError):
                self.folder.rmdir()
            raise

    def _add_logs(self, tee: Tee) -> None:
        """Add what the ranks kept for the log without showing it."""
        for file in sorted(self.status_folder.glob("log-*")):
            with contextlib.suppress(OSError):
                tee.add(file.read_bytes())

    def _incomplete(self, why: str) -> str:
        """Return the remains of a run whose run file cannot be written, in words."""
        retained = [
            file.name
            for kind in ("trace.json.gz", "memory.pickle.gz")
            for file in sorted(self.folder.glob(f"rank-*.{kind}"))
        ]
        if not retained:
            return f"nothing was written: {why}"
        there = f"{self.folder} has {', '.join(retained)}"
        return f"{self.file.name} cannot be completed: {why}; {there}"

    def _execute(self, tee: Tee) -> int:
        try:
            self._child = subprocess.Popen(
                self.options.command,
                env=self._environment(),
                stdout=self._stdout(tee),
                stderr=tee.end,
                preexec_fn=bound.to_parent(),  # noqa: PLW1509 - it calls one function
            )
        except OSError as error:
            os.close(tee.end)
            self.screen.say(f"cannot run {self.options.command[0]}: {error.strerror}")
            return NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_RUN
        tee.started()
        self._handle_signals(tee)
        return self._attend(self._child, tee)

    def _stdout(self, tee: Tee) -> int | None:
        """Return where the program's standard output goes; None is where ours goes."""
        del tee
        return None

    def _attend(self, child: subprocess.Popen[bytes], tee: Tee) -> int:
        """Pass stderr on and show progress until the program has ended."""
        more = True
        while child.poll() is None:
            if more:
                more = tee.pump(POLL)
            else:
                time.sleep(POLL)
            self._show_progress()
        deadline = time.monotonic() + LINGER
        while more and time.monotonic() < deadline:
            more = tee.pump(POLL)
        self._wait_for_writers()
        return child.returncode

    def _wait_for_writers(self) -> None:
        """Wait for the processes that write what the ranks have recorded."""
        deadline = time.monotonic() + WRITING_S
        while self._has_writer() and time.monotonic() < deadline:
            self.screen.progress("writing", 0, 0)
            time.sleep(POLL)

    def _has_writer(self) -> bool:
        for file in self.status_folder.glob("writer-*"):
            with contextlib.suppress(OSError, ValueError):
                if status_files.runs(int(file.read_text())):
                    return True
        return False

    def _handle_signals(self, tee: Tee) -> None:
        def pass_on(number: int, _frame: Any) -> None:
            if self._child is not None:
                self._child.send_signal(number)

        arrived: list[float] = []

        def leave(number: int, frame: Any) -> None:
            # The terminal sends these to the program too, which decides what to do.
            # Without one, nothing tells whether they came to this process alone: a
            # second one is passed on, as a first one twice would break its handler.
            now = time.monotonic()
            if arrived and now - arrived[0] > AGAIN and not bound.at_terminal():
                pass_on(number, frame)
            arrived.append(now)

        for names, handler in ((_PASSED_ON, pass_on), (_LEFT_TO_THE_PROGRAM, leave)):
            for name in names:
                number = getattr(signal, name, None)
                if number and signal.getsignal(number) is not signal.SIG_IGN:
                    signal.signal(number, handler)
        if hasattr(signal, "SIGWINCH"):
            signal.signal(signal.SIGWINCH, lambda _number, _frame: tee.resize())

    def _environment(self) -> dict[str, str]:
        inherited = os.environ.get("PYTHONPATH")
        paths = [str(BOOTSTRAP), *([inherited] if inherited else [])]
        settings = {
            "folder": str(self.folder.resolve()),
            "status_folder": str(self.status_folder),
            "launch": self.index or 0,
            "options": run_facts.shown_options(self.options),
        }
        return {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
            status_files.VARIABLE: json.dumps(settings),
        }

    def _show_progress(self) -> None:
        result = sorted(self.status_folder.glob("status-*"))
        if not result:
            return
        try:
            phase, done, total = result[0].read_text().split("\t")
            if phase == "done" and self.options.then_exit:
                return
            self.screen.progress(phase, int(done), int(total))
        except (OSError, ValueError):
            return

    def _finish(self, status: int, seconds: float, tee: Tee) -> None:
        ranks = [
            rank
            for file in sorted(self.folder.glob("rank-*.json"))
            for rank in [complete_manifest(file)]
            if rank.get("launch") == (self.index or 0)
        ]
        ranks.sort(key=lambda rank: (rank["rank"], rank["name"]))
        for rank in ranks:
            complete_if_killed(rank)
            complete_if_not_written(rank, self.folder)
        self.facts.update(
            state="finished",
            ended=manifest.now(),
            seconds=round(seconds, 3),
            exit=exit_facts(status, stopped=self._has("stopped")),
            log={
                "file": run_folder.log_file(self.index),
                "bytes": tee.kept,
                "truncated": tee.truncated,
            },
            world_size=self._world_size(ranks),
            ranks=ranks,
        )
        self.facts["missing"] = self._missing(ranks)
        self.facts["numbers"] = {
            name: own_numbers.summary(values)
            for name, values in own_numbers.read(self.folder).items()
        }
        manifest.write(self.file, self.facts)
        remove_partial_files(self.folder, [rank["name"] for rank in ranks])

    def _world_size(self, ranks: list[dict[str, Any]]) -> int | None:
        """Return the job's number of ranks, as its processes say; None without any."""
        stated = [rank["world_size"] for rank in ranks]
        for file in self.status_folder.glob("left-out-*"):
            with contextlib.suppress(OSError, ValueError):
                stated.append(int(file.read_text()))
        return max(stated, default=None)

    def _missing(self, ranks: list[dict[str, Any]]) -> list[dict[str, str]]:
        """Return the parts that are missing from the whole run, with the reasons."""
        chosen, size = self.options.ranks, self.facts["world_size"]
        if size is None:
            return [{"what": "ranks", "why": self._why_nothing()}]
        if rank_set.has_beyond(chosen, size):
            why = f"the job has {size} ranks, 0 to {size - 1}"
            return [{"what": f"some of --ranks {chosen}", "why": why}]
        if not ranks:
            why = f"none of --ranks {chosen} runs here"
            return [{"what": "ranks", "why": why}]
        return []

    def _measure_overhead(self) -> None:
        """Measure what recording costs, or note why not; no error of that is ours."""
        if self.options.no_overhead or not self.facts["ranks"]:
            return
        result = None
        rank = overhead.measured_rank(self.facts["ranks"])
        python = overhead.interpreter(rank, self.status_folder)
        why = overhead.why_not(self.facts["exit"], rank, python)
        if not why:
            self.screen.progress("overhead", 0, 0)
            file = self.status_folder / "overhead.json"
            try:
                # Signals that are passed on end it.
                self._child = overhead.start(python, rank, file)
                why = overhead.wait(self._child)
            except OSError as error:
                why = f"{python} could not be started: {error.strerror}"
            result = manifest.read(file) or None
        if result is None:
            why = why or "the measurement wrote nothing"
            self.facts["missing"].append({"what": "recorder_overhead", "why": why})
        self.facts["recorder_overhead"] = result
        manifest.write(self.file, self.facts)

    def _why_no_step(self) -> str:
        by = self.options.steps_by
        if by == "time":
            return (
                f"the program ended within {self.options.warmup} s of importing torch,"
                " during the warm-up: shorten it with --warmup"
            )
        if by != "auto":
            return f"no steps found with --steps-by {by}: try another"
        return (
            "no steps found: no optimizer.step() ran, and no module was called often"
            " enough; choose what a step is with --steps-by"
        )

    def _why_nothing(self) -> str:
        """Return the reason why no process recorded anything."""
        if self._child is None:
            return "the program did not start"
        failed = self.status_folder / "failed"
        if failed.exists():
            return f"traceq crashed: {failed.read_text()}"
        if self._has(status_files.UNSEEN):
            return (
                "the program replaced itself (os.exec…) by one without PYTHONPATH or"
                f" {status_files.VARIABLE}, which load the recorder; let it keep them"
            )
        log = self.folder / run_folder.log_file(self.index)
        return last_words.why_failed(self.facts["exit"], log) or self._why_unseen()

    def _why_unseen(self) -> str:
        """Return the reason why a program that succeeded was not recorded."""
        if self._has("torch"):
            return self._why_no_step()
        not_loaded = run_facts.why_not_loaded(self.options.command)
        if not_loaded or not self._has("python"):
            return not_loaded or run_facts.why_no_python()
        return (
            "the program never imported torch; processes started with -I, -E, -S or"
            " a cleared environment are not seen"
        )

    def _report(self, status: int) -> int:
        code = self._code(status)
        ranks = self.facts["ranks"]
        if not any(map(has_recording, ranks)):
            known = [entry["why"] for entry in self.facts["missing"]]
            why = "; ".join(missing_parts(ranks) or known)
            self.screen.say(f"nothing was recorded: {why}")
            # A crash of ours is no reason to call the program's run a failure, and
            # neither are chosen ranks that another launcher of the job starts.
            fine = self._has("failed") or self._records_elsewhere()
            return code if fine else code or options.CANNOT_WORK
        for text in missing_parts(ranks):
            self.screen.say(text)
        if all(rank["state"] == "incomplete" for rank in ranks):
            self.screen.say(_NO_GPU_WORK)
            code = code or options.CANNOT_WORK
        if any(manifest.OTHER_THREADS in rank["notes"] for rank in ranks):
            self.screen.say(manifest.OTHER_THREADS)
        for text in [
            *different_windows(ranks),
            *recorded_parts(ranks[0]),
            *memory_errors(ranks),
        ]:
            self.screen.say(text)
        copied = {
            source["file"] for rank in ranks for source in rank.get("sources", [])
        }
        if copied:
            self.screen.say(copied_sources(len(copied)))
        size = folder_bytes(self.folder)
        done = f"recorded to {self.folder} ({readable_bytes(size)})"
        if self.options.lint:
            self.screen.say(done)
            return code
        self.screen.say(f"{done}; next:")
        folder = shlex.quote(str(self.folder))
        self.screen.say(f"  traceq lint {folder}")
        if sum(rank["trace"] is not None for rank in ranks) > 1:
            self.screen.say(f"  traceq ranks {folder}")
        return code

    def _records_elsewhere(self) -> bool:
        """Return whether ranks of other launchers of this job were to record."""
        size = self.facts["world_size"]
        left_out = any(self.status_folder.glob("left-out-*"))
        return left_out and bool(rank_set.within(self.options.ranks, size))

    def _code(self, status: int) -> int:
        """Return the exit status that a shell would see."""
        if self._has("stopped"):
            return 0
        return 128 - status if status < 0 else status

    def _has(self, name: str) -> bool:
        return (self.status_folder / name).exists()
