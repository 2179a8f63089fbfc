"""A set of ranks as people write it: ``0,8-15`` or, one of every eight, ``0-63:8``."""

from __future__ import annotations

import re
from typing import Iterable

_PART = re.compile(r"(?P<first>\d{1,7})(-(?P<last>\d{1,7})(:(?P<step>[1-9]\d{0,6}))?)?")


def parse(text: str) -> tuple[range, ...]:
    """Return the ranks that the text names; raise ValueError if it is none."""
    return tuple(_range(part) for part in text.replace(" ", "").split(","))


def has(text: str | None, rank: int) -> bool:
    """Return whether a rank is in the set; no text is all ranks."""
    return text is None or any(rank in part for part in parse(text))


def within(text: str | None, world_size: int) -> list[int]:
    """Return the ranks of the set that a job of this many ranks has."""
    if text is None:
        return list(range(world_size))
    return sorted(
        {number for part in parse(text) for number in part if number < world_size}
    )


def has_beyond(text: str | None, world_size: int) -> bool:
    """Return whether the set has ranks that a job of this many ranks has not."""
    return text is not None and any(part[-1] >= world_size for part in parse(text))


def written(ranks: Iterable[int]) -> str:
    """Return ranks in the same form, shortest: ``0,8-15``."""
    parts: list[list[int]] = []
    for rank in sorted(ranks):
        if parts and rank == parts[-1][-1] + 1:
            parts[-1][1:] = [rank]
        else:
            parts.append([rank])
    return ",".join("-".join(map(str, part)) for part in parts)


def _range(part: str) -> range:
    match = _PART.fullmatch(part)
    if match is None:
        raise ValueError(part)
    first = int(match["first"])
    last = int(match["last"] or first)
    if last < first:
        raise ValueError(part)
    return range(first, last + 1, int(match["step"] or 1))
