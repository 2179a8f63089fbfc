"""The recording of one process: counts its steps and follows the schedule.

Nothing here may harm the program: every entry point is guarded, and after the first
error of ours all hooks are removed and the manifest states what happened.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any, Callable

import torch

from ..shared import manifest, rank_set, status_files
from . import (
    background,
    compiled_graphs,
    forking,
    meeting,
    process_facts,
    replacing,
    steps,
    torch_state,
)
from .actions import Actions
from .captures import Captures
from .compile_log import CompileLog
from .compiled_graphs import CompiledGraphs
from .other_profilers import OtherProfilers
from .out_of_memory import OutOfMemory
from .rank_file import RankFile
from .schedule import (
    ALIGNING,
    COMPILATION,
    DONE,
    FIRST_STEPS,
    MEETING,
    MEMORY,
    OTHER_PROFILER,
    PROBING,
    TIMING,
    TRACING,
    WAITING,
    Plan,
    Schedule,
)
from .slow_steps import SlowSteps
from .steps_by_time import TimeSteps, WindowIfNoSteps

EXIT_S = 60.0  # how long --then-exit waits for the slowest rank, ...
LEAVE_S = 5.0  # ... and for those that do not record
POLL_S = 0.1
_WARMUP_IF_SLOW = 3  # steps
_WRITE_SLOW_S = 10.0  # between two writes of the slow steps
_RECORDING = (PROBING, TRACING, MEMORY)
# The allocator's history would change the times of the steps of the other phases.
_HISTORY_ON = (WAITING, MEETING, ALIGNING, DONE)


def begin() -> None:
    """Arm this process: it has just imported torch."""
    Session(status_files.settings()).arm()


class Session:
    """The recording of one process, from `import torch` to its end."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        self.options: dict[str, Any] = settings["options"]
        self.rank = RankFile(Path(settings["folder"]), settings["launch"])
        self.rank.main = "trace" if self.options["active"] else "step_time"
        self.others = OtherProfilers(self._give_way)
        self.job = Path(settings["folder"]).name
        self.actions = Actions(self.options, self.rank, self.others)
        self.schedule = self._make_schedule()
        self.paused = 0.0  # seconds for which the program waited for us
        self.compiled = CompiledGraphs(
            code=not self.options["no_source"], keep_paths=self.options["keep_paths"]
        )
        self.compile_log = CompileLog(quotes=not self.options["no_source"])
        self.captures = Captures(self.rank, self.others, self._profiles_captures)
        self.captures.stacks = not self.options["no_stack"]
        self.oom = OutOfMemory(self.rank, self._claim_now, lambda: self.schedule.seen)
        self.actions.oom = self.oom
        slow = self.options.get("keep_slow")
        self.slow = SlowSteps(slow) if slow else None
        self._wrote_slow = 0.0
        self._acted = False  # whether the last boundary took us time
        self.source: steps.Source = steps.Source(self.boundary)
        self.off = False
        self._busy = False
        self._thread: int | None = None
        self._choosing = threading.RLock()
        self._meeting: meeting.Meeting | None = None
        self.window: WindowIfNoSteps | None = None
        self._in_window = False
        self._first_at = self._last_at = 0.0  # when the first and last step ended

    # Entry points from the program: import, step boundaries, exit, fork.

    def arm(self) -> None:
        """Install the hooks; nothing is recorded before the first step."""
        self.source = self._make_source()
        self.rank.warnings.install()
        self.others.install()
        if not self.options["no_compiled"]:
            self.compiled.install()
            self.compile_log.install()
        if not self.options["no_captures"]:
            self.captures.install()
        if not self.options["no_oom"]:
            self.oom.install()
        if self.slow is not None:
            self.slow.install()
        self.source.install()
        if self.window is not None:
            self.window.install()
        atexit.register(self._at_exit)
        forking.follow(self._in_child)
        if "status_folder" in self.settings:  # not if the program records itself
            forking.at_end_of_fork(self._at_exit)
            replacing.follow(self._before_exec, begin)

    def boundary(self) -> None:
        """Do what is due at the end of a step; --then-exit alone raises SystemExit."""
        # First the thread: others come by while this one is busy, and while it is not.
        if self.off or not self._counts_here() or self._busy:
            return
        self._busy = True
        try:
            self._boundary()
        except Exception as error:  # noqa: BLE001 - the program must continue
            self._fail(error)
        finally:
            self._busy = False
        self._exit_if_asked()

    def step(self) -> None:
        """End a step: the program says where they end, from the first time on."""
        if not isinstance(self.source, steps.CalledSteps) and self._restart():
            self.source.remove()
            self.source = steps.CalledSteps(self.boundary)
        if isinstance(self.source, steps.CalledSteps):
            self.boundary()

    def end(self, what: str) -> None:
        """Write what was recorded so far and remove all hooks: ``what`` has ended."""
        atexit.unregister(self._at_exit)
        try:
            self._program_ends(what)
        except Exception as error:  # noqa: BLE001 - the program must continue
            self._fail(error)
        self._disarm()
        self.oom.remove()
        self.rank.warnings.remove()

    def record_seconds(self, stop: threading.Event, seconds: float) -> None:
        """Record from a thread of ours: the program has no steps."""
        try:
            if not self._is_chosen():
                self._leave_out()
                return
            self._claim()
            self.schedule.phase = TRACING
            self._report()
            self.actions.record_seconds(stop, seconds)
            if not self.off:
                self.schedule.phase = DONE
                self._finish()
                self._report()
        except Exception as error:  # noqa: BLE001 - the program must continue
            self._fail(error)
        self._exit_if_asked()

    def record_window(self, stop: threading.Event, seconds: float) -> bool:
        """Record some seconds from a thread of ours; return False if not now."""
        try:
            with self._choosing:
                if self.off or self.schedule.phase not in (WAITING, TIMING):
                    return True
                if self.others.active or forking.is_helper(self.settings):
                    return False
                if not self._is_chosen():
                    return True
                if self.rank.name is None:
                    self._claim()
                self._in_window = True
            if not self.actions.record_window(stop, seconds):
                return False
            self._save()
            if self.options["then_exit"]:
                self.schedule.phase = DONE
                self._finish()
                self._report()
        except Exception as error:  # noqa: BLE001 - the program must continue
            self._fail(error)
        finally:
            self._in_window = False
        self._exit_if_asked()
        return True

    def usual_step_s(self) -> float:
        """Return the approximate duration of a step; 0 if it is not known."""
        steps = self.schedule.seen - 1
        return (self._last_at - self._first_at) / steps if steps > 0 else 0.0

    def _at_exit(self) -> None:
        try:
            self._program_ends("the program ended")
        except Exception as error:  # noqa: BLE001 - the program must continue
            self._fail(error)

    def _in_child(self) -> None:
        """Leave this recording to the parent; a forked process begins its own."""
        if background.forks():
            return
        has_steps = self.schedule.seen > 0
        failed = self.rank.facts.get("state") == "failed"
        self.off = True
        self.rank.name = None
        atexit.unregister(self._at_exit)
        forking.renew_locks(self, self.captures, self.source)
        if self.window is not None:
            forking.renew_locks(self.window)
        self._disarm()
        self.oom.remove()
        self.rank.warnings.remove()
        settings = forking.settings_of_child(
            self.settings,
            parent_has_steps=has_steps,
            parent_is_traced=self.actions.tracing or self.schedule.phase == MEMORY,
        )
        if settings is not None and not failed:
            Session(settings).arm()

    def _before_exec(self) -> bool:
        """Write what was recorded before exec; return whether it ended a recording."""
        if self.off or self.rank.name is None:
            return False
        self.end("the program replaced itself by exec")
        kinds = ("step_time", "trace", "memory")
        if not any(self.rank.facts[what] for what in kinds):
            replacing.remove_files(self.rank.folder, self.rank.name)
        self.rank.name = None  # the files are not of what comes now
        return True

    # The work.

    def _make_source(self) -> steps.Source:
        by = self.options["steps_by"]
        if by == "time":
            return TimeSteps(self)
        if by == "auto":
            if self.options["active"]:
                self.window = WindowIfNoSteps(self)
            return steps.AutoSteps(self.boundary, self._restart, self._restart_stale)
        if by == "forward":
            return steps.ForwardSteps(self.boundary, self._restart_stale)
        kinds: dict[str, Any] = {
            "optimizer": steps.OptimizerSteps,
            "mark": steps.MarkSteps,
        }
        return kinds[by](self.boundary)

    def _counts_here(self) -> bool:
        try:
            return not torch_state.capturing() and self._is_mine()
        except Exception as error:  # noqa: BLE001 - the program must continue
            self._fail(error)
            return False

    def _boundary(self) -> None:
        with self._choosing:
            if self.rank.name is None:
                if not self._is_chosen():
                    self._leave_out()
                    return
                self._claim()
        if self.slow is not None and self._watched(self.slow):
            return
        compiles = torch_state.compilations()
        self.actions.step_ended(compiles)
        self.captures.step_ended()
        changes = compiles + torch_state.captured_graphs() + self.captures.seen
        now = self._last_at = time.monotonic()
        if not self.schedule.seen:
            self._first_at = now
        hold = self.others.active or self._in_window
        due = self.schedule.boundary(now, changes, hold=hold)
        if self.schedule.phase not in _HISTORY_ON:
            self.oom.keep(on=False)
        self._acted = any(action != "lap" for action in due)
        while due:
            action = due.pop(0)
            self._do(action)
            if self.actions.restarted:
                self.schedule.again(PROBING if "probe" in action else TRACING)
                self.source.traced(on=True)
                break
            ended = self.actions.ended and self._is_traced()
            if action != "done" and (self.actions.refused or ended):
                due = self.schedule.skip(now)
        if self.schedule.phase in _HISTORY_ON:
            self.oom.keep(on=True)
        self._report()

    def _watched(self, slow: SlowSteps) -> bool:
        """Watch a step for what makes it slow; return whether that is all to do."""
        done = self.schedule.phase == DONE
        # Steps that we record are longer, and so are those that begin with our work.
        ours = self.schedule.phase in _RECORDING or self._acted
        self._acted = False
        retained = slow.boundary(self.schedule.seen, ours=ours)
        now = time.monotonic()
        if retained and now - self._wrote_slow > _WRITE_SLOW_S:
            self._wrote_slow = now
            self._write_slow()
        if done:
            self.schedule.seen += 1
        return done

    def _write_slow(self) -> None:
        """Write the slow steps so far; the program may be killed."""
        if self.slow is None or self.rank.name is None:
            return
        file = self.rank.path(".slow.json")
        content = self.slow.content()
        manifest.write(file, content)
        facts = {key: content[key] for key in ("factor", "steps", "slow")}
        self.rank.save(slow_steps={"file": file.name, **facts})

    def _do(self, action: str) -> None:
        if action == "begin timing":
            self.rank.facts["warmup"] = {
                "steps": self.schedule.seen,
                "still_compiling": self.schedule.still_compiling,
            }
        if action.startswith("begin "):
            self.rank.happened(action[len("begin ") :], self.schedule.seen)
        traces = action.endswith((" trace", " probe"))
        if traces:
            self.source.traced(on=action.startswith("begin "))
        began = time.monotonic()
        if action == "done":
            self._finish()
            return
        self.actions.seen = self.schedule.seen
        self.actions.do(action)
        if action == "end probe":
            self.schedule.active = self.actions.size.steps
        if traces or action.endswith(" memory"):
            self._paused(time.monotonic() - began)

    def _is_traced(self) -> bool:
        return self.schedule.phase in (PROBING, TRACING)

    def _paused(self, seconds: float) -> None:
        """Note that the program waited for us, beside its own steps."""
        self.paused += seconds
        causes = self.actions.pauses.items()
        self.rank.facts["pause"] = {
            "seconds": round(self.paused, 3),
            "by_cause": {what: round(spent, 3) for what, spent in causes},
        }

    def _is_mine(self) -> bool:
        """Return whether this is the thread whose steps are counted."""
        thread = steps.this_thread()
        with self._choosing:
            if self._thread is None:
                if torch.utils.data.get_worker_info() is not None:
                    self._disarm()
                    return False
                self._thread = thread
            elif thread != self._thread:
                self.rank.note(manifest.OTHER_THREADS)
                if not steps.runs(self._thread) and self._restart():
                    self._thread = thread
            return thread == self._thread

    def _is_chosen(self) -> bool:
        """Return whether this rank is one of --ranks."""
        return rank_set.has(self.options["ranks"], process_facts.rank()[0])

    def _leave_out(self) -> None:
        """Record nothing in this rank; with --then-exit it ends when the others do."""
        rank, _, world_size = process_facts.rank()
        status_files.mark(f"left-out-{rank}", str(world_size))
        self._disarm()
        if self.options["then_exit"] and self._meet() is not None:
            leave = threading.Thread(target=self._leave, name="traceq", daemon=True)
            leave.start()

    def _leave(self) -> None:
        job = self._meet()
        while job is not None and not job.all_done():
            time.sleep(POLL_S)
        if job is not None and not job.over:
            status_files.mark("stopped")
            job.leave()
            sys.stdout.flush()
            os._exit(0)

    def _meet(self) -> meeting.Meeting | None:
        """Return the meeting of the ranks that record, if there are several."""
        if self._meeting is None:
            world_size = process_facts.rank()[2]
            ranks = len(rank_set.within(self.options["ranks"], world_size))
            if world_size > 1:
                self._meeting = meeting.of_job(self.job, ranks, self._numbered)
        return self._meeting

    def _numbered(self) -> bool:
        """Return whether a step has the same number on all ranks."""
        return self._by() != "forward"

    def _claim(self) -> None:
        self.rank.claim()
        self.actions.alone = self._meet() is None
        self.captures.move()
        self.rank.happened("first step", self.schedule.seen)
        self._save()

    def _claim_now(self) -> bool:
        """Name this process's files before its first step; False if it is left out."""
        with self._choosing:
            if self.rank.name is None and self._is_chosen():
                self._claim()
            return self.rank.name is not None

    def _finish(self) -> None:
        self.rank.happened("done", self.schedule.seen)
        self._write_compiled()
        self.rank.keep_newer()
        self._save(state="incomplete" if self.actions.incomplete else "done")
        if self.slow is not None:
            self._stop_recording()  # the steps are watched until the program ends
        elif not self._awaits_optimizer():
            self._disarm()

    def _awaits_optimizer(self) -> bool:
        """Return whether a recording of optimizer steps would replace this one.

        What was recorded may be a validation before the training.
        """
        source = self.source
        return (
            isinstance(source, steps.AutoSteps)
            and not self.options["then_exit"]
            and "status_folder" in self.settings  # not if the program records itself
            and source.await_optimizer()
        )

    def _program_ends(self, what: str) -> None:
        """Write what was recorded when the program ends before the schedule does."""
        self.oom.ends()
        if self.slow is not None:
            self._disarm()
            self._write_slow()
        state = self.rank.facts.get("state")
        if self.rank.name is None or state in ("done", "incomplete", "failed"):
            self.rank.save()  # the warnings since then
            return
        phase = self.schedule.phase
        self._disarm()
        self.actions.end_early()
        if self.rank.keep_newer():
            self.rank.save()
            return
        if self._has_window():
            self.rank.missing("step_time", "no steps were seen: seconds were traced")
            self._write_compiled()
            self.rank.happened("done", self.schedule.seen)
            self._save(state="incomplete" if self.actions.incomplete else "done")
            return
        self._lacks(f"{what} after {self.schedule.seen} steps, {self._unfinished()}")
        self._write_compiled()
        self.rank.happened("ended early", self.schedule.seen)
        self._save(state="ended early", ended_in=phase)

    def _has_window(self) -> bool:
        """Return whether seconds were traced, and no steps since."""
        trace = self.rank.facts.get("trace")
        return trace is not None and trace["window"] == "time"

    def _write_compiled(self) -> None:
        """Write what torch.compile has made, which is no reason to fail."""
        try:
            result = self.compiled.write(self.rank.path(".compiled.json.gz"))
        except Exception as error:  # noqa: BLE001 - made of what is private to torch
            result = None
            self.rank.missing(compiled_graphs.WHAT, f"{type(error).__name__}: {error}")
        self.rank.facts["compiled_code"] = result
        for what, why in self.compiled.missing.items():
            self.rank.missing(what, why)
        if self.compile_log.text():  # the launcher puts it into the log of the run
            status_files.mark(f"log-{self.rank.name}", self.compile_log.text())
        self.actions.copy_sources({**self.compiled.files, **self.captures.files})

    def _unfinished(self) -> str:
        """Return the schedule's activity when the program ended."""
        phase = self.schedule.phase
        if phase == WAITING:
            warmup = self.schedule.plan.warmup
            return {
                FIRST_STEPS: f"within the warm-up of {warmup} (--warmup)",
                COMPILATION: "while it was still compiling",
                OTHER_PROFILER: "while its own profiler was running",
            }[self.schedule.waits_for]
        return {
            TIMING: "while timing them",
            PROBING: "while counting the events of one",
            MEETING: "while waiting for the other ranks",
            ALIGNING: "before tracing them",
            TRACING: "while tracing them",
        }.get(phase, "while recording memory history")

    def _fail(self, error: Exception) -> None:
        """Remove everything after an error of ours, and report it."""
        self.off = True
        text = f"{type(error).__name__}: {error}"
        status_files.mark("failed", text)
        try:
            if os.environ.get("TRACEQ_TRACEBACK"):
                sys.excepthook(type(error), error, error.__traceback__)
            self._disarm()
            self.oom.remove()
            self.rank.note(f"traceq crashed, which ended the recording: {text}")
            self._lacks(f"traceq crashed: {text}")
            self.actions.drop_all()
            self._save(state="failed")
        except Exception as second:  # noqa: BLE001 - nothing more can be done
            status_files.mark("failed", f"{text}; then {second}")

    def _lacks(self, why: str) -> None:
        for what in ("step_time", "trace", "memory"):
            if self.rank.facts.get(what) is None:
                self.rank.missing(what, why)

    def _disarm(self) -> None:
        self.off = True
        self.source.remove()
        if self.slow is not None:
            self.slow.remove()
        self._stop_recording()

    def _stop_recording(self) -> None:
        if self.window is not None:
            self.window.remove()
        self.captures.remove()
        self.others.remove()
        self.compiled.remove()
        self.compile_log.remove()

    def _give_way(self) -> None:
        """Stop our profiler: the program has started its own."""
        self.captures.give_way()
        self.actions.give_way()

    def _profiles_captures(self) -> bool:
        """Return whether a capture that begins now is profiled on its own."""
        before = self.schedule.phase in (WAITING, TIMING, MEETING, ALIGNING)
        return (
            before and not self.off and not self.actions.tracing and self._is_chosen()
        )

    def _restart(self) -> bool:
        """Count again from 0, another kind of step or thread; False once recording."""
        if self.schedule.phase == DONE:
            self.actions.begin_again()
            self.paused = 0.0
        elif self.schedule.phase not in (WAITING, TIMING):
            return False
        self.actions.do("drop timing")
        self.schedule = self._make_schedule()
        self._thread = None
        return True

    def _restart_stale(self) -> bool:
        """Count again from 0: what made the steps is no longer called."""
        if self._is_traced() or self.schedule.phase == ALIGNING:
            self.actions.drop_all()
            self.source.traced(on=False)
            self.schedule.phase = WAITING
        return self.schedule.phase in (MEETING, MEMORY) or self._restart()

    def _make_schedule(self) -> Schedule:
        schedule = Schedule(_plan(self.options), self._meet)
        schedule.starts_well = self.actions.starts_typical
        schedule.pattern_is_open = self.actions.needs_more_laps
        return schedule

    def _exit_if_asked(self) -> None:
        finished = self.off and self.schedule.phase == DONE
        if not finished or not self.options["then_exit"]:
            return
        status_files.mark("stopped")
        self._wait_for_ranks()
        if threading.current_thread() is threading.main_thread():
            raise SystemExit(0)
        sys.stdout.flush()
        os._exit(0)

    def _wait_for_ranks(self) -> None:
        """Let the other ranks write first: they may need this one."""
        job = self._meet()
        if job is not None:
            job.done()
            _wait_until(job.all_done, EXIT_S)
            left_out = process_facts.rank()[2] - job.ranks
            _wait_until(lambda: job.have_left(left_out), LEAVE_S)
            return
        reported = os.environ.get("LOCAL_WORLD_SIZE", "")
        ranks = int(reported) if reported.isdecimal() else 1
        _wait_until(
            lambda: len(status_files.read("status-rank-*", "done")) >= ranks, EXIT_S
        )

    def _save(self, **changes: Any) -> None:
        seen = {"by": self._by(), "of": self.source.of, "seen": self.schedule.seen}
        if "state" in changes:
            changes["parameters"] = self.source.parameters()
        self.rank.save(steps=seen, **changes)

    def _by(self) -> str:
        if self._has_window():
            return "time"
        return str(getattr(self.source, "by", "") or self.options["steps_by"])

    def _report(self) -> None:
        self.rank.report(
            self.schedule.phase, self.schedule.in_phase, self.schedule.total()
        )


def _wait_until(met: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not met():
        time.sleep(POLL_S)


def _plan(options: dict[str, Any]) -> Plan:
    warmup, timed = options["warmup"], options["timed"]
    return Plan(
        warmup=warmup,
        # An explicit number of steps is kept; otherwise it depends on the steps.
        warmup_at_least=_WARMUP_IF_SLOW if warmup == Plan.warmup else warmup,
        timed=timed,
        timed_most=Plan.timed_most if timed == Plan.timed else timed,
        active=options["active"],
        memory=0 if options["no_memory"] else options["memory_steps"],
    )
