"""Copies of the captured ops for every replay of a CUDA graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.common.expressions import text
from traceq.common.words import layer_names
from traceq.graph.launches import kind_in_context
from traceq.graph.nesting import INDEX, depth
from traceq.graph.source import places
from traceq.model import schema

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceq.graph.host import Frames

# Phases: a replay's launch knows them better than its capture, unless it has several.
_PHASES = ("forward", "backward", "optimizer", "data")
_MOST_COPIES = 4_000_000
_THREAD_NAME = "ops of replayed CUDA graphs"
_COPY = ["launch", "recorded"]


def with_copies(
    recorded: Sequence[Frames], captured: pl.DataFrame, pairs: pl.DataFrame
) -> dict[str, pl.DataFrame]:
    """Return the tables with a copy of its captured ops for every replay.

    ``recorded`` are the tables of the trace and of those with captures, ``captured``
    the ops of these that ran in a capture, with its ``window``, ``start`` and ``end``
    and the place in ``recorded``, ``pairs`` what was matched. The copies lie before the
    trace's begin, one replay after the other, on threads of their own.
    """
    tables = recorded[0]
    captured = _bounded(captured, pairs)
    threads, new_threads = _with_threads(tables["threads"], recorded, captured)
    inputs, new_inputs = _with_inputs(recorded)
    copies = (
        _placed(_replays(tables, captured, pairs), captured)
        .join(new_threads, on=["recorded", "thread"], maintain_order="left")
        .join(
            new_inputs,
            on=["recorded", "inputs"],
            how="left",
            maintain_order="left",
        )
        .sort("new_thread", "launched", "id", maintain_order=True)
        .with_columns(
            copy=tables["ops"].height + pl.int_range(pl.len(), dtype=INDEX),
        )
    )
    ops = pl.concat([tables["ops"], _as_ops(copies, tables["ops"].height)])
    kernels = _with_ops(tables["kernels"], ops, recorded, copies, pairs)
    return {
        "ops": ops,
        "kernels": kernels,
        "threads": threads,
        "inputs": inputs,
        "fused": _with_fused(recorded, copies),
    }


def _bounded(captured: pl.DataFrame, pairs: pl.DataFrame) -> pl.DataFrame:
    """Return the ops to copy: where they would be very many, those that launch.

    The ops around these are among them; a long trace of a server has thousands of
    replays.
    """
    sizes = captured.group_by("window").len()
    replays = pairs.select("launch", "window").unique().join(sizes, on="window")
    if replays["len"].sum() <= _MOST_COPIES:
        return captured
    key, count = ["window", "id"], 0
    needed = pairs.select("window", id="op").unique()
    while needed.height > count:
        count = needed.height
        around = (
            captured.join(needed, on=key).select("window", id="parent").drop_nulls()
        )
        needed = pl.concat([needed, around]).unique()
    return captured.join(needed, on=key, how="semi")


def _with_threads(
    threads: pl.DataFrame, recorded: Sequence[Frames], captured: pl.DataFrame
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the threads with new ones, and which one stands for which."""
    new_threads = captured.select("recorded", "thread").unique().sort(pl.all())
    old = pl.concat(
        one["threads"].select("pid", "tid", recorded=pl.lit(at), thread="id")
        for at, one in enumerate(recorded)
    )
    new_threads = new_threads.join(
        old, on=["recorded", "thread"], how="left", maintain_order="left"
    ).with_columns(
        new_thread=threads.height + pl.int_range(pl.len(), dtype=INDEX),
        name=pl.lit(_THREAD_NAME),
    )
    rows = new_threads.select("pid", "tid", "name", id="new_thread")
    grown = pl.concat([threads, schema.TABLES["threads"].shaped(rows)])
    return grown, new_threads.select("recorded", "thread", "new_thread")


def _with_inputs(recorded: Sequence[Frames]) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the distinct inputs of all traces, and the new row of each."""
    inputs = pl.concat(
        one["inputs"].with_columns(recorded=pl.lit(at))
        for at, one in enumerate(recorded)
    )
    content = inputs.drop("id", "recorded").hash_rows()
    rows = inputs.with_columns(content=content)
    first = rows.filter(
        (pl.col("recorded") == 0) | pl.col("content").is_first_distinct()
    ).with_columns(new_inputs=pl.int_range(pl.len(), dtype=INDEX))
    place = first.unique("content", keep="first", maintain_order=True)
    new = rows.join(
        place.select("content", "new_inputs"), on="content", maintain_order="left"
    ).select("recorded", "new_inputs", inputs="id")
    table = first.with_columns(id="new_inputs")
    return schema.TABLES["inputs"].shaped(table), new


def _replays(
    tables: Frames, captured: pl.DataFrame, pairs: pl.DataFrame
) -> pl.DataFrame:
    """Return the replays, in order, with what their launch knows and their begin."""
    sides = captured.select("window", "start", "end").unique()
    launches = tables["runtime"].select(
        "step", launch="id", launched="ts", launch_phase="phase", launch_module="module"
    )
    length = pl.col("end") - pl.col("start")
    return (
        pairs.group_by("launch", "window")
        .agg(pl.col("shaped").all())
        .join(sides, on="window")
        .join(launches, on="launch")
        .sort("launched", "launch")
        .with_columns(begin=length.cum_sum() - length - length.sum())
    )


def _placed(replays: pl.DataFrame, captured: pl.DataFrame) -> pl.DataFrame:
    """Return the captured ops for every replay, before the trace begins."""
    several = (
        captured.filter(text("phase").is_in(_PHASES))
        .group_by("window")
        .agg(several=pl.col("phase").n_unique() > 1)
    )
    rows = replays.join(several, on="window", how="left").join(
        captured.drop("step", "start", "end"), on="window", maintain_order="left_right"
    )
    dur = pl.min_horizontal("dur", pl.col("end") - pl.col("ts"))
    own = text("launch_phase").is_in(_PHASES) & ~pl.col("several").fill_null(
        value=False
    )
    return rows.with_columns(
        dur=dur,
        self_dur=pl.min_horizontal("self_dur", dur),
        phase=pl.when(own).then("launch_phase").otherwise("phase"),
        ts=pl.col("ts") - pl.col("start") + pl.col("begin"),
        module=_modules(rows),
        inputs=pl.when("shaped").then("inputs"),
    )


def _modules(rows: pl.DataFrame) -> pl.Series:
    """Return the ops' modules, with the numbers that the launch's have.

    A recording numbers the modules that it sees, so that the only block in a capture
    is its first, whichever block of the model it is.
    """
    pair = ["launch_module", "module"]
    numbers = (
        rows.select(pair)
        .unique()
        .with_columns(launched=text("launch_module"), captured=text("module"))
    )
    outer, inner = layer_names(pl.col("launched")), layer_names(pl.col("captured"))
    inside = (inner + "/").str.starts_with(outer + "/")
    deep = pl.col("launched").str.count_matches("/", literal=True).fill_null(0) + 1
    rest = pl.col("captured").str.split("/").list.slice(deep)
    new = (
        pl.when(inside)
        .then(pl.concat_list("launched", rest).list.join("/"))
        .when((outer + "/").str.starts_with(inner + "/"))
        .then("launched")
        .otherwise(pl.coalesce("captured", "launched"))
    )
    numbers = numbers.select(*pair, new=new.cast(schema.TEXT))
    return rows.join(numbers, on=pair, maintain_order="left", nulls_equal=True)["new"]


def _as_ops(copies: pl.DataFrame, first: int) -> pl.DataFrame:
    """Return the copies as rows of the table of ops, which point at each other."""
    ids = copies.select(*_COPY, "id", "copy")
    parent, forward = (
        copies.select(*_COPY, column).join(
            ids,
            left_on=[*_COPY, column],
            right_on=[*_COPY, "id"],
            how="left",
            maintain_order="left",
        )["copy"]
        for column in ("parent", "forward")
    )
    children = parent.drop_nulls().value_counts(name="children")
    rows = copies.with_columns(
        depth=depth(parent - first),
        parent=parent,
        forward=forward,
        children=copies.select(parent="copy")
        .join(
            children.rename({children.columns[0]: "parent"}),
            on="parent",
            how="left",
            maintain_order="left",
        )["children"]
        .fill_null(0),
        thread="new_thread",
        inputs="new_inputs",
        compiling=pl.lit(value=False),
        captured=pl.lit(value=True),
    )
    return schema.TABLES["ops"].shaped(rows.with_columns(id="copy"))


def _with_fused(recorded: Sequence[Frames], copies: pl.DataFrame) -> pl.DataFrame:
    """Return the content of generated kernels, those of the copies included."""
    ids = copies.select("recorded", "copy", op="id").sort("copy")
    captured = pl.concat(
        one["fused"].with_columns(recorded=pl.lit(at))
        for at, one in enumerate(recorded)
    )
    rows = ids.join(captured, on=["recorded", "op"], maintain_order="left_right")
    fused = recorded[0]["fused"]
    numbered = rows.with_columns(
        op="copy", id=fused.height + pl.int_range(pl.len(), dtype=INDEX)
    )
    return pl.concat([fused, schema.TABLES["fused"].shaped(numbered)])


def _with_ops(
    kernels: pl.DataFrame,
    ops: pl.DataFrame,
    recorded: Sequence[Frames],
    copies: pl.DataFrame,
    pairs: pl.DataFrame,
) -> pl.DataFrame:
    """Add ops, phase and place to the matched kernels."""
    ids = copies.select("launch", "window", "recorded", "copy", op="id")
    mapped = pairs.join(ids, on=["launch", "window", "op"])
    calls = pl.concat(
        one["runtime"].select(*places.COLUMNS, recorded=pl.lit(at), call="id")
        for at, one in enumerate(recorded)
    )
    replayed = kernels.select(kernel="id").join(
        mapped.select("kernel", "copy", "certain", "recorded", "call"),
        on="kernel",
        how="left",
        maintain_order="left",
    )
    called = replayed.join(
        calls, on=["recorded", "call"], how="left", maintain_order="left"
    )
    place = places.first_with_place(
        places.gathered(ops, replayed["copy"]), called, kernels
    )
    op = replayed["copy"].fill_null(kernels["op"])
    grown = kernels.with_columns(
        op=op,
        certain=replayed["certain"],
        phase=pl.coalesce(ops["phase"][replayed["copy"]], "phase"),
        **places.columns(place),
    )
    kind = pl.when(replayed["copy"].is_not_null()).then(kind_in_context(ops, op))
    return grown.with_columns(kind=kind.otherwise("kind"))
