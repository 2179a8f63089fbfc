"""Dtypes of ops' inputs, inferred from the kernels that the ops launch.

Nsight Systems records shapes without dtypes. The names of many kernels tell the dtype
that they compute in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

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
_DEEPEST = 64


def with_inferred_dtypes(tables: Mapping[str, pl.DataFrame]) -> dict[str, pl.DataFrame]:
    """Return the tables with a dtype for the inputs of ops whose kernels tell one."""
    tables = dict(tables)
    ops, inputs = tables["ops"], tables["inputs"]
    if inputs.is_empty() or inputs["types"].null_count() < inputs.height:
        return tables
    dtype = _dtype_of_ops(ops, tables["kernels"])
    pairs = ops.select("inputs", dtype=dtype)
    distinct = (
        pairs.drop_nulls("inputs").unique().sort("inputs", "dtype", nulls_last=True)
    ).with_row_index("row")
    rows = pairs.join(
        distinct,
        on=["inputs", "dtype"],
        how="left",
        maintain_order="left",
        nulls_equal=True,
    )["row"]
    typed = inputs[distinct["inputs"]].with_columns(
        dtype=distinct["dtype"], id=distinct["row"]
    )
    types = pl.when(pl.col("dtype").is_not_null()).then(
        pl.col("dims").list.eval(
            pl.when(pl.element().list.len() > 0).then(pl.lit("x")).otherwise(pl.lit(""))
        )
    )
    typed = typed.with_columns(types=types).with_columns(
        types=pl.col("types").list.eval(pl.element()).cast(pl.List(pl.String))
    )
    typed = _named(typed)
    tables["inputs"] = schema.TABLES["inputs"].shaped(typed)
    tables["ops"] = ops.with_columns(inputs=rows.cast(INDEX))
    return tables


def _named(typed: pl.DataFrame) -> pl.DataFrame:
    """Write the dtype of each row where its tensors are."""
    placed = (
        typed.select("id", "dtype", "types")
        .explode("types")
        .with_columns(
            types=pl.when(pl.col("types") == "x").then("dtype").otherwise("types")
        )
        .group_by("id", maintain_order=True)
        .agg("types")
    )
    known = typed["dtype"].is_not_null() & (typed["types"].list.len() > 0)
    return typed.with_columns(types=pl.when(known).then(placed["types"])).drop("dtype")


def _dtype_of_ops(ops: pl.DataFrame, kernels: pl.DataFrame) -> pl.Series:
    """Return the dtype of each op: of most of its kernels, or of ops inside it."""
    named = (
        kernels.select(
            "op",
            dtype=pl.col("dtype")
            .cast(pl.String)
            .replace_strict(_TYPES, default=None, return_dtype=pl.String),
            dur="dur",
        )
        .drop_nulls()
        .group_by("op", "dtype")
        .agg(pl.col("dur").sum())
    )
    # From the ops that launch to those around them, level by level.
    chosen = pl.DataFrame(schema={"op": INDEX, "dtype": pl.String})
    level = named.select(pl.col("op").cast(INDEX), "dtype", "dur")
    every = [level]
    for _ in range(_DEEPEST):
        parent = ops["parent"][level["op"]]
        level = (
            level.with_columns(op=parent)
            .drop_nulls("op")
            .group_by("op", "dtype")
            .agg(pl.col("dur").sum())
        )
        if level.is_empty():
            break
        every.append(level)
    chosen = (
        pl.concat(every)
        .group_by("op", "dtype")
        .agg(pl.col("dur").sum())
        .sort("op", "dur", "dtype", descending=[False, True, False])
        .unique("op", keep="first", maintain_order=True)
    )
    return ops.select(op=pl.col("id")).join(
        chosen, on="op", how="left", maintain_order="left"
    )["dtype"]
