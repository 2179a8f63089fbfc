"""One process that makes steps: counts them, and records when it is time to.

Nothing here may harm the program: every way in from it is guarded, and after the first
fault of ours all hooks are taken away and the manifest says what happened.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch

from . import control, facts, manifest, record, steps
from .give_way import GiveWay
from .schedule import DONE, TRACING, WAITING, Plan, Schedule
from .timing import StepTimer
from .warnlog import WarningLog

REPORT_S = 0.2


def begin() -> None:
    """Arm this process: torch has just been imported."""
    Session(control.settings()).arm()


class Session:
    """The recording of one process, from `import torch` to its end."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        self.options: dict[str, Any] = settings["options"]
        self.folder = Path(settings["folder"])
        self.schedule = Schedule(_plan(self.options))
        self.warnings = WarningLog()
        self.others = GiveWay(self._give_way)
        self.source: Any = None
        self.name: str | None = None
        self.facts: dict[str, Any] = {}
        self.timer: StepTimer | None = None
        self.trace: record.Trace | None = None
        self.history: record.MemoryHistory | None = None
        self.stacks = not self.options["no_stack"]
        self.off = False
        self._thread: int | None = None
        self._busy = False
        self._compiles = 0
        self._compiles_at_start = 0
        self._phase = ""
        self._said = 0.0
        self._began = time.monotonic()

    # The way in from the program: arming, boundaries, its end, its forks.

    def arm(self) -> None:
        """Install what sees the steps; nothing is recorded before one has been."""
        by = self.options["steps_by"]
        if by == "time":
            from .by_time import TimeSteps  # noqa: PLC0415 - rarely needed

            self.source = TimeSteps(self)
        elif by == "auto":
            self.source = steps.AutoSteps(self.boundary, self._restart)
        else:
            kinds: dict[str, Any] = {
                "optimizer": steps.OptimizerSteps,
                "forward": steps.ForwardSteps,
                "mark": steps.MarkSteps,
            }
            self.source = kinds[by](self.boundary)
        self.warnings.install()
        self.others.install()
        self.source.install()
        atexit.register(self._at_exit)
        os.register_at_fork(after_in_child=self._in_child)

    def boundary(self) -> None:
        """Do what is due where a step ends. Nothing but an exit asked for gets out."""
        if self.off or self._busy:
            return
        self._busy = True
        try:
            self._boundary()
        except Exception as error:  # noqa: BLE001 - the program must go on
            self._fail(error)
        finally:
            self._busy = False
        if self.off and self.options["then_exit"] and self.schedule.phase == DONE:
            self._exit()

    def _boundary(self) -> None:
        if record.capturing() or not self._is_mine():
            return
        if self.name is None:
            self._claim()
        self._compiles = record.compilations()
        due = self.schedule.boundary(
            time.monotonic(), self._compiles, hold=self.others.active
        )
        for action in due:
            self._do(action)
            if action == "end trace" and self.schedule.phase == TRACING:
                break  # the steps are traced once more
        self._report()

    def _is_mine(self) -> bool:
        """Return whether this thread is the one whose steps are counted."""
        thread = threading.get_ident()
        if self._thread is None:
            if torch.utils.data.get_worker_info() is not None:
                self._disarm()
                return False
            self._thread = thread
        if thread != self._thread:
            self._note("steps of other threads are not counted")
        return thread == self._thread

    def _at_exit(self) -> None:
        if self.off and self.name is None:
            return
        try:
            self._end_early()
        except Exception as error:  # noqa: BLE001 - the program must go on
            self._fail(error)

    def _in_child(self) -> None:
        """Forget everything in a forked process: its parent records."""
        self.off = True
        self.name = None
        self.source.boundary = _nothing
        atexit.unregister(self._at_exit)

    def record_by_time(self, stop: threading.Event, seconds: float) -> None:
        """Record for a while, from a thread of ours: the program makes no steps."""
        try:
            self._claim()
            self._missing("step_time", "there are no steps with --steps-by time")
            self._happened("tracing")
            self.schedule.phase = TRACING
            self._start_trace(active=0)
            self._report(at_once=True)
            stop.wait(seconds)
            trace = self._stop_trace()
            if trace is not None:
                self._finish_trace(trace)
            if not self.options["no_memory"]:
                self._begin_memory()
                if self.history is not None:
                    stop.wait(seconds)
                    self._end_memory()
            if not self.off:
                self.schedule.phase = DONE
                self._done()
                self._report(at_once=True)
        except Exception as error:  # noqa: BLE001 - the program must go on
            self._fail(error)
        if self.options["then_exit"] and self.schedule.phase == DONE:
            self._exit()

    # What is done at boundaries.

    def _do(self, action: str) -> None:
        actions = {
            "begin timing": self._begin_timing,
            "lap": self._lap,
            "drop timing": self._drop_timing,
            "end timing": self._end_timing,
            "begin trace": self._begin_trace,
            "trace step": self._trace_step,
            "end trace": self._end_trace,
            "begin memory": self._begin_memory,
            "end memory": self._end_memory,
            "done": self._done,
        }
        actions[action]()

    def _begin_timing(self) -> None:
        self.facts["warmup"] = {
            "steps": self.schedule.seen,
            "seconds": record.seconds_since(self._began),
            "still_compiling": self.schedule.still_compiling,
        }
        self._happened("timing")
        self.timer = StepTimer(on_cuda=record.uses_cuda())

    def _lap(self) -> None:
        if self.timer is not None:
            self.timer.lap()

    def _drop_timing(self) -> None:
        self.timer = None
        self._note(
            "the timing of steps began anew: something was compiled, or the program"
            " profiled itself"
        )

    def _end_timing(self) -> None:
        timer, self.timer = self.timer, None
        found = timer.result() if timer is not None else None
        if found is None:
            self._missing("step_time", "no step ended while steps were timed")
            return
        self.facts["step_time"] = found
        self._save()

    def _begin_trace(self) -> None:
        self._happened("tracing")
        foreign = record.foreign_profiler(dict(os.environ))
        if foreign is not None:
            self._missing("trace", f"{foreign} is attached to the program")
            self.schedule.in_phase = self.schedule.total()  # nothing to wait for
            return
        if self.stacks and self.schedule.still_compiling:
            self._drop_stacks("the program compiles in every step")
        self._start_trace()

    def _start_trace(self, active: int | None = None) -> None:
        plan = self.schedule.plan
        self.trace = record.Trace(
            cuda=record.uses_cuda(),
            active=plan.active if active is None else active,
            lead_in=plan.lead_in,
            stacks=self.stacks,
            memory=not self.options["no_memory"],
        )
        self._compiles_at_start = self._compiles
        with self.others.ours():
            self.trace.start()

    def _trace_step(self) -> None:
        if self.trace is None:
            return
        with self.others.ours():
            self.trace.step()
        why = self._too_much(self.trace)
        if why and self.stacks:
            self._again_without_stacks(why)
        elif why:
            self._stop_trace()
            self._missing("trace", why)

    def _too_much(self, trace: record.Trace) -> str:
        """Return why this trace would become too large, if it would."""
        if self.stacks and self._compiles != self._compiles_at_start:
            return "something was compiled in the traced steps"
        if trace.grown() > self._max_bytes():
            return "the process grew by more than --max-mb while it was traced"
        return ""

    def _again_without_stacks(self, why: str) -> None:
        self._stop_trace()
        self._drop_stacks(why)
        self.schedule.again()
        self._start_trace()

    def _drop_stacks(self, why: str) -> None:
        self.stacks = False
        self._missing("stacks", why)

    def _stop_trace(self) -> record.Trace | None:
        trace, self.trace = self.trace, None
        if trace is not None:
            with self.others.ours():
                trace.stop()
        return trace

    def _end_trace(self) -> None:
        if self.trace is None:
            return
        self._trace_step()
        if self.trace is None or self.schedule.phase == TRACING:
            return
        trace = self._stop_trace()
        if trace is None:
            return
        why = self._write_trace(trace)
        if why and self.stacks:
            self._again_without_stacks(why)
        elif why:
            self._missing("trace", why)

    def _finish_trace(self, trace: record.Trace) -> None:
        why = self._write_trace(trace)
        if why:
            self._missing("trace", why)
        if self.options["steps_by"] == "time" and not trace.all_threads:
            self._missing("host ops", "this torch cannot record all threads at once")

    def _write_trace(self, trace: record.Trace) -> str:
        """Write the trace; return why not, if not."""
        self._happened("writing")
        self._report(at_once=True)
        began = time.monotonic()
        file = self.folder / f"{self.name}.trace.json.gz"
        try:
            size = trace.write(file, max_bytes=self._max_bytes())
        except record.TooLargeError as error:
            return str(error)
        self.facts["trace"] = {
            "file": file.name,
            "bytes": size,
            "steps": trace.steps,
            "activities": trace.activities,
            "shapes": True,
            "stacks": trace.stacks,
            "memory_events": trace.memory,
            "compiled_meanwhile": self._compiles != self._compiles_at_start,
            "write_seconds": record.seconds_since(began),
        }
        self._save()
        return ""

    def _begin_memory(self) -> None:
        why = record.no_memory_history(cuda=record.uses_cuda())
        if why is not None:
            self._missing("memory", why)
            self.schedule.in_phase = self.schedule.plan.memory  # nothing to wait for
            return
        self._happened("memory")
        self.history = record.MemoryHistory()

    def _end_memory(self) -> None:
        history, self.history = self.history, None
        if history is None:
            return
        self._happened("writing")
        file = self.folder / f"{self.name}.memory.pickle.gz"
        try:
            size = history.write(file)
        except record.TooLargeError as error:
            self._missing("memory", str(error))
        else:
            self.facts["memory"] = {
                "file": file.name,
                "bytes": size,
                "steps": self.schedule.in_phase or self.schedule.plan.memory,
                "entries_at_most": history.ENTRIES,
            }
        finally:
            history.stop()

    def _done(self) -> None:
        self._happened("done")
        self.facts["state"] = "done"
        self._save()
        self._disarm()

    # The end.

    def _end_early(self) -> None:
        """Write what there is when the program ends before the schedule does."""
        if self.name is None or self.facts.get("state") in ("done", "failed"):
            self._save()
            return
        phase = self.schedule.phase
        self._disarm()
        if self.timer is not None:
            self._end_timing()
        trace = self._stop_trace()
        if trace is not None and trace.recorded() and trace.steps:
            self._finish_trace(trace)
        if self.history is not None:
            self._end_memory()
        self.facts["state"] = "ended early"
        self.facts["ended_in"] = phase
        for what in ("step_time", "trace", "memory"):
            if self.facts.get(what) is None:
                self._missing(what, f"the program ended early, in the phase {phase}")
        self._happened("ended early")
        self._save()
        self._report(at_once=True)

    def _fail(self, error: Exception) -> None:
        """Take everything away after a fault of ours, and say so."""
        self._disarm()
        self.facts["state"] = "failed"
        text = f"{type(error).__name__}: {error}"
        control.mark("failed", text)
        if os.environ.get("TRACEQ_TRACEBACK"):
            sys.excepthook(type(error), error, error.__traceback__)
        try:
            self._note(f"a fault of traceq ended the recording: {text}")
            self._stop_trace()
            if self.history is not None:
                self.history.stop()
            self._save()
        except Exception as second:  # noqa: BLE001 - nothing more can be done
            control.mark("failed", f"{text}; then {second}")

    def _disarm(self) -> None:
        self.off = True
        self.source.remove()
        self.others.remove()

    def _exit(self) -> None:
        control.mark("stopped")
        if threading.current_thread() is threading.main_thread():
            raise SystemExit(0)
        sys.stdout.flush()
        os._exit(0)

    def _give_way(self) -> None:
        """Stop our profiler: the program has begun to use its own."""
        if self.trace is not None:
            self._stop_trace()
            self._missing("trace", "the program began to profile itself meanwhile")

    def _restart(self) -> bool:
        """Begin to count anew, by another kind of step; refused once recording."""
        if self.schedule.phase in (TRACING, DONE) or self.trace is not None:
            return False
        self.timer = None
        self.schedule = Schedule(self.schedule.plan)
        return True

    # The manifest.

    def _claim(self) -> None:
        rank, local_rank, world_size = facts.rank()
        self.name = manifest.claim(self.folder, rank)
        self.facts = {
            "format": manifest.FORMAT,
            "name": self.name,
            "rank": rank,
            "local_rank": local_rank,
            "world_size": world_size,
            "launch": self.settings["launch"],
            "state": "recording",
            "device": None,
            "versions": None,
            "devices": [],
            "switches": {},
            "environment": facts.environment(),
            "steps": {},
            "warmup": None,
            "step_time": None,
            "trace": None,
            "memory": None,
            "log": None,
            "missing": [],
            "notes": [],
            "timeline": [],
        }
        self.warnings.open(self.folder / f"{self.name}.log")
        self._happened("first step")
        self._save()

    def _save(self) -> None:
        if self.name is None:
            return
        log = self.warnings
        cuda = record.uses_cuda()
        self.facts["device"] = f"cuda:{torch.cuda.current_device()}" if cuda else "cpu"
        self.facts["versions"] = facts.versions()
        self.facts["devices"] = facts.devices()
        self.facts["switches"] = facts.switches()
        self.facts["steps"] = {
            "by": getattr(self.source, "by", "") or self.options["steps_by"],
            "of": self.source.of,
            "seen": self.schedule.seen,
        }
        self.facts["log"] = {
            "file": f"{self.name}.log" if log.count else None,
            "warnings": log.count,
            "cut": log.cut,
        }
        manifest.write(self.folder / f"{self.name}.json", self.facts)

    def _missing(self, what: str, why: str) -> None:
        entry = {"what": what, "why": why}
        if entry not in self.facts.setdefault("missing", []):
            self.facts["missing"].append(entry)

    def _note(self, text: str) -> None:
        if text not in self.facts.setdefault("notes", []):
            self.facts["notes"].append(text)

    def _happened(self, what: str) -> None:
        self.facts["timeline"].append(
            {"what": what, "step": self.schedule.seen, "at": manifest.now()}
        )
        self._phase = what

    def _report(self, *, at_once: bool = False) -> None:
        """Tell the launcher how far it is, a few times a second at most."""
        now = time.monotonic()
        waiting = self.schedule.phase == WAITING
        if waiting and not at_once and now - self._said < REPORT_S:
            return
        self._said = now
        phase = self._phase if self._phase == "writing" else self.schedule.phase
        if self.off:
            phase = self.facts["state"]
        text = f"{phase}\t{self.schedule.in_phase}\t{self.schedule.total()}"
        control.mark(f"status-{self.name}", text)

    def _max_bytes(self) -> int:
        return int(self.options["max_mb"]) * record.MEGABYTE


def _plan(options: dict[str, Any]) -> Plan:
    return Plan(
        warmup=options["warmup"],
        timed=options["timed"],
        active=options["active"],
        memory=0 if options["no_memory"] else options["memory_steps"],
    )


def _nothing() -> None:
    pass
