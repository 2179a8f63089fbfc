"""Graph breaks of a compiled program: where they are, and the time around them."""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.patterns import compilation, compile_reasons
from traceq.linter import END, NOTHING, Evidence, View, asof, fill_false, listed, text

from ._captures import capture_spans, without

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

    from traceq.model.run import CompiledPlace

# What torch calls the rest of a function after a break in it.
_RESUME = r"^torch_dynamo_resume_in_(?<of>.+)_at_(?<at>\d+)$"
# What the host does for each part of a function, before its compiled code runs.
_WRAPPERS = ("Pregraph bytecode", "AOTDispatcher Runtime Wrapper Prologue")

_MOST_REASONS = 3


def breaks_here(
    breaks: Sequence[CompiledPlace], row: Mapping[str, Any]
) -> list[CompiledPlace]:
    """Return the breaks that are at a row's place; without one, all there are."""
    if row["file"] is None:
        return list(breaks)
    name = PurePath(row["file"]).name
    return [
        compiled_place
        for compiled_place in breaks
        if (PurePath(compiled_place.file or "").name, compiled_place.line)
        == (name, row["line"])
    ]


def evidence(
    row: Mapping[str, Any], reasons: list[compile_reasons.Reason]
) -> Iterator[Evidence]:
    for reason in reasons[:_MOST_REASONS]:
        yield Evidence("reason", reason.text)
    if row["before"]:
        yield Evidence("before", listed(row["before"], 6))
    yield Evidence("after", listed(row["parts"]))


def apart_lines(breaks: pl.DataFrame, steps: int) -> Iterator[Evidence]:
    """Yield the kernels that the break keeps apart."""
    pairs = breaks.group_by("before", "after", maintain_order=True).len()
    for before, after, count in pairs.head(_MOST_REASONS).iter_rows():
        yield Evidence("unfused", f"{before} and {after}", count=count / steps)


def breaks_by_place(view: View) -> pl.DataFrame:
    """Return the regions inside other regions, each with the break before it.

    ``lookup`` is when the guards of the part after the break began to be checked,
    ``before`` the last op before it, ``frame`` the number of the function that broke,
    and file, line and function are those of the break.
    """
    ops = view.ops
    region = view.ops_matching(compilation.REGION)
    # Regions are few, and mostly none of them is inside another.
    if not fill_false(region[view.trace.ops["parent"].filter(region)]).any():
        return NOTHING
    inside = fill_false(region[ops["parent"]])
    inner = ops.filter(inside & region[ops["id"]])
    if not inner.height:
        return NOTHING
    parts = ops.filter(inside)
    outer = view.trace.ops["name"].gather(inner["parent"]).cast(pl.String)
    return (
        inner.drop("file", "line", "function")
        .with_columns(frame=outer.str.extract(compilation.REGION_FRAME))
        .join(_resumed(parts), left_on="id", right_on="parent", how="left")
        .pipe(asof, _lookups(parts), "ts", "at", by="parent")
        .drop("at")
        .pipe(asof, _own_ops(parts), "ts", "at", by="parent")
    )


def _lookups(parts: pl.DataFrame) -> pl.DataFrame:
    """Return the guard checks in the outer regions: each is for the region after it."""
    return parts.filter(pl.col("name") == compilation.LOOKUP).select(
        "parent", at="ts", lookup="ts"
    )


def overhead(view: View, regions: pl.DataFrame) -> pl.DataFrame:
    """Return the host time of the parts after a break that one part would not have.

    That is from the check of the guards to the first operator of compiled code, and
    from its last one to the end of the region, but for what compiles or captures then:
    that goes with its own cause, and is not there without it.
    """
    ops = view.ops
    roots = view.roots(pl.col("id").is_in(regions["id"].implode()))
    name = text("name")
    work = (
        ops.with_columns(root=roots.gather(ops["id"]))
        .filter(
            pl.col("root").is_not_null(),
            ~name.is_in([*_WRAPPERS, compilation.LOOKUP, compilation.CALL]),
            ~name.str.contains(compilation.REGION),
        )
        .group_by("root")
        .agg(first=pl.col("ts").min(), last=END.max())
    )
    timed = regions.join(work, left_on="id", right_on="root", how="left").select(
        begin=pl.coalesce("lookup", "ts"), end=END, first="first", last="last"
    )
    before = timed.select(start="begin", end=pl.coalesce("first", "end"))
    after = timed.drop_nulls("last").select(start="last", end="end")
    gaps = pl.concat([before, after]).filter(pl.col("start") < pl.col("end"))
    captured = compilation.captures(view.trace, view.steady)["within"].explode()
    compiled = compilation.compilations(view.trace, view.steady)
    for others in (
        capture_spans(view, captured.drop_nulls().unique()),
        compiled.select(start="ts", end=END),
    ):
        gaps = without(gaps, others)
    return gaps


def _resumed(parts: pl.DataFrame) -> pl.DataFrame:
    """Return where the function broke whose rest each region is, if stacks show it."""
    resume = text("function").str.extract_groups(_RESUME)
    return (
        parts.select("parent", "file", resume.alias("resume"))
        .unnest("resume")
        .drop_nulls("at")
        .group_by("parent", maintain_order=True)
        .agg(
            pl.col("file").first(),
            line=pl.col("at").first().cast(pl.UInt32),
            function=pl.col("of").first(),
        )
    )


def _own_ops(parts: pl.DataFrame) -> pl.DataFrame:
    """Return the ops that the program itself ran in a region, after compiled code.

    Without autograd there is no mark around compiled code, so its ops cannot be
    distinguished from the program's own, and none are returned.
    """
    name = text("name")
    after = (name == compilation.CALL).cum_sum().over("parent") > 0
    return (
        parts.sort("ts")
        .filter(after, name.str.starts_with("aten::"))
        .select("parent", at="ts", before=name)
    )
