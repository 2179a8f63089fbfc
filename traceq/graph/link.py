"""Linked tables from raw ones, with the modules of this package."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import polars as pl
from msgspec import Struct

from traceq.common.expressions import (
    constant,
    known,
    rows_moved,
    rows_of,
    sharing_nulls,
)
from traceq.common.parallel import run_both
from traceq.common.progress import report_progress
from traceq.graph import autograd, deep, host, launches, phases, steps, unreturned_calls
from traceq.graph.nesting import INDEX, depth, row_numbers, self_times, sums_of
from traceq.graph.source import places as source_places
from traceq.model import names, schema
from traceq.model.kernel_families import describe_kernels
from traceq.model.owners import NOBODY

if TYPE_CHECKING:
    from traceq.graph.host import Frames, HostTree
    from traceq.graph.steps import Steps
    from traceq.model.owners import Owners

# Number of progress reports of the linking.
_STAGES = 8


class Linked(Struct, frozen=True):
    """The linked tables of a trace."""

    tables: dict[str, pl.DataFrame]
    steps: Steps
    """The steps and their source."""
    too_deep: int
    """Number of rows that were left out because they are nested too deeply."""


def link(
    raw: Frames, owners: Owners = NOBODY, steps_by: str = "", too_deep: int = 0
) -> Linked:
    """Return the linked tables."""
    raw = {
        **raw,
        "frames": unreturned_calls.closed(raw["frames"]),
        # Before there are others: of a large trace it is in memory twice for a while.
        "kernels": launches.in_order(raw["kernels"]),
    }
    frames, (regions, kinds, work) = run_both(
        lambda: _frames(raw["frames"], owners), lambda: _described(raw)
    )
    detected = steps.find(raw, regions, steps_by)
    windows = detected.windows

    report_progress("graph", 1, _STAGES)
    tree = host.build(raw, frames)
    if (left_out := deep.too_deep(tree)) is not None:
        shallow = deep.without(raw, left_out)
        return link(shallow, owners, steps_by, too_deep + left_out.height)
    report_progress("graph", 2, _STAGES)
    facts = _FactsOfNames(frames, regions, kinds)
    ops, memory, runtime = _on_host(raw, tree, windows, facts, owners)
    # Of a large trace each table counts: what is linked is not needed any more.
    del tree, kinds, facts, raw["kernels"]
    kernels, backlog = steps.place_stray(launches.link(work, runtime, ops), windows)
    del work
    report_progress("graph", 6, _STAGES)
    runtime = _count_kernels(runtime, kernels)
    annotations = raw["annotations"].with_columns(
        step=steps.step_at(windows, raw["annotations"]["ts"])
    )
    tables = {
        "ops": ops,
        "kernels": kernels,
        "runtime": runtime,
        "annotations": annotations.sort("ts", "thread", "name"),
        "frames": frames,
        "memory": memory,
        "inputs": raw["inputs"],
        "threads": raw["threads"],
        "other": raw["other"].sort("ts"),
    }
    del ops, memory, runtime, kernels
    linked = {name: _shaped(name, tables.pop(name)) for name in [*tables]}
    report_progress("graph", 7, _STAGES)
    # Only the code that was generated tells what its kernels compute.
    linked["fused"] = pl.DataFrame(schema=schema.TABLES["fused"].dtypes)
    linked["steps"] = steps.measure(
        windows, linked["kernels"], linked["runtime"], backlog
    )
    return Linked(linked, detected, too_deep)


class _FactsOfNames(NamedTuple):
    """Facts from names: of frames, regions and ops."""

    frames: pl.DataFrame
    regions: pl.DataFrame
    kinds: pl.DataFrame


def _on_host(
    raw: dict[str, pl.DataFrame],
    tree: HostTree,
    windows: pl.DataFrame,
    facts: _FactsOfNames,
    owners: Owners,
) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    """Return ops, allocations and calls; each raw table goes once it is linked."""
    frames, regions, kinds = facts
    place, moment = run_both(
        lambda: source_places.of_tree(tree, frames, autograd.is_node(raw["ops"])),
        lambda: _moments(tree, windows, kinds, regions, frames["module"]),
    )
    context = sharing_nulls(place.with_columns(*moment))
    del place, moment
    report_progress("graph", 4, _STAGES)
    ops, memory = run_both(
        lambda: _ops(raw, tree, context, owners),
        lambda: _in_preorder(raw, tree, "memory", context).sort("ts"),
    )
    report_progress("graph", 5, _STAGES)
    runtime = _runtime(raw, tree, context, ops)
    if _has_callers(ops):
        callers = source_places.written_in_full(ops["caller"])
        runtime = source_places.like_op(runtime, ops, callers["file"].is_not_null())
    return ops, memory, runtime


def _shaped(name: str, table: pl.DataFrame) -> pl.DataFrame:
    """Convert a table to the form of the schema."""
    return sharing_nulls(schema.TABLES[name].shaped(_numbered(table)))


def _numbered(table: pl.DataFrame) -> pl.DataFrame:
    """Return a table with row numbers as ``id``."""
    others = [column for column in table.iter_columns() if column.name != "id"]
    return pl.DataFrame([*others, row_numbers(table.height).alias("id")])


def _frames(raw: pl.DataFrame, owners: Owners) -> pl.DataFrame:
    distinct, place = host.by_name(raw)
    facts = source_places.describe_frames(distinct.cast(pl.String), owners).drop("name")
    frames = raw.hstack(facts[place].get_columns())
    return source_places.with_first_lines(frames, facts, place).with_columns(
        source_places.calls(raw["caller"], owners)
    )


def _described(raw: Frames) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    """Return facts from the names of regions and ops, and GPU work with its facts."""
    regions = host.describe(raw["annotations"], names.describe_regions)
    kinds = host.describe(raw["ops"], names.describe_ops).with_columns(
        autograd.is_numbered(raw["ops"]).alias("numbered")
    )
    work = raw["kernels"]
    facts = host.describe(work, describe_kernels)
    return regions, kinds, work.hstack(facts.get_columns())


def _moments(
    tree: HostTree,
    windows: pl.DataFrame,
    kinds: pl.DataFrame,
    regions: pl.DataFrame,
    module: pl.Series,
) -> pl.DataFrame:
    """Return each row's step, phase and op, and whether it ran while compiling."""
    step = steps.step_at(windows, tree.ts)
    compiling = tree.spread("ops", kinds["compiling"]) | tree.spread(
        "annotations", regions["compiling"]
    )
    return pl.select(
        step.alias("step"),
        phases.of_tree(tree, kinds, regions, module, step),
        op=tree.place_in("ops")[tree.around(tree.is_of("ops"))],
        compiling=tree.at(known(compiling)).is_not_null(),
    )


def _in_preorder(
    raw: dict[str, pl.DataFrame], tree: HostTree, part: str, context: pl.DataFrame
) -> pl.DataFrame:
    """Sort a part of the tree as the tree is, and add what the tree says of it.

    The raw table is moved, column by column.
    """
    rows = tree.rows_of(part)
    sorted_rows = rows_moved(raw.pop(part).get_columns(), tree.row[rows])
    return _numbered(sorted_rows.hstack(rows_of(context, rows).get_columns()))


def _ops(
    raw: dict[str, pl.DataFrame],
    tree: HostTree,
    context: pl.DataFrame,
    owners: Owners,
) -> pl.DataFrame:
    ops = _in_preorder(raw, tree, "ops", context).rename({"op": "parent"})
    if _has_callers(ops):
        places = source_places.written(ops["caller"])
        ops = source_places.filled(ops, places, row_numbers(ops.height))
    nested, forward = run_both(
        lambda: _nested(ops), lambda: autograd.forward_twins(ops)
    )
    stacks = source_places.of_call_stacks(ops["call_stack"], owners)
    own = source_places.first_with_place(source_places.own(ops), stacks)
    callers = source_places.written_in_full(ops["caller"])
    place = source_places.first_with_place(
        callers, own, source_places.gathered(own, forward), ops
    )
    return ops.with_columns(
        *nested, forward, captured=pl.lit(value=False), **source_places.columns(place)
    )


def _has_callers(ops: pl.DataFrame) -> bool:
    """Return whether the trace has the caller of any op."""
    return ops["caller"].null_count() < ops.height


def _nested(ops: pl.DataFrame) -> pl.DataFrame:
    """Return self time, depth and number of called ops of each op."""
    end = ops["ts"] + ops["dur"]
    return pl.select(
        self_dur=self_times(ops["thread"], ops["ts"], end, ops["parent"]),
        depth=depth(ops["parent"]),
        children=_count_of(ops["parent"], ops.height),
    )


def _runtime(
    raw: dict[str, pl.DataFrame],
    tree: HostTree,
    context: pl.DataFrame,
    ops: pl.DataFrame,
) -> pl.DataFrame:
    runtime = _in_preorder(raw, tree, "runtime", context)
    of_op = source_places.gathered(ops, runtime["op"])
    place = source_places.first_with_place(source_places.own(runtime), of_op, runtime)
    runtime = runtime.with_columns(
        host.describe(runtime, names.describe_calls).to_series(),
        **source_places.columns(place),
    )
    return source_places.filled(runtime, ops, runtime["op"])


def _count_kernels(runtime: pl.DataFrame, kernels: pl.DataFrame) -> pl.DataFrame:
    started = _count_of(kernels["launch"], runtime.height)
    return runtime.hstack([started.alias("kernels")])


def _count_of(row: pl.Series, rows: int) -> pl.Series:
    """Return for each of this many rows how many others are of it."""
    return sums_of(row, constant(1, len(row), pl.Int64), rows).cast(INDEX)
