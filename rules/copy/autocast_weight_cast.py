"""CPY006: autocast casts the weights anew in every step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from traceq.lint import Bad, Good, Need, Rule, View, inputs
from traceq.lint.evidence import dtype, kernel_lines
from traceq.words import counted, listed, size, time, times

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.lint import Finding

_LINEAR = inputs([[32, 64], [128, 64], [128]], ["c10::BFloat16", "float", "float"])
_WEIGHT = inputs([[128, 64], [128, 64], []], ["c10::BFloat16", "float", "Scalar"])
_INPUT = inputs([[32, 64], [32, 64], []], ["c10::BFloat16", "float", "Scalar"])
_BYTES = 4
_ONCE = (
    "keep the weights in {half} and 32-bit copies of them in the optimizer (FSDP"
    " MixedPrecision, or an optimizer with master weights), or compile the model, which"
    " fuses the casts"
)
_MANY = (
    "put one autocast around all forward passes of a step (its cache of weights lives"
    " as long as the outermost one, and not under inference_mode); for none at all, "
)


@dataclass(frozen=True)
class AutocastWeightCast(Rule):
    """Autocast casts 32-bit weights to 16 bits anew in every step.

    ## What it does

    Looks for casts from 32 to 16 bits inside ``linear`` and convolutions, of what has
    the shape of the op's weight or bias, and for the casts of their gradients in the
    backward pass. One finding for the model: all its weights have the same cure.

    ## Why is this bad?

    Every weight is read in 32 bits and written in 16 at least once a step, and
    its gradient the other way round. With gradient accumulation it happens again for
    each micro-batch, if autocast is entered anew.

    ## How to fix it

    With micro-batches: one autocast around all of them. To be rid of all casts: weights
    in bfloat16 with 32-bit copies in the optimizer, or ``torch.compile``, which casts
    while it reads.

    ## When it is wrong

    Weights in 16 bits without 32-bit copies train worse. The cost is all of these
    casts, which a large batch makes small.
    """

    code = "CPY006"
    needs = frozenset({Need.GPU, Need.SHAPES})

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
            finds=(
                "autocast casts 1 weight from float32 to bfloat16, each once a step",
            ),
            args={"aten::linear": _LINEAR, "aten::copy_": _WEIGHT},
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
            args={"aten::linear": _LINEAR, "aten::copy_": _INPUT},
        ),
    )

    def check(self, view: View) -> Iterator[Finding]:
        """Tell the casts of weights from those of their gradients."""
        mine = view.copies.filter(pl.col("part") == "weights")
        casts = mine.filter(pl.col("origin").is_null()).sort("id")
        if not casts.height:
            return
        weights = _weights(view, casts)
        each = casts.height / view.steps / weights
        half, requests = dtype(casts["dst"][0]), casts["request"]
        places = (
            casts.group_by("file", "line", "function")
            .agg(pl.col("module").cast(pl.String).head(1), moved=pl.col("numel").sum())
            .sort("moved", "file", "line", descending=[True, False, False])
        )
        back = mine.filter(pl.col("origin").is_not_null())
        advice = _ONCE.format(half=half)
        yield self.finding(
            f"autocast casts {counted(weights, 'weight')} from float32 to {half}, each"
            f" {times(each)} a step",
            subject="weights",
            place=view.place_of_group(places.row(0, named=True)),
            count=casts.height / view.steps,
            gpu_ns=int(mine["dur"].sum()) / view.steps,
            host_ns=int(view.trace.ops["dur"].gather(requests).sum()) / view.steps,
            evidence=[
                ("weights", f"{size(_BYTES * int(casts['numel'].sum()) / view.steps)}"),
                ("forward", f"{time(int(casts['dur'].sum()) / view.steps)} a step"),
                ("backward", f"{time(int(back['dur'].sum()) / view.steps)} a step"),
                ("lines", _lines(places)),
                *kernel_lines(view, mine["id"].to_list()),
            ],
            data={"weights": weights, "casts": casts.height // view.steps, "to": half},
            advice=_MANY + advice if each > 1 else advice,
            ops=requests,
            kernels=mine["id"],
        )


def _weights(view: View, casts: pl.DataFrame) -> int:
    """Return how many weights there are; without modules each cast is of another."""
    known = casts.drop_nulls("module")
    if known.height < casts.height:
        return round(casts.height / view.steps)
    # A module's weight and bias differ in shape.
    return known.select("module", "dims").unique().height


def _lines(places: pl.DataFrame) -> str:
    known = places.drop_nulls("file").select("file", "line").iter_rows()
    return listed([f"{file}:{line}" for file, line in known])
