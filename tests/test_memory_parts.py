"""Parts of a model that memory is of, and the largest allocation of each."""

from __future__ import annotations

import json

import polars as pl
import pytest
from recordings import OWN_SNAPSHOTS
from test_schemas import errors

from traceq.analysis.memory.history import History
from traceq.analysis.memory.parts import by_part, with_parts
from traceq.analysis.memory.summary import summarise_memory
from traceq.formats.snapshot import read_snapshot
from traceq.report.memory import json as memory_json
from traceq.report.memory import text as memory_text

_COLUMNS = {
    **dict.fromkeys(("module", "category", "op", "node", "file"), pl.String),
    "line": pl.UInt32,
    "function": pl.String,
    "size": pl.Int64,
}


def _allocations(*rows: dict[str, object]) -> pl.DataFrame:
    """Return activations with these columns, the others null."""
    whole = [
        dict.fromkeys(_COLUMNS) | {"category": "activations", "size": 1} | row
        for row in rows
    ]
    return pl.DataFrame(whole, schema=_COLUMNS)


@pytest.mark.parametrize(
    ("row", "part"),
    [
        ({"op": "layer_norm"}, "norm"),
        ({"op": "embedding"}, "embedding"),
        ({"op": "gelu"}, "FFN"),
        ({"op": "scaled_dot_product_attention"}, "attention"),
        ({"node": "NativeLayerNormBackward0"}, "norm"),
        ({"node": "EmbeddingBackward0"}, "embedding"),
        ({"category": "attention scores", "op": "bmm"}, "attention"),
        ({"op": "linear", "module": "GPT/Block/MLP/Linear"}, "FFN"),
        ({"op": "linear", "module": "GPT/Block/SelfAttention/Linear"}, "attention"),
        ({"op": "linear"}, "other"),
    ],
)
def test_the_part_of_an_allocation_is_known_by_its_module_or_op(
    row: dict[str, object], part: str
) -> None:
    assert with_parts(_allocations(row))["part"].to_list() == [part]


def test_a_matmul_on_the_line_of_an_activation_function_is_of_the_ffn() -> None:
    line = {"file": "model.py", "line": 27, "function": "forward"}
    other = {"file": "model.py", "line": 28, "function": "forward"}

    table = with_parts(
        _allocations(
            {"op": "linear", **line}, {"op": "gelu", **line}, {"op": "linear", **other}
        )
    )

    assert table["part"].to_list() == ["FFN", "FFN", "other"]


def test_each_part_shows_its_largest_allocation() -> None:
    table = by_part(
        _allocations(
            {"op": "layer_norm", "size": 2},
            {"op": "rms_norm", "size": 5},
            {"op": "gelu", "size": 4},
        )
    )

    assert table.select("part", "size", "count", "largest", "op").rows() == [
        ("norm", 7, 2, 5, "rms_norm"),
        ("FFN", 4, 1, 4, "gelu"),
    ]


def test_a_category_without_known_parts_is_not_divided() -> None:
    assert by_part(_allocations({"op": "linear"})).height == 0


@pytest.mark.real
def test_the_activations_of_a_transformer_are_divided_by_part() -> None:
    history = History(read_snapshot(OWN_SNAPSHOTS["attn_manual"]))
    (summary,) = summarise_memory(history, "attn_manual")

    sizes = {(row["category"], row["part"]): row for row in summary.parts.to_dicts()}
    assert {part for category, part in sizes if category == "activations"} >= {
        *("attention", "FFN", "norm", "embedding")
    }
    assert sizes["activations", "FFN"]["largest"] == 48 << 20
    whole = summary.categories.filter(pl.col("category") == "activations")["size"]
    parts = summary.parts.filter(pl.col("category") == "activations")["size"]
    assert parts.sum() == whole.item()
    assert "FFN" in memory_text.render([summary], width=100, color=False)
    data = json.loads(memory_json.render([summary]))
    assert errors("memory", data) == []
