"""Matching of findings between runs, and the growth of each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol, TypeVar

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

Growth = Literal["grown", "shrunk", "same"]

TOLERANCE = 0.1
"""A finding has the same size if it differs by no more than this share."""
# From run to run, times of one program differ by about this share of a step. Both are
# heuristic thresholds.
_NOISE = 0.02


class Comparable(Protocol):
    """The comparable part of a finding, new or stored in a file."""

    @property
    def code(self) -> str:
        """The rule's code."""

    @property
    def subject(self) -> str:
        """The subject, as an op's name."""

    @property
    def fingerprint(self) -> str:
        """Code, place and subject in one."""

    @property
    def count(self) -> int:
        """Number of occurrences per step."""

    @property
    def cost_bytes(self) -> int:
        """The memory that it costs."""

    @property
    def saves_ns(self) -> int | None:
        """The time that a fix saves; None where times are not compared."""


Old = TypeVar("Old", bound=Comparable)
New = TypeVar("New", bound=Comparable)


class Extent(Struct, frozen=True):
    """Extent of a finding in one run, per step."""

    count: int
    cost_bytes: int = 0
    saves_ns: int | None = None


def extent(findings: Iterable[Comparable]) -> Extent:
    """Return the total extent of the findings of one fingerprint."""
    all_findings = list(findings)
    times = [
        finding.saves_ns for finding in all_findings if finding.saves_ns is not None
    ]
    return Extent(
        sum(finding.count for finding in all_findings),
        sum(finding.cost_bytes for finding in all_findings),
        sum(times) if times else None,
    )


def growth(before: Extent, after: Extent, step_ns: float = 0) -> Growth:
    """Return whether a finding has grown: by cost if that changed, else by count.

    What differs by less than the tolerance is the same; so is a time that differs by
    less than the noise of a step.
    """
    for old, new, noise in (
        (before.cost_bytes, after.cost_bytes, 0.0),
        (before.saves_ns, after.saves_ns, _NOISE * step_ns),
        (before.count, after.count, 0.0),
    ):
        if old is None or new is None:
            continue
        if abs(new - old) > max(TOLERANCE * min(old, new), noise):
            return "grown" if new > old else "shrunk"
    return "same"


def matched(
    before: Iterable[Old], after: Iterable[New], *, by_place: bool = True
) -> list[tuple[list[Old], list[New]]]:
    """Return the findings of two runs that are the same one, before and after.

    One fingerprint may have several, as at two lines of a function, or none on one
    side. Where one run has no places, for it has no stacks, what is left is matched by
    what it is about.
    """
    groups = _grouped(before, after, lambda comparable: comparable.fingerprint)
    if by_place:
        return groups
    lone = [group for group in groups if not all(group)]
    return [group for group in groups if all(group)] + _grouped(
        [item for old, _ in lone for item in old],
        [item for _, new in lone for item in new],
        lambda comparable: (comparable.code, comparable.subject),
    )


def _grouped(
    before: Iterable[Old], after: Iterable[New], key: Callable[[Comparable], object]
) -> list[tuple[list[Old], list[New]]]:
    groups: dict[object, tuple[list[Old], list[New]]] = {}
    for old in before:
        groups.setdefault(key(old), ([], []))[0].append(old)
    for new in after:
        groups.setdefault(key(new), ([], []))[1].append(new)
    return list(groups.values())
