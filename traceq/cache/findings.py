"""Lint results of a recording, serialized as JSON and read back.

Everything is stored except the findings' fixes, which only the replay needs; of the
step's bound, only the part that reports need is stored.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import orjson
from msgspec import Struct, structs, to_builtins

from traceq.cache import store
from traceq.model.facts import Facts
from traceq.model.finding import CodeFrame, Evidence, Finding, Place, Severity
from traceq.model.lint_report import (
    Allow,
    Allowed,
    Bound,
    Crashed,
    Entry,
    ExplainedIdle,
    Memory,
    Outcome,
    Replayed,
    Skipped,
    StepKinds,
    Together,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from traceq.model.lint_report import ByCause, Waits

_Json: TypeAlias = dict[str, Any]
_Value = TypeVar("_Value")


class KeptByCause(Struct, frozen=True):
    """The time of a step by cause, as it was kept."""

    rows: Sequence[tuple[str, float]]
    step_rows: Sequence[tuple[int, float, float]]
    idle_ns: float
    step_ns: float


class KeptWaits(Struct, frozen=True):
    """What the host does while the GPU waits for it, as it was kept."""

    idle_ns: float
    kind_rows: Sequence[tuple[str, float]]
    line_rows: Sequence[Mapping[str, Any]]
    largest: Entry | None


def encode(outcome: Outcome, notes: Sequence[str]) -> bytes:
    """Return an outcome, and what was said while it was loaded, as JSON.

    Raises ``ValueError`` or ``TypeError`` for what JSON cannot hold, as a float that
    is not a number.
    """
    plain = structs.replace(
        outcome,
        bound=None,
        findings=tuple(replace(one, fixes=()) for one in outcome.findings),
        allowed=tuple(
            structs.replace(one, finding=replace(one.finding, fixes=()))
            for one in outcome.allowed
        ),
    )
    bound = _maybe(_bound_data, outcome.bound)
    content = orjson.dumps(
        {"outcome": plain, "bound": bound, "notes": list(notes)}, default=_plain
    )
    known, said = decode(content)
    if (structs.replace(known, bound=None), said) != (plain, tuple(notes)) or _maybe(
        _bound_data, known.bound
    ) != bound:
        msg = "what lint reports cannot be written as JSON"
        raise ValueError(msg)
    return content


def decode(content: bytes) -> tuple[Outcome, tuple[str, ...]]:
    """Return the outcome and what was said, as they were encoded."""
    found = orjson.loads(content)
    outcome = _outcome(found["outcome"], _maybe(_bound, found["bound"]))
    return outcome, tuple(found["notes"])


def find(asked: store.Question | None) -> tuple[Outcome, tuple[str, ...]] | None:
    """Return the outcome, and what was said while it was loaded, if it is kept."""
    content = store.find_answer(asked) if asked else None
    if content is not None:
        with suppress(*store.TROUBLE):
            return decode(content)
    return None


def keep(asked: store.Question | None, outcome: Outcome, notes: Sequence[str]) -> None:
    """Keep an outcome; one with a rule that crashed is not worth it."""
    if asked is not None and not outcome.crashed:
        store.keep_answer(asked, lambda: encode(outcome, notes))


def _plain(value: object) -> dict[str, Any] | list[Any]:
    if isinstance(value, Struct):
        return structs.asdict(value)
    if isinstance(value, frozenset):
        return sorted(value)
    msg = f"{type(value).__name__} is not kept"
    raise TypeError(msg)


def _maybe(read: Callable[[Any], _Value], found: Any) -> _Value | None:  # noqa: ANN401
    return None if found is None else read(found)


def _outcome(found: _Json, bound: Bound | None) -> Outcome:
    read: dict[str, Any] = {
        "facts": _maybe(_facts, found["facts"]),
        "bound": bound,
        "findings": tuple(map(_finding, found["findings"])),
        "together": tuple(Together(**one) for one in found["together"]),
        "skipped": tuple(Skipped(**one) for one in found["skipped"]),
        "not_applicable": tuple(Skipped(**one) for one in found["not_applicable"]),
        "crashed": tuple(Crashed(**one) for one in found["crashed"]),
        "allowed": tuple(map(_allowed, found["allowed"])),
        "memory": _maybe(_memory, found["memory"]),
        "idle": _maybe(_idle, found["idle"]),
        "entry": _maybe(_place, found["entry"]),
        "replayed": _maybe(lambda one: Replayed(**one), found["replayed"]),
        "step_kinds": _maybe(lambda one: StepKinds(**one), found["step_kinds"]),
    }
    return Outcome(**(found | read))


def _facts(found: _Json) -> Facts:
    return Facts(**(found | {"damage": tuple(found["damage"])}))


def _finding(found: _Json) -> Finding:
    read: dict[str, Any] = {
        "severity": Severity(found["severity"]),
        "place": _place(found["place"]),
        "fixes": (),
        "evidence": tuple(Evidence(**one) for one in found["evidence"]),
        "explains": frozenset(found["explains"]),
        "confirmed_by": frozenset(found["confirmed_by"]),
        "frame": _maybe(_frame, found["frame"]),
        "ops": frozenset(found["ops"]),
        "kernels": frozenset(found["kernels"]),
        "calls": frozenset(found["calls"]),
    }
    return Finding(**(found | read))


def _place(found: _Json) -> Place:
    return Place(**found)


def _frame(found: _Json) -> CodeFrame:
    return CodeFrame(**(found | {"lines": tuple(found["lines"])}))


def _allowed(found: _Json) -> Allowed:
    entry = _maybe(lambda one: Allow(**one), found["entry"])
    return Allowed(_finding(found["finding"]), found["reason"], entry)


def _memory(found: _Json) -> Memory:
    return Memory(**(found | {"damage": tuple(found["damage"])}))


def _idle(found: _Json) -> ExplainedIdle:
    read: dict[str, Any] = {
        "residual": tuple(found["residual"]),
        "unexplained": _maybe(lambda one: Entry(**one), found["unexplained"]),
    }
    return ExplainedIdle(**(found | read))


def _bound_data(bound: Bound) -> _Json:
    return structs.asdict(bound) | {
        "bottleneck": _maybe(_by_cause_data, bound.bottleneck),
        "waits": _maybe(_waits_data, bound.waits),
    }


def _bound(found: _Json) -> Bound:
    read: dict[str, Any] = {
        "bottleneck": _maybe(_by_cause, found["bottleneck"]),
        "waits": _maybe(_waits, found["waits"]),
    }
    return Bound(**(found | read))


def _by_cause_data(found: ByCause) -> _Json:
    return {
        "rows": list(map(list, found.rows)),
        "step_rows": list(map(list, found.step_rows)),
        "idle_ns": found.idle_ns,
        "step_ns": found.step_ns,
    }


def _by_cause(found: _Json) -> KeptByCause:
    rows = {key: tuple(map(tuple, found[key])) for key in ("rows", "step_rows")}
    return KeptByCause(**(found | rows))


def _waits_data(waits: Waits) -> _Json:
    return {
        "idle_ns": waits.idle_ns,
        "kind_rows": list(map(list, waits.kind_rows)),
        "line_rows": list(waits.line_rows),
        "largest": waits.largest and to_builtins(waits.largest),
    }


def _waits(found: _Json) -> KeptWaits:
    read: dict[str, Any] = {
        "kind_rows": tuple(map(tuple, found["kind_rows"])),
        "largest": _maybe(lambda one: Entry(**one), found["largest"]),
    }
    return KeptWaits(**(found | read))
