"""What lint reported of a recording, as JSON that can be read again.

All is kept but the findings' fixes, which only the replay asks for, and of the frames
what reports show.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import orjson
import polars as pl

from traceq.analysis.base.replayed import Replayed
from traceq.analysis.replay.bottleneck import Bottleneck
from traceq.analysis.replay.bound import Bound
from traceq.analysis.replay.idle_account import Entry, IdleAccount
from traceq.finding import CodeFrame, Evidence, Finding, Place, Severity
from traceq.linter.config import Allow
from traceq.linter.engine import Outcome
from traceq.linter.idle import ExplainedIdle
from traceq.linter.run import Crashed, Skipped
from traceq.linter.savings import Together
from traceq.linter.snapshot_view import Memory
from traceq.linter.suppress import Allowed
from traceq.model.facts import Facts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_Json: TypeAlias = dict[str, Any]
_Value = TypeVar("_Value")

_CAUSES = pl.Schema({"cause": pl.String, "time": pl.Float64})
_STEPS = pl.Schema({"step": pl.Int64, "busy": pl.Float64, "idle": pl.Float64})
_KINDS = pl.Schema({"kind": pl.String, "time": pl.Float64, "calls": pl.Float64})
_LINES = pl.Schema(
    {
        "kind": pl.String,
        "name": pl.String,
        "file": pl.String,
        "line": pl.UInt32,
        "function": pl.String,
        "time": pl.Float64,
        "calls": pl.Float64,
    }
)


def encode(outcome: Outcome, notes: Sequence[str]) -> bytes:
    """Return an outcome, and what was said while it was loaded, as JSON.

    Raises ``ValueError`` or ``TypeError`` for what JSON cannot hold, as a float that
    is not a number.
    """
    plain = replace(
        outcome,
        bound=None,
        findings=tuple(replace(one, fixes=()) for one in outcome.findings),
        allowed=tuple(
            replace(one, finding=replace(one.finding, fixes=()))
            for one in outcome.allowed
        ),
    )
    bound = _maybe(_bound_data, outcome.bound)
    content = orjson.dumps(
        {"outcome": plain, "bound": bound, "notes": list(notes)}, default=_sorted
    )
    known, said = decode(content)
    if (replace(known, bound=None), said) != (plain, tuple(notes)) or _maybe(
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


def _sorted(value: object) -> list[Any]:
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
        "crashed": tuple(Crashed(**one) for one in found["crashed"]),
        "allowed": tuple(map(_allowed, found["allowed"])),
        "memory": _maybe(_memory, found["memory"]),
        "idle": _maybe(_idle, found["idle"]),
        "entry": _maybe(_place, found["entry"]),
        "replayed": _maybe(lambda one: Replayed(**one), found["replayed"]),
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
    plain = {
        item.name: getattr(bound, item.name)
        for item in fields(bound)
        if item.name not in ("bottleneck", "waits")
    }
    return plain | {
        "bottleneck": _maybe(_bottleneck_data, bound.bottleneck),
        "waits": _maybe(_waits_data, bound.waits),
    }


def _bound(found: _Json) -> Bound:
    read: dict[str, Any] = {
        "bottleneck": _maybe(_bottleneck, found["bottleneck"]),
        "waits": _maybe(_waits, found["waits"]),
    }
    return Bound(**(found | read))


def _bottleneck_data(found: Bottleneck) -> _Json:
    return {
        "causes": _rows(found.causes),
        "steps": _rows(found.steps),
        "step_ns": found.step_ns,
    }


def _bottleneck(found: _Json) -> Bottleneck:
    return Bottleneck(
        _frame_of(found["causes"], _CAUSES),
        _frame_of(found["steps"], _STEPS),
        found["step_ns"],
    )


def _waits_data(waits: IdleAccount) -> _Json:
    return {
        "kinds": _rows(waits.kinds),
        "lines": _rows(waits.lines),
        "steps": waits.steps,
        "idle_ns": waits.idle_ns,
        "step_ns": waits.step_ns,
    }


def _waits(found: _Json) -> IdleAccount:
    """Return the account by kind and by line; the segments it was made of are gone."""
    kinds, lines = (
        _frame_of(found["kinds"], _KINDS),
        _frame_of(found["lines"], _LINES),
    )
    waits = IdleAccount(
        lines.clear(), found["steps"], found["idle_ns"], found["step_ns"]
    )
    vars(waits).update(kinds=kinds, lines=lines)
    return waits


def _rows(frame: pl.DataFrame) -> list[list[Any]]:
    return list(map(list, frame.iter_rows()))


def _frame_of(rows: list[list[Any]], schema: pl.Schema) -> pl.DataFrame:
    return pl.DataFrame(rows, schema, orient="row")
