"""Source lines that the trace lacks, from the source of the user's functions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.common.expressions import text
from traceq.graph.host import only
from traceq.graph.nesting import INDEX, nearest, parents, row_numbers
from traceq.graph.source.control_flow import CALL, graph_of, read_program
from traceq.graph.source.follow import Event, Follower
from traceq.graph.source.places import filled
from traceq.model.schema import ID

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from traceq.graph.source.control_flow import Program

# Heuristic limits: the events of a function are followed up to the first number, those
# of all functions together up to the second.
_LONGEST = 20_000
_MOST = 400_000
_FUNCTION = ("file", "line", "function")
# What is called: of a built-in method its name, of a module nothing that is written.
_CALLED = (
    pl.when(text("name").str.starts_with("<built-in"))
    .then(text("name").str.extract(r"^<built-in (?:function|method) (\w+)"))
    .otherwise(text("function"))
    .fill_null("")
)


# An event in one text, which is quick to compare.
_EVENT = pl.concat_str(
    "kind", "called", pl.col("call_line").cast(pl.String).fill_null(""), separator="\t"
)


def with_source_lines(
    tables: Mapping[str, pl.DataFrame], sources: Mapping[str, str]
) -> dict[str, pl.DataFrame]:
    """Return ops, runtime calls and kernels with lines from the sources.

    ``sources`` are texts by the file's name in the trace. A function that is not where
    the trace has it, since the file is another one, gives nothing.
    """
    ops, frames = tables["ops"], tables["frames"]
    followed = _Nest(ops, frames, [*sources]).followed(sources)
    ops = filled(ops, followed, row_numbers(ops.height))
    ops = filled(ops, ops, ops["forward"])
    runtime, kernels = tables["runtime"], tables["kernels"]
    runtime = filled(runtime, ops, runtime["op"])
    kernels = filled(kernels, runtime, kernels["launch"])
    kernels = filled(kernels, ops, kernels["op"])
    return {"ops": ops, "runtime": runtime, "kernels": kernels}


class _Nest:
    """The user's functions, what they call, and the ops, as one tree."""

    def __init__(
        self, ops: pl.DataFrame, frames: pl.DataFrame, files: Sequence[str]
    ) -> None:
        has_line = frames["call_line"].is_not_null()
        # Without lines of calls all calls go in: who made one is who is around it.
        chosen = frames.filter(has_line | frames["own"]) if has_line.any() else frames
        end = (pl.col("ts") + pl.col("dur")).alias("end")
        event = (pl.lit("op"), text("name").str.strip_prefix("aten::"))
        rows = pl.concat(
            [
                chosen.select(
                    *("thread", "ts", end, "own", *_FUNCTION, "call_line"),
                    kind=pl.lit(CALL),
                    called=_CALLED,
                    id=pl.lit(None, INDEX),
                ),
                ops.select(
                    *("thread", "ts", end),
                    pl.lit(value=False).alias("own"),
                    *(pl.lit(None, ops.schema[key]).alias(key) for key in _FUNCTION),
                    pl.lit(None, ID).alias("call_line"),
                    kind=event[0],
                    called=event[1],
                    id=pl.col("id"),
                ),
            ]
        ).sort("thread", "ts", -pl.col("end"), maintain_order=True)
        parent = parents(rows["thread"], rows["end"])
        in_source = rows.select(
            known=pl.col("own") & text("file").is_in(files)
        ).to_series()
        self.rows = rows.with_columns(
            row=row_numbers(rows.height),
            around=only(parent, in_source.gather(parent).fill_null(value=False)),
        )
        self.parent = parent

    def followed(self, sources: Mapping[str, str]) -> pl.DataFrame:
        """Return for each op the line by following the source, and its function."""
        direct = self.rows.filter(pl.col("around").is_not_null())
        function = self.rows.select(pl.col(_FUNCTION).gather(direct["around"]))
        events = direct.select("row", "around", "kind", "called", "call_line")
        instances = (
            pl.concat([events, function], how="horizontal")
            .group_by("around", maintain_order=True)
            .agg(
                pl.col(_FUNCTION).first(),
                "row",
                _EVENT.str.join("\n").alias("events"),
            )
            .with_columns(*self._open(), count=pl.col("row").list.len())
            .filter(pl.col("count") <= _LONGEST)
        )
        lines = _lines(instances, sources)
        marked = instances.select("row", lines=lines).explode("row", "lines")
        line = pl.Series([None], dtype=ID).new_from_index(0, self.rows.height)
        line = line.scatter(marked["row"], marked["lines"].cast(ID))
        # A function of the user's own has lines of its own, known or not.
        at = nearest(self.parent, self.rows["own"] | line.is_not_null())
        call_line = only(line.gather(at), ~self.rows["own"].gather(at))
        around = self.rows["around"].gather(at)
        return (
            self.rows.select(
                "id", pl.col(_FUNCTION).gather(around), call_line=call_line
            )
            .drop_nulls("id")
            .sort("id")
        )

    def _open(self) -> list[pl.Expr]:
        """Say whether a function may have begun before the trace, or ended after it."""
        seen = self.rows.filter(pl.col("kind") != CALL)
        edges = seen.group_by("thread").agg(pl.col("ts").min(), pl.col("end").max())
        of = self.rows.select("thread", "ts", "end").join(
            edges, on="thread", how="left", maintain_order="left", suffix="_ops"
        )
        begun = (of["ts"] <= of["ts_ops"]).fill_null(value=True)
        unfinished = (of["end"] >= of["end_ops"]).fill_null(value=True)
        return [
            pl.lit(begun).gather(pl.col("around")).alias("begun"),
            pl.lit(unfinished).gather(pl.col("around")).alias("unfinished"),
        ]


def _lines(instances: pl.DataFrame, sources: Mapping[str, str]) -> pl.Series:
    """Follow each function once for each way it went; return a list for each call."""
    keys = [*_FUNCTION, "events", "begun", "unfinished"]
    distinct = instances.select(*keys, "count").unique(keys, maintain_order=True)
    by_call: dict[int, list[int | None]] = {}
    programs: dict[str, Program] = {}
    left = _MOST
    numbered = distinct.with_row_index("at")
    for place, ways in numbered.group_by(_FUNCTION, maintain_order=True):
        file, line, name = place
        if file not in programs:
            programs[str(file)] = read_program(sources[str(file)])
        function = programs[str(file)].find(str(name), line)
        total = int(ways["count"].sum())
        if function is None or total > left:
            continue
        left -= total
        sequences = [[*map(_event, way.split("\n"))] for way in ways["events"]]
        follower = Follower(graph_of(function), sequences)
        flags = ways.select("at", "begun", "unfinished").iter_rows()
        for (at, begun, unfinished), events in zip(flags, sequences, strict=True):
            by_call[at] = follower.lines(events, begun=begun, unfinished=unfinished)
    followed = distinct.with_columns(
        lines=pl.Series(
            [
                by_call.get(at, [None] * count)
                for at, count in enumerate(distinct["count"])
            ],
            dtype=pl.List(ID),
        )
    )
    return instances.select(keys).join(
        followed.select(*keys, "lines"),
        on=keys,
        how="left",
        nulls_equal=True,
        maintain_order="left",
    )["lines"]


def _event(text: str) -> Event:
    kind, name, line = text.split("\t")
    return Event(kind, name, int(line) if line else None)
