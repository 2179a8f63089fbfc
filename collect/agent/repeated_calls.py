"""Calls that repeat in a program without an optimizer: which of them makes the steps.

A module may be called once for all that follows, as the encoder before a decode loop,
and a compiled function has no module that is called. So all candidates are counted:
modules that no other module calls, code that torch.compile made, and CUDA graphs.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
import weakref
from types import CodeType
from typing import Any, Callable

import torch
from torch.nn import Module

from . import torch_state
from .after_import import AfterImport
from .wrapping import wrap

FEWEST = 3  # calls after which a candidate makes the steps
STALE = 20  # calls of others after which one that is not called is replaced
MOST = 64  # candidates
SAMPLE_S = (0.002, 0.05)  # between two looks at the stacks: at first, and later
REST_S = 0.5  # between two looks while steps are being made

_MODULE_CALLS = frozenset(
    function.__code__
    for function in (
        getattr(Module, "_wrapped_call_impl", None),
        getattr(Module, "_call_impl", None),
    )
    if function is not None
)
_COMPILED_CODE = (
    ("torch._inductor.output_code", "CompiledFxGraph"),
    ("torch._inductor.codecache", "CompiledFxGraph"),  # before torch 2.6
)


class Candidate:
    """A function that is called repeatedly."""

    def __init__(self, of: str) -> None:
        self.of = of
        self.calls = 0
        self.last = 0.0  # when it was called
        self.remove: Callable[[], None] = _nothing


class RepeatedCalls:
    """Calls ``ended`` where a call of the candidate that makes the steps has ended.

    That is the first to be called FEWEST times. If it is not called while others are
    called STALE times, the one that is called then takes its place, if ``restart``
    allows it.
    """

    def __init__(
        self, ended: Callable[[], None], restart: Callable[[], bool] = lambda: True
    ) -> None:
        self.ended = ended
        self.restart = restart
        self.chosen: Candidate | None = None
        self._others = 0  # calls of others since its last one
        self._graphs_only = False
        self._modules: dict[int, tuple[weakref.ref[Module], Candidate]] = {}
        self._owners: dict[tuple[str, int], Candidate] = {}
        self._stop = threading.Event()
        self._undo: list[Callable[[], None]] = []
        self._lock = threading.RLock()

    @property
    def of(self) -> str:
        """The class of module, or the kind of code, that makes the steps."""
        return self.chosen.of if self.chosen is not None else ""

    def install(self) -> None:
        """Start looking for candidates."""
        self._watch_graphs()
        for module, owner in _COMPILED_CODE:
            self._watch_compiled(module, owner)
        threading.Thread(target=self._sample, name="traceq", daemon=True).start()

    def remove(self) -> None:
        """Remove all hooks."""
        self._stop.set()
        while self._undo:
            self._undo.pop()()
        with self._lock:
            for _, candidate in self._modules.values():
                candidate.remove()
            self._modules.clear()

    def watch_graphs_only(self) -> None:
        """Remove all hooks but those of CUDA graphs: an optimizer makes the steps."""
        self.remove()
        self._graphs_only = True
        self.chosen = None
        self._watch_graphs()

    # Candidates.

    def follow(self, module: Module) -> None:
        """Count the calls of a module."""
        with self._lock:
            known = self._modules.get(id(module))
            if (known and known[0]() is module) or len(self._modules) >= MOST:
                return
            inner = getattr(module, "_orig_mod", module)  # inside a compiled wrapper
            candidate = Candidate(type(inner).__name__)
            candidate.remove = _hook(module, self._counter(candidate))
            self._modules[id(module)] = (weakref.ref(module), candidate)

    def _counter(self, candidate: Candidate) -> Callable[[Module, Any], None]:
        def count(module: Module, result: Any) -> None:
            try:
                counts = not torch_state.compiling() and _is_work(module, result)
            except Exception:  # noqa: BLE001 - a module and its result may be anything
                return
            if counts:
                self._called(candidate)

        return count

    def _watch_graphs(self) -> None:
        with contextlib.suppress(Exception):  # another torch may lack it
            self._undo.append(wrap(torch.cuda.CUDAGraph, "replay", self._replayed))

    def _watch_compiled(self, module: str, owner: str) -> None:
        def begin() -> None:
            with contextlib.suppress(Exception):  # private to torch
                holder = getattr(sys.modules[module], owner)
                if holder.__module__ == module:
                    self._undo.append(wrap(holder, "__call__", self._compiled_called))

        finder = AfterImport(module, begin)
        self._undo.append(finder.stop)
        finder.wait()

    def _compiled_called(self, method: Any, code: Any, *args: Any, **kw: Any) -> Any:
        result = method(code, *args, **kw)
        self._inner_called("compiled code", code)
        return result

    def _replayed(self, method: Any, graph: Any, *args: Any, **kw: Any) -> Any:
        result = method(graph, *args, **kw)
        self._inner_called("CUDA graph", graph)
        return result

    def _inner_called(self, of: str, owner: Any) -> None:
        """Count a call of compiled code or a graph, unless a module makes it."""
        try:
            if torch_state.compiling() or torch_state.capturing():
                return
            module = outermost_module(sys._getframe(1))  # noqa: SLF001
            if module is not None:
                if not self._graphs_only:
                    self.follow(module)
                return
            with self._lock:
                key = (of, id(owner))
                candidate = self._owners.get(key)
                if candidate is None and len(self._owners) < MOST:
                    candidate = self._owners[key] = Candidate(of)
        except Exception:  # noqa: BLE001 - the program must continue
            return
        if candidate is not None:
            self._called(candidate)

    def _called(self, candidate: Candidate) -> None:
        candidate.calls += 1
        candidate.last = time.monotonic()
        if candidate is self.chosen:
            self._others = 0
        elif self.chosen is None:
            if candidate.calls < FEWEST:
                return
            self.chosen = candidate
        else:
            self._others += 1
            if self._others < STALE or candidate.calls < FEWEST or not self.restart():
                return
            self.chosen = candidate
            self._others = 0
        self.ended()

    def _sample(self) -> None:
        """Look at the stacks of the running threads for modules that are called."""
        began = time.monotonic()
        first, later = SAMPLE_S
        pause = first
        while not self._stop.wait(pause):
            chosen = self.chosen
            if chosen is not None and time.monotonic() - chosen.last < REST_S:
                pause = REST_S
                continue
            pause = min(later, first + (time.monotonic() - began) / 200)
            for module in outermost_modules():
                self.follow(module)


def _is_work(module: Module, result: Any) -> bool:
    """Return whether a call is one of a model, not of a transform or a loss.

    Where the program uses CUDA its model is on the GPU; elsewhere it has weights.
    """
    if not torch_state.uses_cuda():
        return next(module.parameters(), None) is not None
    for weight in module.parameters():
        return weight.is_cuda
    return _first_tensor_is_cuda(result)


def _first_tensor_is_cuda(result: Any) -> bool:
    for _ in range(3):
        if isinstance(result, torch.Tensor):
            return result.is_cuda
        if isinstance(result, dict):
            result = next(iter(result.values()), None)
        elif isinstance(result, (list, tuple)):
            result = result[0] if result else None
    return False


def outermost_modules() -> list[Module]:
    """Return, for each running thread, the module whose call encloses all others."""
    frames = sys._current_frames()  # noqa: SLF001
    # The own frame would hold itself through this dict, and the frames of the program
    # with all their tensors, until the garbage collector runs.
    frames.pop(threading.get_ident(), None)
    modules = [outermost_module(frame) for frame in frames.values()]
    return [module for module in modules if module is not None]


def outermost_module(frame: Any) -> Module | None:
    """Return the module whose call encloses all others in the stack of a frame."""
    outermost = None
    while frame is not None:
        if frame.f_code in _MODULE_CALLS:
            outermost = frame
        elif outermost is not None and _is_compiled(frame.f_code):
            outermost = None  # a hook would be compiled into it
        frame = frame.f_back
    module = outermost.f_locals.get("self") if outermost is not None else None
    return module if isinstance(module, Module) else None


def _is_compiled(code: CodeType) -> bool:
    """Return whether torch.compile compiles what this code calls.

    The ``__call__`` of a module that is wrapped as a whole does not count: that module
    is the outermost.
    """
    file = code.co_filename.replace("\\", "/")
    return "torch/_dynamo" in file and code.co_name != "__call__"


def _hook(module: Module, ended: Callable[[Module, Any], None]) -> Callable[[], None]:
    """Have ``ended`` called with the result of each call; return an undo."""
    compiled = module.__dict__.get("_compiled_call_impl")
    if compiled is None:
        return _forward_hook(module, ended)

    # module.compile(): a hook would be compiled into it.
    def call(*args: Any, **kwargs: Any) -> Any:
        result = compiled(*args, **kwargs)
        ended(module, result)
        return result

    module.__dict__["_compiled_call_impl"] = call

    def undo() -> None:
        if module.__dict__.get("_compiled_call_impl") is call:
            module.__dict__["_compiled_call_impl"] = compiled

    return undo


def _forward_hook(
    module: Module, ended: Callable[[Module, Any], None]
) -> Callable[[], None]:
    """Register a forward hook that copies and pickles of the module don't contain.

    A program may save its module whole, and load it where the recorder is absent, or
    with ``weights_only``, which refuses functions.
    """
    hook = module.register_forward_hook(lambda one, _args, result: ended(one, result))

    def state() -> Any:
        own = getattr(type(module), "__getstate__", None)  # of torch 2.1 or later
        state = own(module) if own else module.__dict__
        if isinstance(state, dict) and "_forward_hooks" in state:
            hooks = state["_forward_hooks"].copy()
            hooks.pop(hook.id, None)
            state = {**state, "_forward_hooks": hooks}
            state.pop("__getstate__", None)
        return state

    # pickle and copy look the method up on the instance.
    module.__dict__["__getstate__"] = state

    def undo() -> None:
        hook.remove()
        if module.__dict__.get("__getstate__") is state:
            del module.__dict__["__getstate__"]

    return undo


def _nothing() -> None:
    pass
