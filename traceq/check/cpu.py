"""CPU part of a fixture: the torch calls of its program, without a GPU."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import orjson
import polars as pl

from traceq.analysis.base.steady import steady_steps
from traceq.analysis.patterns.host_calls import (
    KEY,
    SCHEMA,
    calls_by_step,
    host_calls,
)
from traceq.check.budgets import Budget, budget_of
from traceq.check.spread import Spread, tidy
from traceq.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from traceq.model.run import CompiledPlace
    from traceq.model.trace import Trace

VERSION = 1
_LARGEST = 64 << 20
# Heuristic threshold. Between runs of one program, also with another instruction set of
# the CPU, no count differed; a mixture of experts that is not seeded differed by 14%,
# which no tolerance should hide. One more layer exceeds it in models of up to 50.
_TOLERANCE = 0.02
_DRAWN = ("ops", "optimizer-ops", "compiled-ops")

BREAK, RECOMPILE, COMPILED = "graph break", "recompile", "compiled op"
KINDS = {
    "ops": "op",
    "optimizer-ops": "optimizer op",
    "compiled-ops": COMPILED,
    "casts": "cast",
    "copies": "copy",
    "syncs": "sync",
    "graph-breaks": BREAK,
    "recompiles": RECOMPILE,
}
"""Names of the budgets, and the kinds of calls that each counts."""


@dataclass(frozen=True)
class CpuPart:
    """Torch calls of a program on the CPU."""

    torch: str
    """The version, as 2.13."""
    stacks: bool
    """True if stacks were recorded: places, and methods that leave no op."""
    calls: pl.DataFrame
    """Columns of ``host_calls``, per step; of the whole run for what is compiled."""
    steps: int = 1
    """Number of recorded steps."""
    spreads: Mapping[str, Spread] = field(default_factory=dict)
    """Of the numbers that are not the same in all steps; of a run, not of a file."""

    @property
    def numbers(self) -> dict[str, float]:
        """Return the counts of each kind, by the names of budgets."""
        sums = dict(self.calls.group_by("kind").agg(pl.col("count").sum()).iter_rows())
        return {name: tidy(sums.get(kind, 0.0)) for name, kind in KINDS.items()}


def cpu_part(trace: Trace) -> CpuPart:
    """Return the CPU part of a program, from the trace of a run."""
    steady = steady_steps(trace)
    calls = host_calls(trace, steady)
    compiled = trace.rank.compiled if trace.rank else None
    rows: list[dict[str, Any]] = []
    if compiled:
        rows += _rows(BREAK, compiled.graph_breaks)
        rows += _rows(RECOMPILE, compiled.recompiles)
        if compiled.ops:
            rows.append(_row(COMPILED, "in graphs", count=compiled.ops))
    whole = pl.concat([calls, pl.DataFrame(rows, schema=SCHEMA)])
    short = pl.col("file").map_elements(_without_folders, return_dtype=pl.String)
    version = trace.rank.torch if trace.rank else ""
    return CpuPart(
        version,
        trace.facts.stacks,
        whole.with_columns(short),
        steady.count,
        _spreads(calls_by_step(trace, steady), steady.count),
    )


def _spreads(by_step: pl.DataFrame, steps: int) -> dict[str, Spread]:
    """Return the spread of the numbers that are not the same in all steps."""
    ends = by_step.group_by("kind").agg(
        # A step without any is no row.
        least=pl.when(pl.len() < steps).then(0).otherwise(pl.col("count").min()),
        most=pl.col("count").max(),
    )
    spreads = {kind: Spread(steps, *both) for kind, *both in ends.iter_rows()}
    return {
        name: spreads[kind]
        for name, kind in KINDS.items()
        if kind in spreads and spreads[kind].min != spreads[kind].max
    }


def _rows(kind: str, places: Iterable[CompiledPlace]) -> list[dict[str, Any]]:
    return [
        _row(
            kind,
            place.why,
            file=place.file,
            function=place.function,
            line=place.line,
            count=place.count,
        )
        for place in places
    ]


def _row(kind: str, what: str, **columns: Any) -> dict[str, Any]:  # noqa: ANN401 - columns
    line = columns.get("line")
    # A graph break is at its line; a function that is compiled again begins there.
    at = [line] if kind == BREAK and line else []
    return {"kind": kind, "what": what, "dtypes": [], "call_lines": at, **columns}


def _without_folders(file: str) -> str:
    """Return a path that is the same on every machine."""
    path = PurePath(file)
    return path.name if path.is_absolute() else file


def cpu_budgets(
    part: CpuPart, before: Mapping[str, Budget] | None
) -> dict[str, Budget]:
    """Return budgets that hold these numbers, as many and as strict as before.

    Where the steps differ, they have limits that hold all of them.
    """
    numbers = part.numbers
    tolerances = (
        {name: limit.tolerance for name, limit in before.items()}
        if before
        else {name: _TOLERANCE if name in _DRAWN else 0.0 for name in numbers}
    )
    return {
        name: budget_of(numbers[name], tolerance, part.spreads.get(name))
        for name, tolerance in tolerances.items()
    }


def write_cpu_part(part: CpuPart) -> bytes:
    """Return the content of a cpu.json, a line for each kind of call."""
    # Lines move, and a reason may hold a value: neither is the same in the next run.
    written = part.calls.with_columns(
        what=pl.when(pl.col("kind") == RECOMPILE).then(pl.lit("")).otherwise("what"),
        file=pl.col("file").fill_null(""),
        function=pl.col("function").fill_null(""),
    )
    rows = (
        written.group_by(KEY)
        .agg(pl.col("count").sum(), *_summed_ends())
        .sort("kind", "what", pl.col("dtypes").list.join(","), "file", "function")
    )
    lines = [orjson.dumps(_tidied(row)).decode() for row in rows.iter_rows(named=True)]
    content_head = {"version": VERSION, "torch": part.torch, "stacks": part.stacks}
    head = orjson.dumps(content_head | {"steps": part.steps}).decode()
    calls = ",\n".join(lines)
    return f'{head[:-1]},"calls":[\n{calls}\n]}}\n'.encode()


def _summed_ends() -> list[pl.Expr]:
    """Return the ends of several calls together; null where all steps are alike."""
    differ = pl.col("min").is_not_null().any()
    both = [pl.col(name).fill_null(pl.col("count")).sum() for name in ("min", "max")]
    return [
        pl.when(differ).then(expression).alias(name)
        for name, expression in zip(("min", "max"), both, strict=True)
    ]


def _tidied(row: dict[str, Any]) -> dict[str, Any]:
    """Return a line of the file: without the ends of what all steps have alike."""
    numbers = ("count", "min", "max")
    numbers_of_row = {key: tidy(row[key]) for key in numbers if row[key] is not None}
    return {key: row[key] for key in row if key not in numbers} | numbers_of_row


def read_cpu_part(file: Path) -> CpuPart:
    """Return the content of a cpu.json."""
    try:
        content: Any = orjson.loads(file.read_bytes()[:_LARGEST])
        version = content["version"]
        rows = content["calls"] if version == VERSION else []
        calls = pl.DataFrame(
            [{**row, "line": None, "call_lines": []} for row in rows], schema=SCHEMA
        )
        steps = int(content.get("steps", 1))
        part = CpuPart(str(content["torch"]), bool(content["stacks"]), calls, steps)
    except OSError as error:
        msg = f"{file} cannot be read: {error.strerror or error}"
        raise InputError(msg) from None
    except (ValueError, LookupError, TypeError, pl.exceptions.PolarsError):
        msg = f"{file} is not a CPU part: write it with traceq check --run --update"
        raise InputError(msg) from None
    if version != VERSION:
        msg = (
            f"{file} is of version {version}, not {VERSION}: write it again with"
            " traceq check --run --update"
        )
        raise InputError(msg)
    return part
