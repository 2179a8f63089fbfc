"""Shared code of the rules on attention: kernel names, evidence on a call."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceq.linter import Evidence, Fix, dtype_name, shape

if TYPE_CHECKING:
    from traceq.linter import Row

KERNELS = {"efficient": "mem-efficient", "math": "unfused (math)"}
"""Patterns of the kernel names of a backend."""
INPUTS = ("query", "key", "value")


def fixes(rows: list[Row]) -> list[Fix]:
    """Return what FlashAttention saves of each row's kernels: their ``share``."""
    return [Fix(kernels=row["kernels"], kernel_share=row["share"]) for row in rows]


def dtypes(call: Row) -> list[str]:
    """Return the dtypes of query, key and value, each once."""
    return list(dict.fromkeys(dtype_name(call[f"{part}_type"]) for part in INPUTS))


def attention_lines(call: Row) -> list[Evidence]:
    """Return shapes and dtypes of a call; without shapes, the dtype of its kernels."""
    if not call["query"]:
        return [Evidence("dtype", call["dtype"])] if call["dtype"] else []
    shapes = ", ".join(f"{part} {shape(call[part])}" for part in INPUTS)
    return [Evidence("shapes", shapes), Evidence("dtype", ", ".join(dtypes(call)))]
