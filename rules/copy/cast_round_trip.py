"""CPY002: a tensor is cast to float32 and back again."""

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
    dataclass,
    dtype_name,
    inputs,
    kernel_lines,
    module_line,
    often,
    rewritten,
    same_place,
    shape,
    text,
)

from ._needless import cast_round_trips
from ._shared import pass_lines

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from traceq.linter import Finding

_UP = inputs(
    [[8, 64], [8, 64], []],
    ["float", "c10::BFloat16", "Scalar"],
    [[64, 1], [64, 1], []],
)
_DOWN = inputs(
    [[8, 64], [8, 64], []],
    ["c10::BFloat16", "float", "Scalar"],
    [[64, 1], [64, 1], []],
)
_MEAN = inputs([[8, 64], []], ["float", "ScalarList"])


@dataclass(frozen=True)
class CastRoundTrip(Rule):
    """A tensor is cast to float32 and back, with little work in between.

    ## What it does

    Looks for casts from bf16 or fp16 to float32 that the program asks for
    (``.float()``, ``.to(torch.float32)``) and that the next cast of the same number of
    elements in the same function undoes, whether the program's own or autocast's. The
    casts of the backward pass count too. Functions that sum, exponentiate or normalise
    that many elements in float32 have a reason to upcast, and are left out.

    ## Why is this bad?

    Each cast reads and writes the whole tensor, forward and backward, and everything
    between the two casts moves twice the bytes. An elementwise op on bf16 computes in
    float32 internally anyway.

    ## How to fix it

    Drop the cast to float32, or move it to where a sum needs it.

    ```diff
    - y = elementwise(x.float()).to(x.dtype)
    + y = elementwise(x)
    ```

    Under autocast no explicit cast is needed:

    ```diff
    - y = self.linear(elementwise(x.float()))
    + y = self.linear(elementwise(x))
    ```

    ## When it is wrong

    The float32 tensor may also be used elsewhere, for example in a residual stream
    that is kept in float32 intentionally. What meets a float32 tensor of another shape
    in between, as the angles of a rotary embedding, is float32 with or without the cast
    and left out; one of the same shape is not known to be float32 by itself.
    """

    code = "CPY002"
    since = "0.1.0"
    see = ("torch.autocast", "torch.Tensor.to")
    needs = frozenset({Need.GPU, Need.SHAPES, Need.LINES})
    without_gpu = True

    seen = Seen(
        of="fixtures/copies",
        text="""
        CPY002 cast-round-trip  saves 759 µs/step (6%), 655 µs to 1.06 ms
          [16,512,2048] is cast from bfloat16 to float32 and back again 5 times a
            step
          in        forward (dev_cases.py:137)
          back      autocast in aten::linear
          forward   370 µs a step
          backward  365 µs a step
          kernel    unrolled_elementwise_kernel<direct_copy_kernel_cuda> ×10
          kernel    vectorized_elementwise_kernel<bfloat16_copy_kernel_cuda> ×10
          module    Copier_0
          fix       drop the cast to float32 in forward: autocast casts back to
                    bfloat16 for aten::linear; elementwise ops on bfloat16 compute
                    in float32 internally
        """,
    )

    examples = (
        Bad(
            """
            host  [ProfilerStep#1                                            ]
            host   [model.py(7): forward                                    ]
            host    [aten::to             ] [aten::gelu] [aten::to         ]
            host     [aten::_to_copy     ]                [aten::_to_copy ]
            host      [aten::copy_      ]                  [aten::copy_.x]
            host       [cudaLaunchKern>1]                   [cudaLaunch>2]
            gpu 7                       [direct_copy_kernel<1] [copy_kernel<2]
            """,
            finds=(
                "[8,64] is cast from bfloat16 to float32 and back again once a step",
            ),
            args={"aten::copy_": _UP, "aten::copy_.x": _DOWN},
        ),
        Good(
            """
            host  [ProfilerStep#1                                            ]
            host   [model.py(7): forward                                    ]
            host    [aten::to             ] [aten::mean] [aten::to         ]
            host     [aten::_to_copy     ]                [aten::_to_copy ]
            host      [aten::copy_      ]                  [aten::copy_.x]
            host       [cudaLaunchKern>1]                   [cudaLaunch>2]
            gpu 7                       [direct_copy_kernel<1] [copy_kernel<2]
            """,
            args={"aten::copy_": _UP, "aten::copy_.x": _DOWN, "aten::mean": _MEAN},
        ),
    )

    def check(self, view: View) -> Iterator[Finding]:
        """Group the round trips by place, dtype and shape."""
        trips = cast_round_trips(view.trace, view.copies)
        if not trips.height:
            return
        groups = (
            trips.group_by(*same_place(), "src", "dst", "dims")
            .agg(
                "request",
                "back",
                pl.col("back_caller").first(),
                text("module").unique(maintain_order=True),
            )
            .sort("file", "line", "function", "src")
        )
        for row in groups.iter_rows(named=True):
            yield self._finding(view, row)

    def _finding(self, view: View, row: Mapping[str, Any]) -> Finding:
        casts = [*row["request"], *row["back"]]
        rows = view.copies.filter(
            pl.col("cast"), pl.coalesce("origin", "request").is_in(casts)
        )
        backward = rows.filter(pl.col("phase") == "backward")
        count = len(row["request"]) / view.steps
        low, high = dtype_name(row["src"]), dtype_name(row["dst"])
        undone = row["back_caller"]
        return self.finding(
            f"{shape(row['dims'])} is cast from {low} to {high} and back again"
            f" {often(count)}",
            subject=f"{low} {high}",
            place=view.place_of_group(row),
            count=count,
            fix=Fix(kernels=rows["id"], ops=rows["host"].drop_nulls()),
            evidence=[
                Evidence("back", f"autocast in {undone}" if undone else "the program"),
                *pass_lines(view, rows, backward),
                *kernel_lines(view, rows["id"]),
                *module_line(row["module"]),
            ],
            data={"dims": row["dims"], "from": low, "to": high},
            advice=f"drop the cast to {high} in {rewritten({**row}) or 'the program'}"
            + (f": autocast casts back to {low} for {undone}" if undone else "")
            + f"; elementwise ops on {low} compute in float32 internally",
            example=self.example(1 if undone else 0),
        )
