"""The CPU part of a fixture: what its program asks of torch, without a GPU."""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import orjson
import polars as pl

from traceq.analysis.base.steady import steady_steps
from traceq.analysis.patterns.host_calls import KEY, SCHEMA, host_calls
from traceq.check.budgets import Budget
from traceq.check.spread import tidy
from traceq.errors import InputError
from traceq.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from traceq.model.run import CompiledPlace
    from traceq.trace import Trace

VERSION = 1
_LARGEST = 64 << 20
# Chosen by judgement. Between runs of one program, also with another instruction set of
# the CPU, no count differed; a mixture of experts that is not seeded differed by 14%,
# which no tolerance should hide. One layer more is beyond it in models of up to 50.
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
    """What a program did on the CPU."""

    torch: str
    """The version, as 2.13."""
    stacks: bool
    """Whether places are known, and methods that leave no op."""
    calls: pl.DataFrame
    """Columns of ``host_calls``, per step; of the whole run for what is compiled."""

    @property
    def numbers(self) -> dict[str, float]:
        """Return how many there are of each kind, by the names of budgets."""
        sums = dict(self.calls.group_by("kind").agg(pl.col("count").sum()).iter_rows())
        return {name: tidy(sums.get(kind, 0.0)) for name, kind in KINDS.items()}


def cpu_part(trace: Trace) -> CpuPart:
    """Return what a program did on the CPU, of the trace of a run."""
    calls = host_calls(trace, steady_steps(trace))
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
    return CpuPart(version, trace.facts.stacks, whole.with_columns(short))


def _rows(kind: str, places: Iterable[CompiledPlace]) -> list[dict[str, Any]]:
    return [
        _row(
            kind,
            one.why,
            file=one.file,
            function=one.function,
            line=one.line,
            count=one.count,
        )
        for one in places
    ]


def _row(kind: str, what: str, **known: Any) -> dict[str, Any]:  # noqa: ANN401 - columns
    line = known.get("line")
    # A graph break is at its line; a function that is compiled again begins there.
    at = [line] if kind == BREAK and line else []
    return {"kind": kind, "what": what, "dtypes": [], "call_lines": at, **known}


def _without_folders(file: str) -> str:
    """Return a path that is the same on every machine."""
    path = PurePath(file)
    return path.name if path.is_absolute() else file


def cpu_budgets(
    part: CpuPart, before: Mapping[str, Budget] | None
) -> dict[str, Budget]:
    """Return budgets that hold these numbers, as many and as strict as before."""
    numbers = part.numbers
    if before:
        return {
            name: Budget(numbers[name], limit.tolerance)
            for name, limit in before.items()
        }
    return {
        name: Budget(value, _TOLERANCE if name in _DRAWN else 0.0)
        for name, value in numbers.items()
    }


def write_cpu_part(part: CpuPart) -> bytes:
    """Return the content of a cpu.json, a line for each kind of call."""
    # Lines move, and a reason may hold a value: neither is the same in the next run.
    kept = part.calls.with_columns(
        what=pl.when(pl.col("kind") == RECOMPILE).then(pl.lit("")).otherwise("what"),
        file=pl.col("file").fill_null(""),
        function=pl.col("function").fill_null(""),
    )
    rows = (
        kept.group_by(KEY)
        .agg(pl.col("count").sum())
        .sort("kind", "what", pl.col("dtypes").list.join(","), "file", "function")
    )
    lines = [
        orjson.dumps(row | {"count": tidy(row["count"])}).decode()
        for row in rows.iter_rows(named=True)
    ]
    head = orjson.dumps(
        {"version": VERSION, "torch": part.torch, "stacks": part.stacks}
    ).decode()
    calls = ",\n".join(lines)
    return f'{head[:-1]},"calls":[\n{calls}\n]}}\n'.encode()


def read_cpu_part(file: Path) -> CpuPart:
    """Return what a cpu.json holds."""
    try:
        content: Any = orjson.loads(file.read_bytes()[:_LARGEST])
        version = content["version"]
        rows = content["calls"] if version == VERSION else []
        calls = pl.DataFrame(
            [{**row, "line": None, "call_lines": []} for row in rows], schema=SCHEMA
        )
        found = CpuPart(str(content["torch"]), bool(content["stacks"]), calls)
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
    return found
