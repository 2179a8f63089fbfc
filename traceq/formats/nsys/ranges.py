"""NVTX ranges as ops, regions and modules.

With ``--pytorch=autograd-nvtx`` torch opens a range for each operator and each
``record_function``, with a text such as ``aten::mm, seq = 4, op_id = 9, sizes = [[2,
3], [3, 4]], input_op_ids = [(8,0)]`` (getNvtxStr in torch/csrc/profiler/util.cpp).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.common.expressions import ascii_only
from traceq.formats import tables
from traceq.formats.nsys import processes
from traceq.formats.nsys.activities import integers, named_by, thread_lane
from traceq.model import names

if TYPE_CHECKING:
    from traceq.formats.nsys.export import Export
    from traceq.formats.nsys.processes import Process

_PUSHED, _STARTED, _MARK = 59, 60, 34
_KIND = pl.Enum(["op", "region", "module", "mark"])
_COLUMNS = {
    **integers(("start", "end", "eventType", "textId", "globalTid")),
    "text": pl.String(),
}
_TEXT = (
    r"^(?<name>.*?)(?:, seq = (?<seq>[0-9]+))?(?:, op_id = [0-9]+)?"
    r"(?:, sizes = (?<sizes>\[[0-9\[\], -]*\]))?(?:, input_op_ids = \[[0-9(), ]*\])?$"
)
# What torch's operators and nodes are called; everything else is a region.
_OP = (
    r"^[A-Za-z_]\w*(?:::[\w.<>]+)+$"
    r"|^autograd::engine::evaluate_function: |Backward[0-9]*$"
    r"|^(?:detach_?|record_param_comms|CompiledFunction|PythonSubclass"
    r"|PythonDispatchMode|Pregraph bytecode|TorchDynamo Cache Lookup"
    r"|AOTDispatcher Runtime Wrapper Prologue)$"
    r"|^Torch-Compiled Region: |\(dynamo_timed\)$"
    r"|^triton_(?:poi|red|per|tem|for|spl)_"
)
# Regions of torch.distributed that look like operators.
_REGION = r"^FSDP2?::|^DistributedDataParallel\."
# Modules: --pytorch=functions-trace, and vLLM's --enable-layerwise-nvtx-tracing.
_MODULE = (
    r"^(?:torch\.nn\.)?(?:[\w.]+\.)?(\w+)\.(?:forward|__call__|_call_impl)(?:\(|$)"
)
_LAYER = r"^\{['\"]Module['\"]: ['\"]([^'\"]+)['\"]"
_OPTIMIZER = r"^(?:torch\.optim\.)?(?:[\w.]+\.)?(\w+)\.(step|zero_grad)(?:\(|$)"


def read_ranges(
    export: Export, process: Process, strings: pl.DataFrame
) -> pl.DataFrame:
    """Return the ranges of a process: name, lane, times, ``seq``, ``sizes``, ``kind``.

    The ``kind`` is ``op``, ``region``, ``module`` or ``mark``. Ranges that never end
    have no ``dur``.
    """

    def parsed(chunk: pl.DataFrame) -> pl.DataFrame:
        """Take the texts apart at once: they are most of the file."""
        wanted = pl.col("eventType").is_in([_PUSHED, _STARTED, _MARK])
        rows = chunk.lazy().filter(wanted, pl.col("start").is_not_null())
        if chunk["textId"].null_count() < chunk.height:
            registered = named_by(chunk["textId"], strings).cast(pl.String)
            texts = chunk.with_columns(text=pl.coalesce("text", registered))
            rows = texts.lazy().filter(wanted, pl.col("start").is_not_null())
        text = pl.col("text").fill_null("").str.extract_groups(ascii_only(_TEXT))
        return (
            rows.with_columns(parts=text)
            .unnest("parts")
            .select(
                pl.col("name").fill_null("").cast(pl.Categorical),
                thread_lane("globalTid"),
                ts="start",
                dur=(pl.col("end") - pl.col("start")).clip(lower_bound=0),
                mark=pl.col("eventType") == _MARK,
                sequence=pl.col("seq").cast(pl.Int64, strict=False),
                sizes=pl.col("sizes").cast(pl.Categorical),
            )
            .collect(engine="in-memory")
        )

    only = process.rows_of(export, processes.RANGES)
    rows = export.read(processes.RANGES, _COLUMNS, only, parsed)
    kinds = _kinds(rows["name"].unique())
    numbered = pl.col("sequence").is_not_null()
    kind = (
        pl.when("mark")
        .then(pl.lit("mark", _KIND))
        .when(numbered)
        .then(pl.lit("op", _KIND))
        .otherwise("kind")
    )
    return rows.join(kinds, on="name", how="left", maintain_order="left").with_columns(
        kind=kind
    )


def _kinds(distinct: pl.Series) -> pl.DataFrame:
    """Return ``kind`` and ``better``, what a module or optimizer is called, by name."""
    text = pl.col("name").cast(pl.String)
    is_op = text.str.contains(ascii_only(_OP)) & ~text.str.contains(ascii_only(_REGION))
    layer, module = (text.str.extract(ascii_only(name)) for name in (_LAYER, _MODULE))
    optimizer = text.str.extract_groups(ascii_only(_OPTIMIZER))
    return (
        distinct.to_frame("name")
        .with_columns(layer=layer, module=module, optimizer=optimizer, op=is_op)
        .with_columns(
            optimizer=pl.format(
                "Optimizer.{}#{}.{}",
                pl.col("optimizer").struct.field("2"),
                pl.col("optimizer").struct.field("1"),
                pl.col("optimizer").struct.field("2"),
            ),
            layer=_last_part(pl.col("layer")),
        )
        .select(
            "name",
            kind=pl.when("op")
            .then(pl.lit("op", _KIND))
            .when(pl.col("layer").is_not_null() | pl.col("module").is_not_null())
            .then(pl.lit("module", _KIND))
            .otherwise(pl.lit("region", _KIND)),
            better=pl.coalesce(
                pl.format("nn.Module: {}", pl.coalesce("layer", "module")), "optimizer"
            ).cast(pl.Categorical),
        )
    )


def _last_part(path: pl.Expr) -> pl.Expr:
    """Return the last part of a module's path, with the list that it is a number in."""
    return path.str.extract(r"([^.]+\.[0-9]+|[^.]+)$")


def ops_of(ranges: pl.DataFrame) -> pl.DataFrame:
    """Return the raw table of ops; ``inputs`` is the text of their shapes."""
    rows = ranges.filter(pl.col("kind") == "op", pl.col("dur").is_not_null())
    node = rows["name"].unique()
    is_node = node.cast(pl.String).str.contains(ascii_only(names.BACKWARD_OP))
    nodes = pl.col("name").is_in(node.filter(is_node).implode())
    return rows.select(
        "name",
        "lane",
        "ts",
        "dur",
        "sequence",
        # Torch does not say which thread ran the forward; most programs have one.
        forward_thread=pl.when(pl.col("sequence").is_not_null()).then(
            nodes.cast(pl.Int64)
        ),
        caller=pl.lit(None, pl.Categorical),
        inputs="sizes",
        call_stack=pl.lit(None, pl.Categorical),
    ).select(*tables.dtypes("ops"))


def regions_of(ranges: pl.DataFrame) -> pl.DataFrame:
    """Return the raw table of annotations."""
    rows = ranges.filter(pl.col("kind") == "region", pl.col("dur").is_not_null())
    return rows.select(
        pl.coalesce("better", "name").alias("name"),
        "lane",
        "ts",
        "dur",
        on_gpu=pl.lit(value=False),
    )


def modules_of(ranges: pl.DataFrame) -> pl.DataFrame:
    """Return the raw table of frames: the calls of modules."""
    rows = ranges.filter(pl.col("kind") == "module", pl.col("dur").is_not_null())
    return rows.select(
        pl.coalesce("better", "name").alias("name"),
        "lane",
        "ts",
        "dur",
        caller=pl.lit(None, pl.Categorical),
    )
