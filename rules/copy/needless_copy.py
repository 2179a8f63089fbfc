"""CPY005: a copy is made that is undone at once, or that nobody writes to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base.ownership import same_place
from traceq.analysis.patterns.copies_needless import (
    layout_round_trips,
    unwritten_clones,
)
from traceq.lint import Bad, Good, Need, Rule, View, inputs
from traceq.lint.evidence import dtype, kernel_lines, module_line
from traceq.words import counted, shape, times

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.lint import Finding

_CLONED = inputs(
    [[8, 64], [8, 64], []], ["float", "float", "Scalar"], [[64, 1], [64, 1], []]
)


@dataclass(frozen=True)
class NeedlessCopy(Rule):
    """A tensor is copied for nothing: the copy is undone, or nobody writes to it.

    ## What it does

    Looks for two things that a function of the program does. ``contiguous`` (or
    ``reshape``, ``clone``) into another layout, which the next kernel copies back:
    shapes and strides of both are compared. And ``clone`` into the same layout where no
    op of the function writes in place; a clone of a detached tensor is left out, since
    it is meant to be kept.

    ## Why is this bad?

    The tensor is read and written once more, takes twice the memory, and has the values
    it had before.

    ## How to fix it

    Drop both copies, or the clone. Ops take strided tensors; ``contiguous`` is needed
    where a view or a kernel asks for it.

    ## When it is wrong

    A clone may be written to in another function, or be kept across steps, as the
    result of a CUDA graph must be.
    """

    code = "CPY005"
    needs = frozenset({Need.GPU, Need.SHAPES, Need.STACKS})

    examples = (
        Bad(
            """
            host  [ProfilerStep#1                                                 ]
            host   [model.py(7): forward                                         ]
            host    [aten::relu           ] [aten::clone          ]
            host                             [aten::copy_        ]
            host     [cudaLaunchKernel>1]     [cudaMemcpyAsync>2]
            gpu 7                [relu<1] [Memcpy DtoD (Device -> Device)<2]
            """,
            finds=(
                "a float32 [8,64] is cloned once a step, and nothing in forward writes"
                " to the clone",
            ),
            args={"aten::copy_": _CLONED},
        ),
        Good(
            """
            host  [ProfilerStep#1                                                 ]
            host   [model.py(7): forward                                         ]
            host    [aten::relu           ] [aten::clone          ] [aten::add_ ]
            host                             [aten::copy_        ]
            host     [cudaLaunchKernel>1]     [cudaMemcpyAsync>2]
            gpu 7                [relu<1] [Memcpy DtoD (Device -> Device)<2]
            """,
            args={"aten::copy_": _CLONED},
        ),
    )

    def check(self, view: View) -> Iterator[Finding]:
        """Group undone copies and clones by place, type and shape."""
        undone = layout_round_trips(view.copies).with_columns(how=pl.lit("undone"))
        clones = unwritten_clones(view.trace, view.copies).with_columns(
            how=pl.lit("clone"), back=pl.lit(None, undone.schema["back"])
        )
        columns = ["how", "request", "back", "dims", "dst", "asked", "module"]
        places = ["file", "line", "function"]
        found = pl.concat(
            [frame.select(*places, *columns) for frame in (undone, clones)]
        )
        groups = (
            found.group_by(*same_place(), "how", "dst", "dims", "asked")
            .agg(
                "request",
                pl.col("back").drop_nulls(),
                pl.col("module").cast(pl.String).unique(maintain_order=True),
            )
            .sort(*places, "how", "asked")
        )
        for row in groups.iter_rows(named=True):
            requests = [*row["request"], *row["back"]]
            mine = view.copies.filter(pl.col("request").is_in(requests))
            message, advice = _words(
                row["how"],
                f"a {dtype(row['dst'])} {shape(row['dims'])}",
                row["asked"].removeprefix("aten::"),
                row["function"],
                times(len(row["request"]) / view.steps),
            )
            yield self.finding(
                message,
                subject=f"{row['how']} {row['asked']}",
                place=view.place_of_group(row),
                count=len(row["request"]) / view.steps,
                gpu_ns=int(mine["dur"].sum()) / view.steps,
                host_ns=int(view.trace.ops["dur"].gather(requests).sum()) / view.steps,
                evidence=[
                    ("copies", f"{counted(mine.height / view.steps, 'kernel')} a step"),
                    *kernel_lines(view, mine["id"].to_list()),
                    *module_line(row["module"]),
                ],
                data={"dims": row["dims"], "op": row["asked"], "how": row["how"]},
                advice=advice,
                ops=requests,
                kernels=mine["id"],
            )


def _words(
    how: str, what: str, asked: str, function: str, often: str
) -> tuple[str, str]:
    """Return the sentence and the advice."""
    if how == "undone":
        return (
            f"{asked}() copies {what} into another layout {often} a step, and the next"
            " kernel copies it back",
            f"drop both copies in {function}: the tensor had this layout before",
        )
    return (
        f"{what} is cloned {often} a step, and nothing in {function} writes to the"
        " clone",
        f"drop .clone() in {function}, unless the clone is written to elsewhere or kept"
        " across steps",
    )
