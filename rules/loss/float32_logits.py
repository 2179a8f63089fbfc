"""LOS001: logits are copied to float32 for the loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base.ownership import same_place
from traceq.lint import Bad, Good, Need, Rule, View, inputs, option
from traceq.lint.evidence import dtype, kernel_lines, module_line
from traceq.words import shape, size, time

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from traceq.lint import Finding

_PLACE = ("file", "line", "function")
_BYTES = 4
_SOFTMAX = r"^aten::_log_softmax(_backward_data)?(\.\w+)?$"
# In 16 bits the softmax would move half the bytes.
_SAVED_OF_SOFTMAX = 0.5
_FUSED = (
    "use a loss that never has all logits at once: F.linear_cross_entropy (torch 2.13),"
    " Liger's fused linear cross entropy, or torch.compile around head and loss"
)
_OUTSIDE = 'call the loss inside torch.autocast("cuda", enabled=False): '
_OF_RESULT = (
    f"{_OUTSIDE}autocast casts log-probabilities that were computed in {{half}}, which"
    " makes them no better; or "
)
_OF_INPUT = (
    "cross_entropy sums in 32 bits inside, only the log-probabilities it returns are"
    " rounded to {half}; to keep 32 bits throughout, "
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

    Looks for casts from 16 to 32 bits of what goes into a cross entropy, by the program
    (``logits.float()``) or by autocast inside the loss, where the vocabulary is at
    least ``min-vocabulary``. The casts of the gradients belong to it, and half of the
    time of the softmax, where that reads and writes 32 bits.

    ## Why is this bad?

    tokens × vocabulary × 4 bytes, often the largest tensor of all, are written and read
    again, kept for the backward pass, and returned as a gradient of the same size.

    ## How to fix it

    ``F.cross_entropy`` takes bfloat16 and computes in 32 bits inside. To keep 32 bits
    and save the memory too: a fused or chunked linear cross entropy.

    ## When it is wrong

    Losses of long sequences in bfloat16 have 8 bits of mantissa for each token; a
    fused loss keeps 32. Look at the loss curve.
    """

    code = "LOS001"
    needs = frozenset({Need.GPU, Need.SHAPES})

    min_vocabulary: int = option(8192, "Smaller vocabularies are not looked at.")

    examples = (
        Bad(
            _DRAWN,
            finds=(
                "logits [4096,32000] are cast from bfloat16 to float32 for the loss,"
                " 500 MiB",
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
            pl.col("src") != "float",
            pl.col("dst") == "float",
            pl.col("dims").list.last() >= self.min_vocabulary,
        )
        groups = (
            casts.group_by(*same_place(), "dims", "src", "own")
            .agg(
                "request",
                pl.col("caller").first(),
                pl.col("module").cast(pl.String).unique(maintain_order=True),
                pl.col("numel").first(),
            )
            .sort(*_PLACE, "numel")
        )
        softmax = _softmax(view)
        for row in groups.iter_rows(named=True):
            yield self._finding(view, row, softmax)

    def _finding(
        self, view: View, row: dict[str, Any], softmax: pl.DataFrame
    ) -> Finding:
        requests = row["request"]
        mine = view.copies.filter(
            pl.coalesce("origin", "request").is_in(requests), pl.col("part") == "loss"
        )
        wide = softmax.filter(pl.col("width") == row["dims"][-1])
        spent, also = int(mine["dur"].sum()), int(wide["dur"].sum())
        half = dtype(row["src"])
        what, advice = _words(row)
        return self.finding(
            f"{what} {shape(row['dims'])} are cast from {half} to float32 for the loss,"
            f" {size(_BYTES * row['numel'])}",
            subject=row["caller"] or "logits",
            place=view.place_of_group(row),
            count=len(requests) / view.steps,
            gpu_ns=(spent + _SAVED_OF_SOFTMAX * also) / view.steps,
            evidence=[
                ("cast by", row["caller"] or "the program"),
                ("tokens", f"{row['numel'] // row['dims'][-1]:,}"),
                ("vocab", f"{row['dims'][-1]:,}"),
                ("casts", f"{time(spent / view.steps)} a step, forward and backward"),
                (
                    "softmax",
                    f"{time(also / view.steps)} a step in float32" if also else "",
                ),
                *kernel_lines(view, mine["id"].to_list()),
                *module_line(row["module"]),
            ],
            data={"dims": row["dims"], "bytes": _BYTES * row["numel"], "from": half},
            advice=advice.format(half=half) + _FUSED,
            ops=requests,
            kernels=[*mine["id"], *wide["id"]],
        )


def _words(row: dict[str, Any]) -> tuple[str, str]:
    """Return what is cast, and what to do about it."""
    if row["own"]:
        cast = f"drop the cast in {row['function'] or 'the program'}: "
        return "logits", cast + _OF_INPUT
    if "nll_loss" in row["caller"]:
        return "log-probabilities", _OF_RESULT
    return "logits", _OUTSIDE + _OF_INPUT


def _softmax(view: View) -> pl.DataFrame:
    """Return the kernels of softmaxes in float32, with the ``width`` of their input."""
    ops = view.trace.ops.filter(pl.col("name").cast(pl.String).str.contains(_SOFTMAX))
    known = view.with_inputs(ops.select("inputs", op="id")).select(
        "op",
        type=pl.col("types").list.first(),
        width=pl.col("dims").list.first().list.last(),
    )
    return view.kernels.join(known, on="op").filter(pl.col("type") == "float")
