"""SRV007: the KV cache is copied whole for every token."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.patterns import kv_cache
from traceq.linter import (
    Bad,
    Evidence,
    Fix,
    Good,
    Need,
    Rule,
    Seen,
    View,
    dataclass,
    kernel_lines,
    module_line,
    often,
    option,
    shape,
)

from ._shared import DECODE as DRAWN
from ._shared import generates_with_transformers, static_cache

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.linter import Finding

_OWN = (
    "allocate keys and values once and write each token in place"
    " (keys.index_copy_(2, position, key))"
)
_STATIC = 'generate(…, cache_implementation="static")'
_DRAWN = f"""
    host   [{DRAWN}            ]
    host    [aten::cat          ] [aten::mm           ]
    host     [cudaLaunchKernel>1]  [cudaLaunchKernel>2]
    gpu 7               [CatArrayBatchedCopy<1      ][gemm<2    ]
"""


def _joined(old: list[int], new: list[int]) -> dict[str, dict[str, object]]:
    return {
        "aten::cat": {
            "Input Dims": [[old, new], []],
            "Input type": ["TensorList", "Scalar"],
        }
    }


@dataclass(frozen=True)
class GrowingKvCache(Rule):
    """The KV cache is copied whole for every token, by ``cat``.

    ## What it does

    Looks in decode iterations for ``torch.cat`` of a long tensor with one that is one
    token long, as keys and values are. The saving is the kernels' time: writing one
    token in place is next to nothing.

    ## Why is this bad?

    ``cat`` allocates a new tensor and copies the whole cache, in every layer and for
    every token: the longer the text, the more. The cache is then read and written once
    more than attention reads it. Its size changes with each token, so that no CUDA
    graph can run the step either.

    ## How to fix it

    Allocate the cache once, at the longest length or in blocks, and write each token in
    place. With transformers:

    ```diff
    - model.generate(**inputs)
    + model.generate(**inputs, cache_implementation="static")
    ```

    In a model of your own:

    ```python
    keys.index_copy_(2, position, key)    # instead of torch.cat((keys, key), 2)
    ```

    ## When it is wrong

    A static cache takes the memory of the longest text from the start, and attention
    goes over its padding (SRV008) unless it is cut or bucketed.
    """

    code = "SRV007"
    since = "0.2.0"
    see = ("torch.cat", "torch.Tensor.index_copy_")
    needs = frozenset({Need.GPU, Need.OPS, Need.SHAPES, Need.STEPS})

    min_share: float = option(0.01, "Less of the GPU's time is not reported.")

    seen = Seen(
        text="""
        SRV007 growing-kv-cache  saves 11.9 µs/step (29%), nothing to 24.8 µs
          the KV cache [16,8,1024,128] grows by cat, once a step
          gpu     29.0 µs
          kernel  CatArrayBatchedCopy ×1
          fix     allocate keys and values once and write each token in place
                  (keys.index_copy_(2, position, key)); if it is transformers that
                  generates, generate(…, cache_implementation="static")
        """,
    )

    examples = (
        Bad(
            _DRAWN,
            finds="the KV cache [16,8,1024,128] grows by cat, once a step",
            args=_joined([16, 8, 1024, 128], [16, 8, 1, 128]),
        ),
        Good(_DRAWN, args=_joined([16, 8, 64, 64], [16, 8, 64, 64])),
    )

    def check(self, view: View) -> Iterator[Finding]:
        """Group the cats by place."""
        cats = kv_cache.cache_cats(view.trace).select("length", "shape", op="id")
        if not cats.height:
            return
        kernels = view.kernels.join(cats, on="op", maintain_order="left")
        groups = view.by_place(
            kernels,
            gpu_ns=pl.col("dur").sum(),
            ops=pl.col("op").unique(),
            shape=pl.col("shape").get(pl.col("length").arg_max()),
        )
        whole = int(view.kernels["dur"].sum())
        for row in groups.iter_rows(named=True):
            if row["gpu_ns"] < self.min_share * whole:
                continue
            calls = len(row["ops"]) / view.steps
            yield self.finding(
                f"the KV cache {shape(row['shape'])} grows by cat, {often(calls)}",
                subject="KV cache",
                place=view.place(row),
                count=calls,
                fix=Fix(kernels=row["ids"]),
                evidence=[
                    Evidence("gpu", value=row["gpu_ns"] / view.steps, unit="ns"),
                    *kernel_lines(view, row["ids"]),
                    *module_line(row["modules"]),
                ],
                data={"shape": row["shape"]},
                advice=static_cache(view, _OWN, _STATIC),
                example=None if generates_with_transformers(view) else "",
                ops=row["ops"],
            )
