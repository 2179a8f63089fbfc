"""CPY006: autocast casts the weights again in every step."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import polars as pl

from traceq.linter import (
    FLOAT32,
    SIZES,
    Bad,
    Evidence,
    Good,
    Need,
    Rule,
    Seen,
    Severity,
    View,
    at_function,
    counted,
    dataclass,
    dtype_name,
    inputs,
    kernel_lines,
    often,
    text,
)

from ._shared import pass_lines
from ._weight_casts import remedies, weights_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.linter import Finding

_LINEAR = inputs([[32, 64], [128, 64], [128]], ["c10::BFloat16", "float", "float"])
_WEIGHT = inputs([[128, 64], [128, 64], []], ["c10::BFloat16", "float", "Scalar"])
_INPUT = inputs([[32, 64], [32, 64], []], ["c10::BFloat16", "float", "Scalar"])
_MOST_LINES = 3
# A number closer than this to a whole one is printed as about it. Heuristic threshold.
_ABOUT = 0.15


@dataclass(frozen=True)
class AutocastWeightCast(Rule):
    """Autocast casts float32 weights to bf16 or fp16 again in every step.

    ## What it does

    Looks for casts from float32 to bf16 or fp16 inside ``linear`` and convolutions, of
    tensors with the shape of the op's weight or bias, and inside any op, of tensors
    whose gradient is cast back and accumulated: weights in ``einsum`` or ``x @ w.t()``,
    which are views when they are cast. Casts of gradients in the backward pass belong
    to them. There is one finding for the model, since all its weights have the same
    fix. CPY008 reports casts of activations.

    ## Why is this bad?

    Every weight is read in float32 and written in 16-bit at least once a step, and its
    gradient the other way round. With gradient accumulation this happens again for each
    micro-batch, unless one autocast covers them all, and with activation checkpointing
    again in the backward.

    ## How to fix it

    With micro-batches, put one autocast around all of them: each weight is then cast
    once a step, and the gradient still once for each micro-batch. Autocast caches
    parameters, not views of them.

    ```diff
    + with torch.autocast("cuda", torch.bfloat16):
          for batch in batches:
    -         with torch.autocast("cuda", torch.bfloat16):
    -             loss = model(batch)
    -         loss.backward()
    +         loss = model(batch)
    +         with torch.autocast("cuda", enabled=False):
    +             loss.backward()
      optimizer.step()
    ```

    Weights that are not trained, as in inference, can be cast once for all steps:

    ```diff
      model = Model().cuda().eval()
    + for layer in model.modules():
    +     if isinstance(layer, (nn.Linear, nn.Conv2d)):
    +         layer.to(torch.bfloat16)
      with torch.autocast("cuda", torch.bfloat16):
          result = model(batch)
    ```

    Weights in bf16 with float32 copies in the optimizer are cast once a step as well,
    however often they are used. Where autocast does so too, ``torch.compile`` removes
    no cast, since a matmul takes a weight that is in memory in 16 bits, but gradients
    are then cast as fast as weights:

    ```diff
      model = Model().cuda()
    + model.compile()
      with torch.autocast("cuda", torch.bfloat16):
          loss = model(batch)
    ```

    ## When it is wrong

    16-bit weights without float32 copies train worse. With a large batch the casts are
    a small share of the step.
    """

    code = "CPY006"
    since = "0.1.0"
    see = ("torch.autocast",)
    needs = frozenset({Need.GPU, Need.SHAPES})
    without_gpu = True

    seen = Seen(
        text="""
        CPY006 autocast-weight-cast  saves 15.8 µs/step (54%), 13.0 µs to 22.4 µs
          autocast casts 1 weight from float32 to bfloat16, each once a step
          weights   32.0 KiB a step
          forward   29.0 µs a step
          backward  0 ns a step
          kernel    bfloat16_copy_kernel_cuda ×1
          fix       cast the layers of these weights once, before the loop
                    (layer.to(torch.bfloat16)): autocast then takes them as they
                    are, with the same results
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
        """Separate the casts of weights from those of their gradients."""
        rows = view.copies.filter(pl.col("part") == "weights")
        casts = rows.filter(pl.col("origin").is_null()).sort("id")
        if casts.height:
            yield self._finding(view, rows, casts)

    def _finding(self, view: View, table: pl.DataFrame, casts: pl.DataFrame) -> Finding:
        weights, half = weights_of(view, casts), dtype_name(casts["dst"][0])
        each = casts.height / view.steps / weights
        moved = SIZES[FLOAT32] * int(casts["numel"].sum()) / view.steps
        backward = table.filter(pl.col("origin").is_not_null())
        places = (
            casts.group_by("file", "line", "function")
            .agg(text("module").head(1), moved=pl.col("numel").sum())
            .sort("moved", "file", "line", descending=[True, False, False])
        )
        with_file = places.drop_nulls("file").select("file", "line", "function")
        others = with_file.rows()[1:_MOST_LINES]
        remedy = remedies(view, table, half)
        finding = self.finding(
            f"autocast casts {counted(weights, 'weight')} from float32 to {half}, each"
            f" {_often(each)}",
            subject="weights",
            place=view.place_of_group(places.row(0, named=True)),
            count=casts.height / view.steps,
            fix=[part.fix for part in remedy.parts],
            evidence=[
                Evidence("weights", value=moved, unit="bytes", note="a step"),
                *pass_lines(view, table, backward),
                *(Evidence("also in", at_function(*row)) for row in others),
                *kernel_lines(view, table["id"]),
            ],
            data={"weights": weights, "casts": casts.height // view.steps, "to": half},
            advice=remedy.advice,
            example=""
            if remedy.example is None
            else self.example(remedy.example).replace(
                "torch.bfloat16", f"torch.{half}"
            ),
            severity=Severity.info if remedy.minor else None,
            kernels=table["id"],
            ops=table["host"].drop_nulls(),
        )
        return replace(finding, minor=remedy.minor)


def _often(each: float) -> str:
    """Write how often a weight is cast; some may be left out, as a layer is.

    >>> _often(82 / 85), _often(2), _often(0.5)
    ('about once a step', 'twice a step', 'once in 2 steps')
    """
    whole = round(each)
    if each != whole and abs(each - whole) < _ABOUT:
        return f"about {often(whole)}"
    return often(each)
