"""Lint results of a recording, serialized as JSON and read back.

Everything is stored except the findings' fixes, which only the replay needs; of the
step's bound, only the part that reports need is stored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from typing import Any

import msgspec
from msgspec import Struct, json, structs

from traceq.cache import store
from traceq.model.finding import Finding
from traceq.model.lint_report import (
    Bound,
    HostTimeEntry,
    IdleBreakdown,
    Number,
    RecordingReport,
    TimeByCause,
)

# JSON nested too deeply raises RecursionError.
_UNREADABLE = (*store.CACHE_ERRORS, RecursionError)


class CachedTimeByCause(Struct, frozen=True):
    """The time of a step by cause, from the cache."""

    rows: tuple[tuple[str, Number], ...]
    step_rows: tuple[tuple[int, Number, Number], ...]
    idle_ns: Number
    step_ns: Number


class CachedIdleBreakdown(Struct, frozen=True):
    """Host activity while the GPU waits for the host, from the cache."""

    idle_ns: Number
    kind_rows: tuple[tuple[str, Number], ...]
    line_rows: tuple[Mapping[str, Any], ...]
    largest: HostTimeEntry | None


class _Answer(Struct, frozen=True):
    """The content of a file of the cache."""

    outcome: RecordingReport
    notes: tuple[str, ...]


_CACHED: Mapping[type, type[Struct]] = {
    TimeByCause: CachedTimeByCause,
    IdleBreakdown: CachedIdleBreakdown,
}


def encode(outcome: RecordingReport, notes: Sequence[str]) -> bytes:
    """Return an outcome, and the notices of its loading, as JSON.

    Raises ``ValueError`` or ``TypeError`` for what does not come back from JSON as it
    was, such as a float that is not a number.
    """
    answer = _Answer(storable(outcome), tuple(notes))
    try:
        content = json.encode(answer)
        decoded = _decoder().decode(content)
        # Equal is not the same: 2 equals 2.0, and reports print them differently.
        same = decoded == answer and _ordered(decoded) == _ordered(answer)
    except (OverflowError, RecursionError) as error:
        raise ValueError(str(error)) from error
    if not same:
        msg = "what lint reports cannot be written as JSON"
        raise ValueError(msg)
    return content


def decode(content: bytes) -> tuple[RecordingReport, tuple[str, ...]]:
    """Return the outcome and the notices, as they were encoded."""
    answer = _decoder().decode(content)
    return answer.outcome, answer.notes


def storable(outcome: RecordingReport) -> RecordingReport:
    """Return the outcome as plain data, without what is not stored."""
    return structs.replace(
        outcome,
        bound=outcome.bound and _storable_bound(outcome.bound),
        findings=tuple(map(_without_fixes, outcome.findings)),
        allowed=tuple(
            structs.replace(allowed, finding=_without_fixes(allowed.finding))
            for allowed in outcome.allowed
        ),
    )


def load(
    question: store.Question | None,
) -> tuple[RecordingReport, tuple[str, ...]] | None:
    """Return the outcome and the notices of its loading, if they are in the cache."""
    content = store.find_answer(question) if question else None
    if content is not None:
        with suppress(*_UNREADABLE):
            return decode(content)
    return None


def save(
    question: store.Question | None, outcome: RecordingReport, notes: Sequence[str]
) -> None:
    """Write an outcome to the cache, unless a rule crashed."""
    if question is not None and not outcome.crashed:
        store.keep_answer(question, lambda: encode(outcome, notes))


@cache
def _decoder() -> json.Decoder[_Answer]:
    return json.Decoder(_Answer, dec_hook=_from_json)


def _from_json(kind: type, value: object) -> Struct:
    """Return the value of a type that is a protocol."""
    return msgspec.convert(value, _CACHED[kind])


def _ordered(answer: _Answer) -> bytes:
    return json.encode(answer, order="deterministic")


def _without_fixes(finding: Finding) -> Finding:
    return replace(finding, fixes=())


def _storable_bound(bound: Bound) -> Bound:
    cause, waits = bound.bottleneck, bound.waits
    return structs.replace(
        bound,
        bottleneck=cause
        and CachedTimeByCause(
            tuple(cause.rows), tuple(cause.step_rows), cause.idle_ns, cause.step_ns
        ),
        waits=waits
        and CachedIdleBreakdown(
            waits.idle_ns, tuple(waits.kind_rows), tuple(waits.line_rows), waits.largest
        ),
    )
