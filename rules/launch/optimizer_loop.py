"""LCH003: the optimizer updates its parameters one after the other."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base import assumptions
from traceq.analysis.patterns import optimizers
from traceq.linter import (
    END,
    Bad,
    Fix,
    Good,
    Need,
    Rule,
    Seen,
    View,
    counted,
    dataclass,
    option,
)

from ._shared import (
    ONLY_NAMED,
    at_constructor,
    evidence,
    is_adam,
    launched,
    of_torch,
    step_of_adamw,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

    from traceq.linter import Finding

# Optimizers of torch.optim that have fused=True, and those that have foreach=True.
_FUSED = ("Adam", "AdamW", "SGD")
_FOREACH = (
    *_FUSED,
    *("Adadelta", "Adagrad", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop"),
)
_SUBCLASS = "{} is a subclass of Adam, whose constructor takes the arguments: "
_MATMULS = ("aten::mm", "aten::matmul", "aten::bmm", "aten::addmm")
# What loops over its history of the flat gradient, not over parameters.
_FLAT = ("LBFGS",)


@dataclass(frozen=True)
class OptimizerLoop(Rule):
    """The optimizer updates its parameters one by one in a Python loop.

    ## What it does

    Looks for ``Optimizer.step#…`` regions in which every operator with GPU work updates
    one tensor, and none updates many (``aten::_foreach_*``, ``aten::_fused_*``). How
    often most of them are called is the number of parameters. The fix removes three
    quarters of the step's host time, and half of that of an optimizer of your own. Of
    the kernels' time half goes, but 15% where the fix is foreach, and of SGD's as much
    as is not read and written any more by the number of its operators: nothing for one,
    3/8 for three with momentum, half for more. A closure that the step calls is no part
    of it, and ``LBFGS`` has no loop over parameters.

    ## Why is this bad?

    An update of Adam takes eight to twelve tiny kernels for each parameter. A model
    with a few hundred parameters launches thousands of them one by one, where a few
    would do.

    ## How to fix it

    Drop ``foreach=False``, which has not been the default on the GPU since torch 2.0,
    and pass ``fused=True`` if the optimizer has it (Adam, AdamW, SGD). In your own
    optimizer use ``torch._foreach_*``, or compile its step; where it multiplies
    matrices, as Muon and Shampoo do, stack those of one shape and use batched matmuls.

    ```diff
    - optimizer = torch.optim.AdamW(parameters, lr=3e-4, foreach=False)
    + optimizer = torch.optim.AdamW(parameters, lr=3e-4, fused=True)
    ```

    ## When it is wrong

    If parameters have to be updated one by one: sparse gradients, or an optimizer that
    does linear algebra on each of them. Of other optimizers than Adam, AdamW and SGD
    nothing was measured.
    """

    code = "LCH003"
    since = "0.1.0"
    see = ("torch.optim.AdamW", "torch.optim.Adam", "torch.optim.SGD")
    needs = frozenset({Need.GPU, Need.OPS, Need.WARM})
    without_gpu = True

    # Heuristic threshold: fewer parameters launch fewer than a hundred kernels.
    min_parameters: int = option(
        8, "Optimizers with fewer parameters are not reported."
    )

    seen = Seen(
        of="fixtures/twins/optimizer_loop_sync",
        text="""
        LCH003 optimizer-loop  saves 2.14 ms/step (26%), 1.70 ms to 4.53 ms
          AdamW updates 52 parameters one by one, with 8 kernels for each
          in        step (dev_cases.py:65)
          ops       aten::mul_, aten::lerp_, aten::addcmul_, aten::sqrt, aten::div,
                    aten::add_, aten::addcdiv_
          launches  416 kernels a step
          host      7.25 ms a step, as recorded
          gpu       1.22 ms of kernels a step
          fix       pass fused=True to torch.optim.AdamW, and drop foreach=False
        """,
    )

    examples = (
        Bad(
            step_of_adamw("aten::addcdiv_", 8),
            finds=("AdamW updates 8 parameters one by one, with 1 kernel for each",),
        ),
        Good(step_of_adamw("aten::_fused_adamw_", 2)),
    )

    def check(self, view: View) -> Iterator[Finding]:
        """Group the steps of optimizers by class and place."""
        rows = (
            optimizers.optimizer_steps(view.trace, view.steady)
            .filter(
                pl.col("many") == 0,
                pl.col("parameters") >= self.min_parameters,
                ~pl.col("optimizer").is_in(_FLAT),
            )
            .group_by("optimizer", "file", "line", "function", maintain_order=True)
            .agg(
                pl.col("kernels", "gpu_ns", "dur").sum(),
                calls=pl.len(),
                parameters=pl.col("parameters").max(),
                names=pl.col("names").first(),
                ops=pl.col("ops").explode(),
                spans=pl.struct(start="ts", end=END),
            )
        )
        for row in rows.iter_rows(named=True):
            yield self._finding(view, row)

    def check_without_gpu(self, view: View) -> Iterator[Finding]:
        """Return those that are no optimizer of torch's.

        On the CPU these update one by one, and many at once on a GPU by default.
        """
        for finding in self.check(view):
            if finding.subject not in _FOREACH:
                yield finding

    def _finding(self, view: View, row: Mapping[str, Any]) -> Finding:
        name, parameters = row["optimizer"], row["parameters"]
        each = row["kernels"] / row["calls"] / parameters
        torch = view.trace.facts.torch_to
        spans = pl.DataFrame(row["spans"])
        torchs = of_torch(view, spans)
        # Another class may have the name of one of torch's.
        kind = "" if torchs is False else name
        own = kind not in _FOREACH and is_adam(view, spans)
        kind = "Adam" if own else kind
        kernel_share, host_share = _saved(kind, torch, each, row["names"])
        unsure = torchs is None and not row["file"] and name in _FOREACH
        finding = self.finding(
            f"{name} updates {counted(parameters, 'parameter')} one by one,"
            f" with {counted(round(each), 'kernel')} for each",
            subject=name,
            place=view.place(row),
            count=row["kernels"] / view.steps,
            fix=Fix(
                kernels=launched(view, row["ops"]),
                kernel_share=kernel_share,
                spans=spans,
                host_share=host_share,
            ),
            evidence=evidence(row, row["dur"], view.steps),
            data={"optimizer": name, "parameters": parameters, "ops": row["names"]},
            advice=_SUBCLASS.format(name) * own
            + _advice(kind, torch, row["names"])
            + ONLY_NAMED * unsure,
            # What torch updates many at once is an argument.
            effort="edit" if kind in _FOREACH else "rewrite",
            ops=row["ops"],
        )
        if kind in _FOREACH:
            finding = at_constructor(finding, view, name)
        example = "" if own else _example(self.example(), kind, torch)
        return replace(finding, example=example)


def _saved(
    optimizer: str, torch: str, each: float, ops: Sequence[str]
) -> tuple[float, float]:
    """Return the shares that go of the kernels' time and of the host's.

    A parameter is updated by ``each`` kernels.
    """
    if optimizer not in _FOREACH:
        return assumptions.OPTIMIZER_KERNELS_SAVED, assumptions.REWRITTEN_HOST_SAVED
    if optimizer not in _FUSED or torch.startswith("1."):
        return assumptions.FOREACH_KERNELS_SAVED, assumptions.FOREACH_HOST_SAVED
    if optimizer != "SGD":
        return assumptions.FUSED_KERNELS_SAVED, assumptions.FUSED_HOST_SAVED
    momentum = "aten::mul_" in ops
    passes = assumptions.FUSED_SGD_PASSES[momentum] / (
        assumptions.UPDATE_PASSES * each - momentum
    )
    return min(
        assumptions.FUSED_KERNELS_SAVED, max(0.0, 1 - passes)
    ), assumptions.FOREACH_HOST_SAVED


def _advice(optimizer: str, torch: str, ops: Sequence[str]) -> str:
    if optimizer not in _FOREACH and set(ops) & set(_MATMULS):
        return (
            "stack the gradients of all parameters of one shape, and compute their"
            " updates at once by batched matmuls"
        )
    if optimizer not in _FOREACH:
        return (
            "update many parameters at once with torch._foreach_*, or compile the"
            " optimizer's step()"
        )
    if torch.startswith("1."):
        return f"upgrade torch: {optimizer} updates many parameters at once from 2.0 on"
    since = " (torch 2.3 on)" if optimizer == "SGD" else ""
    if optimizer in _FUSED:
        return (
            f"pass fused=True to torch.optim.{optimizer}{since}, and drop foreach=False"
        )
    return f"drop foreach=False from torch.optim.{optimizer}(…)"


def _example(page: str, optimizer: str, torch: str) -> str:
    """Return the page's example for another optimizer; or nothing, where none fits."""
    if optimizer not in _FOREACH or torch.startswith("1."):
        return ""
    named = page.replace("AdamW", optimizer)
    return named if optimizer in _FUSED else named.replace(", fused=True", "")
