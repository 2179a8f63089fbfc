"""GEM002: matrix products in 16 bits run on slow kernels for their odd sizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base.device import used_gpu
from traceq.analysis.base.ownership import same_place
from traceq.analysis.patterns.matmul import products, saved
from traceq.lint import Bad, Good, Need, Rule, View, inputs
from traceq.lint.evidence import dtype, kernel_lines, module_line
from traceq.words import counted, listed, shape, time

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from traceq.lint import Finding

# Kernels that load one, two or four elements of 16 bits at once instead of eight.
_SLOW = r"align[ac]?([124])(\D|$)|_ldg([124])_"
_FORMATS = ("bf16", "fp16")
_ALIGNED = 8
# To pad further than this costs more than it saves.
_MOST_PADDING = 1.1
# Large sizes are padded to this, which suits the tiles of all kernels.
_TILE = 64
_VOCABULARY = 8192
_MM = ["c10::BFloat16", "c10::BFloat16"]
_ALIGN1 = "cutlass_75_tensorop_bf16_s1688gemm_bf16_128x128_tn_align1"


@dataclass(frozen=True)
class MisalignedMatmul(Rule):
    """Matrix products in 16 bits run on slow kernels for a size that is odd to them.

    ## What it does

    Looks for products in bfloat16 or float16 on kernels whose name says that they load
    fewer than 8 elements at once (``align1``, ``align2``, ``align4``). The size to
    blame is the length of a row in memory, from shapes and strides, that is no multiple
    of 8. Sizes that padding would make more than a tenth larger are left out.

    ## Why is this bad?

    Tensor cores are fed with 16 bytes at once. Rows that do not begin at a
    multiple of 16 bytes are loaded piece by piece, on kernels of an older
    architecture: several times slower.

    ## How to fix it

    Pad the size to a multiple of 64: a vocabulary of 50257 to 50304, in the embedding
    and in the head. The additional rows are never a target.

    ## When it is wrong

    Where the size is not yours to choose. The cost takes good kernels at 60% of the
    GPU's peak, and half of the time where shapes or the GPU are not known.
    """

    code = "GEM002"
    needs = frozenset({Need.GPU, Need.OPS})

    examples = (
        Bad(
            f"""
            host  [ProfilerStep#1                                                    ]
            host   [model.py(37): forward                                           ]
            host    [aten::mm           ]
            host     [cudaLaunchKernel>1]
            gpu 7      [{_ALIGN1}<1]
            """,
            finds=(
                "a size of 50257, no multiple of 8, puts 1 matrix product a step on"
                " align1 kernels",
            ),
            args={"aten::mm": inputs([[64, 768], [768, 50257]], _MM)},
        ),
        Good(
            """
            host  [ProfilerStep#1                                                    ]
            host   [model.py(37): forward                                           ]
            host    [aten::mm           ]
            host     [cudaLaunchKernel>1]
            gpu 7      [nvjet_sm90_tst_128x256_64x4_2x1_v_bz_coopA_TNN<1]
            """,
            args={"aten::mm": inputs([[64, 768], [768, 50304]], _MM)},
        ),
    )

    def check(self, view: View) -> Iterator[Finding]:
        """Group the products on such kernels by place, and name the odd size."""
        gpu = used_gpu(view.trace)
        name = pl.col("name").cast(pl.String)
        loaded = pl.coalesce(name.str.extract(_SLOW, 1), name.str.extract(_SLOW, 3))
        odd = pl.col("rows").list.eval(
            pl.element().filter(pl.element() % _ALIGNED != 0)
        )
        slow = (
            products(view.trace, view.kernels)
            .with_columns(loaded=loaded, odd=odd.list.max())
            .filter(
                pl.col("loaded").is_not_null(),
                pl.col("dtype").cast(pl.String).is_in(_FORMATS),
                pl.col("odd").is_null()
                | (_padded(pl.col("odd")) <= _MOST_PADDING * pl.col("odd")),
            )
        )
        priced = saved(slow, gpu.peak, "fp16").filter(pl.col("saved") > 0)
        groups = (
            priced.sort("saved", "id", descending=[True, False])
            .group_by(*same_place(), maintain_order=True)
            .agg(
                "id",
                "op",
                pl.col("odd", "loaded", "type").first(),
                pl.col("left", "right").unique(maintain_order=True),
                pl.col("module").cast(pl.String).unique(maintain_order=True),
                time=pl.col("dur").sum(),
                saved=pl.col("saved").sum(),
            )
        )
        for row in groups.iter_rows(named=True):
            count = len(set(row["op"])) / view.steps
            yield self.finding(
                _message(row, counted(count, "matrix product")),
                subject="misaligned",
                place=view.place_of_group(row),
                count=count,
                gpu_ns=row["saved"] / view.steps,
                evidence=[
                    ("shapes", _shapes(row)),
                    ("dtype", dtype(row["type"])),
                    ("time", f"{time(row['time'] / view.steps)} a step"),
                    *kernel_lines(view, row["id"]),
                    *module_line(row["module"]),
                ],
                data={"size": row["odd"], "loads": int(row["loaded"])},
                advice=_advice(row["odd"]),
                ops=row["op"],
                kernels=row["id"],
            )


def _padded(size: pl.Expr) -> pl.Expr:
    return (size + _ALIGNED - 1) // _ALIGNED * _ALIGNED


def _shapes(row: dict[str, Any]) -> str:
    pairs = zip(row["left"], row["right"], strict=False)
    return listed([f"{shape(one)} × {shape(two)}" for one, two in pairs if one])


def _message(row: dict[str, Any], what: str) -> str:
    kernels = f"align{row['loaded']} kernels"
    if row["odd"] is None:
        return f"{what} a step on {kernels}, likely for a size that is no multiple of 8"
    return f"a size of {row['odd']}, no multiple of 8, puts {what} a step on {kernels}"


def _advice(size: int | None) -> str:
    if size is None:
        return (
            "pad the sizes of the matrices to multiples of 8, better of 64, and let"
            " slices begin at multiples of 8"
        )
    step = _TILE if size > _TILE * _ALIGNED else _ALIGNED
    padded = -(-size // step) * step
    text = f"pad {size} to {padded}, a multiple of {step}"
    if size < _VOCABULARY:
        return text
    return (
        f"{text}: if it is the vocabulary, make embedding and head of {padded} rows; no"
        " target ever is one of the new ones"
    )
