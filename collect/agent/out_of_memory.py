"""Out-of-memory errors: the allocator's history from the start, and what each leaves.

The history is bounded, and off while steps are timed and traced, whose times it would
change. It costs a few microseconds an allocation, which is a tenth of a step of many
small kernels, so it rests while a training uses little of the GPU's memory. When an
allocation fails, torch calls us before it raises the error: then the
snapshot is written, with the program's lines and modules beside it, and the program
goes on as it would have.
"""

from __future__ import annotations

import contextlib
import inspect
import threading
from typing import Any, Callable

import torch

from ..shared import manifest
from . import memory_history, open_code, torch_state
from .files import TooLargeError
from .memory_history import MemoryHistory
from .optimizer_hook import after_optimizer_steps
from .rank_file import RankFile
from .wrapping import wrap

FORMAT = 1
ENTRIES = 100_000
RESTS_AFTER = 50
"""Steps of an optimizer after which the history may rest."""
RESTS_BELOW = 1 / 3
"""Share of the device's memory below which it rests: a step would have to triple."""
LOOK_EVERY = 16
"""Steps between two looks at the memory."""
MOST = 8
"""Failures of a process that are written: some programs try sizes until one fits."""

cuda_api: Any = torch.cuda  # parts of it have no types


class OutOfMemory:
    """Keeps the history of a process, and writes what there is when memory runs out."""

    def __init__(
        self, rank: RankFile, claim: Callable[[], bool], steps: Callable[[], int]
    ) -> None:
        """``claim`` names this process's files; ``steps`` counts step boundaries."""
        self.rank = rank
        self.claim = claim
        self.steps = steps
        self.off = False
        self.failures: list[dict[str, Any]] = []
        self.count = 0
        self.foreign = False  # whether the program records the history itself
        self._history: MemoryHistory | None = None
        self._wanted = True
        self._attached = False
        self._resting = False
        self._awake_from = 0  # a step of the optimizer
        self._by_optimizer: dict[int, int] = {}
        self._lock = threading.Lock()
        self._undo: list[Callable[[], None]] = []

    def install(self) -> None:
        """Keep the history once the program uses CUDA; never use it first."""
        observable = hasattr(torch._C, "_cuda_attach_out_of_memory_observer")  # noqa: SLF001
        if not observable or not is_supported():
            return  # a torch without CUDA, or an old one
        with contextlib.suppress(Exception):
            memory = cuda_api.memory
            self._undo.append(wrap(memory, "_record_memory_history", self._recorded))
            self._undo.append(wrap(torch.nn.Module, "eval", self._evaluates))
            self._undo.append(after_optimizer_steps(self._optimizer_stepped))
            # Where CUDA is not initialised yet, torch calls this when it is.
            cuda_api._lazy_call(self._begin)  # noqa: SLF001

    def remove(self) -> None:
        """Stop the history; torch keeps its observers, so ours does nothing then."""
        self.off = True
        with contextlib.suppress(Exception):
            self.keep(on=False)
        while self._undo:
            self._undo.pop()()

    def keep(self, *, on: bool) -> None:
        """Keep the history from now on, or not: the schedule needs the times alone."""
        self._wanted = on
        on = on and not self.off and not self.foreign and self._attached
        on = on and not self._resting
        if on == (self._history is not None):
            return
        if on:
            # The stacks of frees would cost as much as those of allocations.
            self._history = MemoryHistory(entries=ENTRIES, context="alloc")
        elif self._history is not None:
            history, self._history = self._history, None
            history.stop()

    def _begin(self) -> None:
        """Attach the observer, and keep the history unless the program does."""
        if self.off:
            return
        with contextlib.suppress(Exception):  # the program must continue
            attach = torch._C._cuda_attach_out_of_memory_observer  # noqa: SLF001
            attach(self.failed)
            self._attached = True
            self.foreign = self.foreign or memory_history.is_on()
            self.keep(on=self._wanted)

    def _recorded(self, record: Any, *args: Any, **kwargs: Any) -> Any:
        """Leave the history to a program that records it itself."""
        if not MemoryHistory.starting:
            self.foreign = True
            self._history = None
        return record(*args, **kwargs)

    def _optimizer_stepped(self, optimizer: Any) -> None:
        key = id(optimizer)
        steps = self._by_optimizer[key] = self._by_optimizer.get(key, 0) + 1
        if steps % LOOK_EVERY == 0:
            self._look(steps)

    def _look(self, steps: int) -> None:
        """Let the history rest, or go on, by the memory that is reserved."""
        with contextlib.suppress(Exception):  # the program must continue
            device = cuda_api.current_device()
            total = cuda_api.get_device_properties(device).total_memory
            reserved = cuda_api.memory_reserved(device)
            self._resting = may_rest(steps - self._awake_from, reserved, total)
            self.keep(on=self._wanted)

    def _evaluates(self, method: Any, *args: Any, **kwargs: Any) -> Any:
        """Wake the history: an evaluation may need far more than a training step."""
        if self._resting:
            self._resting = False
            self._awake_from = max(self._by_optimizer.values(), default=0)
            with contextlib.suppress(Exception):  # the program must continue
                self.keep(on=self._wanted)
        return method(*args, **kwargs)

    def step(self) -> int:
        """Return the number of steps so far, also after the recorded ones."""
        return max([self.steps(), *self._by_optimizer.values()])

    # What torch calls: nothing of ours may be raised into the program.

    def failed(self, device: int, requested: int, capacity: int, free: int) -> None:
        if self.off or not self._lock.acquire(blocking=False):
            return
        try:
            self.count += 1
            if self.count <= MOST and self.claim():
                self.failures.append(self._failure(device, requested, capacity, free))
                self.write(self._snapshot(device))
        except Exception as error:  # noqa: BLE001 - the program must continue
            self.rank.missing("out of memory", f"{type(error).__name__}: {error}"[:300])
        finally:
            self._lock.release()

    def _failure(
        self, device: int, requested: int, capacity: int, free: int
    ) -> dict[str, Any]:
        """Return what is known of a failed allocation, beside the snapshot."""
        total = capacity
        allocated = reserved = retries = None
        with contextlib.suppress(Exception):
            total = int(cuda_api.get_device_properties(device).total_memory)
            stats = cuda_api.memory_stats(device)
            allocated = stats.get("allocated_bytes.all.current")
            reserved = stats.get("reserved_bytes.all.current")
            retries = stats.get("num_alloc_retries")
        return {
            "at": manifest.now(),
            "step": self.step(),
            "device": device,
            "requested_bytes": requested,
            "device_bytes": total,
            "device_free_bytes": free,
            "limit_bytes": capacity if capacity < total else None,
            "allocated_bytes": allocated,
            "reserved_bytes": reserved,
            "retries": retries,
            "history": self._history is not None or memory_history.is_on(),
            **open_code.describe(),
        }

    def _snapshot(self, device: int) -> Any:
        with torch_state.without_import_of_inductor():
            snapshot = cuda_api.memory._snapshot()  # noqa: SLF001
        return with_failure(snapshot, device, self.failures[-1])

    def write(self, snapshot: Any) -> None:
        """Write the snapshot of the last failure, and the facts of all."""
        file = self.rank.path(".oom.pickle.gz")
        facts: dict[str, Any] = {
            "file": self.rank.path(".oom.json").name,
            "snapshot": file.name,
            "bytes": None,
            "count": self.count,
            "step": self.failures[-1]["step"],
            "steps_after": 0,
        }
        try:
            facts["bytes"] = memory_history.write(snapshot, file)
        except (OSError, TooLargeError) as error:
            facts["snapshot"] = None
            self.rank.missing("snapshot at out of memory", str(error))
        manifest.write(
            self.rank.path(".oom.json"),
            {
                "format": FORMAT,
                "snapshot": facts["snapshot"],
                "max_entries": ENTRIES,
                "count": self.count,
                "failures": self.failures,
            },
        )
        self.rank.save(oom=facts)

    def ends(self) -> None:
        """Note how the program went on after the last failure."""
        facts = self.rank.facts.get("oom")
        if facts:
            facts["count"] = self.count
            facts["steps_after"] = self.step() - facts["step"]


def with_failure(snapshot: Any, device: int, failure: dict[str, Any]) -> Any:
    """Return a snapshot whose history ends with this failure.

    torch has recorded it, unless the history was off just then.
    """
    traces = snapshot["device_traces"]
    while len(traces) <= device:
        traces.append([])
    last: dict[str, Any] = next(
        (trace for trace in reversed(traces[device]) if _counts(trace)), {}
    )
    if last.get("action") != "oom":
        frames = [
            {
                "filename": entry["file"],
                "line": entry["line"],
                "name": entry["function"],
            }
            for entry in failure["stack"]
        ]
        traces[device].append(
            {
                "action": "oom",
                "size": failure["requested_bytes"],
                "device_free": failure["device_free_bytes"],
                "stream": 0,
                "time_us": last.get("time_us", 0),
                "frames": frames,
            }
        )
    return snapshot


def _counts(entry: dict[str, Any]) -> bool:
    """Return whether an entry is not one of the snapshot itself."""
    return entry["action"] not in ("snapshot", "segment_free")


def may_rest(steps: int, reserved: int, total: int) -> bool:
    """Return whether the history may rest after this many steps of a training."""
    return steps >= RESTS_AFTER and reserved < RESTS_BELOW * total


def is_supported() -> bool:
    """Return whether this torch can bound the history that it keeps."""
    record = getattr(cuda_api.memory, "_record_memory_history", None)
    return record is not None and "max_entries" in inspect.signature(record).parameters
