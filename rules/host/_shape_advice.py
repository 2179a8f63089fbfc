"""Advice and evidence for inputs of varying sizes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.time.new_sizes import new_sizes
from traceq.linter import (
    Evidence,
    View,
    counted,
    experts_switch,
    listed,
    located_advice,
    module_line,
    most_of_library,
    share_of_steps,
    text,
)

from ._shape_calls import ATTENTION, COMPILED, CONVOLUTION, MATMUL
from ._shared import launches
from ._varying_shapes import MOST_SIZES, Varying, is_regular, slow_iterations

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

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
_MADE = (
    "values make these sizes in {library}: look for an option of it that computes all"
    " of them at once, or that fixes how many there are"
)
_BENCHMARK = "; and set torch.backends.cudnn.benchmark = False, which tries algorithms"
# What padding does to results.
_CHECK = {
    MATMUL: "cut the padded rows off again before anything adds or averages over them",
    ATTENTION: "mask the padding in attention, and leave it out of the loss",
    CONVOLUTION: "padding shows at the border and in norms: resizing, or batches of"
    " one size, avoids that",
}
_CHECK_OTHER = "check that the padding does not change the result"
# Multiples to round up to; the largest is taken that adds no more than this share to
# the sizes on average. On an H200 64 to 256 helped alike (2026-11): repetition does it.
_MULTIPLES = (8, 16, 32, 64, 128, 256)
_MOST_PADDING = 0.15
# This many sizes in one step, of one line, are experts or the like.
_EXPERTS = 4
# Trying algorithms launches this many times as much as one of them.
_TRIES = 4


def evidence(
    view: View, row: Mapping[str, Any], calls: pl.DataFrame, varying: Varying
) -> Iterator[Evidence]:
    new = len(row["ids"])
    yield Evidence("ops", listed(row["names"]), note=_of_all(calls, view.steps))
    if varying.sizes:
        sizes = listed([f"{size:,}" for size in varying.sizes], MOST_SIZES)
        yield Evidence("sizes", sizes)
    if varying.in_step:
        slow, every = slow_iterations(calls)
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
    kind, function = row["kind"], row["function"]
    if kind != ATTENTION and (within := _of_library(view, row)):
        return within
    advice = f"{_padded(varying)}; {_CHECK.get(kind, _CHECK_OTHER)}"
    if kind == ATTENTION and varying.in_step:
        return located_advice(view, function, _NO_PLANS + _FIXED_CACHE)
    if kind == ATTENTION:
        advice = _NO_PLANS + advice
    if kind == MATMUL and varying.per_step >= _EXPERTS:
        advice += _GROUPED
    if kind == CONVOLUTION and _tries_algorithms(view, calls):
        advice += _BENCHMARK
    compiled = view.roots(text("name").str.contains(COMPILED)).gather(row["ids"])
    dynamic = _DYNAMIC if compiled.is_not_null().any() else ""
    return located_advice(view, function, advice + dynamic)


def _of_library(view: View, row: Mapping[str, Any]) -> str:
    """Return advice on sizes that values make inside of a library, if they are such.

    The user's line has no dimension to pad there.
    """
    library = most_of_library(view, row["ids"])
    if not library or not new_sizes(view.trace, view.steady).reads.height:
        return ""
    return experts_switch(view, row["ids"]) or _MADE.format(library=library)


def _padded(varying: Varying) -> str:
    """Write what to pad to: a multiple, and the sizes that are left."""
    if not varying.sizes:
        return "pad the inputs to a few sizes, so that shapes repeat"
    mean = sum(varying.sizes) / len(varying.sizes)
    most = 2 * mean * _MOST_PADDING / varying.dims
    multiple = max(
        (number for number in _MULTIPLES if number <= most), default=_MULTIPLES[0]
    )
    left = sorted({-(-size // multiple) * multiple for size in varying.sizes})
    if left == sorted(varying.sizes):
        # They are such multiples already.
        return "pad the inputs to fewer sizes, so that shapes repeat"
    sizes = listed([f"{size:,}" for size in left], MOST_SIZES)
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
