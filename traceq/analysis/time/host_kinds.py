"""What each thing that the host does is: its kind, name and place in the program.

Operators and runtime calls are what they are called. Python is self time by function:
built-in functions belong to the function that calls them, and what a hook on a module
does belongs to the hook, operators and launches included.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base.assumptions import PAGEABLE_COPY_BYTES
from traceq.analysis.base.sync_calls import OTHER_COPY, blocking_calls, copy_directions
from traceq.expressions import known
from traceq.graph.host import only
from traceq.graph.source import module_paths
from traceq.model.names import CALL_OF_GRAPH, DATA_REGION, GRAPH_CAPTURE, MODULE
from traceq.model.owners import GENERATED_FILE, RECORDER_FILE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceq.analysis.time.host_segments import HostSegments
    from traceq.trace import Trace

DISPATCH = "operators"
LAUNCHES = "launches"
PYTHON = "Python"
HOOKS = "module hooks"
LIBRARY = "Python of libraries"
MODULES = "module calls"
OPTIMIZER = "Python of the optimizer"
ENGINE = "autograd engine"
COMPILED = "guards and wrappers of compiled code"
DATA = "loading data"
COMPILING = "compiling"
CAPTURING = "capturing CUDA graphs"
SYNC = "waiting for the GPU"
BLOCKING = "copies that block"
BLOCKED = "waiting for locks and I/O"
PROFILER = "the profiler itself"
WITH_LIBRARIES = "Python with its libraries"
NO_STACKS = "Python between operators (stacks were not recorded)"
UNKNOWN = "unknown"

PLACE = ("file", "line", "function")
_DESCRIBED = (
    *("at", "kind", "name", *PLACE, "module", "op", "own", "caller", "library"),
    "called",
)
# What tells the kind and the name of a row.
_TELLING = (
    *("call", "call_name", "waited", "blocking", "is_op", "op_name", "compiling"),
    *("is_frame", "called", "source", "user", "region", "inner_region", "function"),
    "recorder",
)
_KIND_OF_CALL = {
    "launch": LAUNCHES,
    "graph launch": "launches of CUDA graphs",
    "copy": "copies and sets",
    "set": "copies and sets",
    "allocation": "allocating memory",
    "capture": CAPTURING,
    "sync": SYNC,
    "other": "other runtime calls",
}
# What a hook does is the hook's, but for waits, and for what no hook can help.
_OF_HOOK = (
    *(DISPATCH, LAUNCHES, "copies and sets", "other runtime calls"),
    *(PYTHON, WITH_LIBRARIES, LIBRARY),
)
_WAITS = (
    r"acquire of _thread|time\.sleep|<built-in function sleep>"
    r"|select\.(e?poll|select)|recv of _socket"
)
# Python that is not the user's, by the file of the function, or else by its name.
_KIND_OF_LIBRARY = (
    (PROFILER, rf"^torch/(profiler/|autograd/profiler)|{RECORDER_FILE}"),
    (
        COMPILED,
        r"^torch/_(dynamo|inductor|functorch)/|TorchDynamo Cache Lookup"
        rf"|{GENERATED_FILE}",
    ),
    (MODULES, r"^torch/nn/modules/(module|container)\.py|^nn\.Module: "),
    (OPTIMIZER, r"^torch/optim/"),
    (ENGINE, r"^torch/autograd/|run_backward"),
    (DATA, r"^torch/utils/data/"),
)
# The same by what torch marks, which is there without stacks, too.
_KIND_OF_REGION = (
    (OPTIMIZER, r"^Optimizer\.(step|zero_grad)#"),
    (COMPILED, r"^## Call CompiledFxGraph|^Torch-Compiled Region|dynamo_timed\)$"),
)
# Files through which a module calls its forward and its hooks.
_CALLS_HOOKS = r"^torch/nn/modules/module\.py$|^torch/utils/hooks\.py$"
_FORWARD = r"^(forward|__\w+__)$"


def describe(trace: Trace, host: HostSegments, waits: pl.Series) -> pl.DataFrame:
    """Return for each row of the host's tree, ``at``, what it is.

    ``kind`` and ``name``; the user's ``file``, ``line`` and ``function``; ``module``;
    the ``op`` around it; ``caller``, the row of the Python function that it belongs to;
    ``library``, what the user's function calls where it is a library's; ``called``, the
    Python call that it is, built-in or not; ``own``, whether it is the op's own time.
    ``waits`` are the runtime calls that waited for the GPU.
    """
    tree = _tree(trace, host, waits).with_row_index("at")
    rows = tree.join(
        _kinds(tree), on=_TELLING, nulls_equal=True, maintain_order="left"
    ).with_columns(
        # What an op asks of the runtime before it launches is its own time.
        own=pl.col("is_op")
        | known((pl.col("call") == "other") & pl.col("op").is_not_null())
    )
    if not _keeps_libraries(trace):
        rows = rows.with_columns(pl.col("kind").replace(PYTHON, WITH_LIBRARIES))
    of_hook = pl.col("hook").is_not_null() & pl.col("kind").is_in(_OF_HOOK)
    return rows.with_columns(
        kind=pl.when(of_hook).then(pl.lit(HOOKS)).otherwise("kind"),
        name=pl.when(of_hook).then("hook_function").otherwise("name"),
        caller=pl.when(of_hook).then("hook").otherwise("caller"),
        **{
            column: pl.when(of_hook).then(f"hook_{column}").otherwise(column)
            for column in PLACE
        },
    ).select(*_DESCRIBED)


def _kinds(tree: pl.DataFrame) -> pl.DataFrame:
    """Return kind and name by what tells them; there are few of these."""
    telling = tree.select(_TELLING).unique(maintain_order=True)
    texts = telling.with_columns(pl.col(pl.Categorical, pl.Enum).cast(pl.String))
    # The hash in the name of a compiled graph's call tells nobody anything.
    name = _first_of(_NAMES).str.replace(CALL_OF_GRAPH, "a compiled graph")
    return telling.hstack(texts.select(kind=_first_of(_KINDS), name=name))


def _tree(trace: Trace, host: HostSegments, waits: pl.Series) -> pl.DataFrame:
    """Return what there is to know of each row of the host's tree."""
    region, frame, op, call = map(
        host.rows_of, ("annotations", "frames", "ops", "runtime")
    )
    frames, ops, runtime = trace.frames, trace.ops, trace.runtime
    in_file = known(frames["file"].is_not_null()[frame])
    own = known(frames["own"][frame])
    # Built-in functions have no file; their time is of the function that calls them.
    caller = host.nearest(in_file)
    python, user = frame[caller], frame[host.nearest(own)]
    around = op[host.nearest(op.is_not_null())]
    is_region, in_python = region.is_not_null(), frame.is_not_null()
    # Inside of the innermost Python call, or around it: what of the two is it in?
    inner = known(is_region[host.nearest(is_region | in_python)])
    region = region[host.nearest(is_region)]
    first = host.nearest(in_file & ~own & known(own[host.around(in_file)]))
    ours = known(frames["own"][python])
    files = frames["file"][frame]
    recorder = _matching(files, RECORDER_FILE)
    # What the recorder calls of Python's own is the recorder's, too.
    inside = host.nearest(own | recorder | _matching(files, r"^torch/"))
    hook = host.nearest(_hooks(trace, host))
    called = frames["name"][frame]
    module = only(called, _matching(called, MODULE)).cast(pl.String)
    modules = module_paths(module.str.extract(MODULE), host.tree["parent"])
    hooked = frame[hook]
    return pl.DataFrame(
        {
            "call": runtime["call"][call],
            "call_name": runtime["name"][call],
            "waited": call.is_in(waits.implode()),
            "blocking": call.is_in(_blocking_copies(trace).implode()),
            "is_op": op.is_not_null(),
            "op": around,
            "op_name": ops["name"][around],
            "compiling": ops["compiling"][around],
            "is_frame": frame.is_not_null(),
            "called": called,
            "caller": caller,
            "source": frames["file"][python],
            "user": ours,
            "library": frames["name"][only(frame[first], ~ours)],
            "region": trace.annotations["name"][region],
            "inner_region": inner,
            "recorder": known(recorder[inside]),
            # Not as text: the path of a deep module is long, and each op has one.
            "module": pl.select(
                pl.coalesce(ops["module"][around], modules)
            ).to_series(),
            "hook": hook,
            **{f"hook_{column}": _plain(frames[column][hooked]) for column in PLACE},
            **{
                column: _first(ops[column][around], frames[column][user])
                for column in PLACE
            },
        }
    )


def _keeps_libraries(trace: Trace) -> bool:
    """Return whether calls in libraries are in the trace; ``shrink`` drops them."""
    frames = trace.frames.filter(pl.col("file").is_not_null())
    return not frames.height or not frames["own"].all()


def _blocking_copies(trace: Trace) -> pl.Series:
    """Return the copies to the GPU, by their call, that the driver does not stage."""
    copies = blocking_calls(trace).filter(pl.col("kind") == OTHER_COPY)
    size = copy_directions(trace).filter(pl.col("bytes") >= PAGEABLE_COPY_BYTES)
    return copies.join(size, left_on="id", right_on="launch", how="semi")["id"]


def _hooks(trace: Trace, host: HostSegments) -> pl.Series:
    """Return which rows of the tree are calls of the user's hooks on modules.

    They are functions that a module's call machinery calls beside the forward, which
    is another function or, where libraries' calls were not kept, operators.
    """
    frame = host.rows_of("frames")
    frames = trace.frames
    names, files = frames["name"][frame], frames["file"][frame]
    function = frames["function"][frame]
    module = _matching(names, MODULE)
    machinery = _matching(files, _CALLS_HOOKS)
    is_op = host.rows_of("ops").is_not_null()
    called = (frame.is_not_null() & files.is_not_null() & ~machinery) | is_op
    # What a module's call calls itself, not counting its machinery.
    around = host.around(module | called)
    direct = called & known(module[around])
    hook = direct & known(frames["own"][frame]) & ~_matching(function, _FORWARD)
    rows = pl.DataFrame(
        {
            "hook": hook,
            "by": around,
            "forward": direct & ~hook,
            "file": files,
            "function": function,
        }
    )
    beside = rows.filter("forward").select(pl.col("by").unique())["by"].implode()
    seen = rows.filter("hook", pl.col("by").is_in(beside))
    functions = seen.select("file", "function").unique()
    return (
        rows.with_row_index("at")
        .join(
            functions.with_columns(known=pl.lit(value=True)),
            on=["file", "function"],
            how="left",
            maintain_order="left",
        )
        .select(pl.col("hook") & known(pl.col("known")))
        .to_series()
    )


def _matching(names: pl.Series, pattern: str) -> pl.Series:
    """Return which names match; each distinct one is looked at once."""
    distinct = names.unique()
    found = distinct.filter(known(distinct.cast(pl.String).str.contains(pattern)))
    return known(names.is_in(found.implode()))


def _plain(values: pl.Series) -> pl.Series:
    return values.cast(pl.String) if values.dtype == pl.Categorical else values


def _first(*values: pl.Series) -> pl.Series:
    return pl.select(pl.coalesce(map(_plain, values))).to_series()


def _matches(column: str, pattern: str) -> pl.Expr:
    return known(pl.col(column).str.contains(pattern))


def _first_of(cases: Sequence[tuple[pl.Expr, pl.Expr]]) -> pl.Expr:
    return pl.coalesce(pl.when(condition).then(value) for condition, value in cases)


_LIBRARY_FILE = pl.coalesce("source", "called")
_OF_TORCH = pl.col("inner_region") & _matches(
    "region", "|".join(pattern for _, pattern in _KIND_OF_REGION)
)
# What a row of the tree is: the first of these that it fits.
_KINDS: Sequence[tuple[pl.Expr, pl.Expr]] = (
    (known(pl.col("compiling")), pl.lit(COMPILING)),
    (_matches("op_name", GRAPH_CAPTURE), pl.lit(CAPTURING)),
    (_matches("region", DATA_REGION), pl.lit(DATA)),
    (pl.col("blocking"), pl.lit(BLOCKING)),
    (pl.col("waited"), pl.lit(SYNC)),
    (
        pl.col("call").is_not_null(),
        pl.col("call").replace_strict(_KIND_OF_CALL, default=UNKNOWN),
    ),
    (
        pl.col("is_op") & _matches("op_name", "^TorchDynamo Cache Lookup"),
        pl.lit(COMPILED),
    ),
    (pl.col("is_op"), pl.lit(DISPATCH)),
    (_matches("called", "run_backward"), pl.lit(ENGINE)),
    (pl.col("is_frame") & pl.col("recorder"), pl.lit(PROFILER)),
    (_matches("called", _WAITS), pl.lit(BLOCKED)),
    *(
        (
            pl.col("is_frame") & known(_LIBRARY_FILE.str.contains(pattern)),
            pl.lit(kind),
        )
        for kind, pattern in _KIND_OF_LIBRARY
    ),
    *(
        (pl.col("inner_region") & _matches("region", pattern), pl.lit(kind))
        for kind, pattern in _KIND_OF_REGION
    ),
    (known(pl.col("user")), pl.lit(PYTHON)),
    (pl.col("is_frame"), pl.lit(LIBRARY)),
    (pl.lit(value=True), pl.lit(UNKNOWN)),
)
_NAMES: Sequence[tuple[pl.Expr, pl.Expr]] = (
    (pl.col("call").is_not_null(), pl.col("call_name")),
    (pl.col("is_op"), pl.col("op_name")),
    (_OF_TORCH, pl.lit("torch")),
    (known(pl.col("user")), pl.col("function")),
    (pl.col("is_frame"), _LIBRARY_FILE.str.extract(r"^([\w-]+)", 1)),
    (pl.lit(value=True), pl.col("region")),
)
