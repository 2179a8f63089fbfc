"""CPY005: a copy is undone at once, or a clone is never written to."""

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
    inputs,
    kernel_lines,
    module_line,
    often,
    rewritten,
    same_place,
    tensor,
    text,
)

from ._needless import layout_round_trips
from ._unwritten_clones import unwritten_clones

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from traceq.linter import Finding

_PLACE = ("file", "line", "function")
_COLUMNS = (
    *(*_PLACE, "via", "module"),
    *("how", "request", "back", "dims", "dst", "asked"),
)
_UNDONE_ADVICE = "drop both copies in {function}: the tensor had this layout before"
_CLONE_ADVICE = (
    "drop .clone() in {function}, unless the clone is written to elsewhere or kept"
    " across steps"
)
_CLONED = inputs(
    [[8, 64], [8, 64], []], ["float", "float", "Scalar"], [[64, 1], [64, 1], []]
)


@dataclass(frozen=True)
class NeedlessCopy(Rule):
    """A tensor is copied needlessly: the copy is undone, or never written to.

    ## What it does

    Looks for two patterns within a function of the program. One is ``contiguous`` (or
    ``reshape``, ``clone``) into another layout that the next kernel copies back, by the
    shapes and strides of both. The other is ``clone`` into the same layout in a
    function that writes nothing in place. A clone of a detached tensor is left out: it
    is meant to be kept.

    ## Why is this bad?

    The tensor is read and written once more and takes twice the memory, for the same
    values.

    ## How to fix it

    Drop both copies, or the clone. Ops accept strided tensors; ``contiguous`` is needed
    only where a view or a kernel requires it.

    ```diff
    - y = norm(x.transpose(1, 2).contiguous()).transpose(1, 2).contiguous()
    - z = y.clone() + 1
    + y = norm(x.transpose(1, 2)).transpose(1, 2)
    + z = y + 1
    ```

    ## When it is wrong

    The clone may be written to in another function, or kept across steps, as the
    output of a CUDA graph must be.
    """

    code = "CPY005"
    effort = "edit"
    several_fixes = True
    since = "0.1.0"
    see = ("torch.Tensor.contiguous",)
    needs = frozenset({Need.GPU, Need.SHAPES, Need.VALUES, Need.LINES})
    without_gpu = True

    seen = Seen(
        of="fixtures/copies",
        text="""
        CPY005 needless-copy  saves 618 µs/step (5%), 521 µs to 943 µs
          contiguous() copies a float32 [512,16,2048] into another layout 6 times a
            step, and the next kernel copies it back
          in      forward (dev_cases.py:137)
          copies  12 a step
          kernel  elementwise_kernel<direct_copy_kernel_cuda> ×12
          module  Copier_0
          fix     drop both copies in forward: the tensor had this layout before
        """,
    )

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
        """Group undone copies and clones by place, dtype and shape."""
        undone = layout_round_trips(view.copies, view.kernels)
        undone = undone.with_columns(how=pl.lit("undone"))
        clones = unwritten_clones(view.trace, view.copies).with_columns(
            how=pl.lit("clone"), back=pl.lit(None, undone.schema["back"])
        )
        copies = pl.concat([frame.select(_COLUMNS) for frame in (undone, clones)])
        if not copies.height:
            return
        groups = (
            copies.group_by(*same_place(), "how", "dst", "dims", "asked")
            .agg(
                "request",
                pl.col("back").drop_nulls(),
                text("module").unique(maintain_order=True),
            )
            .sort(*_PLACE, "how", "asked")
        )
        for row in groups.iter_rows(named=True):
            yield self._finding(view, row)

    def _finding(self, view: View, row: Mapping[str, Any]) -> Finding:
        requests = [*row["request"], *row["back"]]
        rows = view.copies.filter(pl.col("request").is_in(requests))
        count = len(row["request"]) / view.steps
        undone = row["how"] == "undone"
        return self.finding(
            (_undone if undone else _cloned)(row, often(count)),
            subject=f"{row['how']} {row['asked']}",
            place=view.place_of_group(row),
            count=count,
            fix=Fix(kernels=rows["id"], ops=requests),
            evidence=[
                Evidence("copies", value=rows.height / view.steps, note="a step"),
                *kernel_lines(view, rows["id"]),
                *module_line(row["module"]),
            ],
            data={"dims": row["dims"], "op": row["asked"], "how": row["how"]},
            advice=(_UNDONE_ADVICE if undone else _CLONE_ADVICE).format(
                function=rewritten({**row}) or "the program"
            ),
        )


def _undone(row: Mapping[str, Any], how_often: str) -> str:
    op = row["asked"].removeprefix("aten::")
    return (
        f"{op}() copies {tensor(row['dst'], row['dims'])} into another layout"
        f" {how_often}, and the next kernel copies it back"
    )


def _cloned(row: Mapping[str, Any], how_often: str) -> str:
    return (
        f"{tensor(row['dst'], row['dims'])} is cloned {how_often}, and nothing in"
        f" {row['function']} writes to the clone"
    )
