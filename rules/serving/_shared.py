"""Shared code of the rules on serving: steady iterations, and drawings of a loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from traceq.analysis.patterns import kv_cache
from traceq.analysis.patterns.iterations import iterations
from traceq.linter import Need, text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from traceq.linter import View

DECODE = "@execute_context_0(0)_generation_16(16)"
"""vLLM's name of an iteration that makes a token for each of 16 requests."""
_TRANSFORMERS = "transformers/generation/"
# Other files of it: a program may have a folder of the same name.
_OF_TRANSFORMERS = (
    r"\btransformers/(generation/|integrations/|models/[0-9a-z_]+/modeling_"
    r"|(modeling_\w+|cache_utils|masking_utils)\.py)"
)
_METHODS = {"aten::item": ".item()", "aten::_local_scalar_dense": ".item()"}


def steady_iterations(view: View, *phases: str) -> pl.DataFrame:
    """Return the steady iterations of these phases; none where nothing is served."""
    every = iterations(view.trace)
    if not every.height:
        return every
    return every.filter(pl.col("phase").is_in(phases)).join(
        view.steady.windows.select("step"), on="step", how="semi"
    )


def generates_with_transformers(view: View) -> bool:
    """Tell whether the loop is that of ``generate()``, as far as stacks show."""
    files = view.trace.frames["file"].unique().cast(pl.String)
    return bool(files.str.contains(_TRANSFORMERS, literal=True).any())


def runs_transformers(view: View) -> bool | None:
    """Tell whether code of transformers runs; none where nothing shows what runs."""
    trace = view.trace
    seen = pl.concat(
        column.unique().cast(pl.String)
        for column in (trace.frames["file"], trace.ops["via"])
    )
    if seen.str.contains(_OF_TRANSFORMERS).any():
        return True
    return False if view.meets(Need.LINES) else None


def static_cache(view: View, own: str, call: str) -> str:
    """Return the advice for a loop of one's own, and what of it is transformers'.

    ``call`` is how ``generate()`` is to be called.
    """
    if generates_with_transformers(view):
        return f"call {call}"
    runs = runs_transformers(view)
    if runs is None:
        return f"{own}; if it is transformers that generates, {call}"
    return f"{own}; or use transformers' {call}" if runs else own


def searches_beams(view: View) -> bool:
    """Tell whether a decode loop is a beam search, by stacks or by its cache."""
    if kv_cache.reorders_cache(view.trace):
        return True
    functions = view.trace.frames.filter(
        text("file").str.contains(_TRANSFORMERS, literal=True)
    )["function"]
    return bool(functions.unique().cast(pl.String).str.contains("beam_search").any())


def sync_calls(view: View, syncs: pl.DataFrame) -> list[int]:
    """Return the runtime calls that must not block for these waits to go.

    All calls of an op: a copy and the sync that follows it wait for the same.
    """
    of_ops = view.trace.runtime.filter(
        pl.col("op").is_in(syncs["op"].drop_nulls().implode())
    )
    return pl.concat([of_ops["id"], syncs["id"]]).unique().to_list()


def written(view: View, row: Mapping[str, Any]) -> str:
    """Return how a program writes a wait, as far as its op tells."""
    op = row["op"]
    name = view.trace.ops["name"].cast(pl.String)[op] if op is not None else None
    outer = view.trace.ops["parent"][op] if op is not None else None
    if outer is not None and name not in _METHODS:
        name = view.trace.ops["name"].cast(pl.String)[outer] or name
    if row.get("copies") == "to host" and name not in _METHODS:
        return "`.cpu()` or `.tolist()`"
    return f"`{_METHODS[name]}`" if name in _METHODS else str(name or row["name"])


def loop(times: int, width: int, *lanes: tuple[str, str]) -> str:
    """Draw a loop of decode iterations, each this wide.

    A lane is what one iteration does on it; ``#`` in it is the iteration's number.
    """
    whole = (("host", f"[{DECODE}".ljust(width - 1) + "]"), *lanes)
    return "\n".join(
        f"{lane:8}" + "".join(_drawn(body, at, width) for at in range(1, times + 1))
        for lane, body in whole
    )


def _drawn(body: str, at: int, width: int) -> str:
    return body.replace("#", str(at)).ljust(width)
