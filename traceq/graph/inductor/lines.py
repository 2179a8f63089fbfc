"""Lines and modules of the work that compiled code runs, from the generated code.

The trace has a region, named after the piece of code, around all that it runs. The
events directly inside are in the order in which the code calls its kernels and
operators.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import polars as pl

from traceq.common.expressions import END, asof, known, text
from traceq.graph.inductor.fused_kernels import CALL, largest, parts_of
from traceq.graph.nesting import INDEX, nearest
from traceq.graph.source import places
from traceq.model import schema
from traceq.model.compiled_graphs import CPP, TRITON, CompiledCode
from traceq.model.names import CALL_OF_GRAPH

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from traceq.model.compiled_graphs import GeneratedCode, KernelCall
    from traceq.model.owners import Owners


def with_compiled(
    tables: Mapping[str, pl.DataFrame], compiled: CompiledCode, owners: Owners
) -> dict[str, pl.DataFrame]:
    """Return ops, runtime calls and kernels with places in the user's code.

    ``fused`` has all the ops that each generated kernel computes.
    """
    ops = tables["ops"]
    runs = _runs(tables, compiled)
    calls = _calls(ops, runs, compiled)
    parts = parts_of(compiled, owners, runs, tables["frames"])
    placed = calls.join(largest(parts), on=CALL, how="left", nulls_equal=True)
    root = nearest(ops["parent"], ops["id"].is_in(placed["op"].implode()))
    place = root.to_frame("op").join(placed, on="op", how="left", maintain_order="left")
    ops = _placed(ops, place)
    changed = place["code"].is_not_null()
    return {
        "ops": ops,
        "runtime": places.like_op(tables["runtime"], ops, changed),
        "kernels": places.like_op(tables["kernels"], ops, changed),
        "fused": _fused(calls, parts),
    }


def keyed(
    tables: Mapping[str, pl.DataFrame], compiled: CompiledCode
) -> tuple[CompiledCode, int]:
    """Return code with the keys of the trace's regions, and how many keys lack code.

    Where none has its key, a region is that of the code which calls, in order, all that
    runs in it.
    """
    regions = _regions(tables).sort("start", "thread").with_row_index("run")
    ran = _ran(tables["ops"], regions).join(regions.select("run", "key"), on="run")
    known = {code.key: code for code in compiled.code if code.key}
    by_key = {key: known.get(key) for key in regions["key"]}
    for key, names in ran.select("key", "names").unique(maintain_order=True).rows():
        seen = names.split("\n")
        fitting = [code for code in compiled.code if _fits(code, seen)]
        if len(fitting) == 1 and not by_key[key]:
            by_key[key] = fitting[0]
    code = [replace(fitted, key=key) for key, fitted in by_key.items() if fitted]
    missing = sum(fitted is None for fitted in by_key.values())
    return CompiledCode(compiled.graphs, tuple(code)), missing


def _fits(code: GeneratedCode, names: Sequence[str]) -> bool:
    wanted = [call.name for call in code.calls if call.kind != CPP]
    shown = {*wanted}
    return bool(wanted) and wanted == [name for name in names if name in shown]


def _regions(tables: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
    """Return the runs of compiled graphs, with the ``key`` of each."""
    key = text("name").str.extract(CALL_OF_GRAPH)
    host = tables["annotations"].filter(~pl.col("on_gpu"))
    return host.select("thread", start="ts", end=END, key=key).drop_nulls("key")


def _runs(tables: Mapping[str, pl.DataFrame], compiled: CompiledCode) -> pl.DataFrame:
    """Return the runs of generated code, in order, with the modules around each."""
    codes = pl.DataFrame(
        {
            "key": [code.key for code in compiled.code],
            "code": range(len(compiled.code)),
        },
        schema={"key": pl.String, "code": schema.ID},
    ).unique("key", keep="last")
    runs = (
        _regions(tables)
        .join(codes, on="key")
        .sort("start", "thread")
        .with_row_index("run")
    )
    # An annotation does not know its modules: what is inside it does.
    inside = pl.concat(
        tables[name].select("thread", "ts", module=text("module"))
        for name in ("ops", "runtime")
    )
    within = asof(runs, inside, "start", "ts", by="thread", strategy="forward")
    prefix = pl.when(pl.col("ts") <= pl.col("end")).then("module")
    return within.select("run", "code", "thread", "start", "end", prefix=prefix)


def _calls(
    ops: pl.DataFrame, runs: pl.DataFrame, compiled: CompiledCode
) -> pl.DataFrame:
    """Return the call in the generated code that each op is, where that is certain."""
    ran = _ran(ops, runs).join(
        runs.select("run", "code", "prefix"), on="run", maintain_order="left"
    )
    distinct = ran.select("code", "names").unique(maintain_order=True)
    matched = [
        aligned(compiled.code[code].calls, names.split("\n"))
        for code, names in distinct.rows()
    ]
    of = distinct.with_columns(call=pl.Series(matched, dtype=pl.List(schema.ID)))
    return (
        ran.join(of, on=("code", "names"), maintain_order="left")
        .select("op", "code", "call", "prefix")
        .explode("op", "call")
        .drop_nulls("call")
    )


def _ran(ops: pl.DataFrame, runs: pl.DataFrame) -> pl.DataFrame:
    """Return the ops directly inside each run, and their names in one text."""
    started = asof(
        ops.select("id", "thread", "ts", "dur"), runs, "ts", "start", by="thread"
    ).sort("id")
    run = started.select(pl.when(pl.col("end") >= END).then("run")).to_series()
    direct = run.is_not_null() & run.ne_missing(run.gather(ops["parent"]))
    return (
        ops.select(op="id", name=text("name"), run=run)
        .filter(direct)
        .group_by("run", maintain_order=True)
        .agg("op", names=pl.col("name").str.join("\n"))
    )


def aligned(calls: Sequence[KernelCall], names: Sequence[str]) -> list[int | None]:
    """Return for each op of a run the place of its call in the code, if it is certain.

    Kernels in C++ leave nothing in a trace, and the code does not show all that is run
    inside. Where more or less ran than the code has, an op is certain if it is the same
    call whether all are found as early or as late as possible.

    >>> from traceq.model.compiled_graphs import KernelCall
    >>> calls = [KernelCall("extern", name, (), ()) for name in ("mm", "bmm", "mm")]
    >>> aligned(calls, ["mm", "empty", "bmm", "mm"]), aligned(calls, ["mm", "add"])
    ([0, None, 1, 2], [None, None])
    """
    wanted = [
        (at, kernel_call.name)
        for at, kernel_call in enumerate(calls)
        if kernel_call.kind != CPP
    ]
    shown = {name for _, name in wanted}
    seen = [(at, name) for at, name in enumerate(names) if name in shown]
    call_places: list[int | None] = [None] * len(names)
    for place, call in _certain(seen, wanted) or [
        (place, call) for call, place in _certain(wanted, seen)
    ]:
        call_places[place] = call
    return call_places


def _certain(
    some: Sequence[tuple[int, str]], among: Sequence[tuple[int, str]]
) -> list[tuple[int, int]]:
    """Return the pairs that all ways to find ``some`` in ``among`` have in common."""
    early = _positions(some, among)
    late = _positions(some[::-1], among[::-1])[::-1]
    return [
        (at, first)
        for (at, _), first, last in zip(some, early, late, strict=False)
        if first == last
    ]


def _positions(
    some: Sequence[tuple[int, str]], among: Sequence[tuple[int, str]]
) -> list[int]:
    """Return the earliest match of each in ``among``; nothing if not all have one."""
    rest = iter(among)
    positions = [
        next((at for at, name in rest if name == wanted), None) for _, wanted in some
    ]
    return [at for at in positions if at is not None] if None not in positions else []


def _placed(ops: pl.DataFrame, place: pl.DataFrame) -> pl.DataFrame:
    """Give ops their places; where only a library's function is known, that."""
    own = known(place["file"].is_not_null())
    via = own | known(place["via"].is_not_null())
    when = {"module": place["module"].is_not_null(), "via": via}
    return ops.with_columns(
        pl.when(when.get(column, own))
        .then(place[column].cast(ops.schema[column]))
        .otherwise(column)
        .alias(column)
        for column in places.COLUMNS
    )


def _fused(calls: pl.DataFrame, parts: pl.DataFrame) -> pl.DataFrame:
    """Return the ops of each run of a kernel, and of those that leave no event."""
    generated = parts.filter(pl.col("kind") == TRITON)
    ran = calls.join(generated, on=CALL, nulls_equal=True, maintain_order="left")
    unseen = parts.filter(pl.col("kind") == CPP).with_columns(op=pl.lit(None, INDEX))
    rows = pl.concat(
        [ran.select(sorted(ran.columns)), unseen.select(sorted(ran.columns))]
    )
    return schema.TABLES["fused"].shaped(rows.with_row_index("id"))
