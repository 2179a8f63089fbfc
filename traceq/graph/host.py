"""Host tree: all regions, Python calls, ops and runtime calls of the host threads."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import polars as pl
from msgspec import Struct

from traceq.common.expressions import known, place_among
from traceq.graph.nesting import INDEX, in_preorder, nearest, parents, row_numbers
from traceq.model.names import STEP

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Frames: TypeAlias = "Mapping[str, pl.DataFrame]"

# In this order from the outside in, where two begin and end together.
PARTS = ("annotations", "frames", "ops", "runtime", "memory")


def describe(
    table: pl.DataFrame, by: Callable[[pl.Series], pl.DataFrame]
) -> pl.DataFrame:
    """Return the columns that ``by`` derives from names, once per distinct name."""
    distinct, place = by_name(table)
    facts = by(distinct.cast(pl.String)).drop("name", strict=False)
    if len(distinct) == 1:
        only_one = facts.iter_columns()
        return pl.DataFrame(fact.new_from_index(0, table.height) for fact in only_one)
    return facts[place]


def by_name(table: pl.DataFrame) -> tuple[pl.Series, pl.Series]:
    """Return the distinct names, and the index of each row's name."""
    distinct = table["name"].unique()
    return distinct, place_among(table["name"], distinct)


class HostTree(Struct, frozen=True):
    """The rows of PARTS in pre-order: by thread, then start, the longest first."""

    part: pl.Series
    """Index in PARTS of the table that the row is from."""
    row: pl.Series
    """The row in that table."""
    thread: pl.Series
    ts: pl.Series
    parent: pl.Series
    """The row of this tree around it."""

    def is_of(self, part: str) -> pl.Series:
        """Return for each row whether it is of a part."""
        return self.part == PARTS.index(part)

    def rows_of(self, part: str) -> pl.Series:
        """Return the rows of a part, in pre-order."""
        return row_numbers(len(self.part)).filter(self.is_of(part))

    def place_in(self, part: str) -> pl.Series:
        """Return for each row of a part its place among them, in pre-order."""
        in_part = self.is_of(part)
        return only((in_part.cast(INDEX).cum_sum() - 1), in_part)

    def spread(self, part: str, values: pl.Series) -> pl.Series:
        """Put the values of a part's table where its rows are in the tree."""
        return values[only(self.row, self.is_of(part))]

    def at(self, marked: pl.Series) -> pl.Series:
        """Return for each row itself, if marked, or its nearest marked ancestor."""
        return nearest(self.parent, marked)

    def around(self, marked: pl.Series) -> pl.Series:
        """Return for each row its nearest marked ancestor, not itself."""
        return self.at(marked)[self.parent]


def only(values: pl.Series, where: pl.Series) -> pl.Series:
    """Return the values, null where the condition does not hold."""
    return values.zip_with(where, pl.Series([None], dtype=values.dtype))


def build(raw: Frames, frames: pl.DataFrame) -> HostTree:
    """Combine the host's tables into one tree.

    Of the Python calls only the user's own, those that these make, the modules' and
    those of libraries other than torch go in: they alone say something about an op, and
    the rest would be most of the tree. The marks of steps
    are left out: a function in which one step ends and the next begins is not inside
    either, and its ops would lose it.
    """
    regions = raw["annotations"]
    marks = known(regions["name"].cast(pl.String).str.contains(STEP))
    chosen = {
        "annotations": ~regions["on_gpu"] & ~marks,
        "frames": frames["own"]
        | frames["by_own"]
        | frames["module"].is_not_null()
        | frames["via"].is_not_null(),
    }
    rows = (
        pl.concat(
            raw[name]
            .lazy()
            .select(_tree_row(part, name))
            .filter(chosen.get(name, True))
            for part, name in enumerate(PARTS)
        )
        # Polars sorts a table in a quarter of the time that it takes in a query. Of
        # small tables its other engine takes twice as long.
        .collect(engine="in-memory")
    )
    # Where two begin and end together, the order of PARTS stays.
    rows = in_preorder(rows)
    return HostTree(
        part=rows["part"],
        row=rows["row"],
        thread=rows["thread"],
        ts=rows["ts"],
        parent=parents(rows["thread"], rows["end"]),
    )


def _tree_row(part: int, name: str) -> list[pl.Expr]:
    # An allocation is a moment, though some writers give it a duration.
    end = pl.col("ts") if name == "memory" else pl.col("ts") + pl.col("dur")
    return [
        pl.lit(part, pl.UInt8).alias("part"),
        pl.int_range(pl.len(), dtype=INDEX).alias("row"),
        pl.col("thread"),
        pl.col("ts"),
        end.alias("end"),
    ]
