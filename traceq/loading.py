"""From a path to a trace: read, link, remember."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from traceq.cache import find, keep
from traceq.errors import InputError
from traceq.formats.chrome import read
from traceq.formats.facts import read_devices, read_facts
from traceq.graph.link import link
from traceq.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Callable
    from os import PathLike

_TELLING = ("ops", "kernels", "runtime", "annotations", "frames", "memory")


def load(
    path: str | PathLike[str],
    *,
    cache: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> Trace:
    """Load a trace of PyTorch's profiler into linked Polars tables.

    The tables are kept in the user's cache directory, and come from there when the
    same content is loaded again; with ``cache=False`` they are neither written nor
    read. ``progress`` is told, now and then, how many bytes of how many were read.
    Raises ``InputError`` for a file that is not such a trace.
    """
    file = Path(path)
    if not cache or not file.is_file():
        return _read(file, progress)
    if (known := find(file)) is not None:
        return known
    status = file.stat()
    trace = _read(file, progress)
    keep(file, trace, status)
    return trace


def _read(file: Path, progress: Callable[[int, int], None] | None) -> Trace:
    raw = read(file, progress)
    if not any(raw.tables[name].height for name in _TELLING):
        msg = (
            f"{file} is a Chrome trace, but not one of PyTorch's profiler: it has no"
            " operator, kernel or region; give the file that export_chrome_trace wrote"
        )
        raise InputError(msg)
    tables, steps_from = link(raw.tables)
    return Trace(
        facts=read_facts(file, raw, steps_from), devices=read_devices(raw), **tables
    )
