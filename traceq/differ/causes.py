"""Causes of a change in step time; they add up to the change."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Literal

from traceq.analysis.base.assumptions import (
    MAX_HOST_TIME_PER_LAUNCH_NS,
    PROFILER_SLOWDOWN,
)
from traceq.analysis.time.host_activity import DISPATCH
from traceq.differ.align import aligned
from traceq.differ.host import APART, APART_IF_SAME
from traceq.differ.kinds import Kind, differ, first, key_of, kind_of, ranked, where_of
from traceq.differ.structure import END_OF_STEP, NUMBERS
from traceq.model.finding import Place

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import polars as pl

    from traceq.differ.calibration import Scale
    from traceq.differ.structure import Parts

_MOST_DETAILS = 4
# The place of a row: a Place is made of few of them, as that takes longer.
_PLACE = itemgetter("file", "line", "function", "module")
Affects = Literal["gpu", "idle", "host"]


@dataclass(frozen=True)
class Detail:
    """The contribution of one op at one place to a cause."""

    ns: float
    op: str
    place: Place


@dataclass(frozen=True)
class Used:
    """The ops and kernels of a cause on one side; all numbers are per step."""

    ns: float = 0.0
    calls: float = 0.0
    kernels: float = 0.0
    launches: float = 0.0
    syncs: float = 0.0
    dtype: str = ""
    """The dtype of most of its time on the GPU."""
    names: tuple[tuple[str, float], ...] = ()
    """Its kernels and how many of each, those that take longest first."""
    ops: tuple[str, ...] = ()
    """Its ops, those that take longest first."""
    place: Place = field(default_factory=Place)
    """The place of the op that takes longest."""


@dataclass(frozen=True)
class Cause:
    """One reason why the step changed; the times of all causes add up to the change."""

    kind: Kind
    affects: Affects
    """``gpu`` if the GPU works longer, ``idle`` if it idles longer, ``host`` if,
    without a GPU, the host works longer."""
    ns: float
    """Time that it adds to the step."""
    sure_ns: float
    """The part of that time that the profiler certainly did not cause."""
    kernel_kind: str
    """The kind of kernels that it is about mostly, as gemm; or empty."""
    host_kind: str
    """Its entry of the host's account, as operators on new shapes; or empty."""
    before: Used
    after: Used
    details: tuple[Detail, ...]
    """The largest parts of it."""

    @property
    def mostly(self) -> Used:
        """The side on which it takes longer, and so the one to look at."""
        return max(self.before, self.after, key=lambda used: used.ns)


Entries = tuple["pl.DataFrame | None", "pl.DataFrame | None"]


def causes_of(
    before: Parts,
    after: Parts,
    scales: tuple[Scale, Scale],
    entries: Entries = (None, None),
) -> tuple[Cause, ...]:
    """Return the causes, the biggest first by what is certain of them.

    ``entries`` are what the host did in the idle time, where that is asked for.
    """
    groups: dict[tuple[object, ...], _Sum] = {}
    for key, kind, affects, shares in _shares(before, after, scales, entries):
        host_kind = str(key[1]) if kind == "host" else ""
        groups.setdefault(key, _Sum(kind, affects, host_kind)).add(shares)
    _limit_launches(groups)
    for name in dict.fromkeys([*before.special, *after.special]):
        special: Any = "same launches" if name == END_OF_STEP else name
        idle: Affects = "host" if before.on_host else "idle"
        # The profiler slows down what has a name of its own, but does not create it.
        pair = tuple(
            _Share(
                ns=parts.special.get(name, 0.0) * scale.idle,
                sure=max(scale.sure, 1 / PROFILER_SLOWDOWN),
            )
            for parts, scale in zip((before, after), scales, strict=True)
        )
        groups.setdefault((special,), _Sum(special, idle)).add(pair)
    missing = tuple(_Share(ns=scale.missing_ns, sure=scale.sure) for scale in scales)
    groups[("missing",)] = _Sum("not in the trace", "idle")
    groups[("missing",)].add(missing)
    causes = [group.cause() for group in groups.values()]
    return tuple(
        sorted(
            (cause for cause in causes if cause.before.ns or cause.after.ns),
            key=lambda cause: (
                -abs(cause.sure_ns),
                -abs(cause.ns),
                cause.kind,
                repr(cause),
            ),
        )
    )


@dataclass(frozen=True)
class _Share:
    """The contribution of matched rows of one side to a cause."""

    ns: float = 0.0
    sure: float = 1.0
    rows: tuple[Mapping[str, Any], ...] = ()
    """The rows, with what each adds in ``ns``."""
    kernels: tuple[Mapping[str, Any], ...] = ()
    counts: Mapping[str, float] = field(default_factory=dict)
    entries: tuple[Mapping[str, Any], ...] = ()
    """Host activity in idle time before launches, with what each adds in ``ns``."""
    after_syncs: float = 0.0
    """The part of it that is idle time after syncs."""


class _Sum:
    """A cause in the making."""

    def __init__(self, kind: Kind, affects: Affects, host_kind: str = "") -> None:
        self.kind: Kind = kind
        self.host_kind = host_kind
        self.affects: Affects = affects
        self.sides: tuple[list[_Share], list[_Share]] = ([], [])

    def add(self, pair: tuple[_Share, ...]) -> None:
        for side, share in zip(self.sides, pair, strict=True):
            side.append(share)

    def counted(self, name: str) -> float:
        """Return the increase of a count."""
        before, after = (
            sum(share.counts.get(name, 0.0) for share in side) for side in self.sides
        )
        return after - before

    @property
    def launch_ns(self) -> float:
        """Additional idle time of the GPU before launches, without that after syncs."""
        before, after = (
            sum(share.ns - share.after_syncs for share in side) for side in self.sides
        )
        return after - before

    def moved(self, ns: float, *, after: bool) -> Iterator[_Share]:
        """Yield a part of one side's idle time, by what the host did in it.

        First what has causes of its own where there are as many launches.
        """
        side = self.sides[after]
        entries = [row for share in side for row in share.entries]
        sure = min((share.sure for share in side if share.ns), default=1.0)
        own = [row for row in entries if row["kind"] in APART_IF_SAME]
        others = [row for row in entries if row["kind"] not in APART_IF_SAME]
        own_ns = min(ns, sum(row["ns"] for row in own))
        for rows, part in ((own, own_ns), (others, ns - own_ns)):
            whole = sum(row["ns"] for row in rows)
            scaled = [{**row, "ns": row["ns"] * part / whole} for row in rows if whole]
            yield _Share(ns=part, sure=sure, rows=tuple(scaled))

    def _label(self, row: Mapping[str, Any]) -> str:
        """Return the label of a row among the details."""
        own = self.kind != "casts" and row["role"] == "cast"
        return f"casts in {row['op']}" if own else row["op"]

    def cause(self) -> Cause:
        before, after = (_used(side) for side in self.sides)
        sure = [sum(share.ns * share.sure for share in side) for side in self.sides]
        kinds: Counter[str] = Counter()
        changes: Counter[tuple[str, tuple[Any, ...]]] = Counter()
        for sign, side in zip((-1, 1), self.sides, strict=True):
            for share in side:
                for row in share.kernels:
                    kinds[row["kind"] or ""] += row["gpu_ns"]
                for row in share.rows:
                    changes[self._label(row), _PLACE(row)] += sign * row["ns"]
        details = sorted(changes.items(), key=lambda one: (-abs(one[1]), one[0][0]))
        most = kinds.most_common(1)
        return Cause(
            kind=self.kind,
            affects=self.affects,
            ns=after.ns - before.ns,
            sure_ns=sure[1] - sure[0],
            kernel_kind=most[0][0] if most else "",
            host_kind=self.host_kind,
            before=before,
            after=after,
            details=tuple(
                Detail(ns, op, Place(*place))
                for (op, place), ns in details[:_MOST_DETAILS]
            ),
        )


def _used(shares: Iterable[_Share]) -> Used:
    shares = list(shares)
    names: Counter[str] = Counter()
    runs: Counter[str] = Counter()
    formats: Counter[str] = Counter()
    ops: Counter[str] = Counter()
    places: Counter[tuple[Any, ...]] = Counter()
    counts: Counter[str] = Counter()
    for share in shares:
        counts.update(share.counts)
        for kernel in share.kernels:
            names[kernel["name"]] += kernel["gpu_ns"]
            runs[kernel["name"]] += kernel["kernels"]
            formats[kernel["dtype"] or ""] += kernel["gpu_ns"]
        for row in share.rows:
            ops[row["op"]] += row["ns"]
            places[_PLACE(row)] += row["ns"]
    return Used(
        ns=sum(share.ns for share in shares),
        calls=counts["calls"],
        kernels=counts["kernels"],
        launches=counts["launches"],
        syncs=counts["syncs"],
        dtype=first(formats) or "",
        names=tuple((name, runs[name]) for name, _ in ranked(names)),
        ops=tuple(op for op, _ in ranked(ops)),
        place=Place(*first(places) or ()),
    )


def _limit_launches(groups: dict[tuple[object, ...], _Sum]) -> None:
    """Move what launches cannot cost to what the host does for the same launches.

    A launch more, with its op, takes at most MAX_HOST_TIME_PER_LAUNCH_NS, and none is
    less.
    """
    for group in [item for item in groups.values() if item.kind == "launches"]:
        more, change = group.counted("launches"), group.launch_ns
        most = MAX_HOST_TIME_PER_LAUNCH_NS * more
        beyond = change - min(max(change, min(most, 0.0)), max(most, 0.0))
        if not beyond:
            continue
        longer = beyond > 0
        own, others = group.moved(abs(beyond), after=longer)
        own = replace(own, entries=own.rows)
        for key, kind, affects, shares in _apart((own, _Share()), APART_IF_SAME):
            pair = shares[::-1] if longer else shares
            groups.setdefault(key, _Sum(kind, affects, str(key[1]))).add(pair)
        same = groups.setdefault(("same launches",), _Sum("same launches", "idle"))
        removed = _Share(ns=-abs(beyond), sure=own.sure)
        for target, share in ((same, others), (group, removed)):
            target.add((_Share(), share) if longer else (share, _Share()))


_Found = tuple[tuple[object, ...], Kind, Affects, tuple[_Share, ...]]


@dataclass(frozen=True)
class _Pair:
    """Matched rows of both sides, with their kernels and what the host did."""

    match: int
    rows: list[list[dict[str, Any]]]
    used: list[list[dict[str, Any]]]
    waits: list[list[dict[str, Any]]]

    @cached_property
    def counts(self) -> list[dict[str, float]]:
        """The numbers of each side."""
        return [
            {name: sum(row[name] for row in side) for name in NUMBERS}
            for side in self.rows
        ]


def _shares(
    before: Parts, after: Parts, scales: tuple[Scale, Scale], entries: Entries
) -> Iterator[_Found]:
    """Yield the contribution of each pair of matched rows, with its cause."""
    sides = aligned(before, after)
    waited = [
        _kernels(table, side) if table is not None else {}
        for table, side in zip(entries, sides, strict=True)
    ]
    numbers = [_numbered(side) for side in sides]
    kernels = [
        _kernels(parts.kernels, side)
        for parts, side in zip((before, after), sides, strict=True)
    ]
    affects: Affects = "host" if before.on_host else "gpu"
    for match in sorted(numbers[0].keys() | numbers[1].keys()):
        pair = _Pair(
            match,
            rows=[side.get(match, []) for side in numbers],
            used=[side.get(match, []) for side in kernels],
            waits=[side.get(match, []) for side in waited],
        )
        yield from _on_gpu(pair, scales, affects)
        yield from _idle(pair, scales)


def _on_gpu(
    pair: _Pair, scales: tuple[Scale, Scale], affects: Affects
) -> Iterator[_Found]:
    """Yield what the GPU's work of matched rows adds."""
    rows, used, counts = pair.rows, pair.used, pair.counts
    on_gpu = tuple(
        _share(side, used[index], counts[index], scales[index], ("gpu_ns",))
        for index, side in enumerate(rows)
    )
    if on_gpu[0].ns or on_gpu[1].ns:
        likeness = (rows[0] or rows[1])[0]["likeness"]
        kind = kind_of(likeness, rows, used, counts)
        yield key_of(kind, pair.match, rows, used), kind, affects, on_gpu


def _idle(pair: _Pair, scales: tuple[Scale, Scale]) -> Iterator[_Found]:
    """Yield what the GPU's waiting for the host in matched rows adds."""
    counts = pair.counts
    idle = tuple(
        _idle_share(side, pair.waits[index], counts[index], scales[index])
        for index, side in enumerate(pair.rows)
    )
    other = any(differ(counts, name) for name in ("launches", "syncs"))
    kinds = APART if other else APART_IF_SAME
    yield from _apart(idle, kinds)
    left = tuple(_not_apart(share, kinds) for share in idle)
    if other:
        yield ("launches", *where_of(pair.rows)), "launches", "idle", left
    elif left[0].ns or left[1].ns:
        same = tuple(replace(item, rows=item.entries or item.rows) for item in left)
        yield ("same launches",), "same launches", "idle", same


def _apart(idle: tuple[_Share, ...], kinds: tuple[str, ...]) -> Iterator[_Found]:
    """Yield the host activities that are causes of their own, by kind and name."""
    keys = {
        (row["kind"], row["op"])
        for share in idle
        for row in share.entries
        if row["kind"] in kinds
    }
    for kind, name in sorted(keys, key=repr):
        shares = []
        for share in idle:
            rows = tuple(
                row for row in share.entries if (row["kind"], row["op"]) == (kind, name)
            )
            ns = sum(row["ns"] for row in rows)
            counts = {"calls": sum(row["calls"] for row in rows)}
            shares.append(_Share(ns=ns, sure=share.sure, rows=rows, counts=counts))
        yield ("host", kind, name), "host", "idle", tuple(shares)


def _not_apart(share: _Share, kinds: tuple[str, ...]) -> _Share:
    entries = tuple(row for row in share.entries if row["kind"] not in kinds)
    removed = sum(row["ns"] for row in share.entries) - sum(
        row["ns"] for row in entries
    )
    whole = share.ns
    left = share.ns - removed
    rows = tuple(
        {**row, "ns": row["ns"] * left / whole if whole else 0.0} for row in share.rows
    )
    return replace(share, ns=left, rows=rows, entries=entries)


def _named(entry: Mapping[str, Any]) -> str:
    """Return the label of an entry: an op's name, else kind and name."""
    kind, name = entry["kind"], entry["name"]
    if not name:
        return str(kind)
    return str(name) if kind in (DISPATCH, *APART_IF_SAME) else f"{kind}, {name}"


def _idle_share(
    rows: list[dict[str, Any]],
    entries: list[dict[str, Any]],
    counts: Mapping[str, float],
    scale: Scale,
) -> _Share:
    share = _share(rows, (), counts, scale, ("launch_idle_ns", "sync_idle_ns"))
    return replace(
        share,
        after_syncs=sum(row["sync_idle_ns"] for row in rows) * scale.idle,
        entries=tuple(
            row
            | {
                "ns": row["ns"] * scale.idle,
                "op": _named(row),
                "module": None,
                "role": "",
            }
            for row in entries
        ),
    )


def _numbered(side: pl.DataFrame) -> dict[int, list[dict[str, Any]]]:
    by_number: dict[int, list[dict[str, Any]]] = {}
    for row in side.iter_rows(named=True):
        by_number.setdefault(row["match"], []).append(row)
    return by_number


def _kernels(
    kernels: pl.DataFrame, side: pl.DataFrame
) -> dict[int, list[dict[str, Any]]]:
    return _numbered(
        kernels.join(side.select("row", "match"), on="row", maintain_order="left")
    )


def _share(
    rows: list[dict[str, Any]],
    kernels: Iterable[Mapping[str, Any]],
    counts: Mapping[str, float],
    scale: Scale,
    columns: tuple[str, ...],
) -> _Share:
    factor = scale.gpu if columns == ("gpu_ns",) else scale.idle
    timed = tuple(
        row | {"ns": sum(row[name] for name in columns) * factor} for row in rows
    )
    return _Share(
        ns=sum(row["ns"] for row in timed),
        sure=1.0 if columns == ("gpu_ns",) else scale.sure,
        rows=timed,
        kernels=tuple(kernels),
        counts=counts,
    )
