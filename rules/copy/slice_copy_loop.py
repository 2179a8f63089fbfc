"""CPY004: a tensor is filled slice by slice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base.assumptions import COPY_EFFICIENCY
from traceq.analysis.base.device import used_gpu
from traceq.analysis.base.ownership import same_place
from traceq.analysis.base.roofline import roofline_ns
from traceq.analysis.patterns.copies_by_slice import (
    backward_of_slices,
    slice_gradients,
    slice_writes,
)
from traceq.lint import Bad, Good, Need, Rule, View, inputs, option
from traceq.lint.evidence import kernel_lines, module_line
from traceq.words import counted, shape, time

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from traceq.lint import Finding

_PLACE = ("file", "line", "function")
_BYTES = 4

_LOOP = """
    host  [ProfilerStep#1                                                                                                                ]
    host   [aten::select.0]               [aten::select.1]               [aten::select.2]               [aten::select.3]
    host                   [aten::copy_ ]                 [aten::copy_ ]                 [aten::copy_ ]                 [aten::copy_ ]
    host                    [cuLaunch>1]                  [cuLaunch>2]                  [cuLaunch>3]                  [cuLaunch>4]
    gpu 7                     [kernel<1]                     [kernel<2]                     [kernel<3]                     [kernel<4]
"""  # noqa: E501 - as wide as a loop is long


def _select(at: int) -> dict[str, Any]:
    types = ["float", "Scalar", "Scalar"]
    return inputs([[8, 4, 64], [], []], types, values=["", "1", str(at)])


_SLICE = inputs([[8, 64], [8, 64], []], ["float", "float", "Scalar"])


@dataclass(frozen=True)
class SliceCopyLoop(Rule):
    """A tensor is filled slice by slice, with a kernel for each slice.

    ## What it does

    Looks for ``out[:, i] = x``: an ``aten::copy_`` of the program right after a
    ``select`` or ``slice``, at many positions of a tensor of the same shape, in the
    same function and step. The same position in many tensors, as in a key-value cache,
    is no loop. And the other way around: ``tensor[i]`` in a loop, whose backward
    (``SelectBackward0``, ``SliceBackward0``) fills a gradient as large as the whole
    tensor for each slice, and adds them all up.

    ## Why is this bad?

    Each slice is a launch of its own for a small copy. In training it is worse: the
    backward pass copies the gradient of the whole tensor for each slice written.

    ## How to fix it

    Collect the slices in a list and join them once: ``torch.stack(slices, dim=1)``.
    Better, compute all of them in one go. Where slices are read, cut them all at once
    before the loop, ``slices = tensor.unbind(0)``: its backward joins the gradients
    once.

    ## When it is wrong

    A loop whose step needs the result of the last one, as in decoding, cannot compute
    all slices at once; it can still join them at the end. The estimate leaves one copy
    of the whole tensor.
    """

    code = "CPY004"
    needs = frozenset({Need.GPU, Need.SHAPES, Need.STEPS})

    min_slices: int = option(4, "Fewer slices of one tensor are no loop.")

    examples = (
        Bad(
            _LOOP,
            finds=("a [8,4,64] tensor is filled in 4 slices along dimension 1",),
            args={"aten::copy_": _SLICE}
            | {f"aten::select.{at}": _select(at) for at in range(4)},
        ),
        Good(
            _LOOP,
            args={"aten::copy_": _SLICE}
            | {f"aten::select.{at}": _select(0) for at in range(4)},
        ),
    )

    def check(self, view: View) -> Iterator[Finding]:
        """Look for slices that are written, and for gradients of slices read."""
        yield from self._written(view)
        yield from self._read(view)

    def _loops(self, slices: pl.DataFrame) -> pl.DataFrame:
        """Group slices by place and shapes, and count their positions."""
        places = same_place()
        count = pl.col("at").n_unique().over(*places, "whole", "along", "step")
        return (
            slices.with_columns(slices=count)
            .filter(pl.col("slices") >= self.min_slices, pl.col("whole").is_not_null())
            .group_by(*places, "whole", "along")
            .agg(
                "id",
                "cut",
                pl.col("module").cast(pl.String).unique(maintain_order=True),
                pl.col("slices").max(),
                host=pl.col("dur").sum(),
            )
            .with_columns(sharing=pl.len().over("whole"))
            .sort(*_PLACE, "whole", "along")
        )

    def _written(self, view: View) -> Iterator[Finding]:
        groups = self._loops(slice_writes(view.trace, view.ops))
        back = backward_of_slices(view.trace, view.kernels)
        for row in groups.iter_rows(named=True):
            forward = view.kernels.filter(pl.col("op").is_in(row["id"]))
            undone = back.filter(pl.col("whole") == row["whole"]).drop("whole")
            # Autograd does not say whose backward it is if several have this shape.
            backward = int(undone["dur"].sum()) / row["sharing"] / view.steps
            mine = pl.concat([forward, undone])
            spent = int(forward["dur"].sum()) / view.steps + backward
            cuts = int(view.trace.ops["dur"].gather(row["cut"]).sum())
            loops = len(row["id"]) / row["slices"] / view.steps
            left = _one_copy(view, row["whole"]) * loops
            yield self.finding(
                f"a {shape(row['whole'])} tensor is filled in"
                f" {counted(row['slices'], 'slice')} along dimension {row['along']}",
                subject=f"slices along {row['along']}",
                place=view.place_of_group(row),
                count=len(row["id"]) / view.steps,
                gpu_ns=max(0.0, spent - left),
                host_ns=(row["host"] + cuts) * (1 - 1 / row["slices"]) / view.steps,
                evidence=[
                    ("forward", time(spent - backward)),
                    ("backward", time(backward)),
                    *kernel_lines(view, mine["id"].to_list()),
                    *module_line(row["module"]),
                ],
                data={"dims": row["whole"], "slices": row["slices"]},
                advice="collect the slices in a list and join them after the loop:"
                f" torch.stack(slices, dim={row['along']}); or compute all of them at"
                " once",
                ops=row["id"],
                kernels=mine["id"],
            )

    def _read(self, view: View) -> Iterator[Finding]:
        groups = self._loops(slice_gradients(view.trace, view.ops))
        nodes = groups["id"].explode()
        made = view.kernels_under(pl.col("id").is_in(nodes.implode()))
        for row in groups.iter_rows(named=True):
            mine = made.filter(pl.col("root").is_in(row["id"]))
            spent = int(mine["dur"].sum()) / view.steps
            tensors = len(row["id"]) / row["slices"] / view.steps
            left = _one_copy(view, row["whole"]) * tensors
            yield self.finding(
                f"the gradient of a {shape(row['whole'])} tensor is made anew, as a"
                f" whole, for each of {counted(row['slices'], 'slice')} along dimension"
                f" {row['along']}",
                subject=f"gradients along {row['along']}",
                place=view.place_of_group(row),
                count=len(row["id"]) / view.steps,
                gpu_ns=max(0.0, spent - left),
                host_ns=row["host"] * (1 - 1 / row["slices"]) / view.steps,
                evidence=[
                    ("backward", time(spent)),
                    ("tensors", f"{tensors:,.3g} a step"),
                    *kernel_lines(view, mine["id"].to_list()),
                    *module_line(row["module"]),
                ],
                data={"dims": row["whole"], "slices": row["slices"]},
                advice=_cut_at_once(row),
                ops=row["id"],
                kernels=mine["id"],
            )


def _cut_at_once(row: dict[str, Any]) -> str:
    along = row["along"]
    cut = f"tensor.unbind({along})"
    if any("slice" in name for name in row["cut"]):
        cut = f"tensor.split(sizes, dim={along})"
    return (
        f"cut all slices at once, slices = {cut}: its backward joins"
        " their gradients once; or compute all of them at once"
    )


def _one_copy(view: View, dims: list[int]) -> float:
    """Return the nanoseconds in which the whole tensor is read and written once."""
    moved = 2.0 * _BYTES
    for extent in dims:
        moved *= extent
    return roofline_ns(used_gpu(view.trace), COPY_EFFICIENCY, moved=moved) or 0.0
