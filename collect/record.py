"""The recordings themselves: torch's profiler, the allocator's history, their files.

Every file is written under a name that begins with a dot and gets its own name when it
is whole, so that a program that is killed leaves no half file that looks like one.
"""

from __future__ import annotations

import contextlib
import gc
import gzip
import inspect
import os
import pickle
import shutil
import sys
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerAction, ProfilerActivity

from .schedule import LEAD_IN

cuda_api: Any = torch.cuda  # parts of it have no types

_DETACH = "TEARDOWN_CUPTI"  # read by the profiler's library when it stops
MEGABYTE = 1_000_000
EVENT_BYTES = 450  # of JSON, on average, with shapes and stacks
_SPARE = 200 * MEGABYTE  # of disk, left to the program


class TooLargeError(Exception):
    """What was recorded is larger than the user allows, or than the disk has room."""


class Trace:
    """A few whole steps of the program under torch's profiler.

    Without ``active`` steps it is what all threads do from start to stop: that needs
    a torch that can, which ``all_threads`` tells.
    """

    def __init__(self, *, cuda: bool, active: int, stacks: bool, memory: bool) -> None:
        self.stacks = stacks
        self.memory = memory and cuda
        self.activities = ["CPU", "CUDA"] if cuda else ["CPU"]
        self.steps: list[int] = []
        self._active = active
        self._rss = resident_bytes()
        self._detaching = False
        config = _every_thread() if active == 0 else None
        self.all_threads = config is not None
        self.profiler = torch.profiler.profile(
            activities=[getattr(ProfilerActivity, name) for name in self.activities],
            schedule=self._action if active else None,
            experimental_config=config,
            record_shapes=True,
            with_stack=stacks,
            profile_memory=self.memory,
        )

    def start(self) -> None:
        """Set the profiler up; it records when the lead-in is over."""
        if "CUDA" in self.activities:
            self._detaching = _detach_afterwards()
        self.profiler.start()

    def step(self) -> None:
        """Note that a step has ended."""
        step = self.profiler.step_num
        # Its number in the file is not that of the profiler in every torch.
        _, _, number = str(getattr(self.profiler.step_rec_fn, "name", "")).partition(
            "#"
        )
        self.profiler.step()
        if LEAD_IN <= step < LEAD_IN + self._active:
            self.steps.append(int(number) if number.isdigit() else step)

    def stop(self) -> None:
        """Stop recording, wherever it is."""
        self.profiler.stop()
        if self._detaching:
            os.environ.pop(_DETACH, None)

    def grown(self) -> int:
        """Return by how many bytes the process has grown since the trace began."""
        return max(0, resident_bytes() - self._rss)

    def recorded(self) -> bool:
        """Return whether there is anything to write."""
        inner = self.profiler.profiler
        return inner is not None and inner.kineto_results is not None

    def estimated_bytes(self) -> int:
        """Return about how large the file would be, not compressed."""
        inner = self.profiler.profiler
        if inner is None or inner.kineto_results is None:
            return 0
        return len(inner.kineto_results.events()) * EVENT_BYTES

    def write(self, file: Path, *, max_bytes: int) -> int:
        """Write the compressed trace and return its size."""
        expected = self.estimated_bytes()
        if expected > max_bytes:
            msg = f"about {expected // MEGABYTE} MB, more than --max-mb allows"
            raise TooLargeError(msg)
        _check_room(file.parent, expected + expected // 5)
        plain = file.with_name("." + file.name.replace(".gz", ""))
        try:
            self.profiler.export_chrome_trace(str(plain))
            if plain.stat().st_size > max_bytes:
                size = plain.stat().st_size // MEGABYTE
                msg = f"{size} MB, more than --max-mb allows"
                raise TooLargeError(msg)
            with plain.open("rb") as source:
                return compress(source, file)
        finally:
            with contextlib.suppress(OSError):
                plain.unlink()

    def _action(self, step: int) -> ProfilerAction:
        if step < LEAD_IN:
            return ProfilerAction.WARMUP
        if step < LEAD_IN + self._active - 1:
            return ProfilerAction.RECORD
        if step == LEAD_IN + self._active - 1:
            return ProfilerAction.RECORD_AND_SAVE
        return ProfilerAction.NONE


def _detach_afterwards() -> bool:
    """Have CUPTI leave the process when the recording stops; return if it will.

    It would stay otherwise, and make each launch slower for the rest of the program.
    Where CUDA graphs are held it stays: graphs have crashed on its return.
    """
    graph = getattr(cuda_api, "CUDAGraph", ())
    if _DETACH in os.environ or "torch._inductor.cudagraph_trees" in sys.modules:
        return False
    if any(issubclass(type(value), graph) for value in gc.get_objects()):
        return False
    os.environ[_DETACH] = "1"
    return True


def _every_thread() -> Any:
    try:
        return torch._C._profiler._ExperimentalConfig(  # noqa: SLF001
            profile_all_threads=True
        )
    except (AttributeError, TypeError):  # torch before 2.7
        return None


class MemoryHistory:
    """The allocator's history of a few steps, with Python stacks."""

    ENTRIES = 100_000

    def __init__(self) -> None:
        record = cuda_api.memory._record_memory_history  # noqa: SLF001
        wanted = {"stacks": "python", "max_entries": self.ENTRIES}
        known = inspect.signature(record).parameters
        record("all", **{key: wanted[key] for key in wanted if key in known})
        self._record = record

    def stop(self) -> None:
        """Turn the history off again."""
        self._record(None)

    def write(self, file: Path) -> int:
        """Write the compressed snapshot and return its size."""
        snapshot = cuda_api.memory._snapshot()  # noqa: SLF001
        _check_room(file.parent, 0)
        half = file.with_name("." + file.name)
        try:
            with gzip.open(half, "wb", compresslevel=6) as target:
                pickle.dump(snapshot, target, protocol=4)
            half.replace(file)
        finally:
            with contextlib.suppress(OSError):
                half.unlink()
        return file.stat().st_size


def no_memory_history(*, cuda: bool) -> str | None:
    """Return why the allocator's history cannot be recorded, or None if it can."""
    if not cuda:
        return "the program does not use CUDA; only its allocator keeps a history"
    if not hasattr(cuda_api.memory, "_record_memory_history"):
        return "this torch cannot record the allocator's history"
    enabled = getattr(torch._C, "_cuda_isHistoryEnabled", None)  # noqa: SLF001
    if enabled is not None and enabled():
        return "the program records the allocator's history itself"
    return None


def uses_cuda() -> bool:
    """Return whether the program uses CUDA; asking does not make it do so."""
    return bool(cuda_api.is_initialized())


def capturing() -> bool:
    """Return whether a CUDA graph is being captured: then nothing must be done."""
    return uses_cuda() and bool(cuda_api.is_current_stream_capturing())


def compilations() -> int:
    """Return a number that changes whenever torch compiles something."""
    count = 0
    dynamo = sys.modules.get("torch._dynamo.utils")
    if dynamo is not None:
        times = getattr(dynamo, "compilation_time_metrics", {})
        # A CUDA graph that is set up is timed there too, and nothing is compiled.
        count += sum(
            len(entries)
            for name, entries in list(times.items())
            if not name.startswith("cudagraphify")
        )
        counters = getattr(dynamo, "counters", {})
        for group, key in (("frames", "total"), ("stats", "unique_graphs")):
            if group in counters:
                count += counters[group].get(key, 0)
    return count


def captured_graphs() -> int:
    """Return how many CUDA graphs torch.compile keeps; 0 where that is not known."""
    trees: Any = sys.modules.get("torch._inductor.cudagraph_trees")
    if trees is None or not uses_cuda():
        return 0
    try:
        device = cuda_api.current_device()
        manager = trees.get_manager(device, create_if_none_exists=False)
        if manager is None:
            return 0
        roots = sum(len(nodes) for nodes in manager.roots.values())
        return roots + len(manager.warmed_up_functions)
    except Exception:  # noqa: BLE001 - private to torch; without it, one sign less
        return 0


def compress(source: Any, file: Path) -> int:
    """Copy a stream to the compressed ``file`` and return the size of that."""
    half = file.with_name("." + file.name)
    try:
        with gzip.open(half, "wb", compresslevel=6) as target:
            shutil.copyfileobj(source, target, 1 << 20)
        half.replace(file)
    finally:
        with contextlib.suppress(OSError):
            half.unlink()
    return file.stat().st_size


def resident_bytes() -> int:
    """Return how much memory the process holds; 0 where the system does not say."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def foreign_profiler(environment: dict[str, str]) -> str | None:
    """Return the name of a profiler attached from outside, if there is one."""
    if any(name.startswith(("NSYS_", "QUADD_")) for name in environment):
        return "Nsight Systems"
    if "NV_COMPUTE_PROFILER_PERFWORKS_DIR" in environment:
        return "Nsight Compute"
    for name in ("CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH"):
        if environment.get(name):
            return f"the tool named by {name}"
    return None


def _check_room(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed + _SPARE:
        msg = f"the disk has {free // MEGABYTE} MB free, too little"
        raise TooLargeError(msg)
