"""Actions of the schedule: timing, tracing, memory history, writing."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from pathlib import Path
from typing import Any, Callable, Iterator

from ..shared import additions
from . import (
    main_thread,
    memory_history,
    memory_labels,
    other_profilers,
    peak_memory,
    sources,
    step_pattern,
    torch_state,
)
from .background import LONGEST_S, Background
from .files import MEGABYTE, TooLargeError, free_memory
from .memory_history import MemoryHistory
from .other_profilers import OtherProfilers
from .out_of_memory import OutOfMemory
from .profiler import Trace
from .rank_file import RankFile
from .schedule import LEAD_IN, Plan
from .step_timer import StepTimer
from .trace_size import EVENT_MEMORY, Pattern, Probe, TraceSize, choose

MOST_ATTEMPTS = 3
START_S = 5.0  # for the main thread to start a trace
_SHORT_MEMORY = 500 * MEGABYTE  # left to the program, below which tracing ends
_LARGE = 100_000  # events of a step


class Actions:
    """Does what the schedule asks for and puts the results into the manifest."""

    def __init__(
        self, options: dict[str, Any], rank: RankFile, others: OtherProfilers
    ) -> None:
        self.options = options
        self.rank = rank
        self.others = others
        self.background = Background()
        self.oom: OutOfMemory | None = None  # its history makes way for ours
        self.seen = 0  # step boundaries so far
        self.alone = True  # whether no other ranks trace the same steps
        self.restarted = False  # whether the last action started the trace again
        self.refused = False  # whether the last action was not possible
        self.ended = False  # whether the last action ended the trace before its time
        self.files: dict[str, str] = {}  # source files by their names in the trace
        self.incomplete = False  # whether the trace that was written lacks GPU work
        self.size = TraceSize(options["active"], stacks=not options["no_stack"])
        self.attempts: list[dict[str, Any]] = []  # traces that were thrown away
        self.pauses: dict[str, float] = {}  # seconds, by what the program waited for
        self._timer: StepTimer | None = None
        self._trace: Trace | None = None
        self._probes = False
        self._history: MemoryHistory | None = None
        self._compiles = 0  # changes when something is compiled
        self._compiles_at_start = 0
        self._quiet = 0  # steps since then
        self._memory_steps = 0
        self._first: int | None = None  # number of the first traced step
        self._allocations: int | None = None  # on the GPU, when the trace started
        self._step_name = ""  # of traced steps, once that is known
        self._timed_until = 0  # boundaries when the steps had been timed
        self._is_large = False  # whether memory may get short while steps are traced

    @contextlib.contextmanager
    def pausing(self, what: str) -> Iterator[None]:
        """Measure how long the program waits for us."""
        began = time.monotonic()
        try:
            yield
        finally:
            seconds = self.pauses.get(what, 0.0) + time.monotonic() - began
            self.pauses[what] = seconds

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
            "begin probe": self._begin_probe,
            "probe step": self._trace_step,
            "end probe": self._end_probe,
            "begin trace": self._begin_trace,
            "trace step": self._trace_step,
            "end trace": self._end_trace,
            "begin memory": self._begin_memory,
            "memory step": self._memory_step,
            "end memory": self._end_memory,
        }
        self.restarted = self.refused = self.ended = False
        actions[action]()

    def record_seconds(self, stop: threading.Event, seconds: float) -> None:
        """Trace for ``seconds``, then record memory history for as long."""
        if not self.record_window(stop, seconds):
            # The main thread waits, as in a server: what the others do is recorded.
            self._start_window(all_threads=True)
            stop.wait(seconds)
            self._end_window()
        self.rank.missing("step_time", "--steps-by time records seconds, not steps")
        if not self.options["no_memory"]:
            self._begin_memory()
            if self._history is not None:
                stop.wait(seconds)
                self._end_memory()

    def record_window(self, stop: threading.Event, seconds: float) -> bool:
        """Trace what the main thread does for ``seconds``; False if it does nothing."""
        begun = main_thread.run(lambda: self._start_window(all_threads=False), START_S)
        if begun:
            stop.wait(seconds)
            main_thread.run(self._end_window, LONGEST_S)  # or else when it ends
        return begun

    def _start_window(self, *, all_threads: bool) -> None:
        self._start_trace(active=0, all_threads=all_threads)

    def _end_window(self) -> None:
        trace = self._stop_trace()
        if trace is not None and trace.recorded():
            self._keep(trace)
            if trace.lacks_threads:
                self.rank.missing(
                    "host ops", "this version of torch cannot record all threads"
                )

    def end_early(self) -> None:
        """Write what was recorded so far."""
        if self._timer is not None:
            self._end_timing()
        trace = self._stop_trace()
        if trace is not None and trace.recorded() and (trace.steps or trace.is_window):
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

    def begin_again(self) -> None:
        """Record other steps in place of those that were recorded."""
        self.size = TraceSize(
            self.options["active"], stacks=not self.options["no_stack"]
        )
        self.attempts = []
        self.incomplete = False
        self.rank.begin_again()

    def wait(self) -> None:
        """Wait until all files are written."""
        self.background.wait(LONGEST_S)

    # Timing.

    def needs_more_laps(self) -> bool:
        """Return whether some steps take longer, and it is not seen yet how often."""
        return self._timer is not None and self._timer.needs_more()

    def starts_typical(self, seen: int) -> bool:
        """Return whether no long step is expected among those traced from here on."""
        long = self._long_residues()
        period = self._pattern().period
        if period is None or self.size.whole_period or not long:
            return True
        steps = range(seen + LEAD_IN + 1, seen + LEAD_IN + self.size.steps + 1)
        return not any(step % period in long for step in steps)

    def _begin_timing(self) -> None:
        peak_memory.reset(self.options)
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
        timed = timer.result() if timer is not None else None
        self._timed_until = self.seen
        if timed is not None:
            self.rank.save(step_time=timed, **peak_memory.facts(self.options))

    def _pattern(self) -> Pattern:
        timed = self.rank.facts.get("step_time")
        if not timed:
            return Pattern()
        return Pattern(timed["ms"], _typical_ms(timed), timed["period"])

    def _long_residues(self) -> set[int]:
        """Return which steps of a period are long, as numbers modulo the period."""
        timed = self.rank.facts.get("step_time")
        if not timed or not timed["period"]:
            return set()
        laps = timed["laps_ms"]
        first = self._timed_until - len(laps) + 1
        long = step_pattern.long_places(laps)
        return {(first + place) % timed["period"] for place in long}

    # Tracing.

    def _begin_probe(self) -> None:
        if self._is_refused():
            return
        self._drop_stacks_if_compiling()
        self._probes = True
        self._start_trace(1)

    def _end_probe(self) -> None:
        self._trace_step()
        self._probes = False
        if self.restarted or self.ended:
            return
        trace = self._stop_trace()
        if trace is None:
            self.refused = True
            return
        probe = Probe(trace.size(), trace.python_share(), self._probed_ms())
        most = self._most_events(trace.event_bytes(self.rank.folder))
        trace.release()
        self._is_large = probe.events > _LARGE
        free = self.alone and self.options["active"] == Plan.active
        size = choose(self.size, probe, self._pattern(), most, free=free)
        if size.stacks != self.size.stacks:
            self._drop_stacks(f"{size.why}: with stacks it exceeds --max-mb")
        if not size.steps:
            self.rank.missing("trace", f"{size.why}: one step exceeds --max-mb")
            self.refused = True
        elif size.steps < self.size.steps:
            self.rank.note(f"{_steps(size.steps)} traced: {size.why}")
        self.size = size

    def _probed_ms(self) -> float:
        """Return the duration of the probed step, as the steps were timed."""
        timed = self.rank.facts.get("step_time")
        if not timed:
            return Pattern.typical_ms
        period = timed["period"]
        is_long = bool(period) and self.seen % period in self._long_residues()
        return float(timed["long_steps"]["ms"] if is_long else _typical_ms(timed))

    def _most_events(self, event_bytes: int) -> int:
        """Return the maximum number of events of a trace: by its size and by memory."""
        most = int(self.options["max_mb"]) * MEGABYTE // event_bytes
        free = free_memory()
        return most if free is None else min(most, free // 2 // EVENT_MEMORY)

    def _begin_trace(self) -> None:
        if self._is_refused():
            return
        self._drop_stacks_if_compiling()
        self._start_trace(self.size.steps)

    def _is_refused(self) -> bool:
        foreign = other_profilers.attached(dict(os.environ))
        if foreign is not None:
            self.rank.missing("trace", f"{foreign} is attached to the program")
            self.refused = True
        return self.refused

    def _start_trace(self, active: int, *, all_threads: bool = False) -> None:
        self._compiles_at_start = self._compiles
        self._first = self.seen + LEAD_IN + 1 if active else None
        self._allocations = torch_state.gpu_allocations()
        self._trace = Trace(
            cuda=torch_state.uses_cuda(),
            active=active,
            stacks=self.size.stacks,
            memory=not self.options["no_memory"],
            profiled_before=self.others.seen,
            step_name=self._step_name,
            all_threads=all_threads,
        )
        self._step_name = self._trace.step_name if active else ""
        with self.pausing("start of the profiler"), self.others.ours():
            self._trace.start()

    def _stop_trace(self) -> Trace | None:
        trace, self._trace = self._trace, None
        if trace is not None:
            with self.pausing("end of the profiler"), self.others.ours():
                trace.stop()
        return trace

    def _trace_step(self) -> None:
        if self._trace is None:
            return
        with self.others.ours():
            self._trace.step()
        compiled = self._compiles != self._compiles_at_start
        if self.size.stacks and compiled:
            why = "torch compiled something during the traced steps"
            trace = self._stop_trace()
            self._drop_stacks(why)
            self._again(trace, why)
        elif self._is_large and _memory_is_short():
            self._end_short()

    def _end_short(self) -> None:
        """End the trace with the steps that it has: memory is short."""
        trace = self._stop_trace()
        self.ended = True
        if trace is not None and trace.steps:
            self.rank.note(f"{_steps(len(trace.steps))} traced, then memory was short")
            self._keep(trace)
        else:
            self.rank.missing("trace", "memory was short")

    def _drop_stacks_if_compiling(self) -> None:
        if self._compiles and self._quiet < Plan.quiet:
            self._drop_stacks("the program compiles in every step")

    def _drop_stacks(self, why: str) -> None:
        if self.size.stacks:
            self.size = TraceSize(
                self.size.steps, stacks=False, whole_period=self.size.whole_period
            )
            self.rank.missing("stacks", why)

    def _again(self, trace: Trace | None, why: str) -> None:
        """Throw a trace away and start again."""
        self.attempts.append(
            {
                "stacks": trace is not None and trace.stacks,
                "steps": trace.steps if trace is not None else [],
                "first_step": self._first,
                "why": why,
            }
        )
        if self._probes:
            self._start_trace(1)
        else:
            self._start_trace(self.size.steps)
        self.restarted = True

    def _end_trace(self) -> None:
        self._trace_step()
        if self.restarted or self.ended:
            return
        trace = self._stop_trace()
        if trace is None:
            return
        if self._lost_gpu_work(trace) and len(self.attempts) < MOST_ATTEMPTS - 1:
            if self.attempts:  # other steps did not help: less detail
                self._drop_stacks("with stacks, no GPU work was recorded")
            self._again(trace, "the profiler recorded no GPU work")
            return
        self._keep(trace)

    def _lost_gpu_work(self, trace: Trace) -> bool:
        """Return whether GPU work is missing from a trace, as the GPU was used."""
        if not trace.lacks_gpu_work():
            return False
        now = torch_state.gpu_allocations()
        return now is None or now != self._allocations

    def _window(self, trace: Trace) -> str:
        """Return the kind of the traced steps: period, typical or consecutive."""
        if self.size.whole_period and len(trace.steps) == self.size.steps:
            return "period"
        timed = self.rank.facts.get("step_time")
        if not timed or not timed["period"] or self._first is None:
            return "consecutive"
        steps = range(self._first, self._first + len(trace.steps))
        long = self._long_residues()
        typical = not any(step % timed["period"] in long for step in steps)
        return "typical" if typical else "consecutive"

    def _keep(self, trace: Trace) -> None:
        """Have the trace written, and put what is known of it into the manifest."""
        self.rank.report("writing", 0, 0)
        file = self.rank.path(".trace.json.gz")
        self.incomplete = self._lost_gpu_work(trace)
        if self.incomplete:
            self.rank.missing("GPU work", self._why_no_gpu_work())
        self.rank.save(
            trace={
                "file": file.name,
                "bytes": None,
                "events": trace.size(),
                "steps": trace.steps,
                "step_name": trace.step_name,
                "first_step": self._first,
                "window": self._window(trace) if trace.steps else "time",
                "activities": trace.activities,
                "shapes": True,
                "stacks": trace.stacks,
                "memory_events": trace.memory,
                "compiled_during_trace": self._compiles != self._compiles_at_start,
                "open_functions": trace.open_functions,
                "attempts": self.attempts,
                "call_lines": None,
                "write_seconds": None,
            }
        )
        trace.release()
        self._write("trace", lambda: _trace_facts(trace, file, self._source_folder()))

    def _write(self, what: str, work: Callable[[], dict[str, Any]]) -> None:
        """Write a file in the background; what it learns is added to the manifest."""
        folder, name = self.rank.folder, self.rank.name or ""

        def write() -> None:
            try:
                facts = work()
            except TooLargeError as error:
                facts = {what: None, "missing": [{"what": what, "why": str(error)}]}
            except Exception as error:  # noqa: BLE001 - said in the manifest
                why = f"it could not be written: {type(error).__name__}: {error}"
                facts = {what: None, "missing": [{"what": what, "why": why}]}
            additions.leave(folder, name, what, facts)

        self.background.cancel(f"{name}.{what}")  # of what is replaced now
        with self.pausing("fork to write"):
            self.background.run(f"{name}.{what}", write)
        self.rank.save()

    def _source_folder(self) -> Path | None:
        if self.options["no_source"]:
            return None
        return self.rank.folder / sources.FOLDER

    def copy_sources(self, files: dict[str, str]) -> None:
        """Copy these of the program's own files too, unless told not to."""
        folder = self._source_folder()
        if folder is None or files.items() <= self.files.items():
            return
        self.files = {**files, **self.files}
        copied, notes = sources.copy(self.files, folder)
        for text in notes:
            self.rank.note(text)
        self.rank.save(sources=copied)

    @property
    def tracing(self) -> bool:
        """True if our profiler is set up or running."""
        return self._trace is not None

    def _why_no_gpu_work(self) -> str:
        cause = (
            "it profiled itself before, which may have left CUPTI unusable"
            if self.others.seen
            else "another tool may hold CUPTI, or the traced steps did not use the GPU"
        )
        return f"the profiler recorded none, though the program uses CUDA; {cause}"

    # Memory.

    def _begin_memory(self) -> None:
        self._memory_steps = 0
        if self.oom is not None:
            self.oom.keep(on=False)
        why = memory_history.why_not(cuda=torch_state.uses_cuda())
        if why is not None:
            self.rank.missing("memory", why)
            self.refused = True
            return
        self._history = MemoryHistory()
        memory_labels.annotate()

    def _memory_step(self) -> None:
        self._memory_steps += 1
        memory_labels.annotate()

    def _end_memory(self) -> None:
        history, self._history = self._history, None
        if history is None:
            return
        self.rank.report("writing", 0, 0)
        file = self.rank.path(".memory.pickle.gz")
        with self.pausing("memory snapshot"):
            try:
                snapshot = history.snapshot()
            finally:
                history.stop()
        self.rank.save(
            memory={
                "file": file.name,
                "bytes": None,
                "steps": self._memory_steps,
                "max_entries": history.ENTRIES,
            }
        )
        self._write(
            "memory",
            lambda: {"memory": {"bytes": memory_history.write(snapshot, file)}},
        )


def _trace_facts(trace: Trace, file: Path, folder: Path | None) -> dict[str, Any]:
    """Write a trace and the sources that it names; return facts about them."""
    began = time.monotonic()
    size = trace.write(file)
    facts: dict[str, Any] = {
        "trace": {
            "bytes": size,
            "call_lines": len(trace.callers.lines),
            "write_seconds": round(time.monotonic() - began, 3),
        }
    }
    if trace.stacks and trace.no_lines:
        facts["missing"] = [{"what": "lines of calls", "why": trace.no_lines}]
    if folder is not None:
        facts["sources"], facts["notes"] = sources.copy(trace.callers.files, folder)
    return facts


def _steps(count: int) -> str:
    return "1 step was" if count == 1 else f"{count} steps were"


def _memory_is_short() -> bool:
    free = free_memory()
    return free is not None and free < _SHORT_MEMORY


def _typical_ms(timed: dict[str, Any]) -> float:
    """Return the mean time of the steps that are not long."""
    long = timed["long_steps"]
    return float(long["typical_ms"] if long else timed["ms"])
