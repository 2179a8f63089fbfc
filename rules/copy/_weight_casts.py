"""Casts of weights that go with a change of the program, and those that stay."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from traceq.linter import Fix, View

from ._passes import EACH_WEIGHT, more_of_a_shape, within_passes

if TYPE_CHECKING:
    from collections.abc import Iterator

_BEFORE_LOOP = (
    "cast the layers of these weights once, before the loop (layer.to(torch.{half})):"
    " autocast then takes them as they are, with the same results"
)
_FROZEN = (
    "cast the layers of weights that are not trained once, before the loop"
    " (layer.to(torch.{half})): autocast then takes them as they are, with the same"
    " results"
)
_AROUND_ALL = (
    "put one autocast around all micro-batches of a step, with their backward in"
    " autocast(enabled=False), and leave it before the optimizer steps: its cache of"
    " cast weights lives as long as the outermost autocast, is off under"
    " inference_mode, and does not hold weights that are viewed before they are cast"
)
_IN_ONE_CONTEXT = (
    "check where autocast is left and entered again before the backward, or has"
    " cache_enabled=False: put one autocast, with its cache, around all calls of a"
    " layer in a forward, and each weight is cast once for all of them"
)
_CACHE_OFF = (
    "leave out cache_enabled=False ({where}), which autocast needs where a CUDA graph"
    " is captured alone: with its cache each weight is cast once in a forward"
)
_OFF = re.compile(r"\bcache_enabled\s*=\s*False\b")
_COPIES = (
    "keep the weights in {half} and float32 copies of them in the optimizer ({sharded}"
    "an optimizer with master weights), which casts each weight once a step, however"
    " often it is used"
)
# GradScaler raises an error for gradients in float16: "Attempting to unscale".
_SCALED = (
    "train in bfloat16, which needs no GradScaler, and {copies}: GradScaler refuses"
    " gradients in float16"
)
_COMPILE = (
    "compile the model: weights are cast as before, since a matmul takes them from"
    " memory in 16 bits, but gradients as fast as weights"
)
_SHARDED = "FSDP MixedPrecision, or "
_STAYS = (
    "an optimizer with float32 copies of 16-bit weights casts each weight once a step"
    " too, unless its own kernel writes both (FusedAdam of Transformer Engine with"
    " master_weights=True); with larger batches the casts are a smaller share"
)
_AS_OFTEN = "16-bit weights with float32 copies are cast once a step too"
_RAN_FORWARD = pl.col("phase").ne_missing("backward")


class Remedy(NamedTuple):
    """Change that removes casts of weights, and what it removes."""

    advice: str
    fix: Fix
    example: int | None = None
    """Number of the example on the rule's page that shows it."""


class Remedies(NamedTuple):
    """All changes of a program that remove casts of weights."""

    parts: tuple[Remedy, ...]

    @property
    def advice(self) -> str:
        """The advice of all parts."""
        return "; ".join(part.advice for part in self.parts) or _STAYS

    @property
    def minor(self) -> str:
        """The reason that a finding without a change is minor."""
        return "" if self.parts else _AS_OFTEN

    @property
    def example(self) -> int | None:
        """Number of the example of the first part; None if there is none."""
        return self.parts[0].example if self.parts else None


def remedies(view: View, table: pl.DataFrame, half: str) -> Remedies:
    """Return what removes casts of weights, of which ``mine`` are all."""
    return Remedies(tuple(_remedies(view, table, half)))


def _remedies(view: View, table: pl.DataFrame, half: str) -> Iterator[Remedy]:
    casts = table.filter(pl.col("origin").is_null())
    frozen = _are_frozen(view, table, casts)
    trained, idle = casts.filter(~frozen), casts.filter(frozen)
    if idle.height:
        advice = _FROZEN if trained.height else _BEFORE_LOOP
        yield Remedy(advice.format(half=half), _without(idle, 1.0), 1)
    # What checkpointing computes again has an autocast of its own in the backward.
    cached = trained.filter(~pl.col("viewed"), _RAN_FORWARD)
    again, anywhere = within_passes(view, cached), within_passes(view, trained)
    if again:
        yield Remedy(_cached(view), _without(cached, again))
    elif again is None and (more := _beyond_one(view, cached)):
        yield Remedy(_AROUND_ALL, _without(cached, more), 0)
    elif anywhere != 0 and (more := _beyond_one(view, trained)):
        yield Remedy(_with_copies(view, half), _without(trained, more))
    else:
        gradients = table.filter(pl.col("origin").is_not_null())
        if slower := _slower(gradients, trained):
            fix = Fix(kernels=gradients["id"], kernel_share=slower)
            yield Remedy(_COMPILE, fix, 2)


def _are_frozen(view: View, table: pl.DataFrame, casts: pl.DataFrame) -> pl.Series:
    """Return whether a cast is of a weight that gets no gradient.

    Where no gradient is known to be of a weight, only a program without a backward has
    such weights.
    """
    undone = table["origin"].drop_nulls()
    if undone.is_empty():
        return pl.Series([not view.trains] * casts.height, dtype=pl.Boolean)
    trained = pl.col("request").is_in(undone.implode()).any().over(EACH_WEIGHT)
    return casts.select(~trained).to_series()


def _beyond_one(view: View, casts: pl.DataFrame) -> float:
    """Return the share of casts that are not the first of their weight in a step."""
    calls = casts.height / view.steps / max(1, weights_of(view, casts))
    return 1 - 1 / calls if calls > 1 else 0.0


def _cached(view: View) -> str:
    """Return how each weight is cast once in a forward, as the source shows it."""
    rank = view.trace.rank
    for file, source in (rank.sources if rank else {}).items():
        for at, line in enumerate(source.splitlines(), 1):
            if _OFF.search(line.partition("#")[0]):
                return _CACHE_OFF.format(where=f"{file}:{at}")
    return _IN_ONE_CONTEXT


def _slower(gradients: pl.DataFrame, weights: pl.DataFrame) -> float:
    """Return the share of the time of gradients that goes, if cast as fast as weights.

    Both move as many bytes for each element; eager kernels are slower to 32 bits.
    """
    spent, elements = int(gradients["dur"].sum()), int(weights["numel"].sum() or 0)
    if not spent or not elements:
        return 0.0
    each = int(weights["dur"].sum()) / elements
    return View.saved_share(spent, each * int(gradients["numel"].sum() or 0))


def _without(casts: pl.DataFrame, share: float) -> Fix:
    """Return what goes with casts; gradients are cast as before."""
    return Fix(
        kernels=casts["id"],
        kernel_share=share,
        ops=casts["request"],
        host_share=share,
    )


def _with_copies(view: View, half: str) -> str:
    scaled = half == "float16"
    copies = _COPIES.format(
        half="bfloat16" if scaled else half,
        sharded=_SHARDED if view.distributed else "",
    )
    return _SCALED.format(copies=copies) if scaled else copies


def weights_of(view: View, casts: pl.DataFrame) -> int:
    """Return how many weights are cast; without modules, each cast is of another.

    A module has several of one shape where as many gradients are added up.
    """
    with_module = casts.drop_nulls("module")
    if with_module.height < casts.height:
        return round(casts.height / view.steps)
    # The weight and the bias of a module differ in shape.
    distinct = with_module.select(EACH_WEIGHT).unique().height
    return distinct + more_of_a_shape(view, casts.filter(_RAN_FORWARD))
