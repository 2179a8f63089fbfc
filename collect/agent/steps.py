"""Step boundaries: the end of one step and the start of the next.

There are no global module hooks: they slow every module down, make torch.compile warn
and cause graph breaks. Optimizer steps are counted by torch's global optimizer hook.
Modules are found by sampling the stacks of the running threads; those that no other
module calls get a hook.
"""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from typing import Any, Callable

import torch
from torch.optim.optimizer import Optimizer

from .optimizer_hook import after_optimizer_steps
from .repeated_calls import RepeatedCalls

MARK = "traceq: step"

Boundary = Callable[[], None]


class Source:
    """Calls ``boundary`` where a step ends."""

    of = ""  # what the steps are of: the class of an optimizer or a module

    def __init__(self, boundary: Boundary) -> None:
        self.boundary = boundary

    def install(self) -> None:
        """Start watching."""

    def remove(self) -> None:
        """Remove all hooks."""

    def traced(self, *, on: bool) -> None:
        """Note that steps are being traced from now on, or no longer."""

    def parameters(self) -> int | None:
        """Return the number of parameters that a step updates, where it is known."""
        return None


class OptimizerSteps(Source):
    """A step ends where ``step()`` of one optimizer, the first one used, returns.

    Other optimizers, as in a GAN, do not count, and neither does a step that a
    GradScaler skipped. If the first optimizer is gone, or idle while another of its
    thread made STALE steps, that other one takes its place.
    """

    STALE = 20

    def __init__(self, boundary: Boundary) -> None:
        super().__init__(boundary)
        self._chosen: weakref.ref[Optimizer] | None = None
        self._parameters: int | None = None  # of the chosen one
        self._thread: int | None = None  # whose optimizers count
        self._others = 0
        self._end: Callable[[], None] = _nothing
        self._annotation = _AfterAnnotation()

    def install(self) -> None:
        self._end = after_optimizer_steps(self._stepped)

    def remove(self) -> None:
        self._annotation.remove()
        self._end()

    def traced(self, *, on: bool) -> None:
        if on:
            self._annotation.install()
        else:
            self._annotation.remove()

    def parameters(self) -> int | None:
        return self._parameters

    def _stepped(self, optimizer: Optimizer) -> None:
        thread, before = this_thread(), self._thread
        if before not in (None, thread) and runs(before):
            self.boundary()  # which ends no step of that thread
            return
        self._thread = thread
        if self._counts(optimizer, moved=thread != before):
            self._annotation.after(self.boundary)

    def _counts(self, optimizer: Optimizer, *, moved: bool) -> bool:
        chosen = self._chosen() if self._chosen is not None else None
        if chosen is optimizer:
            self._others = 0
            return True
        self._others += 1
        if chosen is not None and not moved and self._others < self.STALE:
            return False
        self._chosen = weakref.ref(optimizer)
        self._parameters = _parameters(optimizer)  # it may be gone when they are asked
        self._others = 0
        self.of = type(optimizer).__name__
        return True


def _parameters(optimizer: Optimizer) -> int | None:
    groups = optimizer.param_groups
    with contextlib.suppress(Exception):  # this is inside of the program's step
        return sum(int(param.numel()) for group in groups for param in group["params"])
    return None


def this_thread() -> int | None:
    """Return the running thread, which ``runs`` knows even if C++ has started it."""
    return threading.current_thread().ident


def runs(thread: int | None) -> bool:
    """Return whether a thread has not ended."""
    return thread in {item.ident for item in threading.enumerate()}


class _AfterAnnotation:
    """Runs a callback when the annotation ``Optimizer.step#...`` has ended.

    torch calls the optimizer hook inside that annotation: ending a step there would
    cut it in two, and stopping the profiler there would leave it open. So, for the
    few traced steps, the end of annotations is watched.
    """

    def __init__(self) -> None:
        self._due: Boundary | None = None
        self._thread = 0  # in which the annotation ends
        self._undo: Callable[[], None] | None = None

    def install(self) -> None:
        if self._undo is None:
            self._undo = after_annotations(self._ended)

    def remove(self) -> None:
        undo, self._undo = self._undo, None
        if undo is not None:
            undo()

    def after(self, boundary: Boundary) -> None:
        """Call ``boundary`` after the annotation, or now if none is watched."""
        if self._undo is None:
            boundary()
            return
        self._thread = threading.get_ident()
        late, self._due = self._due, boundary
        if late is not None:  # the end never came: this torch works differently
            self._due = None
            self.remove()
            boundary()

    def _ended(self, name: str) -> None:
        here = threading.get_ident() == self._thread
        if here and self._due is not None and name.startswith("Optimizer.step#"):
            due, self._due = self._due, None
            due()


def after_annotations(ended: Callable[[str], None]) -> Callable[[], None]:
    """Call ``ended`` with the name of every annotation that ends; return an undo.

    An annotation that is already open is not seen: ``with`` looked up its ``__exit__``
    when it was entered.
    """
    annotation: Any = torch.autograd.profiler.record_function
    original = annotation.__exit__

    def leave(this: Any, *error: Any) -> Any:
        result = original(this, *error)
        ended(str(getattr(this, "name", "")))
        return result

    def undo() -> None:
        annotation.__exit__ = original

    annotation.__exit__ = leave
    return undo


class ForwardSteps(Source):
    """A step ends where a call ends that repeats: of the outermost module, mostly."""

    def __init__(
        self, boundary: Boundary, restart: Callable[[], bool] = lambda: True
    ) -> None:
        super().__init__(boundary)
        self.calls = RepeatedCalls(self._ended, restart)

    @property
    def of(self) -> str:  # type: ignore[override] # it may change
        return self.calls.of

    def install(self) -> None:
        self.calls.install()

    def remove(self) -> None:
        self.calls.remove()

    def _ended(self) -> None:
        self.boundary()


class MarkSteps(Source):
    """A step ends where the program leaves ``record_function("traceq: step")``."""

    of = MARK

    def __init__(self, boundary: Boundary) -> None:
        super().__init__(boundary)
        self._undo: Callable[[], None] = _nothing

    def install(self) -> None:
        self._undo = after_annotations(self._ended)

    def remove(self) -> None:
        undo, self._undo = self._undo, _nothing
        undo()

    def _ended(self, name: str) -> None:
        if name == MARK:
            self.boundary()


class CalledSteps(Source):
    """A step ends where the program calls ``step()`` of its recording."""

    by = "call"


class AutoSteps(Source):
    """Optimizer steps if there are any, otherwise calls that repeat.

    Calls count from the first one; an optimizer that steps later takes over, and
    counting restarts. Where an optimizer exists but has not stepped, calls that compute
    gradients count only after DOUBT_S seconds: they are the first of many
    micro-batches. A CUDA graph that is replayed REPLAYS times while the optimizer does
    not step has captured its steps.
    """

    DOUBT_S = 30.0
    REPLAYS = 50

    def __init__(
        self,
        boundary: Boundary,
        restart: Callable[[], bool],
        restart_stale: Callable[[], bool],
    ) -> None:
        super().__init__(boundary)
        self.restart = restart
        self._optimizer = OptimizerSteps(self._optimizer_stepped)
        self._forward = ForwardSteps(self._forward_ended, restart_stale)
        self._by = ""
        self._first_call: float | None = None
        self._replays = 0  # since the optimizer stepped
        self._captured = False  # whether a graph has taken the optimizer's place

    @property
    def by(self) -> str:
        return self._by

    @property
    def of(self) -> str:  # type: ignore[override] # depends on what steps
        return self._optimizer.of if self._by == "optimizer" else self._forward.of

    def traced(self, *, on: bool) -> None:
        self._optimizer.traced(on=on)

    def parameters(self) -> int | None:
        return self._optimizer.parameters()

    def install(self) -> None:
        self._optimizer.install()
        self._forward.install()

    def remove(self) -> None:
        self._optimizer.remove()
        self._forward.remove()

    def await_optimizer(self) -> bool:
        """Stop counting calls; return whether optimizer steps may still come."""
        if self._by != "forward" or self._captured:
            return False
        self._forward.remove()
        return True

    def _optimizer_stepped(self) -> None:
        if self._by != "optimizer":
            if self._by == "forward" and not self.restart():
                return
            self._by = "optimizer"
            self._forward.calls.watch_graphs_only()
        self._replays = 0
        self.boundary()

    def _forward_ended(self) -> None:
        if self._by == "optimizer":
            self._replays += 1
            if self._replays < self.REPLAYS or not self.restart():
                return
            self._captured = True
        elif self._is_micro_batch():
            return
        self._by = "forward"
        self.boundary()

    def _is_micro_batch(self) -> bool:
        """Return whether an optimizer seems to step after some more of these calls."""
        now = time.monotonic()
        if self._first_call is None:
            self._first_call = now
        doubt = not self._captured and now - self._first_call < self.DOUBT_S
        return doubt and torch.is_grad_enabled() and optimizer_exists()


def optimizer_exists() -> bool:
    """Return whether the program created an optimizer whose steps our hook sees.

    torch wraps ``step`` when the first optimizer of a class is created; old versions of
    torch.compile remove the wrapper again, and with it all hooks.
    """
    classes = list(Optimizer.__subclasses__())
    while classes:
        one = classes.pop()
        step = getattr(one, "step", None)
        code = getattr(step, "__code__", None)
        if getattr(step, "hooked", False) and getattr(code, "co_name", "") == "wrapper":
            return True
        classes.extend(one.__subclasses__())
    return False


def _nothing() -> None:
    pass
