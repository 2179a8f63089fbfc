"""State of torch in this process, read without side effects."""

from __future__ import annotations

import contextlib
import sys
from typing import Any, Iterator

import torch

cuda_api: Any = torch.cuda  # parts of it have no types


def uses_cuda() -> bool:
    """Return whether the program uses CUDA; asking does not initialise it."""
    return bool(cuda_api.is_initialized())


def capturing() -> bool:
    """Return whether a CUDA graph is being captured: then do nothing."""
    return uses_cuda() and bool(cuda_api.is_current_stream_capturing())


def compiling() -> bool:
    """Return whether torch.compile is looking at the code that runs."""
    is_compiling = getattr(torch.compiler, "is_compiling", None)
    return bool(is_compiling()) if is_compiling is not None else False


@contextlib.contextmanager
def without_import_of_inductor() -> Iterator[None]:
    """Keep torch from importing its compiler in between, which takes 4 s.

    Its profiler looks up whether the compiler uses CUDA graphs, and a snapshot of the
    allocator which code the compiler made. A program that has not imported the
    compiler has compiled nothing.
    """
    lazy: Any = getattr(torch, "_lazy_modules", None)
    hidden = (
        isinstance(lazy, set)
        and "_inductor" in lazy
        and "torch._inductor" not in sys.modules
    )
    if hidden:
        lazy.discard("_inductor")
    try:
        yield
    finally:
        if hidden:
            lazy.add("_inductor")


def call_cuda() -> None:
    """Make one CUDA call, which returns at once.

    With TEARDOWN_CUPTI=1, CUPTI detaches at the first CUDA call after a profile.
    Without one, the next profile records no GPU work, and a process that ends hangs.
    """
    if uses_cuda() and not capturing():
        cuda_api.current_stream().query()


def gpu_allocations() -> int | None:
    """Return the number of GPU memory allocations so far, if that is known."""
    if not uses_cuda():
        return None
    try:
        return int(cuda_api.memory_stats()["allocation.all.allocated"])
    except Exception:  # noqa: BLE001 - another allocator may not count
        return None


def compilations() -> int:
    """Return a number that changes whenever torch compiles something."""
    count = 0
    dynamo = sys.modules.get("torch._dynamo.utils")
    if dynamo is not None:
        times = getattr(dynamo, "compilation_time_metrics", {})
        # Setting up a CUDA graph is timed there too, but compiles nothing.
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
    """Return the number of CUDA graphs that torch.compile holds; 0 if unknown."""
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
    except Exception:  # noqa: BLE001 - private to torch; without it, one indication less
        return 0
