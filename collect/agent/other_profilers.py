"""Other profilers: the program's own, which takes precedence, and attached tools.

Starting a second profiler raises an error, which would be in the program. Every way to
start torch's profiler goes through two methods of one class, which are watched while
we are armed. Where CUPTI detaches after profiles, they stay watched: each profile of
the program needs a CUDA call before and after it.
"""

from __future__ import annotations

import contextlib
import gc
import os
from typing import Any, Callable, Iterator

import torch

from . import torch_state

DETACH = "TEARDOWN_CUPTI"  # read by Kineto when a profile starts and stops


class OtherProfilers:
    """Knows whether the program profiles itself; calls ``stop`` when it starts to."""

    def __init__(self, stop: Callable[[], None]) -> None:
        self.stop = stop
        self.seen = False
        self._running = 0
        self._ours = False
        self._armed = True
        self._undo: Callable[[], None] = _nothing

    @property
    def active(self) -> bool:
        """True if a profiler other than ours is set up or running."""
        enabled = getattr(torch.autograd, "_profiler_enabled", None)
        return self._running > 0 or bool(enabled is not None and enabled())

    @contextlib.contextmanager
    def ours(self) -> Iterator[None]:
        """Mark profilers started and stopped inside as ours."""
        self._ours = True
        try:
            yield
        finally:
            self._ours = False

    def install(self) -> None:
        """Start watching."""
        watched: Any = torch.autograd.profiler.profile
        prepare, leave = watched._prepare_trace, watched.__exit__  # noqa: SLF001

        def prepare_trace(this: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._ours:
                self._begins()
            return prepare(this, *args, **kwargs)

        def leave_trace(this: Any, *args: Any, **kwargs: Any) -> Any:
            if self._ours:
                return leave(this, *args, **kwargs)
            self._running = max(0, self._running - 1)
            try:
                return leave(this, *args, **kwargs)
            finally:
                complete_detaching()

        watched._prepare_trace = prepare_trace  # noqa: SLF001
        watched.__exit__ = leave_trace

        def undo() -> None:
            watched._prepare_trace = prepare  # noqa: SLF001
            watched.__exit__ = leave

        self._undo = undo

    def remove(self) -> None:
        """Stop watching; what CUPTI needs around profiles stays."""
        self._armed = False
        if os.environ.get(DETACH) != "1":
            undo, self._undo = self._undo, _nothing
            undo()

    def _begins(self) -> None:
        if self._armed:
            self.seen = True
            self._running += 1
            with contextlib.suppress(Exception), self.ours():
                self.stop()
        complete_detaching()


def complete_detaching() -> None:
    """Let CUPTI detach now, if it is to detach after profiles."""
    if os.environ.get(DETACH) == "1":
        with contextlib.suppress(Exception):  # the program must continue
            torch_state.call_cuda()


def marks_steps() -> bool:
    """Return whether a profiler of the program marks its steps, recording or not."""
    return any(
        issubclass(type(item), torch.profiler.profile)
        and getattr(item, "step_rec_fn", None) is not None
        for item in gc.get_objects()
    )


def attached(environment: dict[str, str]) -> str | None:
    """Return the name of a profiler attached from outside the program, if any."""
    if any(name.startswith(("NSYS_", "QUADD_")) for name in environment):
        return "Nsight Systems"
    if "NV_COMPUTE_PROFILER_PERFWORKS_DIR" in environment:
        return "Nsight Compute"
    for name in ("CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH"):
        if environment.get(name):
            return f"the tool named by {name}"
    return None


def _nothing() -> None:
    pass
