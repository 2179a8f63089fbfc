"""User line and op of each call stack of a memory snapshot."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.model.schema import ID, NUMBER, TEXT, Column, Table
from traceq.model.snapshot_names import FLAGS, describe_frames

if TYPE_CHECKING:
    from traceq.model.snapshot import Snapshot

SOURCE = {
    "file": Column(TEXT, "The user's own source file, innermost on the stack."),
    "line": Column(NUMBER, "Line in that file that was running."),
    "function": Column(TEXT, "The user's function."),
    "chain": Column(
        TEXT, "The user's calls, the innermost first, as file:line function."
    ),
    "op": Column(TEXT, "The outermost ATen operator below Python, as matmul."),
    "node": Column(TEXT, "The node of autograd around it, as BmmBackward0."),
}

STACK_SOURCES = Table(
    "What each stack shows.",
    {
        "stack": Column(ID, "The stack.", "stacks.id"),
        **SOURCE,
        **{
            flag: Column(pl.Boolean(), f"One of its frames is of {flag}.")
            for flag in FLAGS
        },
    },
)

_SEPARATOR = "\n"


def stack_sources(snapshot: Snapshot) -> pl.DataFrame:
    """Return one row for each stack; ``STACK_SOURCES`` has the columns.

    Files are named from the folder of the program that was started, as in traces.
    """
    frames = snapshot.frames.select("id", "line", "function", _text("file")).join(
        describe_frames(snapshot.frames, snapshot.owners), on="id"
    )
    rows = (
        snapshot.stacks.rename({"id": "stack", "frames": "frame"})
        .explode("frame")
        .join(frames, left_on="frame", right_on="id", how="left", maintain_order="left")
    )
    rows = rows.with_columns(file=_without_root(rows))
    own = pl.col("own")
    call = pl.format("{}:{} {}", "file", "line", _text("function"))
    # An operator that another one calls is inside it; what counts is the outermost of
    # those that the innermost Python call, or node of autograd, has called.
    below = (
        (~(pl.col("python") | pl.col("node").is_not_null())).cum_prod().over("stack")
    )
    by_stack = rows.with_columns(below=below == 1).group_by(
        "stack", maintain_order=True
    )
    return STACK_SOURCES.shaped(
        by_stack.agg(
            pl.col("file", "line", "function").filter(own).first(),
            pl.col(FLAGS).any(),
            chain=call.filter(own).str.join(_SEPARATOR),
            op=pl.col("op").filter("below").drop_nulls().last(),
            node=pl.col("node").drop_nulls().first(),
        ).with_columns(pl.col("chain").replace("", None))
    )


def chain_of(text: str) -> list[str]:
    """Return the calls of a ``chain``, the innermost first."""
    return text.split(_SEPARATOR)


def _without_root(rows: pl.DataFrame) -> pl.Expr:
    """Return files without the folder of the program that was started."""
    started = rows.filter("own", _text("function") == "<module>")
    folder = started["file"].str.extract(r"^(.*/)").drop_nulls().mode()
    if folder.is_empty():
        return pl.col("file")
    return pl.col("file").str.strip_prefix(folder.sort()[0])


def _text(column: str) -> pl.Expr:
    return pl.col(column).cast(pl.String)
