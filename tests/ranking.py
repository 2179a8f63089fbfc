"""Jobs of several ranks, for tests: read once, cut, shifted, copied."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import polars as pl
import recordings

from traceq.ranks.digest import TABLES, Digest, encoded, make_digest
from traceq.ranks.job import assemble

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from traceq.ranks.job import Job

TIMES = ("launched", "ready", "start", "end", "held")
NAMES = ("dlrm", "resnet18", "torchrec_a2a")


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
    found = digest.table("collectives")
    begin, end = found["start"].min(), found["end"].max()
    assert isinstance(begin, int)
    assert isinstance(end, int)
    first = begin + chance.random() * 0.4 * (end - begin)
    last = end - chance.random() * 0.4 * (end - begin)
    kept = found.with_row_index("row").filter(
        pl.col("start") >= first, pl.col("end") <= last
    )
    again = kept.select(
        collective=pl.col("row").cast(pl.Int32),
        again=pl.int_range(pl.len(), dtype=pl.Int32),
    )
    return changed(
        digest,
        collectives=lambda _: kept.drop("row"),
        meetings=lambda table: (
            table.join(again, on="collective", maintain_order="left")
            .with_columns(collective="again")
            .drop("again")
        ),
    )


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
        start_ns=digest.rank["start_ns"] + offset,
    )
