"""Base class of remedies, and their questions to the program."""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Mapping

START = "start"  # of the process: needs a restart
BEFORE_MODEL = "before_model"  # needs a restart, too
BETWEEN_STEPS = "between_steps"

EXACT = "exact"
ROUNDING = "rounding"
CHANGES_RESULTS = "changes_results"

Counts = Mapping[str, int]


class Base:
    """One change to a program that runs.

    ``apply`` and ``undo`` are called between two steps, any number of times, in turns.
    An error of ``apply`` makes the remedy *failed*; the program goes on without it.
    """

    name = ""
    rules: tuple[str, ...] = ()
    """Rules whose findings it addresses."""
    advice = ""
    """Words of the advice of these findings, if they may need something else."""
    summary = ""
    when = BETWEEN_STEPS
    kind = EXACT
    edit = ""
    """The change of the source that does the same."""
    settle = 0
    """Steps after a switch that are not measured, if it needs more than others."""
    first = 6
    """Steps after the first switch: kernels are loaded, memory is allocated."""
    slow = False
    """True if the first switch takes long: a short trial leaves it out."""
    recompiles = False
    """True if torch.compile compiles code again when it is switched."""
    counts = False
    """True if ``used`` shows after two steps that it does nothing."""
    environment: Mapping[str, str] = {}
    """Variables that a restarted program needs."""
    plain_mean = False
    """True if it shortens rare long steps: the mean counts, not the median."""

    def __init__(self) -> None:
        self.used = 0
        """Calls that it has changed."""
        self.error = ""
        """Reason that it cannot go on: it has undone itself."""

    def why_not(self, program: Any) -> str:
        """Return why it cannot be applied to this program; empty if it can."""
        raise NotImplementedError

    def apply(self, program: Any) -> None:
        """Switch it on."""
        raise NotImplementedError

    def undo(self, program: Any) -> None:
        """Switch it off: everything is as it was."""
        raise NotImplementedError

    def step(self) -> None:
        """Do what is due at the end of each step while it is on."""

    def idle(self) -> str:
        """Return why the first steps with it were no different; empty if they were."""
        return ""

    def proof(self, before: Counts, after: Counts) -> str:
        """Return what in the names of ops and kernels shows its effect."""
        return changed(before, after)


class Patches:
    """Attributes that were replaced, and what they were."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Replace an attribute."""
        inherited = isinstance(owner, type) and name not in vars(owner)
        before = getattr(owner, name)
        setattr(owner, name, value)
        if inherited:
            self._undo.append(lambda: delattr(owner, name))
        else:
            self._undo.append(lambda: setattr(owner, name, before))

    def call(self, undo: Callable[[], None]) -> None:
        """Have ``undo`` called when all is taken back."""
        self._undo.append(undo)

    def undo(self) -> None:
        """Take everything back, the last first."""
        while self._undo:
            with contextlib.suppress(Exception):
                self._undo.pop()()


def changed(before: Counts, after: Counts) -> str:
    """Return the names that came or went, in a few words; empty if none did."""
    new = sorted(set(after) - set(before))
    removed = sorted(set(before) - set(after))
    parts = [f"{len(new)} new names, as {new[0][:80]}"] if new else []
    if removed:
        parts.append(f"{len(removed)} gone, as {removed[0][:80]}")
    return "; ".join(parts)


def has(names: Counts | None, *parts: str) -> bool:
    """Return whether a name has one of these parts; True where names are unknown."""
    if names is None:
        return True
    return any(part in name for name in names for part in parts)
