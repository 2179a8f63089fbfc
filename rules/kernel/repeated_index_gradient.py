"""KRN002: the gradient of an index goes row by row, since rows are picked often."""

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

from ._indexed import Indexed
from ._shared import evidence, groups, judged

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.linter import Finding, Row

# With accumulate, torch's kernels sort the indices, and one warp adds up all rows that
# go to the same place, one after the other.
_PUT = r"^aten::_?index_put"
_ACCUMULATES = nth("values", 3) == "True"
_MATRIX = 2
_DRAWN = """
    host   [ProfilerStep#1                                                            ]
    host    [model.py(9): forward                                                    ]
    host     [aten::_index_put_impl_]
    host      [cudaLaunchKernel>1]
    gpu 7                  [indexing_backward_kernel<1                             ]
"""
_TYPES = ["float", "", "float", "Scalar", "Scalar"]
_VALUES = ["", "", "", "True", "True"]


@dataclass(frozen=True)
class RepeatedIndexGradient(Rule):
    """The gradient of an index is slow, since some rows are picked very often.

    ## What it does

    Finds gradients of an index (``indexing_backward_kernel``, also of ``index_put_``
    with ``accumulate=True``) that reach less than ``max-efficiency`` of the memory's
    bandwidth and take at least ``min-share`` of a step.

    ## Why is this bad?

    The gradient adds up all rows that were picked from the same place. torch sorts the
    indices and lets one warp add up what belongs together, a row at a time. That is
    fast while rows differ. If thousands come from one place, as from the row for
    padding or from a table with few rows, that warp works alone.

    ## How to fix it

    Pick rows with an operator whose gradient is not sequential. In float32 that is
    ``index_select``; in 16-bit dtypes ``embedding``, which adds in float32.

    ```diff
    - rows = table[index]
    + rows = table.index_select(0, index)  # float32
    + rows = F.embedding(index, table)  # bfloat16, float16
    ```

    What a mask picks is never picked twice, but the gradient of ``x[mask]`` sorts all
    the same. The same values without it, for a mask over all dimensions, and over rows:

    ```diff
    - picked = x[mask]
    + picked = x.masked_select(mask)  # mask.shape == x.shape
    + picked = x.index_select(0, mask.nonzero().squeeze(1))  # one dimension
    ```

    The 0 is the dimension that is indexed. What only reverses a dimension, as
    ``x[..., [2, 1, 0]]``, is ``x.flip(-1)``, whose gradient adds nothing. Where many
    rows come from one place by accident, as padding does, leave them out.

    ## When it is wrong

    Sums have another order: compare the gradients once. ``index_select`` adds by
    atomics, so that two runs differ in the last bits, and in 16-bit dtypes it rounds at
    every addition, as the index does: ``embedding`` does neither. Negative indices have
    to be made positive for both. ``index`` may have any shape in ``embedding``, and one
    dimension in ``index_select``. Where all rows differ, these are no faster.
    """

    code = "KRN002"
    effort = "edit"
    since = "0.2.0"
    see = ("torch.nn.functional.embedding",)
    needs = frozenset({Need.GPU, Need.OPS, Need.SHAPES, Need.VALUES})

    min_share: float = option(0.03, "Less of a step is not reported.")
    max_efficiency: float = option(
        0.05, "What reaches more of the GPU's bandwidth is not reported."
    )

    seen = Seen(
        of="fixtures/twins/moe_batched",
        text="""
        KRN002 repeated-index-gradient  saves 863 µs/step (14%), nothing to 1.25 ms
          the gradient of an index into [8192,512] adds rows one by one, 3 times a
            step
          in       forward (dev_cases.py:105) of Sequential_0/BatchedMoE_2
          gpu      1.20 ms a step
          peak     5.24 µs at the GPU's peaks
          rows     bfloat16 [4096,512] → [8192,512]
          kernel   indexing_backward_kernel<BFloat16, 4> ×3
          modules  Sequential_0/BatchedMoE_2 and 2 more
          fix      pick rows with F.embedding(index, x), whose gradient is added in
                   float32; compare the gradients once
        """,
    )

    examples = (
        Bad(
            _DRAWN,
            finds="the gradient of an index into [16,768] adds rows one by one, once a"
            " step",
            args={
                "aten::_index_put_impl_": inputs(
                    [[16, 768], [], [256, 768], [], []], _TYPES, values=_VALUES
                )
            },
        ),
        Good(
            _DRAWN,
            args={
                "aten::_index_put_impl_": inputs(
                    [[8192, 768], [], [8192, 768], [], []], _TYPES, values=_VALUES
                )
            },
        ),
    )

    def check(self, view: View) -> Iterator[Finding]:
        """Group the slow ones by line, whatever the shapes are there."""
        ops = judged(view, _PUT, self.min_share)
        if not ops.height:
            return
        # What is named of a group is of its longest.
        ops = ops.filter(_ACCUMULATES).sort("gpu", descending=True)
        for row in groups(view, ops, self.min_share, ("phase",)):
            if row["least_ns"] < self.max_efficiency * row["gpu_ns"]:
                yield self._finding(view, row)

    def _finding(self, view: View, row: Row) -> Finding:
        calls = len(row["ids"]) / view.steps
        table, rows = row["dims"][0], row["dims"][2]
        kind = dtype_name(row["types"][0])
        index = Indexed.of(view, row["ids"][0])
        does = (
            f"a mask over {shape(table)} sorts what it picked"
            if index.mask
            else f"an index into {shape(table)} adds rows one by one"
        )
        return self.finding(
            f"the gradient of {does}, {often(calls)}",
            subject="mask" if index.mask else "index",
            place=view.place(row),
            count=calls,
            fix=Fix(kernels=row["kernels"], kernel_share=_share(row)),
            evidence=evidence(
                view, row, Evidence("rows", f"{kind} {shape(rows)} → {shape(table)}")
            ),
            data={"table": table, "rows": rows, "dtype": kind},
            advice=_advice(row, index),
            example=self._example(index),
        )

    def _example(self, index: Indexed) -> str | None:
        if index.mask:
            return self.example(1)
        return None if index.along in (None, 0) else ""


def _share(row: Row) -> float:
    """Return the share of the time that goes: never all that the roofline allows."""
    then = (
        assumptions.SORTED_ROWS_NS * len(row["ids"])
        + row["least_ns"] / assumptions.ADDED_ROWS_EFFICIENCY
    )
    return min(assumptions.ADDED_ROWS_MOST_SAVED, max(0.0, 1 - then / row["gpu_ns"]))


def _advice(row: Row, index: Indexed) -> str:
    table, rows = row["dims"][0], row["dims"][2]
    if row["phase"] != "backward":
        return (
            "add rows with x.index_add_(0, index, rows), and compare: sums have another"
            " order, and 16-bit dtypes round at every addition"
        )
    if index.mask:
        return (
            f"pick with {index.call}: a mask picks nothing twice, and needs no sorting;"
            " where only a sum or a mean is read, take that of torch.where(mask, x, 0)"
            " (divided by mask.sum()), which does not wait for how many it picks"
        )
    first = index.along == 0 or (index.unknown and rows[:1] != table[:1])
    if (
        first
        and len(table) == _MATRIX
        and rows[-1:] == table[1:]
        and row["types"][0] in HALF
    ):
        return (
            "pick rows with F.embedding(index, x), whose gradient is added in float32;"
            " compare the gradients once"
        )
    advice = (
        f"pick rows with {index.call}, whose gradient is added in parallel; compare the"
        " gradients once, as sums have another order"
    )
    if rows == table:
        dim = "dim" if index.along is None else str(index.along)
        advice = (
            f"if the index only reverses the order, use x.flip({dim}), whose gradient"
            f" adds nothing; otherwise {advice}"
        )
    return advice
