"""LOS001: logits are copied to float32 for the loss."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base import assumptions
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
    dataclass,
    dtype_name,
    inputs,
    kernel_lines,
    module_line,
    option,
    rows_where,
    same_place,
    shape,
    text,
)

from ._advice import subject_and_advice

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.linter import Finding, Row

_PLACE = ("file", "line", "function")
_SOFTMAX = ("aten::_log_softmax", "aten::_log_softmax_backward_data")
_INSIDE = (
    "compile model and loss as one function that returns the loss: cast, softmax and"
    " their backward are fused then, no float32 logits are written, and the loss stays"
    " float32"
)
_LOSS = inputs([[4096, 32000], [4096]], ["c10::BFloat16", "long int"])
_UP = inputs([[4096, 32000], [4096, 32000], []], ["float", "c10::BFloat16", "Scalar"])
_SMALL_LOSS = inputs([[4096, 10], [4096]], ["c10::BFloat16", "long int"])
_SMALL = inputs([[4096, 10], [4096, 10], []], ["float", "c10::BFloat16", "Scalar"])
_DRAWN = """
    host  [ProfilerStep#1                                         ]
    host   [train.py(65): step                                   ]
    host    [aten::cross_entropy_loss                           ]
    host     [aten::log_softmax                                ]
    host      [aten::to                 ]
    host       [aten::copy_            ]
    host        [cudaLaunchKernel>1    ]
    gpu 7                             [direct_copy_kernel_cuda<1]
"""


@dataclass(frozen=True)
class Float32Logits(Rule):
    """Logits are copied to float32 for the loss.

    ## What it does

    Finds upcasts from bfloat16 or float16 of what goes into a cross entropy, by the
    program (``logits.float()``) or by autocast inside the loss, where the vocabulary
    has at least ``min-vocabulary`` entries. The casts of the gradients are included,
    and half of the time of the softmax where that runs in float32.

    ## Why is this bad?

    tokens × vocabulary × 4 bytes, often the largest tensor of all, is written, read
    again, kept for the backward, and returned as a gradient of the same size.

    ## How to fix it

    Compile the function that casts and takes the loss, or under autocast
    ``F.cross_entropy`` itself: the cast is fused then, and the loss is float32. To save
    the memory of the logits too, use a fused or chunked linear cross entropy. Where the
    model is compiled and the loss is not, compile both as one function.

    ```diff
    + @torch.compile
    + def loss_of(logits, targets):
    +     return F.cross_entropy(logits.float(), targets)
    - loss = F.cross_entropy(logits.float(), targets)
    + loss = loss_of(logits, targets)
    ```

    ## When it is wrong

    ``F.cross_entropy`` takes bfloat16 logits as they are, without a copy, outside of
    autocast: it sums in float32 inside, and rounds the loss of each token and their
    mean to a mantissa of 8 bits. So does ``F.linear_cross_entropy``, which also adds up
    its chunks in bfloat16. If that is enough, compare the loss curves.
    """

    code = "LOS001"
    several_fixes = True
    since = "0.1.0"
    see = (
        "torch.nn.functional.cross_entropy",
        "torch.nn.functional.linear_cross_entropy",
    )
    needs = frozenset({Need.GPU, Need.SHAPES})
    without_gpu = True

    min_vocabulary: int = option(8192, "Smaller vocabularies are not reported.")

    seen = Seen(
        of="fixtures/twins/norm_mismatch",
        text="""
        LOS001 float32-logits  saves 1.11 ms/step (9%), 49.6 µs to 1.19 ms
          log-probabilities [8192,32000] are cast from bfloat16 to float32 for the
            loss
          in       step (dev_cases.py:65)
          cast by  aten::nll_loss
          tokens   8,192
          vocab    32,000
          size     1,000 MiB in float32
          casts    1.11 ms a step, forward and backward
          kernel   unrolled_elementwise_kernel<direct_copy_kernel_cuda> ×1
          kernel   vectorized_elementwise_kernel<bfloat16_copy_kernel_cuda> ×1
          with     FUS001: one torch.compile fixes both
          fix      compile the loss, as torch.compile(F.cross_entropy), and call it
                   under autocast as now: cast, softmax and their backward are fused
                   then, and the loss stays float32; or use one that never holds all
                   logits at once: Liger's fused linear cross entropy, or under
                   autocast F.linear_cross_entropy with
                   options=torch.nn.LinearCrossEntropyOptions() (torch 2.13);
                   without autocast it makes no copy either, but rounds the loss
                   itself to bfloat16
        """,
    )

    examples = (
        Bad(
            _DRAWN,
            finds=(
                "logits [4096,32000] are cast from bfloat16 to float32 for the loss",
            ),
            args={"aten::cross_entropy_loss": _LOSS, "aten::copy_": _UP},
        ),
        Good(
            _DRAWN,
            args={"aten::cross_entropy_loss": _SMALL_LOSS, "aten::copy_": _SMALL},
        ),
    )

    def check(self, view: View) -> Iterator[Finding]:
        """Group the casts by place and shape, with those of their gradients."""
        casts = view.copies.filter(
            pl.col("part") == "loss",
            pl.col("origin").is_null(),
            pl.col("src") != FLOAT32,
            pl.col("dst") == FLOAT32,
            pl.col("dims").list.last() >= self.min_vocabulary,
        )
        if not casts.height:
            return
        groups = (
            casts.group_by(*same_place(), "dims", "src", "own")
            .agg(
                "request",
                pl.col("caller").first(),
                text("module").unique(maintain_order=True),
                pl.col("numel").first(),
            )
            .sort(*_PLACE, "numel")
        )
        softmax = _softmax(view)
        for row in groups.iter_rows(named=True):
            yield self._finding(view, row, softmax)

    def _finding(self, view: View, row: Row, softmax: pl.DataFrame) -> Finding:
        requests, vocabulary = row["request"], row["dims"][-1]
        casts = view.copies.filter(
            pl.coalesce("origin", "request").is_in(requests), pl.col("part") == "loss"
        )
        wide = softmax.filter(pl.col("width") == vocabulary)
        half, count = dtype_name(row["src"]), SIZES[FLOAT32] * row["numel"]
        what, advice = subject_and_advice(row, half)
        return self.finding(
            f"{what} {shape(row['dims'])} are cast from {half} to float32 for the loss",
            subject=row["caller"] or "logits",
            place=view.place_of_group(row),
            count=len(requests) / view.steps,
            fix=[
                Fix(kernels=casts["id"], ops=casts["host"].drop_nulls()),
                Fix(
                    kernels=wide["id"], kernel_share=assumptions.FLOAT32_SOFTMAX_SAVING
                ),
            ],
            evidence=[
                Evidence("cast by", row["caller"] or "the program"),
                Evidence("tokens", value=row["numel"] // vocabulary),
                Evidence("vocab", value=vocabulary),
                Evidence("size", value=count, unit="bytes", note="in float32"),
                _time_line("casts", casts, view.steps, "a step, forward and backward"),
                *(
                    [_time_line("softmax", wide, view.steps, "a step in float32")]
                    if wide.height
                    else []
                ),
                *kernel_lines(view, casts["id"]),
                *module_line(row["module"]),
            ],
            data={"dims": row["dims"], "bytes": count, "from": half},
            advice=_INSIDE if _beside_compiled(view) else advice,
            ops=requests,
        )


def _beside_compiled(view: View) -> bool:
    """Return whether the loss runs eager ops in a step that runs compiled code."""
    return view.compiled


def _time_line(label: str, kernels: pl.DataFrame, steps: int, note: str) -> Evidence:
    time = int(kernels["dur"].sum()) / steps
    return Evidence(label, value=time, unit="ns", note=note)


def _softmax(view: View) -> pl.DataFrame:
    """Return the kernels of softmaxes in float32, with the ``width`` of their input."""
    ops = view.trace.ops
    softmaxes = ops[["inputs", "id"]][rows_where(view.ops_named(_SOFTMAX))]
    in_float32 = (
        view.with_inputs(softmaxes)
        .select(
            op="id",
            type=pl.col("types").list.first(),
            width=pl.col("dims").list.first().list.last(),
        )
        .filter(pl.col("type") == FLOAT32)
    )
    return view.kernels[["id", "op", "dur"]].join(in_float32, on="op")
