"""Checks of a distribution's arguments, at the line that constructs it."""

from __future__ import annotations

import polars as pl

from ._known_waits import ARGUMENTS

_PLACE = ("file", "line", "function", "via", "module")
_CONSTRUCTS = "__init__"


def at_constructors(waits: pl.DataFrame) -> pl.DataFrame:
    """Return waits of which the checks of a distribution are where it is constructed.

    That is the last constructor before each that checks its own arguments.
    """
    checks = pl.col("known").eq_missing(ARGUMENTS)
    constructs = checks & (pl.col("inner_function") == _CONSTRUCTS)
    if not waits.select(constructs.any()).item():
        return waits
    order = waits.with_row_index("row").sort("thread", "ts")
    before = pl.when(constructs).then(pl.struct(_PLACE)).forward_fill().over("thread")
    moved = order.with_columns(constructor=before).with_columns(
        pl.when(checks, pl.col("constructor").is_not_null())
        .then(pl.col("constructor").struct.field(name))
        .otherwise(name)
        .alias(name)
        for name in _PLACE
    )
    return moved.sort("row").drop("row", "constructor")
