"""Calls of scaled dot-product attention: which kernels ran, for which arguments."""

from __future__ import annotations

import re
from math import prod
from typing import TYPE_CHECKING, Any

import polars as pl
from msgspec import Struct

from traceq.analysis.base.assumptions import (
    ATTENTION_BACKWARD,
    FLASH_BACKWARD_KERNELS,
    FLASH_EFFICIENCY,
    FLASH_KERNELS,
)
from traceq.analysis.base.cached import cached_per_trace
from traceq.analysis.base.ownership import (
    at_owner,
    by_place,
    first_rows,
    has_named,
    inside,
    named,
    named_like,
    outermost_ops,
    owned,
    plain,
)
from traceq.analysis.base.roofline import roofline_ns, saved_share
from traceq.common.expressions import ascii_only, known, rows_where, text
from traceq.graph.nesting import INDEX
from traceq.model.dtypes import BFLOAT16, HALF, SIZES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from traceq.analysis.base.device import Gpu
    from traceq.analysis.base.ownership import Row
    from traceq.model.trace import Trace

SDPA = "aten::scaled_dot_product_attention"
# Batch, heads, sequence, head dim.
_RANK = 4
_OP = "aten::_scaled_dot_product_"
_BACKWARD = "_backward"


class Arguments(Struct, frozen=True):
    """Positions of an op's arguments: query, mask, flags."""

    query: int = 0
    mask: int | None = None
    dropout: int | None = None
    causal: int | None = None
    gqa: int | None = None


# The dispatcher's arguments, and those of the backends, which compiled programs
# call themselves.
_ARGUMENTS = {
    SDPA: Arguments(0, 3, 4, 5, 7),
    f"{_OP}attention_math": Arguments(0, 3, 4, 5, 8),
    f"{_OP}flash_attention": Arguments(0, None, 3, 4),
    f"{_OP}efficient_attention": Arguments(0, 3, 5, 6),
    f"{_OP}cudnn_attention": Arguments(0, 3, 5, 6),
    f"{_OP}flash_attention_backward": Arguments(1, None, 10, 11),
    f"{_OP}efficient_attention_backward": Arguments(1, 4, 9, 11),
    f"{_OP}cudnn_attention_backward": Arguments(1, 8, 13, 14),
}
SDPA_BACKENDS = [name for name in _ARGUMENTS if name != SDPA]
"""The ops by which attention is computed, called by SDPA or by themselves."""
FUSED_ARGUMENTS = {
    name: at
    for name, at in _ARGUMENTS.items()
    if name not in (SDPA, f"{_OP}attention_math")
}
"""Argument positions of fused attention, by op; key and value follow the query."""
# Ops that the dispatcher calls only to prepare a mask.
_MASK_OPS = ("aten::expand", "aten::where", "aten::masked_fill_")
# Mem-efficient kernels say what they are; CUDA graphs run them without any op.
_EFFICIENT_KERNEL = r"\bfmha_cutlass[FB]_"
_NO_BACKEND = r"^xformers"
# The columns of kernels that are needed, of dozens.
_OF_KERNELS = ("id", "op", "ts", "dur", "dtype", "kind")
_PLACE = ("module", "file", "line", "function", "via")

_ARGUMENT = {
    "backend": pl.String(),
    **dict.fromkeys(
        ("query", "key", "value", "mask", "mask_strides"), pl.List(pl.Int64())
    ),
    **dict.fromkeys(("query_type", "key_type", "value_type", "mask_type"), pl.String()),
    **dict.fromkeys(("masked", "causal", "gqa", "dropout", "contiguous"), pl.Boolean()),
}
CALL = tuple(_ARGUMENT)
"""Calls that differ in one of these are different calls."""
_TOLD = _ARGUMENT | {"at": pl.Int64(), "alone": pl.Boolean()}
# Columns that tell calls with the same arguments apart.
_GIVEN = ("name", "by_dispatcher", "prepares", "inputs")
_BACKEND = re.compile(r"_product_(?:attention_)?(math|flash|efficient|cudnn)")

# The diagonal at which these cut a causal mask: what is kept, or what is masked.
_CAUSAL_DIAGONAL = {
    "aten::tril": "0",
    "aten::tril_": "0",
    "aten::triu": "1",
    "aten::triu_": "1",
}
_CUT = {
    "id": INDEX,
    "plain": pl.String(),
    "size": pl.List(pl.Int64()),
    "diagonal": pl.String(),
}
_MAKES_CAUSAL = r"(?i)causal\w*mask|mask\w*causal|square_subsequent_mask"
# Functions that make masks which may be as large and are not the lower triangle.
_MAKES_OTHER = (
    r"(?i)(sliding|window|chunk|local|prefix|bidirectional|extended_attention)\w*mask"
    r"|_prepare_4d_attention_mask"
)
_JOINING = [
    *(f"aten::{way}_{of}" for way in ("bitwise", "logical") for of in ("and", "or")),
    *(f"aten::{way}_{of}_" for way in ("bitwise", "logical") for of in ("and", "or")),
    *("aten::__and__", "aten::__or__", "aten::__iand__", "aten::__ior__"),
]
_FIRST_WITH_FLASH = 8
# Properties that no fused kernel supports, on any GPU.
_FOR_ALL = ("rank", "strides", "mixed dtypes")
# GPUs whose shared memory is too small for the backward of wide heads.
_SMALL = ((8, 6), (8, 7), (8, 9), (12, 0), (12, 1))


@cached_per_trace
def attention_calls(trace: Trace) -> pl.DataFrame:
    """Return the calls: ``owner``, the outermost op of each, CALL, and ``alone``.

    That one is a backward by itself: in compiled code and graphs it may not be known
    which forward it is of.

    ``query`` and the like are shapes. Under autocast the arguments are those after
    its casts, which are what the choice of a kernel depends on.
    """
    every = trace.ops
    chosen = every["id"].filter(named(every, SDPA_BACKENDS) & ~every["compiling"])
    around, parent = outermost_ops(trace, (SDPA,))[chosen], every["parent"][chosen]
    by_dispatcher = known(named(every, [SDPA])[parent])
    source = parent.zip_with(by_dispatcher, chosen)
    prepared = every["parent"].filter(named(every, _MASK_OPS)).drop_nulls().unique()
    calls = pl.DataFrame(
        {
            "owner": around.zip_with(around.is_not_null(), chosen),
            "name": every["name"][chosen],
            "by_dispatcher": by_dispatcher,
            "prepares": source.is_in(prepared.implode()),
            "inputs": every["inputs"][source],
        }
    )
    return (
        calls.join(
            _distinct_arguments(trace, calls),
            on=_GIVEN,
            nulls_equal=True,
            maintain_order="left",
        )
        # The dispatcher's arguments say the most.
        .sort("at", maintain_order=True)
        .unique("owner", keep="first", maintain_order=True)
        .select("owner", *CALL, "alone")
    )


def _distinct_arguments(trace: Trace, calls: pl.DataFrame) -> pl.DataFrame:
    """Return the arguments of each distinct call: CALL, ``at`` and ``alone``.

    ``at`` is its place in _ARGUMENTS.
    """
    distinct = calls.select(_GIVEN).unique(maintain_order=True)
    input_rows = distinct["inputs"].drop_nulls().unique()
    arguments = trace.inputs[["dims", "types", "strides", "values"]][input_rows].rows()
    inputs = dict(zip(input_rows.to_list(), arguments, strict=True))
    called = plain(trace.ops, distinct["name"])
    call_rows = [
        _call(
            name,
            inputs.get(number, (None,) * 4),
            by_dispatcher=by_dispatcher,
            prepares=prepares,
        )
        for name, (_, by_dispatcher, prepares, number) in zip(
            called, distinct.iter_rows(), strict=True
        )
    ]
    shown = pl.DataFrame(call_rows, schema=_TOLD, orient="row")
    return pl.concat([distinct, shown], how="horizontal")


def _call(
    name: str, arguments: Sequence[Any], *, by_dispatcher: bool, prepares: bool
) -> tuple[object, ...]:
    """Return the arguments of a call, in the order of _TOLD."""
    called = SDPA if by_dispatcher else name
    at = _ARGUMENTS[called]
    dims, types, strides, values = arguments

    def get(items: list[Any] | None, index: int | None) -> Any:  # noqa: ANN401
        there = items is not None and index is not None and index < len(items)
        return items[index] if there else None  # type: ignore[index]  # as tested

    places = range(at.query, at.query + 3)
    query, key, value = (get(dims, place) for place in places)
    kinds = [get(types, place) for place in places]
    kind_of_mask = get(types, at.mask) or ""
    last = [(get(strides, place) or [None])[-1] for place in places]
    backend = _BACKEND.search(name)
    return (
        backend[1] if backend else None,
        *(query, key, value, get(dims, at.mask), get(strides, at.mask)),
        *(*kinds, kind_of_mask),
        kind_of_mask != "" if query is not None else prepares,
        get(values, at.causal) == "True",
        get(values, at.gqa) == "True",
        _is_positive(get(values, at.dropout)),
        all(stride in (1, None) for stride in last),
        list(_ARGUMENTS).index(called),
        called.endswith(_BACKWARD),
    )


def _is_positive(text: str | None) -> bool:
    try:
        return float(text or 0) > 0
    except ValueError:
        return False


@cached_per_trace
def attention(trace: Trace, kernels: pl.DataFrame) -> pl.DataFrame:
    """Return the calls of attention, one row for the same call at the same place.

    A row has CALL, what ``by_place`` adds, whether there is a ``backward``, and
    ``dtype``, a short name, read from the kernels' names. Kernels without an op, as
    those of CUDA graphs, are rows without arguments.
    """
    calls = attention_calls(trace)
    ran = owned(trace, kernels[[*_OF_KERNELS]], inside(trace, calls["owner"]))
    rows = at_owner(trace, ran).join(calls, on="owner")
    strays = _strays(trace, kernels)
    if strays.height:
        strays = strays.join(ran, on="id", how="anti").with_columns(
            owner=pl.lit(None),
            backend=pl.lit("efficient"),
            back=pl.lit(False),  # noqa: FBT003 - nobody knows
        )
        rows = pl.concat([rows, strays], how="diagonal_relaxed")
    alone = known(pl.col("alone"))
    forward = ~pl.col("back") & ~alone
    owner = pl.col("owner")
    return by_place(
        rows,
        CALL,
        calls=pl.max_horizontal(
            owner.filter(forward).drop_nulls().n_unique(),
            owner.filter(alone).drop_nulls().n_unique(),
        ),
        backward=(~forward).any(),
        dtype=text("dtype").filter(pl.col("kind") == "attention").first(),
    )


def _strays(trace: Trace, kernels: pl.DataFrame) -> pl.DataFrame:
    """Return the mem-efficient kernels, but for those of calls of xformers."""
    chosen = rows_where(named_like(kernels, _EFFICIENT_KERNEL))
    strays = kernels[[*_OF_KERNELS, *_PLACE]][chosen]
    if not strays.height:
        return strays
    launching = trace.ops["name"][strays["op"]].cast(pl.String)
    return strays.filter(~known(launching.str.contains(_NO_BACKEND)))


def fallbacks(trace: Trace, kernels: pl.DataFrame, gpu: Gpu) -> list[Row]:
    """Return the rows of ``attention`` on kernels slower than FlashAttention.

    Each has its ``causes``, as ``obstacles`` names them. Calls for which the GPU has
    nothing faster are left out: before compute capability 8 mem-efficient attention is
    the best there is, and on AMD it is as fast as FlashAttention.
    """
    there = has_named(trace.ops, SDPA_BACKENDS) or _strays(trace, kernels).height
    if not there:
        return []
    rows = attention(trace, kernels).filter(
        pl.col("backend").is_in(("efficient", "math"))
    )
    slow = []
    for row in rows.iter_rows(named=True):
        causes = obstacles(row, gpu.capability)
        if not _has_flash(row, gpu):
            causes = [cause for cause in causes if cause in _FOR_ALL]
            if row["backend"] != "math" or not causes:
                continue
        slow.append(row | {"causes": causes})
    return slow


def _has_flash(call: Mapping[str, Any], gpu: Gpu) -> bool:
    if gpu.amd:
        return False
    if gpu.capability == (0, 0):
        # Nothing older computes in bfloat16.
        return call["query_type"] == BFLOAT16 or call["dtype"] == "bf16"
    return gpu.capability[0] >= _FIRST_WITH_FLASH


def mask_shape(call: Mapping[str, Any]) -> list[int] | None:
    """Return the shape of a call's mask, 1 where it is expanded; None if unknown."""
    dims, strides = call["mask"], call["mask_strides"]
    if not dims:
        return None
    if not strides or len(strides) != len(dims):
        return list(dims)
    return [1 if step == 0 else size for size, step in zip(dims, strides, strict=True)]


def mask_kind(call: Mapping[str, Any]) -> str:
    """Return the kind of a mask by its shape; empty if the shape does not show it."""
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


def causal_making(
    trace: Trace, rows: int, columns: int, module: str | None
) -> str | None:
    """Return the op or function that makes a causal mask of this size in the trace.

    It is empty where nothing does: the mask was made before. It is None where it may be
    the making of another mask: if triangles of this size are cut in other ways too, if
    a function makes bidirectional masks or sliding windows, if conditions of this size
    are joined, or if the call is in the encoder of a model that has a decoder.
    """
    made, others = _makers(trace)
    if others or (rows, columns) in _joined(trace) or _encodes(trace, module):
        return None
    size = pl.col("size")
    cuts = _triangles(trace).filter(
        size.list.get(-2, null_on_oob=True) == rows,
        size.list.get(-1, null_on_oob=True) == columns,
    )
    if cuts.height:
        surely = cuts["diagonal"].null_count() == 0 or cuts["plain"].n_unique() == 1
        return str(cuts["plain"][0]) if surely and cuts["causal"].all() else None
    return made


@cached_per_trace
def _makers(trace: Trace) -> tuple[str, bool]:
    """Return a function that makes causal masks, and whether any makes other ones."""
    # A function is told from a name: few rows are all that there are.
    functions = trace.frames["function"][first_rows(trace.frames)]
    functions = functions.unique().cast(pl.String).sort()
    made = functions.filter(known(functions.str.contains(ascii_only(_MAKES_CAUSAL))))
    others = bool(known(functions.str.contains(ascii_only(_MAKES_OTHER))).any())
    return (str(made[0]) if len(made) else ""), others


@cached_per_trace
def _joined(trace: Trace) -> set[tuple[int, int]]:
    """Return the sizes of masks for all sequences that are joined of two conditions.

    With the lower triangle these may be windows, or documents of a packed sequence.
    """
    if not has_named(trace.ops, _JOINING):
        return set()
    joining = trace.ops["inputs"].filter(named(trace.ops, _JOINING))
    shapes = trace.inputs["dims"][joining.drop_nulls().unique()].to_list()
    pairs = ([dim or [] for dim in dims or ()][:2] for dims in shapes)
    return {
        (entry[-2], entry[-1])
        for pair in pairs
        for entry in pair
        if len(entry) >= 2 and prod(entry[:-2]) == 1  # noqa: PLR2004 - a matrix
    }


def _encodes(trace: Trace, module: str | None) -> bool:
    """Return whether a module is in an encoder, and there is a decoder elsewhere."""
    if not module or "Encoder" not in module:
        return False
    modules = trace.ops["module"].unique().cast(pl.String)
    return bool(known(modules.str.contains("Decoder")).any())


@cached_per_trace
def _triangles(trace: Trace) -> pl.DataFrame:
    """Return calls of tril and triu: ``plain``, ``size``, ``diagonal``, ``causal``."""
    if not has_named(trace.ops, _CAUSAL_DIAGONAL) and not trace.fused.height:
        return pl.DataFrame(schema={**_CUT, "causal": pl.Boolean()})
    cutting = rows_where(named(trace.ops, _CAUSAL_DIAGONAL))
    chosen = trace.ops[["id", "name", "inputs"]][cutting].drop_nulls("inputs")
    expected = pl.col("plain").replace_strict(_CAUSAL_DIAGONAL, default=None)
    arguments = trace.inputs[["dims", "values"]][chosen["inputs"]]
    called = chosen.hstack([plain(trace.ops, chosen["name"]), *arguments.get_columns()])
    first = pl.col("dims").list.first()
    diagonal = pl.col("values").list.get(1, null_on_oob=True)
    return (
        pl.concat(
            [
                called.select("id", "plain", size=first, diagonal=diagonal),
                _fused_triangles(trace),
            ]
        )
        .with_columns(causal=(pl.col("diagonal") == expected).fill_null(value=True))
        .sort("id")
    )


def _fused_triangles(trace: Trace) -> pl.DataFrame:
    """Return the same of compiled code, where a kernel cuts them among other things.

    Its tensors have the triangle's size; which diagonal it is, is not known.
    """
    if not trace.fused.height:
        return pl.DataFrame(schema=_CUT)
    name = pl.concat_str(
        pl.lit("aten::"), text("computes").str.extract(r"^(?:aten\.)?(tri[lu])_?\b")
    )
    cut = trace.fused.select("op", plain=name).drop_nulls().unique(maintain_order=True)
    sizes = trace.inputs.select("dims", inputs="id")
    ops = trace.ops[["id", "inputs"]]
    return (
        ops[cut["op"]]
        .with_columns(cut["plain"])
        .join(sizes, on="inputs")
        .explode("dims")
        .filter(pl.col("dims").list.len() >= 2)  # noqa: PLR2004 - a triangle is flat
        .select("id", "plain", size="dims", diagonal=pl.lit(None, pl.String))
    )


def obstacles(call: Mapping[str, Any], capability: tuple[int, int]) -> list[str]:
    """Return the reasons why FlashAttention cannot take this call, by its arguments."""
    if call["query"] is None:
        # Without shapes; the kernel's name still has the dtype.
        causes = {"dtype": call["dtype"] == "fp32", "mask": call["masked"]}
        return [cause for cause, applies in causes.items() if applies]
    query, key, value = call["query"], call["key"], call["value"]
    types = {call["query_type"], call["key_type"], call["value_type"]}
    if {len(query), len(key), len(value)} != {_RANK}:
        return ["rank"]
    width = query[3]
    wide = 192 if capability in _SMALL and call["backward"] else 256
    causes = {
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
    return [cause for cause, applies in causes.items() if applies]


def flash_share(call: Mapping[str, Any], gpu: Gpu, *, causal: bool) -> float:
    """Return the fraction of a row's GPU time that FlashAttention would save."""
    one = _flash_ns(call, gpu, causal=causal)
    then = None if one is None else one * int(call["calls"])
    return saved_share(call["gpu_ns"], then)


def _flash_ns(call: Mapping[str, Any], gpu: Gpu, *, causal: bool) -> float | None:
    """Return FlashAttention's time for one call; None if it is unknown."""
    if len(call["query"] or ()) != _RANK:
        return None
    shapes = [call[part] for part in ("query", "key", "value")]
    flops = attention_flops(*shapes, causal=causal)
    # The result has the size of the query.
    moved = SIZES[BFLOAT16] * sum(map(prod, (call["query"], *shapes)))
    passes, kernels = 1.0, FLASH_KERNELS
    if call["backward"]:
        passes, kernels = 1 + ATTENTION_BACKWARD, kernels + FLASH_BACKWARD_KERNELS
    # Those of unknown GPUs are as slow as any.
    slowest = min(FLASH_EFFICIENCY.values(), key=lambda one: one.compute)
    return roofline_ns(
        gpu,
        FLASH_EFFICIENCY.get(gpu.capability[0], slowest),
        moved=passes * moved,
        flops=passes * flops,
        dtype="bf16",
        kernels=kernels,
    )


def attention_flops(
    query: Sequence[int], key: Sequence[int], value: Sequence[int], *, causal: bool
) -> float:
    """Return the FLOPs of a forward; a causal mask halves them."""
    batch, heads, queries, width = query
    flops = 2.0 * batch * heads * queries * key[2] * (width + value[3])
    return flops / 2 if causal else flops
