"""Place of each op in the user's own code: module, file, line, function."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.common.expressions import constant, known, nulls_like, rows_of
from traceq.common.words import MODULE_LEVEL
from traceq.graph.host import HostTree, describe, only
from traceq.graph.nesting import INDEX, nearest, row_numbers
from traceq.model import names, schema

if TYPE_CHECKING:
    from collections.abc import Mapping

    from traceq.model.owners import Owners

_PLACE = ("file", "line", "function", "via", "call_line")
COLUMNS = ("module", *_PLACE)
VIA = pl.concat_str(
    pl.format("{} (", pl.col("function").cast(pl.String)),
    pl.col("library").cast(pl.String),
    pl.format(":{}", "line").fill_null(""),
    pl.lit(")"),
).alias("via")
"""A library's function in one text, of described frames; none for any other's."""
_FULL_PLACE = r"^(?<function>[^@]+)@(?<begins>[0-9]*)@(?<module>[^@]*)$"
_STARTS_PROFILER = r"(^|/)torch/(profiler|autograd)/profiler\.py$"


@names.once_for_names
def describe_frames(of: pl.Series, owners: Owners) -> pl.DataFrame:
    """Return the facts about frames from their names, with ``via`` of a library's.

    A file's own statements have the line that ran, if there is one, not its first.
    """
    # torch has the first line where Python had not come to another.
    nowhere = (pl.col("function") == MODULE_LEVEL) & (pl.col("line") <= 1)
    facts = names.describe_frames(of, owners).with_columns(
        line=pl.when(~nowhere.fill_null(value=False)).then("line")
    )
    return facts.with_columns(
        pl.col("file", "function", "module", "library").cast(schema.TEXT),
        VIA.cast(schema.TEXT),
    )


def with_first_lines(
    frames: pl.DataFrame, facts: pl.DataFrame, fact: pl.Series
) -> pl.DataFrame:
    """Return described frames with the line at which each function begins, or none.

    torch names a call by the line of its function, but a call that is open when the
    profiler starts by the line that it was at. That is the one of another call of the
    function; where there is none, or functions share the name, it is not known. A
    file's own statements, as a loop, keep the line: they begin nowhere to speak of.
    ``facts`` are what describes the frames, and ``fact`` which of them each one has.
    """
    starts = known(facts["file"].cast(pl.String).str.contains(_STARTS_PROFILER))
    started = frames.select("ts", "thread").filter(starts[fact])
    first = started.sort("ts").head(1)
    if first.is_empty():
        return frames
    end = pl.col("ts") + pl.col("dur")
    on_thread = pl.col("thread") == first["thread"].item()
    began = frames.select(end.filter(on_thread).min()).item()
    if first["ts"].item() >= began:
        return frames  # the trace begins earlier: this profiler is another one
    is_open = frames["ts"] < began
    # Few are open, and their rows alone change.
    rows = row_numbers(frames.height).filter(is_open)
    opened = frames[["file", "function", "library", "line"]][rows]
    recorded = opened.select(
        pl.when(pl.col("function").cast(pl.String) == MODULE_LEVEL).then("line")
    ).to_series()
    opened = opened.drop("line")
    function = ["file", "function"]
    seen = constant(value=False, count=facts.height, dtype=pl.Boolean)
    others = facts.filter(seen.scatter(fact.filter(~is_open), values=True))
    lines = (
        others.join(opened, on=function, how="semi", nulls_equal=True)
        .group_by(function)
        .agg(line=pl.when(pl.col("line").n_unique() == 1).then(pl.col("line").first()))
    )
    opened = opened.join(
        lines, on=function, how="left", maintain_order="left", nulls_equal=True
    ).with_columns(line=pl.coalesce(recorded, "line"))
    frames = frames.with_columns(frames["line"].scatter(rows, opened["line"]))
    via = opened.select(VIA).to_series()
    if via.null_count() == len(via):
        return frames
    nothing = constant(None, frames.height, pl.String)
    new = nothing.scatter(rows, via).cast(schema.TEXT)
    return frames.with_columns(via=pl.coalesce(new, "via"))


def of_tree(tree: HostTree, frames: pl.DataFrame, backward: pl.Series) -> pl.DataFrame:
    """Return the source of each row of the host tree, from the Python calls.

    ``of_caller`` is true where a backward node lies between the row and that
    source: then it is only the place at which backward() was called.
    """
    is_own = known(tree.spread("frames", frames["own"]))
    via = tree.spread("frames", frames["via"])
    is_node = known(tree.spread("ops", backward))
    frame = tree.row[tree.at(is_own)]
    module = tree.spread("frames", frames["module"]).cast(pl.String)
    # A library's function counts if no function of the user's is inside of it.
    return pl.DataFrame(
        [
            module_paths(module, tree.parent),
            *frames[["file", "line", "function"]][frame].iter_columns(),
            via[tree.at(is_own | via.is_not_null())].alias("via"),
            _call_lines(tree, frames, is_own),
            known(is_node[tree.at(is_own | is_node)]).alias("of_caller"),
        ]
    )


def calls(caller: pl.Series, owners: Owners) -> list[pl.Series]:
    """Return the line at which each Python call was made, and whether by the user."""
    if caller.null_count() == len(caller):
        # Older torch does not say.
        nowhere = pl.Series("call_line", [None], dtype=schema.ID)
        nobody = pl.Series("by_own", [False])
        return [column.new_from_index(0, len(caller)) for column in (nowhere, nobody)]
    facts = describe(
        caller.to_frame("name"),
        lambda of: names.describe_frames(of, owners).select("line", "own"),
    )
    by_own = known(facts["own"])
    return [facts["line"].alias("call_line"), by_own.alias("by_own")]


def _call_lines(tree: HostTree, frames: pl.DataFrame, is_own: pl.Series) -> pl.Series:
    """Return for each row the line of the user's function that calls what it is in.

    An operator that the function runs itself, as ``a * b``, is in no call.
    """
    by_own = known(tree.spread("frames", frames["by_own"]))
    line = tree.spread("frames", frames["call_line"])
    call = tree.at(is_own | by_own)
    return only(line[call], ~is_own[call]).alias("call_line")


def written(caller: pl.Series) -> pl.DataFrame:
    """Return the places that are written in the trace, as ``model.py(42): forward``."""
    return describe(
        caller.to_frame("name"),
        lambda of: names.frame_places(of).select(
            pl.col("file", "function").cast(schema.TEXT), call_line=pl.col("line")
        ),
    )


def written_in_full(caller: pl.Series) -> pl.DataFrame:
    """Return the places that are written in full: ``a.py(42): forward@40@Net_0``.

    Such an op has that place, whatever Python calls are around it: compiled code runs
    ops of many functions in one.
    """
    if caller.null_count() == len(caller):
        return _nowhere(len(caller))
    return describe(caller.to_frame("name"), _full_places)


def _nowhere(count: int) -> pl.DataFrame:
    """Return this many rows without a place."""
    texts = dict.fromkeys(("module", "file", "function", "via"), schema.TEXT)
    kinds = texts | dict.fromkeys(("line", "call_line"), schema.ID)
    return pl.DataFrame(
        {
            column: pl.Series([None], dtype=kinds[column]).new_from_index(0, count)
            for column in ("module", "file", "line", "function", "via", "call_line")
        }
    )


def _full_places(callers: pl.Series) -> pl.DataFrame:
    parsed = names.frame_places(callers)
    full = parsed["function"].str.extract_groups(_FULL_PLACE).struct.unnest()
    in_full = full["function"].is_not_null()
    return parsed.select(
        full["module"].replace("", None).cast(schema.TEXT),
        pl.when(in_full).then("file").cast(schema.TEXT).alias("file"),
        full["begins"].cast(schema.ID, strict=False).alias("line"),
        full["function"].cast(schema.TEXT),
        pl.lit(None, schema.TEXT).alias("via"),
        pl.when(in_full).then("line").alias("call_line"),
    )


def like_op(table: pl.DataFrame, ops: pl.DataFrame, changed: pl.Series) -> pl.DataFrame:
    """Give what changed ops launched their places."""
    there = gathered(ops, table["op"])
    changed_rows = known(changed[table["op"]])
    return table.with_columns(
        pl.when(changed_rows).then(there[column]).otherwise(column).alias(column)
        for column in COLUMNS
    )


def filled(table: pl.DataFrame, other: pl.DataFrame, rows: pl.Series) -> pl.DataFrame:
    """Give rows without a line that of other rows, where these are of their function.

    Functions that begin elsewhere are others; one that begins nowhere is not compared.
    """
    keys = [key for key in ("file", "line", "function") if key in other.columns]
    there = other[[*keys, "call_line"]][rows]
    same = pl.all_horizontal(
        pl.lit(table[key]).eq_missing(pl.lit(there[key])) for key in keys
    )
    line = pl.when(same).then(pl.lit(there["call_line"]).cast(schema.ID))
    return table.with_columns(call_line=pl.coalesce("call_line", line))


def module_paths(name: pl.Series, parent: pl.Series) -> pl.Series:
    """Return for each row of a tree the path of the module whose call it is in.

    ``name`` is the module's where a row is the call of one; ``parent`` the row around.
    """
    called = name.is_not_null()
    inside = nearest(parent, called)
    modules = row_numbers(len(name)).filter(called)
    # From here on, a module is its place in this list.
    place = only(called.cast(INDEX).cum_sum() - 1, called)
    outer = place[inside[parent][modules]]
    paths, waiting = name[modules], row_numbers(len(modules))
    waiting = waiting.filter(outer.is_not_null())
    done = outer.is_null()
    # One level at a time, from the outside: a path begins with that of the outer one.
    while len(waiting):
        ready = waiting.filter(done[outer[waiting]])
        prefix = paths[outer[ready]]
        paths = paths.scatter(ready, prefix + "/" + paths[ready])
        done = done.scatter(ready, values=True)
        waiting = waiting.filter(~done[waiting])
    return paths.cast(schema.TEXT)[place[inside]].alias("module")


def of_call_stacks(stacks: pl.Series, owners: Owners) -> pl.DataFrame:
    """Return the source that old traces give as text, a frame after the other."""
    if stacks.null_count() == len(stacks):
        return _nowhere(len(stacks))
    distinct = stacks.unique().drop_nulls()
    frames = (
        pl.DataFrame(
            {"stack": distinct, "name": distinct.cast(pl.String).str.split(";")}
        )
        .explode("name")
        .with_columns(pl.col("name").str.strip_chars())
    )
    described = names.describe_frames(frames["name"].unique(), owners).with_columns(VIA)
    innermost = (
        frames.join(described, on="name", how="left", maintain_order="left")
        .filter(pl.col("own") | pl.col("via").is_not_null())
        .group_by("stack", maintain_order=True)
        .agg(
            pl.col("file", "line", "function").filter("own").first(),
            pl.col("via").first(),
        )
    )
    return (
        stacks.to_frame("stack")
        .join(
            innermost, on="stack", how="left", maintain_order="left", nulls_equal=True
        )
        .select(
            pl.lit(None, schema.TEXT).alias("module"),
            pl.col("file").cast(schema.TEXT),
            "line",
            pl.col("function", "via").cast(schema.TEXT),
            pl.lit(None, schema.ID).alias("call_line"),
        )
    )


def own(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the rows' source, none where it is that of a caller of backward()."""
    if not _knows(rows):
        return rows.select(COLUMNS)
    return rows.select(pl.when(~pl.col("of_caller")).then(pl.col(COLUMNS)))


def first_with_place(*sources: pl.DataFrame) -> pl.DataFrame:
    """Take each row's module and place from the first source that has one."""
    # Of most traces most sources know nothing.
    sources = tuple(filter(_knows, sources)) or sources[:1]
    if not _knows(sources[0]):
        return nulls_like(sources[0].select(COLUMNS))
    places: dict[str, pl.Expr] = dict.fromkeys(_PLACE, pl.lit(None))
    for source in reversed(sources):
        file, via = pl.lit(source["file"]), pl.lit(source["via"])
        has_place = file.is_not_null() | via.is_not_null()
        places = {
            column: pl.when(has_place)
            .then(source[column])
            .otherwise(later)
            .alias(column)
            for column, later in places.items()
        }
    module = pl.coalesce(source["module"] for source in sources)
    return pl.select(module, *places.values())


def _knows(source: pl.DataFrame) -> bool:
    """Return whether a source has a module or a place for any row."""
    return any(
        source[column].null_count() < source.height
        for column in ("module", "file", "via")
    )


def gathered(source: pl.DataFrame, rows: pl.Series) -> pl.DataFrame:
    """Return the source of other rows, null where there is no row."""
    return rows_of(source[list(COLUMNS)], rows)


def columns(source: pl.DataFrame) -> Mapping[str, pl.Series]:
    """Return the source's columns by name."""
    return {column: source[column] for column in COLUMNS}
