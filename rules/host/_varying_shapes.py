"""Shapes that vary from step to step: what they cost, and what to pad."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from traceq.linter import (
    Evidence,
    Fix,
    View,
    counted,
    listed,
    module_line,
    share_of_steps,
    text,
)

from ._shared import launches, own_time, settled

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

_MOST_SIZES = 4
_MATMUL, _CONVOLUTION, _ATTENTION = "matmul", "convolution", "attention"
_OTHER = "operator"
# What the library does for a new shape, by kind of op.
KINDS = (
    (_ATTENTION, r"_cudnn_attention", "cuDNN builds a plan for attention"),
    (_CONVOLUTION, r"conv", "cuDNN chooses an algorithm for a convolution"),
    ("FFT", r"_fft_", "cuFFT builds a plan for an FFT"),
    (_MATMUL, r"mm$", "cuBLAS chooses an algorithm for a matmul"),
    (_OTHER, r"", "an operator prepares itself"),
)
_NO_PLANS = (
    "use an SDPA backend that makes no plans, with"
    " torch.backends.cuda.enable_cudnn_sdp(False); or "
)
_FIXED_CACHE = (
    "keep keys and values in a cache of a fixed size, as the static cache of"
    " transformers is, with a mask for what is not written yet"
)
_GROUPED = (
    "; or compute all experts by one torch.nn.functional.grouped_mm, which takes any"
    " number of tokens for each"
)
_DYNAMIC = (
    "; torch._dynamo.mark_dynamic keeps one compiled graph for the sizes that are left"
)
_BENCHMARK = "; and set torch.backends.cudnn.benchmark = False, which tries algorithms"
# What padding does to results.
_CHECK = {
    _MATMUL: "cut the padded rows off again before anything adds or averages over them",
    _ATTENTION: "mask the padding in attention, and leave it out of the loss",
    _CONVOLUTION: "padding shows at the border and in norms: resizing, or batches of"
    " one size, avoids that",
}
_CHECK_OTHER = "check that the padding does not change the result"
# Multiples to round up to; the largest is taken that adds no more than this share to
# the sizes on average. On an H200 64 to 256 helped alike (2026-11): repetition does it.
_MULTIPLES = (8, 16, 32, 64, 128, 256)
_MOST_PADDING = 0.15
# This many sizes in one step, of one line, are experts or the like.
_EXPERTS = 4
# New shapes must be slow this many times as often as known ones.
_CLEARLY = 3
# This many sizes in a few steps are not those of a first or last batch. Heuristic
# threshold.
_MANY_SIZES = 3
# Trying algorithms launches this many times as much as one of them.
_TRIES = 4
_EMBEDS = ("aten::embedding",)
_COMPILED = r"^(Torch-Compiled Region|CompiledFunction)"


class Varying(NamedTuple):
    """Variation of the shapes of an op."""

    text: str
    sizes: tuple[int, ...]
    dims: int
    per_step: float
    """Distinct sizes per step."""
    in_step: bool = False
    """True if they vary from iteration to iteration within a step."""


_NOTHING = Varying("its shapes were not seen before", (), 1, 0)
SUMS = ("excess", "own", "idle", "loading", "passing")
# A call on inputs that are new, which takes far longer than the usual.
SLOW = pl.col("new") & (pl.col("excess") > 0)


def is_regular(view: View, row: Mapping[str, Any]) -> bool:
    """Return whether it comes back from step to step."""
    return bool(row["steps"] > 1 and 2 * row["steps"] >= view.steps)


def does_vary(view: View, varying: Varying) -> bool:
    """Return whether sizes vary from step to step, so that any may be a new one.

    Where a step has several iterations, as a generation does, they count as steps.
    """
    return varying.in_step or len(varying.sizes) >= max(_MANY_SIZES, view.steps / 2)


def _slow_iterations(calls: pl.DataFrame) -> tuple[int, int]:
    """Return in how many iterations new shapes are slow, and how many there are."""
    one = pl.struct("step", "iteration")
    slow = one.filter("slow").n_unique()
    return calls.select(slow.alias("slow"), one.n_unique().alias("every")).row(0)


def fix(view: View, row: Mapping[str, Any], calls: pl.DataFrame) -> Fix:
    """Return that these calls take what one on a known shape does.

    Both as estimated without the profiler, which slows a call down but no search. Not
    removed is the loading of kernels' code that passes by itself.
    """
    spans = own_time(view, row["ids"])
    repeated = own_time(view, calls.filter(~pl.col("slow"))["op"])
    took, usual = (float(one["estimated"].sum()) for one in (spans, repeated))
    slowed = usual / max(1, int(repeated["recorded"].sum())) if repeated.height else 1.0
    left = len(row["ids"]) * row["usual"] * slowed + row["passing"]
    return Fix(spans=spans, host_share=max(0.0, 1 - left / took) if took else 1.0)


def settled_calls(view: View, calls: pl.DataFrame) -> pl.DataFrame:
    """Return calls of ops that are planned, and what they took.

    Those that compile, capture or run in a step that does are left to other rules.
    """
    rows = settled(view, calls).with_columns(kind=_kind(), slow=SLOW).sort("ts")
    passes = _passes(view)
    return rows.with_columns(
        iteration=_iterations(view, rows),
        loading=_loading(passes),
        passing=pl.when(passes).then(_loading(passes)).otherwise(0),
    )


def _loading(passes: pl.Expr) -> pl.Expr:
    """Return what of each slow call is the loading of a kernel's code.

    That is what it takes beyond a search. Where none is known, all of what passes by
    itself is loading, and nothing of what comes back.
    """
    slow, loads, own = pl.col("slow"), pl.col("loads"), pl.col("own")
    search = own.filter(slow & ~loads).median().over("name")
    beyond = pl.coalesce(own - search, pl.when(passes).then(own - pl.col("usual")))
    return pl.when(slow & loads).then(beyond.clip(lower_bound=0)).fill_null(0)


def _passes(view: View) -> pl.Expr:
    """Return whether the loading of an op's slow calls passes by itself.

    Where few of the slow calls load, it is the searches that choose other kernels.
    Where most do, they are slow for it alone, and are not once all kernels have been
    used; but what is loaded again for a kernel that ran before is part of a plan, as
    cuDNN's for attention, and comes back with each.
    """
    ran = view.trace.kernels.drop_nulls("op").sort("ts").unique("name", keep="first")
    loads = pl.col("slow") & pl.col("loads")
    again = loads & ~pl.col("op").is_in(ran["op"].implode())
    mostly = 2 * loads.sum() > pl.col("slow").sum()
    return (mostly & (2 * again.sum() < loads.sum())).over("name")


def _iterations(view: View, calls: pl.DataFrame) -> pl.Series:
    """Return in which iteration of its step each call is.

    A module begins its next one where it is called on other inputs than before. Without
    modules it is each embedding of tokens.
    """
    layer = ("step", "thread", "name", "module", "line")
    other = pl.col("inputs").ne_missing(pl.col("inputs").shift(1)).over(layer)
    by_module = other.cast(pl.Int64).cum_sum().over(layer)
    embeds = view.trace.host_ops.filter(
        view.ops_named(_EMBEDS).gather(view.trace.host_ops["id"])
    )["ts"].sort()
    by_tokens = embeds.search_sorted(calls["ts"]).cast(pl.Int64)
    return calls.select(
        pl.when(pl.col("module").is_not_null()).then(by_module).otherwise(by_tokens)
    ).to_series()


def _kind() -> pl.Expr:
    return pl.coalesce(
        pl.when(pl.col("name").str.contains(pattern)).then(pl.lit(kind))
        for kind, pattern, _ in KINDS
    )


def calls_at_place(calls: pl.DataFrame, row: Mapping[str, Any]) -> pl.DataFrame:
    """Return all calls of a group's ops at its place, whatever they took."""
    same = (pl.col(key).eq_missing(row[key]) for key in ("kind", "file", "line"))
    return calls.filter(*same, pl.col("name").is_in(row["names"]))


def is_of_shapes(calls: pl.DataFrame) -> bool:
    """Return whether it is new shapes that are slow: known ones hardly ever are."""
    rates = calls.select(
        new=pl.col("slow").filter("new").mean(),
        again=(pl.col("excess") > 0).filter(~pl.col("new")).mean().fill_null(0),
    )
    new, again = rates.row(0)
    return bool(new > _CLEARLY * again)


def varying_sizes(view: View, calls: pl.DataFrame) -> Varying:
    """Return which dimensions differ between the steps, and the sizes they take.

    The n-th call of an op in a step is the same layer in all of them, so a dimension
    that differs there varies. Of forward and backward the forward is looked at, whose
    shapes are the program's.
    """
    forward = calls.filter(pl.col("phase") != "backward")
    calls = forward if forward["slow"].any() else calls
    name = calls.filter("slow")["name"].mode().sort()[0]
    calls = calls.filter(pl.col("name") == name)
    varying = _varying(name, _sizes(view, calls, "step"))
    if len(varying.sizes) > 1:
        return varying
    # Within a step, where it has several iterations.
    slow, every = _slow_iterations(calls)
    if slow < _MANY_SIZES or 2 * slow < every:
        return _NOTHING
    within = _varying(name, _sizes(view, calls, "step", "iteration"))
    many = len(within.sizes) >= _MANY_SIZES
    return within._replace(in_step=True) if many else _NOTHING


def _varying(name: str, sizes: pl.DataFrame) -> Varying:
    varies = (
        sizes.group_by("input", "dim", "nth")
        .agg(distinct=pl.col("size").n_unique())
        .group_by("input", "dim")
        .agg(share=(pl.col("distinct") > 1).mean())
        .filter(pl.col("share") > 1 / 2)
        .sort("input", "dim")
    )
    if not varies.height:
        return _NOTHING
    # Of several inputs the one with most sizes: in a decode queries are of one length.
    every = (
        (at, dims, _with_most_sizes(sizes.filter(pl.col("input") == at), dims))
        for at, dims in varies.group_by("input", maintain_order=True)
        .agg("dim")
        .iter_rows()
    )
    at, dims, seen = max(every, key=lambda one: one[2]["size"].n_unique())
    distinct = tuple(seen["size"].unique().sort())
    many = len(dims) > 1
    which = f"dimension{'s' if many else ''} {' and '.join(map(str, dims))}"
    per_step = seen.group_by("step").agg(pl.col("size").n_unique())["size"]
    return Varying(
        f"{which} of input {at} of {name} {'vary' if many else 'varies'}",
        distinct,
        len(dims),
        float(per_step.sum()) / len(per_step),
    )


def _sizes(view: View, calls: pl.DataFrame, *turn: str) -> pl.DataFrame:
    """Return every size of every input: ``input``, ``dim``, ``nth`` call of a turn."""
    return (
        view.with_inputs(calls.select("id", "inputs", *turn))
        .select("id", "step", "dims", nth=pl.int_range(pl.len()).over(turn))
        .explode("dims")
        .with_columns(input=pl.int_range(pl.len()).over("id"))
        .rename({"dims": "size"})
        .explode("size")
        .drop_nulls("size")
        .with_columns(dim=pl.int_range(pl.len()).over("id", "input"))
    )


def _with_most_sizes(sizes: pl.DataFrame, dims: Sequence[int]) -> pl.DataFrame:
    """Return the sizes of varying dimensions, of calls that are alike otherwise."""
    varies = pl.col("dim").is_in(dims)
    calls = sizes.group_by("id", maintain_order=True).agg(
        rest=pl.col("size").filter(~varies).cast(pl.String).str.join(","),
        size=pl.col("size").filter(varies),
    )
    alike = calls.group_by("rest", maintain_order=True).agg(
        "id", count=pl.col("size").explode().n_unique()
    )
    # The first of those with as many.
    most = alike.filter(pl.col("count") == pl.col("count").max())["id"][0]
    return sizes.filter(varies, pl.col("id").is_in(most.implode()))


def evidence(
    view: View, row: Mapping[str, Any], calls: pl.DataFrame, varying: Varying
) -> Iterator[Evidence]:
    new = len(row["ids"])
    yield Evidence("ops", listed(row["names"]), note=_of_all(calls, view.steps))
    if varying.sizes:
        sizes = listed([f"{size:,}" for size in varying.sizes], _MOST_SIZES)
        yield Evidence("sizes", sizes)
    if varying.in_step:
        slow, every = _slow_iterations(calls)
        note = f"in {slow} of {counted(every, 'iteration')}"
        yield Evidence("seen", f"{note}; each size costs this once")
    elif not is_regular(view, row):
        note = f"in {share_of_steps(view, row['steps'])}; each size costs this once"
        yield Evidence("seen", note)
    yield Evidence("new", value=row["own"] / new, unit="ns", note="each, as recorded")
    yield Evidence("known", value=row["usual"], unit="ns", note="each, as recorded")
    if row["loading"]:
        passes = "new shapes choose; it ends once all were used"
        if row["passing"]:
            passes = "passes by itself, and is not in what a fix saves"
        yield Evidence(
            "loading",
            value=row["loading"] / view.steps,
            unit="ns",
            note=f"a step, as recorded, is loading of kernels' code, which {passes}",
        )
    yield from module_line(row["modules"])


def _of_all(calls: pl.DataFrame, steps: int) -> str:
    return f"of {counted(round(calls.height / steps), 'call')} a step"


def advice_for(
    view: View, row: Mapping[str, Any], calls: pl.DataFrame, varying: Varying
) -> str:
    kind = row["kind"]
    advice = f"{_padded(varying)}; {_CHECK.get(kind, _CHECK_OTHER)}"
    if kind == _ATTENTION and varying.in_step:
        return _NO_PLANS + _FIXED_CACHE
    if kind == _ATTENTION:
        advice = _NO_PLANS + advice
    if kind == _MATMUL and varying.per_step >= _EXPERTS:
        advice += _GROUPED
    if kind == _CONVOLUTION and _tries_algorithms(view, calls):
        advice += _BENCHMARK
    compiled = view.roots(text("name").str.contains(_COMPILED)).gather(row["ids"])
    return advice + (_DYNAMIC if compiled.is_not_null().any() else "")


def _padded(varying: Varying) -> str:
    """Write what to pad to: a multiple, and the sizes that are left."""
    if not varying.sizes:
        return "pad the inputs to a few sizes, so that shapes repeat"
    mean = sum(varying.sizes) / len(varying.sizes)
    most = 2 * mean * _MOST_PADDING / varying.dims
    multiple = max((one for one in _MULTIPLES if one <= most), default=_MULTIPLES[0])
    left = sorted({-(-size // multiple) * multiple for size in varying.sizes})
    if left == sorted(varying.sizes):
        # They are such multiples already.
        return "pad the inputs to fewer sizes, so that shapes repeat"
    sizes = listed([f"{size:,}" for size in left], _MOST_SIZES)
    which = "these dimensions" if varying.dims > 1 else "that dimension"
    return (
        f"pad {which} to multiples of {multiple} ({sizes} are left), so that"
        " shapes repeat"
    )


def _tries_algorithms(view: View, calls: pl.DataFrame) -> bool:
    """Return whether new shapes launch many times what known ones do."""
    counted_calls = calls.join(launches(view), on="op", how="left").with_columns(
        pl.col("launches").fill_null(0)
    )
    new, usual = counted_calls.select(
        pl.col("launches").filter("slow").median().alias("new"),
        pl.col("launches").filter(~pl.col("slow")).median().alias("known"),
    ).row(0)
    return bool(usual and new > _TRIES * usual)
