"""Host activities described: kind, name and place in the program.

Operators and runtime calls keep their names. Python is self time by function: built-in
functions count for the function that calls them, and the work of a hook on a module
counts for the hook, operators and launches included.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import polars as pl
from msgspec import Struct

from traceq.analysis.base.assumptions import PAGEABLE_COPY_BYTES
from traceq.analysis.base.group_ids import alike
from traceq.analysis.base.sync_calls import OTHER_COPY, blocking_calls, copy_directions
from traceq.common.expressions import known, rows_where, text
from traceq.graph.host import describe as told_once
from traceq.graph.host import only
from traceq.graph.nesting import INDEX, nearest, row_numbers
from traceq.graph.source.places import module_paths
from traceq.model import host_work
from traceq.model.names import CALL_OF_GRAPH, DATA_REGION, GRAPH_CAPTURE, MODULE
from traceq.model.owners import GENERATED_FILE, RECORDER_FILE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceq.analysis.time.call_paths import Contexts
    from traceq.analysis.time.host_segments import HostSegments
    from traceq.model.trace import Trace

DISPATCH = host_work.OPERATORS
LAUNCHES = "launches"
PYTHON = "Python"
HOOKS = "module hooks"
LIBRARY = "Python of libraries"
MODULES = "module calls"
OPTIMIZER = "Python of the optimizer"
ENGINE = "autograd engine"
COMPILED = "guards and wrappers of compiled code"
DATA = "loading data"
LOADING = "loading kernels"
"""Code of kernels, at their first use: it passes by itself."""
COMPILING = "compiling"
CAPTURING = "capturing CUDA graphs"
SYNC = "waiting for the GPU"
BLOCKING = "copies that block"
BLOCKED = "waiting for locks and I/O"
PROFILER = "the profiler itself"
WITH_LIBRARIES = "Python with its libraries"
PAUSED = "pauses of few steps"
"""Python that few steps have, and for long; see host_pauses."""
NO_STACKS = "Python between operators (stacks were not recorded)"
UNKNOWN = host_work.UNKNOWN

work_name = host_work.host_work_name
"""Name of a kind in reports, for rules."""
LOADS_BATCHES = r"^torch/utils/data/"
"""Files of a DataLoader, which start and end workers and wait for them."""
INTERRUPTED = (
    *(BLOCKED, PYTHON, WITH_LIBRARIES, LIBRARY),
    *(MODULES, OPTIMIZER, ENGINE, NO_STACKS),
)
"""Python, in which the interpreter may stop for something else, and what waits."""
PLACE = ("file", "line", "function")
_ACTIVITY = ("kind", "name", *PLACE, "module", "own", "library", "called")
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
# The work of a hook counts for the hook, except waits and unavoidable work.
_OF_HOOK = (
    *(DISPATCH, LAUNCHES, "copies and sets", "other runtime calls"),
    *(PYTHON, WITH_LIBRARIES, LIBRARY),
)
WAITS = (
    r"acquire of _thread|time\.sleep|<built-in function sleep>"
    r"|select\.(e?poll|select)|recv of _socket"
)
"""Python calls in which a thread waits for another one, for a lock or for I/O."""
# Python that is not the user's, by the file of the function, or else by its name.
_KIND_OF_LIBRARY = (
    (PROFILER, rf"^torch/(profiler/|autograd/profiler)|{RECORDER_FILE}"),
    # torch.func, which beside it has what compiled code is wrapped in.
    (
        LIBRARY,
        r"^torch/_functorch/(apis|autograd_function|batch_norm_replacement"
        r"|eager_transforms|functional_call|make_functional|predispatch|pyfunctorch"
        r"|vmap)\.py",
    ),
    (
        COMPILED,
        r"^torch/_(dynamo|inductor|functorch)/|TorchDynamo Cache Lookup"
        rf"|{GENERATED_FILE}",
    ),
    (MODULES, r"^torch/nn/modules/(module|container)\.py|^nn\.Module: "),
    (OPTIMIZER, r"^torch/optim/"),
    (ENGINE, r"^torch/autograd/|run_backward"),
    (DATA, LOADS_BATCHES),
)
# The same by what torch marks, which is there without stacks, too.
_KIND_OF_REGION = (
    (OPTIMIZER, r"^Optimizer\.(step|zero_grad)#"),
    (COMPILED, r"^## Call CompiledFxGraph|^Torch-Compiled Region|dynamo_timed\)$"),
)
# Files that run with compiled code only: eager code runs wrappers of Dynamo's, too.
_COMPILED_FILE = rf"^torch/_(inductor|functorch/_aot_autograd)/|{GENERATED_FILE}"
_COMPILED_OP = r"^(TorchDynamo Cache Lookup|Torch-Compiled Region|CompiledFunction)"
# Files through which a module calls its forward and its hooks.
_CALLS_HOOKS = r"^torch/nn/modules/module\.py$|^torch/utils/hooks\.py$"
_FORWARD = r"^(forward|__[0-9A-Za-z_]+__)$"


class Described(Struct, frozen=True, dict=True):
    """The activity of each row of the host's tree: few activities, many rows."""

    activity: pl.Series
    """Of each row of the tree the row of ``activities`` that it is."""
    activities: pl.DataFrame
    """``kind`` and ``name``; the user's ``file``, ``line`` and ``function``;
    ``module``; ``own``, whether it is an op's own time; ``library``, what the user's
    function calls where it is a library's; ``called``, the Python call that it is,
    built-in or not."""
    host: HostSegments
    contexts: Contexts
    """The contexts of the rows: rows with the same call path share one."""
    functions: pl.Series
    """For each context, whether it is a Python function that is in a file."""
    hooks: pl.Series
    """For each context, whether it is the call of a hook."""
    of_hook: pl.Series
    """For each context, whether it is the work of a hook."""

    @cached_property
    def caller(self) -> pl.Series:
        """For each row of the tree the row of the function that it belongs to."""
        functions, hooks, of_hook = (
            of_context[self.contexts.number]
            for of_context in (self.functions, self.hooks, self.of_hook)
        )
        caller = self.host.nearest(functions)
        if of_hook.any():
            caller = self.host.nearest(hooks).zip_with(of_hook, caller)
        return only(caller, caller < self.host.nothing)


class _Places(Struct, frozen=True):
    """The rows of the tree that say where in the program all others are.

    They are functions that are in a file, modules and regions.
    """

    inside: pl.Series
    """For each context, the one of these that it is in."""
    functions: pl.Series
    """For each context, whether it is a function that is in a file."""
    hooks: pl.Series
    """For each context, whether it is the call of a hook."""
    table: pl.DataFrame
    """Of each of these ``row`` (of the tree) and ``frame`` (of that table); which of
    these is the function, ``caller``, the ``user`` function around it, what that calls,
    ``library``, and the ``hook`` around it; ``region`` (its name), ``module`` and
    ``recorder``, whether it is the recorder's."""

    def of(self, column: str, rows: pl.Series) -> pl.Series:
        """Return the frames of the ``column`` of some of these."""
        return self.table["frame"][self.table[column][rows]]


def describe(trace: Trace, host: HostSegments, waits: pl.Series) -> Described:
    """Return a description of each row of the host's tree.

    ``waits`` are the runtime calls that waited for the GPU.
    """
    contexts = _with_waits(trace, host, waits)
    frame, call, op = (
        contexts.rows_of("frames"),
        contexts.rows_of("runtime"),
        contexts.op,
    )
    places = _places(trace, contexts, frame)
    inside = places.inside
    # A row is a call of Python or of the runtime; an op or a region is told below.
    itself = trace.frames["name"].to_physical()[frame]
    calls = trace.runtime.select(
        pl.col("call").gather(call), pl.col("name").gather(call).alias("call_name")
    ).with_columns(known(contexts.tree["waited"]), known(contexts.tree["blocking"]))
    called = alike(*calls).number
    itself = itself.zip_with(frame.is_not_null(), called)
    around = trace.ops.select(pl.col("name", "compiling", "module", *PLACE).gather(op))
    # One context of each activity tells what it is.
    activity, first = alike(
        contexts.tree["part"],
        itself,
        alike(*around).number,
        _signs(trace, places)[inside],
    )
    facts = _facts(trace, places, inside[first], frame[first], op[first]).with_columns(
        calls.select(pl.all().gather(first)),
        is_op=contexts.rows_of("ops")[first].is_not_null(),
        inner_region=contexts.rows_of("annotations")[first].is_not_null(),
    )
    activities = _activities(facts, keeps_libraries=_keeps_libraries(trace))
    return Described(
        activity[contexts.number],
        activities.select(_ACTIVITY),
        host,
        contexts,
        places.functions,
        places.hooks,
        activities["of_hook"][activity],
    )


def _with_waits(trace: Trace, host: HostSegments, waits: pl.Series) -> Contexts:
    """Return contexts in which calls that wait or block are apart from the others.

    They are ``waited`` and ``blocking``.
    """
    rows = rows_where(host.are("runtime"))
    calls = pl.DataFrame({"first": rows, "row": host.tree["row"][rows]}).with_columns(
        waited=pl.col("row").is_in(waits.implode()),
        blocking=pl.col("row").is_in(_blocking_copies(trace).implode()),
    )
    return host.contexts.apart(calls.filter(pl.col("waited") | pl.col("blocking")))


def _signs(trace: Trace, places: _Places) -> pl.Series:
    """Return a number for each place, the same for those that say the same."""
    table = places.table
    frame = table["frame"]
    # The name tells all but the line, which may not be known.
    function, _ = alike(trace.frames["name"][frame], trace.frames["line"][frame])
    return alike(
        *(function[table[column]] for column in ("caller", "user", "library", "hook")),
        *table.select("region", "module", "recorder"),
    ).number


def _activities(facts: pl.DataFrame, *, keeps_libraries: bool) -> pl.DataFrame:
    """Return the distinct activities of the facts: kind, name and place."""
    python = facts.select(name=pl.coalesce("source", "called"))
    texts = facts.with_columns(
        pl.col(pl.Categorical, pl.Enum).cast(pl.String),
        *told_once(python, _of_python).iter_columns(),
    )
    # The hash in the name of a compiled graph's call tells nobody anything.
    name = _first_of(_NAMES).str.replace(CALL_OF_GRAPH, "a compiled graph")
    activities = facts.with_columns(
        texts.select(kind=_first_of(_KINDS), name=name),
        # An op's runtime calls before its launch are its own time.
        own=pl.col("is_op") | known((pl.col("call") == "other") & pl.col("in_op")),
    )
    if not _runs_compiled(texts):
        activities = activities.with_columns(pl.col("kind").replace(COMPILED, LIBRARY))
    if not keeps_libraries:
        activities = activities.with_columns(
            pl.col("kind").replace(PYTHON, WITH_LIBRARIES)
        )
    of_hook = pl.col("hook") & pl.col("kind").is_in(_OF_HOOK)
    return activities.with_columns(
        of_hook=of_hook,
        kind=pl.when(of_hook).then(pl.lit(HOOKS)).otherwise("kind"),
        name=pl.when(of_hook).then("hook_function").otherwise("name"),
        **{
            column: pl.when(of_hook).then(f"hook_{column}").otherwise(column)
            for column in PLACE
        },
    )


def _runs_compiled(facts: pl.DataFrame) -> bool:
    """Return whether any of what the host does is compiled code, or around it."""
    signs = (
        _matches("op_name", _COMPILED_OP),
        *(_matches("region", one) for kind, one in _KIND_OF_REGION if kind == COMPILED),
        pl.col("runs_compiled"),
    )
    return bool(facts.select(pl.any_horizontal(signs).any()).item())


def _of_python(names: pl.Series) -> pl.DataFrame:
    """Return the kinds of Python calls, by their files or, without one, their names."""
    name = pl.col("name")
    kinds = [(name.str.contains(one), pl.lit(kind)) for kind, one in _KIND_OF_LIBRARY]
    return pl.DataFrame({"name": names}).select(
        library_kind=_first_of(kinds),
        library_name=name.str.extract(r"^([\w-]+)", 1),
        runs_compiled=known(name.str.contains(_COMPILED_FILE)),
    )


def _facts(
    trace: Trace,
    places: _Places,
    inside: pl.Series,
    frame: pl.Series,
    op: pl.Series,
) -> pl.DataFrame:
    """Return the facts about rows of the tree."""
    frames, ops, table = trace.frames, trace.ops, places.table
    python, user, hook = (
        places.of(item, inside) for item in ("caller", "user", "hook")
    )
    modules = ops["module"][op], table["module"][inside]
    return pl.DataFrame(
        {
            "in_op": op.is_not_null(),
            "op_name": ops["name"][op],
            "compiling": ops["compiling"][op],
            "is_frame": frame.is_not_null(),
            "called": frames["name"][frame],
            "source": frames["file"][python],
            "user": known(frames["own"][python]),
            "library": frames["name"][places.of("library", inside)],
            "region": table["region"][inside],
            "recorder": known(table["recorder"][inside]),
            "module": pl.select(pl.coalesce(modules)).to_series(),
            "hook": hook.is_not_null(),
            **{f"hook_{column}": _plain(frames[column][hook]) for column in PLACE},
            **{
                column: _first(ops[column][op], frames[column][user])
                for column in PLACE
            },
        }
    )


class _Names(Struct, frozen=True):
    """Facts from the names of Python calls; each distinct name is parsed once."""

    facts: pl.DataFrame
    """Of each name ``file``, ``function``, ``own`` (whether it is the user's), whether
    it ``in_file``, is a ``module`` (and its ``path``), of the ``recorder``, of
    ``torch``, ``calls_hooks``, or is a ``forward``."""
    of_rows: pl.Series
    """The name of each row of the tree, which is none but of a Python call."""

    def __getitem__(self, fact: str) -> pl.Series:
        """Return a fact about the name of each row of the tree."""
        return self.facts[fact][self.of_rows]


def _names(frames: pl.DataFrame, frame: pl.Series) -> _Names:
    """Return the facts about rows from the names of their frames, if they have any."""
    of_rows, first = alike(frames["name"][frame])
    name, file = text("name"), text("file")
    flags = {
        "in_file": file.is_not_null(),
        "own": pl.col("own"),
        "module": name.str.contains(MODULE),
        "recorder": file.str.contains(RECORDER_FILE),
        "torch": file.str.contains("^torch/"),
        "calls_hooks": file.str.contains(_CALLS_HOOKS),
        "forward": text("function").str.contains(_FORWARD),
    }
    facts = frames.select(
        pl.col("name", "file", "function", "own").gather(frame[first])
    ).select(
        "file",
        "function",
        path=name.str.extract(MODULE),
        **{fact: known(expression) for fact, expression in flags.items()},
    )
    return _Names(facts, of_rows)


def _places(trace: Trace, contexts: Contexts, frame: pl.Series) -> _Places:
    """Return the rows of the tree that say where in the program all others are."""
    annotations = trace.annotations
    names = _names(trace.frames, frame)
    region = contexts.rows_of("annotations")
    in_file, is_module = names["in_file"], names["module"]
    chosen = in_file | is_module | region.is_not_null()
    number = chosen.cast(INDEX).cum_sum() - 1
    inside = number[contexts.nearest(chosen)]
    row = row_numbers(len(chosen)).filter(chosen)
    functions, hooks = in_file, _hooks(contexts, names, is_module)
    # From here on all is about these rows, which are fewer, and their own tree.
    names = _Names(names.facts, names.of_rows[row])
    parent = inside[contexts.tree["parent"][row]]
    in_file, region = in_file[row], region[row]
    own = names["own"]
    # Built-in functions have no file; their time is of the function that calls them.
    caller = nearest(parent, in_file)
    above = caller[parent]
    ours = known(own[caller])
    called = nearest(parent, in_file & ~own & known(own[above]))
    recorder = names["recorder"]
    if recorder.any():
        # Calls of the recorder into Python's library are the recorder's, too.
        recorder = recorder[nearest(parent, own | recorder | names["torch"])]
    region = region[nearest(parent, region.is_not_null())]
    table = {
        "row": row,
        "frame": frame[row],
        "caller": caller,
        # Of what a library does, the user's function that called it.
        "user": caller.zip_with(ours, above[called]),
        "library": only(called, ~ours),
        "hook": nearest(parent, hooks[row]),
        "region": annotations["name"][region],
        "module": module_paths(names["path"], parent),
        "recorder": recorder,
    }
    return _Places(inside, functions, hooks, pl.DataFrame(table))


def _keeps_libraries(trace: Trace) -> bool:
    """Return whether calls in libraries are in the trace; ``shrink`` drops them."""
    in_file, own = trace.frames["file"].is_not_null(), trace.frames["own"]
    return not in_file.any() or (in_file & ~own).any()


def _blocking_copies(trace: Trace) -> pl.Series:
    """Return the copies to the GPU, by their call, that the driver does not stage."""
    copies = blocking_calls(trace).filter(pl.col("kind") == OTHER_COPY)
    size = copy_directions(trace).filter(pl.col("bytes") >= PAGEABLE_COPY_BYTES)
    return copies.join(size, left_on="id", right_on="launch", how="semi")["id"]


def _hooks(contexts: Contexts, names: _Names, module: pl.Series) -> pl.Series:
    """Return which rows of the tree are calls of the user's hooks on modules.

    They are functions that a module's call machinery calls beside the forward, which
    is another function or, where libraries' calls were not kept, operators. ``module``
    is whether a row is the call of one.
    """
    in_file = names["in_file"] & ~names["calls_hooks"]
    called = in_file | contexts.rows_of("ops").is_not_null()
    function = names["own"] & ~names["forward"]
    # What a module's call calls itself, not counting its machinery. Few functions are
    # the user's, and fewer are hooks: most traces have none.
    candidates = row_numbers(len(called)).filter(called & function)
    by = _first_up(contexts.tree["parent"], module | called, candidates)
    hooks = pl.DataFrame({"row": candidates, "by": by}).filter(known(module[by]))
    nowhere = pl.Series([False]).new_from_index(0, len(called))
    if not hooks.height:
        return nowhere
    around = contexts.around(module | called)
    forwards = around.filter(called & ~function & known(module[around])).unique()
    hooks = hooks.hstack(names.facts[["file", "function"]][names.of_rows[hooks["row"]]])
    beside = hooks.filter(pl.col("by").is_in(forwards.implode()))
    matched = hooks.join(beside, on=["file", "function"], how="semi")
    return nowhere.scatter(matched["row"], values=True)


def _first_up(parent: pl.Series, marked: pl.Series, rows: pl.Series) -> pl.Series:
    """Return for these rows the nearest marked one around each, not itself."""
    above = parent[rows]
    looking = rows_where(known(~marked[above]))
    while len(looking):
        above = above.scatter(looking, parent[above[looking]])
        looking = looking.filter(known(~marked[above[looking]]))
    return above


def _plain(values: pl.Series) -> pl.Series:
    return values.cast(pl.String) if values.dtype == pl.Categorical else values


def _first(*values: pl.Series) -> pl.Series:
    return pl.select(pl.coalesce(map(_plain, values))).to_series()


def _matches(column: str, pattern: str) -> pl.Expr:
    return known(pl.col(column).str.contains(pattern))


def _first_of(cases: Sequence[tuple[pl.Expr, pl.Expr]]) -> pl.Expr:
    return pl.coalesce(pl.when(condition).then(value) for condition, value in cases)


_OF_TORCH = pl.col("inner_region") & _matches(
    "region", "|".join(pattern for _, pattern in _KIND_OF_REGION)
)
# The kind of a row of the tree: the first of these that it fits.
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
    (_matches("called", WAITS), pl.lit(BLOCKED)),
    (
        pl.col("is_frame") & pl.col("library_kind").is_not_null(),
        pl.col("library_kind"),
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
    (pl.col("is_frame"), pl.col("library_name")),
    (pl.lit(value=True), pl.col("region")),
)
