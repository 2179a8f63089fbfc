"""Decoded events sorted into raw tables, their arguments into columns."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import polars as pl
from msgspec import Struct, field

from traceq.common.expressions import known
from traceq.formats import event_heads
from traceq.model import names, schema

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceq.model.schema import Column, Dtype

# The table of each category of events, under the names of all versions.
_TABLE_OF = {
    "cpu_op": "ops",
    "Operator": "ops",
    "kernel": "kernels",
    "Kernel": "kernels",
    "gpu_memcpy": "kernels",
    "Memcpy": "kernels",
    "gpu_memset": "kernels",
    "Memset": "kernels",
    "mtia_ccp_events": "kernels",
    "cuda_runtime": "runtime",
    "cuda_driver": "runtime",
    "Runtime": "runtime",
    "xpu_runtime": "runtime",
    "xpu_driver": "runtime",
    "mtia_runtime": "runtime",
    "privateuse1_runtime": "runtime",
    "privateuse1_driver": "runtime",
    "user_annotation": "annotations",
    "User": "annotations",
    "gpu_user_annotation": "annotations",
    "gpu_user_Annotation": "annotations",
    "python_function": "frames",
    "cpu_instant_event": "memory",
}
_ACTIVITY_OF = {
    "gpu_memcpy": "memcpy",
    "Memcpy": "memcpy",
    "gpu_memset": "memset",
    "Memset": "memset",
}
_MEMORY_EVENTS = ("[memory]", "[OutOfMemory]")
LANE_SEPARATOR = "\n"
_METADATA = "metadata"
_FLOWS = "flows"
_BROKEN = "broken"
_NO_TABLE = {"M": _METADATA, "s": _FLOWS, "t": _FLOWS, "f": _FLOWS, "": _BROKEN}
_BEFORE_KINETO = "before Kineto"

_W = r"[ \n\r\t]*"
INPUTS = ("Input Dims", "Input type", "Input Strides", "Concrete Inputs")
# Other arguments of an op, which differ from call to call.
IDS = (
    "External id",
    "Record function id",
    "Sequence number",
    "Fwd thread id",
    "Ev Idx",
)
_CALL_STACK = "Call stack"
_ACTIVITY = pl.Enum(schema.ACTIVITIES)
# As texts they would hold the chunk they were cut from.
_KEPT_ARGS = pl.col("args").cast(pl.Categorical)


def _from_args(column: Column) -> pl.Expr:
    """Read a column from the events' arguments."""
    key = column.arg.replace(".", r"\.")
    args = pl.col("args")
    if isinstance(column.dtype, pl.List):
        # Long lists of ranks end in dots, which are no number.
        numbers = args.str.extract(rf'"{key}":{_W}"?\[([-0-9,\s.]*)\]')
        return numbers.str.split(",").list.eval(
            pl.element().str.strip_chars().cast(pl.Int64, strict=False).drop_nulls()
        )
    if column.dtype == pl.Float64:
        number = r"(-?[0-9.]+(?:[eE][-+]?[0-9]+)?)"
        return args.str.extract(rf'"{key}":{_W}"?{number}').cast(
            pl.Float64, strict=False
        )
    if column.dtype == pl.Int64:
        return args.str.extract(rf'"{key}":{_W}"?(-?[0-9]+)').cast(
            pl.Int64, strict=False
        )
    if column.of_collectives:
        return args.str.extract(rf'"{key}":{_W}"?([^",}}\n]+)').cast(pl.Categorical)
    return args.str.extract(rf'"{key}":{_W}"([^"]*)"').cast(pl.Categorical)


def _with_inputs(events: pl.LazyFrame) -> pl.LazyFrame:
    """Cut out the four lists of inputs as one text: they repeat together."""
    args = pl.col("args")
    # Step by step: each step's columns are computed once for all that need them.
    decoded = events.with_columns(
        args.str.find(f'"{key}":', literal=True).alias(key) for key in INPUTS + IDS
    ).with_columns(first=pl.min_horizontal(INPUTS), last=pl.max_horizontal(INPUTS))
    ids = (pl.when(pl.col(key) > pl.col("last")).then(key) for key in IDS)
    end = pl.min_horizontal(ids).fill_null(args.str.len_bytes())
    text = args.cast(pl.Binary).bin.slice(pl.col("first"), end - pl.col("first"))
    return decoded.with_columns(inputs=text.cast(pl.String).cast(pl.Categorical))


def _names(table: str) -> list[str]:
    """Return the columns of a raw table behind the times, in order."""
    columns = schema.TABLES[table].columns.items()
    return [*(name for name, column in columns if column.arg), *_NO_ARGS.get(table, ())]


@cache
def _column(table: str, name: str) -> pl.Expr:
    """Read one of these columns from events."""
    column = schema.TABLES[table].columns.get(name)
    if column is not None and column.arg:
        return _from_args(column)
    if name == "call_stack":
        stack = pl.col("args").str.extract(rf'"{_CALL_STACK}":{_W}"([^"]+)"')
        return stack.cast(pl.Categorical)
    if name == "out_of_memory":
        return pl.col("name").cast(pl.String) == _MEMORY_EVENTS[1]
    return _KEPT_ARGS if name == "args" else pl.col(name)


COLLECTIVE = "Collective name"
TABLES = (
    *("ops", "kernels", "runtime", "annotations", "frames", "memory", "other"),
    _METADATA,
)
"""The raw tables."""
# Columns that are no argument, but told by all of an event.
_NO_ARGS = {
    "ops": ("caller", "inputs", "call_stack"),
    "frames": ("caller",),
    "memory": ("out_of_memory",),
    "other": ("args",),
}
# Columns that are texts here, whatever becomes of them.
_TEXTS = ("name", "lane", "caller", "inputs", "call_stack", "args", "category")


class Sorted(Struct):
    """Events sorted into raw tables, and how many went into none."""

    tables: dict[str, list[pl.DataFrame]]
    categories: set[str] = field(default_factory=set)
    flows: int = 0
    broken: int = 0


def split(events: pl.DataFrame) -> Sorted:
    """Sort decoded events into raw tables."""
    result = Sorted({})
    named = events.join(
        _heads(events["head"]), on="head", how="left", maintain_order="left"
    )
    groups = named.partition_by("table", "category", as_dict=True)
    for (group, category), rows in groups.items():
        result.categories.add(str(category))
        if group == _FLOWS:
            result.flows += rows.height
        elif group == _BROKEN:
            result.broken += rows.height
        elif group == _METADATA:
            metadata = rows.select("name", "lane", _KEPT_ARGS)
            result.tables.setdefault(_METADATA, []).append(metadata)
        else:
            by_table = {str(group): rows}
            if group == _BEFORE_KINETO:
                by_table = _by_process(rows)
            for table, part in by_table.items():
                made = _rows(part, table, str(category))
                result.tables.setdefault(table, []).append(made)
    return result


def whole(table: str, parts: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """Return a raw table of its parts, which may be none."""
    return pl.concat(parts) if parts else _without_rows(table)


@cache
def _without_rows(table: str) -> pl.DataFrame:
    return pl.DataFrame(schema=dtypes(table))


@cache
def dtypes(table: str) -> dict[str, Dtype]:
    """Return the types of a raw table's columns, in their order."""
    if table == _METADATA:
        return dict.fromkeys(("name", "lane", "args"), schema.TEXT)
    columns = schema.TABLES[table].columns
    behind = [*_names(table), *_from_category(table, "")]
    return {
        "name": schema.TEXT,
        "lane": schema.TEXT,
        "ts": schema.NS,
        "dur": schema.NS,
        **{
            name: schema.TEXT if name in _TEXTS else columns[name].dtype
            for name in behind
        },
    }


def _heads(column: pl.Series) -> pl.DataFrame:
    """Say of each distinct head the event's name, its category and its table."""
    distinct = column.unique()
    heads = [
        event_heads.parse_head(text or "")
        for text in distinct.cast(pl.String).to_list()
    ]
    return described(heads).select(
        pl.lit(distinct).alias("head"),
        pl.all(),
        pl.Series("table", [table_of(head) for head in heads], pl.Categorical),
    )


def described(heads: Sequence[event_heads.Head]) -> pl.DataFrame:
    """Return name, category, lane and caller of events with these heads."""
    columns = {
        "name": [head.name for head in heads],
        "category": [head.category for head in heads],
        "lane": [_lane(head) for head in heads],
        "caller": [head.caller or None for head in heads],
    }
    return pl.DataFrame(columns, dict.fromkeys(columns, pl.Categorical))


def _lane(head: event_heads.Head) -> str:
    return head.process + LANE_SEPARATOR + head.thread


def table_of(head: event_heads.Head) -> str:
    """Return the table of events that begin so; or the name of no table."""
    if head.phase in _NO_TABLE:
        return _NO_TABLE[head.phase]
    table = _TABLE_OF.get(head.category, "other")
    if head.name in _MEMORY_EVENTS and (table == "memory" or not head.category):
        return "memory"
    if table == "ops" and head.name.startswith(names.REGIONS):
        # Before torch 1.10 a region was an operator like any other.
        return "annotations"
    if head.phase == "X" and not head.category:
        return _BEFORE_KINETO
    return "other" if table == "memory" else table


def _by_process(rows: pl.DataFrame) -> dict[str, pl.DataFrame]:
    """Before Kineto there were no categories; processes were called after them."""
    lane = pl.col("lane").cast(pl.String)
    table = (
        pl.when(lane.str.starts_with("CPU functions"))
        .then(pl.lit("ops"))
        .when(lane.str.starts_with("CUDA functions"))
        .then(pl.lit("kernels"))
        .otherwise(pl.lit("other"))
    )
    parts = rows.with_columns(table=table).partition_by("table", as_dict=True)
    return {str(name): part for (name,), part in parts.items()}


def _rows(events: pl.DataFrame, table: str, category: str) -> pl.DataFrame:
    frame = _with_inputs(events.lazy()) if table == "ops" else events.lazy()
    columns = {name: _column(table, name) for name in _names(table)}
    if table == "kernels" and not _has_collectives(events):
        columns |= _no_collective()
    return frame.select(
        "name",
        "lane",
        "ts",
        pl.col("dur").fill_null(0).clip(lower_bound=0),
        **columns,
        **_from_category(table, category),
    ).collect(engine="in-memory")


def _no_collective() -> dict[str, pl.Expr]:
    """Return null columns of collectives, for kernels without any collective."""
    return {
        name: pl.lit(None, column.dtype)
        for name, column in schema.KERNELS.items()
        if column.of_collectives
    }


def _has_collectives(events: pl.DataFrame) -> bool:
    is_collective = events["args"].str.contains(f'"{COLLECTIVE}":', literal=True)
    return known(is_collective).any()


def keys_of(table: str) -> dict[str, str]:
    """Return the key of the arguments that each column of a raw table comes from."""
    columns = schema.TABLES[table].columns.items()
    keys = {name: column.arg for name, column in columns if column.arg}
    return keys | {"call_stack": _CALL_STACK} if table == "ops" else keys


def read_values(table: str, column: str, values: Sequence[str]) -> pl.Series:
    """Return the values of a column, from JSON texts of its key."""
    key = keys_of(table)[column]
    args = pl.Series("args", [f'"{key}": {value}' for value in values], pl.String)
    return args.to_frame().select(_column(table, column).alias(column)).to_series()


def from_heads(table: str, heads: Sequence[event_heads.Head]) -> pl.DataFrame:
    """Return the columns of a raw table that come from the heads of events."""
    columns: dict[str, list[Any]] = {
        "name": [head.name for head in heads],
        "lane": [_lane(head) for head in heads],
    }
    if "caller" in _NO_ARGS.get(table, ()):
        columns["caller"] = [head.caller or None for head in heads]
    if table == "memory":
        columns["out_of_memory"] = [head.name == _MEMORY_EVENTS[1] for head in heads]
    elif table == "kernels":
        columns["activity"] = [_activity(head.category) for head in heads]
    elif table == "annotations":
        columns["on_gpu"] = [_on_gpu(head.category) for head in heads]
    kinds = dtypes(table)
    return pl.DataFrame(columns, {name: kinds[name] for name in columns})


def _activity(category: str) -> str:
    return _ACTIVITY_OF.get(category, "kernel")


def _on_gpu(category: str) -> bool:
    return category.startswith("gpu_")


def _from_category(table: str, category: str) -> dict[str, pl.Expr]:
    if table == "kernels":
        return {"activity": pl.lit(_activity(category), _ACTIVITY)}
    if table == "annotations":
        return {"on_gpu": pl.lit(_on_gpu(category))}
    if table == "other":
        return {"category": pl.lit(category).cast(pl.Categorical)}
    return {}
