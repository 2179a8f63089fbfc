"""Difference between digests, and its causes; no recording is needed."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Literal, TypeAlias

from msgspec import Struct

from traceq.history.jumps import NUMBERS, Name
from traceq.linter.same_finding import Extent, growth

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from traceq.history.digest import Digest, DigestFinding, Work

Kind = Literal[
    "casts",
    "copies",
    "syncs",
    "kernels",
    "other kernel",
    "kernel time",
    "host",
    "memory",
    "account",
]
"""Kind of difference: the number of casts, copies, syncs or other kernels, the kernel
of the same work, the time of the same kernels, the host's time before launches, memory
at the peak, or a part of the account where no work is known."""
State = Literal["new", "worse", "better", "gone"]

# A change of the time of the same kernels is one from this share of it on, and from
# this share of the step on. Heuristic thresholds: kernels of two runs differ by 1%.
_SAME_WORK, _OF_STEP = 0.03, 0.001
# The host's time for the same work varies more, as a share of the step.
_HOST_OF_STEP = 0.01
_LEAST_COUNT = 0.5
_MEMORY = 0.002
# A part of the change that is less than this share of the largest is not named.
_WORTH_NAMING = 0.1
_Key: TypeAlias = tuple[str, str, str, str, str]


class Amount(Struct, frozen=True):
    """A number before and after."""

    before: float
    after: float

    @property
    def change(self) -> float:
        """The increase."""
        return self.after - self.before


class Cause(Struct, frozen=True):
    """One cause of the difference."""

    kind: Kind
    amount: Amount
    """Time per step, or bytes of memory."""
    count: Amount | None = None
    """Number per step of what differs in number."""
    op: str = ""
    phase: str = ""
    module: str = ""
    where: str = ""
    kernels: tuple[str, str] = ("", "")
    """Families of the kernels, where they differ."""


class FindingChange(Struct, frozen=True):
    """A finding that is new, gone, worse or better."""

    state: State
    finding: DigestFinding
    """As it is, or was last."""
    saves_ns: Amount
    cost_bytes: Amount
    count: Amount


class Difference(Struct, frozen=True):
    """Difference between two groups of runs."""

    numbers: tuple[tuple[Name, Amount], ...]
    """Differences of both, the most important first."""
    causes: tuple[Cause, ...]
    """Those of the time first, largest first; then those of memory."""
    findings: tuple[FindingChange, ...]
    versions: tuple[tuple[str, str, str], ...]
    """Versions that differ: name, before and after."""

    def number(self, name: Name) -> Amount | None:
        """Return a number by name, if both have it."""
        return dict(self.numbers).get(name)


def difference(before: Sequence[Digest], after: Sequence[Digest]) -> Difference:
    """Return what differs; of several runs of a side, the medians are compared."""
    step_ns = max(_level(before, _step), _level(after, _step), 1.0)
    causes = [
        *_causes_of_time(before, after, step_ns),
        *_causes_of_memory(before, after),
    ]
    return Difference(
        tuple(_numbers(before, after)),
        tuple(causes),
        tuple(_findings(before, after, step_ns)),
        tuple(_versions(before[-1], after[0])),
    )


def _step(digest: Digest) -> float | None:
    return digest.step.ns if digest.step else None


_OF_DIGEST: Mapping[Name, Callable[[Digest], float | None]] = {
    "step": _step,
    "memory": lambda digest: digest.memory.allocated if digest.memory else None,
    "gpu busy": lambda digest: digest.busy_ns,
    "idle": lambda digest: digest.idle_ns,
    "reserved": lambda digest: digest.memory.reserved if digest.memory else None,
    "syncs": lambda digest: digest.syncs,
    "kernels": lambda digest: digest.kernels,
}


def _level(side: Sequence[Digest], number: Callable[[Digest], float | None]) -> float:
    values = [value for digest in side if (value := number(digest)) is not None]
    return median(values) if values else 0.0


def _numbers(
    before: Sequence[Digest], after: Sequence[Digest]
) -> Iterator[tuple[Name, Amount]]:
    for number in NUMBERS:
        of = _OF_DIGEST[number.name]
        if all(
            any(of(digest) is not None for digest in side) for side in (before, after)
        ):
            yield number.name, Amount(_level(before, of), _level(after, of))


def _versions(before: Digest, after: Digest) -> Iterator[tuple[str, str, str]]:
    old = before.versions | {"traceq": before.traceq}
    new = after.versions | {"traceq": after.traceq}
    for name in sorted(old.keys() & new.keys()):
        if old[name] != new[name]:
            yield name, old[name], new[name]


# -- Time ------------------------------------------------------------------------------


def _causes_of_time(
    before: Sequence[Digest], after: Sequence[Digest], step_ns: float
) -> list[Cause]:
    if all(digest.work for digest in (*before, *after)):
        causes = list(_causes_of_work(before, after, step_ns))
    else:
        causes = list(_causes_of_account(before, after, step_ns))
    causes.sort(key=lambda cause: (-abs(cause.amount.change), cause.op, cause.where))
    largest = abs(causes[0].amount.change) if causes else 0.0
    return [
        cause
        for cause in causes
        if abs(cause.amount.change) >= _WORTH_NAMING * largest or cause.kind == "syncs"
    ]


def _causes_of_account(
    before: Sequence[Digest], after: Sequence[Digest], step_ns: float
) -> Iterator[Cause]:
    sides = [
        _medians([{cause.name: cause.ns for cause in run.causes} for run in side])
        for side in (before, after)
    ]
    for name in dict.fromkeys((*sides[0], *sides[1])):
        amount = Amount(sides[0].get(name, 0.0), sides[1].get(name, 0.0))
        if abs(amount.change) >= _HOST_OF_STEP * step_ns:
            yield Cause("account", amount, op=name)


def _medians(runs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the median of each name over the runs; it is 0 where a run lacks it."""
    names = dict.fromkeys(name for run in runs for name in run)
    return {name: median(run.get(name, 0.0) for run in runs) for name in names}


def _causes_of_work(
    before: Sequence[Digest], after: Sequence[Digest], step_ns: float
) -> Iterator[Cause]:
    rows = [[_by_key(run.work) for run in side] for side in (before, after)]
    keys = dict.fromkeys(key for side in rows for run in side for key in run)
    idle = [0.0, 0.0]
    for key in keys:
        sides = [[run.get(key, _nothing(key)) for run in side] for side in rows]
        causes = _cause_of(sides[0], sides[1], step_ns)
        yield from causes
        if not any(
            cause.kind in ("syncs", "kernels", "casts", "copies") for cause in causes
        ):
            for at, side in enumerate(sides):
                idle[at] += median(work.idle_ns for work in side)
    if abs(idle[1] - idle[0]) >= _HOST_OF_STEP * step_ns:
        yield Cause("host", Amount(*idle))


def _by_key(rows: Iterable[Work]) -> dict[_Key, Work]:
    return {(row.phase, row.module, row.where, row.op, row.role): row for row in rows}


def _nothing(key: _Key) -> Work:
    from traceq.history.digest import Work  # noqa: PLC0415 - the type of its neighbours

    phase, module, where, op, role = key
    return Work(phase, module, where, op, role, "", 0, 0, 0, 0, 0, 0)


def _cause_of(
    before: Sequence[Work], after: Sequence[Work], step_ns: float
) -> list[Cause]:
    """Return what differs in the work of one op at one place."""

    def amount(of: Callable[[Work], float]) -> Amount:
        return Amount(*(median(map(of, side)) for side in (before, after)))

    def cause(kind: Kind, time: Amount, count: Amount | None = None) -> Cause:
        latest = after[-1]
        return Cause(
            kind,
            time,
            count,
            latest.op,
            latest.phase,
            latest.module,
            latest.where,
            (before[-1].kernel, after[-1].kernel),
        )

    gpu, idle = amount(lambda work: work.gpu_ns), amount(lambda work: work.idle_ns)
    syncs, kernels = amount(lambda work: work.syncs), amount(lambda work: work.kernels)
    causes = []
    if abs(syncs.change) >= _LEAST_COUNT:
        causes.append(cause("syncs", amount(lambda work: work.sync_ns), syncs))
    if abs(kernels.change) >= _LEAST_COUNT:
        kind = _KINDS.get(after[-1].role, "kernels")
        # Launches of other kernels take the host's time, too.
        both = Amount(gpu.before + idle.before, gpu.after + idle.after)
        return [*causes, cause(kind, both, kernels)]
    matters = abs(gpu.change) >= max(_SAME_WORK * gpu.before, _OF_STEP * step_ns)
    if matters:
        # Kernels that take about as long take turns as the longest.
        other = not {work.kernel for work in before} & {work.kernel for work in after}
        causes.append(cause("other kernel" if other else "kernel time", gpu))
    return causes


_KINDS: Mapping[str, Kind] = {"cast": "casts", "copy": "copies"}


# -- Memory ----------------------------------------------------------------------------


def _causes_of_memory(
    before: Sequence[Digest], after: Sequence[Digest]
) -> Iterator[Cause]:
    """Yield what holds more or less memory at the peak, largest first."""
    sides = [_held(side) for side in (before, after)]
    if not all(sides):
        return
    peak = max(_level(before, _OF_DIGEST["memory"]), 1.0)
    changes = []
    for key in dict.fromkeys((*sides[0], *sides[1])):
        amount = Amount(sides[0].get(key, 0.0), sides[1].get(key, 0.0))
        if abs(amount.change) >= _MEMORY * peak:
            category, _, where = key.partition("\n")
            changes.append(Cause("memory", amount, op=category, where=where))
    changes.sort(key=lambda change: -abs(change.amount.change))
    largest = abs(changes[0].amount.change) if changes else 0.0
    for change in changes:
        if abs(change.amount.change) >= _WORTH_NAMING * largest:
            yield change


def _held(side: Sequence[Digest]) -> dict[str, float]:
    known = [
        digest.memory.held for digest in side if digest.memory and digest.memory.held
    ]
    return _medians(
        [
            {f"{holder.category}\n{holder.where}": float(holder.size) for holder in run}
            for run in known
        ]
    )


# -- Findings --------------------------------------------------------------------------


def _findings(
    before: Sequence[Digest], after: Sequence[Digest], step_ns: float
) -> list[FindingChange]:
    old, new = (_most_have(side) for side in (before, after))
    changes = []
    for fingerprint in dict.fromkeys((*new, *old)):
        was, now = old.get(fingerprint), new.get(fingerprint)
        state = _state(was, now, step_ns)
        latest = now or was
        if state is None or latest is None:
            continue
        changes.append(
            FindingChange(
                state,
                latest,
                Amount(was.saves_ns if was else 0, now.saves_ns if now else 0),
                Amount(was.cost_bytes if was else 0, now.cost_bytes if now else 0),
                Amount(was.count if was else 0, now.count if now else 0),
            )
        )
    order: list[State] = ["new", "worse", "better", "gone"]
    changes.sort(
        key=lambda change: (
            order.index(change.state),
            -abs(change.saves_ns.change),
            -abs(change.cost_bytes.change),
            change.finding.fingerprint,
        )
    )
    return changes


def _most_have(side: Sequence[Digest]) -> dict[str, DigestFinding]:
    """Return the findings that most runs of a side have, as the last one has them."""
    counts: dict[str, int] = {}
    latest: dict[str, DigestFinding] = {}
    for run in side:
        for finding in run.findings:
            counts[finding.fingerprint] = counts.get(finding.fingerprint, 0) + 1
            latest[finding.fingerprint] = finding
    return {one: latest[one] for one, count in counts.items() if 2 * count > len(side)}


def _state(
    was: DigestFinding | None, now: DigestFinding | None, step_ns: float
) -> State | None:
    if was is None or now is None:
        return "new" if was is None else "gone"
    extents = [
        Extent(finding.count, finding.cost_bytes, finding.saves_ns)
        for finding in (was, now)
    ]
    became: dict[str, State] = {"grown": "worse", "shrunk": "better"}
    return became.get(growth(extents[0], extents[1], step_ns))
