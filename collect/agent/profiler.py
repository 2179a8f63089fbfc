"""A few steps of the program under torch's profiler, and the trace that it writes."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerAction, ProfilerActivity

from .callers import MOST_EVENTS, TOO_MANY, Callers
from .files import MEGABYTE, TooLargeError, check_room, compressed
from .other_profilers import marks_steps
from .schedule import LEAD_IN

cuda_api: Any = torch.cuda  # parts of it have no types
autograd: Any = torch.autograd
_CPU = autograd.DeviceType.CPU

DETACH = "TEARDOWN_CUPTI"  # read by Kineto when a profile starts and stops
PROFILER_STEP = "ProfilerStep"
COLLECTED_STEP = "traceq: step"
EVENT_BYTES = 450  # of JSON per event, on average, with shapes and stacks


class Trace:
    """A few whole steps of the program under torch's profiler.

    With 0 ``active`` steps it holds what happens from start to stop, in all threads if
    this version of torch can record them, which ``all_threads`` states.
    """

    def __init__(
        self,
        *,
        cuda: bool,
        active: int,
        stacks: bool,
        memory: bool,
        profiled_before: bool = False,
    ) -> None:
        # Where the program marks its steps too, ours have another name.
        theirs = active and marks_steps()  # which takes a while to find out
        self.step_name = COLLECTED_STEP if theirs else PROFILER_STEP
        self.stacks = stacks
        self.memory = memory and cuda
        self.activities = ["CPU", "CUDA"] if cuda else ["CPU"]
        self.steps: list[int] = []
        self.open_functions: list[dict[str, Any]] = []
        self.callers = Callers()
        self.no_lines = ""  # why the trace does not say where calls were made
        self._active = active
        self._rss = _resident_bytes()
        self._profiled_before = profiled_before
        config = self._config() if active == 0 else None
        self.all_threads = config is not None
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
        # torch 2.10 to 2.12 warn whenever a profiler is set up that does not accumulate
        # events; one that does turns each event into a Python object when it stops.
        self.profiler.acc_events = True
        # Torch's profiler of stacks puts its own in this place, and leaves it empty.
        self._profile_function = sys.getprofile()
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
        if self._profile_function is not None and sys.getprofile() is None:
            sys.setprofile(self._profile_function)

    def grown(self) -> int:
        """Return by how many bytes the process has grown since the trace started."""
        return max(0, _resident_bytes() - self._rss)

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

    def estimated_bytes(self) -> int:
        """Return the estimated size of the file before compression."""
        return len(self._events()) * EVENT_BYTES

    def _events(self) -> Any:
        inner = self.profiler.profiler
        if inner is None or inner.kineto_results is None:
            return []
        return inner.kineto_results.events()

    def write(self, file: Path, *, max_bytes: int) -> int:
        """Write the compressed trace and return its size."""
        expected = self.estimated_bytes()
        if expected > max_bytes:
            msg = f"it would have about {expected // MEGABYTE} MB, more than --max-mb"
            raise TooLargeError(msg)
        check_room(file.parent, expected + expected // 5)
        plain = file.with_name("." + file.name.replace(".gz", ""))
        try:
            self.profiler.export_chrome_trace(str(plain))
            if plain.stat().st_size > max_bytes:
                size = plain.stat().st_size // MEGABYTE
                msg = f"it has {size} MB, more than --max-mb"
                raise TooLargeError(msg)
            self.callers = self._callers()
            with plain.open("rb") as source, compressed(file) as target:
                for block in self.callers.written(source):
                    target.write(block)
        finally:
            with contextlib.suppress(OSError):
                plain.unlink()
        return file.stat().st_size

    def _callers(self) -> Callers:
        """Return where the Python calls were made, as far as this torch says so."""
        found = Callers()
        self.no_lines = "there are no stacks" if not self.stacks else ""
        if not self.no_lines and len(self._events()) > MOST_EVENTS:
            self.no_lines = TOO_MANY.format(most=MOST_EVENTS)
        if self.no_lines:
            return found
        try:
            found.find(self.profiler.profiler.kineto_results)  # type: ignore[union-attr]
        except Exception as error:  # noqa: BLE001 - private to torch, and no must
            self.no_lines = f"torch does not say them: {type(error).__name__}"
            return Callers()
        return found

    @staticmethod
    def _config() -> Any:
        return _all_threads()

    def _action(self, step: int) -> ProfilerAction:
        if step < LEAD_IN:
            return ProfilerAction.WARMUP
        if step < LEAD_IN + self._active - 1:
            return ProfilerAction.RECORD
        if step == LEAD_IN + self._active - 1:
            return ProfilerAction.RECORD_AND_SAVE
        return ProfilerAction.NONE


class CaptureTrace(Trace):
    """The capture of a CUDA graph, in the threads that it runs in."""

    def __init__(self, *, cuda: bool, stacks: bool) -> None:
        # Whether CUPTI detaches afterwards is for all captures to decide, not for one.
        super().__init__(
            cuda=cuda, active=0, stacks=stacks, memory=False, profiled_before=True
        )

    @staticmethod
    def _config() -> Any:
        return None


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
    """Return the functions that are running, and the line at which each begins.

    The profiler names those that run when it starts by the line that they are at.
    """
    found = []
    frame: Any = sys._getframe(1)  # noqa: SLF001 - what inspect uses
    while frame is not None:
        code = frame.f_code
        entry = {
            "file": os.path.basename(code.co_filename),
            "function": code.co_name,
            "line": code.co_firstlineno,
        }
        found.append(entry)
        frame = frame.f_back
    return found[::-1]


def _all_threads() -> Any:
    try:
        return torch._C._profiler._ExperimentalConfig(  # noqa: SLF001
            profile_all_threads=True
        )
    except (AttributeError, TypeError):  # torch before 2.7
        return None


_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 0


def _resident_bytes() -> int:
    """Return the resident set size of the process; 0 where it is not known."""
    # At each traced step, so as few Python calls as can be: they would be recorded.
    try:
        with open("/proc/self/statm", "rb", buffering=0) as file:
            return int(file.read(100).split()[1]) * _PAGE_BYTES
    except (OSError, ValueError, IndexError):
        return 0
