"""Removal of rows that are nested deeper than those of any program.

Some work grows with the depth of each row, such as the names of nested modules. Real
traces stay below 500; a file made as an attack has tens of thousands.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.graph.host import PARTS
from traceq.graph.nesting import depth

if TYPE_CHECKING:
    from traceq.graph.host import Frames, HostTree

MOST = 512
"""Maximum nesting depth of a row."""
# Rows with others in them are left out before those that rarely have any.
_AROUND = [PARTS.index(part) for part in ("annotations", "frames", "ops")]
_MOST_LEAVES = MOST + 64


def too_deep(tree: HostTree) -> pl.DataFrame | None:
    """Return the rows that are nested too deeply, as ``part`` and ``row``; or None.

    Where others were left out, those that were inside of them may still be too deep.
    """
    depths = depth(tree.parent)
    deepest = depths.max()
    if not isinstance(deepest, int) or deepest < MOST:
        return None
    rows = pl.DataFrame({"part": tree.part, "row": tree.row, "depth": depths})
    around = rows.filter(pl.col("part").is_in(_AROUND), pl.col("depth") >= MOST)
    leaves = rows.filter(pl.col("depth") >= _MOST_LEAVES)
    chosen = around if around.height else leaves
    return chosen.select("part", "row") if chosen.height else None


def without(raw: Frames, rows: pl.DataFrame) -> Frames:
    """Return the tables without some of their rows."""
    left = dict(raw)
    for part, name in enumerate(PARTS):
        dropped = rows.filter(pl.col("part") == part)["row"]
        if len(dropped):
            stays = pl.repeat(value=True, n=raw[name].height, eager=True)
            left[name] = raw[name].filter(stays.scatter(dropped, values=False))
    return left


def cut(count: int) -> str:
    """Return what to say of rows that were left out."""
    have = "event is" if count == 1 else "events are"
    return f"{count:,} {have} nested deeper than {MOST}, and left out"
