"""Recordings of other profilers: recognition, and the recording to make instead."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from traceq.formats.kinds import head_of, is_dump

if TYPE_CHECKING:
    from pathlib import Path

REPORTS = (".nsys-rep", ".qdrep", ".qdstrm")
"""Endings of Nsight Systems' own reports, which only ``nsys`` can read."""
_HEAD = 1 << 14
_TORCH = (
    "record with PyTorch's profiler (traceq collect), or with nsys profile and nsys"
    " export --type sqlite"
)


class _Stranger(NamedTuple):
    """A kind of file, by its name, its first bytes or words in its beginning."""

    what: str
    remedy: str
    endings: tuple[str, ...] = ()
    magic: bytes = b""
    words: tuple[bytes, ...] = ()


_STRANGERS = (
    _Stranger(
        "a report of Nsight Compute, which has the counters of single kernels",
        f"for a timeline {_TORCH}",
        (".ncu-rep", ".nsight-cuprof-report"),
        b"NVR\x00",
    ),
    _Stranger(
        "a profile of XLA (xplane), as JAX and TensorFlow write",
        f"of a PyTorch program {_TORCH}",
        (".xplane.pb",),
    ),
    _Stranger(
        "a profile of Triton's Proton, which has sums instead of a timeline",
        f"for a timeline {_TORCH}",
        (".hatchet",),
        b"",
        (b'"children"', b'"frame"', b'"metrics"'),
    ),
    _Stranger(
        "a trace of rocprofv3",
        "record with PyTorch's profiler (traceq collect), which traces AMD's GPUs too",
        (".pftrace", ".rocpd"),
        b"",
        (b'"rocprofiler-sdk-tool"',),
    ),
    _Stranger(
        "a table of rocprofv3",
        "record with PyTorch's profiler (traceq collect), which traces AMD's GPUs too",
        (),
        b'"Kind","Agent_Id"',
    ),
)


_DUMP = (
    "is a dump of the flight recorder, which has the collectives of one rank: give"
    " those of all ranks to traceq ranks"
)


def stranger(path: Path) -> str:
    """Return what another profiler's file is and what to do; empty for all others."""
    try:
        with path.open("rb") as file:
            head = head_of(file, _HEAD)
    except OSError:
        return ""
    if is_dump(head):
        return _DUMP
    name = path.name.lower()
    for row in _STRANGERS:
        named = name.endswith(row.endings) if row.endings else False
        begins = bool(row.magic) and head.startswith(row.magic)
        worded = bool(row.words) and all(word in head for word in row.words)
        if named or begins or (worded and b"traceEvents" not in head):
            return f"is {row.what}: {row.remedy}"
    return ""
