"""Base class of rules: one file each, with a page, options and examples."""

from __future__ import annotations

import inspect
import re
from dataclasses import MISSING, dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from traceq.common.words import rule_name
from traceq.model.finding import (
    NOWHERE,
    Effort,
    Evidence,
    Finding,
    Fix,
    Json,
    Place,
    Severity,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import polars as pl

    from traceq.linter.need import Need
    from traceq.linter.snapshot_view import SnapshotView
    from traceq.linter.view import View

_EXAMPLE = re.compile(r"^```diff\n(.*?)\n```$", re.DOTALL | re.MULTILINE)

Value = TypeVar("Value", bool, int, float, str)


@dataclass(frozen=True)
class Bad:
    """A drawn trace in which the rule finds something."""

    drawing: str
    finds: str | tuple[str, ...]
    """The finding's sentence, or those of several, worst first."""
    args: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Arguments of the drawn events, by name."""
    log: str = ""
    history: str = ""
    """A drawn memory snapshot."""
    ranks: tuple[str, ...] = ()
    """Drawn traces of the ranks of a job."""

    @property
    def sentences(self) -> tuple[str, ...]:
        """The sentences to find."""
        return (self.finds,) if isinstance(self.finds, str) else self.finds


@dataclass(frozen=True)
class Good:
    """A drawn trace in which the rule finds nothing."""

    drawing: str
    args: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    log: str = ""
    history: str = ""
    ranks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Seen:
    """A finding of the rule as lint prints it, for its page."""

    text: str
    of: str = ""
    """Arguments of lint: the recording of traceq's repository that was linted; if none,
    the first ``Bad`` example."""


def inputs(
    dims: Sequence[Sequence[int]],
    types: Sequence[str],
    strides: Sequence[Sequence[int]] | None = None,
    values: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Return an op's arguments as the profiler writes them, for a drawn trace."""
    arguments: dict[str, Any] = {"Input Dims": list(dims), "Input type": list(types)}
    if strides is not None:
        arguments["Input Strides"] = list(strides)
    if values is not None:
        arguments["Concrete Inputs"] = list(values)
    return arguments


def option(default: Value, meaning: str) -> Value:
    """Declare an option of a rule: its default, and what it means in one sentence."""
    return field(default=default, metadata={"meaning": meaning})


@dataclass(frozen=True)
class Option:
    """An option as the configuration sees it."""

    name: str
    default: bool | float | str
    meaning: str


@dataclass(frozen=True)
class Rule:
    """One thing to look for. Subclasses are its page: their docstring, and examples.

    A rule looks at a trace (``check``), or at a program's log (``check_log``), a memory
    snapshot (``check_snapshot``) or all ranks of a job (``check_job``) if it needs one.
    """

    code: ClassVar[str]
    since: ClassVar[str] = ""
    """The version of traceq, or of your pack, that first had it."""
    preview: ClassVar[bool] = False
    """True for a rule on trial: its findings are shown, but never fail a run."""
    severity: ClassVar[Severity] = Severity.warning
    needs: ClassVar[frozenset[Need]] = frozenset()
    advice: ClassVar[str] = ""
    effort: ClassVar[Effort] = ""
    """What the fix takes, where that is the same for all findings: an edit of a line or
    a rewrite. An edit stays a finding of its own beside a rewrite that removes the
    same."""
    priced: ClassVar[bool] = True
    """True if a finding that costs next to nothing becomes minor."""
    of_function: ClassVar[bool] = False
    """It finds functions: a finding names one, and no line of it."""
    several_fixes: ClassVar[bool] = False
    """Findings differ in their fix: the page's example would not fit all of them."""
    residual: ClassVar[bool] = False
    """True if it reports what no other rule explains, and so comes last."""
    general: ClassVar[bool] = False
    """True if it reports whatever is left, so that it comes after other residual rules,
    which name a cause."""
    without_gpu: ClassVar[bool] = False
    """True if the program's ops and stacks alone show it: it also looks at recordings
    without GPU work, where its findings would matter on a GPU."""
    leads: ClassVar[bool] = False
    """True if it doubts the recording: it comes first among findings of its
    severity."""
    examples: ClassVar[tuple[Bad | Good, ...]] = ()
    seen: ClassVar[Seen | None] = None
    """A finding of the rule, as lint prints it."""
    see: ClassVar[tuple[str, ...]] = ()
    """Names in torch's documentation, as torch.compile."""

    @classmethod
    def name(cls) -> str:
        """Return the rule's name: that of its class, as implicit-device-sync."""
        return rule_name(cls.__name__)

    @classmethod
    def page(cls) -> str:
        """Return the rule's documentation."""
        return inspect.cleandoc(cls.__doc__ or "")

    @classmethod
    def summary(cls) -> str:
        """Return the first sentence of the rule's documentation."""
        return cls.page().partition("\n")[0]

    @classmethod
    def example(cls, number: int = 0) -> str:
        """Return the page's code before and after a fix, as a diff; or nothing."""
        examples = _EXAMPLE.findall(cls.page())
        return examples[number] if number < len(examples) else ""

    @classmethod
    def options(cls) -> tuple[Option, ...]:
        """Return the rule's options."""
        return tuple(
            Option(
                item.name.replace("_", "-"),
                item.default,
                # A plain field of a pack's rule says nothing of what it means.
                item.metadata.get("meaning", ""),
            )
            for item in fields(cls)
            if item.default is not MISSING
        )

    def check(self, view: View) -> Iterator[Finding]:
        """Yield the findings in the steady part of a trace."""
        raise NotImplementedError

    def check_without_gpu(self, view: View) -> Iterator[Finding]:
        """Yield what would matter on a GPU in a trace without GPU work.

        It is asked of rules that are ``without_gpu``. In the view each op that computes
        has a kernel, whose times are those of the CPU; ``check`` will do for rules that
        look at ops and their order.
        """
        return self.check(view)

    def check_log(self, log: pl.DataFrame) -> Iterator[Finding]:
        """Yield the findings in a program's log, with columns ``line`` and ``text``."""
        raise NotImplementedError

    def check_snapshot(self, view: SnapshotView) -> Iterator[Finding]:
        """Yield the findings in a memory snapshot."""
        raise NotImplementedError

    def check_job(self, job: Any) -> Iterator[Finding]:  # noqa: ANN401 - built on lint
        """Yield the findings among the ranks of a job, a ``ranks.analysis.Analysis``.

        What a fix saves is part of these findings: ``saves_ns`` is by the job's replay.
        """
        raise NotImplementedError

    def finding(  # noqa: PLR0913 - a finding has this many sides
        self,
        message: str,
        *,
        subject: str,
        place: Place = NOWHERE,
        count: float = 1,
        fix: Fix | Sequence[Fix] = (),
        gpu_idle_ns: float = 0,
        cost_bytes: float = 0,
        evidence: Iterable[Evidence] = (),
        data: Mapping[str, Json] | None = None,
        advice: str | None = None,
        example: str | None = None,
        severity: Severity | None = None,
        effort: Effort | None = None,
        explains: Iterable[str] = (),
        confirmed_by: Iterable[str] = (),
        ops: Iterable[int] = (),
        kernels: Iterable[int] = (),
        calls: Iterable[int] = (),
    ) -> Finding:
        """Return a finding of this rule; times and counts are per step.

        ``fix`` is what a fix removes, in parts where their shares differ. ``example``
        is another than the first of the page, or none. Ops, kernels and calls are what
        the finding was seen by, as far as they are not the fix's.
        """
        fixes = (fix,) if isinstance(fix, Fix) else tuple(fix)
        if example is None:
            example = "" if self.several_fixes else self.example()
        _text(message=message, subject=subject, advice=advice or "")
        return Finding(
            code=self.code,
            name=self.name(),
            severity=Severity.info if self.preview else severity or self.severity,
            message=message,
            advice=self.advice if advice is None else advice,
            place=place,
            subject=subject,
            count=round(count),
            fixes=fixes,
            gpu_idle_ns=round(gpu_idle_ns),
            cost_bytes=round(cost_bytes),
            evidence=tuple(item for item in evidence if item),
            data=data or {},
            residual=self.residual,
            leads=self.leads,
            effort=self.effort if effort is None else effort,
            doubt="preview" if self.preview else "",
            example=example,
            explains=frozenset(explains),
            confirmed_by=frozenset(confirmed_by),
            ops=frozenset(ops).union(*(item.ops for item in fixes)),
            kernels=frozenset(kernels).union(*(item.kernels for item in fixes)),
            calls=frozenset(calls).union(
                *((*item.calls, *item.syncs) for item in fixes)
            ),
        )


def _text(**parts: object) -> None:
    """Raise a TypeError for what reports could not write."""
    for name, value in parts.items():
        if not isinstance(value, str):
            msg = f"the {name} of a finding is text, not {type(value).__name__}"
            raise TypeError(msg)
