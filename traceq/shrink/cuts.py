"""Removable parts of a trace, which may go if the findings stay the same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from traceq.model import names

if TYPE_CHECKING:
    from collections.abc import Callable

    from traceq.formats.sanitize.trace import Written

_FRAME = pl.col("category") == "python_function"
_CALLED = pl.col("text").str.contains('"caller"', literal=True)
_MEMORY = pl.col("name") == "[memory]"
_OP = pl.col("category").is_in(["cpu_op", "Operator"])
_CALL = pl.col("category").is_in(["cuda_runtime", "cuda_driver", "Runtime"])
_ON_GPU = (
    *(
        "kernel",
        "mtia_ccp_events",
        "gpu_memcpy",
        "gpu_memset",
        "Kernel",
        "Memcpy",
        "Memset",
    ),
    *("gpu_user_annotation", "gpu_user_Annotation"),
)
_CPU = 0


@dataclass(frozen=True)
class Removable:
    """One kind of events that may be removed."""

    what: str
    gone: Callable[[Written], pl.Series]
    """Returns for each event whether it is one of them."""
    always: bool = True
    """True to try it on every trace; False to try it only while the trace is too
    large."""


def _library_frames(trace: Written) -> pl.Series:
    """Find calls in torch and Python: they show how torch works, not the program."""
    events = trace.events
    called = events.filter(_FRAME)["name"].unique()
    frames = names.describe_frames(called)
    named = pl.any_horizontal(pl.col("module", "library").is_not_null())
    needed = frames.filter(pl.col("own") | named)["name"]
    library = _FRAME & ~pl.col("name").is_in(needed.implode())
    return events.select(library & ~_CALLED).to_series()


def _built_ins(trace: Written) -> pl.Series:
    built_in = pl.col("name").str.starts_with("<built-in")
    return trace.events.select(_FRAME & built_in & ~_CALLED).to_series()


def _idle_lines(trace: Written) -> pl.Series:
    """Find calls that are there for their lines, and start nothing on the GPU."""
    called = names.describe_frames(trace.events["name"]).select(
        ~(pl.col("own") | pl.col("module").is_not_null())
    )
    line = trace.events.select(_FRAME & _CALLED).to_series()
    return line & called.to_series() & ~_around_work(trace)


def _memory_of_host(trace: Written) -> pl.Series:
    return trace.events.select(
        _MEMORY & (pl.col("device_type") == _CPU).fill_null(value=False)
    ).to_series()


def _memory_between_peaks(trace: Written) -> pl.Series:
    """Allocations that are neither a new peak nor at the edge of anything named."""
    events = trace.events.with_row_index("at")
    steps = events.filter(pl.col("name").str.contains(names.STEP))
    edges = pl.concat([steps["ts"], steps["end"]]).unique().sort().to_frame("edge")
    memory = events.filter(_MEMORY).sort("ts")
    window = memory.join_asof(
        edges.with_row_index("window"), left_on="ts", right_on="edge"
    ).with_columns(pl.col("window").fill_null(-1))
    groups = ("window", "device_type", "device")
    place = pl.int_range(pl.len()).over(groups)
    most = pl.col("allocated") == pl.col("allocated").max().over(groups)
    first_most = most & (most.cast(pl.Int32).cum_sum().over(groups) == 1)
    last = place == pl.len().over(groups) - 1
    peaks = window.filter((place == 0) | last | first_most)["at"]
    return events.select(_MEMORY & ~pl.col("at").is_in(peaks.implode())).to_series()


def _idle_calls(trace: Written) -> pl.Series:
    """Runtime calls that neither start work nor wait, and take no memory."""
    return trace.events.select(
        _CALL & pl.col("name").is_in(_idle_names(trace).implode())
    ).to_series()


def _idle_names(trace: Written) -> pl.Series:
    called = trace.events.filter(_CALL)["name"].unique()
    return names.describe_calls(called).filter(pl.col("call") == "other")["name"]


def _idle_inner_ops(trace: Written) -> pl.Series:
    """Those of them that another operator has called."""
    ops = trace.events.with_row_index("at").filter(_OP)
    by_thread = ops.sort("lane", "ts", "end", descending=[False, False, True])
    before = pl.col("end").cum_max().shift(1).over("lane")
    inner = by_thread.filter(before >= pl.col("end"))["at"]
    at = pl.int_range(trace.events.height, eager=True).cast(inner.dtype)
    return _idle_ops(trace) & at.is_in(inner.implode())


def _idle_ops(trace: Written) -> pl.Series:
    """Operators inside of which nothing is started on the GPU, or waited for."""
    return trace.events.select(_OP).to_series() & ~_around_work(trace)


def _idle_frames(trace: Written) -> pl.Series:
    return trace.events.select(_FRAME).to_series() & ~_around_work(trace)


def _around_work(trace: Written) -> pl.Series:
    """Return for each event whether a call lies in it that has to do with the GPU."""
    events = trace.events.with_row_index("at")
    idle = pl.col("name").is_in(_idle_names(trace).implode())
    calls = events.filter(_CALL & ~idle)
    following = events.sort("ts").join_asof(
        calls.select("lane", call="ts").sort("call"),
        left_on="ts",
        right_on="call",
        by="lane",
        strategy="forward",
        check_sortedness=False,
    )
    inside = pl.col("call") <= pl.col("end")
    return following.sort("at").select(inside.fill_null(value=False)).to_series()


REMOVABLE = (
    Removable("Python calls in libraries", _library_frames),
    Removable("Python's built-ins", _built_ins),
    Removable("calls of libraries that start nothing", _idle_lines),
    Removable("allocations on the host", _memory_of_host),
    Removable("runtime calls that start nothing", _idle_calls, always=False),
    Removable("allocations between peaks", _memory_between_peaks, always=False),
    Removable("inner operators that start nothing", _idle_inner_ops, always=False),
    Removable("operators that start nothing on the GPU", _idle_ops, always=False),
    Removable("Python calls that start nothing on the GPU", _idle_frames, always=False),
)
"""In the order in which they are tried: what is missed least comes first."""


def keeping_steps(trace: Written, start: int, end: int) -> Written:
    """Return the trace as if it had been recorded from one moment to another.

    What was begun before and lasts into it is there as it would be then: the
    program's outermost functions, and work that the GPU was still busy with.
    """
    begun = pl.col("ts").is_between(start, end)
    lasting = (pl.col("ts") < end) & (pl.col("end") > start)
    outer = _FRAME | pl.col("category").is_in(["user_annotation", "User"])
    later = trace.events.filter(_CALL, pl.col("ts") > end)["correlation"].drop_nulls()
    launched_later = pl.col("correlation").is_in(later.implode()).fill_null(value=False)
    on_gpu = pl.col("category").is_in(_ON_GPU)
    around = (pl.col("phase") == "M") | pl.col("category").is_in(["Trace", ""])
    condition = (
        pl.when(around)
        .then(pl.lit(value=True))
        .when(on_gpu)
        .then((pl.col("end") > start) & ~launched_later)
        .when(outer)
        .then(lasting)
        .otherwise(begun)
    )
    return trace.keeping(condition.fill_null(value=True))
