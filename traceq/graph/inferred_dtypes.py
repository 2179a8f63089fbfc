"""Dtypes of ops' inputs, inferred from the kernels that the ops launch.

Nsight Systems records shapes without dtypes. The names of many kernels tell the dtype
that they compute in, and those of casts both dtypes. What no kernel tells is "".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.common.expressions import constant, text
from traceq.graph.host import describe, only
from traceq.graph.nesting import INDEX, row_numbers
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
# In the order of the alphabet: inputs are sorted by it.
_DTYPE = pl.Enum(sorted({*_TYPES.values()}))
# More than there are dtypes or places of indices, and a power of 2.
_NO_CODE = 15
_CODES = _NO_CODE + 1


def with_inferred_dtypes(tables: Mapping[str, pl.DataFrame]) -> dict[str, pl.DataFrame]:
    """Return the tables with a dtype for the inputs of ops whose kernels tell one."""
    inferred = dict(tables)
    ops, inputs = tables["ops"], tables["inputs"]
    if inputs.is_empty() or inputs["types"].null_count() < inputs.height:
        return inferred
    requested = _requested_dtypes(ops, _of_ops(ops, _of_kernels(tables["kernels"])))
    distinct = (
        requested.unique("key").drop_nulls("key").sort("key").with_row_index("row")
    )
    key = requested["key"]
    rows = only(distinct["key"].search_sorted(key), key.is_not_null())
    typed = inputs[distinct["inputs"]].with_columns(
        id=distinct["row"], types=_types(distinct, inputs)
    )
    inferred["inputs"] = schema.TABLES["inputs"].shaped(typed)
    inferred["ops"] = ops.with_columns(rows.cast(INDEX).alias("inputs"))
    return inferred


def _requested_dtypes(ops: pl.DataFrame, dtypes: pl.DataFrame) -> pl.DataFrame:
    """Return for each op its inputs, with the dtypes of the first and of the others.

    The ``key`` is one number for all of these, null without inputs.
    """
    to, of = pl.col("to"), pl.coalesce("of", "to")
    columns = [ops.select("inputs"), dtypes, describe(ops, _describe_names)]
    requested = pl.concat(columns, how="horizontal").select(
        "inputs",
        first=pl.when("casts").then(of).otherwise(to),
        others=pl.when("copies").then(of).otherwise(to),
        indices="indices",
    )
    key = pl.col("inputs").cast(pl.UInt64)
    for column in ("first", "others", "indices"):
        key = key * _CODES + pl.col(column).to_physical().fill_null(_NO_CODE)
    return requested.with_columns(key=key)


def _describe_names(names: pl.Series) -> pl.DataFrame:
    """Return whether ops cast and copy, and which of their inputs are indices."""
    return names.to_frame("name").select(
        casts=pl.col("name").is_in(_CASTS),
        copies=pl.col("name").is_in([*_CASTS, _COPY]),
        indices=pl.col("name").replace_strict(
            _INDICES, default=None, return_dtype=pl.UInt8
        ),
    )


def _of_kernels(kernels: pl.DataFrame) -> pl.DataFrame:
    """Return ``op``, the dtype that a kernel writes ``to`` and that it casts ``of``."""
    facts = (
        kernels.select("name", "dtype")
        .unique("name", maintain_order=True)
        .with_columns(
            to=text("dtype").replace_strict(_TYPES, default=None, return_dtype=_DTYPE),
            to_half=text("name").str.contains(_TO_HALF),
            from_any=text("name").str.contains(_FROM_ANY),
        )
    )
    computing = kernels.select("op", "name", "dur").join(facts, on="name", how="left")
    halves = computing.filter(pl.col("to").is_in(_HALVES))["to"].mode().sort()
    half = halves[0] if len(halves) else None
    of = (
        pl.when("to_half")
        .then(pl.lit(_FLOAT, _DTYPE))
        .when(pl.col("from_any") & (pl.col("to") == _FLOAT))
        .then(pl.lit(half, _DTYPE))
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
        .filter(pl.col("op").ne_missing(pl.col("op").shift(1)))
        .drop("dur")
    )
    nowhere = constant(None, ops.height, INDEX)
    row = nowhere.scatter(longest["op"], row_numbers(longest.height))
    return longest.select("to", "of")[row]


def _types(distinct: pl.DataFrame, inputs: pl.DataFrame) -> pl.Series:
    """Return the dtype of each input: "" for scalars, lists and where none is known."""
    place = pl.int_range(pl.len()).over("row")
    kind = (
        pl.when(pl.col("dims").list.len().fill_null(0) == 0)
        .then(pl.lit(_UNKNOWN))
        .when(pl.col("indices") == place)
        .then(pl.lit(_INDEX_TYPE))
        .when(place == 0)
        .then(text("first"))
        .otherwise(text("others"))
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
