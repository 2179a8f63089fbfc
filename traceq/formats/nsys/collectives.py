"""Messages of NCCL's collectives, from the payloads of its NVTX ranges.

NCCL describes the payloads of its ranges (NVTX_PAYLOAD_SCHEMA_ENTRIES). A payload is a
header of 32 bytes, with the schema's number in bytes 8 to 11, and then the values at
the schema's offsets. Payloads are exported with ``nsys export --include-blobs=true``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.formats.nsys import processes
from traceq.formats.nsys.activities import integers, thread_lane

if TYPE_CHECKING:
    from traceq.formats.nsys.export import Export
    from traceq.formats.nsys.processes import Process

ENTRIES = "NVTX_PAYLOAD_SCHEMA_ENTRIES"
_PAYLOAD = "binaryData"
_HEADER = 32
_SCHEMA_AT = 8
_SIZE, _GROUP, _RANKS = "Message size [bytes]", "NCCL communicator ID", "No. of ranks"
_OPENS, _CLOSES = "ncclGroupStart", "ncclGroupEnd"
_CALL = r"^nccl[A-Z]\w+$"
_KERNEL = "nccl"
# As torch calls what NCCL's functions do.
_COLLECTIVES = {
    "ncclAllReduce": "allreduce",
    "ncclAllGather": "allgather",
    "ncclReduceScatter": "reduce_scatter",
    "ncclBroadcast": "broadcast",
    "ncclBcast": "broadcast",
    "ncclReduce": "reduce",
    "ncclAlltoAll": "alltoall",
    "ncclAllToAll": "alltoall",
    "ncclSend": "send",
    "ncclRecv": "recv",
}
_RECEIVES = "ncclRecv"
_BYTE = "Byte"


def calls_of_nccl(ranges: pl.DataFrame) -> pl.DataFrame:
    """Return NCCL's own ranges: ``name``, ``lane``, ``ts`` and ``dur``."""
    names = ranges["name"].unique()
    of_nccl = names.filter(names.cast(pl.String).str.contains(_CALL))
    is_call = pl.col("name").is_in(of_nccl.implode())
    return (
        ranges.lazy()
        .filter(is_call, pl.col("dur").is_not_null())
        .select("name", "lane", "ts", "dur")
        .collect(engine="in-memory")
    )


def with_messages(
    kernels: pl.DataFrame,
    runtime: pl.DataFrame,
    calls: pl.DataFrame,
    export: Export,
    process: Process,
) -> pl.DataFrame:
    """Return raw kernels, those of NCCL with what they send, where that was exported.

    ``calls`` are those of :func:`calls_of_nccl`.
    """
    if ENTRIES not in export.tables or calls.is_empty():
        return kernels
    payloads = _payloads(export, process)
    if payloads.is_empty():
        return kernels
    sent = _sent(_batches(calls.join(payloads, on=["lane", "ts"], how="left")))
    of_kernels = _launched(kernels, runtime, sent).join(
        _sizes_of_groups(payloads), on="group", how="left"
    )
    known = (
        kernels.select(row=pl.int_range(pl.len(), dtype=pl.UInt32))
        .join(of_kernels, on="row", how="left", maintain_order="left")
        .select(
            elements="bytes",
            sent_dtype=pl.when(pl.col("bytes").is_not_null()).then(pl.lit(_BYTE)),
            collective="collective",
            group=pl.col("group").cast(pl.String),
            group_size="ranks",
        )
    )
    return kernels.with_columns(
        known[name].cast(kernels.schema[name]) for name in known.columns
    )


def _payloads(export: Export, process: Process) -> pl.DataFrame:
    """Return ``bytes``, ``group`` and ``ranks`` of the ranges that have a payload."""
    places = _places(export)

    def decoded(chunk: pl.DataFrame) -> pl.DataFrame:
        texts = chunk.drop_nulls("start").select(
            thread_lane("globalTid"),
            ts="start",
            payload=pl.col(_PAYLOAD).bin.encode("hex"),
        )
        schema = _number("payload", pl.lit(_SCHEMA_AT), pl.UInt32())
        return (
            texts.with_columns(schemaId=schema)
            .join(places, on="schemaId", how="inner")
            .select(
                "lane",
                "ts",
                bytes=_number("payload", _HEADER + pl.col("size_at"), pl.UInt64()),
                group=_number("payload", _HEADER + pl.col("group_at"), pl.UInt64()),
                ranks=_number("payload", _HEADER + pl.col("ranks_at"), pl.UInt32()),
            )
        )

    columns = {**integers(("start", "globalTid")), _PAYLOAD: pl.Binary()}
    only = process.rows_of(export, processes.RANGES)
    payloads = export.read(processes.RANGES, columns, only, decoded, present=_PAYLOAD)
    return payloads.unique(["lane", "ts"], keep="first", maintain_order=True)


def _places(export: Export) -> pl.DataFrame:
    """Return where each schema has the size, the group and the number of ranks."""
    columns = {**integers(("schemaId", "offset")), "name": pl.String()}
    entries = export.read(ENTRIES, columns).drop_nulls(["schemaId", "name"])
    # The first value has no offset.
    at = pl.col("offset").fill_null(0)
    return entries.group_by("schemaId").agg(
        at.filter(pl.col("name") == name).first().alias(place)
        for name, place in (
            (_SIZE, "size_at"),
            (_GROUP, "group_at"),
            (_RANKS, "ranks_at"),
        )
    )


def _number(column: str, at: pl.Expr, dtype: pl.UInt32 | pl.UInt64) -> pl.Expr:
    """Return a number of a payload in hexadecimal digits; null if it is too short."""
    digits = 8 if dtype == pl.UInt32 else 16
    offset = pl.when(at >= 0).then(2 * at).cast(pl.Int64)
    text = pl.col(column).str.slice(offset.fill_null(0), digits)
    whole = offset.is_not_null() & (text.str.len_bytes() == digits)
    number = (
        pl.when(whole)
        .then(text)
        .str.decode("hex", strict=False)
        .bin.reinterpret(dtype=dtype, endianness="little")
    )
    return number.cast(pl.Int64, strict=False)


def _batches(calls: pl.DataFrame) -> pl.DataFrame:
    """Return the calls with their ``batch``: calls that NCCL runs together.

    Calls between ncclGroupStart and ncclGroupEnd run at the end of the outermost group.
    """
    change = (pl.col("name") == _OPENS).cast(pl.Int64) - (
        pl.col("name") == _CLOSES
    ).cast(pl.Int64)
    # A recording may begin inside a group.
    depth = pl.col("depth") - pl.col("depth").cum_min().clip(upper_bound=0).over("lane")
    ends = (pl.col("depth") == 0).cast(pl.UInt32)
    return (
        calls.sort("lane", "ts")
        .with_columns(depth=change.cum_sum().over("lane"))
        .with_columns(depth=depth)
        .with_columns(batch=(ends.cum_sum() - ends).over("lane"))
    )


def _sent(calls: pl.DataFrame) -> pl.DataFrame:
    """Return the messages of each batch, and the span of the call that runs it."""
    sized = pl.col("bytes").is_not_null()
    sends = sized & (pl.col("name") != _RECEIVES)
    name = (
        pl.col("name")
        .cast(pl.String)
        .replace_strict(_COLLECTIVES, default=None, return_dtype=pl.String)
        .filter(sized)
    )
    one_kind = pl.col("name").filter(sized).n_unique() == 1
    return (
        calls.group_by("lane", "batch")
        .agg(
            ts=pl.col("ts").last(),
            until=(pl.col("ts") + pl.col("dur")).last(),
            bytes=pl.when(sends.any())
            .then(pl.col("bytes").filter(sends).sum())
            .otherwise(pl.col("bytes").filter(sized).sum()),
            messages=sized.sum(),
            collective=pl.when(one_kind).then(name.first()),
            group=pl.col("group").filter(sized).first(),
        )
        .filter(pl.col("messages") > 0)
    )


def _launched(
    kernels: pl.DataFrame, runtime: pl.DataFrame, sent: pl.DataFrame
) -> pl.DataFrame:
    """Return the row of the kernel that each batch launches, if that is one alone."""
    names = kernels["name"].unique()
    is_nccl = names.cast(pl.String).str.starts_with(_KERNEL)
    rows = kernels.select("name", "correlation").with_row_index("row")
    of_nccl = rows.filter(pl.col("name").is_in(names.filter(is_nccl).implode()))
    launches = of_nccl.drop_nulls("correlation").join(
        runtime.select("lane", "ts", "correlation"), on="correlation", how="inner"
    )
    return (
        launches.sort("ts")
        .join_asof(
            sent.sort("ts"), on="ts", by="lane", check_sortedness=False, coalesce=False
        )
        .filter(pl.col("ts") <= pl.col("until"))
        .filter(pl.len().over("lane", "batch") == 1)
        .select("row", "bytes", "collective", "group")
    )


def _sizes_of_groups(payloads: pl.DataFrame) -> pl.DataFrame:
    """Return how many ranks a communicator has, if its making was recorded."""
    return (
        payloads.drop_nulls(["group", "ranks"])
        .group_by("group")
        .agg(pl.col("ranks").first())
    )
