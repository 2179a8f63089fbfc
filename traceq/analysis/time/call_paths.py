"""The host call tree, deduplicated by call path.

A program repeats itself: a million calls have a few thousand distinct call paths. What
a call is depends only on its path, so it is computed once per path and holds for all
calls of that path.
"""

from __future__ import annotations

from functools import cached_property

import polars as pl
from msgspec import Struct

from traceq.analysis.base.group_ids import Alike, alike, counted
from traceq.graph.host import only
from traceq.graph.nesting import nearest

# From the outside in, where two begin and end together.
PARTS = ("annotations", "frames", "ops", "runtime")


class Contexts(Struct, frozen=True, dict=True):
    """Rows of the host's tree with equal call paths, as one row each."""

    number: pl.Series
    """For each row of the host's tree the row of ``tree`` that stands for it."""
    tree: pl.DataFrame
    """The first row of each: ``first`` (its row of the host's tree), ``part`` and
    ``row`` (of that table), as there, and ``parent``, a row of this frame."""

    @cached_property
    def op(self) -> pl.Series:
        """For each context the op that it is, or is in."""
        op = self.rows_of("ops")
        return op[self.nearest(op.is_not_null())]

    def nearest(self, marked: pl.Series) -> pl.Series:
        """Return for each context itself, if marked, or its nearest marked ancestor."""
        return nearest(self.tree["parent"], marked)

    def around(self, marked: pl.Series) -> pl.Series:
        """Return for each context its nearest marked ancestor."""
        return self.nearest(marked)[self.tree["parent"]]

    def rows_of(self, part: str) -> pl.Series:
        """Return for each of these its row in a table, if it is of that."""
        return only(self.tree["row"], self.tree["part"] == PARTS.index(part))

    def apart(self, rows: pl.DataFrame) -> Contexts:
        """Return these with some rows of the host's tree apart from the others.

        ``first`` is a row there, ``row`` the one of its table; those that have all
        other columns in common are together. These are columns of the tree then, none
        for all others.
        """
        same = alike(self.number[rows["first"]], *rows.drop("first", "row"))
        more = rows[same.first]
        before = self.tree[["part", "parent"]][self.number[more["first"]]]
        return Contexts(
            self.number.clone().scatter(rows["first"], same.number + self.tree.height),
            pl.concat([self.tree, before.hstack(more)], how="diagonal"),
        )


def contexts(tree: pl.DataFrame) -> Contexts:
    """Return the rows of the host's tree by call path.

    Of rows with the same ``code`` in rows with the same codes, all the way up, one is
    enough.
    """
    code, parent = tree["code"], tree["parent"]
    number, first = by_paths(code, parent)
    outer = number[parent[first]]
    above = only(outer, parent[first] < tree.height - 1)
    firsts = tree[["part", "row"]][first]
    return Contexts(
        number, firsts.hstack([first.alias("first"), above.alias("parent")])
    )


def by_paths(code: pl.Series, parent: pl.Series) -> Alike:
    """Return ids of the rows that have the same code and the same codes around.

    Paths are the same whose inner halves are, and whose outer halves are: with every
    round they are twice as long, so the rounds are few.
    """
    ids, up = counted(code), parent
    nothing = len(parent) - 1
    while up.min() != nothing:
        ids = alike(ids.number, ids.number[up])
        up = up[up]
    return ids
