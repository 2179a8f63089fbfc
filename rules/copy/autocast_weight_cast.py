"""CPY006: autocast casts the weights again in every step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.linter import (
    FLOAT32,
    SIZES,
    Bad,
    Evidence,
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
    often,
    text,
)

from ._shared import pass_lines

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.linter import Finding

_LINEAR = inputs([[32, 64], [128, 64], [128]], ["c10::BFloat16", "float", "float"])
_WEIGHT = inputs([[128, 64], [128, 64], []], ["c10::BFloat16", "float", "Scalar"])
_INPUT = inputs([[32, 64], [32, 64], []], ["c10::BFloat16", "float", "Scalar"])
_MOST_LINES = 3
# A number closer than this to a whole one is printed as about it. Heuristic threshold.
_ABOUT = 0.15
_ONCE = (
    "keep the weights in {half} and float32 copies of them in the optimizer ({sharded}"
    "an optimizer with master weights), or compile the model, which fuses the casts"
)
# GradScaler raises an error for gradients in float16: "Attempting to unscale".
_SCALED = (
    "compile the model, which fuses the casts; or train in bfloat16, which needs no"
    " GradScaler, with the weights in bfloat16 and float32 copies of them in the"
    " optimizer: GradScaler refuses gradients in float16"
)
_SHARDED = "FSDP MixedPrecision, or "
_MANY = (
    "put one autocast around all forward passes of a step (its cache of cast weights"
    " lives as long as the outermost autocast, is off under inference_mode, and does"
    " not hold weights that are viewed before they are cast); to avoid all casts, of"
    " gradients too, "
)


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
    micro-batch, unless one autocast covers them all.

    ## How to fix it

    With micro-batches, put one autocast around all of them: each weight is then cast
    once a step, and the gradient still once for each micro-batch. Autocast caches
    parameters, not views of them. To avoid all casts, keep the weights in bf16 with
    float32 copies in the optimizer, or use ``torch.compile``, which casts while it
    reads.

    ```diff
    - model = Model().cuda()
    + model = torch.compile(Model().cuda())
      with torch.autocast("cuda", torch.bfloat16):
          loss = model(batch)
    ```

    ## When it is wrong

    16-bit weights without float32 copies train worse, and an optimizer that keeps the
    copies casts each weight once a step. With micro-batches the saving is that of one
    autocast around them; otherwise it assumes that all of these casts go. With a large
    batch they are a small share of the step.
    """

    code = "CPY006"
    since = "0.1.0"
    see = ("torch.autocast",)
    needs = frozenset({Need.GPU, Need.SHAPES})
    without_gpu = True

    seen = Seen(
        of="fixtures/copies",
        text="""
        CPY006 autocast-weight-cast  saves 182 µs/step (1%), 152 µs to 359 µs
          autocast casts 12 weights from float32 to bfloat16, each once a step
          in        forward (dev_cases.py:137)
          weights   96.0 MiB a step
          forward   53.2 µs a step
          backward  99.9 µs a step
          kernel    unrolled_elementwise_kernel<direct_copy_kernel_cuda> ×12
          kernel    vectorized_elementwise_kernel<bfloat16_copy_kernel_cuda> ×12
          with      FUS001: one torch.compile fixes both
          fix       keep the weights in bfloat16 and float32 copies of them in the
                    optimizer (an optimizer with master weights), or compile the
                    model, which fuses the casts
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
        mine = view.copies.filter(pl.col("part") == "weights")
        casts = mine.filter(pl.col("origin").is_null()).sort("id")
        if casts.height:
            yield self._finding(view, mine, casts)

    def _finding(self, view: View, mine: pl.DataFrame, casts: pl.DataFrame) -> Finding:
        weights, half = _weights(view, casts), dtype_name(casts["dst"][0])
        each = casts.height / view.steps / weights
        moved = SIZES[FLOAT32] * int(casts["numel"].sum()) / view.steps
        backward = mine.filter(pl.col("origin").is_not_null())
        places = (
            casts.group_by("file", "line", "function")
            .agg(text("module").head(1), moved=pl.col("numel").sum())
            .sort("moved", "file", "line", descending=[True, False, False])
        )
        with_file = places.drop_nulls("file").select("file", "line", "function")
        others = with_file.rows()[1:_MOST_LINES]
        cached = casts.filter(~pl.col("viewed"))
        calls = cached.height / view.steps / max(1, _weights(view, cached))
        again = 1 - 1 / calls if calls > 1 else 0.0
        sharded = _SHARDED if view.distributed else ""
        advice = _ONCE.format(half=half, sharded=sharded)
        if half == "float16":
            advice = _SCALED
        return self.finding(
            f"autocast casts {counted(weights, 'weight')} from float32 to {half}, each"
            f" {_often(each)}",
            subject="weights",
            place=view.place_of_group(places.row(0, named=True)),
            count=casts.height / view.steps,
            fix=_cast_once(cached, again) if again else _cast_never(mine),
            evidence=[
                Evidence("weights", value=moved, unit="bytes", note="a step"),
                *pass_lines(view, mine, backward),
                *(Evidence("also in", at_function(*row)) for row in others),
                *kernel_lines(view, mine["id"]),
            ],
            data={"weights": weights, "casts": casts.height // view.steps, "to": half},
            advice=_MANY + advice if again else advice,
            example=self.example().replace("torch.bfloat16", f"torch.{half}"),
        )


def _often(each: float) -> str:
    """Write how often a weight is cast; some may be left out, as a layer is.

    >>> _often(82 / 85), _often(2), _often(0.5)
    ('about once a step', 'twice a step', 'once in 2 steps')
    """
    whole = round(each)
    if each != whole and abs(each - whole) < _ABOUT:
        return f"about {often(whole)}"
    return often(each)


def _cast_once(casts: pl.DataFrame, again: float) -> Fix:
    """Return what goes if autocast keeps the cast weights for all micro-batches.

    Each micro-batch has a gradient of its own, which is cast as before.
    """
    return Fix(
        kernels=casts["id"],
        kernel_share=again,
        ops=casts["request"],
        host_share=again,
    )


def _cast_never(casts: pl.DataFrame) -> Fix:
    return Fix(kernels=casts["id"], ops=casts["host"].drop_nulls())


def _weights(view: View, casts: pl.DataFrame) -> int:
    """Return how many weights are cast; without modules, each cast is of another."""
    with_module = casts.drop_nulls("module")
    if with_module.height < casts.height:
        return round(casts.height / view.steps)
    # The weight and the bias of a module differ in shape.
    return with_module.select("module", "dims").unique().height
