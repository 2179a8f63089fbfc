"""Alignment of the parts of two steps, by structure.

Rows are matched from the strictest criterion to the loosest. Unmatched rows were added
or removed; where both happened in one place, one replaced the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.time.modules import OPTIMIZER
from traceq.differ.structure import REGION

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceq.differ.structure import Parts

# What rows have in common that are the same part of the program: if it is called as
# often on both sides; and whatever its shapes, which may depend on data.
_AS_OFTEN: tuple[tuple[str, ...], ...] = (
    ("phase", "module", "file", "function", "op", "shapes", "role"),
    ("phase", "module", "op", "shapes", "role"),
)
_SAME: tuple[tuple[str, ...], ...] = (
    ("phase", "module", "file", "function", "op", "role"),
    ("phase", "module", "op", "role"),
    ("phase", "op", "shapes", "role"),
)
# Where a trace knows no places or no shapes, less has to do.
_LOOSE: tuple[tuple[str, ...], ...] = (
    ("op", "shapes", "role"),
    ("phase", "op", "role"),
    ("op", "role"),
)
# As often as before is also a little more or less.
_ABOUT = 0.1
_REPLACED: tuple[tuple[str, ...], ...] = (
    ("pass", "module"),
    ("pass", "file", "function"),
    ("pass", "top"),
)


def aligned(before: Parts, after: Parts) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the rows of both with ``match``, shared by like rows, and ``likeness``.

    That is ``same``, ``reshaped`` (the shapes differ), ``compiled`` (one of them runs
    what torch.compile made), ``replaced``, or ``alone`` for what has no partner.
    """
    state = _State(_prepared(before.rows), _prepared(after.rows))
    for key in _AS_OFTEN:
        state.match(key, "same", as_often=True)
    for key in _SAME:
        state.match(key, "same" if "shapes" in key else "reshaped")
    if not (_placed(before.rows) and _placed(after.rows)):
        for key in _LOOSE:
            state.match(key, "same" if "shapes" in key else "reshaped")
    state.match_compiled()
    for key in _REPLACED:
        state.match(key, "replaced", placed=True)
    return state.finished()


def _placed(rows: pl.DataFrame) -> bool:
    """Return whether the trace knows where most of its time comes from, and shapes."""
    placed = rows.filter(
        pl.col("file").is_not_null() | pl.col("module").is_not_null(),
        pl.col("shapes").is_not_null() | (pl.col("op").is_in([OPTIMIZER, REGION])),
    )
    return bool(placed["gpu_ns"].sum() > rows["gpu_ns"].sum() / 2)


def _prepared(rows: pl.DataFrame) -> pl.DataFrame:
    in_model = ~pl.col("phase").is_in(["optimizer", "data"])
    return rows.with_columns(
        pl.lit(None, pl.UInt32).alias("match"),
        pl.lit("alone").alias("likeness"),
        pl.when(in_model.fill_null(value=True))
        .then(pl.lit("model"))
        .otherwise("phase")
        .alias("pass"),
        top=pl.col("module").str.extract(r"^([^/]+)"),
    )


class _State:
    """The rows of both sides, and what of them has been matched so far."""

    def __init__(self, before: pl.DataFrame, after: pl.DataFrame) -> None:
        self.sides = [before, after]
        self.used = 0

    def match(
        self,
        key: Sequence[str],
        likeness: str,
        *,
        as_often: bool = False,
        placed: bool = False,
    ) -> None:
        """Match all that is left and has the same key on both sides."""
        free = [side.filter(pl.col("match").is_null()) for side in self.sides]
        if placed:
            # Two rows without a place are not alike, and a cast replaces nothing.
            free = [
                side.drop_nulls(list(key)).filter(pl.col("role") != "cast")
                for side in free
            ]
        calls = [
            side.group_by(key, maintain_order=True).agg(pl.col("calls").sum())
            for side in free
        ]
        common = calls[0].join(
            calls[1], on=key, nulls_equal=True, maintain_order="left", suffix="_after"
        )
        if as_often:
            more = (pl.col("calls_after") - pl.col("calls")).abs()
            most = pl.max_horizontal("calls", "calls_after")
            common = common.filter(more <= _ABOUT * most)
        common = common.select(key)
        self._take(
            common, key, likeness, pl.lit(value=not placed) | (pl.col("role") != "cast")
        )

    def match_compiled(self) -> None:
        """Match compiled code with what is left of eager code in the same phase."""
        region = pl.col("op") == REGION
        free = [side.filter(pl.col("match").is_null()) for side in self.sides]
        for compiled, eager in ((0, 1), (1, 0)):
            phases = free[compiled].filter(region).select("phase").unique()
            if free[eager].filter(region).height or not phases.height:
                continue
            left = free[eager].select("phase").unique()
            common = phases.join(left, on="phase", how="semi").sort("phase")
            self._take(common, ["phase"], "compiled", pl.lit(value=True))

    def _take(
        self, common: pl.DataFrame, key: Sequence[str], likeness: str, among: pl.Expr
    ) -> None:
        common = common.with_row_index("new", offset=self.used)
        self.used += common.height
        for index, side in enumerate(self.sides):
            free = pl.col("match").is_null() & pl.col("new").is_not_null() & among
            self.sides[index] = (
                side.join(
                    common, on=key, how="left", nulls_equal=True, maintain_order="left"
                )
                .with_columns(
                    match=pl.when(free).then("new").otherwise("match"),
                    likeness=pl.when(free).then(pl.lit(likeness)).otherwise("likeness"),
                )
                .drop("new")
            )

    def finished(self) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Give what has no partner a number of its own."""
        for index, side in enumerate(self.sides):
            alone = side["match"].is_null()
            own = (alone.cast(pl.UInt32).cum_sum() - 1 + self.used).cast(pl.UInt32)
            self.sides[index] = side.with_columns(match=side["match"].fill_null(own))
            self.used += int(alone.sum())
        return self.sides[0], self.sides[1]
