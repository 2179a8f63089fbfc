"""Profiles of CUDA graph captures: the ops and lines that a replay runs.

A replayed graph leaves kernels in the trace and nothing that asked for them. The ops,
stacks and launches are there while the graph is captured, by hand or by torch.compile,
so each capture is profiled on its own.

Where CUPTI stays attached after that, the host's launches are slower from then on: on
an H200 (torch 2.11, CUDA 13) steps of a graphed training loop take 1.4 ms instead of
1.06 ms, and the step time is measured later. With TEARDOWN_CUPTI set from the first of
these profiles on they take 1.05 ms, before the trace and after it, and neither traces
nor graphs suffered (by hand, make_graphed_callables, torch.compile; captured before and
after it came back). CUPTI before CUDA 12.6 crashes when it comes back to a program with
graphs, as torch's profiler knows, too: no capture is profiled there. The first profile
of a process takes CUPTI some seconds to start, now or with the trace; a later one takes
10 to 30 ms.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from pathlib import Path
from typing import Any, Callable

import torch

from ..shared import status_files
from . import torch_state
from .files import MEGABYTE, TooLargeError
from .other_profilers import DETACH, OtherProfilers, attached
from .profiler import EVENT_BYTES, CaptureTrace, open_functions
from .rank_file import RankFile
from .wrapping import wrap

MOST = 64
MOST_BYTES = 200 * MEGABYTE  # of all of them, before compression
WHAT = "captures of CUDA graphs"
MORE = "further captures of CUDA graphs"
_OLDEST_CUDA = (12, 6)


class Captures:
    """Profiles each capture that the program makes until its steps are traced."""

    def __init__(
        self, rank: RankFile, others: OtherProfilers, wanted: Callable[[], bool]
    ) -> None:
        self.rank = rank
        self.others = others
        self.wanted = wanted
        self.stacks = True
        self.seen = 0  # captures that were begun
        self.found: list[dict[str, Any]] = []
        """Manifest entries of the captures, in order."""
        self.files: dict[str, str] = {}
        """Paths of source files by the names that the profiles have for them."""
        self._left = MOST_BYTES
        self._running: tuple[CaptureTrace, Any, int] | None = None
        self._lock = threading.RLock()
        self._undo: list[Callable[[], None]] = []

    def install(self) -> None:
        """Watch the methods that every capture of a Python program goes through."""
        try:
            graph: Any = torch.cuda.CUDAGraph
            for name, around in (
                ("capture_begin", self._begin),
                ("capture_end", self._end),
            ):
                self._undo.append(wrap(graph, name, around))
        except Exception as error:  # noqa: BLE001 - another torch may lack them
            self._lack(error)

    def remove(self) -> None:
        """Stop watching, and a profile whose capture never ended."""
        while self._undo:
            self._undo.pop()()
        self.give_way()

    def give_way(self) -> None:
        """Stop a profile whose capture has not ended, and drop it."""
        with self._lock:
            running, self._running = self._running, None
            if running is not None:
                with self.others.ours():
                    running[0].stop()
                self.rank.missing(MORE, "one was left before its end")

    def step_ended(self) -> None:
        """Drop a capture that this thread has begun and left, as after an error."""
        if self._running is not None and self._running[2] == threading.get_ident():
            self.give_way()

    # What the program passes through.

    def _begin(self, method: Any, graph: Any, *args: Any, **kwargs: Any) -> Any:
        self.seen += 1
        try:
            self._start(graph)
        except Exception as error:  # noqa: BLE001 - the program must continue
            self._lack(error)
        try:
            return method(graph, *args, **kwargs)
        except BaseException:
            self._stop(graph, keep=False)
            raise

    def _end(self, method: Any, graph: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            result = method(graph, *args, **kwargs)
        except BaseException:
            self._stop(graph, keep=False)
            raise
        self._stop(graph, keep=True)
        return result

    def _start(self, graph: Any) -> None:
        with self._lock:
            if self._running is not None or not self.wanted() or self.others.active:
                return
            why = _why_not(profiled=self.others.seen) or self._full()
            if why:
                self.rank.missing(MORE if self.found else WHAT, why)
                return
            trace = CaptureTrace(cuda=torch_state.uses_cuda(), stacks=self.stacks)
            if "CUDA" in trace.activities and not self.others.seen:
                os.environ[DETACH] = "1"
            trace.open_functions = open_functions()
            with self.others.ours():
                trace.start()
            self._running = trace, graph, threading.get_ident()

    def _full(self) -> str:
        if len(self.found) >= MOST:
            return f"{MOST} were profiled"
        return "" if self._left > 0 else _TOO_LARGE

    def _stop(self, graph: Any, *, keep: bool) -> None:
        try:
            with self._lock:
                running = self._running
                if running is None or running[1] is not graph:
                    return
                self._running = None
                with self.others.ours():
                    running[0].stop()
                if keep:
                    self._write(running[0])
        except Exception as error:  # noqa: BLE001 - the program must continue
            self._lack(error)

    def _write(self, trace: CaptureTrace) -> None:
        began = time.monotonic()
        expected = trace.size() * EVENT_BYTES
        file = self._place(len(self.found))
        try:
            if expected > self._left:
                raise TooLargeError(_TOO_LARGE)  # noqa: TRY301 - as a full disk is
            size = trace.write(file)
        except TooLargeError:
            self._left = 0
            self.rank.missing(MORE if self.found else WHAT, _TOO_LARGE)
            return
        self._left -= expected
        self.files.update(trace.callers.files)
        self.found.append(
            {
                "file": file.name,
                "bytes": size,
                "stacks": trace.stacks,
                "open_functions": trace.open_functions,
                "call_lines": len(trace.callers.lines),
                "write_seconds": round(time.monotonic() - began, 3),
            }
        )
        self.rank.facts["captures"] = self.found

    def _place(self, number: int) -> Path:
        """Return the path of a file: before the first step, a place for the time."""
        if self.rank.name is not None:
            return self.rank.path(f".capture-{number}.json.gz")
        folder = status_files.settings().get("status_folder", self.rank.folder)
        return Path(folder, f"capture-{os.getpid()}-{number}.json.gz")

    def move(self) -> None:
        """Move what was written before the first step into the run folder."""
        try:
            self._move()
        except Exception as error:  # noqa: BLE001 - they are no must
            self.found.clear()
            self._lack(error)

    def _move(self) -> None:
        with self._lock:
            for number, entry in enumerate(self.found):
                target = self.rank.path(f".capture-{number}.json.gz")
                if entry["file"] != target.name:
                    folder = status_files.settings().get("status_folder", target.parent)
                    partial = target.with_name("." + target.name)
                    shutil.move(Path(folder, entry["file"]), partial)
                    partial.replace(target)
                    entry["file"] = target.name
            self.rank.facts["captures"] = self.found

    def _lack(self, error: Exception) -> None:
        why = f"profiling them failed: {type(error).__name__}: {error}"
        self.rank.missing(WHAT, why[:300])


_TOO_LARGE = f"they have more than {MOST_BYTES // MEGABYTE} MB"


def _why_not(*, profiled: bool) -> str:
    """Return why captures cannot be profiled without harm, if so."""
    foreign = attached(dict(os.environ))
    if foreign is not None:
        return f"{foreign} is attached to the program"
    if profiled or not torch_state.uses_cuda():
        return ""
    version = torch.version.cuda
    if version is None:
        return "this torch is not one for CUDA"
    if tuple(map(int, version.split(".")[:2])) < _OLDEST_CUDA:
        return f"CUDA {version} cannot detach its profiler from a program with graphs"
    if os.environ.get(DETACH, "1") != "1":
        return f"{DETACH} is not 1: a profiler that stays slows the program down"
    return ""
