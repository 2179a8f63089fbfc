"""Op tables of a Megatron job, as ByteDance's StragglerAnalysis has them, as meetings.

A row is an op of a rank: compute, a send or receive, or a collective. What ranks waited
for is seen by the times alone, as in a trace. The tables and what they were found to
say are public: github.com/ByteDance-Seed/StragglerAnalysis.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from traceq.common.expressions import known
from traceq.common.units import NS_PER_S
from traceq.errors import InputError
from traceq.ranks.replay import JobReplay, job_replay
from traceq.ranks.timeline import READY, RESUME

if TYPE_CHECKING:
    from pathlib import Path

SUFFIX = ".parquet"
# Columns of a table; others are not read.
_COLUMNS = pl.Schema(
    {
        "dp_rank": pl.Int64(),
        "stage": pl.Int64(),
        "rank": pl.Int64(),
        "step": pl.Int64(),
        "optype": pl.String(),
        "start_ts": pl.Float64(),
        "duration": pl.Float64(),
        "seq_id": pl.Int64(),
    }
)
# Ops follow each other within this time, or nothing was held.
_FOLLOWS = 2_000_000
_SENDS = ("forward-send", "forward-recv", "backward-send", "backward-recv")
_GROUPS = ("params-all-gather", "grads-reduce-scatter", "separate-grads-all-reduce")
_EMBEDDING, _CLIP = "embedding-grads-all-reduce", "optimizer-clip-main-grad"
_SHARED = (*_SENDS, *_GROUPS, _EMBEDDING, _CLIP)
BOUNDS = ("begin", "end")
"""Types of the ops that a table has beside its own: where a step begins and ends."""
_BEGIN, _END = BOUNDS


@dataclass(frozen=True, eq=False)
class OpTable:
    """A job's ops, with what each takes at the mean of its kind."""

    meetings: pl.DataFrame
    transfers: pl.DataFrame
    compute: pl.DataFrame
    replays: dict[int, JobReplay]

    def step_ns(self, replaced: pl.Expr) -> float:
        """Return the mean step without gaps, some ranks' ops at what is ideal."""
        takes = pl.when(replaced).then("ideal").otherwise("duration")
        compute = self.compute.group_by("row").agg(own=takes.sum())
        own = (
            self.meetings.drop("own")
            .join(compute, on="row", how="left", maintain_order="left")
            .with_columns(pl.col("own").fill_null(0))
        )
        # A transfer is as its ranks are; those of both kinds are as one of them.
        members = self.meetings.drop_nulls("instance").group_by("step", "instance")
        ideal = members.agg(ideal=replaced.all())
        timed = self.transfers.join(
            ideal, on=["step", "instance"], how="left", maintain_order="left"
        ).with_columns(time=pl.when("ideal").then("usual").otherwise("transfer"))
        took = []
        for step, replay in self.replays.items():
            owned = own.filter(pl.col("step") == step)["own"].cast(pl.Float64).to_list()
            times = timed.filter(pl.col("step") == step)["time"].cast(pl.Float64)
            took.append(replay.run(owned, [0.0] * len(owned), times.to_list()))
        return sum(took) / len(took)


def read_op_table(path: Path) -> OpTable:
    """Read an op table from a Parquet file; refuse one that is no such table."""
    try:
        ops = pl.read_parquet(path)
    except (pl.exceptions.PolarsError, OSError) as error:
        msg = f"{path} is no Parquet file that can be read"
        raise InputError(msg) from error
    if missing := [name for name in _COLUMNS if name not in ops.columns]:
        msg = (
            f"{path} is no table of ops as StragglerAnalysis writes them: the columns"
            f" {', '.join(missing)} are missing"
        )
        raise InputError(msg)
    try:
        ops = ops.select(list(_COLUMNS)).cast(_COLUMNS).drop_nulls()
    except pl.exceptions.PolarsError as error:
        msg = f"{path} has columns of other types than a table of ops"
        raise InputError(msg) from error
    if not ops.height:
        msg = f"{path} has no ops"
        raise InputError(msg)
    return op_table(ops)


def op_table(ops: pl.DataFrame) -> OpTable:
    """Return a job of its op table, whose times are in seconds."""
    ops = ops.with_columns(
        (pl.col("start_ts", "duration") * NS_PER_S).round().cast(pl.Int64)
    )
    ops = ops.with_columns(
        start="start_ts", end=pl.col("start_ts") + pl.col("duration")
    )
    ops = _with_bounds(ops)
    shared = pl.col("optype").is_in((*_SHARED, _BEGIN, _END))
    # What is a collective of ranks that were not recorded is at its median.
    usual = pl.when(pl.col("optype").str.contains("reduce"))
    compute = ops.filter(~shared).with_columns(
        ideal=usual.then(pl.col("duration").median().over("optype")).otherwise(
            pl.col("duration").mean().over("optype")
        )
    )
    cells = _with_held(_with_instances(ops.filter(shared)), compute)
    transfers = _transfers(cells)
    meetings = _meetings(cells)
    rows = _rows_of(compute, meetings)
    replays = {
        step: job_replay(
            meetings.filter(pl.col("step") == step),
            transfers.filter(pl.col("step") == step),
        )
        for step in meetings["step"].unique().sort()
    }
    return OpTable(meetings, transfers, rows, replays)


def _with_bounds(ops: pl.DataFrame) -> pl.DataFrame:
    """Add that all ranks begin a step together, and end it together."""
    whose = ["dp_rank", "stage", "rank", "step"]
    first = pl.col("start").min().over("step").alias("moment")
    ends = pl.col("end").max().over("step", "rank").alias("moment")
    parts = [ops]
    for name, moment in ((_BEGIN, first), (_END, ends)):
        part = (
            ops.with_columns(moment)
            .unique(whose, keep="first", maintain_order=True)
            .with_columns(
                optype=pl.lit(name),
                start="moment",
                end="moment",
                seq_id=pl.lit(0, pl.Int64),
                duration=pl.lit(0, pl.Int64),
            )
        )
        parts.append(part.select(ops.columns))
    return pl.concat(parts)


def _with_instances(cells: pl.DataFrame) -> pl.DataFrame:
    """Say which ops are one: a send and its receive, a group's collective."""
    optype, stage = pl.col("optype"), pl.col("stage")
    way = optype.str.extract(r"^(forward|backward)")
    sender = (
        pl.when(optype == "forward-recv")
        .then(stage - 1)
        .when(optype == "backward-recv")
        .then(stage + 1)
        .otherwise(stage)
    )
    key = (
        pl.when(optype.is_in(_SENDS))
        .then(pl.concat_str(way, sender, "dp_rank", "seq_id", separator=" "))
        .when(optype.is_in(_GROUPS))
        .then(pl.concat_str(optype, stage, "seq_id", separator=" "))
        .when(optype == _EMBEDDING)
        .then(pl.concat_str(optype, "dp_rank", "seq_id", separator=" "))
        .otherwise(pl.concat_str(optype, "seq_id", separator=" "))
    )
    return cells.with_columns(key=key).with_columns(
        instance=pl.col("key").rank("dense").over("step").cast(pl.UInt32) - 1
    )


def _with_held(cells: pl.DataFrame, compute: pl.DataFrame) -> pl.DataFrame:
    """Add when a cell was ready, and since when it held its rank."""
    work = compute.filter(pl.col("duration") > 0).sort("start")
    by = ["step", "rank"]
    before = work.select(*by, done="end").sort("done")
    rows = cells.sort("start").join_asof(
        before.with_columns(at=pl.col("done") - _FOLLOWS // 4),
        left_on="start",
        right_on="at",
        by=by,
        check_sortedness=False,
    )
    rows = rows.with_columns(
        ready=pl.min_horizontal("start", pl.col("done").fill_null(pl.col("start")))
    ).sort("end")
    after = work.select(*by, after="start", ends="end").sort("after")
    rows = (
        rows.with_columns(at=pl.col("end") - _FOLLOWS // 4)
        .sort("at")
        .join_asof(
            after,
            left_on="at",
            right_on="after",
            by=by,
            strategy="forward",
            check_sortedness=False,
        )
    )
    follows = known(pl.col("after") - pl.col("end") <= _FOLLOWS)
    last = ~pl.col("optype").is_in((_BEGIN, _END))
    stream = (
        pl.when(pl.col("optype").is_in(_SENDS)).then("optype").otherwise(pl.lit(""))
    )
    rows = rows.sort("start", "end").with_columns(
        before=pl.col("instance").shift(1).over("step", "rank", stream)
    )
    return rows.with_columns(
        held=pl.when(follows & last & (pl.col("end") > pl.col("ready"))).then("ready")
    )


def _transfers(cells: pl.DataFrame) -> pl.DataFrame:
    """Return the transfers of a step, one row for each, with their median by type."""
    return (
        cells.group_by("step", "instance")
        .agg(
            optype=pl.col("optype").min(),
            last=pl.col("start").max(),
            end=pl.col("end").min(),
        )
        .with_columns(end=pl.max_horizontal("end", "last"))
        .with_columns(transfer=pl.col("end") - pl.col("last"))
        .with_columns(usual=pl.col("transfer").median().over("optype"))
        .sort("step", "instance")
    )


def _meetings(cells: pl.DataFrame) -> pl.DataFrame:
    """Return the meetings of all ranks, with their own time before each."""
    columns = ["step", "rank", "dp_rank", "stage", "instance", "optype", "before"]
    rows = pl.concat(
        [
            cells.select(*columns, pl.lit(READY).alias("meeting"), at="ready"),
            cells.filter(pl.col("held").is_not_null()).select(
                *columns, pl.lit(RESUME).alias("meeting"), at="end"
            ),
        ]
    ).sort("step", "rank", "at", "meeting", maintain_order=True)
    held = cells.drop_nulls("held").select("step", "rank", start="held", end="end")
    spans = (
        held.sort("start")
        .with_columns(
            start=pl.max_horizontal(
                "start",
                pl.min_horizontal(
                    "end",
                    pl.col("end").cum_max().shift(1).over("step", "rank").fill_null(0),
                ),
            )
        )
        .filter(pl.col("end") > pl.col("start"))
        .with_columns(
            until=(pl.col("end") - pl.col("start")).cum_sum().over("step", "rank")
            - (pl.col("end") - pl.col("start"))
        )
    )
    joined = rows.sort("at", maintain_order=True).join_asof(
        spans,
        left_on="at",
        right_on="start",
        by=["step", "rank"],
        check_sortedness=False,
    )
    covered = pl.col("until").fill_null(0) + (
        pl.min_horizontal("at", "end") - pl.col("start")
    ).fill_null(0)
    order = pl.col("meeting") == RESUME
    return (
        joined.with_columns(free=pl.col("at") - covered)
        .sort("step", "rank", "at", order, maintain_order=True)
        .with_columns(
            own=pl.col("free").diff().over("step", "rank").fill_null(0),
            launched="at",
            issue=pl.lit(0, pl.Int64),
        )
        .with_row_index("row")
    )


def _rows_of(compute: pl.DataFrame, meetings: pl.DataFrame) -> pl.DataFrame:
    """Say before which meeting each compute op is done."""
    return compute.sort("end").join_asof(
        meetings.select("step", "rank", "row", at=pl.col("at") + _FOLLOWS // 4).sort(
            "at"
        ),
        left_on="end",
        right_on="at",
        by=["step", "rank"],
        strategy="forward",
        check_sortedness=False,
    )
