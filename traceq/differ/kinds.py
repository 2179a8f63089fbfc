"""Kinds of changes of a part of the program, and the parts that changed alike."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Literal

from traceq.analysis.time.modules import OPTIMIZER
from traceq.differ.kernels import family

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Kind = Literal[
    "dtype",
    "casts",
    "kernel",
    "fused",
    "calls",
    "shapes",
    "added",
    "removed",
    "replaced",
    "compiled",
    "overlap",
    "same kernels",
    "launches",
    "same launches",
    "host",
    "compiling",
    "loading data",
    "capturing CUDA graphs",
    "allocating memory",
    "outside operators",
    "not in the trace",
]
ALL_OVER: tuple[Kind, ...] = ("same kernels", "same launches", "outside operators")
"""Kinds that are not a change of the program: it does the same, in another time."""

# Counts change by less between steps of one program.
_LEAST_COUNT = 0.5
_LEAST_SHARE = 0.1
# Work whose time moved by less than this share beside other work got slower or faster.
_MOSTLY = 0.5


def ranked(counter: Counter[Any]) -> list[tuple[Any, float]]:
    """Return the counted items, most frequent first, in a stable order."""
    return sorted(counter.items(), key=lambda one: (-one[1], repr(one[0])))


def first(counter: Counter[Any]) -> Any:  # noqa: ANN401 - what was counted
    """Return the most frequent, if there is any: the one that is ranked first."""
    if not counter:
        return None
    most = max(counter.values())
    return min((one for one, count in counter.items() if count == most), key=repr)


def differ(counts: list[dict[str, float]], name: str) -> bool:
    """Return whether there are more or fewer of something than before."""
    before, after = (side[name] for side in counts)
    least = max(_LEAST_COUNT, _LEAST_SHARE * max(before, after))
    return abs(after - before) >= least


def kind_of(
    likeness: str,
    rows: list[list[dict[str, Any]]],
    used: list[list[dict[str, Any]]],
    counts: list[dict[str, float]],
) -> Kind:
    """Return the kind of change in a part of the program that has GPU work."""
    if (rows[0] or rows[1])[0]["role"] == "cast":
        # As many casts as before are not a change, however long they take.
        return "casts" if differ(counts, "kernels") else "same kernels"
    return (
        _kind_by_match(likeness, rows)
        or _kind_by_kernels(used)
        or _kind_by_counts(likeness, rows, counts)
    )


def _kind_by_match(likeness: str, rows: list[list[dict[str, Any]]]) -> Kind | None:
    """Return how the part was matched, if that alone is a change."""
    if likeness == "replaced":
        return "replaced"
    if likeness == "compiled":
        return "compiled"
    if likeness == "alone":
        return "removed" if rows[0] else "added"
    return None


def _kind_by_kernels(used: list[list[dict[str, Any]]]) -> Kind | None:
    """Return whether the dtype or the main kernel changed; None if neither did."""
    formats = [first(_times(side, "dtype")) for side in used]
    main = [family(first(_times(side, "name")) or "") for side in used]
    there = [{family(kernel["name"]) for kernel in side} for side in used]
    moved = any(name.startswith("Mem") for name in main)
    if all(formats) and formats[0] != formats[1] and not moved:
        return "dtype"
    if main[0] not in there[1] or main[1] not in there[0]:
        return "kernel"
    return None


def _kind_by_counts(
    likeness: str,
    rows: list[list[dict[str, Any]]],
    counts: list[dict[str, float]],
) -> Kind:
    """Return whether calls, kernels or shapes changed of a part with its kernels."""
    if differ(counts, "calls"):
        return "calls"
    if differ(counts, "kernels"):
        return "fused"
    if likeness == "reshaped" and _shapes(rows[0]) != _shapes(rows[1]):
        return "shapes"
    return "overlap" if _overlaps(counts) else "same kernels"


def _overlaps(counts: list[dict[str, float]]) -> bool:
    """Return whether as much work takes another time by running beside other work.

    What it takes of the step less, it runs beside other kernels more, or the reverse.
    """
    shown, hidden = (
        counts[1][name] - counts[0][name] for name in ("gpu_ns", "hidden_ns")
    )
    whole = max(side["gpu_ns"] for side in counts)
    if abs(shown) < _LEAST_SHARE * whole or shown * hidden >= 0:
        return False
    return abs(hidden) >= _MOSTLY * abs(shown)


def _shapes(rows: Iterable[Mapping[str, Any]]) -> set[str | None]:
    return {row["shapes"] for row in rows}


def _times(kernels: Iterable[Mapping[str, Any]], column: str) -> Counter[Any]:
    times: Counter[Any] = Counter()
    for kernel in kernels:
        times[kernel[column]] += kernel["gpu_ns"]
    return times


def key_of(
    kind: Kind,
    match: int,
    rows: list[list[dict[str, Any]]],
    used: list[list[dict[str, Any]]],
) -> tuple[object, ...]:
    """Return the key that the parts of one cause have in common."""
    if kind in ("casts", "compiled", *ALL_OVER):
        # Collectives take as long as the slowest rank lets them.
        kernel_kind = first(_times([*used[0], *used[1]], "kind"))
        return (kind, kind == "same kernels" and kernel_kind == "communication")
    if kind == "dtype":
        # A dtype is chosen for the whole model, not for a line.
        both = [first(_times(side, "dtype")) for side in used]
        return (kind, *both, first(_times(used[0], "kind")))
    if kind == "replaced":
        return (kind, match)
    ops = {row["op"] for side in rows for row in side}
    return (kind, *where_of(rows), *sorted(ops))


def where_of(rows: list[list[dict[str, Any]]]) -> tuple[object, ...]:
    """Return the key of the rows of one place: the function, else the modules."""
    row = (rows[0] or rows[1])[0]
    if row["op"] == OPTIMIZER:
        return (OPTIMIZER,)
    if row["file"]:
        return (row["file"], row["function"])
    return (row["module"],) if row["module"] else ()
