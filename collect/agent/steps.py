"""What a step is: where one ends and the next begins.

There are no global module hooks: they slow every module down, make torch.compile warn
and cause graph breaks. Optimizer steps are counted by torch's global optimizer hook.
The outermost module is found by sampling the stacks of the running threads, and then
gets one hook of its own.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
import weakref
from types import CodeType
from typing import Any, Callable

import torch
from torch.nn import Module
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

MARK = "traceq: step"

_DYNAMO = os.path.join("torch", "_dynamo")
_CALLS = frozenset(
    function.__code__
    for function in (
        getattr(Module, "_wrapped_call_impl", None),
        getattr(Module, "_call_impl", None),
    )
    if function is not None
)

Boundary = Callable[[], None]


def _compiling() -> bool:
    found = getattr(torch.compiler, "is_compiling", None)
    return bool(found()) if found is not None else False


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


class OptimizerSteps(Source):
    """A step ends where ``step()`` of one optimizer, the first one used, returns.

    Other optimizers, as in a GAN, do not count, and neither does a step that a
    GradScaler skipped. If the first optimizer is gone, or idle while another of its
    thread made STALE steps, that other one takes its place.
    """

    STALE = 20

    def __init__(self, boundary: Boundary) -> None:
        super().__init__(boundary)
        self._called = False
        self._chosen: weakref.ref[Optimizer] | None = None
        self._thread: int | None = None  # whose optimizers count
        self._others = 0
        self._handle: Any = None
        self._annotation = _AfterAnnotation()

    def install(self) -> None:
        self._handle = register_optimizer_step_post_hook(self._hook)

    def remove(self) -> None:
        self._annotation.remove()
        # A hook that was never called may be part of a compiled optimizer: removing
        # it would cause a recompile.
        if self._handle is not None and self._called:
            self._handle.remove()
            self._handle = None

    def traced(self, *, on: bool) -> None:
        if on:
            self._annotation.install()
        else:
            self._annotation.remove()

    def _hook(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        if _compiling():
            return
        self._called = True
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
        self._others = 0
        self.of = type(optimizer).__name__
        return True


def this_thread() -> int | None:
    """Return the running thread, which ``runs`` knows even if C++ has started it."""
    return threading.current_thread().ident


def runs(thread: int | None) -> bool:
    """Return whether a thread has not ended."""
    return thread in {one.ident for one in threading.enumerate()}


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
    """A step ends where a call of the outermost module ends.

    A thread samples the stacks until it has seen one module outermost SIGHTINGS times;
    then that module alone gets a hook.
    """

    SIGHTINGS = 3
    LONGEST_PAUSE = 0.05

    def __init__(self, boundary: Boundary) -> None:
        super().__init__(boundary)
        self._stop = threading.Event()
        self._module: weakref.ref[Module] | None = None
        self._undo: Callable[[], None] = _nothing

    def install(self) -> None:
        threading.Thread(target=self._look, name="traceq", daemon=True).start()

    def remove(self) -> None:
        self._stop.set()
        undo, self._undo = self._undo, _nothing
        undo()

    def _look(self) -> None:
        began = time.monotonic()
        sightings: dict[int, int] = {}
        pause = 0.002
        while not self._stop.wait(pause):
            pause = min(self.LONGEST_PAUSE, 0.002 + (time.monotonic() - began) / 200)
            for module in outermost_modules():
                count = sightings[id(module)] = sightings.get(id(module), 0) + 1
                if count >= self.SIGHTINGS:
                    self._follow(module)
                    return

    def _follow(self, module: Module) -> None:
        self._module = weakref.ref(module)
        inner = getattr(module, "_orig_mod", module)  # inside a torch.compile wrapper
        self.of = type(inner).__name__
        compiled = module.__dict__.get("_compiled_call_impl")
        if compiled is None:
            handle = module.register_forward_hook(_Hook(self._ended))
            self._undo = handle.remove
            return

        # module.compile(): a hook would be compiled into it.
        def call(*args: Any, **kwargs: Any) -> Any:
            result = compiled(*args, **kwargs)
            self._ended()
            return result

        module.__dict__["_compiled_call_impl"] = call

        def undo() -> None:
            if module.__dict__.get("_compiled_call_impl") is call:
                module.__dict__["_compiled_call_impl"] = compiled

        self._undo = undo

    def _ended(self) -> None:
        if not _compiling():
            self.boundary()


class _Hook:
    """The module's hook: the module can still be copied and pickled."""

    def __init__(self, ended: Boundary) -> None:
        self.ended = ended

    def __call__(self, _module: Any, _args: Any, _result: Any) -> None:
        self.ended()

    def __deepcopy__(self, _memo: Any) -> _Hook:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        # A pickled module is loaded where we are absent: its hook does nothing.
        return (getattr, (contextlib.nullcontext(), "__exit__"))


def outermost_modules() -> list[Module]:
    """Return, for each running thread, the module whose call encloses all others."""
    found = []
    for thread, top in sys._current_frames().items():  # noqa: SLF001
        if thread == threading.get_ident():
            continue
        outermost = None
        frame: Any = top
        while frame is not None:
            if frame.f_code in _CALLS:
                outermost = frame
            elif outermost is not None and _is_compiled(frame.f_code):
                outermost = None  # a hook would be compiled into it
            frame = frame.f_back
        module = outermost.f_locals.get("self") if outermost is not None else None
        if isinstance(module, Module):
            found.append(module)
    return found


def _is_compiled(code: CodeType) -> bool:
    """Return whether torch.compile compiles what this code calls.

    The ``__call__`` of a module that is wrapped as a whole does not count: that module
    is the outermost.
    """
    return _DYNAMO in code.co_filename and code.co_name != "__call__"


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
    """Optimizer steps if there are any, otherwise calls of the outermost module.

    Calls count from the first one; an optimizer that steps before the recording
    starts takes over, and counting restarts. Where an optimizer exists but has not
    stepped, calls count only after DOUBT_S seconds: they may be the first of many
    micro-batches, or a validation before training.
    """

    DOUBT_S = 30.0

    def __init__(self, boundary: Boundary, restart: Callable[[], bool]) -> None:
        super().__init__(boundary)
        self.restart = restart
        self._optimizer = OptimizerSteps(self._optimizer_stepped)
        self._forward = ForwardSteps(self._forward_ended)
        self._by = ""
        self._first_call: float | None = None

    @property
    def by(self) -> str:
        return self._by

    @property
    def of(self) -> str:  # type: ignore[override] # depends on what steps
        return self._optimizer.of if self._by == "optimizer" else self._forward.of

    def traced(self, *, on: bool) -> None:
        self._optimizer.traced(on=on)

    def install(self) -> None:
        self._optimizer.install()
        self._forward.install()

    def remove(self) -> None:
        self._optimizer.remove()
        self._forward.remove()

    def _optimizer_stepped(self) -> None:
        if self._by != "optimizer":
            if self._by == "forward" and not self.restart():
                return
            self._by = "optimizer"
            self._forward.remove()
        self.boundary()

    def _forward_ended(self) -> None:
        if self._by == "optimizer":
            return
        now = time.monotonic()
        if self._first_call is None:
            self._first_call = now
        if optimizer_exists() and now - self._first_call < self.DOUBT_S:
            return
        self._by = "forward"
        self.boundary()


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
