"""Analysis of a job: the verdict's figures, the stragglers and their causes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base.assumptions import (
    ALWAYS_LATE,
    STANDS_OUT,
    STRAGGLER,
    TOGETHER,
)
from traceq.ranks.columns import lowest, total
from traceq.ranks.counterfactual import WhatIf, WhatIfs
from traceq.ranks.experts import Experts, experts
from traceq.ranks.peers import IDEAL, stretches
from traceq.ranks.pipeline import Pipeline, pipeline, with_stages
from traceq.ranks.significance import surely_late
from traceq.ranks.straggler_cause import LINK, Cause, cause_of, slow_links
from traceq.ranks.timeline import PARTS
from traceq.ranks.waiting import rates

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceq.ranks.job import Job

# This many ranks are each tried alone; of more, those that are late most.
_TRIED, _TRIED_OF_MANY = 64, 16
_PAIR = 2
# From this many ranks on, how much they differ tells what is noise.
_MANY = 16
# A rank that is always late costs at least this part of what else makes a straggler.
_COSTS = 10
# Of a normal distribution: its deviation from the median deviation.
_MAD = 1.4826
# Sizes of the groups of ranks to try together, where none is late alone.
_SIZES = (2, 3, 4, 6, 8, 12, 16, 32, 64, 128, 256, 512)


@dataclass(frozen=True)
class Straggler:
    """A rank that the others wait for, or several that are late together."""

    ranks: tuple[int, ...]
    """Their rows."""
    saved_ns: float
    """Time that the window gets shorter by, if they are like their peers."""
    cause: Cause


@dataclass(frozen=True, eq=False)
class Analysis:
    """A job, analysed."""

    job: Job
    compared: pl.DataFrame
    """The stretches of all ranks with their peers' median; ``sure`` are those in which
    a rank is late by more than chance."""
    whatifs: WhatIfs
    stragglers: tuple[Straggler, ...]
    """Worst first."""
    by_rank: pl.DataFrame
    """A row for each rank: ``wait``, ``late`` (own time beyond its peers'), ``net``
    (the same less what it is faster elsewhere), ``stands_out`` (by how many deviations
    from the others), ``last`` (how often it came last), ``sure`` (whether it is late
    by more than chance), ``seen`` (in how many steps that was looked for) and ``saved``
    (null where it was not tried)."""
    changes: tuple[WhatIf, ...]
    """Machines, stages and causes."""
    rates: pl.DataFrame
    pipeline: Pipeline | None
    experts: Experts | None

    @property
    def steps(self) -> int:
        """Number of recorded steps that the window's time is divided by, at least 1."""
        return max(1, self.job.steps)

    @property
    def doubtful(self) -> int | None:
        """The rank that was late most, if that may be chance."""
        late = self.by_rank.filter(pl.col("saved") >= _least(self.whatifs))
        worst = late.sort("saved", "rank", descending=[True, False])["rank"]
        return None if self.stragglers or not len(worst) else int(worst[0])


def analyse(job: Job) -> Analysis:
    """Analyse a job."""
    job = with_stages(job)
    compared = stretches(job.meetings, job.collectives)
    compared = compared.join(
        surely_late(compared, job.collectives),
        on=["rank", "stretch"],
        how="left",
        maintain_order="left",
    ).with_columns(pl.col("sure").fill_null(value=False))
    whatifs = WhatIfs(job, compared)
    by_rank = _by_rank(job, compared, whatifs)
    return Analysis(
        job,
        compared,
        whatifs,
        tuple(_stragglers(job, compared, whatifs, by_rank)),
        by_rank,
        tuple(_changes(job, whatifs)),
        rates(job.collectives, _device(job), one_machine=_on_single_machine(job)),
        pipeline(job, whatifs),
        experts(job),
    )


def _device(job: Job) -> str:
    names = job.ranks["device"].mode().sort()
    return names[0] if len(names) else ""


def _on_single_machine(job: Job) -> bool:
    machines = job.ranks["machine"].unique()
    gpus = 8
    return len(machines) == 1 and job.ranks.height <= gpus


def _by_rank(job: Job, compared: pl.DataFrame, whatifs: WhatIfs) -> pl.DataFrame:
    late = compared.group_by("rank").agg(
        late=(pl.col("own") - pl.col(IDEAL)).clip(lower_bound=0).sum(),
        net=(pl.col("own") - pl.col(IDEAL)).sum(),
        own=pl.col("own").sum(),
        sure=pl.col("sure").any(),
        seen=pl.col("seen").max(),
    )
    waited = job.inside.group_by("rank").agg(
        pl.col("wait", "sending", "waited_exposed").sum(),
        exposed=(pl.col("exposed") - pl.col("waited_exposed")).sum(),
    )
    last = job.collectives.group_by(rank="late").agg(last=pl.len())
    rows = job.ranks.select("rank", "number")
    for part in (late, waited, last):
        rows = rows.join(part, on="rank", how="left", maintain_order="left")
    rows = rows.with_columns(
        pl.col("sure").fill_null(value=False),
        pl.exclude("rank", "number", "sure").fill_null(0),
    )
    beyond = pl.col("net") - pl.col("net").median()
    spread = _MAD * beyond.abs().median()
    rows = rows.with_columns(
        stands_out=pl.when(spread > 0).then(beyond / spread).otherwise(0.0)
    )
    most = _TRIED if rows.height <= _TRIED else _TRIED_OF_MANY
    tried = rows.sort("net", "rank", descending=[True, False])["rank"][:most]
    saved = {row: whatifs.ranks([row], "rank", str(row)).saved_ns for row in tried}
    return rows.with_columns(
        saved=pl.col("rank").replace_strict(
            saved, default=None, return_dtype=pl.Float64
        )
    )


def _stragglers(
    job: Job, compared: pl.DataFrame, whatifs: WhatIfs, by_rank: pl.DataFrame
) -> list[Straggler]:
    """Return the ranks that are late by enough to matter."""
    least, many = _least(whatifs), job.ranks.height >= _MANY
    surely = compared.filter("sure")
    by_rank = by_rank.filter("sure").join(_excess(surely), on="rank", how="left")
    by_rank = by_rank.with_columns(always=_always_late(whatifs, many=many))
    tried = by_rank.drop_nulls("saved")
    alone = tried.filter((pl.col("saved") >= least) | (pl.col("always") & many))
    stragglers = [
        Straggler((row,), saved, cause_of(job, surely, row))
        for row, always in alone.select("rank", "always").iter_rows()
        if (saved := whatifs.surely([row]).saved_ns) >= least or (always and many)
    ]
    if not stragglers:
        stragglers = _late_together(job, surely, whatifs, by_rank, least)
    if not (stragglers or many):
        stragglers = _late_by_some(job, surely, whatifs, by_rank.filter("always"))
    stragglers += _hidden(job, surely, whatifs, by_rank, stragglers)
    # Sets of ranks that could not be aligned may be in different parts of the program.
    if job.apart:
        return sorted(
            stragglers, key=lambda straggler: (-straggler.saved_ns, straggler.ranks)
        )
    slow, rows = slow_links(job)
    lost, link = total(slow["lost"]), whatifs.link()
    if rows and (link.saved_ns >= least or lost >= ALWAYS_LATE * whatifs.took):
        cause = Cause(LINK, lost, {}, 1.0)
        stragglers.append(Straggler(rows, link.saved_ns, cause))
    return sorted(
        stragglers, key=lambda straggler: (-straggler.saved_ns, straggler.ranks)
    )


def _excess(surely: pl.DataFrame) -> pl.DataFrame:
    """Return ``rank``, ``firm`` and ``excess``: by how much it is surely late.

    Noise of all its time may hide what one part of it is late by.
    """
    parts = [
        (pl.col(part) - pl.col(ideal)).sum()
        for part, ideal in (
            ("own", IDEAL),
            *((part, f"{IDEAL}_{part}") for part in PARTS),
        )
    ]
    return surely.group_by("rank").agg(
        pl.col("firm").any(), excess=pl.max_horizontal(parts)
    )


def _always_late(whatifs: WhatIfs, *, many: bool) -> pl.Expr:
    """Return which ranks are always late.

    Others are late by chance, each at another time, so that a rank that is always late
    by some costs less than that; it is a straggler all the same. One that is late by
    much more than all at the median save has the time for it: what it comes late to is
    not needed yet.
    """
    enough = ALWAYS_LATE * whatifs.took
    if many:
        return (pl.col("stands_out") >= STANDS_OUT / 2) & (pl.col("net") >= enough)
    return pl.col("firm") & pl.col("excess").is_between(
        enough, 2 * whatifs.all.saved_ns
    )


def _late_by_some(
    job: Job, surely: pl.DataFrame, whatifs: WhatIfs, always: pl.DataFrame
) -> list[Straggler]:
    """Return the ranks that are always late and cost a little, alone or together."""
    least = _least(whatifs) / _COSTS
    alone = [
        Straggler((row,), saved, cause_of(job, surely, row))
        for row in always["rank"]
        if (saved := whatifs.surely([row]).saved_ns) >= least
    ]
    return alone or _late_together(job, surely, whatifs, always, least)


def _hidden(
    job: Job,
    surely: pl.DataFrame,
    whatifs: WhatIfs,
    by_rank: pl.DataFrame,
    stragglers: Sequence[Straggler],
) -> list[Straggler]:
    """Return the ranks that cost nothing alone, as those that are later hide them."""
    rows = [row for straggler in stragglers for row in straggler.ranks]
    if not rows or job.ranks.height >= _MANY:
        return []
    hidden, saved = [], whatifs.surely(rows).saved_ns
    order = by_rank.sort("net", "rank", descending=[True, False])
    for row, always in order.select("rank", "always").iter_rows():
        if row in rows:
            continue
        more = whatifs.surely([*rows, row]).saved_ns - saved
        if more >= _least(whatifs) / (_COSTS if always else 1):
            hidden.append(Straggler((row,), more, cause_of(job, surely, row)))
            rows, saved = [*rows, row], saved + more
    return hidden


def _least(whatifs: WhatIfs) -> float:
    """Return the minimum cost of a straggler, of the window."""
    return max(1.0, STRAGGLER * whatifs.took)


def _late_together(
    job: Job,
    surely: pl.DataFrame,
    whatifs: WhatIfs,
    by_rank: pl.DataFrame,
    least: float,
) -> list[Straggler]:
    """Return ranks of which none alone costs much, as the others are as late."""
    if job.ranks.height >= _MANY:
        by_rank = by_rank.filter(pl.col("stands_out") >= STANDS_OUT / 2)
    order = by_rank.sort("late", "rank", descending=[True, False])["rank"].to_list()
    most = max(_PAIR, job.ranks.height // 4)
    sizes = [size for size in _SIZES if size <= min(most, len(order))]
    # In a large job chance makes many ranks late, and some of them cost a little.
    enough = TOGETHER * whatifs.all.saved_ns if job.ranks.height >= _MANY else 0.0
    for size in sizes:
        rows = tuple(sorted(order[:size]))
        saved = whatifs.surely(rows).saved_ns
        if saved >= max(least, enough):
            return [Straggler(rows, saved, cause_of(job, surely, order[0]))]
    return []


def _changes(job: Job, whatifs: WhatIfs) -> list[WhatIf]:
    """Return the costs of machines, stages and causes."""
    changes = whatifs.causes()
    for of in ("machine", "stage"):
        groups = job.ranks.group_by(of, maintain_order=True).agg("rank")
        if 1 < groups.height < job.ranks.height:
            changes += [
                whatifs.ranks(rows, of, str(name)) for name, rows in groups.iter_rows()
            ]
    return changes


def by_kind(job: Job) -> pl.DataFrame:
    """Return the collectives of the window by ``kind``, the longest first.

    ``calls`` is how many a step has; ``length``, ``wait`` and ``exposed``, the transfer
    that compute does not hide, are of all their ``ranks`` together.
    """
    return (
        job.inside.drop("kind")
        .join(job.collectives.select("instance", "kind"), on="instance")
        .group_by("kind")
        .agg(
            length=(pl.col("end") - pl.col("start")).sum(),
            wait=pl.col("wait").sum(),
            exposed=(pl.col("exposed") - pl.col("waited_exposed")).sum(),
            ranks=pl.col("rank").n_unique(),
        )
        .join(job.calls, on="kind", how="left")
        .sort("length", "kind", descending=[True, False])
    )


def heat(job: Job, columns: int, rows: Sequence[int] | None = None) -> pl.DataFrame:
    """Return the share of each slice of the window that ranks waited: ranks by time.

    The result has ``rank`` and ``waiting``, a list of shares; the ranks in the order of
    their numbers.
    """
    ends = job.collectives["end"]
    if not ends.len():
        return pl.DataFrame(schema={"rank": pl.Int64, "waiting": pl.List(pl.Float64)})
    begin, width = lowest(ends), max(1, -(-job.window_ns // columns))
    spans = job.cells.filter(pl.col("wait") > 0).select(
        "rank",
        start=pl.col("start") - begin,
        end=pl.col("start") + pl.col("wait") - begin,
    )
    if rows is not None:
        spans = spans.filter(pl.col("rank").is_in(list(rows)))
    pieces = (
        spans.filter(pl.col("end") > 0)
        .with_columns(pl.col("start").clip(lower_bound=0))
        .with_columns(
            slice=pl.int_ranges(
                pl.col("start") // width, (pl.col("end") - 1) // width + 1
            )
        )
        .explode("slice")
        .filter(pl.col("slice") < columns)
    )
    inside = pl.min_horizontal(
        "end", (pl.col("slice") + 1) * width
    ) - pl.max_horizontal("start", pl.col("slice") * width)
    shares = pieces.group_by("rank", "slice").agg(share=inside.sum() / width)
    grid = job.ranks.select("rank", "number").join(
        pl.DataFrame({"slice": range(columns)}, schema={"slice": pl.Int64}), how="cross"
    )
    if rows is not None:
        grid = grid.filter(pl.col("rank").is_in(list(rows)))
    return (
        grid.join(shares, on=["rank", "slice"], how="left")
        .sort("number", "slice")
        .group_by("rank", "number", maintain_order=True)
        .agg(waiting=pl.col("share").fill_null(0.0).clip(0.0, 1.0))
        .select("rank", "waiting")
    )
