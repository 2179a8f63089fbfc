"""Digest of one trace: the data of one rank that the analysis of a job needs.

A digest is one Arrow file: a row for each of its tables, with the table as Arrow in
turn, and one for what is known of the rank. It is at most 256 kB, and at most 1% of the
trace where that is more than ``SMALLEST``. ``digest_of`` is a task for any executor:
what it takes and returns can be sent, and running it twice does no harm.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import orjson
import polars as pl

from traceq.analysis.base.steady import steady_steps
from traceq.common.expressions import text
from traceq.errors import InputError
from traceq.graph.devices import busiest_device
from traceq.inputs.load_trace import load
from traceq.inputs.options import LoadOptions
from traceq.linter.config import Config
from traceq.linter.engine import lint
from traceq.linter.pack import load_rules
from traceq.model.recording import Recording
from traceq.ranks.collectives import COLLECTIVES, collectives
from traceq.ranks.timeline import MEETINGS, meetings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from traceq.model.trace import Trace

_DEFAULT = LoadOptions()
VERSION = 2
LARGEST = 256_000
"""Bytes that no digest exceeds."""
SMALLEST = 24_000
"""Bytes that a digest may have, however small its trace."""
SHARE = 0.01
"""The share of its trace, unpacked, that a digest may have beyond that."""

_KERNELS = {
    "name": pl.String(),
    "op": pl.String(),
    "module": pl.String(),
    "shape": pl.String(),
    "kind": pl.String(),
    "count": pl.Int64(),
    "time": pl.Int64(),
}
_FINDINGS = {
    "code": pl.String(),
    "name": pl.String(),
    "severity": pl.String(),
    "message": pl.String(),
    "advice": pl.String(),
    "file": pl.String(),
    "line": pl.Int64(),
    "function": pl.String(),
    "module": pl.String(),
    "subject": pl.String(),
    "count": pl.Int64(),
    "saves_ns": pl.Int64(),
}
_STEPS = dict.fromkeys(("step", "start", "end", "gpu_busy"), pl.Int64())
TABLES: dict[str, pl.Schema] = {
    "steps": pl.Schema(_STEPS),
    "collectives": COLLECTIVES,
    "meetings": MEETINGS,
    "kernels": pl.Schema(_KERNELS),
    "findings": pl.Schema(_FINDINGS),
}
_RANK = "rank"
_LONGEST_NAME = 120
# Number of kernels to keep; fewer where the digest would be too large.
_MOST_KERNELS = (400, 100, 25, 0)
_MOST_COLLECTIVES = 4000


@dataclass(frozen=True)
class Digest:
    """Data of one rank, as an Arrow file."""

    content: bytes
    """The Arrow file."""

    @cached_property
    def _rows(self) -> Mapping[str, bytes]:
        try:
            frame = pl.read_ipc_stream(self.content)
            return dict(frame.select("table", "content").iter_rows())
        except (pl.exceptions.PolarsError, OSError) as error:
            msg = "this is no digest of a rank: make it again"
            raise InputError(msg) from error

    @cached_property
    def rank(self) -> dict[str, Any]:
        """Facts about the rank: path, rank, world_size, device, start_ns, …."""
        facts: dict[str, Any] = orjson.loads(self._rows[_RANK])
        if facts["version"] != VERSION:
            msg = (
                f"the digest of {facts['path']} has version {facts['version']}, and"
                f" this traceq reads {VERSION}: make it again"
            )
            raise InputError(msg)
        return facts

    def table(self, name: str) -> pl.DataFrame:
        """Return one of TABLES."""
        return pl.read_ipc_stream(self._rows[name])


def digest_of(
    path: str,
    rank: int | None = None,
    options: LoadOptions = _DEFAULT,
    findings: bool = True,  # noqa: FBT001, FBT002 - a task's arguments have no names
    name: str = "",
) -> bytes:
    """Read one trace and return its digest, an Arrow file.

    Of a run folder it is the trace of one ``rank``. ``name`` is the path as the user
    typed it, wherever it is read. Raises ``InputError`` for a file that is no trace.
    """
    trace = load(
        path,
        rank=rank,
        own=options.own_code,
        steps_by=options.steps_by,
        cache=options.use_cache,
    )
    return make_digest(trace, findings=findings, name=name)


def make_digest(trace: Trace, *, findings: bool = True, name: str = "") -> bytes:
    """Return the digest of a trace."""
    every = collectives(trace)
    first = every.head(_MOST_COLLECTIVES)
    tables = {
        "steps": trace.steps.filter(~pl.col("warmup")).select(list(_STEPS)),
        "collectives": first,
        "meetings": meetings(trace, first),
        "kernels": _kernels(trace),
        "findings": _findings(trace)
        if findings
        else pl.DataFrame(schema=TABLES["findings"]),
    }
    facts = _facts(trace, every, first) | ({"path": name} if name else {})
    limit = min(LARGEST, max(SMALLEST, int(SHARE * trace.facts.unpacked_bytes)))
    for most in _MOST_KERNELS:
        content = encoded(facts, tables | {"kernels": tables["kernels"].head(most)})
        if len(content) <= limit:
            return content
    # The first of many collectives; a run of them is as good as all.
    while len(content) > limit and tables["collectives"].height > 1:
        tables = _halved(tables)
        facts["collectives_kept"] = tables["collectives"].height
        content = encoded(facts, tables | {"kernels": tables["kernels"].head(0)})
    return content


def encoded(facts: Mapping[str, Any], tables: Mapping[str, pl.DataFrame]) -> bytes:
    """Return a digest's bytes."""
    rows = {_RANK: orjson.dumps(dict(facts))} | {
        name: _arrow(tables[name]) for name in TABLES
    }
    return _arrow(
        pl.DataFrame({"table": list(rows), "content": list(rows.values())}), plain=True
    )


def _arrow(frame: pl.DataFrame, *, plain: bool = False) -> bytes:
    buffer = io.BytesIO()
    # A stream is read without planning a query, in a tenth of the time of a file.
    frame.write_ipc_stream(buffer, compression="uncompressed" if plain else "zstd")
    return buffer.getvalue()


def _halved(tables: Mapping[str, pl.DataFrame]) -> dict[str, pl.DataFrame]:
    half = tables["collectives"].height // 2
    return {
        **tables,
        "collectives": tables["collectives"].head(half),
        "meetings": tables["meetings"].filter(pl.col("collective") < half),
    }


def _facts(trace: Trace, every: pl.DataFrame, first: pl.DataFrame) -> dict[str, Any]:
    facts = trace.facts
    used = trace.devices.filter("used")
    return {
        "version": VERSION,
        "path": facts.path,
        "rank": trace.rank.rank if trace.rank else facts.rank,
        "first_step": trace.rank.first_step if trace.rank else None,
        "world_size": facts.world_size,
        "backend": facts.backend,
        "machine": facts.machine,
        # An export has one clock for all its ranks.
        "clock": facts.path if facts.recorder else "",
        "torch": facts.torch,
        "start_ns": facts.start_ns,
        "trace_bytes": facts.unpacked_bytes,
        "device": used["name"][0] if used.height else "",
        "step_ns": trace.step_ns,
        "damage": list(facts.damage),
        "collectives": every.height,
        "collectives_kept": first.height,
    }


def _kernels(trace: Trace) -> pl.DataFrame:
    """Return the GPU's time in the steps by kernel, op, module and shape."""
    kernels = busiest_device(steady_steps(trace).kernels)
    compute = kernels.filter(pl.col("kind") != "communication")
    ops = trace.ops
    inputs = ops["inputs"].gather(compute["op"])
    named = compute.select(
        name=text("name").str.slice(0, _LONGEST_NAME),
        op=ops["name"].gather(compute["op"]).cast(pl.String),
        module=text("module"),
        shape=trace.inputs["dims_text"]
        .gather(inputs)
        .cast(pl.String)
        .str.slice(0, _LONGEST_NAME),
        kind=text("kind"),
        dur="dur",
    )
    return (
        named.group_by(*named.columns[:-1])
        .agg(count=pl.len().cast(pl.Int64), time=pl.col("dur").sum())
        .sort("time", "name", "op", "module", "shape", descending=[True, *[False] * 4])
    )


def _findings(trace: Trace) -> pl.DataFrame:
    """Return the findings of lint in the rank alone."""
    recording = Recording(trace.facts.path, trace=trace, step_ns=trace.step_ns)
    outcome = lint([recording], load_rules(), Config(), brief=True).outcomes[0]
    rows = [
        {
            "code": finding.code,
            "name": finding.name,
            "severity": finding.severity.value,
            "message": finding.message,
            "advice": finding.advice,
            "file": finding.place.file,
            "line": finding.place.line,
            "function": finding.place.function,
            "module": finding.place.module,
            "subject": finding.subject,
            "count": finding.count,
            "saves_ns": finding.saves_ns,
        }
        for finding in outcome.findings
    ]
    return pl.DataFrame(rows, schema=TABLES["findings"])
