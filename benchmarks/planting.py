"""Jobs made of copies of a real rank, one of which is late by something planted.

What is planted changes the rank's trace: kernels take longer, the host sleeps, loads
data or calls cudaMalloc. The trace becomes a digest as any other. Then the ranks' own
times, with noise, are run as a job in which every collective holds its ranks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

import polars as pl

from traceq.inputs.load_trace import load
from traceq.ranks.collectives import COLLECTIVES
from traceq.ranks.columns import total
from traceq.ranks.digest import TABLES, Digest, encoded, make_digest
from traceq.ranks.timeline import MEETINGS, PARTS, READY, RESUME

if TYPE_CHECKING:
    import random
    from collections.abc import Mapping
    from pathlib import Path

    from traceq.model.trace import Trace

SLOWER, SLEEP, DATA, MALLOC, LINK = "slower", "sleep", "data", "malloc", "link"
PLANTS = {
    SLOWER: "slower kernels",
    SLEEP: "host",
    DATA: "data",
    MALLOC: "allocation",
    LINK: "link",
}
"""What can be planted, and what the cause is called."""
RANKS = 64
_SIDE = 8
_NOISE = 0.02
_TIMES = ("ops", "kernels", "runtime", "annotations", "frames", "memory", "other")
_REGION = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"


@dataclass(frozen=True, eq=False)
class Copied:
    """A real rank, ready to be copied."""

    trace: Trace
    digest: Digest

    @property
    def stretches(self) -> pl.DataFrame:
        """The rank's own time from one collective to the next, by part."""
        return own_times(self.digest)

    @property
    def step_ns(self) -> float:
        """What a step of the copies takes, without noise."""
        collectives = self.digest.table("collectives")
        length = (collectives["end"] - collectives["start"]).sum()
        own = self.stretches.select(pl.sum_horizontal(PARTS).sum()).item()
        return float(own + length) / max(1, collectives["step"].n_unique())


@cache
def copied(path: Path) -> Copied:
    """Read a rank; what was launched before the recording is left out."""
    trace = load(path)
    work = pl.col("kind") != "communication"
    retained = trace.kernels.filter(work | pl.col("launch").is_not_null())
    trace = replace(
        trace, kernels=retained.with_columns(id=pl.int_range(pl.len(), dtype=pl.UInt32))
    )
    return Copied(trace, Digest(make_digest(trace, findings=False)))


def own_times(digest: Digest) -> pl.DataFrame:
    """Return the parts of a rank's own time before each of its collectives."""
    meetings = digest.table("meetings").with_columns(
        ends=(pl.col("meeting") == READY).cast(pl.UInt32)
    )
    return (
        meetings.with_columns(stretch=pl.col("ends").cum_sum() - pl.col("ends"))
        .group_by("stretch", maintain_order=True)
        .agg(
            pl.col(PARTS).sum(),
            pl.col("collective").filter(pl.col("ends") > 0).first(),
            pl.col("region", "file", "line", "function")
            .sort_by(pl.sum_horizontal(PARTS))
            .last(),
        )
        .drop_nulls("collective")
        .sort("collective")
    )


def planted(rank: Copied, plant: str, delay_ns: float) -> Digest:
    """Return the digest of the rank with a delay in each step; a link's is not here."""
    trace = rank.trace
    if plant == LINK:
        return rank.digest
    if plant == SLOWER:
        kernels = trace.kernels.filter(
            pl.col("kind") != "communication", pl.col("step").is_not_null()
        )
        steps = max(1, kernels["step"].n_unique())
        share = delay_ns * steps / total(kernels["dur"])
        jumps = kernels.select(
            at=pl.col("ts") + pl.col("dur") - 1,
            by=(pl.col("dur") * share).round().cast(pl.Int64),
        )
        return Digest(make_digest(_moved(trace, jumps), findings=False))
    return Digest(make_digest(_idle(trace, rank, plant, delay_ns), findings=False))


def delay_ns(rank: Copied, late: Digest) -> int:
    """Return by how much what is planted delays the last step of a rank.

    Where the GPU never idles for the host, nothing that the host does delays it.
    """
    rows = _last_step(rank.digest.table("collectives"))
    before, after = (
        own_times(digest)[rows].select(pl.sum_horizontal(PARTS).sum()).item()
        for digest in (rank.digest, late)
    )
    return int(after - before)


def _moments(rank: Copied) -> pl.DataFrame:
    """Return a moment in each step at which the GPU idles for the host."""
    collectives = rank.digest.table("collectives").drop_nulls("launched")
    work = rank.trace.kernels.select("ts", end=pl.col("ts") + pl.col("dur"))
    before = pl.col("launched") - 2_000
    free = [
        not work.filter(pl.col("ts") <= at, pl.col("end") >= at).height
        for at in collectives.select(before).to_series()
    ]
    idle = collectives.with_columns(at=before).filter(pl.Series(free))
    return idle.group_by("step", maintain_order=True).agg(pl.col("at").last())


def _idle(trace: Trace, rank: Copied, plant: str, delay_ns: float) -> Trace:
    """Let the host do something for a while, which the GPU waits for."""
    moments = _moments(rank)
    by = round(delay_ns)
    moved = _moved(trace, moments.select("at", by=pl.lit(by)))
    shift = pl.int_range(pl.len()) * by
    thread = int(trace.runtime["thread"].mode()[0])
    spans = moments.with_columns(ts=pl.col("at") + shift + 1)
    if plant == MALLOC:
        call = trace.runtime.filter(pl.col("name") == "cudaMalloc").head(1)
        call = call if call.height else trace.runtime.head(1)
        rows = call.join(spans.select(begin="ts"), how="cross").with_columns(
            ts="begin",
            dur=pl.lit(by - 2),
            thread=pl.lit(thread, pl.UInt32),
            name=pl.lit("cudaMalloc").cast(pl.Categorical),
            call=pl.lit("allocation").cast(trace.runtime.schema["call"]),
            kernels=pl.lit(0, pl.UInt32),
        )
        return replace(moved, runtime=_with(moved.runtime, rows))
    if plant == DATA:
        region = trace.annotations.filter(~pl.col("on_gpu")).head(1)
        rows = region.join(spans.select(begin="ts"), how="cross").with_columns(
            ts="begin",
            dur=pl.lit(by - 2),
            thread=pl.lit(thread, pl.UInt32),
            name=pl.lit(_REGION).cast(pl.Categorical),
        )
        return replace(moved, annotations=_with(moved.annotations, rows))
    return moved


def _with(table: pl.DataFrame, rows: pl.DataFrame) -> pl.DataFrame:
    both = pl.concat([table, rows.select(table.columns).cast(table.schema)])
    return both.with_columns(id=pl.int_range(pl.len(), dtype=pl.UInt32))


def _moved(trace: Trace, jumps: pl.DataFrame) -> Trace:
    """Return a trace in which time stands still at some moments, for a while."""
    ordered = jumps.sort("at").with_columns(moved=pl.col("by").cum_sum())

    def later(times: pl.Series) -> pl.Series:
        before = ordered["at"].search_sorted(times, side="left").cast(pl.Int64) - 1
        by = ordered["moved"].gather(
            pl.select(pl.when(before >= 0).then(before)).to_series()
        )
        return times + by.fill_null(0)

    def moved(table: pl.DataFrame) -> pl.DataFrame:
        start, end = later(table["ts"]), later(table["ts"] + table["dur"])
        return table.with_columns(ts=start, dur=end - start)

    tables = {name: getattr(trace, name) for name in _TIMES}
    shifted = {
        name: moved(table) if "dur" in table.columns else table
        for name, table in tables.items()
    }
    steps = trace.steps.with_columns(
        start=later(trace.steps["start"]), end=later(trace.steps["end"])
    )
    return replace(trace, steps=steps, **shifted)  # type: ignore[arg-type]  # tables


def job(  # noqa: PLR0913 - what is planted, and where
    rank: Copied,
    chance: random.Random,
    *,
    plant: str | None = None,
    late: int = 0,
    delay_ns: float = 0.0,
    ranks: int = RANKS,
) -> list[Digest]:
    """Return the digests of copies with noise, one of them late by what is planted."""
    if plant == LINK:
        return _job(rank, {}, chance, ranks=ranks, slow=late, delay_ns=delay_ns)
    plants = {} if plant is None else {late: planted(rank, plant, delay_ns)}
    return _job(rank, plants, chance, ranks=ranks)


def job_of_steps(
    rank: Copied,
    late: Mapping[int, Digest],
    chance: random.Random,
    *,
    ranks: int,
    steps: int,
) -> list[Digest]:
    """Return copies of one step, n times, some ranks late by what is planted."""
    return _job(rank, late, chance, ranks=ranks, steps=steps)


def _job(  # noqa: PLR0913 - what is planted, and where
    rank: Copied,
    late: Mapping[int, Digest],
    chance: random.Random,
    *,
    ranks: int,
    steps: int | None = None,
    slow: int | None = None,
    delay_ns: float = 0.0,
) -> list[Digest]:
    base = rank.digest.table("collectives")
    rows = list(range(base.height)) if steps is None else _last_step(base) * steps
    own = [
        _noisy(own_times(late.get(row, rank.digest))[rows], chance)
        for row in range(ranks)
    ]
    base = base[rows]
    if steps is not None:
        each = base.height // steps
        base = base.with_columns(step=pl.int_range(pl.len(), dtype=pl.Int64) // each)
    lengths = (base["end"] - base["start"]).to_list()
    grid = slow is not None
    extra = delay_ns * max(1, base["step"].n_unique()) / len(lengths) if grid else 0.0
    arrivals, ends = _run(own, lengths, slow, extra)
    return [
        _digest(
            rank.digest.rank | {"rank": row, "world_size": ranks},
            _collectives(base, row, arrivals[row], ends[row], ranks, grid=grid),
            _meetings(own[row], arrivals[row], ends[row]),
            late.get(row, rank.digest).table("kernels"),
        )
        for row in range(ranks)
    ]


def _last_step(base: pl.DataFrame) -> list[int]:
    """Return the rows of the last step; the first one began before its window."""
    numbered = base.with_row_index("row").drop_nulls("step")
    return numbered.filter(pl.col("step") == pl.col("step").max())["row"].to_list()


def _noisy(times: pl.DataFrame, chance: random.Random) -> pl.DataFrame:
    factor = pl.Series(
        [max(0.5, chance.gauss(1.0, _NOISE)) for _ in range(times.height)]
    )
    return times.with_columns(
        (pl.col(part) * factor).round().cast(pl.Int64) for part in PARTS
    )


def group_of(row: int, at: int, *, grid: bool) -> tuple[str, list[int]]:
    """Return name and ranks of a rank's group at a collective: rows, then columns."""
    if not grid:
        return "0", list(range(RANKS))
    if at % 2:
        return f"column {row % _SIDE}", list(range(row % _SIDE, RANKS, _SIDE))
    first = row // _SIDE * _SIDE
    return f"row {row // _SIDE}", list(range(first, first + _SIDE))


def _run(
    own: list[pl.DataFrame], lengths: list[int], slow: int | None, extra: float
) -> tuple[list[list[int]], list[list[int]]]:
    """Run the job: when each rank comes to each collective, and when that is done."""
    ranks = len(own)
    grid = slow is not None
    works = [
        times.select(pl.sum_horizontal(PARTS)).to_series().to_list() for times in own
    ]
    now = [0] * ranks
    arrivals: list[list[int]] = [[] for _ in own]
    ends: list[list[int]] = [[] for _ in own]
    for at, length in enumerate(lengths):
        came = [now[row] + works[row][at] for row in range(ranks)]
        done: dict[str, int] = {}
        for row in range(ranks):
            name, members = group_of(row, at, grid=grid)
            if name not in done:
                chosen = [member for member in members if member < ranks]
                longer = extra if slow in chosen else 0.0
                done[name] = max(came[number] for number in chosen) + round(
                    length + longer
                )
            arrivals[row].append(came[row])
            ends[row].append(done[name])
            now[row] = done[name]
    return arrivals, ends


def _collectives(  # noqa: PLR0913 - all that makes a rank
    base: pl.DataFrame,
    row: int,
    came: list[int],
    done: list[int],
    ranks: int,
    *,
    grid: bool,
) -> pl.DataFrame:
    """Return a rank's collectives, each of which held it."""
    groups = [group_of(row, at, grid=grid) for at in range(len(came))]
    names = pl.Series([name for name, _ in groups])
    return (
        base.with_columns(
            launched=pl.Series(came) - 5_000,
            ready=pl.Series(came),
            start=pl.Series(came),
            end=pl.Series(done),
            held=pl.Series(came),
            exposed=pl.Series(done) - pl.Series(came),
            stream=pl.lit(20, pl.Int64),
            group=names,
            lane=names,
            group_size=pl.lit(_SIDE if grid else ranks, pl.Int64),
            group_ranks=pl.Series([members[:30] for _, members in groups]),
            number=pl.int_range(pl.len(), dtype=pl.Int64),
        )
        .select(list(COLLECTIVES))
        .cast(COLLECTIVES)
    )


def _meetings(own: pl.DataFrame, came: list[int], done: list[int]) -> pl.DataFrame:
    ready = own.with_columns(
        collective=pl.int_range(pl.len(), dtype=pl.Int32),
        meeting=pl.lit(READY),
        at=pl.Series(came),
        issue=pl.lit(0, pl.Int64),
    )
    resumed = ready.with_columns(
        *(pl.lit(0, pl.Int64).alias(part) for part in PARTS),
        meeting=pl.lit(RESUME),
        at=pl.Series(done),
    )
    both = pl.concat([ready, resumed]).select(list(MEETINGS)).cast(MEETINGS)
    return both.sort("collective", "meeting")


def _digest(
    known: dict[str, Any],
    collectives: pl.DataFrame,
    meetings: pl.DataFrame,
    kernels: pl.DataFrame,
) -> Digest:
    steps = collectives.group_by("step", maintain_order=True).agg(
        pl.col("start").first(), pl.col("end").last(), gpu_busy=pl.lit(0, pl.Int64)
    )
    tables = {
        "steps": steps.select(list(TABLES["steps"])),
        "collectives": collectives,
        "meetings": meetings,
        "kernels": kernels,
        "findings": pl.DataFrame(schema=TABLES["findings"]),
    }
    more = {
        "path": f"rank{known['rank']}.json",
        "start_ns": 1_700_000_000_000_000_000,
        "collectives": collectives.height,
        "collectives_kept": collectives.height,
    }
    return Digest(encoded(known | more, tables))


def renumbered(digest: Digest, number: int, world: int) -> Digest:
    """Return a digest as that of another rank of a larger job.

    Ranks of 64 stay together in their collectives; a last one of each step, of all, is
    not among them, so that jobs of 64 are groups of the larger one.
    """
    block = number // RANKS
    tables = {name: digest.table(name) for name in TABLES}
    name = pl.format("{} of {}", "group", pl.lit(block))
    tables["collectives"] = tables["collectives"].with_columns(group=name, lane=name)
    known = digest.rank | {
        "rank": number,
        "world_size": world,
        "path": f"rank{number}.json",
    }
    return Digest(encoded(known, tables))
