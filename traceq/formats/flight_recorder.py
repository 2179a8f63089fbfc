"""Dumps of NCCL's flight recorder: the collectives that one rank called, in order.

torch writes one file for each rank, as pickle or as JSON, which has no stacks. The rank
is in the file's name and nowhere else. What other versions lack is null here.
"""

from __future__ import annotations

import re
from math import prod
from typing import TYPE_CHECKING, Any

import orjson
import polars as pl
from msgspec import Struct

from traceq.errors import InputError
from traceq.formats.compression import DamagedError, blocks
from traceq.formats.kinds import bare
from traceq.formats.plain_pickle import DamagedPickleError, plain_values
from traceq.formats.unmodified_file import unchanged
from traceq.model.owners import is_own, third_party

if TYPE_CHECKING:
    from pathlib import Path

CALLS = pl.Schema(
    {
        "group": pl.String(),
        "description": pl.String(),
        "lane": pl.String(),
        "seq": pl.Int64(),
        "op": pl.String(),
        "inputs": pl.String(),
        "outputs": pl.String(),
        "input_elements": pl.Int64(),
        "output_elements": pl.Int64(),
        "input_dtype": pl.String(),
        "output_dtype": pl.String(),
        "done": pl.Boolean(),
        "created": pl.Int64(),
        "file": pl.String(),
        "line": pl.Int64(),
        "function": pl.String(),
    }
)
"""Columns of a rank's calls, in the order of the calls.

``group`` and ``description`` are the process group's; ``lane`` is empty for
collectives, ``"0->1"`` for a send or its receive; ``seq`` counts the calls of a lane.
``inputs`` and ``outputs`` are the shapes as text. ``done`` says whether the call has
ended, well or not. ``file``, ``line`` and ``function`` are the user's innermost frame.
"""
LARGEST = 1 << 30
"""Maximum number of unpacked bytes that are read of a dump."""
_BLOCK = 1 << 20
_MOST_PACKED = 200
_ALWAYS_UNPACKED = 64 << 20
_LARGE = 1 << 62
_LONGEST = 2_000
_WAY = re.compile(r"(send|recv) (\d+)(->|<-)(\d+)")
_RANK = re.compile(r"rank[_-]?(\d+)|(\d+)(?=\D*$)")
_ENDINGS = re.compile(r"\.(json|pickle|pkl|bin)$")


class Dump(Struct, frozen=True):
    """Dump of one rank's flight recorder: its groups and calls."""

    path: str
    rank: int
    version: str
    stacks: bool
    """True if any call has a stack."""
    members: dict[str, tuple[int, ...]]
    """Ranks of the process groups by name, of those whose ranks are known."""
    calls: pl.DataFrame


def rank_of(name: str) -> int | None:
    """Return the rank in the name of a dump; nothing if there is none.

    >>> rank_of("nccl_trace_rank_12"), rank_of("dump3.json"), rank_of("dump.pickle")
    (12, 3, None)
    """
    match = _RANK.search(_ENDINGS.sub("", bare(name)))
    return int(match[1] or match[2]) if match else None


def read_dump(path: Path) -> Dump:
    """Return the dump in a file, plain or compressed; nothing in it is run."""
    rank = rank_of(path.name)
    if rank is None or rank >= _LARGE:
        msg = (
            f"{path} has no rank in its name, and a dump has none inside: call it"
            " rank_0 or as its rank is"
        )
        raise InputError(msg)
    content = _content(path)
    try:
        return _dump(content, path, rank)
    except (AttributeError, LookupError, TypeError, ValueError, OverflowError):
        msg = (
            f"{path} is not a dump of the flight recorder: it has no list of entries"
            " as torch writes"
        )
        raise InputError(msg) from None


def _content(path: Path) -> Any:  # noqa: ANN401 - can be anything
    try:
        data = _bytes(path)
        if data.lstrip()[:1] == b"{":
            return orjson.loads(data)
        return plain_values(data)
    except OSError as error:
        why = f"cannot be read: {error.strerror or error}"
    except DamagedError as error:
        why = f"is damaged: {error}"
    except (DamagedPickleError, orjson.JSONDecodeError):
        why = "is cut off or damaged: dump the flight recorder again"
    msg = f"{path} {why}"
    raise InputError(msg)


def _bytes(path: Path) -> bytes:
    parts, unpacked = [], 0
    with path.open("rb") as file, unchanged(path, file):
        for block in blocks(file, _BLOCK):
            unpacked += len(block)
            packed = max(_ALWAYS_UNPACKED, _MOST_PACKED * file.tell())
            if unpacked > min(LARGEST, packed):
                msg = f"{path} is not a dump of the flight recorder: it is too large"
                raise InputError(msg)
            parts.append(block)
    return b"".join(parts)


def _dump(content: Any, path: Path, rank: int) -> Dump:  # noqa: ANN401 - any value
    entries = content["entries"]
    if not isinstance(entries, list):
        raise TypeError
    groups = _Groups(content.get("pg_config"))
    stacks, shapes = _Stacks(entries), _Shapes()
    rows = [_row(entry, groups, stacks, shapes) for entry in entries]
    calls = pl.DataFrame(rows, schema=CALLS, orient="row")
    calls = calls.filter(pl.col("op").is_not_null() & pl.col("seq").is_not_null())
    return Dump(
        str(path),
        rank,
        _text(content.get("version")) or "",
        stacks=stacks.some,
        members=groups.members,
        calls=calls,
    )


def _row(
    entry: dict[str, Any], groups: _Groups, stacks: _Stacks, shapes: _Shapes
) -> tuple[Any, ...]:
    backend, _, name = (_text(entry.get("profiling_name")) or "").rpartition(":")
    way = _WAY.fullmatch(name)
    lane = ""
    # Up to version 2.0 there was one count for both.
    seq = entry.get("collective_seq_id", entry.get("seq_id"))
    if way:
        ends = (way[2], way[4]) if way[3] == "->" else (way[4], way[2])
        name, lane = way[1], "->".join(ends)
        seq = entry.get("p2p_seq_id", seq)
    group, description = groups.named(entry)
    inputs = shapes.written(entry.get("input_sizes"))
    outputs = shapes.written(entry.get("output_sizes"))
    return (
        group,
        description,
        lane,
        _number(seq),
        name or None,
        inputs[0],
        outputs[0],
        inputs[1],
        outputs[1],
        shapes.dtype(entry.get("input_dtypes")),
        shapes.dtype(entry.get("output_dtypes")),
        _done(entry, backend),
        _number(entry.get("time_created_ns")),
        *stacks.place(entry.get("frames")),
    )


def _done(entry: dict[str, Any], backend: str) -> bool:
    """Return whether a call has ended; gloo leaves the state as it was at first."""
    if backend == "gloo" or "state" not in entry:
        return entry.get("retired") is True
    completed = _number(entry.get("time_discovered_completed_ns"))
    return entry["state"] == "completed" or bool(completed)


def _number(value: Any) -> int | None:  # noqa: ANN401 - any value
    """Return a whole number, which JSON may have as text."""
    if isinstance(value, str) and value.isascii() and value.isdigit():
        value = int(value[:20])
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    return value if -_LARGE < value < _LARGE else None


def _text(value: Any) -> str | None:  # noqa: ANN401 - any value
    if not isinstance(value, str):
        return None
    # Half of a character pair is not UTF-8, which Polars takes alone.
    return value[:_LONGEST].encode(errors="replace").decode()


class _Groups:
    """Names of process groups, and their ranks where the dump has them."""

    def __init__(self, config: Any) -> None:  # noqa: ANN401 - any value
        self.members: dict[str, tuple[int, ...]] = {}
        for name, group in config.items() if isinstance(config, dict) else ():
            ranks = group.get("ranks") if isinstance(group, dict) else None
            numbers = _listed(ranks)
            if numbers and (written := _text(name)):
                self.members[written] = numbers

    def named(self, entry: dict[str, Any]) -> tuple[str, str]:
        """Return name and description of the group that a call is of."""
        pair = entry.get("process_group")
        if isinstance(pair, (list, tuple)) and len(pair) == 2:  # noqa: PLR2004 - a pair
            return _text(pair[0]) or "", _text(pair[1]) or ""
        number = _number(entry.get("pg_id"))
        return "" if number is None else str(number), ""


def _listed(ranks: Any) -> tuple[int, ...]:  # noqa: ANN401 - any value
    """Return ranks that are a list, or one written as text: "[0, 1]"."""
    if isinstance(ranks, str):
        return tuple(int(text) for text in re.findall(r"\d{1,9}", ranks[: 1 << 20]))
    if isinstance(ranks, list):
        return tuple(rank for rank in map(_number, ranks) if rank is not None)
    return ()


class _Shapes:
    """Shapes and dtypes as text; of a list that many calls name, once."""

    def __init__(self) -> None:
        self._written: dict[int, tuple[str | None, int | None]] = {}

    def written(self, sizes: Any) -> tuple[str | None, int | None]:  # noqa: ANN401
        """Return shapes as text, and how many elements they have together."""
        if not isinstance(sizes, list):
            return None, None
        if id(sizes) not in self._written:
            shapes = [_listed(size) for size in sizes if isinstance(size, list)]
            text = " ".join("[" + ",".join(map(str, shape)) + "]" for shape in shapes)
            count = sum(map(prod, shapes))
            known = shapes and count < _LARGE
            self._written[id(sizes)] = (
                text[:_LONGEST] or None,
                count if known else None,
            )
        return self._written[id(sizes)]

    def dtype(self, names: Any) -> str | None:  # noqa: ANN401 - any value
        """Return the dtypes of tensors, each once; nothing without tensors."""
        if not isinstance(names, list):
            return None
        texts = {name for name in map(_text, names[:_LONGEST]) if name}
        return ", ".join(sorted(texts)) or None


class _Stacks:
    """The user's line in each stack: the innermost frame that is his own."""

    def __init__(self, entries: list[Any]) -> None:
        self.some = False
        self._places: dict[int, tuple[str | None, int | None, str | None]] = {}
        stacks = {
            id(frames): frames
            for frames in (entry.get("frames") for entry in entries)
            if isinstance(frames, list) and frames
        }
        # One list of frames is read once, however many calls name it.
        rows = [
            (stack, *_frame(frame))
            for stack, frames in stacks.items()
            for frame in frames
        ]
        self.some = bool(rows)
        columns = {"stack": pl.Int64, "file": str, "line": pl.Int64, "function": str}
        table = pl.DataFrame(rows, schema=columns, orient="row")
        file = pl.col("file")
        owned = table.with_columns(own=is_own(file)).with_columns(
            worth=pl.when("own")
            .then(2)
            .when(third_party(file, pl.col("own")).is_not_null())
            .then(1)
            .otherwise(0)
        )
        best = owned.filter(pl.col("worth") > 0).filter(
            pl.col("worth") == pl.col("worth").max().over("stack")
        )
        first = best.unique("stack", keep="first", maintain_order=True)
        for stack, *place in first.select(*columns).iter_rows():
            self._places[stack] = (place[0], place[1], place[2])

    def place(self, frames: Any) -> tuple[str | None, int | None, str | None]:  # noqa: ANN401
        """Return file, line and function of a stack."""
        return self._places.get(id(frames), (None, None, None))


def _frame(frame: dict[str, Any]) -> tuple[str | None, int | None, str | None]:
    return (
        _text(frame.get("filename")),
        _number(frame.get("line")),
        _text(frame.get("name")),
    )
