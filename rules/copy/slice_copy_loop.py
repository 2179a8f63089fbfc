"""CPY004: a tensor is filled or read slice by slice."""

from __future__ import annotations

from math import prod
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
    counted,
    dataclass,
    inputs,
    kernel_lines,
    module_line,
    option,
    roofline_ns,
    same_place,
    shape,
    text,
)

from ._slices import (
    backward_of_slices,
    slice_gradients,
    slice_writes,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

    from traceq.linter import Finding

_PLACE = ("file", "line", "function")
# Where a slice begins, of its position.
_BEGIN = r"^([^:]*)"

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
    """A tensor is filled or read slice by slice, with a kernel for each slice.

    ## What it does

    Looks for ``out[:, i] = x`` and ``out[i, :n] = x``: an ``aten::copy_`` of the
    program right after a ``select`` or ``slice``, at many positions of tensors of one
    shape, in the same function and step. Slices may differ in length, and so may the
    tensor in another step. Writing the same position of many tensors, as in a KV cache,
    is not a loop over slices. Also looks for the reverse: ``tensor[i]`` in a loop,
    where the backward of each slice (``SelectBackward0``, ``SliceBackward0``) fills a
    gradient of the whole tensor, and all of these are added up. Slices that an operator
    cuts or fills itself, as that of ``pad_packed_sequence``, are not looked at.

    ## Why is this bad?

    Each slice launches its own small copy. Training makes it worse: the backward pass
    copies the gradient of the whole tensor once for each slice.

    ## How to fix it

    Collect the slices in a list and join them once: ``torch.stack(slices, dim=1)``, or
    ``pad_sequence(slices)`` if they differ in length.
    Better still, compute all of them at once. If slices are read, cut them all before
    the loop with ``slices = tensor.unbind(0)``: its backward joins the gradients once.

    ```diff
    - for step, x in enumerate(inputs):
    -     outputs[:, step] = cell(x)
    + outputs = torch.stack([cell(x) for x in inputs], dim=1)
    ```

    ## When it is wrong

    If each iteration needs the result of the one before, as in decoding, the slices
    cannot be computed at once; they can still be joined at the end. The estimate leaves
    one copy of the whole tensor.

    ## Measured

    On an H200, in ms a step. One index instead of a copy for each sequence:
    ``slices_copied`` 20.2 → 6.1.
    """

    code = "CPY004"
    several_fixes = True
    since = "0.1.0"
    see = ("torch.stack", "torch.cat", "torch.nn.utils.rnn.pad_sequence")
    needs = frozenset({Need.GPU, Need.SHAPES, Need.STEPS})

    min_slices: int = option(4, "Fewer slices of one tensor are not reported.")

    seen = Seen(
        of="fixtures/twins/moe_dropless_fixed",
        text="""
        CPY004 slice-copy-loop  saves 417 µs/step (1%)
          the gradient of a [1280,512] tensor is materialised in full for each of 17
            slices along dimension 0
          in        _padded (fixtures/programs/moe_dropless.py:42)
                    > 42 |     def _padded(self, expert: Expert, rows: torch.Tensor…
                      43 |         # A few sizes come back in every step; of all si…
                      44 |         count = rows.shape[0]
          backward  104 µs a step
          tensors   0.941 a step
          kernel    Memcpy DtoD (Device -> Device) ×16
          kernel    vectorized_elementwise_kernel<FillFunctor> ×16
          modules   Sequential_0/Experts_3 and 3 more
          fix       cut all slices at once, slices = tensor.split(sizes, dim=0), so
                    that the backward joins their gradients once; or compute all of
                    them at once
        """,
    )

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

    def _loops(self, slices: pl.DataFrame, **more: pl.Expr) -> Iterator[dict[str, Any]]:
        """Yield slices by place and tensor, where they have enough positions.

        A tensor that has another size in every step is the same tensor: the first one,
        the second one and so on that a step cuts at this place.
        """
        places = same_place()
        count = pl.col("at").n_unique().over(*places, "whole", "along", "step")
        first = pl.col("ts").min().over(*places, "whole", "along", "step")
        yield from (
            slices.with_columns(slices=count, first=first)
            .filter(pl.col("slices") >= self.min_slices, pl.col("whole").is_not_null())
            .with_columns(
                tensor=pl.col("first").rank("dense").over(*places, "along", "step")
            )
            .group_by(*places, "tensor", "along")
            .agg(
                "id",
                pl.col("whole").first(),
                pl.col("whole").unique().alias("wholes"),
                text("module").unique(maintain_order=True),
                pl.col("slices").max(),
                **more,
            )
            .with_columns(sharing=pl.len().over("whole"))
            .sort(*_PLACE, "whole", "along")
            .iter_rows(named=True)
        )

    def _written(self, view: View) -> Iterator[Finding]:
        writes = slice_writes(view.trace, view.ops)
        if not writes.height:
            return
        loops = self._loops(
            writes,
            spans=pl.struct("start", "end"),
            lengths=pl.col("written").n_unique(),
            begins=pl.col("at").str.extract(_BEGIN).n_unique(),
        )
        back = None
        for row in loops:
            if back is None:
                back = backward_of_slices(view.trace, view.kernels)
            forward = view.kernels.filter(pl.col("op").is_in(row["id"]))
            backward = back.filter(pl.col("whole").is_in(row["wholes"])).drop("whole")
            # Autograd does not record whose backward it is if several have this shape.
            part = 1 / row["sharing"]
            spent = int(forward["dur"].sum()) + int(backward["dur"].sum()) * part
            saved = _saved_share(view, row, spent)
            yield self._finding(
                view,
                row,
                message=_filled(row, len(row["id"]) / view.steps)
                + ("" if forward.height else " on the CPU"),
                subject=f"slices along {row['along']}",
                fix=[
                    Fix(
                        kernels=forward["id"],
                        kernel_share=saved,
                        spans=pl.DataFrame(row["spans"]),
                        host_share=1 - 1 / row["slices"],
                    ),
                    Fix(
                        kernels=backward["id"],
                        kernel_share=saved * part,
                        ops=view.outermost_ops.gather(backward["op"])
                        .drop_nulls()
                        .unique(),
                        host_share=part * (1 - 1 / row["slices"]),
                    ),
                ],
                evidence=[
                    _time(view, "forward", forward),
                    _time(view, "backward", backward, part),
                ]
                if forward.height
                else [],
                advice=_join_at_once(row),
            )

    def _read(self, view: View) -> Iterator[Finding]:
        gradients = slice_gradients(view.trace, view.ops)
        if not gradients.height:
            return
        loops = list(self._loops(gradients, cut=pl.col("cut").unique()))
        if not loops:
            return
        nodes = [node for row in loops for node in row["id"]]
        within = view.roots(pl.col("id").is_in(nodes))[view.kernels["op"]]
        for row in loops:
            mine = view.kernels.filter(within.is_in(row["id"]))
            tensors = len(row["id"]) / row["slices"] / view.steps
            yield self._finding(
                view,
                row,
                message=f"the gradient of a {shape(row['whole'])} tensor is"
                " materialised in full for each of"
                f" {counted(row['slices'], 'slice')} along dimension {row['along']}",
                subject=f"gradients along {row['along']}",
                fix=[
                    Fix(
                        kernels=mine["id"],
                        kernel_share=_saved_share(view, row, int(mine["dur"].sum())),
                        ops=row["id"],
                        host_share=1 - 1 / row["slices"],
                    )
                ],
                evidence=[
                    _time(view, "backward", mine),
                    Evidence("tensors", value=tensors, note="a step"),
                ],
                advice=_cut_at_once(row),
            )

    def _finding(  # noqa: PLR0913 - what differs between slices written and read
        self,
        view: View,
        row: Mapping[str, Any],
        *,
        message: str,
        subject: str,
        fix: Sequence[Fix],
        evidence: Sequence[Evidence],
        advice: str,
    ) -> Finding:
        kernels = [kernel for one in fix for kernel in one.kernels]
        return self.finding(
            message,
            subject=subject,
            place=view.place_of_group(row),
            count=len(row["id"]) / view.steps,
            fix=fix,
            evidence=[
                *evidence,
                *kernel_lines(view, kernels),
                *module_line(row["module"]),
            ],
            data={"dims": row["whole"], "slices": row["slices"]},
            advice=advice,
        )


def _time(view: View, label: str, kernels: pl.DataFrame, part: float = 1.0) -> Evidence:
    spent = int(kernels["dur"].sum()) * part / view.steps
    return Evidence(label, value=spent, unit="ns", note="a step")


def _saved_share(view: View, row: Mapping[str, Any], spent: float) -> float:
    """Return the share of the time that the fix removes: one copy of each remains."""
    tensors = len(row["id"]) / row["slices"]
    moved = 2 * SIZES[FLOAT32] * prod(row["whole"])
    one = roofline_ns(view.gpu, assumptions.COPY_EFFICIENCY, moved=moved)
    return view.saved_share(spent, (one or 0.0) * tensors)


def _filled(row: Mapping[str, Any], writes: float) -> str:
    if row["begins"] == 1:
        # They all begin at one position, so that each is of another tensor.
        return (
            f"{counted(writes, 'tensor')} {shape(row['whole'])} a step are filled one"
            f" by one, to different lengths along dimension {row['along']}"
        )
    slices = counted(row["slices"], "slice")
    return (
        f"a {shape(row['whole'])} tensor is filled in {slices} along dimension"
        f" {row['along']}"
    )


def _join_at_once(row: Mapping[str, Any]) -> str:
    if row["lengths"] > 1:
        return (
            "collect the slices in a list and join them after the loop:"
            " torch.nn.utils.rnn.pad_sequence(slices, batch_first=True) where they are"
            f" padded, torch.cat(slices, dim={row['along']}) where they follow each"
            " other; or compute all of them at once"
        )
    return (
        "collect the slices in a list and join them after the loop:"
        f" torch.stack(slices, dim={row['along']}); or compute all of them at once"
    )


def _cut_at_once(row: Mapping[str, Any]) -> str:
    along = row["along"]
    cut = f"tensor.unbind({along})"
    if any("slice" in name for name in row["cut"]):
        cut = f"tensor.split(sizes, dim={along})"
    return (
        f"cut all slices at once, slices = {cut}, so that the backward joins their"
        " gradients once; or compute all of them at once"
    )
