"""Counts, times and profiles the steps of a program as its author counts them.

``measure.py`` puts this folder on PYTHONPATH. ``STEP_HOOK`` is a JSON object:

- ``call``: ``module:Qualified.name`` of the function whose return ends a step, or
  ``torch.optim:Optimizer.step`` for all optimizers.
- ``calls``: calls per step.
- ``out``: the folder for ``hook-PID.json``.
- ``profile``: ``first`` and ``steps``: profile that number of steps plainly from that
  one on, or from the first after a warm-up and the timing, and exit then. Empty: count
  only.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

_HOOK: dict[str, Any] = json.loads(os.environ.get("STEP_HOOK", "{}"))
_OPTIMIZERS = "torch.optim:Optimizer.step"
_NOT_THE_PROGRAM = (
    "resource_tracker",
    "/collect",
    "torch.distributed.run",
    "torchrun",
    "run_one.py",
    "prepare.py",
    "overhead/measure",
)
_WARM_STEPS, _WARM_SECONDS = 30, 1.0
_TIMED_STEPS, _TIMED_SECONDS = 20, 1.5
_MOST_TIMES = 20_000
_SAVED_EVERY = 50


class _Steps:
    """The steps of this process."""

    def __init__(self) -> None:
        self.calls = 0
        self.ends: list[float] = []
        self.facts: dict[str, Any] = {}
        self.phase = self._warm_up if _HOOK["profile"] else self._count

    def ended(self, *_: object) -> None:
        """Note the end of a call."""
        self.calls += 1
        if self.calls % _HOOK["calls"]:
            return
        self.ends.append(time.perf_counter())
        try:
            self.phase()
        except Exception as error:  # noqa: BLE001 - the program must go on
            self.facts["error"] = repr(error)

    def save(self) -> None:
        """Write what is known."""
        if self.ends:
            facts = {"steps": len(self.ends), "ends": self.ends[-_MOST_TIMES:]}
            file = Path(_HOOK["out"]) / f"hook-{os.getpid()}.json"
            file.write_text(json.dumps(facts | self.facts), encoding="utf-8")

    def _count(self) -> None:
        torch = sys.modules["torch"]
        if torch.autograd._profiler_enabled():  # noqa: SLF001 - there is no public way
            self.facts.setdefault("profiled", []).append(len(self.ends))
        if len(self.ends) % _SAVED_EVERY == 0:
            self.save()

    def _warm_up(self) -> None:
        began = self.ends[0]
        if len(self.ends) < _WARM_STEPS or self.ends[-1] - began < _WARM_SECONDS:
            return
        _synchronize()
        self.first, self.began = len(self.ends), time.perf_counter()
        self.phase = self._time

    def _time(self) -> None:
        count, seconds = len(self.ends) - self.first, time.perf_counter() - self.began
        if count < _TIMED_STEPS or seconds < _TIMED_SECONDS:
            return
        _synchronize()
        seconds = time.perf_counter() - self.began
        self.facts |= {"step_ms": seconds / count * 1e3, "timed": count}
        self.phase = self._wait
        self._wait()

    def _wait(self) -> None:
        if len(self.ends) < _HOOK["profile"]["first"]:
            return

        import torch  # noqa: PLC0415 - the program has imported it
        from torch.profiler import ProfilerActivity, profile  # noqa: PLC0415 - as above

        # The profiler imports the compiler for a second otherwise.
        getattr(torch, "_lazy_modules", set()).discard("_inductor")
        activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
        self.profiler: Any = profile(activities=activities, acc_events=True)
        self.profiler.start()
        self.first = self.facts["first"] = len(self.ends)
        self.phase = self._profile

    def _profile(self) -> None:
        if len(self.ends) - self.first < _HOOK["profile"]["steps"]:
            return
        _synchronize()
        self.profiler.stop()
        events = self.profiler.profiler.kineto_results.events()
        work = [event for event in events if _is_gpu(event)]
        steps = len(self.ends) - self.first
        self.facts["kernels"] = len(work) / steps
        self.facts["gpu_ms"] = sum(entry.duration_ns() for entry in work) / 1e6 / steps
        self.save()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def _synchronize() -> None:
    import torch  # noqa: PLC0415 - the program has imported it

    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _is_gpu(event: Any) -> bool:  # noqa: ANN401 - of the profiler's own type
    """Return whether an event is work on the GPU, and no region drawn there."""
    on_gpu = event.device_type().name != "CPU"
    region = getattr(event, "is_user_annotation", bool)()
    return bool(on_gpu and not region and event.duration_ns() > 0)


def _attach(steps: _Steps) -> None:
    """Wait for the module, and wrap the function."""
    module, _, qualified = _HOOK["call"].partition(":")
    *owners, name = qualified.split(".")
    while True:
        time.sleep(0.01)
        owner: Any = sys.modules.get(module)
        if owner is None or getattr(owner.__spec__, "_initializing", False):
            continue
        if _HOOK["call"] == _OPTIMIZERS:
            from torch.optim.optimizer import (  # noqa: PLC0415 - it is imported
                register_optimizer_step_post_hook,
            )

            register_optimizer_step_post_hook(steps.ended)
            return
        try:
            for item in owners:
                owner = getattr(owner, item)
            function = getattr(owner, name)
        except AttributeError:
            continue

        @functools.wraps(function)
        def wrapped(*args: object, **kwargs: object) -> object:
            result = function(*args, **kwargs)  # noqa: B023 - the loop ends below
            steps.ended()
            return result

        setattr(owner, name, wrapped)
        return


if _HOOK and not any(name in " ".join(sys.orig_argv) for name in _NOT_THE_PROGRAM):
    _steps = _Steps()
    threading.Thread(target=_attach, args=(_steps,), daemon=True).start()
    atexit.register(_steps.save)
