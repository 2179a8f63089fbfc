"""CPY008: autocast casts activations between float32 and 16 bits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.linter import (
    Bad,
    Fix,
    Good,
    Need,
    Rule,
    Seen,
    View,
    at_function,
    counted,
    dataclass,
    dtype_name,
    inputs,
    kernel_lines,
    text,
)

from ._activation_casts import activation_casts, half_of, op_lines, shared_inputs
from ._shared import pass_lines

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.linter import Finding, Row

_LINEAR = inputs([[32, 64], [128, 64], [128]], ["float", "float", "float"])
_INPUT = inputs([[32, 64], [32, 64], []], ["c10::BFloat16", "float", "Scalar"])
_SAME = inputs([[32, 64], [32, 64], []], ["c10::BFloat16", "c10::BFloat16", "Scalar"])
_COMPILE = (
    "compile the model, which casts while it computes: the dtypes, and so the results,"
    " stay as autocast has them"
)
_COMPILED = (
    "compile the function too that these casts are in: compiled code casts while it"
    " computes, with the same dtypes and so the same results"
)
_ONCE = (
    "; or cast once before them what {ops} ops in a row take{where},"
    " x = x.to(torch.{half}), as before the projections of q, k and v: autocast caches"
    " casts of weights alone"
)


@dataclass(frozen=True)
class AutocastActivationCast(Rule):
    """Autocast casts activations between float32 and 16 bits, op by op.

    ## What it does

    Looks for casts between float32 and bf16 or fp16 inside of ops, under autocast: to
    16 bits in matmuls, convolutions and attention, to float32 in ``exp``, ``pow``,
    ``sum``, ``softmax`` and others of its list. Casts of the gradients belong to them.
    CPY006 reports those of weights, LOS001 those for the loss, NRM001 those around
    norms, CPY002 those that undo a cast of the program. There is one finding for the
    model, with the ops and lines that ask for most.

    ## Why is this bad?

    Ops of one list follow those of the other, and between them each tensor is read and
    written once more, in the backward too. Autocast keeps casts of weights alone: what
    three projections take is cast three times.

    ## How to fix it

    ``torch.compile`` fuses the casts into the ops around them.

    ```diff
      model = Model().cuda()
    + model.compile()
    ```

    An input that several ops take can be cast once before them, with the same results.

    ```diff
    + x = x.to(torch.bfloat16)
      q, k, v = self.q(x), self.k(x), self.v(x)
    ```

    ## When it is wrong

    The saving assumes that all of these casts go. Where the float32 tensor is used
    besides, as of a residual stream, the fused op writes both.
    """

    code = "CPY008"
    since = "0.2.0"
    # What it advises is what LCH002 and FUS001 do, and attention by one call has no
    # casts inside: it saves what those leave.
    residual = True
    see = ("torch.autocast", "torch.compile")
    needs = frozenset({Need.GPU, Need.SHAPES})

    seen = Seen(
        text="""
        CPY008 autocast-activation-cast
          saves 15.8 µs/step (54%), 13.0 µs to 22.4 µs
          autocast casts 1 activation a step between float32 and bfloat16
          forward   29.0 µs a step
          backward  0 ns a step
          for       aten::linear float32 -> bfloat16 29.0 µs a step ×1
          kernel    bfloat16_copy_kernel_cuda ×1
          fix       compile the model, which casts while it computes: the dtypes,
                    and so the results, stay as autocast has them
        """,
    )

    examples = (
        Bad(
            """
            host  [ProfilerStep#1                                      ]
            host   [aten::linear                                      ]
            host    [aten::to               ]
            host     [aten::_to_copy       ]
            host      [aten::copy_        ]
            host       [cudaLaunchKernel>1]
            gpu 7                         [bfloat16_copy_kernel_cuda<1]
            """,
            finds="autocast casts 1 activation a step between float32 and bfloat16",
            args={"aten::linear": _LINEAR, "aten::copy_": _INPUT},
        ),
        Good(
            """
            host  [ProfilerStep#1                                      ]
            host   [aten::linear                                      ]
            host    [aten::to               ]
            host     [aten::_to_copy       ]
            host      [aten::copy_        ]
            host       [cudaLaunchKernel>1]
            gpu 7                         [bfloat16_copy_kernel_cuda<1]
            """,
            args={"aten::linear": _LINEAR, "aten::copy_": _SAME},
        ),
    )

    def check(self, view: View) -> Iterator[Finding]:
        """Make one finding of all casts: all have the same fix."""
        casts = activation_casts(view)
        forward = casts.filter(pl.col("origin").is_null())
        if forward.is_empty():
            return
        half = dtype_name(half_of(forward))
        places = (
            casts.group_by("file", "line", "function")
            .agg(text("module").head(1), time=pl.col("dur").sum())
            .sort("time", "file", "line", descending=[True, False, False])
        )
        count = forward.height / view.steps
        backward = casts.filter(pl.col("origin").is_not_null())
        yield self.finding(
            f"autocast casts {counted(count, 'activation')} a step between float32 and"
            f" {half}",
            subject="activations",
            place=view.place_of_group(places.row(0, named=True)),
            count=count,
            fix=Fix(kernels=casts["id"], ops=casts["host"].drop_nulls()),
            evidence=[
                *pass_lines(view, casts, backward),
                *op_lines(view, casts),
                *kernel_lines(view, casts["id"]),
            ],
            data={"casts": count, "half": half},
            advice=(_COMPILED if view.compiled else _COMPILE)
            + _once(shared_inputs(view, forward), half),
            example="" if view.compiled else None,
        )


def _once(shared: list[Row], half: str) -> str:
    """Return the advice on ops that cast the same tensor, if there are any."""
    if not shared:
        return ""
    row = shared[0]
    place = at_function(row["file"], row["line"], row["function"])
    where = f" in {place}" if place else ""
    return _ONCE.format(ops=row["ops"], where=where, half=half)
