"""Functions and hooks whose Python the GPU waits for."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base import assumptions
from traceq.analysis.time import host_activity, serving
from traceq.linter import Evidence, View, fill_false, text
from traceq.model import names

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

_LESS = "do it once in many steps, or in the DataLoader's workers"
_VECTOR = (
    "make it with operators on the GPU, as torch.arange(n, device=…) <"
    " lengths[:, None], or once before the loop"
)
_TRITON = (
    "each launch goes through Triton's launcher in Python: launch fewer, larger"
    " kernels; make the kernel an operator (torch.library.triton_op) and compile the"
    " model, whose code launches it directly; or replay it in a CUDA graph"
)
# What a function looks like by what it calls, and what to do about it.
_LOOKS = (
    (
        "formats tensors",
        r"_tensor_str\.py|_tensor\.py\(\d+\): __(format|repr|str)__",
        "keep the tensor, and format it once in many steps",
    ),
    ("launches Triton kernels", r"^triton/(runtime|backends|compiler)/", _TRITON),
    ("calls `.tolist()`", r"method tolist of", "keep the values on the GPU"),
    (
        "writes logs",
        r"^logging/|^(wandb|tensorboard|tensorboardX|mlflow|tqdm)/|function print>",
        "write once in many steps",
    ),
    (
        "works on text",
        r"tokeniz|sentencepiece|tiktoken|^re/|method (split|strip|lower|upper|join"
        r"|replace|encode|decode|format) of (str|bytes) object",
        f"{_LESS}; tokenise before training",
    ),
    (
        "makes tensors of lists",
        r"method (tensor|as_tensor|from_numpy|stack) of type",
        _VECTOR,
    ),
    (
        "loops over a tensor",
        r"method (__getitem__|unbind|select|item|__iter__) of Tensor|__iter__",
        "replace the loop with operators on the whole tensor",
    ),
    ("reads or writes JSON", r"^json/", _LESS),
    ("copies objects", r"^copy\.py|deepcopy", "copy once, before the loop"),
)
WORKS = "works in Python"
# A smaller fraction of a function's time does not describe it. Heuristic threshold.
_LEAST_OF_FUNCTION = 0.1
# A function that calls nothing for this long does something that no trace shows.
# Heuristic threshold: a loop that takes as long usually calls something.
_LONG_NS = 1_000_000
ADVICE = (
    "take it out of the step: do it in the DataLoader's workers or in a thread, where"
    " it prepares the next batch, or once in many steps, where not every step needs it;"
    " or replace loops with operators"
)
# What runs in a model's forward has to run in every step, and no worker can do it.
_IN_FORWARD = (
    "it runs in the model's forward, in every step: replace loops with operators, make"
    " what does not change (as a mask or an index) once and keep it in a buffer, or"
    " compile the model"
)
_ENVIRONMENT = (
    "it is of the environment, which every step needs: run several environments at"
    " once in processes of their own (gymnasium.vector.AsyncVectorEnv), drop wrappers"
    " that nothing reads, or take an environment that runs on the GPU"
)
_MOST_CALLED = 3
# Where operator calls take more of a function's time than this, the rest is within the
# error of their cost. Heuristic threshold.
_MOSTLY_CALLS = 0.75


def inside(view: View, where: pl.Expr, *columns: str) -> pl.DataFrame:
    """Return the time in Python of the program's own, edges of the steps aside.

    Where a step begins and ends, the profiler itself is at work. What is done between
    two decode iterations is left to SRV002.
    """
    windows = view.steady.windows
    edge = pl.col("start").is_in(windows["start"].implode()) | pl.col("end").is_in(
        windows["end"].implode()
    )
    called = text("library")
    torch, looks = called.str.contains("^(torch|<)"), called.str.contains(_LOOKS[0][1])
    library = (pl.col("kind") == host_activity.LIBRARY) & (~torch | looks)
    own = pl.col("file").is_not_null() & (
        (pl.col("kind") == host_activity.PYTHON) | library
    )
    segments = view.host_account.of(own & where, *columns).filter(~edge)
    between = serving.token_work(view.trace)
    if not len(between):
        return segments
    return segments.filter(~pl.col("start").is_in(between.implode()))


def grouped(segments: pl.DataFrame) -> pl.DataFrame:
    return (
        segments.group_by(host_activity.PLACE)
        .agg(
            pl.col("recorded", "idle", "estimated").sum(),
            calls=pl.col("caller").n_unique(),
        )
        .sort(-pl.col("estimated"), *host_activity.PLACE)
    )


def functions(view: View, least: float) -> pl.DataFrame:
    """Return the functions that take this long beyond what calling operators takes.

    That is ``extra``, in all steps.
    """
    columns = ("start", "end", "thing", "estimated")
    segments = inside(view, pl.lit(value=True), *columns)
    # What things are is looked up for their sums: of spans there are many more.
    sums = segments.group_by("thing").agg(pl.col("estimated").sum())
    things = view.host_account.described.things
    rows = (
        sums.hstack(things[["kind", *host_activity.PLACE]][sums["thing"]])
        .group_by(host_activity.PLACE)
        .agg(
            pl.col("estimated").sum(),
            own=(pl.col("kind") == host_activity.PYTHON).any(),
        )
        .filter("own", pl.col("estimated") >= least)
        .sort(-pl.col("estimated"), *host_activity.PLACE)
    )
    if not rows.height:
        return rows
    called = view.ops["parent"].is_null() & (view.ops["phase"] != "backward")
    ops = (
        view.ops[[*host_activity.PLACE]]
        .filter(called)
        .group_by(host_activity.PLACE)
        .agg(ops=pl.len())
        .with_columns(pl.col("file", "function").cast(pl.String))
    )
    needed = pl.col("ops").fill_null(0) * assumptions.PYTHON_PER_OP_NS
    return (
        rows.join(
            ops,
            on=host_activity.PLACE,
            how="left",
            nulls_equal=True,
            maintain_order="left",
        )
        .with_columns(extra=pl.col("estimated") - needed)
        .filter(
            pl.col("extra") >= least,
            pl.col("extra") >= (1 - _MOSTLY_CALLS) * pl.col("estimated"),
        )
    )


def is_at(row: Mapping[str, Any]) -> pl.Expr:
    return pl.all_horizontal(
        pl.col(column).cast(pl.String).eq_missing(pl.lit(row[column]).cast(pl.String))
        for column in host_activity.PLACE
    )


def silent_calls(segments: pl.DataFrame) -> int:
    """Return how often a function calls nothing for long, if that is most it does."""
    long = segments.filter(
        pl.col("kind") == host_activity.PYTHON,
        pl.col("end") - pl.col("start") >= _LONG_NS,
        ~fill_false(pl.col("called").str.starts_with("<")),
    )
    mostly = 2 * int(long["recorded"].sum()) > int(segments["recorded"].sum())
    return long.height if mostly else 0


def in_forward(segments: pl.DataFrame) -> bool:
    """Return whether a function mostly runs inside of modules."""
    inside = segments.filter(pl.col("module").is_not_null())
    return 2 * int(inside["recorded"].sum()) > int(segments["recorded"].sum())


def every_step(segments: pl.DataFrame) -> bool:
    """Return whether a function has to run in every step."""
    return in_forward(segments) or of_environment(segments)


def looks_like(segments: pl.DataFrame) -> tuple[str, str]:
    """Return what a function does, by what takes longest of what is known."""
    looks, advice = _looks_like(segments)
    if advice != ADVICE and _LESS not in advice:
        return looks, advice
    if of_environment(segments):
        return looks, _ENVIRONMENT
    return looks, _IN_FORWARD if in_forward(segments) else advice


def of_environment(segments: pl.DataFrame) -> bool:
    """Return whether a function is in a file of an environment."""
    files = text("file").str.contains(names.ENVIRONMENT_FILE)
    return bool(segments.select(files.any()).item())


def is_library(view: View, row: Mapping[str, Any], segments: pl.DataFrame) -> bool:
    """Return whether most of it is a library's Python around operators that it runs.

    It cannot be moved away from them, unlike what decodes images or texts.
    """
    package = pl.col("library").str.extract(r"^(?:.*site-packages/)?([^/]+)/")
    packages = (
        segments.with_columns(package=package)
        .drop_nulls("package")
        .group_by("package")
        .agg(pl.col("estimated").sum())
        .sort(-pl.col("estimated"), "package")
    )
    if (
        not packages.height
        or 2 * packages["estimated"][0] < segments["estimated"].sum()
    ):
        return False
    library = str(packages["package"][0])
    via = view.ops.filter(is_at(row))["via"].cast(pl.String)
    theirs = via.str.contains(rf"\((?:.*/)?{re.escape(library)}/")
    return bool(fill_false(theirs).any())


def _looks_like(segments: pl.DataFrame) -> tuple[str, str]:
    name = pl.coalesce("library", "called")
    looks = pl.coalesce(
        pl.when(name.str.contains(pattern)).then(pl.lit(text))
        for text, pattern, _ in _LOOKS
    )
    matches = (
        segments.with_columns(looks=looks)
        .drop_nulls("looks")
        .group_by("looks")
        .agg(pl.col("estimated").sum())
        .sort(-pl.col("estimated"), "looks")
    )
    least = _LEAST_OF_FUNCTION * float(segments["estimated"].sum())
    if not matches.height or matches["estimated"][0] < least:
        return WORKS, ADVICE
    best = matches["looks"][0]
    return best, next(advice for text, _, advice in _LOOKS if text == best)


def times(view: View, row: Mapping[str, Any], label: str) -> Iterator[Evidence]:
    for called, column, note in (
        (label, "estimated", "a step, estimated without the profiler"),
        ("recorded", "recorded", "a step"),
    ):
        # Whole nanoseconds: the last digits of a sum depend on the order of threads.
        value = round(row[column] / view.steps)
        yield Evidence(called, value=value, unit="ns", note=note)


def called_line(view: View, segments: pl.DataFrame) -> Iterator[Evidence]:
    """Yield what the function calls longest."""
    lines = (
        segments.with_columns(call=pl.coalesce("library", "called"))
        .filter(pl.col("library").is_not_null() | pl.col("call").str.starts_with("<"))
        .group_by("call")
        .agg(
            pl.col("estimated").sum(),
            count=pl.col("at").n_unique(),
            # Of a library's function that is all that it calls, not how often it is.
            counted=pl.col("library").is_null().all(),
        )
        .sort(-pl.col("estimated"), "call")
    )
    for row in lines.head(_MOST_CALLED).iter_rows(named=True):
        count = round(row["count"] / view.steps) if row["counted"] else None
        yield Evidence("calls", row["call"], count=count)
