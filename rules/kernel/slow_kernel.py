"""KRN008: an op takes far longer than its operations and bytes need."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base import assumptions
from traceq.analysis.time.roofline import roofline
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
    inputs,
    named_like,
    often,
    option,
)

from ._remedies import remedy
from ._shared import evidence, groups, long_enough, saved

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.linter import Finding, Row

# Attention has rules of its own; optimizers and collectives are no kernels to replace;
# for convolutions and embeddings nothing is faster but what KRN004 and KRN005 say.
_NOT = (
    r"attention|optimizer|_fused_|_foreach_|convolution|embedding_dense_backward"
    r"|^triton_|nccl|c10d"
)
# Of shorter calls most is launching and ending.
_SHORTEST_NS = 30_000
# By how much other calls of the same op are faster here.
_FASTER = 5.0
_DRAWN = """
    host   [ProfilerStep#1                                                            ]
    host    [model.py(9): forward                                                    ]
    host     [aten::mul             ]
    host      [cudaLaunchKernel>1]
    gpu 7                  [elementwise_kernel<1                                   ]
"""


@dataclass(frozen=True)
class SlowKernel(Rule):
    """An op takes far longer than its operations and bytes need, and no rule says why.

    ## What it does

    Finds ops whose kernels no other finding is about, that take at least ``min-share``
    of a step and 30 µs a call, and reach less than ``max-efficiency`` of what the GPU
    can do (``traceq roofline``); or less than a fifth of what other calls of the same
    op reach in this trace, and less than three times ``max-efficiency``.

    ## Why is this bad?

    Of the usual ops of torch, those of this length reach 7% of the GPU's peaks at
    least, most of them 25% or more. What is far below has a shape, a stride or a dtype
    that its kernel was not made for.

    ## How to fix it

    Look at the shapes and strides of its inputs: few rows, columns or outputs, a long
    dimension that is not the last, a view that jumps through memory, indices that
    repeat, a 16-bit dtype with atomics. Try a contiguous input, the dimension at the
    end, float32 for the op alone, or torch.compile around the function; measure each
    with ``torch.utils.benchmark`` on these shapes.

    ```diff
    - bound = x.kthvalue(100).values
    + bound = x.topk(100, largest=False).values[..., -1]
    ```

    The gradient of an image that is enlarged many times over adds thousands of values
    to each pixel. As two matmuls it adds nothing atomically, and the result is the
    same up to rounding; under autocast, disable it for them:

    ```diff
    - large = F.interpolate(x, size=(h, w), mode="bilinear")
    + def weights(n, to):  # (n, to)
    +     eye = torch.eye(n, device=x.device)[None, None]
    +     return F.interpolate(eye, size=(n, to), mode="bilinear")[0, 0]
    + large = weights(x.shape[-2], h).T @ x @ weights(x.shape[-1], w)
    ```

    ## When it is wrong

    The bytes are the least that the op needs. One that reads more, since its values
    decide (as ``masked_select``, ``sort`` or ``median``), reaches less of the peak and
    may be as fast as it gets: along the last dimension of a contiguous tensor the
    finding is minor, without a saving. Elsewhere that assumes a tenth of the peak.
    """

    code = "KRN008"
    several_fixes = True
    since = "0.2.0"
    see = ("torch.compile", "torch.utils.benchmark.Timer")
    residual = True
    preview = True
    needs = frozenset({Need.GPU, Need.OPS, Need.SHAPES})
    advice = (
        "check the shapes and strides of its inputs, and try a contiguous input, the"
        " long dimension at the end, float32, or torch.compile around the function"
    )

    min_share: float = option(0.03, "Less of a step is not reported.")
    max_efficiency: float = option(
        0.03, "What reaches more of the GPU's peaks is not reported."
    )

    seen = Seen(
        of="tests/data/compiled/masked",
        text="""
        KRN008 slow-kernel (preview)
          aten::mm takes far longer than its bytes need, once a step
          at      compiled.py:76 forward in Transformer_0/Linear_24
                    75 |             x = block(x)
                  > 76 |         return self.head(self.norm(x))
                    77 |
          gpu     2.79 ms a step
          peak    204 µs at the GPU's peaks
          shapes  [[4096,32000],[32000,768],[4096,768]]
          else    77% of the peaks, reached by other calls of this op
          kernel  nvjet_sm90_tst_192x128_64x5_1x2_h_bz_coopB_NNT ×1
          module  Transformer_0/Linear_24
          fix     time it alone first, with torch.utils.benchmark on these shapes:
                  where it is fast alone, other work runs at the same time
        """,
    )

    examples = (
        Bad(
            _DRAWN,
            finds="aten::mul takes far longer than its bytes need, once a step",
            args={"aten::mul": inputs([[64, 1024], [64, 1024]], ["float", "float"])},
        ),
        Good(
            _DRAWN,
            args={"aten::mul": inputs([[4096, 4096], [4096, 4096]], ["float"] * 2)},
        ),
    )

    def check(self, view: View) -> Iterator[Finding]:
        """Group the ops that nothing else names by place and shape."""
        # What all calls of an op do not take, those of one place do not either.
        together = pl.col("gpu").sum().over("name", "phase")
        long = self.min_share * view.bound.step_ns * view.steps
        ops = roofline(view.trace).ops
        brief = ops[["name", "phase", "gpu"]].with_row_index("row")
        brief = brief.filter(~named_like(ops, _NOT)).filter(together >= long)
        ops = ops[brief["row"]]
        # Kernels that other findings name are theirs.
        others = pl.element().is_in(list(view.named))
        if view.named:
            ops = ops.filter(~pl.col("kernels").list.eval(others).list.any())
        ops = long_enough(view, ops, self.min_share)
        if not ops.height:
            return
        best = _best(view)
        for row in groups(view, ops, self.min_share):
            reached = row["least_ns"] / row["gpu_ns"]
            elsewhere = best.get(row["name"], 0.0)
            alone = reached < self.max_efficiency
            beside = reached < min(elsewhere / _FASTER, 3 * self.max_efficiency)
            long = row["gpu_ns"] >= _SHORTEST_NS * len(row["ids"])
            if long and (alone or beside) and row["least_ns"] > 0:
                yield self._finding(view, row, elsewhere if beside else 0.0)

    def _finding(self, view: View, row: Row, elsewhere: float) -> Finding:
        calls = len(row["ids"]) / view.steps
        image = Evidence("image", row["resized_from"] or "")
        more = [Evidence("shapes", row["dims_text"]), image]
        if elsewhere:
            note = "of the peaks, reached by other calls of this op"
            more.append(Evidence("else", value=elsewhere, unit="share", note=note))
        known = remedy(view, row)
        share = saved(row, assumptions.COPY_EFFICIENCY.bandwidth / 6)
        return self.finding(
            f"{row['name']} takes far longer than its bytes need, {often(calls)}",
            subject=row["name"],
            place=view.place(row),
            count=calls,
            fix=Fix(kernels=row["kernels"], kernel_share=share) if known.helps else (),
            kernels=row["kernels"],
            evidence=evidence(view, row, *more),
            data={"op": row["name"], "shapes": row["dims_text"]},
            advice=known.advice or None,
            example=self.example(known.example),
        )


def _best(view: View) -> dict[str, float]:
    """Return the share of the peaks that long calls of each op reach here at best."""
    ops = roofline(view.trace).ops.filter(
        pl.col("gpu") >= _SHORTEST_NS, pl.col("least").is_not_null()
    )
    reached = ops.group_by("name", "inputs").agg(
        reached=pl.col("least").sum() / pl.col("gpu").sum()
    )
    return dict(reached.group_by("name").agg(pl.col("reached").max()).iter_rows())
