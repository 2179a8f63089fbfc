"""Norms that run in float32 in a 16-bit model, and the casts around them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base import ownership
from traceq.linter import (
    END,
    FLOAT32,
    HALF,
    NOTHING,
    asof,
    first_sizes,
    has_named,
    named,
    named_like,
    nth,
    plain,
    rows_where,
)

from ._norms import OF_KERNELS, grouped

if TYPE_CHECKING:
    from traceq.linter import Trace

_NORMS = ("aten::rms_norm", "aten::layer_norm", "aten::group_norm")
_CAST = "aten::_to_copy"
_WRITTEN = (_CAST, "aten::to", "aten::type_as")
_MATMULS = r"^aten::(\w*mm|matmul|linear|\w*conv\w*|\w*attention\w*|einsum)(\.|$)"
_FUSED = (
    "aten::_fused_rms_norm",
    "aten::native_layer_norm",
    "aten::native_group_norm",
)


def norm_casts(trace: Trace, kernels: pl.DataFrame) -> pl.DataFrame:
    """Return norms computed in float32 whose input or result is cast for them.

    A row has ``norm`` (its op), ``half``, the dtype cast from or to, ``up`` and
    ``down``, whether its input and whether its result is cast, ``written``, whether
    the program itself casts the input, or else the result, ``autocast``, whether
    autocast casts anything in this trace, ``casts``, the kernels of the casts,
    ``cast_ns``, their time, ``cast_ops``, the casts of the forward and autograd's nodes
    that undo them, and what ``grouped`` adds.
    """
    if not has_named(trace.ops, _FUSED) or not has_named(trace.ops, [_CAST]):
        return NOTHING
    norms = _float_norms(trace)
    if not norms.height:
        return NOTHING
    casts = _casts(trace)
    places = _places(trace, kernels, pl.concat([norms["owner"], casts["id"]]))
    norms = norms.join(places, left_on="owner", right_on="op")
    casts = casts.join(places, left_on="id", right_on="op")
    around = pl.concat(
        [_inside(trace, norms, casts), _before(norms, casts), _behind(norms, casts)]
    )
    if not around.height:
        return NOTHING
    candidates = (
        around.group_by("owner", maintain_order=True)
        .agg(
            pl.col("half").first(),
            pl.col("up").any(),
            pl.col("down").any(),
            written=pl.col("written").sort_by("down").first(),
        )
        .join(norms.select("owner", "norm", "dims"), on="owner")
    )
    by_autocast = (casts["to"].is_in(HALF) & ~casts["written"]).any()
    return grouped(
        trace,
        _of_norms_and_casts(trace, kernels, candidates, around),
        ["norm", "half", "up", "down", "written", "dims"],
        casts=pl.col("id").filter("cast"),
        cast_ops=pl.col("cast_op").filter("cast").unique(maintain_order=True),
        cast_ns=pl.col("dur").filter("cast").sum(),
        autocast=pl.lit(by_autocast),
    )


def _inside(trace: Trace, norms: pl.DataFrame, casts: pl.DataFrame) -> pl.DataFrame:
    """Return the casts of inputs that run inside of norms, as autocast has them."""
    in_norm = ownership.inside(trace, norms["owner"])
    return (
        casts.with_columns(owner=in_norm[casts["id"]])
        .filter(pl.col("to") == FLOAT32)
        .join(norms.select("owner", "dims"), on=["owner", "dims"])
        .select("owner", cast="id", half="of", up=True, down=False, written=False)
    )


def _before(norms: pl.DataFrame, casts: pl.DataFrame) -> pl.DataFrame:
    """Return the casts that the program calls right before a norm of what they give."""
    widening = casts.filter(pl.col("written") & (pl.col("to") == FLOAT32))
    return (
        widening.with_columns(pl.col("at") + 1)
        .join(norms, on=["thread", "at", "numel", "dims"])
        .select("owner", cast="id", half="of", up=True, down=False, written=True)
    )


def _behind(norms: pl.DataFrame, casts: pl.DataFrame) -> pl.DataFrame:
    """Return the casts of the norms' results.

    It is the next cast of a tensor of the norm's shape, which may be a view of it by
    then: all but the last dim in one. Behind a matmul it is that of something else.
    """
    narrowing = casts.filter(pl.col("to").is_in(HALF))
    same_op = pl.col("at") == pl.col("at_right")
    return (
        asof(narrowing, norms, "ts", "end", by="thread")
        .filter(
            pl.col("numel") == pl.col("numel_right"),
            pl.col("dims").list.last() == pl.col("dims_right").list.last(),
        )
        .unique("owner", keep="first", maintain_order=True)
        .filter(same_op | (pl.col("matmuls") == pl.col("matmuls_right")))
        .select("owner", cast="id", half="to", up=False, down=True, written="written")
    )


def _places(trace: Trace, kernels: pl.DataFrame, ops: pl.Series) -> pl.DataFrame:
    """Return where ops are in the row of what their thread launches.

    Each ``op`` has its place ``at`` among the outermost ops with GPU work, and how many
    ``matmuls`` came before.
    """
    called = ownership.outermost_ops(trace)
    rows = pl.concat([called[kernels["op"]], called[ops]]).drop_nulls().unique()
    line = trace.ops[["id", "thread", "ts"]][rows].sort("thread", "ts")
    matmul = named_like(trace.ops, _MATMULS)[line["id"]]
    line = line.select(
        called="id",
        at=pl.int_range(pl.len(), dtype=pl.Int64),
        matmuls=matmul.cum_sum() - matmul,
    )
    ops = ops.unique()
    places = pl.DataFrame({"op": ops, "called": called[ops]})
    return places.join(line, on="called").drop("called")


def _of_norms_and_casts(
    trace: Trace, kernels: pl.DataFrame, candidates: pl.DataFrame, around: pl.DataFrame
) -> pl.DataFrame:
    """Return the kernels of norms and of the casts around them, marked as ``cast``."""
    casts = around.select("owner", part="cast").with_columns(cast=True)
    norms = candidates.select("owner", part="owner").with_columns(cast=False)
    parts = pl.concat([casts, norms.select(casts.columns)]).unique("part", keep="first")
    within = ownership.inside(trace, parts["part"])
    ran = ownership.owned(trace, kernels[[*OF_KERNELS]], within)
    part, node = ran["owner"], ownership.outermost_ops(trace)[ran["op"]]
    # A cast that checkpointing repeats is in the backward, inside of another node.
    undone = ran["back"] & within[ran["op"]].is_null()
    return (
        ran.drop("owner")
        .with_columns(part=part, cast_op=node.zip_with(undone, part))
        .join(parts, on="part")
        .join(candidates, on="owner")
    )


def _float_norms(trace: Trace) -> pl.DataFrame:
    """Return the fused norms that compute in float32: the outermost op, and its end.

    An outermost op has one row, whatever is inside it.
    """
    ops = trace.ops
    fused = named(ops, _FUSED) & ~ops["compiling"]
    kernels = pl.DataFrame(
        {
            "owner": ownership.outermost_ops(trace, _NORMS).filter(fused),
            "inputs": ops["inputs"].filter(fused),
            "numel": first_sizes(trace)[ops["inputs"].filter(fused)],
        }
    ).drop_nulls("owner")
    ends = ops[["thread", "name", "id", "ts", "dur"]][kernels["owner"].unique()]
    norm = plain(ops, ends["name"]).alias("norm")
    ends = ends.select("thread", norm, owner="id", end=END)
    first = trace.inputs.select(type=nth("types", 0), dims=nth("dims", 0))
    return (
        kernels.hstack(first[kernels["inputs"]])
        .filter(pl.col("type") == FLOAT32)
        .select("owner", "numel", "dims")
        .unique("owner", keep="first", maintain_order=True)
        .join(ends, on="owner")
    )


def _casts(trace: Trace) -> pl.DataFrame:
    """Return the casts between float32 and 16-bit dtypes, ``of`` one ``to`` another.

    They are ``written`` where the program calls them, and no other op of torch.
    """
    ops = trace.ops
    # The backward of a cast belongs to the op around the copy.
    around = ownership.inside(trace, ops["id"].filter(named(ops, [_CAST])))
    to, of = pl.col("to"), pl.col("of")
    between = ((to == FLOAT32) & of.is_in(HALF)) | ((of == FLOAT32) & to.is_in(HALF))
    inputs = trace.inputs.select(
        dims=nth("dims", 0),
        to=nth("types", 0),
        of=nth("types", 1),
        inputs="id",
        numel=first_sizes(trace),
    )
    rows = rows_where(named(ops, ["aten::copy_"]) & ~ops["compiling"])
    other = ops["id"].filter(named_like(ops, "^aten::") & ~named(ops, _WRITTEN))
    return (
        ops[["thread", "ts", "inputs"]][rows]
        .with_columns(
            id=around[rows],
            written=ownership.inside(trace, other)[
                ops["parent"][around[rows]]
            ].is_null(),
        )
        .join(inputs.filter(between), on="inputs", maintain_order="left")
        .drop_nulls("id")
        .select("id", "thread", "ts", "dims", "numel", "to", "of", "written")
    )
