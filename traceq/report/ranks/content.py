"""Content of a job's report: verdict, facts, tables and heat map."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base.assumptions import ALWAYS_LATE, STRAGGLER
from traceq.common import units
from traceq.common.safe_text import printable
from traceq.common.words import counted
from traceq.ranks.analysis import by_kind, heat
from traceq.ranks.clock_steps import STEP
from traceq.ranks.columns import highest, median, total
from traceq.ranks.straggler_cause import LINK, MORE, SLOWER, UNATTRIBUTED
from traceq.ranks.timeline import ALLOCATION, COMPUTE, DATA, HOST, STALLED, SYNC
from traceq.report.base.columns import Column
from traceq.report.base.content import Content, TextTable
from traceq.report.base.text import at

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from traceq.ranks.analysis import Analysis, Straggler
    from traceq.ranks.job import Job

_MOST_RANKS = 16
_MOST_LINES = 24
_LISTED = 8
_SHADES = " ░▒▓█"
_HEAT = 64
_WORTH = 0.001
# The mean of the steps is shown beside their median where it differs by this share.
_DIFFERS = 0.05
# Below this many steps it is not known whether they are typical.
_FEW_STEPS = 3
# A slowdown without a straggler beyond this one is taken apart, into at most n parts.
_LARGE = 1.1
_PARTS = 3
# Sets of ranks to name that could not be aligned with each other.
_SETS = 3
CHANGES = "at the median of the peers"
"""Subject of the table of what-ifs."""

IN_WORDS = {
    SLOWER: "the same kernels take longer (clocks, temperature, power)",
    MORE: "it computes more (data, sequence lengths, experts)",
    COMPUTE: "GPU compute",
    STALLED: "the GPU does not begin work that is queued (another process on it?)",
    HOST: "the GPU idles for the host",
    DATA: "the GPU idles while the host loads data",
    ALLOCATION: "the GPU idles while the host allocates or frees memory",
    SYNC: "the GPU idles after syncs",
    LINK: "its collectives take longer than the same ones elsewhere (the link)",
    UNATTRIBUTED: "no single part of its time explains it",
}
"""Meaning of each cause."""


@dataclass(frozen=True)
class RanksContent:
    """Content of every format that people read."""

    verdict: str
    screen: Content
    heat: tuple[tuple[str, str], ...]
    """Name of the rank, and how much it waits, a character for a slice of the window.
    """
    notes: tuple[str, ...]


def content(analysis: Analysis) -> RanksContent:
    """Return the words on a job."""
    tables = (
        [
            _ranks(analysis),
            _changes(analysis),
            _collectives(analysis),
            _links(analysis),
        ]
        if analysis.job.collectives.height
        else []
    )
    return RanksContent(
        verdict(analysis),
        Content(
            title=printable(_title(analysis)),
            warnings=(),
            facts=tuple((label, printable(text)) for label, text in _facts(analysis)),
            tables=tuple(table for table in tables if table.rows),
        ),
        tuple(_heat(analysis)),
        tuple(map(printable, analysis.job.notices)),
    )


def verdict(analysis: Analysis) -> str:
    """Return the one sentence that says whether ranks hold each other up, and why."""
    if not analysis.stragglers:
        return printable(_nobody(analysis))
    worst, *others = analysis.stragglers
    few = 0 < analysis.job.steps < _FEW_STEPS
    those = "this step" if analysis.job.steps == 1 else "these steps"
    who = named(analysis, worst.ranks)
    rows = sorted({row for other in others for row in other.ranks} - {*worst.ranks})
    so = "; so " + ("does " if len(rows) == 1 else "do ") if rows else ""
    return printable(
        f"{f'In {those} {who.lower()}' if few else who} of {analysis.job.ranks.height}"
        f" {_holds(analysis, worst)}; {why(analysis, worst)}"
        f"{so + named(analysis, rows).lower() if rows else ''}"
        f"{'; whether that is typical is unknown' if few else ''}."
    )


def _holds(analysis: Analysis, worst: Straggler) -> str:
    """Return by how much ranks hold the others up, of a step or the window."""
    one, took = len(worst.ranks) == 1, analysis.whatifs.took
    hold = "holds the others up" if one else "hold the others up"
    unit = "a step" if analysis.job.step_ns else "the window"
    peers = f"{'it as the median of its' if one else 'them as the median of their'}"
    saved, late = (
        _saved_of(analysis, ns) for ns in (worst.saved_ns, worst.cause.late_ns)
    )
    if worst.cause.cause != LINK and worst.saved_ns < STRAGGLER * took:
        return (
            f"{hold}: late by {late} of {unit}, of which {saved} would be saved with"
            f" {peers} peers, as others are late by chance"
        )
    return f"{hold}: {unit} would be {saved} shorter with {peers} peers"


def _nobody(analysis: Analysis) -> str:
    """Return the verdict on a job in which nobody is named."""
    job = analysis.job
    if job.apart:
        sets = " and ".join(named(analysis, rows).lower() for rows in job.apart[:_SETS])
        more = " and others" if len(job.apart) > _SETS else ""
        return (
            f"The ranks cannot be compared: {sets}{more} could not be aligned with each"
            " other, as no collective is known to be the same."
        )
    if not job.collectives.height:
        return (
            "The ranks cannot be compared: no collective was recorded by two of them."
        )
    unit = "a step" if job.step_ns else "the window"
    shorter = _saved_of(analysis, analysis.whatifs.all.saved_ns)
    made_of = composition(analysis)
    return (
        f"No straggler: with all {job.ranks.height} ranks at their median {unit} would"
        f" be {shorter} shorter{f'; {made_of}' if made_of else ''}{_doubt(analysis)}."
    )


def _saved_of(analysis: Analysis, ns: float) -> str:
    """Return a time of a step, or of the window, and its share of that."""
    share = units.share(ns, analysis.whatifs.took)
    return f"{units.time(ns / analysis.steps)} ({share})"


def composition(analysis: Analysis) -> str:
    """Return what a large slowdown without a straggler is made of, or nothing.

    Each part and each rank is at the median alone: together they save more or less.
    """
    if analysis.stragglers or analysis.whatifs.slowdown <= _LARGE:
        return ""
    took = analysis.whatifs.took
    parts = {
        change.name: change.saved_ns / took
        for change in analysis.changes
        if change.of in ("cause", "link")
    }
    late = analysis.by_rank.drop_nulls("saved").sort(
        "saved", "late", "rank", descending=[True, True, False]
    )
    ranks = {
        f"rank {number}": saved / took
        for number, saved in late.select("number", "saved").head(_PARTS).iter_rows()
    }
    worth = [
        f"{name} {units.share(share, 1)}"
        for shares in (parts, ranks)
        for name, share in sorted(shares.items(), key=lambda one: -one[1])[:_PARTS]
        if share > _WORTH
    ]
    alone = ", ".join(worth)
    if not alone:
        return "no part of their time and no rank saves any of it alone"
    return f"alone at the median: {alone}"


def _doubt(analysis: Analysis) -> str:
    """Return the rank that may be a straggler, or looks like one; empty if none is."""
    if analysis.doubtful is None:
        return _harmless(analysis)
    seen = counted(int(analysis.by_rank["seen"].max() or 1), "step")  # type: ignore[arg-type] # of integers
    who = named(analysis, [analysis.doubtful]).lower()
    return f"; {who} was late most, which cannot be told from chance in {seen}"


def _harmless(analysis: Analysis) -> str:
    """Return who is late by much and costs little; empty if nobody is.

    The others wait for it in collectives whose results they need later. A slowdown that
    is taken apart names the ranks already.
    """
    if composition(analysis):
        return ""
    enough = ALWAYS_LATE * analysis.whatifs.took
    late = analysis.by_rank.filter("sure", pl.col("late") >= enough)
    worst = late.drop_nulls("saved").sort("late", descending=True).head(1)
    for row in worst.iter_rows(named=True):
        return (
            f"; {named(analysis, [row['rank']]).lower()} is late by"
            f" {_saved_of(analysis, row['late'])}, but costs only"
            f" {_saved_of(analysis, row['saved'])}"
        )
    return ""


def named(analysis: Analysis, rows: Sequence[int]) -> str:
    """Return ranks by their numbers: Rank 3, or Ranks 3, 5."""
    numbers = sorted(analysis.job.ranks["number"].gather(list(rows)).to_list())
    first = ", ".join(map(str, numbers[:_LISTED]))
    more = len(numbers) - _LISTED
    first += f" and {more} more" if more > 0 else ""
    return f"{'rank' if len(numbers) == 1 else 'ranks'} {first}".capitalize()


def why(analysis: Analysis, straggler: Straggler) -> str:
    """Return the cause of a late rank in words, with its place."""
    cause, where = straggler.cause, _where(straggler)
    text = IN_WORDS[cause.cause]
    if cause.cause == HOST and not analysis.job.has_gpus:
        text = "its host takes longer"
    if cause.cause == SLOWER and cause.work:
        text += f", {100 * (cause.work.ratio - 1):.0f}% at the median"
    if cause.cause == MORE and cause.work and cause.work.op:
        text += f", most in {cause.work.op} {cause.work.shape or ''}".rstrip()
    return f"{text}{f' {where}' if where else ''}"


def _where(straggler: Straggler) -> str:
    region = f'in "{straggler.cause.region}"' if straggler.cause.region else ""
    return f"{region}{at(straggler.cause.place)}".strip()


def _title(analysis: Analysis) -> str:
    ranks = analysis.job.ranks
    world = analysis.job.digests[0].rank["world_size"] if analysis.job.digests else None
    of = f" of {world}" if world and world != ranks.height else ""
    device = next((name for name in ranks["device"] if name), "")
    return f"{ranks.height} ranks{of}" + (f" on {device}" if device else "")


def _facts(analysis: Analysis) -> Iterator[tuple[str, str]]:
    job, whatifs = analysis.job, analysis.whatifs
    if job.step_ns:
        yield (
            "step",
            f"{units.time(job.step_ns)} as recorded, median of the ranks"
            f"{_on_average(analysis, job.step_ns)}",
        )
    if not job.collectives.height:
        # Nothing else can be compared.
        yield "matched", _matched(job)
        return
    off = round(100 * (whatifs.took / job.window_ns - 1), 1) if job.window_ns else 0.0
    replay = f"{off:+.1f}% off" if off else "as long as the job"
    yield (
        "slowdown",
        f"{whatifs.slowdown:.2f}: the job's time over that with all ranks at the"
        f" median; the replay is {replay}"
        if job.window_ns
        else "unknown",
    )
    yield "matched", _matched(job)
    errors = job.ranks["error"].drop_nulls()
    # Ranks that nothing connects have clocks that nothing compares.
    if len(errors) and not job.apart:
        offset, error = highest(job.ranks["offset"].abs()), max(errors)
        was_set = _clock_set(analysis)
        yield (
            "clocks",
            f"up to {units.time(offset)} apart, known within {units.time(error)}"
            f"{was_set}"
            if offset or error or was_set
            else "one clock for all ranks",
        )
    waited, sending = (total(analysis.by_rank[name]) for name in ("wait", "sending"))
    yield (
        "collectives",
        f"{units.share(waited, waited + sending)} of their time is waiting for other"
        " ranks, the rest transfer",
    )
    if analysis.pipeline:
        pipe = analysis.pipeline
        yield (
            "pipeline",
            f"{pipe.stages} stages, {pipe.micro_batches} micro-batches: bubbles"
            f" {units.share(pipe.bubble, 1)} of the ranks' time, expected"
            f" {units.share(pipe.expected, 1)}",
        )
    if analysis.experts:
        layers = analysis.experts.layers
        yield (
            "experts",
            f"balancedness {median(layers['balancedness']):.2f} at the median of"
            f" {counted(layers.height, 'all-to-all')}, {min(layers['worst']):.2f} at"
            " worst (mean ÷ max)",
        )


def _matched(job: Job) -> str:
    """Return how many collectives are known to be the same, by what, on which ranks."""
    every = job.collectives.height
    by = " and ".join(how for how, count in job.matched_by.items() if count)
    whole = job.collectives.select(
        pl.col("ranks")
        >= pl.coalesce("group_size", pl.col("ranks").max().over("lane")).fill_null(0)
    )
    complete = int(whole.to_series().sum())
    on = f", {complete} of them on all of their ranks" if complete < every else ""
    parts = counted(job.unmatched, "part")
    others = f"; {parts} of others match nothing" if job.unmatched else ""
    return f"{counted(every, 'collective')}{f' by {by}' if by else ''}{on}{others}"


def _clock_set(analysis: Analysis) -> str:
    """Return whose clock was set in the recording most, if any was."""
    was_set = analysis.job.ranks.filter(analysis.job.ranks[STEP] != 0)
    if not was_set.height:
        return ""
    by = highest(was_set[STEP].abs())
    who = named(analysis, was_set["rank"].to_list()).lower()
    which = f"that of {who} was" if was_set.height == 1 else f"those of {who} were"
    most = "" if was_set.height == 1 else "up to "
    return f"; {which} set by {most}{units.time(by)} in the recording"


def _on_average(analysis: Analysis, step_ns: int) -> str:
    """Return what the steps take that are compared, where that differs much."""
    mean = analysis.whatifs.took / analysis.steps
    if not mean or abs(mean / step_ns - 1) <= _DIFFERS:
        return ""
    mean_of = ", the mean" if analysis.steps > 1 else ""
    return (
        f"; shares are of {units.time(mean)}{mean_of} from the first collective to the"
        " last"
    )


def _ranks(analysis: Analysis) -> TextTable:
    alone = {
        straggler.ranks[0]: straggler
        for straggler in analysis.stragglers
        if len(straggler.ranks) == 1
    }
    causes = {
        row: straggler.cause.cause
        for straggler in analysis.stragglers
        for row in straggler.ranks
    }
    longest = analysis.by_rank.sort(
        "saved", "late", "rank", descending=[True, True, False], nulls_last=True
    ).head(_MOST_RANKS)
    rows = []
    for row in longest.iter_rows(named=True):
        # Figures of a straggler are the same here as in its finding.
        one = alone.get(row["rank"])
        late = one.cause.late_ns if one else row["late"]
        saved = one.saved_ns if one else row["saved"]
        rows.append(
            (
                str(row["number"]),
                units.milliseconds(row["wait"] / analysis.steps),
                str(row["last"]),
                units.milliseconds(late / analysis.steps),
                "-" if saved is None else units.milliseconds(saved / analysis.steps),
                printable(causes.get(row["rank"], "")),
            )
        )
    unit = "ms/step" if analysis.job.step_ns else "ms"
    return TextTable(
        (
            Column("rank"),
            Column(f"waits {unit}", number=True),
            Column("last", number=True),
            Column(f"late {unit}", number=True),
            Column(f"saves {unit}", number=True),
            Column("cause"),
        ),
        tuple(rows),
    )


def _changes(analysis: Analysis) -> TextTable:
    worth = _WORTH * analysis.whatifs.took
    rows = [
        (
            change.name
            if change.of in ("all", "link")
            else f"{change.of} {change.name}",
            units.milliseconds(change.saved_ns / analysis.steps),
            units.share(change.saved_ns, analysis.whatifs.took),
        )
        for change in (analysis.whatifs.all, *analysis.changes)
        if change.saved_ns > worth
    ]
    unit = "ms/step" if analysis.job.step_ns else "ms"
    return TextTable(
        (
            Column(CHANGES),
            Column(f"saves {unit}", number=True),
            Column("share", number=True),
        ),
        tuple((printable(name), *numbers) for name, *numbers in rows),
    )


def _collectives(analysis: Analysis) -> TextTable:
    """Return the collectives by kind: waiting, and how much transfer compute hides."""
    rows = [
        (
            printable(row["kind"]),
            units.average(row["calls"]),
            units.milliseconds(row["length"] / row["ranks"] / analysis.steps),
            units.share(row["wait"], row["length"]),
            units.share(
                row["length"] - row["wait"] - row["exposed"],
                row["length"] - row["wait"],
            ),
        )
        for row in by_kind(analysis.job).iter_rows(named=True)
    ]
    unit = "ms/step" if analysis.job.step_ns else "ms"
    return TextTable(
        (
            Column("collective"),
            Column("a step" if analysis.job.step_ns else "count", number=True),
            Column(f"{unit} and rank", number=True),
            Column("waiting", number=True),
            Column("hidden", number=True),
        ),
        tuple(rows),
    )


def _links(analysis: Analysis) -> TextTable:
    rows = [
        (
            printable(row["kind"]),
            units.size(row["bytes"]),
            f"{row['algorithm']:.1f}",
            f"{row['rate']:.1f}",
            f"{row['peak']:.0f}" if row["peak"] else "-",
        )
        for row in analysis.rates.head(_LISTED).iter_rows(named=True)
    ]
    return TextTable(
        (
            Column("transfer"),
            Column("size", number=True),
            Column("algorithm GB/s", number=True),
            Column("bus GB/s", number=True),
            Column("peak", number=True),
        ),
        tuple(rows),
    )


def _heat(analysis: Analysis) -> Iterator[tuple[str, str]]:
    """Yield a line for each rank, of many those that are late most or least."""
    order = analysis.by_rank.sort("late", "rank", descending=[True, False])["rank"]
    half = _MOST_LINES // 2
    rows = order.to_list()
    if len(rows) > _MOST_LINES:
        rows = [*rows[:half], *rows[-half:]]
    numbers = dict(analysis.job.ranks.select("rank", "number").iter_rows())
    for rank, shares in heat(analysis.job, _HEAT, rows).iter_rows():
        line = "".join(_SHADES[min(4, int(share * 4.999))] for share in shares)
        yield str(numbers[rank]), line
