"""Calls of scaled dot-product attention: which kernels ran, for which arguments."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import polars as pl

from traceq.analysis.base.cached import cached_per_trace
from traceq.analysis.base.ownership import (
    busy,
    inside,
    named,
    owned,
    plain_names,
    same_place,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from traceq.analysis.base.device import Gpu
    from traceq.trace import Trace

SDPA = "aten::scaled_dot_product_attention"
# Batch, heads, sequence, head dim.
_RANK = 4
HALF = ("c10::BFloat16", "c10::Half")
_OP = "aten::_scaled_dot_product_"


@dataclass(frozen=True)
class _Arguments:
    """Where an op has what it was given: its query, mask, flags."""

    query: int = 0
    mask: int | None = None
    dropout: int | None = None
    causal: int | None = None
    gqa: int | None = None


# The dispatcher's arguments, and those of the backends, which compiled programs
# call themselves.
_ARGUMENTS = {
    SDPA: _Arguments(0, 3, 4, 5, 7),
    f"{_OP}attention_math": _Arguments(0, 3, 4, 5, 8),
    f"{_OP}flash_attention": _Arguments(0, None, 3, 4),
    f"{_OP}efficient_attention": _Arguments(0, 3, 5, 6),
    f"{_OP}cudnn_attention": _Arguments(0, 3, 5, 6),
    f"{_OP}flash_attention_backward": _Arguments(1, None, 10, 11),
    f"{_OP}efficient_attention_backward": _Arguments(1, 4, 9, 11),
    f"{_OP}cudnn_attention_backward": _Arguments(1, 8, 13, 14),
}
_BACKENDS = [name for name in _ARGUMENTS if name != SDPA]
# What the dispatcher calls only to prepare a mask.
_MASK_OPS = ("aten::expand", "aten::where", "aten::masked_fill_")
# Mem-efficient kernels say what they are; CUDA graphs run them without any op.
_EFFICIENT_KERNEL = r"\bfmha_cutlass[FB]_"
_NO_BACKEND = r"^xformers"

CALL = (
    "backend",
    *("query", "key", "value", "mask", "mask_strides"),
    *("query_type", "key_type", "value_type", "mask_type"),
    *("masked", "causal", "gqa", "dropout", "contiguous"),
)
"""What tells one way to call attention from another."""

# Shares of its peak rate at which a GPU runs the flash kernels of torch, by major
# compute capability, and of its bandwidth; what a launch takes at least.
_FLASH_RATE = {8: 0.3, 9: 0.15, 10: 0.1}
_BANDWIDTH = 0.5
_BACKWARD = 2.5
_LEAST_NS = 5_000
_KERNELS_OF_BACKWARD = 3
_UNKNOWN_SAVING = 0.5
_FIRST_WITH_FLASH = 8
# What no fused kernel takes, on no GPU.
_FOR_ALL = ("rank", "strides", "mixed dtypes")
# GPUs whose shared memory is too small for the backward of wide heads.
_SMALL = ((8, 6), (8, 7), (8, 9), (12, 0), (12, 1))


@cached_per_trace
def attention_calls(trace: Trace) -> pl.DataFrame:
    """Return the calls: ``owner``, the outermost op of each, and CALL.

    ``query`` and the like are shapes. Under autocast the arguments are those after
    its casts, which are what the choice of a kernel depends on.
    """
    ops = trace.ops.select("id", "name", "parent", "inputs", "compiling")
    dispatcher = named(ops, [SDPA])
    outer = dispatcher & ~dispatcher.gather(ops["parent"]).fill_null(value=False)
    around = inside(trace, ops.filter(outer)["id"])
    backends = (
        ops.with_columns(
            owner=around.zip_with(around.is_not_null(), ops["id"]),
            by_dispatcher=dispatcher.gather(ops["parent"]).fill_null(value=False),
        )
        .filter(named(ops, _BACKENDS) & ~ops["compiling"])
        .join(plain_names(ops), on="name")
        .with_columns(
            source=pl.when("by_dispatcher").then("parent").otherwise("id"),
            arguments=pl.when("by_dispatcher")
            .then(pl.lit(SDPA))
            .otherwise(pl.col("plain")),
            backend=pl.col("plain").str.extract(
                r"_product_(?:attention_)?(math|flash|efficient|cudnn)"
            ),
        )
    )
    sources = ops.select("inputs", source="id").join(
        trace.inputs, left_on="inputs", right_on="id", how="left"
    )
    given = backends.drop("inputs").join(sources, on="source", how="left")
    prepared = ops.filter(named(ops, _MASK_OPS)).select(source="parent").unique()
    calls = [
        _with_arguments(given.filter(pl.col("arguments") == name), at)
        for name, at in _ARGUMENTS.items()
    ]
    return (
        pl.concat(calls)
        .join(prepared.with_columns(prepares=True), on="source", how="left")
        .with_columns(
            masked=pl.when(pl.col("query").is_not_null())
            .then(pl.col("mask_type") != "")
            .otherwise(pl.col("prepares"))
            .fill_null(value=False)
        )
        .select("owner", *CALL)
        .unique("owner", keep="first")
    )


def _with_arguments(calls: pl.DataFrame, at: _Arguments) -> pl.DataFrame:
    def get(column: str, index: int | None) -> pl.Expr:
        value = pl.col(column).list.get(index or 0, null_on_oob=True)
        return pl.when(pl.lit(index is not None)).then(value)

    def flag(index: int | None) -> pl.Expr:
        return (get("values", index) == "True").fill_null(value=False)

    last = [get("strides", at.query + number).list.last() for number in range(3)]
    dropout = get("values", at.dropout).cast(pl.Float64, strict=False)
    return calls.with_columns(
        query=get("dims", at.query),
        key=get("dims", at.query + 1),
        value=get("dims", at.query + 2),
        mask=get("dims", at.mask),
        mask_strides=get("strides", at.mask),
        query_type=get("types", at.query),
        key_type=get("types", at.query + 1),
        value_type=get("types", at.query + 2),
        mask_type=get("types", at.mask).fill_null(""),
        causal=flag(at.causal),
        gqa=flag(at.gqa),
        dropout=(dropout > 0).fill_null(value=False),
        contiguous=pl.all_horizontal(
            (stride == 1).fill_null(value=True) for stride in last
        ),
    )


@cached_per_trace
def attention(trace: Trace, kernels: pl.DataFrame) -> pl.DataFrame:
    """Return how attention was called, one row for the same call at the same place.

    Beside CALL and the place there are ``calls``, ``modules``, ``ops`` and
    ``kernels`` (ids), ``gpu_ns``, whether there is a ``backward``, and ``dtype``, the
    number format that the kernels' names say. Kernels that no op stands for, as
    those of CUDA graphs, are rows without arguments.
    """
    calls = attention_calls(trace)
    ran = owned(trace, kernels, inside(trace, calls["owner"]))
    strays = _strays(trace, kernels).join(ran, on="id", how="anti")
    source = trace.ops.select("module", "file", "line", "function", owner="id")
    rows = pl.concat(
        [
            ran.drop("module", "file", "line", "function")
            .join(calls, on="owner")
            .join(source, on="owner"),
            strays.with_columns(
                owner=pl.lit(None),
                backend=pl.lit("efficient"),
                back=pl.lit(False),  # noqa: FBT003 - nobody knows
            ),
        ],
        how="diagonal_relaxed",
    )
    return (
        rows.sort("ts", "id")
        .group_by(*CALL, *same_place(), maintain_order=True)
        .agg(
            calls=pl.col("owner").filter(~pl.col("back")).drop_nulls().n_unique(),
            modules=pl.col("module").cast(pl.String).unique(maintain_order=True),
            module=pl.col("module").cast(pl.String).drop_nulls().first(),
            ops=pl.col("owner").drop_nulls().unique(maintain_order=True),
            kernels=pl.col("id"),
            gpu_ns=busy(),
            backward=pl.col("back").any(),
            dtype=pl.col("dtype")
            .cast(pl.String)
            .filter(pl.col("kind") == "attention")
            .first(),
        )
    )


def _strays(trace: Trace, kernels: pl.DataFrame) -> pl.DataFrame:
    names = kernels.select(pl.col("name").unique()).filter(
        pl.col("name").cast(pl.String).str.contains(_EFFICIENT_KERNEL)
    )
    found = kernels.join(names, on="name", how="semi")
    launching = trace.ops["name"].gather(found["op"]).cast(pl.String)
    return found.filter(~launching.str.contains(_NO_BACKEND).fill_null(value=False))


def fallbacks(trace: Trace, kernels: pl.DataFrame, gpu: Gpu) -> list[dict[str, Any]]:
    """Return the rows of ``attention`` that a faster kernel of torch might take.

    Each has its ``causes``, as ``obstacles`` names them. What a GPU has nothing
    better for is left out: mem-efficient attention is the best that GPUs before
    compute capability 8 have, and AMD's is as fast as its flash attention.
    """
    rows = attention(trace, kernels).filter(
        pl.col("backend").is_in(("efficient", "math"))
    )
    found = []
    for row in rows.iter_rows(named=True):
        causes = obstacles(row, gpu.capability)
        if not _has_flash(row, gpu):
            causes = [cause for cause in causes if cause in _FOR_ALL]
            if row["backend"] != "math" or not causes:
                continue
        found.append(row | {"causes": causes})
    return found


def _has_flash(call: Mapping[str, Any], gpu: Gpu) -> bool:
    if gpu.amd:
        return False
    if gpu.capability == (0, 0):
        # Nothing older computes in bfloat16.
        return call["query_type"] == HALF[0] or call["dtype"] == "bf16"
    return gpu.capability[0] >= _FIRST_WITH_FLASH


def mask_shape(call: Mapping[str, Any]) -> list[int] | None:
    """Return the shape of a call's mask, 1 where all share a row, if it is known."""
    dims, strides = call["mask"], call["mask_strides"]
    if not dims:
        return None
    if not strides or len(strides) != len(dims):
        return list(dims)
    return [1 if step == 0 else size for size, step in zip(dims, strides, strict=True)]


def mask_kind(call: Mapping[str, Any]) -> str:
    """Return what the shape of a mask says it is for; empty if it says nothing."""
    shape, query, key = mask_shape(call), call["query"], call["key"]
    if not shape or not query or len(query) != _RANK or len(shape) > _RANK:
        return ""
    batch, heads, rows, columns = [1] * (_RANK - len(shape)) + shape
    if query[2] == 1:
        return "decode"
    if heads > 1:
        return "bias"
    if rows == 1:
        return "padding"
    if batch > 1:
        return "batched"
    return "square" if rows == columns == query[2] == key[2] else "rectangle"


def triangles(trace: Trace) -> set[tuple[int, int]]:
    """Return the sizes of triangles that tril and triu cut in this trace."""
    found = (
        trace.ops.filter(named(trace.ops, ("aten::tril", "aten::triu", "aten::tril_")))
        .select("inputs")
        .unique()
        .join(trace.inputs, left_on="inputs", right_on="id")
    )
    sizes = [row[0] for row in found["dims"].to_list() if row and row[0]]
    return {(size[-2], size[-1]) for size in sizes if len(size) > 1}


def obstacles(call: Mapping[str, Any], capability: tuple[int, int]) -> list[str]:
    """Return why flash attention cannot take this call, as far as arguments say."""
    if call["query"] is None:
        # Without shapes; the kernel's name still says its number format.
        found = {"dtype": call["dtype"] == "fp32", "mask": call["masked"]}
        return [cause for cause, applies in found.items() if applies]
    query, key, value = call["query"], call["key"], call["value"]
    types = {call["query_type"], call["key_type"], call["value_type"]}
    if {len(query), len(key), len(value)} != {_RANK}:
        return ["rank"]
    width = query[3]
    wide = 192 if capability in _SMALL and call["backward"] else 256
    found = {
        "mixed dtypes": len(types) > 1,
        "dtype": len(types) == 1 and not types <= set(HALF),
        "head dims": not width == key[3] == value[3],
        "head dim": width > wide,
        "strides": not call["contiguous"],
        "batch": not query[0] == key[0] == value[0],
        "heads": not query[1] == key[1] == value[1] and not call["gqa"],
        "causal": call["causal"] and query[2] != key[2],
        "mask": call["masked"],
    }
    return [cause for cause, applies in found.items() if applies]


def flash_saving(call: Mapping[str, Any], gpu: Gpu, *, causal: bool) -> float:
    """Return how many nanoseconds a flash kernel would save in all calls of a row.

    The kernel's time is taken from the operations it must do, at a rate that torch's
    flash kernels reach even on short sequences; where that is not known, half of what
    runs now is saved.
    """
    peak = gpu.peak
    rate = peak.flops.get("bf16") if peak else None
    if not peak or not rate or len(call["query"] or ()) != _RANK:
        return float(call["gpu_ns"]) * _UNKNOWN_SAVING
    batch, heads, queries, width = call["query"]
    keys, out = call["key"][2], call["value"][3]
    flops = 2.0 * batch * heads * queries * keys * (width + out) / (2 if causal else 1)
    moved = 2.0 * sum(prod(call[part]) for part in ("query", "query", "key", "value"))
    passes = 1 + _BACKWARD if call["backward"] else 1
    share = _FLASH_RATE.get(gpu.capability[0], min(_FLASH_RATE.values()))
    seconds = passes * max(
        flops / (share * rate), moved / (_BANDWIDTH * peak.bandwidth)
    )
    launches = 1 + _KERNELS_OF_BACKWARD if call["backward"] else 1
    one = max(seconds * 1e9, launches * _LEAST_NS)
    return max(0.0, float(call["gpu_ns"]) - one * int(call["calls"]))
