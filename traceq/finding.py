"""What lint and diff report: one thing that is wrong, where, and what it costs."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

    import polars as pl

Json: TypeAlias = "str | int | float | bool | list[Json] | dict[str, Json] | None"

# The number of an instance: every layer has the same finding, and so one fingerprint.
_INSTANCE = re.compile(r"_\d+(?=/|$)")


class Severity(str, Enum):
    """How much a finding matters; only those at or above ``fail-on`` fail a run."""

    info = "info"
    warning = "warning"
    error = "error"

    @property
    def rank(self) -> int:
        """Return a number that grows with how much the finding matters."""
        return list(Severity).index(self)


@dataclass(frozen=True)
class Place:
    """Where in the user's own program; any part may be unknown."""

    file: str | None = None
    line: int | None = None
    function: str | None = None
    module: str | None = None

    @property
    def key(self) -> str:
        """Return what stays the same when lines move and layers are counted anew."""
        if self.file:
            return f"{self.file}:{self.function or ''}"
        return _INSTANCE.sub("", self.module or "")


NOWHERE = Place()


@dataclass(frozen=True)
class Evidence:
    """One line of what the finding was seen by."""

    what: str
    """As ``kernel``, ``op``, ``shapes``."""
    text: str


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong."""

    code: str
    name: str
    """The rule's name, as implicit-device-sync."""
    severity: Severity
    message: str
    """The sentence that says it."""
    advice: str
    """What to write instead."""
    place: Place
    subject: str
    """What it is about, as an op's name; never a time, a count or an id."""
    count: int
    """How often it happens in a step, or in the trace where there are no steps."""
    gpu_ns: int
    """Time of its kernels per step that a fix saves; without any, of an idle GPU."""
    host_ns: int
    """Time of the host per step, as recorded, that a fix saves."""
    evidence: tuple[Evidence, ...] = ()
    data: Mapping[str, Json] = field(default_factory=dict)
    """The evidence once more, for programs."""
    general: bool = False
    """It says what is left rather than what is wrong: the causes come before it."""
    explains: frozenset[str] = frozenset()
    """Codes of findings that this one, seen in a log, is the reason of."""
    cost_ns: int = 0
    """What a step gets shorter by without it: the engine's replay says."""
    least_ns: int = 0
    """The same, with a host as fast or slow as it may be: the least of it."""
    most_ns: int = 0
    cost_bytes: int = 0
    """Memory that it holds, or that would be saved; 0 if it is not about memory."""
    ops: frozenset[int] = field(default=frozenset(), repr=False, compare=False)
    """The ops it was seen by."""
    kernels: frozenset[int] = field(default=frozenset(), repr=False, compare=False)
    """The kernels it was seen by."""
    calls: frozenset[int] = field(default=frozenset(), repr=False, compare=False)
    """The runtime calls it was seen by, where these are in no op."""
    waits: frozenset[int] = field(default=frozenset(), repr=False, compare=False)
    """The runtime calls that do not wait any more without it, and nothing else."""
    spans: pl.DataFrame | None = field(default=None, repr=False, compare=False)
    """When the host was at it, where that is not when its ops and calls ran."""

    @property
    def fingerprint(self) -> str:
        """Return what is the same for the same finding in another run."""
        text = f"{self.code}\n{self.place.key}\n{self.subject}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]
