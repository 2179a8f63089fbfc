"""KRN001: a scan runs along a dimension that is not the last one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base import assumptions
from traceq.linter import (
    HALF,
    Bad,
    Evidence,
    Fix,
    Good,
    Need,
    Rule,
    Seen,
    View,
    dataclass,
    dtype_name,
    inputs,
    kernel_lines,
    module_line,
    named_like,
    nth,
    often,
    option,
    roofline_ns,
    shape,
)
from traceq.model import dtypes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.linter import Finding, Row

# torch's kernel for a scan along any dimension but the last: one thread goes down each
# column, a row at a time.
_KERNEL = r"tensor_kernel_scan_outer_dim"
# Transposed there and back: each of the three kernels reads and writes everything.
_KERNELS_INSTEAD = 3
_DRAWN = """
    host   [ProfilerStep#1                                                 ]
    host    [model.py(9): forward                                         ]
    host     [aten::cumsum       ]
    host      [cudaLaunchKernel>1]
    gpu 7                        [tensor_kernel_scan_outer_dim<1        ]
"""


@dataclass(frozen=True)
class ScanOverOuterDimension(Rule):
    """A scan runs along a dimension that is not the last one.

    ## What it does

    Finds ``cumsum``, ``cumprod`` and their like whose kernel is the one for a dimension
    that is not the last, and that take at least ``min-share`` of the GPU's time.

    ## Why is this bad?

    Along the last dimension torch scans in parallel. Along another one, a single thread
    goes down each column, row after row: with few columns most of the GPU has nothing
    to do, and with many rows it takes long.

    ## How to fix it

    Bring the dimension to the end, scan, and bring it back. Better still, keep the
    tensor that way around in the first place.

    ```diff
    - place = mask.cumsum(0)
    + place = mask.t().contiguous().cumsum(-1).t()
    ```

    ## When it is wrong

    A scan in parallel adds in another order: integers are the same, floating-point
    sums may differ in their last bits, in bfloat16 and float16 by more. The saving
    assumes a transposition, a scan and a transposition at 60% of the GPU's bandwidth.
    """

    code = "KRN001"
    since = "0.2.0"
    see = ("torch.cumsum",)
    needs = frozenset({Need.GPU, Need.OPS, Need.SHAPES, Need.VALUES})

    min_share: float = option(0.01, "Less of the GPU's time is not reported.")

    seen = Seen(
        of="fixtures/twins/moe_batched",
        text="""
        KRN001 scan-over-outer-dimension
          saves 1.42 ms/step (24%), nothing to 2.29 ms
          a scan goes along dimension 0 of [4096,32], not the last one, 3 times a
            step
          in       forward (dev_cases.py:105) of Sequential_0/BatchedMoE_0
          gpu      2.26 ms
          input    int64 [4096,32]
          kernel   tensor_kernel_scan_outer_dim<plus> ×3
          modules  Sequential_0/BatchedMoE_0 and 2 more
          fix      scan along the last dimension: x.t().contiguous().cumsum(-1).t(),
                   or keep the tensor that way around
        """,
    )

    examples = (
        Bad(
            _DRAWN,
            finds=(
                "a scan goes along dimension 0 of [4096,32], not the last one, once a"
                " step"
            ),
            args={"aten::cumsum": inputs([[4096, 32], []], ["long int", "Scalar"])},
        ),
        Good(
            _DRAWN.replace("outer_dim", "inner_dim"),
            args={"aten::cumsum": inputs([[32, 4096], []], ["long int", "Scalar"])},
        ),
    )

    def check(self, view: View) -> Iterator[Finding]:
        """Group the scans by place and shape."""
        chosen, time = named_like(view.kernels, _KERNEL), view.kernels["dur"]
        least = self.min_share * int(time.sum())
        # Mostly all of them together take too little.
        if not chosen.any() or int(time.filter(chosen).sum()) < least:
            return
        scans = view.kernels.filter(chosen)
        inputs = view.trace.ops["inputs"][scans["op"]]
        placed = view.with_inputs(scans.with_columns(inputs=inputs)).with_columns(
            dims=nth("dims", 0),
            type=nth("types", 0),
            along=nth("values", 1).cast(pl.Int64, strict=False),
        )
        placed = placed.filter(pl.col("dims").list.len() > 0)
        groups = view.by_place(
            placed,
            "dims",
            "type",
            "along",
            gpu_ns=pl.col("dur").sum(),
            ops=pl.col("op").unique(maintain_order=True),
        )
        for row in groups.iter_rows(named=True):
            if row["gpu_ns"] >= least:
                yield self._finding(view, row)

    def _finding(self, view: View, row: Row) -> Finding:
        dims, calls = row["dims"], len(row["ops"]) / view.steps
        along = row["along"] if row["along"] is not None else 0
        along += len(dims) * (along < 0)
        return self.finding(
            f"a scan goes along dimension {along} of {shape(dims)}, not the last one,"
            f" {often(calls)}",
            subject="scan",
            place=view.place(row),
            count=calls,
            fix=Fix(kernels=row["ids"], kernel_share=_share(view, row)),
            evidence=[
                Evidence("gpu", value=row["gpu_ns"] / view.steps, unit="ns"),
                Evidence("input", f"{dtype_name(row['type'])} {shape(dims)}"),
                *kernel_lines(view, row["ids"]),
                *module_line(row["modules"]),
            ],
            data={"dims": dims, "along": along, "type": row["type"]},
            advice=_advice(row["type"], along, len(dims)),
        )


def _share(view: View, row: Row) -> float:
    """Return the share of the scans' time that goes."""
    elements = 1
    for size in row["dims"]:
        elements *= size
    moved = 2.0 * elements * dtypes.ALL_SIZES.get(row["type"], 4) * _KERNELS_INSTEAD
    instead = roofline_ns(
        view.gpu, assumptions.COPY_EFFICIENCY, moved=moved, kernels=_KERNELS_INSTEAD
    )
    return view.saved_share(row["gpu_ns"] / len(row["ids"]), instead)


def _advice(dtype: str, along: int, rank: int) -> str:
    swap = "t()" if rank == 2 else f"transpose({along}, -1)"  # noqa: PLR2004 - a matrix
    plain = f"scan along the last dimension: x.{swap}.contiguous().cumsum(-1).{swap}"
    if dtype in HALF:
        return f"{plain}; sums in {dtype_name(dtype)} round differently: compare them"
    return f"{plain}, or keep the tensor that way around"
