"""Rare slow steps of the whole run, each with what happened in it (--keep-slow).

A step is kept if it takes a multiple of the running median and more than the usual
spread; both are without the time that the thread had no core, so that other processes
on a busy machine do not hide the program's own pauses. Watching costs a few clock
readings a step; what may explain a slow step is counted where it happens: Python's
garbage collector, the DataLoader, torch.save, the compiler, the allocator. A thread of
ours looks at the program's line only while a step takes too long.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import threading
import time
from collections import deque
from typing import Any, Callable

import torch
from torch.utils.data import dataloader

from . import open_code, torch_state
from .wrapping import wrap

FORMAT = 1
WINDOW = 101  # steps of the running median
FEWEST = 20  # steps before one is kept
REFRESH = 8  # steps between two looks at the median
MOST = 200  # steps that are kept; further ones are counted
LEAST_S = 0.005  # above the median: less is the noise of any machine
SPREADS = 4.0  # widths of the usual spread, from the median to the ninth decile
SAMPLE_S = 0.01  # between two looks at a slow step
MOST_SAMPLES = 50
CLOCK_EVERY = 256  # steps
CHEAP_STATS_S = 0.005  # of longer steps the allocator's counters are read every time
MOST_THREADS = 256  # that are looked at while a step takes too long
_TASKS = "/proc/self/task"
_COUNTERS = ("num_alloc_retries", "segment.all.allocated")


class SlowSteps:
    """Watches the steps, and keeps those that are slow."""

    def __init__(
        self, factor: float, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.factor = factor
        self.steps = 0  # that were watched
        self._number = 0
        self.seconds = 0.0
        self.kept: list[dict[str, Any]] = []
        self.count = 0  # of slow ones, also those that are not kept
        self.median = 0.0
        self._limit = float("inf")
        self._clock = clock
        self._laps: deque[float] = deque(maxlen=WINDOW)
        self._began: float | None = None
        self._cpu = 0.0
        self._queue: _Queue | None = None
        self._queued: float | None = None
        self._seen: tuple[float, dict[str, float]] | None = None  # when first sampled
        self._compiles = 0
        self._counters: dict[str, int] = {}
        self._clocks: int | None = None  # MHz, the highest seen
        self._has_clock = True
        self._seconds: dict[str, float] = {}  # of this step, by what they were spent in
        self._marks: set[str] = set()
        self._gc_began = 0.0
        self._thread: int | None = None
        self._lines: dict[tuple[str, int, str], int] = {}
        self._stop = threading.Event()
        self._undo: list[Callable[[], None]] = []

    def install(self) -> None:
        """Watch what may make a step slow."""
        gc.callbacks.append(self._collects)
        self._undo.append(lambda: gc.callbacks.remove(self._collects))
        iterator: Any = dataloader._BaseDataLoaderIter  # noqa: SLF001
        for owner, name, around in (
            (iterator, "__next__", self._next_batch),
            (torch, "save", self._saves),
            (torch.nn.Module, "eval", self._evaluates),
        ):
            with contextlib.suppress(Exception):  # another torch may lack it
                self._undo.append(wrap(owner, name, around))
        threading.Thread(target=self._watch, name="traceq", daemon=True).start()

    def remove(self) -> None:
        """Stop watching."""
        self._stop.set()
        if self._queue is not None:
            self._queue.close()
        while self._undo:
            with contextlib.suppress(Exception):
                self._undo.pop()()

    # What the program passes through.

    def _collects(self, phase: str, info: dict[str, Any]) -> None:
        if phase == "start":
            self._gc_began = self._clock()
        elif self._gc_began:
            self._add("gc", self._clock() - self._gc_began)
            if info.get("generation") == 2:  # noqa: PLR2004 - all objects
                self._marks.add("full gc")

    def _next_batch(self, method: Any, iterator: Any) -> Any:
        first = not getattr(iterator, "_num_yielded", 1)
        with self._timed("data"):
            batch = method(iterator)
        if first:
            self._marks.add("first batch")
        return batch

    def _saves(self, method: Any, *args: Any, **kwargs: Any) -> Any:
        with self._timed("checkpoint"):
            return method(*args, **kwargs)

    def _evaluates(self, method: Any, *args: Any, **kwargs: Any) -> Any:
        self._marks.add("evaluation")
        return method(*args, **kwargs)

    @contextlib.contextmanager
    def _timed(self, what: str) -> Any:
        began = self._clock()
        try:
            yield
        finally:
            if threading.get_ident() == self._thread or self._thread is None:
                self._add(what, self._clock() - began)

    def _add(self, what: str, seconds: float) -> None:
        self._seconds[what] = self._seconds.get(what, 0.0) + seconds

    # The steps.

    def boundary(self, number: int = 0, *, ours: bool = False) -> bool:
        """End the step ``number``; return whether it was slow.

        ``ours`` says that recording took a part of it: then it does not count.
        """
        self._number = number
        now = self._clock()
        began, retained = self._began, False
        if self._thread != threading.get_ident():
            self._thread = threading.get_ident()
            if self._queue is not None:
                self._queue.close()
            self._queue = _Queue()
        if began is not None and not ours:
            retained = self._ended(now - began)
        else:
            self._read_counters()
            self._compiles = torch_state.compilations()
        self._begin()
        return retained

    def _begin(self) -> None:
        self._seconds.clear()
        self._marks.clear()
        self._lines.clear()
        self._seen = None
        self._cpu = time.thread_time()
        self._queued = self._queue.seconds() if self._queue is not None else None
        self._began = self._clock()

    def _ended(self, seconds: float) -> bool:
        self.steps += 1
        self.seconds += seconds
        slow = len(self._laps) >= FEWEST and seconds > self._limit
        queued = self._queued_since()
        compiles = torch_state.compilations()
        if slow:
            self.count += 1
            self._keep(self._entry(seconds, queued, compiles - self._compiles))
        elif self.median > CHEAP_STATS_S or self.steps % REFRESH == 0:
            self._read_counters()
        self._compiles = compiles
        self._laps.append(seconds - min(queued or 0.0, seconds))
        if len(self._laps) <= FEWEST or self.steps % REFRESH == 0:
            self._refresh()
        if self.steps % CLOCK_EVERY == 1:
            self._read_clock()
        return slow

    def _queued_since(self) -> float | None:
        """Return how long this step's thread was ready to run and had no core."""
        queued = self._queue.seconds() if self._queue is not None else None
        if queued is None or self._queued is None:
            return None
        return max(0.0, queued - self._queued)

    def _keep(self, entry: dict[str, Any]) -> None:
        """Keep a step; of too many, those of other processes are left out first."""
        if len(self.kept) >= MOST:
            waited = next((item for item in self.kept if self._only_queued(item)), None)
            if waited is None or self._only_queued(entry):
                return
            self.kept.remove(waited)
        self.kept.append(entry)

    def _only_queued(self, entry: dict[str, Any]) -> bool:
        """Return whether a step would not be slow had its thread always had a core."""
        median = entry["median_ms"]
        own = entry["ms"] - (entry["queued_ms"] or 0.0)
        return bool(own <= max(self.factor * median, median + LEAST_S * 1000))

    def _refresh(self) -> None:
        laps = sorted(self._laps)
        self.median = laps[len(laps) // 2]
        spread = laps[len(laps) * 9 // 10] - self.median
        self._limit = max(
            self.factor * self.median,
            self.median + SPREADS * spread,
            self.median + LEAST_S,
        )

    def _entry(
        self, seconds: float, queued: float | None, compiles: int
    ) -> dict[str, Any]:
        before = dict(self._counters)
        watched, others = self._others_queued()
        self._read_counters()
        lines = sorted(self._lines.items(), key=lambda one: -one[1])
        return {
            "step": self._number,
            "ms": _ms(seconds),
            "median_ms": _ms(self.median),
            "cpu_ms": _ms(time.thread_time() - self._cpu),
            "queued_ms": None if queued is None else _ms(queued),
            "watched_ms": _ms(watched),
            "others_queued_ms": _ms(others),
            "by_ms": {what: _ms(spent) for what, spent in self._seconds.items()},
            "marks": sorted(self._marks),
            "compiles": compiles,
            "alloc_retries": self._grown(before, _COUNTERS[0]),
            "cuda_mallocs": self._grown(before, _COUNTERS[1]),
            "clock_mhz": self._read_clock(),
            "highest_clock_mhz": self._clocks,
            "lines": [
                {"file": file, "line": line, "function": function, "samples": count}
                for (file, line, function), count in lines[:4]
            ],
        }

    def _others_queued(self) -> tuple[float, float]:
        """Return how long the step was sampled, and how long a thread had no core.

        It is the thread that waited most: the one that the others wait for.
        """
        if self._seen is None:
            return 0.0, 0.0
        began, before = self._seen
        now = _queued_by_thread()
        grown = (now[name] - before[name] for name in now if name in before)
        return self._clock() - began, max(grown, default=0.0)

    def _grown(self, before: dict[str, int], name: str) -> int | None:
        if name not in before or name not in self._counters:
            return None
        return self._counters[name] - before[name]

    def _read_counters(self) -> None:
        """Read the allocator's counters, without CUDA none."""
        if torch_state.uses_cuda():
            with contextlib.suppress(Exception):  # another allocator may not count
                stats = torch.cuda.memory_stats()
                self._counters = {name: int(stats[name]) for name in _COUNTERS}

    def _read_clock(self) -> int | None:
        """Return the GPU's clock in MHz, where torch can read it; once it cannot."""
        if not self._has_clock or not torch_state.uses_cuda():
            return None
        try:
            result = int(torch.cuda.clock_rate())
        except Exception:  # noqa: BLE001 - it needs a package that few have
            self._has_clock = False
            return None
        self._clocks = max(result, self._clocks or 0)
        return result

    # The thread of ours.

    def _watch(self) -> None:
        """Look at the program's line while a step takes too long."""
        while not self._stop.is_set():
            began = self._began
            left = SAMPLE_S
            if began is not None and self._limit < float("inf"):
                left = began + self._limit - self._clock()
                if left <= 0:
                    with contextlib.suppress(Exception):  # a frame may be gone
                        self._sample()
            self._stop.wait(max(left, SAMPLE_S))

    def _sample(self) -> None:
        if sum(self._lines.values()) >= MOST_SAMPLES:
            return
        if self._seen is None:
            self._seen = self._clock(), _queued_by_thread()
        frame = sys._current_frames().get(self._thread or 0)  # noqa: SLF001
        for line in open_code.program_lines(frame, most=1):
            key = (line["file"], line["line"], line["function"])
            self._lines[key] = self._lines.get(key, 0) + 1

    def content(self) -> dict[str, Any]:
        """Return what is written of the run."""
        return {
            "format": FORMAT,
            "factor": self.factor,
            "steps": self.steps,
            "seconds": round(self.seconds, 3),
            "median_ms": _ms(self.median),
            "slow": self.count,
            "kept": self.kept,
        }


class _Queue:
    """Time that a thread was ready to run and had no core, as Linux counts it."""

    def __init__(self) -> None:
        self._file: int | None = None
        with contextlib.suppress(OSError):
            thread = threading.get_native_id()
            self._file = os.open(f"/proc/self/task/{thread}/schedstat", os.O_RDONLY)

    def seconds(self) -> float | None:
        """Return the time so far; None where the system does not count it."""
        if self._file is None:
            return None
        try:
            return int(os.pread(self._file, 64, 0).split()[1]) / 1e9
        except (OSError, ValueError, IndexError):
            return None

    def close(self) -> None:
        """Close the file."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)


def _queued_by_thread() -> dict[str, float]:
    """Return the seconds that each other thread of the process had no core."""
    own = str(threading.get_native_id())
    queued = {}
    with contextlib.suppress(OSError):
        for name in os.listdir(_TASKS)[:MOST_THREADS]:
            with contextlib.suppress(OSError, ValueError, IndexError):
                if name != own:
                    with open(f"{_TASKS}/{name}/schedstat") as file:
                        queued[name] = int(file.read().split()[1]) / 1e9
    return queued


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)
