"""Findings of lint and diff: the problem, its place and the savings of a fix."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

from traceq.common.words import layer_name

_LINE = re.compile(r":\d+(?=\)$)")

# The decoder of cached findings reads types at run time: it needs no polars, and
# resolves no alias that contains itself.
if TYPE_CHECKING:
    import polars as pl

    Json: TypeAlias = "str | int | float | bool | list[Json] | dict[str, Json] | None"
    Spans: TypeAlias = pl.DataFrame
else:
    Json = Spans = Any


LineIs: TypeAlias = Literal["call", "function"]
Doubt: TypeAlias = Literal["", "preview", "uncertain", "optional", "later"]
Effort: TypeAlias = Literal["", "edit", "rewrite"]


class Severity(str, Enum):
    """Severity of a finding; only those at or above ``fail-on`` fail a run."""

    info = "info"
    warning = "warning"
    error = "error"

    @property
    def rank(self) -> int:
        """Return a number that grows with how much the finding matters."""
        return list(Severity).index(self)


@dataclass(frozen=True)
class Place:
    """A place in the user's own program; any part may be unknown."""

    file: str | None = None
    line: int | None = None
    """As ``line_is`` says: the line that runs, or the one where its function begins."""
    function: str | None = None
    module: str | None = None
    line_is: LineIs = "function"
    begins: int | None = None
    """The first line of the function, if ``line`` is another one."""
    ends: int | None = None
    """The last line of the function, where its source is at hand."""
    other_lines: int = 0
    """Number of other lines of the function with the same finding."""
    via: str | None = None
    """The library's function that it is in, which the user's calls: f (file:line)."""
    path: str | None = None
    """The file in the repository, where it is found there."""

    @property
    def source(self) -> str | None:
        """The file as it is named in the repository, else as it was recorded."""
        return self.path or self.file

    @property
    def exact(self) -> bool:
        """True if ``line`` is the line itself, not the start of its function."""
        return self.line is not None and self.line_is == "call"

    @property
    def lines(self) -> tuple[int, int] | None:
        """The first and last line to mark: one line, or a function as far as known."""
        if self.line is None or self.line < 1:
            return None
        last = self.line if self.exact or self.ends is None else self.ends
        return self.line, max(self.line, last)

    @property
    def key(self) -> str:
        """Return the key, which stays the same when lines and layer numbers change."""
        via = f" via {_LINE.sub('', self.via)}" if self.via else ""
        if self.file or via:
            return f"{self.file or ''}:{self.function or ''}{via}"
        return layer_name(self.module or "")


NOWHERE = Place()


@dataclass(frozen=True)
class CodeFrame:
    """A few lines of the source around a place."""

    first: int
    """The number of the first one."""
    lines: tuple[str, ...]
    marked: int
    """The number of the line that the place is at."""


Unit = Literal["", "ns", "bytes", "share"]


@dataclass(frozen=True)
class Evidence:
    """One thing that a finding was seen by, as data; reports put it into words."""

    label: str
    """As ``kernel``, ``op``, ``shapes``."""
    name: str = ""
    """The name of a kernel or an op, shapes, a dtype, or a few words."""
    value: int | float | None = None
    """A number, per step or each, as ``note`` says."""
    unit: Unit = ""
    """Unit of the number; without one it is a count."""
    count: int | float | None = None
    """Occurrences per step, where that is not the value itself."""
    note: str = ""
    """Qualification of the number, as ``each`` or ``of the step``."""

    def __bool__(self) -> bool:
        """Return whether there is anything behind the label."""
        return bool(self.name) or self.value is not None or self.count is not None


LED = "with"
"""Label of the evidence that another finding leads, as it has the same fix."""
COVERED = "saves next to nothing once"
"""Beginning of the reason of a finding that is minor beside another one."""


@dataclass(frozen=True, eq=False)
class Fix:
    """The part of the steps that a fix removes: the replayed step goes without it.

    Everything is given by id, so by row, of the trace's tables. What is not removed
    whole is removed in part: by the share of its time that goes.
    """

    kernels: Collection[int] = ()
    """Work on the GPU that goes, or gets faster."""
    kernel_share: float = 1.0
    """The share of its time that goes."""
    ops: Collection[int] = ()
    """Operators whose time on the host goes."""
    calls: Collection[int] = ()
    """Runtime calls outside of these operators whose time on the host goes."""
    spans: Spans | None = field(default=None, repr=False)
    """Host time that is removed, ``start`` and ``end``; instead of ops and calls."""
    host_share: float = 1.0
    """The share of that time of the host that goes."""
    syncs: Collection[int] = ()
    """Runtime calls that do not block any more; what else they do stays."""


def _message(finding: Finding) -> str:
    from html import escape  # noqa: PLC0415 - few ask

    return escape(finding.message)


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong."""

    code: str
    name: str
    """The rule's name, as implicit-device-sync."""
    severity: Severity
    message: str
    """The sentence that says it: with counts, without times, which are evidence."""
    advice: str
    """Advice on the code to write instead."""
    place: Place
    subject: str
    """The subject, as an op's name; never a time, a count or an id."""
    count: int
    """Occurrences per step, or in the trace where there are no steps."""
    fixes: tuple[Fix, ...] = field(default=(), repr=False, compare=False)
    """The parts of the steps that the fix removes, all together, where that is time."""
    kernel_ns: int = 0
    """Time of kernels per step that the fix removes."""
    gpu_idle_ns: int = 0
    """Time per step in which the GPU idled because of it, as recorded."""
    host_ns: int = 0
    """Time of the host per step that the fix removes, as recorded."""
    evidence: tuple[Evidence, ...] = ()
    data: Mapping[str, Json] = field(default_factory=dict)
    """Other data for programs: shapes, ids, names of the log."""
    would_matter_on_gpu: bool = False
    """It was seen in a program that ran without a GPU: it says nothing about what the
    fix saves."""
    residual: bool = False
    """It reports what no other finding explains, and so comes after them."""
    leads: bool = False
    """It doubts the recording, and so comes before others of its severity."""
    explains: frozenset[str] = frozenset()
    """Codes of findings that this one, seen in a log, is the reason of."""
    confirmed_by: frozenset[str] = frozenset()
    """Codes one of which must be found too, or this one, seen in a log, is minor."""
    saves_ns: int = 0
    """Savings per step with the fix, by the engine's replay."""
    saves_low_ns: int = 0
    """The same, with the host as fast or as slow as it may be: the lowest."""
    saves_high_ns: int = 0
    """The highest."""
    saves_after_ns: int | None = None
    """The same once the findings before it in the list are fixed; none if that is not
    known, or if it saves no time."""
    after: tuple[str, ...] = ()
    """Codes of findings to fix first, if it saves time only then; ``saves_ns`` is after
    them and all others before it in the list. Or of the one that removes the same."""
    saves_alone_ns: int | None = None
    """Savings without these, where ``after`` is not empty."""
    minor: str = ""
    """The reason that it is minor: how little it saves. Empty if it is not minor."""
    doubt: Doubt = ""
    """The reason that it fails no run though it is not minor: its rule is on trial, the
    recording allows another explanation, the memory is worth the change only if it is
    short, or it saves time only later, after others."""
    effort: Effort = ""
    """What its fix takes: an edit of a line or a few, or a rewrite, as of a loop or of
    the step as a CUDA graph. Empty where that depends on the program."""
    cost_bytes: int = 0
    """Memory that it holds, or that would be saved; 0 if it is not about memory."""
    example: str = field(default="", repr=False, compare=False)
    """Code before and after the fix, from the rule's page: an example, as a diff."""
    frame: CodeFrame | None = field(default=None, repr=False, compare=False)
    """The source around its place, where that is at hand and has not changed."""
    ops: frozenset[int] = field(default=frozenset(), repr=False, compare=False)
    """The ops it was seen by."""
    kernels: frozenset[int] = field(default=frozenset(), repr=False, compare=False)
    """The kernels it was seen by."""
    calls: frozenset[int] = field(default=frozenset(), repr=False, compare=False)
    """The runtime calls it was seen by, where these are in no op."""

    html: ClassVar[Callable[[Finding], str]] = _message
    """Renderer for notebooks, which the package that renders registers."""

    @property
    def gpu_ns(self) -> int:
        """Time of the GPU per step that it is about: of kernels, else idle."""
        return self.kernel_ns or self.gpu_idle_ns

    @property
    def fingerprint(self) -> str:
        """Return the fingerprint, which the same finding has in every run."""
        text = f"{self.code}\n{self.place.key}\n{self.subject}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def _repr_html_(self) -> str:
        return Finding.html(self)
