"""Jobs of several ranks, for tests: read once, cut, shifted, copied."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import polars as pl
import recordings

from traceq.inputs.load_trace import load
from traceq.ranks.analysis import analyse
from traceq.ranks.digest import TABLES, Digest, encoded, make_digest
from traceq.ranks.job import assemble
from traceq.testing.examples import DEVICE

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from traceq.ranks.analysis import Analysis
    from traceq.ranks.job import Job

TIMES = ("launched", "ready", "start", "end", "held")
NAMES = ("dlrm", "resnet18", "torchrec_a2a")
_ONE_COLLECTIVE = 6_000_000
_RECEIVES = "ncclDevKernel_SendRecv"
_RECEIVE = {
    "Collective name": "recv",
    "Process Group Name": "pp",
    "Src Rank": 9,
    "In msg nelems": 10,
    "dtype": "Float",
}


@cache
def digests(name: str) -> tuple[Digest, ...]:
    """Return the digests of a job, without what lint finds in its ranks."""
    return tuple(
        Digest(make_digest(recordings.loaded(path), findings=False))
        for path in recordings.job(name)
    )


@cache
def real_job(name: str) -> Job:
    """Return a job as it was recorded."""
    return assemble(digests(name))


def changed(
    digest: Digest,
    *,
    collectives: Callable[[pl.DataFrame], pl.DataFrame] = lambda table: table,
    meetings: Callable[[pl.DataFrame], pl.DataFrame] = lambda table: table,
    **known: object,
) -> Digest:
    """Return a digest with other tables, and other facts of its rank."""
    tables = {name: digest.table(name) for name in TABLES}
    tables["collectives"] = collectives(tables["collectives"])
    tables["meetings"] = meetings(tables["meetings"])
    return Digest(encoded(digest.rank | known, tables))


def cut(digest: Digest, chance: random.Random) -> Digest:
    """Return a digest whose window begins later and ends earlier, at random."""
    result = digest.table("collectives")
    begin, end = result["start"].min(), result["end"].max()
    assert isinstance(begin, int)
    assert isinstance(end, int)
    first = begin + chance.random() * 0.4 * (end - begin)
    last = end - chance.random() * 0.4 * (end - begin)
    retained = result.with_row_index("row").filter(
        pl.col("start") >= first, pl.col("end") <= last
    )
    again = retained.select(
        collective=pl.col("row").cast(pl.Int32),
        again=pl.int_range(pl.len(), dtype=pl.Int32),
    )
    return changed(
        digest,
        collectives=lambda _: retained.drop("row"),
        meetings=lambda table: (
            table.join(again, on="collective", maintain_order="left")
            .with_columns(collective="again")
            .drop("again")
        ),
    )


def by_wall_clock(digests: Sequence[Digest]) -> dict[tuple[int, int], int]:
    """Return which collective each end is of, by rank and end, if clocks agree.

    Ends of one collective are those of one kind that are within 6 ms, one of each rank.
    """
    ends = sorted(
        (end + digest.rank["start_ns"], row, token)
        for row, digest in enumerate(digests)
        for end, token in digest.table("collectives").select("end", "token").iter_rows()
    )
    groups: list[tuple[int, str, set[int]]] = []
    of: dict[tuple[int, int], int] = {}
    for end, row, token in ends:
        for at in range(max(0, len(groups) - 3), len(groups)):
            first, kind, rows = groups[at]
            if kind == token and row not in rows and end - first < _ONE_COLLECTIVE:
                break
        else:
            at = len(groups)
            groups.append((end, token, set()))
        groups[at][2].add(row)
        of[row, end] = at
    return of


def errors(
    digests: Sequence[Digest], truth: dict[tuple[int, int], int]
) -> tuple[int, int, int]:
    """Return how many parts two ranks share, how many are not matched, how many wrong.

    The truth is of the same ranks, perhaps over a longer window.
    """
    job = assemble(digests)
    ends = {
        (row, at): end + digest.rank["start_ns"]
        for row, digest in enumerate(job.digests)
        for at, end in enumerate(digest.table("collectives")["end"])
    }
    rows = job.cells.select("rank", "collective", "instance").iter_rows()
    matched = {(rank, ends[rank, at]): instance for rank, at, instance in rows}
    there = Counter(truth[row, end] for (row, _), end in ends.items())
    shared = sum(count for count in there.values() if count > 1)
    pairs = {(truth[key], instance) for key, instance in matched.items()}
    wrong = len(pairs) - min(len({one for one, _ in pairs}), len(set(matched.values())))
    return shared, shared - len(matched), wrong


def shifted(digest: Digest, offset: int, drift: float) -> Digest:
    """Return a digest whose clock is off by ``offset`` at its start, and drifts."""

    def moved(table: pl.DataFrame) -> pl.DataFrame:
        times = [name for name in (*TIMES, "at") if name in table.columns]
        return table.with_columns(
            pl.col(time) + (pl.col(time) * drift).round().cast(pl.Int64)
            for time in times
        )

    return changed(
        digest,
        collectives=moved,
        meetings=moved,
        start_ns=(digest.rank["start_ns"] or 0) + offset,
    )


def stepped(digest: Digest, at: int, by: int) -> Digest:
    """Return a digest whose clock was set forward by ``by`` at a moment on it."""

    def moved(table: pl.DataFrame) -> pl.DataFrame:
        times = [name for name in (*TIMES, "at") if name in table.columns]
        return table.with_columns(
            pl.col(time) + pl.when(pl.col(time) >= at).then(by).otherwise(0)
            for time in times
        )

    return changed(digest, collectives=moved, meetings=moved)


def with_a_step(
    digests: Sequence[Digest], chance: random.Random, farthest: int
) -> tuple[list[Digest], list[tuple[int, int]]]:
    """Return digests of which one clock was set, and when and by how much each was.

    That is somewhere from the first fifth of the window to the last.
    """
    steps = [(0, 0)] * len(digests)
    chosen = chance.randrange(1, len(digests))
    ends = digests[chosen].table("collectives")["end"].sort()
    if len(ends):
        after = ends[round((0.2 + 0.6 * chance.random()) * (len(ends) - 1))]
        by = chance.choice((-1, 1)) * chance.randint(farthest // 10, farthest)
        steps[chosen] = (after + 1, by)
    return [
        stepped(digest, *step) for digest, step in zip(digests, steps, strict=True)
    ], steps


def covered(
    job: Job, chance: random.Random, farthest: int, *, step: int = 0
) -> tuple[int, int]:
    """Return how many planted offsets are within the error, of how many.

    The windows are cut at random; what the clocks differ by is that of the whole ones.
    Ranks whose windows have nothing in common then are not counted. If one clock was
    set, by up to ``step``, they are compared where the window begins and ends.
    """
    truth = dict(enumerate(job.ranks.iter_rows(named=True)))
    offsets = [chance.randint(-farthest, farthest) for _ in job.digests]
    pieces = [cut(digest, chance) for digest in job.digests]
    steps = [(0, 0)] * len(pieces)
    if step:
        pieces, steps = with_a_step(pieces, chance, step)
    moved = [
        shifted(digest, by, 0.0) for digest, by in zip(pieces, offsets, strict=True)
    ]
    again = assemble(moved)
    known = [row for row in again.ranks.iter_rows(named=True) if row["ends"]]
    if again.apart or not known:
        return 0, 0
    starts = [
        min(digest.rank["start_ns"] for digest in some) for some in (moved, job.digests)
    ]

    def true(rank: int, at: int) -> float:
        """Return what a clock was off by at a moment of the whole job."""
        line = truth[rank]
        return line["offset"] + line["drift"] * (at - line["since"]) + offsets[rank]

    first = known[0]["rank"]
    right = tried = 0
    for row in known[1:]:
        rank, rows = row["rank"], again.cells.filter(pl.col("rank") == row["rank"])
        begin = moved[rank].rank["start_ns"] - starts[0]
        # Cells are on the clock of the first rank: the rank's own are in its digest.
        raw = moved[rank].table("collectives")["end"].gather(rows["collective"])
        moments = [row["since"]]
        if step:
            moments = [at + begin for at in raw.sort().gather([0, -1])]
        for at in moments:
            there = at + starts[0] - starts[1] - offsets[rank]
            after, by = steps[rank]
            planted = by if at - begin >= after else 0
            expected = true(rank, there) - true(first, there) + planted
            stated = row["offset"] + row["drift"] * (at - row["since"])
            if row["clock_step_at"] is not None and at >= row["clock_step_at"]:
                stated += row["clock_step"]
            right += abs(stated - expected) <= row["error"]
            tried += 1
    return right, tried


@dataclass(frozen=True)
class Works:
    """What a rank of a made job does in a step, in microseconds."""

    compute: int = 1000
    sleep: int = 0
    """What its host does first, in the region ``log``."""
    receives: int = 0
    """How long it waits for what rank 9 sends, before it computes."""

    @property
    def arrives(self) -> int:
        """When it comes to the all-reduce."""
        return 20 + self.sleep + self.receives + self.compute


def write_job(
    folder: Path, ranks: Sequence[Works | Sequence[Works]], steps: int = 4
) -> Path:
    """Write the traces of a job in which ranks compute, reduce and update.

    A rank does the same in all steps, or what is given for each of them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    does = [[item] * steps if isinstance(item, Works) else item for item in ranks]
    last = [max(entry.arrives for entry in step) for step in zip(*does, strict=True)]
    begins = [sum(last[:step]) + 300 * step for step in range(len(last))]
    for rank, works in enumerate(does):
        events = [
            event
            for step, (one, arrives, begin) in enumerate(
                zip(works, last, begins, strict=True)
            )
            for event in _step_events(one, step, arrives, begin)
        ]
        trace = {
            "schemaVersion": 1,
            "deviceProperties": [DEVICE],
            "distributedInfo": {
                "rank": rank,
                "world_size": len(ranks),
                "backend": "nccl",
            },
            "traceEvents": events,
        }
        (folder / f"rank{rank}.json").write_text(json.dumps(trace))
    return folder


def analysed(folder: Path) -> Analysis:
    """Return a job that was written, analysed."""
    return analyse(
        assemble(
            [
                Digest(make_digest(load(path, cache=False), findings=False))
                for path in sorted(folder.glob("*.json"))
            ]
        )
    )


def _step_events(
    works: Works, step: int, arrives: int, begin: int
) -> Iterator[dict[str, object]]:
    """Yield a step: compute, an all-reduce that ends for all at once, the optimizer."""

    def event(kind: str, name: str, at: int, dur: int, tie: int = 0) -> dict[str, Any]:
        on_gpu = kind == "kernel"
        stream = 20 if name.startswith("nccl") else 7
        args: dict[str, Any] = {"device": 0, "stream": stream} if on_gpu else {}
        args |= _RECEIVE if name == _RECEIVES else {}
        return {
            "ph": "X",
            "cat": kind,
            "name": name,
            "pid": 0 if on_gpu else 1000,
            "tid": stream if on_gpu else 1,
            "ts": begin + at,
            "dur": dur,
            "args": args | ({"correlation": 10 * step + tie} if tie else {}),
        }

    launch, ready = 10 + works.sleep, works.arrives
    yield event("user_annotation", f"ProfilerStep#{step}", 0, arrives + 290)
    if works.sleep:
        yield event("user_annotation", "log", 5, works.sleep)
    for tie in (1, 2, 3):
        yield event("cuda_runtime", "cudaLaunchKernel", launch + 2 * tie, 1, tie)
    if works.receives:
        yield event("cuda_runtime", "cudaLaunchKernel", launch, 1, 4)
        yield event("kernel", _RECEIVES, launch + 8, works.receives, 4)
    yield event("kernel", "gemm", launch + 8 + works.receives, works.compute, 1)
    yield event("kernel", "ncclDevKernel_AllReduce", ready, arrives + 100 - ready, 2)
    yield event("kernel", "adam", arrives + 103, 100, 3)
