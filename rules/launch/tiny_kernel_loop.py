"""LCH001: a Python loop launches a few tiny kernels in each iteration."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceq.analysis.base import assumptions
from traceq.analysis.patterns.loops import loops
from traceq.linter import (
    Bad,
    Fix,
    Good,
    Need,
    Rule,
    Seen,
    Severity,
    View,
    at_loops,
    dataclass,
    loop_body,
    loop_lines,
    option,
)

from ._gradient_loops import clears, gradient_fixes
from ._loop_advice import (
    acting_advice,
    acts,
    advice,
    evidence,
    fewer_weights,
    message,
    over_experts,
)
from ._loop_bodies import share_of_loop
from ._loop_kinds import is_most_of_step, kernels_of, of_sharding, one_edit
from ._loop_shapes import unequal
from ._sorted_experts import over_sorted_slices
from ._weight_loops import over_parameters

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from traceq.analysis.patterns.loops import Loops
    from traceq.linter import Finding

# With one kernel in each iteration it is a loop of copies or updates: CPY004, LCH003;
# but one that picks rows, as those of the neighbours of a node, is no other rule's.
# With its backward it has several, except one of copies: CPY004 has that of slices.
_FEWEST_LAUNCHES = 2
_COPY = "aten::copy_"
_PICKING = ("aten::index", "aten::index_select", "aten::gather")
# If this fraction of the iterations run a module of their own, the loop is one over
# layers. Heuristic threshold: what comes before the first mark is not seen.
_LAYERS = 0.75


def _drawn(iterations: int, kernels: str) -> str:
    """Draw a loop of this many iterations, each an op, a launch and its kernels."""
    numbers = range(1, iterations + 1)
    mark = f"[aten::mul{' ' * 25}]"
    width = len(mark) * iterations
    work = [kernels.format(n=n).ljust(len(mark)) for n in numbers]
    return "\n".join(
        (
            f"host   [ProfilerStep#1{' ' * width}]",
            f"host    [net.py(8): forward{' ' * (width - 8)}]",
            f"host     {mark * iterations}",
            "host     "
            + "".join(f"[cuLaunchKernel>{n}]".ljust(len(mark)) for n in numbers),
            "gpu 7                   " + "".join(work).rstrip(),
        )
    )


@dataclass(frozen=True)
class TinyKernelLoop(Rule):
    """A Python loop launches a few tiny kernels in each iteration, and the GPU idles.

    ## What it does

    Looks for operators that a single call of a function or module runs again and again:
    from one run to the next, where mostly the same operators run in the same order, is
    an iteration of a loop. A loop is reported, at its line if the source is there, if
    its kernels are tiny and take less time than the host needs to launch them. A loop
    over the experts of an MoE layer is recognised by what it does: pick tokens, run a
    layer, add the result, or write it to the slice of sorted tokens that the layer ran
    on. Other loops that run another module in each iteration are taken for the layers
    of a model. Without stacks, only loops over experts that sync in each iteration are
    found. The fix removes the host time of the loop and its backward, the waits of one
    that reads norms, and for experts also the optimizer's host time for their weights;
    kernels stay, but for those that fill gradients with zeros.

    ## Why is this bad?

    Launching a kernel takes the host 5 to 15 µs, and a tiny kernel runs for 2 µs.
    However fast the GPU is, the loop takes as long as its launches.

    ## How to fix it

    Do all iterations in one operation: sort tokens by expert and use a grouped matmul
    (``torch.nn.functional.grouped_mm``), or stack the weights and use ``torch.bmm``
    with a fixed capacity; models of transformers 5 have a switch for it. In general,
    stack what the loop goes over into one more dimension. For a loop over parameters
    there are ``torch._foreach_mul_`` and the like, which take lists of tensors. A
    recurrent layer takes a whole sequence in one call. If iterations depend on each
    other, compile the loop. If they do by what the host reads, as the action of an
    agent, go through several sequences at once, as a batch.

    ```diff
    - out = torch.stack([x[i] @ weights[i] for i in range(len(weights))])
    + out = torch.bmm(x, weights)
    ```

    ## When it is wrong

    If the loop is in code that runs rarely, or cannot be batched.
    """

    code = "LCH001"
    several_fixes = True
    since = "0.1.0"
    see = (
        "torch.bmm",
        "torch.nn.LSTM",
        "torch.nn.utils.clip_grad_norm_",
        "torch.compile",
    )
    needs = frozenset({Need.GPU, Need.OPS, Need.WARM})

    # Heuristic thresholds: shorter loops are often a few layers or heads written out,
    # a kernel of 10 µs takes about as long as its launch, and more than 100 launches in
    # an iteration are a loop over layers or micro-batches. A backward that comes after
    # the loop does not count.
    min_iterations: int = option(
        assumptions.FEWEST_ITERATIONS, "Loops with fewer iterations are not reported."
    )
    tiny_us: float = option(
        10.0, "Kernels that take longer at the median are not tiny."
    )
    max_launches: int = option(
        100,
        "Loops with more launches in an iteration are not reported, unless they have"
        " one backward and take most of a host-bound step.",
    )

    seen = Seen(
        of="fixtures/twins/moe_loop",
        text="""
        LCH001 tiny-kernel-loop  saves 43.5 ms/step (81%), 36.1 ms to 46.4 ms
          a loop over 32 experts launches 10 tiny kernels in each and 17 in its
            backward, and syncs with the GPU
          in        forward (dev_cases.py:87) of Sequential_0/LoopMoE_0
          launches  1,000 kernels a step
          backward  1,639 kernels a step in its backward
          kernels   1.76 µs each at the median
          ops       aten::eq, aten::where, aten::index, aten::linear, aten::silu,
                    aten::unsqueeze, aten::mul, aten::index_add_ and 5 more
          modules   Sequential_0/LoopMoE_0 and 2 more
          syncs     96 a step
          host      82.0 ms a step, as recorded
          gpu       5.57 ms of kernels a step
          fix       sort the tokens by expert and run all experts at once with
                    torch.nn.functional.grouped_mm (torch 2.10 on; torch._grouped_mm
                    from 2.8 on), or stack their weights and use torch.bmm with a
                    fixed capacity; neither needs where or nonzero, which sync
        """,
    )

    examples = (
        Bad(
            _drawn(8, "[a<{n}][b<{n}]"),
            finds=("a loop of 8 iterations launches 2 tiny kernels in each",),
        ),
        Good(_drawn(8, "[a<{n}                  ]")),
        Good(_drawn(4, "[a<{n}][b<{n}]")),
    )

    def check(self, view: View) -> Iterator[Finding]:
        """Group the loops by the function they are in."""
        all_loops = loops(view.trace, view.steady, self.min_iterations)
        if not all_loops.table.height:
            return
        tiny = []
        for row in all_loops.table.drop_nulls("kernels").iter_rows(named=True):
            row["experts"] = over_experts(row) or over_sorted_slices(view, row)
            if self._is_tiny(row, view) and not of_sharding(view, row):
                tiny.append(row)
        for row in one_edit(tiny):
            yield self._finding(view, row, all_loops)

    def _is_tiny(self, row: Mapping[str, Any], view: View) -> bool:
        layers = row["called"] >= _LAYERS * row["longest"]
        # The last iteration of a call may be cut short.
        backward = row["back"] if row["mark"] == _COPY else 0
        launches = round((row["kernels"] - backward) / row["iterations"])
        few = round(row["launched"] / row["iterations"]) <= self.max_launches
        one = row["mark"] in _PICKING or clears(row)
        fewest = 1 if one else _FEWEST_LAUNCHES
        return (
            (row["experts"] or (view.trace.frames.height > 0 and not layers))
            and launches >= fewest
            and (few or is_most_of_step(row, view))
            and row["kernel_median_ns"] < self.tiny_us * 1000
            and row["host_ns"] * view.host_scale > row["gpu_ns"]
        )

    def _finding(self, view: View, row: Mapping[str, Any], all_loops: Loops) -> Finding:
        syncs = row["syncs"] >= row["iterations"] - row["calls"]
        acting = acts(view, row, loop := all_loops.spans_of(row))
        place = view.place({**row, "module": next(iter(row["modules"]), None)})
        # What less than half of the iterations call may come after them.
        lines = loop_lines(view.trace, place, row["ops"], row["iterations"] // 2)
        body = loop_body(view.trace, place, lines)
        row = {**row, "body": body, "unequal": unequal(row, view, loop)}
        experts, parameters = row["experts"], over_parameters(row, view)
        # More environments at once make a step worth more, and no shorter.
        removed = Fix(spans=loop, host_share=share_of_loop(row))
        fixes = [] if acting else [removed, *gradient_fixes(row, view)]
        if experts and not acting:
            fixes.append(fewer_weights(view, row["gradients"] or 0))
        said = acting_advice(row)
        if not acting:
            kinds = {"experts": experts, "parameters": parameters, "syncs": syncs}
            said = advice(row, view, **kinds)
        return self.finding(
            message(row, experts=experts, parameters=parameters)
            + (", and syncs with the GPU" if syncs else ""),
            subject="loop over experts" if experts else f"loop of {row['mark']}",
            place=at_loops(place, lines),
            count=row["kernels"] / view.steps,
            fix=fixes,
            gpu_idle_ns=row["idle_ns"] / view.steps,
            evidence=evidence(row, view, lines, said, syncs=syncs),
            data={
                "iterations": row["iterations"] / row["calls"],
                "launches": row["kernels"] / row["iterations"],
                "backward_launches": row["back"] / row["iterations"],
                "ops": row["names"],
                "modules": row["modules"],
            },
            advice=said,
            # What picks an expert's tokens goes with the loop alone.
            effort="" if experts or parameters or clears(row) else "rewrite",
            severity=Severity.info if acting else None,
            ops=row["ops"],
            kernels=kernels_of(view, row),
        )
