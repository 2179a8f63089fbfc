"""GEM004: torch.compile copies matrices in every step to pad them for a matmul."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.linter import (
    Bad,
    Evidence,
    Fix,
    Good,
    Need,
    Rule,
    Seen,
    View,
    counted,
    dataclass,
    inputs,
    kernel_lines,
    module_line,
)

from ._padding import matmul_padding

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from traceq.linter import Finding

# What kernels of matmuls work on at once.
_TILE = 64
_DRAWN = """
            host   [ProfilerStep#1                                               ]
            host    [Torch-Compiled Region: 0/0                                 ]
            host     [CompiledFunction                                         ]
            host      [triton_poi_fused_mm_t_5    ]  [aten::mm            ]
            host       [cuLaunchKernel>1]             [cudaLaunchKernel>2]
            gpu 7                 [triton_poi_fused_mm_t_5<1]        [nvjet_tst<2]
"""
_BF16 = ["c10::BFloat16"] * 2


@dataclass(frozen=True)
class PaddedMatmul(Rule):
    """torch.compile copies matrices in every step to pad them for a matmul.

    ## What it does

    Looks for pointwise kernels that inductor names after a matmul
    (``triton_poi_fused_mm_t_5``) and whose shapes show a dimension and the same one
    rounded up to a multiple of 8 (or of 4): they copy a matrix into a larger one. The
    fix removes these kernels.

    ## Why is this bad?

    A dimension that is not a multiple of 8 keeps a matmul from its fast kernels, so
    inductor pads it. The matmul is fast then, but weights, activations and gradients
    are copied again in every step, which for a vocabulary are the largest tensors there
    are.

    ## How to fix it

    Make the dimension itself a multiple of 64: give embedding and head a few rows
    more. No target is ever one of them.

    ```diff
    - self.head = nn.Linear(width, 50257)
    + self.head = nn.Linear(width, 50304)  # 50257 rounded up to a multiple of 64
    ```

    ## When it is wrong

    If the size is given by data, as the length of a batch; then pad the batch. The
    probabilities of the new rows are part of the softmax: they are learned to be small.
    """

    code = "GEM004"
    since = "0.2.0"
    see = ("torch.nn.Linear", "torch.compile")
    needs = frozenset({Need.GPU, Need.OPS, Need.SHAPES})

    seen = Seen(
        of="tests/data/compiled/vocabulary",
        text="""
        GEM004 padded-matmul
          GPU 251 µs/step, but a fix saves nothing: it is not on the critical path
          torch.compile copies 3 tensors a step to pad 32003 to 32008 for its matmul
          at      compiled.py:76 forward in Transformer_0/Linear_24
                    75 |             x = block(x)
                  > 76 |         return self.head(self.norm(x))
                    77 |
          copies  251 µs a step
          kernel  triton_poi_fused_mm_t_view_0 ×1
          kernel  triton_poi_fused_mm_t_5 ×1
          kernel  triton_poi_fused_mm_t_1 ×1
          module  Transformer_0/Linear_24
          fix     make the dimension 32064, a multiple of 64: if it is the
                  vocabulary, give embedding and head 32064 rows
        """,
    )

    examples = (
        Bad(
            _DRAWN,
            finds="torch.compile copies 1 tensor a step to pad 32003 to 32008 for its"
            " matmul",
            args={
                "triton_poi_fused_mm_t_5": inputs([[32003, 768], [768, 32008]], _BF16),
                "aten::mm": inputs([[4096, 768], [768, 32008]], _BF16),
            },
        ),
        Good(
            _DRAWN,
            args={
                "triton_poi_fused_mm_t_5": inputs([[32064, 768], [768, 32064]], _BF16),
                "aten::mm": inputs([[4096, 768], [768, 32064]], _BF16),
            },
        ),
    )

    def check(self, view: View) -> Iterator[Finding]:
        """Group the kernels that pad by line and by the dimension."""
        padding = matmul_padding(view.trace, view.kernels)
        if not padding.height:
            return
        rows = view.by_place(
            padding,
            "size",
            "padded",
            gpu_ns=pl.col("dur").sum(),
            ops=pl.col("op").unique(),
        )
        for row in rows.iter_rows(named=True):
            yield self._finding(view, row)

    def _finding(self, view: View, row: Mapping[str, Any]) -> Finding:
        count = len(row["ids"]) / view.steps
        size = row["size"]
        better = -(-size // _TILE) * _TILE
        return self.finding(
            f"torch.compile copies {counted(count, 'tensor')} a step to pad {size} to"
            f" {row['padded']} for its matmul",
            subject="padded",
            place=view.place(row),
            count=count,
            fix=Fix(kernels=row["ids"]),
            evidence=[
                Evidence(
                    "copies", value=row["gpu_ns"] / view.steps, unit="ns", note="a step"
                ),
                *kernel_lines(view, row["ids"]),
                *module_line(row["modules"]),
            ],
            data={"size": size, "padded": row["padded"]},
            advice=f"make the dimension {better}, a multiple of {_TILE}: if it is the"
            f" vocabulary, give embedding and head {better} rows",
            ops=row["ops"],
        )
