"""An account of the host's time: every nanosecond of a step belongs to one entry.

Operators are at their usual cost, or beyond it: the usual cost of an operator is what
its calls take on inputs that were seen before. Python is self time by function, with
what it calls in C++. Each entry has its time as recorded, the part of it during which
the GPU idled, which is all that can be saved, and an estimate without the profiler.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base.assumptions import (
    EXCESS_FACTOR,
    EXCESS_NS,
    USUAL_PLANNED_OP_NS,
)
from traceq.analysis.time.host_segments import PARTS, host_segments
from traceq.expressions import known, text
from traceq.model.names import DATA_REGION, GRAPH_CAPTURE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceq.analysis.replay.simulation import Replay, TimeScale
    from traceq.analysis.time.host_segments import HostSegments
    from traceq.trace import Trace

DISPATCH = "operators"
NEW_SHAPE = "operators on new shapes"
LOADING = "loading kernels"
SLOW = "operators slower than usual"
PYTHON = "Python"
LIBRARY = "Python of libraries"
MODULES = "module calls"
OPTIMIZER = "Python of the optimizer"
ENGINE = "autograd engine"
COMPILED = "guards and wrappers of compiled code"
DATA = "loading data"
COMPILING = "compiling"
CAPTURING = "capturing CUDA graphs"
SYNC = "waiting for the GPU"
BLOCKED = "waiting for locks and I/O"
PROFILER = "the profiler itself"
UNKNOWN = "unknown"
_KIND_OF_CALL = {
    "launch": "launches",
    "graph launch": "launches of CUDA graphs",
    "copy": "copies and sets",
    "set": "copies and sets",
    "allocation": "allocating memory",
    "capture": CAPTURING,
    "sync": SYNC,
    "other": "other runtime calls",
}
# Ops for which a library chooses an algorithm, or makes a plan, for each new shape.
PLANNED = (
    r"^aten::(add|b|badd)?mm$|^aten::_(scaled|grouped)_mm$"
    r"|^aten::(cudnn|miopen|slow|thnn|mkldnn)?_?conv|^aten::_cudnn_attention"
    r"|^aten::_fft_"
)
# Calls with which the code of a kernel is loaded when it is first launched.
_LOADS = (
    r"^cu(da)?(LibraryLoad|LibraryGet|ModuleLoad|ModuleGet|FuncGetAttr|FuncLoad"
    r"|FuncSetAttr|KernelGet|KernelSet)"
)
_WAITS = r"acquire of _thread|time\.sleep|select\.(e?poll|select)|recv of _socket"
# Python that is not the user's, by the file of the function, or else by its name.
_KIND_OF_LIBRARY = (
    (
        PROFILER,
        r"^torch/(profiler/|autograd/profiler)|(^|/)collect/(agent|shared)/\w+\.py",
    ),
    (COMPILED, r"^torch/_(dynamo|inductor|functorch)/|TorchDynamo Cache Lookup"),
    (MODULES, r"^torch/nn/modules/(module|container)\.py|^nn\.Module: "),
    (OPTIMIZER, r"^torch/optim/"),
    (ENGINE, r"^torch/(autograd/|_tensor\.py)|run_backward"),
    (DATA, r"^torch/utils/data/"),
)
_PLACE = ("file", "line", "function")


@dataclass(frozen=True)
class HostAccount:
    """Where the host's time of a step goes."""

    entries: pl.DataFrame
    """Longest first: ``kind``, ``name`` (of the op, function, library or call), the
    user's ``file``, ``line`` and ``function``, ``module``; per step ``calls`` and, in
    ns, ``recorded``, ``idle`` (of it, while the GPU idled) and ``estimated`` (without
    the profiler)."""
    calls: pl.DataFrame
    """Operator calls: ``op``, ``name``, ``own`` (time in no other op, launches aside),
    ``usual``, ``excess`` (0 unless it is far beyond the usual), ``idle``, ``new`` (the
    first use of this op on these inputs), ``planned`` and ``loads``."""
    segments: pl.DataFrame
    """The host's time in order: ``start``, ``end``, ``idle``, ``kind``, ``name``,
    ``file``, ``line``, ``function``, ``op`` (around it), ``own`` (of that op)."""
    steps: int

    @property
    def kinds(self) -> pl.DataFrame:
        """The entries by ``kind``, longest first."""
        return self._by("kind")

    @property
    def lines(self) -> pl.DataFrame:
        """The entries by kind, name and place, all modules together, longest first."""
        return self._by("kind", "name", *_PLACE)

    def _by(self, *keys: str) -> pl.DataFrame:
        return (
            self.entries.group_by(keys)
            .agg(pl.col("recorded", "idle", "estimated", "calls").sum())
            .sort("recorded", *keys, descending=[True, *(False for _ in keys)])
        )


def host_account(trace: Trace, replay: Replay, scale: TimeScale) -> HostAccount:
    """Return the account of the steady-state steps, or of a trace without steps."""
    host = host_segments(trace)
    worked = [_worked(replay, scale, host.segments[side]) for side in ("start", "end")]
    segments = host.segments.with_columns(
        recorded=pl.col("end") - pl.col("start"), estimated=worked[1] - worked[0]
    )
    rows = _described(trace, host)
    calls = _calls(trace, segments, rows)
    described = segments.join(
        _with_excess(rows, calls), on="at", how="left", maintain_order="left"
    ).with_columns(
        pl.col("kind").fill_null(UNKNOWN), pl.col("own").fill_null(value=False)
    )
    return HostAccount(_entries(described, host.steps), calls, described, host.steps)


def _worked(replay: Replay, scale: TimeScale, moments: pl.Series) -> pl.Series:
    """Return how long the host has worked until each moment, at this speed."""
    edges, worked = replay.host_time(scale)
    at = edges.search_sorted(moments, side="right").cast(pl.Int64) - 1
    at = at.clip(0, max(0, len(edges) - 2))
    begin, end = edges.gather(at), edges.gather(at + 1)
    into = ((moments - begin) / (end - begin)).clip(0, 1)
    return worked.gather(at) + into * (worked.gather(at + 1) - worked.gather(at))


def _described(trace: Trace, host: HostSegments) -> pl.DataFrame:
    """Return for each row of the tree, ``at``, its kind, name and place."""
    row = {part: host.rows_of(part) for part in PARTS}
    region, frame, op, call = (row[part] for part in PARTS)
    frames, ops, runtime = trace.frames, trace.ops, trace.runtime
    in_file = known(frames["file"].is_not_null().gather(frame))
    # Built-in functions have no file; their time is of the function that calls them.
    python = frame.gather(host.nearest(in_file))
    user = frame.gather(host.nearest(known(frames["user"].gather(frame))))
    around = op.gather(host.nearest(op.is_not_null()))
    region = region.gather(host.nearest(region.is_not_null()))
    tree = pl.DataFrame(
        {
            "call": _texts(runtime["call"], call),
            "call_name": _texts(runtime["name"], call),
            "is_op": op.is_not_null(),
            "op": around,
            "op_name": _texts(ops["name"], around),
            "compiling": ops["compiling"].gather(around),
            "is_frame": frame.is_not_null(),
            "built_in": _texts(frames["name"], frame),
            "source": _texts(frames["file"], python),
            "user": frames["user"].gather(python),
            "region": _texts(trace.annotations["name"], region),
            "module": _texts(ops["module"], around),
            **{
                column: _first(ops[column].gather(around), frames[column].gather(user))
                for column in _PLACE
            },
        }
    )
    return tree.with_row_index("at").select(
        "at",
        "op",
        "module",
        *_PLACE,
        kind=_first_of(_KINDS),
        name=_first_of(_NAMES),
        loads=known(pl.col("call_name").str.contains(_LOADS)),
        # What an op asks of the runtime before it launches is its own time.
        own=pl.col("is_op")
        | known((pl.col("call") == "other") & pl.col("op").is_not_null()),
    )


def _texts(names: pl.Series, rows: pl.Series) -> pl.Series:
    return names.gather(rows).cast(pl.String)


def _first(*values: pl.Series) -> pl.Series:
    plain = [
        one.cast(pl.String) if one.dtype == pl.Categorical else one for one in values
    ]
    return pl.select(pl.coalesce(plain)).to_series()


def _matches(column: str, pattern: str) -> pl.Expr:
    return known(pl.col(column).str.contains(pattern))


_LIBRARY_FILE = pl.coalesce("source", "built_in")
# What a row of the tree is: the first of these that it fits.
_KINDS: Sequence[tuple[pl.Expr, pl.Expr]] = (
    (known(pl.col("compiling")), pl.lit(COMPILING)),
    (_matches("op_name", GRAPH_CAPTURE), pl.lit(CAPTURING)),
    (_matches("region", DATA_REGION), pl.lit(DATA)),
    (
        pl.col("call").is_not_null(),
        pl.col("call").replace_strict(_KIND_OF_CALL, default=UNKNOWN),
    ),
    (
        pl.col("is_op") & _matches("op_name", "^TorchDynamo Cache Lookup"),
        pl.lit(COMPILED),
    ),
    (pl.col("is_op"), pl.lit(DISPATCH)),
    (_matches("built_in", "run_backward"), pl.lit(ENGINE)),
    (_matches("built_in", _WAITS), pl.lit(BLOCKED)),
    *(
        (
            pl.col("is_frame") & known(_LIBRARY_FILE.str.contains(pattern)),
            pl.lit(kind),
        )
        for kind, pattern in _KIND_OF_LIBRARY
    ),
    (known(pl.col("user")), pl.lit(PYTHON)),
    (pl.col("is_frame"), pl.lit(LIBRARY)),
    (pl.lit(value=True), pl.lit(UNKNOWN)),
)
_NAMES: Sequence[tuple[pl.Expr, pl.Expr]] = (
    (pl.col("call").is_not_null(), pl.col("call_name")),
    (pl.col("is_op"), pl.col("op_name")),
    (known(pl.col("user")), pl.col("function")),
    (pl.col("is_frame"), _LIBRARY_FILE.str.extract(r"^([\w-]+)", 1)),
    (pl.lit(value=True), pl.col("region")),
)


def _first_of(cases: Sequence[tuple[pl.Expr, pl.Expr]]) -> pl.Expr:
    return pl.coalesce(pl.when(condition).then(value) for condition, value in cases)


def _calls(trace: Trace, segments: pl.DataFrame, rows: pl.DataFrame) -> pl.DataFrame:
    """Return the operator calls with their own time, the usual one and the excess."""
    first = trace.ops.sort("ts", maintain_order=True).select(
        text("name"),
        op="id",
        new=pl.struct("name", "inputs").is_first_distinct()
        & pl.col("inputs").is_not_null(),
    )
    own = (
        segments.join(rows.filter("own").select("at", "op", "loads"), on="at")
        .group_by("op")
        .agg(
            own=pl.col("recorded").sum(),
            idle=pl.col("idle").sum(),
            loads=pl.col("loads").any(),
        )
    )
    again = pl.col("own").filter(~pl.col("new")).median().over("name")
    assumed = pl.when("planned").then(pl.lit(USUAL_PLANNED_OP_NS))
    far = pl.col("own") > pl.max_horizontal(
        pl.lit(EXCESS_NS), EXCESS_FACTOR * pl.col("usual")
    )
    return (
        own.join(first, on="op")
        .sort("op")
        .with_columns(planned=pl.col("name").str.contains(PLANNED))
        .with_columns(usual=pl.coalesce(again, assumed, "own").cast(pl.Int64))
        .with_columns(
            excess=pl.when(far).then(pl.col("own") - pl.col("usual")).otherwise(0)
        )
    )


def _with_excess(rows: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Return the rows, with a kind of their own where an op was slower than usual."""
    reason = (
        pl.when(pl.col("new") & pl.col("planned"))
        .then(pl.lit(NEW_SHAPE))
        .when("loads")
        .then(pl.lit(LOADING))
        .otherwise(pl.lit(SLOW))
    )
    slow = calls.filter(pl.col("excess") > 0).select("op", reason=reason)
    return rows.join(slow, on="op", how="left", maintain_order="left").with_columns(
        kind=pl.when(pl.col("own") & pl.col("reason").is_not_null())
        .then("reason")
        .otherwise("kind")
    )


def _entries(segments: pl.DataFrame, steps: int) -> pl.DataFrame:
    times = ("recorded", "idle", "estimated")
    return (
        segments.group_by("kind", "name", *_PLACE, "module", maintain_order=True)
        .agg(
            calls=pl.col("at").n_unique() / steps,
            **{one: pl.col(one).sum() / steps for one in times},
        )
        .sort("recorded", "kind", "name", descending=[True, False, False])
    )
