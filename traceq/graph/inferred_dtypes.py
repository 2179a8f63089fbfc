"""Dtypes of ops' inputs, inferred from the kernels that the ops launch.

Nsight Systems records shapes without dtypes. The names of many kernels tell the dtype
that they compute in, and those of casts both dtypes. What no kernel tells is "".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.common.expressions import text
from traceq.graph.nesting import INDEX
from traceq.model import schema

if TYPE_CHECKING:
    from collections.abc import Mapping

# As Kineto writes the dtypes of inputs.
_TYPES = {
    "bf16": "c10::BFloat16",
    "fp16": "c10::Half",
    "fp32": "float",
    "tf32": "float",
    "fp64": "double",
    "int8": "signed char",
    "fp8": "c10::Float8_e4m3fn",
}
_FLOAT, _HALVES = "float", ("c10::BFloat16", "c10::Half")
_UNKNOWN = ""
# Kernels of ATen that cast: to half precision from float, or from whatever there is.
_TO_HALF = r"\b(?:b?float16)_copy_kernel"
_FROM_ANY = r"direct_copy_kernel.*LoadWithCast"
# Ops whose first input is what a cast reads, not what it writes.
_CASTS = ("aten::to", "aten::_to_copy", "aten::type_as")
_COPY = "aten::copy_"
# Inputs that are indices, by their place.
_INDICES = {
    "aten::embedding": 1,
    "aten::embedding_dense_backward": 1,
    "aten::embedding_backward": 1,
    "aten::nll_loss": 1,
    "aten::nll_loss_nd": 1,
    "aten::nll_loss_forward": 1,
    "aten::nll_loss_backward": 2,
    "aten::cross_entropy_loss": 1,
    "aten::index_select": 2,
    "aten::index_add_": 2,
    "aten::gather": 2,
    "aten::scatter_add_": 2,
}
_INDEX_TYPE = "long int"
_DEEPEST = 64
_KEY = ("inputs", "first", "others", "indices")


def with_inferred_dtypes(tables: Mapping[str, pl.DataFrame]) -> dict[str, pl.DataFrame]:
    """Return the tables with a dtype for the inputs of ops whose kernels tell one."""
    inferred = dict(tables)
    ops, inputs = tables["ops"], tables["inputs"]
    if inputs.is_empty() or inputs["types"].null_count() < inputs.height:
        return inferred
    requested = _requested_dtypes(ops, _of_ops(ops, _of_kernels(tables["kernels"])))
    distinct = (
        requested.drop_nulls("inputs")
        .unique()
        .sort(_KEY, nulls_last=True)
        .with_row_index("row")
    )
    rows = requested.join(
        distinct, on=_KEY, how="left", maintain_order="left", nulls_equal=True
    )["row"]
    typed = inputs[distinct["inputs"]].with_columns(
        id=distinct["row"], types=_types(distinct, inputs)
    )
    inferred["inputs"] = schema.TABLES["inputs"].shaped(typed)
    inferred["ops"] = ops.with_columns(inputs=rows.cast(INDEX))
    return inferred


def _requested_dtypes(ops: pl.DataFrame, dtypes: pl.DataFrame) -> pl.DataFrame:
    """Return for each op its inputs, with the dtypes of the first and of the others."""
    name = text("name")
    to, of = pl.col("to"), pl.coalesce("of", "to")
    return pl.concat([ops.select("name", "inputs"), dtypes], how="horizontal").select(
        "inputs",
        first=pl.when(name.is_in(_CASTS)).then(of).otherwise(to),
        others=pl.when(name.is_in([*_CASTS, _COPY])).then(of).otherwise(to),
        indices=name.replace_strict(_INDICES, default=None, return_dtype=pl.Int64),
    )


def _of_kernels(kernels: pl.DataFrame) -> pl.DataFrame:
    """Return ``op``, the dtype that a kernel writes ``to`` and that it casts ``of``."""
    facts = (
        kernels.select("name", "dtype")
        .unique("name", maintain_order=True)
        .with_columns(
            to=text("dtype").replace_strict(
                _TYPES, default=None, return_dtype=pl.String
            ),
            to_half=text("name").str.contains(_TO_HALF),
            from_any=text("name").str.contains(_FROM_ANY),
        )
    )
    computing = kernels.select("op", "name", "dur").join(facts, on="name", how="left")
    halves = computing.filter(pl.col("to").is_in(_HALVES))["to"].mode().sort()
    half = halves[0] if len(halves) else None
    of = (
        pl.when("to_half")
        .then(pl.lit(_FLOAT))
        .when(pl.col("from_any") & (pl.col("to") == _FLOAT))
        .then(pl.lit(half, pl.String))
    )
    return computing.select(pl.col("op").cast(INDEX), "to", "dur", of=of).drop_nulls(
        ["op", "to"]
    )


def _of_ops(ops: pl.DataFrame, kernels: pl.DataFrame) -> pl.DataFrame:
    """Return ``to`` and ``of`` of each op: of most of the time of kernels inside it."""
    level = kernels.group_by("op", "to", "of").agg(pl.col("dur").sum())
    levels = [level]
    # From the ops that launch to those around them, level by level.
    for _ in range(_DEEPEST):
        level = (
            level.with_columns(op=ops["parent"][level["op"]])
            .drop_nulls("op")
            .group_by("op", "to", "of")
            .agg(pl.col("dur").sum())
        )
        if level.is_empty():
            break
        levels.append(level)
    longest = (
        pl.concat(levels)
        .group_by("op", "to", "of")
        .agg(pl.col("dur").sum())
        .sort("op", "dur", "to", "of", descending=[False, True, False, False])
        .unique("op", keep="first", maintain_order=True)
        .drop("dur")
    )
    every = ops.select(op="id").join(
        longest, on="op", how="left", maintain_order="left"
    )
    return every.select("to", "of")


def _types(distinct: pl.DataFrame, inputs: pl.DataFrame) -> pl.Series:
    """Return the dtype of each input: "" for scalars, lists and where none is known."""
    place = pl.int_range(pl.len()).over("row")
    kind = (
        pl.when(pl.col("dims").list.len().fill_null(0) == 0)
        .then(pl.lit(_UNKNOWN))
        .when(pl.col("indices") == place)
        .then(pl.lit(_INDEX_TYPE))
        .when(place == 0)
        .then("first")
        .otherwise("others")
    )
    lists = (
        distinct.with_columns(dims=inputs["dims"][distinct["inputs"]])
        .filter(pl.col("dims").list.len() > 0)
        .explode("dims")
        .with_columns(kind=kind.fill_null(_UNKNOWN))
        .group_by("row", maintain_order=True)
        .agg(types="kind")
    )
    return distinct.select("row").join(
        lists, on="row", how="left", maintain_order="left"
    )["types"]
