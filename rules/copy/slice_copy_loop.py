"""CPY004: a tensor is filled or read slice by slice."""

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
    counted,
    dataclass,
    experts_switch,
    inputs,
    kernel_lines,
    module_line,
    option,
    shape,
)

from ._slice_advice import (
    cut_at_once,
    filled,
    join_at_once,
    removed_writes,
    saved_share,
    time_line,
)
from ._slices import backward_of_slices, slice_gradients, slice_loops, slice_writes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

    from traceq.linter import Finding

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
        CPY004 slice-copy-loop  saves 417 µs/step (1%), nothing to 1.19 ms
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

    def _written(self, view: View) -> Iterator[Finding]:
        writes = slice_writes(view.trace, view.ops)
        if not writes.height:
            return
        loops = slice_loops(
            writes,
            self.min_slices,
            spans=pl.struct("start", "end"),
            lengths=pl.col("written").n_unique(),
            # Where a slice begins, of its position.
            begins=pl.col("at").str.extract(r"^([^:]*)").n_unique(),
        )
        back = None
        for row in loops:
            if back is None:
                back = backward_of_slices(view.trace, view.kernels)
            forward = view.kernels.filter(pl.col("op").is_in(row["id"]))
            backward = back.filter(pl.col("whole").is_in(row["wholes"])).drop("whole")
            part = 1 / row["sharing"]
            yield self._finding(
                view,
                row,
                message=filled(row, len(row["id"]) / view.steps)
                + ("" if forward.height else " on the CPU"),
                subject=f"slices along {row['along']}",
                fix=removed_writes(view, row, forward, backward, part),
                evidence=[
                    time_line(view, "forward", forward),
                    time_line(view, "backward", backward, part),
                ]
                if forward.height
                else [],
                advice=join_at_once(row),
            )

    def _read(self, view: View) -> Iterator[Finding]:
        gradients = slice_gradients(view.trace, view.ops)
        if not gradients.height:
            return
        loops = list(
            slice_loops(gradients, self.min_slices, cut=pl.col("cut").unique())
        )
        if not loops:
            return
        nodes = [node for row in loops for node in row["id"]]
        within = view.roots(pl.col("id").is_in(nodes))[view.kernels["op"]]
        for row in loops:
            rows = view.kernels.filter(within.is_in(row["id"]))
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
                        kernels=rows["id"],
                        kernel_share=saved_share(view, row, int(rows["dur"].sum())),
                        ops=row["id"],
                        host_share=1 - 1 / row["slices"],
                    )
                ],
                evidence=[
                    time_line(view, "backward", rows),
                    Evidence("tensors", value=tensors, note="a step"),
                ],
                advice=experts_switch(view, row["id"]) or cut_at_once(row),
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
        kernels = [kernel for item in fix for kernel in item.kernels]
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
