"""Which modules allocate, from the trace of the same run: a snapshot does not say."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from traceq.trace import Trace

_FUNCTION = ("file", "function")
_PREFIX = r"^aten::"
_NUMBERS = r"_\d+(/|$)"


def modules(allocations: pl.DataFrame, trace: Trace) -> pl.Series:
    """Return the module of each allocation, without layers' numbers; none if unknown.

    A trace names a function by the line at which it begins, a snapshot by the line
    that was running: it is in the nearest function above it that is called so. Where
    the function runs the same operator in several modules, what they have in common
    counts.
    """
    ops = (
        trace.ops.filter(
            pl.col("file").is_not_null(),
            pl.col("module").is_not_null(),
            pl.col("forward").is_null(),
        )
        .select(
            pl.col(*_FUNCTION).cast(pl.String),
            pl.col("line").cast(pl.Int64),
            op=pl.col("name").cast(pl.String).str.replace(_PREFIX, ""),
            module=pl.col("module").cast(pl.String).str.replace_all(_NUMBERS, "$1"),
        )
        .unique(maintain_order=True)
    )
    places = allocations.select(
        pl.col(*_FUNCTION, "op").cast(pl.String), "line"
    ).with_row_index("row")
    begins = ops.select(*_FUNCTION, begins="line").unique().sort("begins")
    known = (
        places.filter(pl.col("line").is_not_null())
        .sort("line")
        .join_asof(
            begins,
            left_on="line",
            right_on="begins",
            by=list(_FUNCTION),
            check_sortedness=False,
        )
        .filter(pl.col("begins").is_not_null())
    )
    key = [*_FUNCTION, "begins"]
    of_line = ops.rename({"line": "begins"})
    exact = of_line.group_by(*key, "op").agg(exact=_shared())
    any_op = of_line.group_by(key).agg(any_op=_shared())
    found = (
        known.join(exact, on=[*key, "op"], how="left")
        .join(any_op, on=key, how="left")
        .select("row", module=pl.coalesce("exact", "any_op"))
    )
    return (
        places.select("row")
        .join(found, on="row", how="left", maintain_order="left")
        .get_column("module")
    )


def _shared() -> pl.Expr:
    """Return the shortest of the modules: the others are inside of it."""
    module = pl.col("module")
    return module.sort_by(module.str.len_chars(), module).first()
