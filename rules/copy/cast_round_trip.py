"""CPY002: a tensor is cast to 32 bits and back again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base.ownership import same_place
from traceq.analysis.patterns.copies_needless import cast_round_trips
from traceq.lint import Bad, Good, Need, Rule, View, inputs
from traceq.lint.evidence import dtype, kernel_lines, module_line
from traceq.words import shape, time, times

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.lint import Finding

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
    """A tensor is cast to 32 bits and back, and little is done with it in between.

    ## What it does

    Looks for casts from 16 to 32 bits that the program asks for (``.float()``,
    ``.to(torch.float32)``), where the next cast of as many elements in the same
    function goes back, be it the program's own or one of autocast. Their backward
    casts belong to them. Functions that sum, exponentiate or normalise as many
    elements in 32 bits have a reason for it, and are left out.

    ## Why is this bad?

    Each cast reads and writes the whole tensor, forward and backward, and all that
    runs between the two moves twice the bytes. An elementwise op in bfloat16 computes
    in 32 bits inside anyway.

    ## How to fix it

    Drop the cast to 32 bits, or move it to where a sum needs it. Under autocast
    no cast by hand is needed at all.

    ## When it is wrong

    The result of the first cast may also go somewhere else, as into a residual that is
    kept in 32 bits on purpose.
    """

    code = "CPY002"
    needs = frozenset({Need.GPU, Need.SHAPES, Need.STACKS})

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
        """Group the round trips by place, type and shape."""
        trips = cast_round_trips(view.trace, view.copies)
        groups = (
            trips.group_by(*same_place(), "src", "dst", "dims")
            .agg(
                "request",
                "back",
                pl.col("back_caller").first(),
                pl.col("module").cast(pl.String).unique(maintain_order=True),
            )
            .sort("file", "line", "function", "src")
        )
        requests = pl.coalesce("origin", "request")
        for row in groups.iter_rows(named=True):
            casts = [*row["request"], *row["back"]]
            mine = view.copies.filter(pl.col("cast"), requests.is_in(casts))
            count = len(row["request"]) / view.steps
            spent = mine.group_by(pl.col("phase") == "backward").agg(
                pl.col("dur").sum()
            )
            both = dict(spent.rows())
            low, high = dtype(row["src"]), dtype(row["dst"])
            undone = row["back_caller"]
            yield self.finding(
                f"{shape(row['dims'])} is cast from {low} to {high} and back again"
                f" {times(count)} a step",
                subject=f"{low} {high}",
                place=view.place_of_group(row),
                count=count,
                gpu_ns=int(mine["dur"].sum()) / view.steps,
                host_ns=int(view.trace.ops["dur"].gather(casts).sum()) / view.steps,
                evidence=[
                    (
                        "back",
                        f"autocast in {undone}" if undone else "the program's own",
                    ),
                    ("forward", f"{time(both.get(False, 0) / view.steps)} a step"),
                    ("backward", f"{time(both.get(True, 0) / view.steps)} a step"),
                    *kernel_lines(view, mine["id"].to_list()),
                    *module_line(row["module"]),
                ],
                data={"dims": row["dims"], "from": low, "to": high},
                advice=f"drop the cast to {high} in {row['function']}"
                + (f": autocast casts back to {low} for {undone}" if undone else "")
                + f"; elementwise ops on {low} compute in 32 bits inside",
                ops=casts,
                kernels=mine["id"],
            )
