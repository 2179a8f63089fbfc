"""CPY001: copies take a large share of the GPU's time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base import assumptions
from traceq.analysis.patterns import kv_cache
from traceq.linter import (
    Bad,
    Evidence,
    Fix,
    Good,
    Need,
    Rule,
    Seen,
    Severity,
    View,
    dataclass,
    dtype_name,
    inputs,
    often,
    option,
    text,
)

from ._batch_last import ADVICE as BATCH_FIRST
from ._batch_last import batch_last, operand_lines
from ._copy_parts import (
    HINTS,
    NOUNS,
    fixes,
    part_line,
    scale_line,
    scales_weights,
    unexplained,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.linter import Finding

_NEEDED = ("optimizer", "transfer")
_DEQUANTIZE = (
    "start with {noun}: dequantize them once, if there is memory for them in {dtype};"
    " or compile the model, which casts and scales in one kernel; or use a matmul that"
    " reads 8 bits, as torchao's"
)

_BIG = inputs([[64, 64], [64, 64], []], ["float", "float", "Scalar"])


@dataclass(frozen=True)
class CopyShare(Rule):
    """Copies take a large share of the GPU's time.

    ## What it does

    Adds up everything that only moves data: transfers, casts, layout changes, joins.
    Each copy is attributed to what asks for it (the program, autocast, another op, the
    optimizer or the backward pass), with the lines that ask for most. Copies that
    another rule reports are listed with its code, and their saving is reported there.
    The saving here is half of the program's remaining casts and layout changes, if
    these alone exceed the share, and all of the casts of weights that are stored in 8
    bits, with the multiplication by their scale.

    ## Why is this bad?

    A copy computes nothing. It uses memory bandwidth, which bounds most steps.

    ## How to fix it

    Start with the largest part that is not needed. Casts: keep tensors in one dtype.
    Layouts: transpose once, as late as possible. The backward of ``unbind`` or
    ``chunk`` joins gradients: use separate projections, or a kernel that takes the
    packed tensor. Weights that are stored in 8 bits and cast in every call: dequantize
    them once if there is memory for it, or compile the model, which casts and scales in
    one kernel. A matmul reads a matrix along its rows or its columns: where the batch
    dims come last, as in a result ``ijbn`` of ``torch.einsum``, it copies the operand.

    ```diff
    - x = self.mlp(x.transpose(1, 2).contiguous())
    + x = self.mlp(x.transpose(1, 2))
    ```

    ## When it is wrong

    The optimizer's copies, and transfers from pinned memory, count as needed. If
    nothing else is left, the finding is for information only.
    """

    code = "CPY001"
    several_fixes = True
    since = "0.1.0"
    see = ("torch.autocast", "torch.Tensor.contiguous")
    residual = True
    needs = frozenset({Need.GPU, Need.OPS})

    min_share: float = option(
        0.1, "Copies below this share of the GPU's time are not reported."
    )

    seen = Seen(
        of="fixtures/copies",
        text="""
        CPY001 copy-share
          copies take a large share of the GPU's time, mainly pageable transfers,
            then contiguous, clone and reshape
          share  76% of the GPU's time
          part   pageable transfers 7.93 ms a step (see CPY003; step
                 (dev_cases.py:154)) ×1
          part   contiguous, clone and reshape 825 µs a step (CPY005 reports those
                 that are needless; forward (dev_cases.py:137)) ×18
          part   casts in the program 445 µs a step (CPY002 reports those that are
                 undone; forward (dev_cases.py:137)) ×12
          part   casts inside other ops 389 µs a step (see CPY008; forward
                 (dev_cases.py:137)) ×11
          part   casts of weights and their gradients by autocast 153 µs a step (see
                 CPY006; forward (dev_cases.py:137)) ×24
          part   the backward of views, slices and joins 33.3 µs a step (part of the
                 backward pass; step (dev_cases.py:154)) ×1
          fix    start with pageable transfers (see CPY003)
        """,
    )

    examples = (
        Bad(
            """
            host  [ProfilerStep#1                                      ]
            host   [aten::mm              ] [aten::contiguous         ]
            host                             [aten::clone            ]
            host                              [aten::copy_          ]
            host    [cudaLaunchKernel>1]      [cudaLaunchKernel>2]
            gpu 7              [gemm<1         ][direct_copy_kernel<2]
            """,
            finds=(
                "copies take a large share of the GPU's time, mainly contiguous, clone"
                " and reshape",
            ),
            args={"aten::copy_": _BIG},
        ),
        Good(
            """
            host  [ProfilerStep#1                                                   ]
            host   [aten::mm                                     ] [aten::contiguous]
            host                                                    [aten::clone   ]
            host                                                     [aten::copy_ ]
            host    [cudaLaunchKernel>1]                              [cudaLaunch>2]
            gpu 7              [gemm<1                                         ][cp<2]
            """,
            args={"aten::copy_": _BIG},
        ),
    )

    def check(self, view: View) -> Iterator[Finding]:
        """Divide all copies into parts, if together they take enough time."""
        # What a KV cache that grows by cat copies is SRV007's.
        grown = kv_cache.cache_cats(view.trace)["id"]
        moved = view.copies.filter(~pl.col("op").is_in(grown.implode()))
        busy, copied = int(view.kernels["dur"].sum()), int(moved["dur"].sum())
        if not copied or copied < self.min_share * busy:
            return
        parts = (
            moved.group_by(text("part"))
            .agg(time=pl.col("dur").sum(), calls=pl.len())
            .sort("time", "part", descending=[True, False])
        )
        yield from self._batch_last(view, busy)
        needed = int(parts.filter(pl.col("part").is_in(_NEEDED))["time"].sum())
        rest = unexplained(view)
        matters = int(rest["dur"].sum()) >= self.min_share * busy
        scales = scales_weights(view, rest)
        yield self.finding(
            f"copies take a large share of the GPU's time, {_most(parts)} "
            + ", then ".join(NOUNS[name] for name in parts["part"].head(2)),
            subject="copies",
            count=moved.height / view.steps,
            fix=fixes(rest, scales) if matters else (),
            severity=Severity.warning if matters else Severity.info,
            evidence=[
                _share("share", copied / busy),
                *([_share("needed", needed / busy)] if needed else []),
                *(part_line(view, row) for row in parts.iter_rows(named=True)),
                *scale_line(view, scales),
            ],
            data={
                "share": round(copied / busy, 4),
                "needed": round(needed / busy, 4),
                "parts": {
                    name: spent // view.steps for name, spent, _ in parts.iter_rows()
                },
            },
            advice=_advice(moved, parts.filter(~pl.col("part").is_in(_NEEDED))["part"]),
            kernels=moved["id"],
        )

    def _batch_last(self, view: View, busy: int) -> Iterator[Finding]:
        """Yield what batched matmuls copy since batch dims come last in memory."""
        copied = batch_last(view)
        if int(copied["dur"].sum()) < self.min_share * busy:
            return
        by_place = view.by_place(copied, time=pl.col("dur").sum())
        largest = by_place.sort("time", descending=True).row(0, named=True)
        yield self.finding(
            "batched matmuls copy operands whose batch dims come last in memory,"
            f" {often(copied.height / view.steps)}",
            subject="operands of batched matmuls",
            place=view.place(largest),
            count=copied.height / view.steps,
            fix=Fix(kernels=copied["id"], kernel_share=assumptions.BATCH_LAST_COPIES),
            evidence=[
                _share("share", int(copied["dur"].sum()) / busy),
                *operand_lines(view, copied),
            ],
            advice=BATCH_FIRST,
            example="",
            ops=copied["matmul"].unique(),
        )


def _most(parts: pl.DataFrame) -> str:
    """Return how two parts that are named stand to all: most of them, or not."""
    named, total = int(parts["time"].head(2).sum()), int(parts["time"].sum())
    return "mainly" if 2 * named >= total else "first of all"


def _share(label: str, value: float) -> Evidence:
    return Evidence(label, value=value, unit="share", note="of the GPU's time")


def _advice(moved: pl.DataFrame, parts: pl.Series) -> str:
    if not len(parts):
        return "all of them are needed: overlap the transfers with compute"
    noun, hint = NOUNS[parts[0]], HINTS.get(parts[0])
    if parts[0] == "dequantized":
        dequantized = moved["dst"].filter(moved["part"] == "dequantized")
        return _DEQUANTIZE.format(noun=noun, dtype=dtype_name(dequantized[0]))
    return f"start with {noun}" + (f" ({hint})" if hint else "")
