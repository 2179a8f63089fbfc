"""Jobs: from the digests of the ranks to the analysis."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from statistics import median as middle
from typing import TYPE_CHECKING, Any

import polars as pl

from traceq.analysis.base.assumptions import ALIGNED_END_NS
from traceq.common.expressions import known
from traceq.errors import InputError, UsageError
from traceq.ranks import notices
from traceq.ranks.clock_steps import STEP
from traceq.ranks.clocks import clocks, on_one_clock
from traceq.ranks.columns import highest, lowest
from traceq.ranks.matching import matched
from traceq.ranks.peers import slots, with_stretches
from traceq.ranks.timeline import PARTS, READY
from traceq.ranks.waiting import impossible, instances, waits

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from traceq.ranks.digest import Digest
    from traceq.ranks.notices import Unread

# Ends differ by this much where a collective lets its ranks go one by one.
_TOLERATED = 40 * ALIGNED_END_NS
# More than any rank: traces that do not say theirs stay in the order they came in.
_UNNUMBERED = 1 << 40


@dataclass(frozen=True, eq=False)
class Job:
    """A job on one clock: its ranks, and what they did together."""

    ranks: pl.DataFrame
    """A row for each rank: ``rank`` (the row), ``number``, ``path``, ``machine``,
    ``device``, ``step_ns``, and its clock."""
    cells: pl.DataFrame
    """The ranks' parts of collectives: COLLECTIVES, ``rank``, ``instance``, ``wait``,
    ``sending`` and ``waited_exposed``; only of collectives that others took part in."""
    collectives: pl.DataFrame
    """The collectives, as ``waiting.instances`` returns them, with their slots."""
    meetings: pl.DataFrame
    """The meetings of all ranks, with their own time and stretch."""
    matched_by: Mapping[str, int]
    unmatched: int
    """Number of parts of collectives without any other known participant."""
    notices: tuple[str, ...]
    """Sentences on what is missing, differs or could not be done."""
    digests: tuple[Digest, ...] = field(repr=False, default=())
    """By row of the rank."""
    apart: tuple[tuple[int, ...], ...] = ()
    """Sets of ranks, by row, that could not be aligned with each other."""

    @property
    def steps(self) -> int:
        """Number of recorded steps whose collectives are compared; 0 if unknown."""
        return self.inside["step"].drop_nulls().n_unique() if self.step_ns else 0

    @property
    def step_ns(self) -> int | None:
        """Duration of a step: the median over the ranks' steps, as recorded."""
        median = self.ranks["step_ns"].median()
        return round(median) if isinstance(median, float) else None

    @property
    def has_gpus(self) -> bool:
        """True if it ran on GPUs; gloo also connects processes without any."""
        return any(self.ranks["device"])

    @property
    def measured_step_ns(self) -> int | None:
        """The median of what a step takes without the profiler, if all ranks know."""
        times = [digest.rank["step_ns"] for digest in self.digests]
        return round(middle(times)) if times and all(times) else None

    @property
    def window_ns(self) -> int:
        """From the end of the first collective to the end of the last one."""
        if not self.collectives.height:
            return 0
        ends = self.collectives["end"]
        return highest(ends) - lowest(ends)

    @property
    def inside(self) -> pl.DataFrame:
        """The cells of the window, whose time can be divided by its steps.

        The window begins when the first collective ends, which is not in it. Neither is
        what was launched before the first recorded step, where others were not.
        """
        if not self.window_ns:
            return self.cells
        first = self.collectives.filter(pl.col("end") == pl.col("end").min())
        cells = self.cells.join(first, on="instance", how="anti")
        stepped = self.collectives.drop_nulls("step")
        return (
            cells.join(stepped, on="instance", how="semi") if stepped.height else cells
        )

    @property
    def calls(self) -> pl.DataFrame:
        """Number of collectives a step by ``kind``: ``calls``; of all if none is known.

        The first one counts here: it is in its step, though it opens the window.
        """
        stepped = self.collectives.drop_nulls("step")
        rows = stepped if stepped.height and self.step_ns else self.collectives
        steps = max(1, rows["step"].drop_nulls().n_unique()) if self.step_ns else 1
        return rows.group_by("kind").agg(calls=pl.len() / steps)


def jobs_of(digests: Iterable[Digest]) -> list[list[Digest]]:
    """Sort digests into jobs, the largest first.

    Ranks of one job have one world size, and no rank is twice in it: of two recordings
    of the same rank the earlier one belongs to the earlier job.
    """
    by_world: dict[Any, dict[Any, list[Digest]]] = defaultdict(
        lambda: defaultdict(list)
    )
    unnumbered = 0
    for digest in digests:
        facts = digest.rank
        number = facts["rank"]
        if number is None:
            unnumbered += 1
            number = _UNNUMBERED + unnumbered
        by_world[facts["world_size"]][number].append(digest)
    jobs: list[list[Digest]] = []
    for ranks in by_world.values():
        times = max(map(len, ranks.values()))
        split: list[list[Digest]] = [[] for _ in range(times)]
        for number in sorted(ranks):
            recorded = sorted(ranks[number], key=lambda one: one.rank["start_ns"] or 0)
            for at, digest in enumerate(recorded):
                split[at].append(digest)
        jobs += split
    return sorted(jobs, key=len, reverse=True)


def assemble(digests: Sequence[Digest], unread: Sequence[Unread] = ()) -> Job:
    """Match what ranks did together, and put it on one clock.

    Where digests are of several jobs it is the largest one, and the others are said.
    """
    if not digests:
        msg = "no rank could be read: " + "; ".join(
            f"{item.path}: {item.reason}" for item in unread
        )
        raise InputError(msg)
    own, *others = jobs_of(digests)
    if len(own) == 1 and not others:
        msg = (
            f"{own[0].rank['path']} is one rank: give the traces of several ranks of"
            " a job, or lint it alone"
        )
        raise UsageError(msg)
    ranks = _ranks(own)
    cells = _cells(own, ranks)
    matches = matched(cells)
    clock = clocks(matches.cells)
    if _shares_clock(ranks) or _share_an_export(own):
        clock = clock.with_columns(
            offset=pl.lit(0, pl.Int64),
            drift=pl.lit(0.0),
            error=pl.lit(0.0),
            **{STEP: pl.lit(0, pl.Int64)},
        )
    aligned = on_one_clock(matches.cells, clock)
    world = own[0].rank["world_size"]
    all_here = not world or len(own) >= world
    together = instances(aligned, all_here=all_here)
    misfits = impossible(together, _TOLERATED)
    if len(misfits):
        fits = ~pl.col("instance").is_in(misfits.implode())
        aligned = _renumbered(
            aligned.with_columns(instance=pl.when(fits).then("instance"))
        )
        together = instances(aligned, all_here=all_here)
    slotted = slots(together)
    waited = waits(aligned, slotted)
    meetings = _meetings(own, ranks, _without_buffered(aligned, together), clock)
    return Job(
        ranks.join(clock, on="rank", how="left", maintain_order="left"),
        waited,
        slotted,
        meetings,
        matches.by,
        aligned["instance"].null_count(),
        (
            *notices.on_ranks(own, others, unread, ranks),
            *notices.on_matches(matches, len(misfits), together.height, ranks),
            *notices.on_unknown_ranks(meetings, ranks),
        ),
        tuple(own),
        _apart(aligned) if matches.splits or not together.height else (),
    )


def _apart(cells: pl.DataFrame) -> tuple[tuple[int, ...], ...]:
    """Return the sets of ranks between which no collective was matched, if several."""
    sets: list[set[int]] = [{row} for row in cells["rank"].unique().sort()]
    shared = cells.drop_nulls("instance").group_by("instance").agg("rank")["rank"]
    for members in map(set, shared.unique().to_list()):
        touched = [item for item in sets if item & members]
        sets = [item for item in sets if not item & members]
        sets.append(set().union(*touched))
    return tuple(sorted(tuple(sorted(item)) for item in sets)) if len(sets) > 1 else ()


def _renumbered(cells: pl.DataFrame) -> pl.DataFrame:
    numbers = (
        cells.select(pl.col("instance").drop_nulls().unique().sort())
        .with_row_index("again")
        .select("instance", "again")
    )
    return (
        cells.join(numbers, on="instance", how="left", maintain_order="left")
        .drop("instance")
        .rename({"again": "instance"})
    )


def _ranks(digests: Sequence[Digest]) -> pl.DataFrame:
    rows = []
    for at, digest in enumerate(digests):
        facts, steps = digest.rank, digest.table("steps")
        length = (steps["end"] - steps["start"]).median() if steps.height else None
        rows.append(
            {
                "rank": at,
                "number": facts["rank"] if facts["rank"] is not None else at,
                "path": facts["path"],
                "machine": facts["machine"],
                "device": facts["device"],
                "start_ns": facts["start_ns"],
                "collectives": facts["collectives"],
                "kept": facts["collectives_kept"],
                "steps": steps.height,
                "step_ns": length,
            }
        )
    return pl.DataFrame(
        rows,
        schema={
            "rank": pl.Int64,
            "number": pl.Int64,
            "path": pl.String,
            "machine": pl.String,
            "device": pl.String,
            "start_ns": pl.Int64,
            "collectives": pl.Int64,
            "kept": pl.Int64,
            "steps": pl.Int64,
            "step_ns": pl.Float64,
        },
    )


def _shares_clock(ranks: pl.DataFrame) -> bool:
    """Return whether all times are of one machine's host, which has one clock.

    GPUs of one machine have clocks of their own.
    """
    machines = ranks["machine"].unique().to_list()
    return len(machines) == 1 and bool(machines[0]) and not any(ranks["device"])


def _share_an_export(digests: Sequence[Digest]) -> bool:
    """Return whether all ranks are of one export, which has one clock."""
    clocks_of_ranks = {digest.rank.get("clock") for digest in digests}
    return len(clocks_of_ranks) == 1 and all(clocks_of_ranks)


def starts(ranks: pl.DataFrame) -> list[int]:
    """Return the start of each rank's times, from the first of all ranks."""
    recorded = ranks["start_ns"].drop_nulls()
    first = lowest(recorded)
    return [(start or first) - first for start in ranks["start_ns"]]


def _together(
    digests: Sequence[Digest], table: str, starts: Sequence[int]
) -> pl.DataFrame:
    """Return one table of all ranks, with ``rank`` and ``begin``, where it starts."""
    parts = [digest.table(table) for digest in digests]
    owners = pl.DataFrame(
        {
            "rank": range(len(digests)),
            "begin": starts,
            "rows": [part.height for part in parts],
        },
        schema={"rank": pl.Int64, "begin": pl.Int64, "rows": pl.UInt32},
    ).filter(pl.col("rows") > 0)
    of_row = owners.select(pl.col("rank", "begin").repeat_by("rows").explode())
    return pl.concat([pl.concat(parts), of_row], how="horizontal")


def _cells(digests: Sequence[Digest], ranks: pl.DataFrame) -> pl.DataFrame:
    times = ("launched", "ready", "start", "end", "held")
    firsts = {digest.rank.get("first_step") for digest in digests}
    same = firsts.pop() if len(firsts) == 1 else None
    return (
        _together(digests, "collectives", starts(ranks))
        .with_columns(
            pl.col(times) + pl.col("begin"),
            collective=pl.int_range(pl.len(), dtype=pl.UInt32).over("rank"),
            number_of_rank=pl.col("rank").replace_strict(
                ranks["rank"], ranks["number"], return_dtype=pl.Int64
            ),
            first_step=pl.lit(same, pl.Int64),
        )
        .drop("begin")
        .with_row_index("cell")
    )


def _without_buffered(aligned: pl.DataFrame, together: pl.DataFrame) -> pl.DataFrame:
    """Return cells with ``buffered``: sends that were done before the receiver came."""
    last = together.select("instance", came="last")
    return aligned.join(
        last, on="instance", how="left", maintain_order="left"
    ).with_columns(
        buffered=known((pl.col("kind") == "send") & (pl.col("end") < pl.col("came")))
    )


def _meetings(
    digests: Sequence[Digest],
    ranks: pl.DataFrame,
    aligned: pl.DataFrame,
    clock: pl.DataFrame,
) -> pl.DataFrame:
    """Return the meetings of all ranks on one clock, with their instances."""
    rows = (
        _together(digests, "meetings", starts(ranks))
        .with_columns(
            pl.col("at") + pl.col("begin"), pl.col("collective").cast(pl.UInt32)
        )
        .drop("begin")
    )
    before = pl.col("instance").forward_fill().shift(1).over("rank", "stream")
    parts = aligned.sort("rank", "start", "cell").select(
        "rank",
        "collective",
        "instance",
        "launched",
        "buffered",
        before=before,
        length=pl.col("end") - pl.col("held"),
    )
    joined = on_one_clock(rows, clock).join(
        parts, on=["rank", "collective"], how="left", maintain_order="left"
    )
    # A rank that was held by ranks that are not known takes that time as it is.
    alone = pl.col("instance").is_null() & (pl.col("meeting") != READY)
    elsewhere = pl.when(alone).then("length").otherwise(0)
    waited = (pl.col("meeting") == READY) | ~pl.col("buffered").fill_null(value=False)
    return with_stretches(
        joined.filter(waited)
        .with_columns(elsewhere=elsewhere, stage=pl.lit(0, pl.Int32))
        .with_columns(own=pl.sum_horizontal(*PARTS, "elsewhere"))
        .drop("length", "buffered")
    )
