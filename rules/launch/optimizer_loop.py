"""LCH003: the optimizer updates its parameters one after the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.patterns.optimizers import optimizer_steps
from traceq.lint import Bad, Good, Need, Rule, View, option
from traceq.words import counted, listed, time

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.lint import Finding

_FUSED = ("Adam", "AdamW", "SGD")
_FOREACH = (
    *_FUSED,
    *("Adadelta", "Adagrad", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop"),
)
# What is left of the step when one op updates many parameters; of the kernels' time
# half is saved, as values are not written and read again between them.
_LEFT = {"fused": 0.25, "foreach": 0.5}
_SAVED_ON_GPU = 0.5


def _drawn(op: str, calls: int) -> str:
    """Draw a step of AdamW that calls an op so many times."""
    numbers = range(1, calls + 1)
    span = f"[{op.ljust(20)}]"
    width = len(span) * calls
    return "\n".join(
        (
            f"host  [ProfilerStep#1{' ' * (width + 20)}]",
            f"host   [Optimizer.step#AdamW.step{' ' * (width - 8)}]",
            f"host    {span * calls}",
            "host     " + "".join(f"[cuLaunchKernel>{n}]    " for n in numbers),
            "gpu 7          " + "".join(f"[k<{n}]{' ' * 17}" for n in numbers).rstrip(),
        )
    )


@dataclass(frozen=True)
class OptimizerLoop(Rule):
    """The optimizer updates its parameters one after the other in a Python loop.

    ## What it does

    Looks into ``Optimizer.step#…`` regions whose operators that use the GPU all handle
    one tensor each, none of them many (``aten::_foreach_*``, ``aten::_fused_*``), and
    counts how often most of them are called: that is the number of parameters. Of the
    host's time for the step, three quarters go where the optimizer has a fused form and
    a half where it has not; of the kernels' time a half.

    ## Why is this bad?

    An update of Adam is eight to twelve tiny kernels for each parameter. A model of
    some hundred parameters launches thousands of them, one by one, where a few would
    do.

    ## How to fix it

    Leave out ``foreach=False``, which is not the default on the GPU since torch 2.0,
    and pass ``fused=True`` where the optimizer has it (Adam, AdamW, SGD). In an
    optimizer of your own use ``torch._foreach_*``, or compile its step.

    ## When it is wrong

    Where parameters have to be handled one by one: sparse gradients, or an optimizer
    that does linear algebra on each.
    """

    code = "LCH003"
    since = "0.1.0"
    needs = frozenset({Need.GPU, Need.OPS})

    min_parameters: int = option(8, "Fewer parameters are not reported.")

    examples = (
        Bad(
            _drawn("aten::addcdiv_", 8),
            finds=("AdamW updates 8 parameters one by one, with 1 kernel for each",),
        ),
        Good(_drawn("aten::_fused_adamw_", 2)),
    )

    def check(self, view: View) -> Iterator[Finding]:
        """Group the steps of optimizers by class and place."""
        rows = (
            optimizer_steps(view.trace, view.steady)
            .filter(pl.col("many") == 0, pl.col("parameters") >= self.min_parameters)
            .group_by("optimizer", "file", "line", "function", maintain_order=True)
            .agg(
                pl.col("kernels", "gpu", "dur").sum(),
                calls=pl.len(),
                parameters=pl.col("parameters").max(),
                names=pl.col("names").first(),
                ops=pl.col("ops").explode(),
                spans=pl.struct(start="ts", end=pl.col("ts") + pl.col("dur")),
            )
        )
        for row in rows.iter_rows(named=True):
            name, parameters = row["optimizer"], row["parameters"]
            each = row["kernels"] / row["calls"] / parameters
            left = _LEFT["fused" if name in _FUSED else "foreach"]
            yield self.finding(
                f"{name} updates {counted(parameters, 'parameter')} one by one,"
                f" with {counted(round(each), 'kernel')} for each",
                subject=name,
                place=view.place(row),
                count=row["kernels"] / view.steps,
                gpu_ns=row["gpu"] * _SAVED_ON_GPU / view.steps,
                host_ns=row["dur"] * (1 - left) / view.steps,
                evidence=[
                    ("ops", listed(row["names"], 8)),
                    (
                        "launches",
                        f"{counted(row['kernels'] / view.steps, 'kernel')} a step",
                    ),
                    (
                        "host",
                        f"{time(row['dur'] / view.steps)} a step for"
                        f" {time(row['gpu'] / view.steps)} of kernels",
                    ),
                ],
                data={
                    "optimizer": name,
                    "parameters": parameters,
                    "ops": row["names"],
                },
                advice=_advice(name, view.trace.facts.torch_to),
                ops=row["ops"],
                kernels=view.kernels_under(pl.col("id").is_in(row["ops"]))["id"],
                spans=pl.DataFrame(row["spans"]),
            )


def _advice(optimizer: str, torch: str) -> str:
    if optimizer not in _FOREACH:
        return "update many parameters at once with torch._foreach_*, or compile step()"
    if torch.startswith("1."):
        return f"use a newer torch: {optimizer} updates many at once from 2.0 on"
    if optimizer == "SGD":
        return "torch.optim.SGD(…, fused=True) (torch 2.3 on), and no foreach=False"
    if optimizer in _FUSED:
        return f"torch.optim.{optimizer}(…, fused=True), and no foreach=False"
    return f"leave foreach=False out of torch.optim.{optimizer}(…)"
