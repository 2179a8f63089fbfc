"""Loaded exports as Chrome traces, for what splices or shrinks such files.

Only what the tables have is written: no environment, command line or host name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, BinaryIO

import orjson
import polars as pl

from traceq.common.units import NS_PER_US
from traceq.formats import tables
from traceq.formats.facts import RECORDER
from traceq.model import schema

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from traceq.model.trace import Trace

_ROWS = 100_000
_CATEGORIES = {
    "ops": "cpu_op",
    "runtime": "cuda_runtime",
    "annotations": "user_annotation",
    "frames": "python_function",
}
_ACTIVITIES = {"kernel": "kernel", "memcpy": "gpu_memcpy", "memset": "gpu_memset"}
_LAST_COMMA = r",\}$"
_NULL = r'"[^"]*":null,?'


def write_chrome(trace: Trace, file: BinaryIO) -> None:
    """Write the tables of a trace as PyTorch's profiler would."""
    file.write(b'{"schemaVersion":1,' + _header(trace)[1:-1])
    file.write(b',"traceEvents":[\n')
    first = True
    for line in _lines(trace):
        file.write((b"" if first else b",\n") + line)
        first = False
    file.write(b"\n]}\n")


def _header(trace: Trace) -> bytes:
    facts = trace.facts
    gpus = [
        {
            "id": gpu["device"],
            "name": gpu["name"] or "",
            "totalGlobalMem": gpu["memory"],
            "numSms": gpu["sms"],
            "computeMajor": gpu["compute_major"],
            "computeMinor": gpu["compute_minor"],
        }
        for gpu in trace.devices.iter_rows(named=True)
    ]
    header: dict[str, object] = {RECORDER: facts.recorder, "deviceProperties": gpus}
    if facts.start_ns is not None:
        header["baseTimeNanoseconds"] = facts.start_ns - facts.origin_ns
    if facts.world_size:
        header["distributedInfo"] = {
            "rank": facts.rank,
            "world_size": facts.world_size,
            "backend": facts.backend,
        }
    return orjson.dumps(header)


def _lines(trace: Trace) -> Iterator[bytes]:
    """Yield the events, many at a time."""
    for table in ("ops", "runtime", "annotations", "frames", "kernels", "other"):
        rows = trace.table(table)
        if table == "ops":
            rows = trace.host_ops
        for part in rows.iter_slices(_ROWS):
            text = _events(trace, table, part).str.join(",\n").item()
            if text:
                yield text.encode()
    threads = trace.threads.filter(pl.col("name").is_not_null())
    for row in threads.iter_rows(named=True):
        event = {
            "ph": "M",
            "name": "thread_name",
            "pid": row["pid"],
            "tid": row["tid"],
            "args": {"name": row["name"]},
        }
        yield orjson.dumps(event)


def _events(trace: Trace, table: str, rows: pl.DataFrame) -> pl.Series:
    """Return the events of a table as JSON texts."""
    lanes = trace.threads.select(
        thread="id",
        lane=pl.struct("pid", "tid").struct.json_encode().str.slice(1),
    )
    if table == "kernels":
        category = pl.col("activity").cast(pl.String).replace(_ACTIVITIES)
        rows = rows.with_columns(
            lane=pl.format(
                '"pid":{},"tid":{}}}',
                pl.col("device").fill_null(0),
                pl.col("stream").fill_null(0),
            )
        )
    else:
        rows = rows.join(lanes, on="thread", how="left", maintain_order="left")
        category = (
            pl.col("category").cast(pl.String)
            if table == "other"
            else pl.lit(_CATEGORIES.get(table))
        )
    head = pl.struct(cat=category, name=pl.col("name").cast(pl.String).fill_null(""))
    time = pl.col("ts") + trace.facts.origin_ns
    return rows.select(
        pl.concat_str(
            pl.lit('{"ph":"X",'),
            head.struct.json_encode().str.slice(1).str.head(-1),
            pl.lit(","),
            pl.col("lane").str.head(-1),
            pl.lit(',"ts":'),
            _microseconds(time),
            pl.lit(',"dur":'),
            _microseconds(pl.col("dur")),
            pl.lit(',"args":'),
            _args(trace, table),
            pl.lit("}"),
        ).alias("event")
    ).to_series()


def _microseconds(ns: pl.Expr) -> pl.Expr:
    whole, rest = ns // NS_PER_US, ns % NS_PER_US
    return pl.format("{}.{}", whole, rest.cast(pl.String).str.zfill(3))


def _args(trace: Trace, table: str) -> pl.Expr:
    """Return the arguments of a table's events as JSON texts."""
    if table == "other":
        return pl.col("args").fill_null("{}")
    columns = schema.TABLES.get(table)
    keys: Mapping[str, str] = tables.keys_of(table) if columns else {}
    known = [
        pl.col(name).cast(pl.String).alias(key)
        if columns is not None and columns.columns[name].dtype == schema.TEXT
        else pl.col(name).alias(key)
        for name, key in keys.items()
        if columns is not None and name in columns.columns
    ]
    encoded = pl.lit("{}")
    if known:
        # What is not known is no argument at all.
        encoded = pl.struct(known).struct.json_encode().str.replace_all(_NULL, "")
        encoded = encoded.str.replace(_LAST_COMMA, "}")
    if table != "ops":
        return encoded
    inputs = trace.inputs.select(
        pl.concat_str(
            pl.lit('"Input Dims":'),
            "dims_text",
            pl.lit(',"Input type":'),
            pl.struct("types").struct.json_encode().str.slice(9).str.head(-1),
            pl.lit(","),
        )
    ).to_series()
    texts = pl.col("inputs").replace_strict(
        trace.inputs["id"], inputs, default="", return_dtype=pl.String
    )
    whole = pl.concat_str(pl.lit("{"), texts.fill_null(""), encoded.str.slice(1))
    return whole.str.replace(_LAST_COMMA, "}")
