"""A few steps of the program under torch's profiler, and the trace that it writes."""

from __future__ import annotations

import contextlib
import gc
import os
import re
import sys
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerAction, ProfilerActivity

from . import torch_state
from .callers import MOST_EVENTS, TOO_MANY, Callers
from .files import check_room, compressed
from .other_profilers import DETACH, complete_detaching, marks_steps
from .schedule import LEAD_IN

cuda_api: Any = torch.cuda  # parts of it have no types
autograd: Any = torch.autograd
_CPU = autograd.DeviceType.CPU

PROFILER_STEP = "ProfilerStep"
COLLECTED_STEP = "traceq: step"
EVENT_BYTES = 550  # of JSON per event with shapes and stacks, 3 sizes on an H200
_FEW_EVENTS = 30_000  # which are written in 0.1 s
_SAMPLED = 2000  # events that are looked at to tell how many are Python calls
_PYTHON_CALL = re.compile(r".*\(\d+\): |<built-in |nn\.Module: ")


class Trace:
    """A few whole steps of the program under torch's profiler.

    With 0 ``active`` steps it holds what happens from start to stop, in ``all_threads``
    if this version of torch can record them.
    """

    def __init__(  # noqa: PLR0913 - what is recorded, by name
        self,
        *,
        cuda: bool,
        active: int,
        stacks: bool,
        memory: bool,
        profiled_before: bool = False,
        step_name: str = "",
        all_threads: bool = False,
    ) -> None:
        self.step_name = step_name or (choose_step_name() if active else PROFILER_STEP)
        self.stacks = stacks
        self.memory = memory and cuda
        self.activities = ["CPU", "CUDA"] if cuda else ["CPU"]
        self.steps: list[int] = []
        self.open_functions: list[dict[str, Any]] = []
        self.callers = Callers()
        self.no_lines = ""  # why the trace does not say where calls were made
        self._active = active
        self._listed: Any = None
        self._profiled_before = profiled_before
        self.is_window = active == 0
        config = _all_threads() if all_threads else None
        self.lacks_threads = all_threads and config is None
        self.profiler = torch.profiler.profile(
            activities=[getattr(ProfilerActivity, name) for name in self.activities],
            schedule=self._action if active else None,
            experimental_config=config,
            record_shapes=True,
            with_stack=stacks,
            profile_memory=self.memory,
        )
        self.profiler.record_steps = False  # the name of a step is ours to choose
        self._mark: Any = None
        self._profile_function: Any = None

    def start(self) -> None:
        """Set the profiler up; it records once the lead-in is over."""
        if "CUDA" in self.activities and not self._profiled_before:
            _detach_afterwards()
        complete_detaching()
        # torch 2.10 to 2.12 warn whenever a profiler is set up that does not accumulate
        # events; one that does turns each event into a Python object when it stops.
        self.profiler.acc_events = True
        # Torch's profiler of stacks puts its own in this place, and leaves it empty.
        self._profile_function = sys.getprofile()
        with torch_state.without_import_of_inductor():
            self.profiler.start()
        self.profiler.acc_events = False
        if self.profiler.profiler is not None:
            self.profiler.profiler.acc_events = False
        self._begin_step()

    def step(self) -> None:
        """Note that a step has ended."""
        step = self.profiler.step_num
        if step == LEAD_IN - 1:
            self.open_functions = open_functions()
        self._end_step()
        self.profiler.step()
        self._begin_step()
        if LEAD_IN <= step < LEAD_IN + self._active:
            self.steps.append(step)

    def _begin_step(self) -> None:
        if self._active:
            name = f"{self.step_name}#{self.profiler.step_num}"
            self._mark = torch.profiler.record_function(name)
            self._mark.__enter__()

    def _end_step(self) -> None:
        mark, self._mark = self._mark, None
        if mark is not None:
            mark.__exit__(None, None, None)

    def stop(self) -> None:
        """Stop recording, whatever the phase."""
        self._end_step()
        self.profiler.stop()
        complete_detaching()
        if self._profile_function is not None and sys.getprofile() is None:
            sys.setprofile(self._profile_function)

    def recorded(self) -> bool:
        """Return whether there is anything to write."""
        inner = self.profiler.profiler
        return inner is not None and inner.kineto_results is not None

    def lacks_gpu_work(self) -> bool:
        """Return whether the program uses CUDA, but no GPU work was recorded."""
        return "CUDA" in self.activities and not any(
            event.device_type() != _CPU
            and not event.name().startswith("[")  # [memory] is of a device too
            for event in self._events()
        )

    def size(self) -> int:
        """Return the number of recorded events."""
        return len(self._events())

    def python_share(self) -> float:
        """Return about which fraction of the events are Python calls."""
        events = self._events()
        sample = events[:: max(1, len(events) // _SAMPLED)]
        calls = sum(bool(_PYTHON_CALL.match(event.name())) for event in sample)
        return calls / len(sample) if sample else 0.0

    def event_bytes(self, folder: Path) -> int:
        """Return the mean size of an event's text, in bytes.

        Few events may have much of it, such as long lists of numbers: where there are
        few, they are written to see.
        """
        if not 0 < self.size() <= _FEW_EVENTS:
            return EVENT_BYTES
        file = folder / f".{os.getpid()}.probe.json"
        try:
            self.profiler.export_chrome_trace(str(file))
            return max(1, file.stat().st_size // self.size())
        except (OSError, RuntimeError):  # the disk is full
            return EVENT_BYTES
        finally:
            with contextlib.suppress(OSError):
                file.unlink()

    def release(self) -> None:
        """Free the list of events, which would slow garbage collections down."""
        self._listed = None

    def _events(self) -> Any:
        inner = self.profiler.profiler
        if inner is None or inner.kineto_results is None:
            return []
        if self._listed is None:  # torch makes an object of each event: once
            self._listed = inner.kineto_results.events()
        return self._listed

    def write(self, file: Path) -> int:
        """Write the compressed trace and return its size."""
        expected = self.size() * EVENT_BYTES
        self.release()
        check_room(file.parent, expected + expected // 5)
        plain = file.with_name("." + file.name.replace(".gz", ""))
        try:
            self.profiler.export_chrome_trace(str(plain))
            self.callers = self._callers()
            with plain.open("rb") as source, compressed(file) as target:
                for block in self.callers.written(source):
                    target.write(block)
        finally:
            with contextlib.suppress(OSError):
                plain.unlink()
        return file.stat().st_size

    def _callers(self) -> Callers:
        """Return the lines of the Python calls, as far as this torch records them."""
        callers = Callers()
        self.no_lines = "there are no stacks" if not self.stacks else ""
        if not self.no_lines and self.size() > MOST_EVENTS:
            self.no_lines = TOO_MANY.format(most=MOST_EVENTS)
        if self.no_lines:
            return callers
        try:
            callers.find(self.profiler.profiler.kineto_results)
        except Exception as error:  # noqa: BLE001 - private to torch, and no must
            self.no_lines = f"torch does not say them: {type(error).__name__}"
            return Callers()
        return callers

    def _action(self, step: int) -> ProfilerAction:
        if step < LEAD_IN:
            return ProfilerAction.WARMUP
        if step < LEAD_IN + self._active - 1:
            return ProfilerAction.RECORD
        if step == LEAD_IN + self._active - 1:
            return ProfilerAction.RECORD_AND_SAVE
        return ProfilerAction.NONE


def choose_step_name() -> str:
    """Return the name of a step, which differs from the program's own marks.

    It takes 0.1 s or more to find out.
    """
    return COLLECTED_STEP if marks_steps() else PROFILER_STEP


class CaptureTrace(Trace):
    """The capture of a CUDA graph, in the threads that it runs in."""

    def __init__(self, *, cuda: bool, stacks: bool) -> None:
        # All captures together decide whether CUPTI detaches afterwards, not one.
        super().__init__(
            cuda=cuda, active=0, stacks=stacks, memory=False, profiled_before=True
        )


def _detach_afterwards() -> None:
    """Have CUPTI detach when the recording stops.

    Otherwise it stays attached and adds to every launch for the rest of the program.
    Where the program holds CUDA graphs it stays: they have crashed when it came back.

    Kineto looks at the variable when a profile starts, too, and attaches CUPTI again
    only if it is set. So all profiles of a process must agree, or those after a change
    record no GPU work: it is not set after a profile without it, and it stays set.
    """
    graph = getattr(cuda_api, "CUDAGraph", ())
    if DETACH in os.environ or "torch._inductor.cudagraph_trees" in sys.modules:
        return
    if not any(issubclass(type(value), graph) for value in gc.get_objects()):
        os.environ[DETACH] = "1"


def open_functions() -> list[dict[str, Any]]:
    """Return the functions that are running: where each begins, and where it is.

    The profiler names those that run when it starts by the line that they are at.
    """
    functions = []
    frame: Any = sys._getframe(1)  # noqa: SLF001 - what inspect uses
    while frame is not None:
        code = frame.f_code
        entry = {
            "file": os.path.basename(code.co_filename),
            "function": code.co_name,
            "line": code.co_firstlineno,
            "at": frame.f_lineno,
        }
        functions.append(entry)
        frame = frame.f_back
    return functions[::-1]


def _all_threads() -> Any:
    try:
        return torch._C._profiler._ExperimentalConfig(  # noqa: SLF001
            profile_all_threads=True
        )
    except (AttributeError, TypeError):  # torch before 2.7
        return None
