"""The flight recorder's dumps of a job: files by rank, and all ranks' calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl
from msgspec import Struct

from traceq.common.progress import notify
from traceq.common.words import counted, listed
from traceq.errors import InputError, TraceqError
from traceq.formats.flight_recorder import Dump, read_dump
from traceq.formats.kinds import head_of, is_dump, kind_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_HEAD = 1 << 16
_DEFAULT = "default_pg"


class DumpJob(Struct, frozen=True):
    """The calls of all ranks, and who takes part in which group."""

    ranks: tuple[int, ...]
    """Ranks with a dump, in order."""
    calls: pl.DataFrame
    """As ``CALLS``, with ``rank``, the number ``at`` of the call in its rank, and
    ``nth`` among those of one group, lane and number, as coalesced calls are."""
    members: dict[str, tuple[int, ...]]
    """Ranks of each group, those without a dump as well."""
    uncertain: frozenset[str]
    """Groups whose ranks the dumps do not name: more may belong to them."""
    unread: int
    """Number of dumps that cannot be read."""
    notices: tuple[str, ...]


def dumps_in(paths: Sequence[Path]) -> list[Path]:
    """Return the dumps at paths; none if there are traces."""
    by_path = {path: _dumps_at(path) for path in paths}
    dumps = [dump for here in by_path.values() for dump in here]
    other = next((path for path, here in by_path.items() if not here), None)
    if dumps and other:
        msg = f"{other} has no dump of the flight recorder: give dumps alone"
        raise InputError(msg)
    return dumps


def _dumps_at(path: Path) -> list[Path]:
    """Return the dump that a path is, or those in a folder without traces."""
    try:
        inside = sorted(path.iterdir()) if path.is_dir() else [path]
    except OSError:
        return []
    files = [item for item in inside if item.is_file()]
    dumps = [file for file in files if _is_dump(file)]
    if dumps and any(kind_of(file) == "trace" for file in files):
        notify(
            f"{path} has traces and {counted(len(dumps), 'dump')} of the flight"
            " recorder: the traces are read; name the dumps for these"
        )
        return []
    return dumps


def _is_dump(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return is_dump(head_of(file, _HEAD))
    except OSError:
        return False


def read_job(paths: Sequence[Path]) -> DumpJob:
    """Return the calls of all ranks; a file that cannot be read is a notice."""
    notices: list[str] = []
    by_rank: dict[int, Dump] = {}
    for path in paths:
        try:
            dump = read_dump(path)
        except TraceqError as error:
            notices.append(str(error))
            continue
        other = by_rank.setdefault(dump.rank, dump)
        if other.stacks and dump.stacks and other is not dump:
            msg = f"{other.path} and {path} are both of rank {dump.rank}: give one"
            raise InputError(msg)
        if dump.stacks:
            by_rank[dump.rank] = dump
    dumps = [by_rank[rank] for rank in sorted(by_rank)]
    if len(dumps) < 2:  # noqa: PLR2004 - one cannot be compared
        why = f": {notices[0]}" if notices else ""
        msg = (
            "a hang shows in the dumps of all ranks, and there is"
            f" {'only one' if dumps else 'none'}{why}"
        )
        raise InputError(msg)
    return _job(dumps, notices)


def _job(dumps: Sequence[Dump], notices: list[str]) -> DumpJob:
    """Return a job of at least two dumps."""
    calls = pl.concat(
        [
            dump.calls.with_columns(rank=pl.lit(dump.rank, pl.Int64)).with_columns(
                _identified(dump).alias("key")
            )
            for dump in dumps
        ]
    )
    if calls.is_empty():
        msg = (
            "the dumps have no collectives: run with TORCH_FR_BUFFER_SIZE=2000 (older"
            " torch: TORCH_NCCL_TRACE_BUFFER_SIZE)"
        )
        raise InputError(msg)
    calls = calls.with_columns(
        at=pl.int_range(pl.len()).over("rank"),
        nth=pl.int_range(pl.len()).over("rank", "key", "lane", "seq"),
    )
    unread = len(notices)
    ranks = tuple(dump.rank for dump in dumps)
    members, uncertain = _members(calls, dumps, ranks)
    every = {rank for group in members.values() for rank in group}
    if absent := sorted((every | set(range(max(ranks)))) - set(ranks)):
        names = listed([str(rank) for rank in absent], 8)
        notices.append(f"no dump of rank {names}: what they did is unknown")
    if not any(dump.stacks for dump in dumps):
        notices.append(
            "the dumps have no stacks, so no lines: JSON has none; give the pickles"
        )
    return DumpJob(ranks, calls, members, uncertain, unread, tuple(notices))


def _identified(dump: Dump) -> pl.Expr:
    """Return the groups of calls; two of one name and other ranks are two groups."""
    known = {
        name: f"{name} of {','.join(map(str, ranks))}"
        for name, ranks in dump.members.items()
    }
    return pl.col("group").replace(known)


def _members(
    calls: pl.DataFrame, dumps: Sequence[Dump], ranks: tuple[int, ...]
) -> tuple[dict[str, tuple[int, ...]], frozenset[str]]:
    """Return the ranks of each group, and the groups of which more may be members."""
    known = {
        f"{name} of {','.join(map(str, members))}": members
        for dump in dumps
        for name, members in dump.members.items()
    }
    of_group, uncertain = {}, set()
    seen = calls.group_by("key", maintain_order=True).agg(
        pl.col("description").first(), pl.col("rank").unique().sort()
    )
    for key, description, here in seen.iter_rows():
        if key in known:
            of_group[key] = tuple(sorted(known[key]))
        elif description == _DEFAULT:
            of_group[key] = tuple(sorted({*ranks, *range(max(ranks))}))
        elif set(here) == set(ranks):
            of_group[key] = ranks
        else:
            of_group[key] = tuple(here)
            uncertain.add(key)
    return of_group, frozenset(uncertain)
