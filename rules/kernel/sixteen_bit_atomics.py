"""KRN003: 16-bit atomic adds to the same addresses serialize."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
    nth,
    often,
    option,
    shape,
)

from ._shared import RESIZES, evidence, groups, judged, saved

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.linter import Finding, Row

_ADDS = r"^aten::scatter_(add|reduce)_?$"
_DRAWN = """
    host   [ProfilerStep#1                                                            ]
    host    [model.py(9): forward                                                    ]
    host     [aten::scatter_add_    ]
    host      [cudaLaunchKernel>1]
    gpu 7                  [_scatter_gather_elementwise_kernel<1                   ]
"""
_DIMS = [[16, 256], [], [1024, 256], [1024, 256]]
_STRIDES = [[256, 1], [], [1, 0], [256, 1]]


@dataclass(frozen=True)
class SixteenBitAtomics(Rule):
    """16-bit atomic adds to the same addresses serialize.

    ## What it does

    Finds ``scatter_add`` and gradients of ``gather`` and of resized images in bfloat16
    or float16 that reach less than ``max-efficiency`` of the memory's bandwidth and
    take at least ``min-share`` of a step.

    ## Why is this bad?

    GPUs add to memory atomically in float32. For single 16-bit values torch reads 32
    bits, adds, and tries to write them until nobody else was faster. Where many values
    go to few places, most tries fail: it may take a thousand times as long. Each
    addition rounds, too, so that sums of many values are far off.

    ## How to fix it

    Do it in float32, and cast the result.

    ```diff
    - out = x.gather(0, index)
    + out = x.float().gather(0, index).to(x.dtype)
    ```

    Rows of a matrix are better picked with ``F.embedding(index, x)``.

    ## When it is wrong

    Results are closer to the true ones than before; a test that compares them with the
    old ones has to allow for that. The tensor in float32 takes twice the memory.
    """

    code = "KRN003"
    since = "0.2.0"
    see = ("torch.nn.functional.embedding", "torch.nn.functional.interpolate")
    needs = frozenset({Need.GPU, Need.OPS, Need.SHAPES})

    min_share: float = option(0.03, "Less of a step is not reported.")
    max_efficiency: float = option(
        0.01, "What reaches more of the GPU's bandwidth is not reported."
    )

    seen = Seen(
        of="tests/data/kernels/gather.trace.json.gz",
        text="""
        KRN003 sixteen-bit-atomics  saves 2.77 ms/step (41%)
          aten::scatter_add_ adds float16 values to the same places of [16,256],
            once a step
          in      <lambda> (kernels2.py:137) of Program_0
          gpu     2.94 ms a step
          peak    1.78 µs at the GPU's peaks
          values  float16 [16384,256]
          kernel  _scatter_gather_elementwise_kernel<_cuda_scatter_gather_internal_k
                  ernel> ×1
          module  Program_0
          fix     gather in float32: x.float().gather(dim, index).to(x.dtype); or
                  pick whole rows with F.embedding(index, x)
        """,
    )

    examples = (
        Bad(
            _DRAWN,
            finds="aten::scatter_add_ adds bfloat16 values to the same places of"
            " [16,256], once a step",
            args={"aten::scatter_add_": inputs(_DIMS, ["c10::BFloat16"] * 4, _STRIDES)},
        ),
        Good(
            _DRAWN,
            args={"aten::scatter_add_": inputs(_DIMS, ["float"] * 4, _STRIDES)},
        ),
    )

    def check(self, view: View) -> Iterator[Finding]:
        """Group the slow ones by place and shape."""
        ops = judged(view, f"{_ADDS}|{RESIZES}", self.min_share)
        if not ops.height:
            return
        ops = ops.filter(nth("types", 0).is_in(HALF))
        for row in groups(view, ops, self.min_share):
            if row["least_ns"] < self.max_efficiency * row["gpu_ns"]:
                yield self._finding(view, row)

    def _finding(self, view: View, row: Row) -> Finding:
        calls = len(row["ids"]) / view.steps
        kind = dtype_name(row["types"][0])
        resizes = "upsample" in row["name"]
        places = "the same places" if resizes else f"the same places of {_shape(row)}"
        return self.finding(
            f"{row['name']} adds {kind} values to {places}, {often(calls)}",
            subject=row["name"],
            place=view.place(row),
            count=calls,
            fix=Fix(
                kernels=row["kernels"],
                kernel_share=saved(row, assumptions.FLOAT32_ATOMICS_EFFICIENCY),
            ),
            evidence=evidence(
                view, row, Evidence("values", f"{kind} {shape(_values(row))}")
            ),
            data={"op": row["name"], "dtype": kind},
            advice=_advice(row, resizes=resizes),
        )


def _shape(row: Row) -> str:
    return shape(row["dims"][0])


def _values(row: Row) -> list[int]:
    """Return the shape of what is added: for a resize, of the gradient."""
    shapes: list[list[int]] = row["dims"]
    return next((dims for dims in reversed(shapes) if dims), shapes[0])


def _advice(row: Row, *, resizes: bool) -> str:
    if resizes:
        return "resize in float32: F.interpolate(x.float(), …).to(x.dtype)"
    if row["phase"] == "backward":
        return (
            "gather in float32: x.float().gather(dim, index).to(x.dtype); or pick whole"
            " rows with F.embedding(index, x)"
        )
    return "add in float32: zeros and values as .float(), and the sum .to(x.dtype)"
