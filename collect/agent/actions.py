"""The actions that a schedule asks for: timing, tracing, memory history, writing."""

from __future__ import annotations

import os
import threading
import time
from typing import Any, Callable

from . import memory_history, other_profilers, sources, torch_state
from .files import MEGABYTE, TooLargeError
from .memory_history import MemoryHistory
from .other_profilers import OtherProfilers
from .profiler import Trace
from .rank_file import RankFile
from .schedule import LEAD_IN, Plan
from .step_timer import StepTimer


class Actions:
    """Does what the schedule asks for and puts the results into the manifest."""

    def __init__(
        self, options: dict[str, Any], rank: RankFile, others: OtherProfilers
    ) -> None:
        self.options = options
        self.rank = rank
        self.others = others
        self.seen = 0  # step boundaries so far
        self.restarted = False  # whether the last action started the trace again
        self.refused = False  # whether the last action was not possible
        self.files: dict[str, str] = {}  # source files by their names in the trace
        self.incomplete = False  # whether the trace that was written lacks GPU work
        self._stacks = not options["no_stack"]
        self._timer: StepTimer | None = None
        self._trace: Trace | None = None
        self._history: MemoryHistory | None = None
        self._compiles = 0  # changes when something is compiled
        self._compiles_at_start = 0
        self._quiet = 0  # steps since then
        self._memory_steps = 0
        self._first: int | None = None  # number of the first traced step

    def step_ended(self, compiles: int) -> None:
        """Note that a step ended; ``compiles`` changes whenever torch compiles."""
        self._quiet = 0 if compiles != self._compiles else self._quiet + 1
        self._compiles = compiles

    def do(self, action: str) -> None:
        """Do one action of the schedule."""
        actions: dict[str, Callable[[], None]] = {
            "begin timing": self._begin_timing,
            "lap": self._lap,
            "drop timing": self._drop_timing,
            "end timing": self._end_timing,
            "begin trace": self._begin_trace,
            "trace step": self._trace_step,
            "end trace": self._end_trace,
            "begin memory": self._begin_memory,
            "memory step": self._memory_step,
            "end memory": self._end_memory,
        }
        self.restarted = self.refused = False
        actions[action]()

    def record_seconds(self, stop: threading.Event, seconds: float) -> None:
        """Trace for ``seconds``, then record memory history for as long."""
        self.rank.missing("step_time", "--steps-by time records seconds, not steps")
        self._start_trace(active=0)
        stop.wait(seconds)
        trace = self._stop_trace()
        if trace is not None:
            self._keep(trace)
            if not trace.all_threads:
                self.rank.missing(
                    "host ops", "this version of torch cannot record all threads"
                )
        if not self.options["no_memory"]:
            self._begin_memory()
            if self._history is not None:
                stop.wait(seconds)
                self._end_memory()

    def end_early(self) -> None:
        """Write what was recorded so far."""
        if self._timer is not None:
            self._end_timing()
        trace = self._stop_trace()
        if trace is not None and trace.recorded() and trace.steps:
            self._keep(trace)
        if self._history is not None:
            self._end_memory()

    def drop_all(self) -> None:
        """Stop everything and write nothing."""
        self._timer = None
        self._stop_trace()
        history, self._history = self._history, None
        if history is not None:
            history.stop()

    def give_way(self) -> None:
        """Stop our profiler: the program has started its own."""
        if self._trace is not None:
            self._stop_trace()
            self.rank.missing(
                "trace", "the program started its own profiler while it was traced"
            )

    def _drop_stacks(self, why: str) -> None:
        if self._stacks:
            self._stacks = False
            self.rank.missing("stacks", why)

    # Timing.

    def _begin_timing(self) -> None:
        self._timer = StepTimer(on_cuda=torch_state.uses_cuda())

    def _lap(self) -> None:
        if self._timer is not None:
            self._timer.lap()

    def _drop_timing(self) -> None:
        if self._timer is not None:
            self._timer = None
            self.rank.note(
                "the steps were timed again: the first attempt was not steady"
            )

    def _end_timing(self) -> None:
        timer, self._timer = self._timer, None
        found = timer.result() if timer is not None else None
        if found is not None:
            self.rank.save(step_time=found)

    # Tracing.

    def _begin_trace(self) -> None:
        foreign = other_profilers.attached(dict(os.environ))
        if foreign is not None:
            self.rank.missing("trace", f"{foreign} is attached to the program")
            self.refused = True
            return
        if self._compiles and self._quiet < Plan.quiet:
            self._drop_stacks("the program compiles in every step")
        self._start_trace(self.options["active"])

    def _start_trace(self, active: int) -> None:
        self._compiles_at_start = self._compiles
        self._first = self.seen + LEAD_IN + 1 if active else None
        self._trace = Trace(
            cuda=torch_state.uses_cuda(),
            active=active,
            stacks=self._stacks,
            memory=not self.options["no_memory"],
            profiled_before=self.others.seen,
        )
        with self.others.ours():
            self._trace.start()

    def _stop_trace(self) -> Trace | None:
        trace, self._trace = self._trace, None
        if trace is not None:
            with self.others.ours():
                trace.stop()
        return trace

    def _trace_step(self) -> None:
        if self._trace is None:
            return
        with self.others.ours():
            self._trace.step()
        why = self._too_much(self._trace)
        if why:
            self._stop_trace()
            self._again_or_never(why)

    def _too_much(self, trace: Trace) -> str:
        """Return why this trace would get too large, if it would."""
        if self._stacks and self._compiles != self._compiles_at_start:
            return "torch compiled something during the traced steps"
        if trace.grown() > self._max_bytes():
            return "the process grew by more than --max-mb while it was traced"
        return ""

    def _again_or_never(self, why: str) -> None:
        """Trace once more, without stacks; without stacks already, skip the trace."""
        if self._stacks:
            self._drop_stacks(why)
            self._start_trace(self.options["active"])
            self.restarted = True
        else:
            self.rank.missing("trace", why)

    def _end_trace(self) -> None:
        self._trace_step()
        if self.restarted:
            return
        trace = self._stop_trace()
        if trace is not None:
            why = self._write(trace)
            if why:
                self._again_or_never(why)

    def _keep(self, trace: Trace) -> None:
        why = self._write(trace)
        if why:
            self.rank.missing("trace", why)

    def _write(self, trace: Trace) -> str:
        """Write the trace; return why it could not be written, if so."""
        self.rank.report("writing", 0, 0)
        began = time.monotonic()
        file = self.rank.path(".trace.json.gz")
        try:
            size = trace.write(file, max_bytes=self._max_bytes())
        except TooLargeError as error:
            return str(error)
        self.rank.save(
            trace={
                "file": file.name,
                "bytes": size,
                "steps": trace.steps,
                "step_name": trace.step_name,
                "first_step": self._first,
                "activities": trace.activities,
                "shapes": True,
                "stacks": trace.stacks,
                "memory_events": trace.memory,
                "compiled_during_trace": self._compiles != self._compiles_at_start,
                "open_functions": trace.open_functions,
                "call_lines": len(trace.callers.lines),
                "write_seconds": round(time.monotonic() - began, 3),
            }
        )
        if trace.stacks and trace.no_lines:
            self.rank.missing("lines of calls", trace.no_lines)
        self.copy_sources(trace.callers.files)
        self.incomplete = trace.lacks_gpu_work()
        if self.incomplete:
            self.rank.missing("GPU work", self._why_no_gpu_work())
        return ""

    def copy_sources(self, files: dict[str, str]) -> None:
        """Copy these of the program's own files too, unless told not to."""
        if self.options["no_source"] or files.items() <= self.files.items():
            return
        self.files = {**files, **self.files}
        folder = self.rank.folder / sources.FOLDER
        found, notes = sources.copy(self.files, folder)
        for text in notes:
            self.rank.note(text)
        self.rank.save(sources=found)

    @property
    def tracing(self) -> bool:
        """Whether our profiler is set up or running."""
        return self._trace is not None

    def _why_no_gpu_work(self) -> str:
        cause = (
            "it profiled itself before, which may have left CUPTI unusable"
            if self.others.seen
            else "another tool may hold CUPTI, or the traced steps did not use the GPU"
        )
        return f"the profiler recorded none, though the program uses CUDA; {cause}"

    def _max_bytes(self) -> int:
        return int(self.options["max_mb"]) * MEGABYTE

    # Memory.

    def _begin_memory(self) -> None:
        self._memory_steps = 0
        why = memory_history.why_not(cuda=torch_state.uses_cuda())
        if why is not None:
            self.rank.missing("memory", why)
            self.refused = True
            return
        self._history = MemoryHistory()

    def _memory_step(self) -> None:
        self._memory_steps += 1

    def _end_memory(self) -> None:
        history, self._history = self._history, None
        if history is None:
            return
        self.rank.report("writing", 0, 0)
        file = self.rank.path(".memory.pickle.gz")
        try:
            size = history.write(file)
        except TooLargeError as error:
            self.rank.missing("memory", str(error))
        else:
            self.rank.save(
                memory={
                    "file": file.name,
                    "bytes": size,
                    "steps": self._memory_steps,
                    "max_entries": history.ENTRIES,
                }
            )
        finally:
            history.stop()
