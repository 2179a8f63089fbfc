"""LCH001: a Python loop launches a few tiny kernels in each round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.patterns.loops import loops
from traceq.analysis.patterns.optimizers import optimizer_regions
from traceq.intervals import disjoint
from traceq.lint import Bad, Good, Need, Rule, View, option
from traceq.words import counted, listed, time

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from traceq.lint import Finding

# A mixture of experts picks tokens, runs the expert on them, adds the result back.
_PICK = ("aten::where", "aten::nonzero", "aten::index", "aten::masked_select")
_RUN = ("aten::linear", "aten::mm", "aten::addmm", "aten::matmul")
_ADD = tuple(
    f"aten::{op}{in_place}"
    for op in ("index_add", "index_put", "scatter_add", "index_copy")
    for in_place in ("_", "")
)
_GRADIENT = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"
# With one kernel a round it is a loop of copies or of updates, which others look for.
_FEWEST_LAUNCHES = 2


def _drawn(rounds: int, kernels: str) -> str:
    """Draw a loop of so many rounds, each an op, a launch and its kernels."""
    numbers = range(1, rounds + 1)
    mark = f"[aten::mul{' ' * 25}]"
    width = len(mark) * rounds
    work = [kernels.format(n=n).ljust(len(mark)) for n in numbers]
    return "\n".join(
        (
            f"host   [ProfilerStep#1{' ' * width}]",
            f"host    [net.py(8): forward{' ' * (width - 8)}]",
            f"host     {mark * rounds}",
            "host     "
            + "".join(f"[cuLaunchKernel>{n}]".ljust(len(mark)) for n in numbers),
            "gpu 7                   " + "".join(work).rstrip(),
        )
    )


@dataclass(frozen=True)
class TinyKernelLoop(Rule):
    """A Python loop launches a few tiny kernels in each round, and the GPU waits.

    ## What it does

    Looks, in one call of one function or module, for operators that it calls again
    and again; what lies between two such calls is one round of a loop, with its
    backward. Loops whose kernels are tiny, and take less time than the host needs to
    launch them, are reported, by the function they are in. Loops of a mixture of
    experts are recognised by what they do: pick tokens, run a layer, add the result.
    Without stacks only loops are seen that wait for the GPU in each round. What goes
    is the host's time in the loop and in its backward, and for experts that part of
    the optimizer's which is for their weights; the kernels stay.

    ## Why is this bad?

    To launch a kernel takes the host 5 to 15 µs, and a tiny one runs for 2. However
    fast the GPU is, the loop takes the time of its launches.

    ## How to fix it

    Do all rounds in one operation: sort tokens by expert and use a grouped matrix
    product (``torch._grouped_mm``), or stack the weights and use ``torch.bmm`` with a
    fixed capacity; in general stack what the loop goes over and let the operators
    have one dimension more. Where rounds depend on each other, compile the loop.

    ## When it is wrong

    Where the loop is in code that runs rarely, or that cannot be batched.
    """

    code = "LCH001"
    since = "0.1.0"
    needs = frozenset({Need.GPU, Need.OPS})

    min_rounds: int = option(8, "Loops with fewer rounds are not reported.")
    tiny_us: float = option(10.0, "Kernels that take longer are not tiny.")
    max_launches: int = option(100, "More launches in a round are no tiny loop.")

    examples = (
        Bad(
            _drawn(8, "[a<{n}][b<{n}]"),
            finds=("a loop of 8 rounds launches 2 tiny kernels in each",),
        ),
        Good(_drawn(8, "[a<{n}                  ]")),
        Good(_drawn(4, "[a<{n}][b<{n}]")),
    )

    def check(self, view: View) -> Iterator[Finding]:
        """Group the loops by the function they are in."""
        found = loops(view.trace, view.steady, self.min_rounds)
        stacks = view.trace.frames.height > 0
        for row in found.table.drop_nulls("kernels").iter_rows(named=True):
            launches = row["kernels"] / row["rounds"]
            experts = _is_moe(row["names"])
            host = row["host"] * view.host_scale
            if (
                (experts or stacks)
                and _FEWEST_LAUNCHES <= launches <= self.max_launches
                and row["usual"] < self.tiny_us * 1000
                and host > row["gpu"]
            ):
                mine = found.spans_of(row).select("start", "end")
                if experts:
                    mine = pl.concat([mine, _updates(view, row["gradients"] or 0)])
                yield self._told(view, row, mine, experts=experts)

    def _told(
        self, view: View, row: Mapping[str, Any], spans: pl.DataFrame, *, experts: bool
    ) -> Finding:
        launches = row["kernels"] / row["rounds"]
        each = row["rounds"] / row["calls"]
        loop = f"a loop of {each:.0f} rounds"
        if experts:
            # Without stacks the rounds are those of all layers together.
            loop += " over experts"
            if view.trace.frames.height:
                loop = f"a loop over {each:.0f} experts"
        waits = row["waits"] / row["rounds"] >= 1
        return self.finding(
            f"{loop} launches {launches:.0f} tiny kernels in each"
            + (" and waits for the GPU" if waits else ""),
            subject="loop over experts" if experts else f"loop of {row['mark']}",
            place=view.place({**row, "module": next(iter(row["modules"]), None)}),
            count=row["kernels"] / view.steps,
            gpu_ns=row["idle"] * view.host_scale / view.steps,
            host_ns=_length(spans) / view.steps,
            evidence=[
                (
                    "launches",
                    f"{counted(row['kernels'] / view.steps, 'kernel')} a step,"
                    f" {time(row['usual'])} each at the median",
                ),
                ("ops", listed(row["names"], 8)),
                ("modules", _modules(row["modules"])),
                ("waits", f"{row['waits'] / view.steps:,.0f} a step" if waits else ""),
                (
                    "host",
                    f"{time(row['host'] / view.steps)} a step for"
                    f" {time(row['gpu'] / view.steps)} of kernels",
                ),
            ],
            data={
                "rounds": each,
                "launches": launches,
                "ops": row["names"],
                "modules": row["modules"],
            },
            advice=_advice(experts=experts, waits=waits),
            ops=row["ops"],
            spans=spans,
        )


def _is_moe(names: list[str]) -> bool:
    called = set(names)
    return all(called.intersection(some) for some in (_PICK, _RUN, _ADD))


def _updates(view: View, gradients: int) -> pl.DataFrame:
    """Return the part of the optimizer's time that is for so many weights.

    One weight for all experts takes the place of as many as there are experts.
    """
    name = pl.col("name").cast(pl.String)
    weights = view.ops.filter(name.str.ends_with(_GRADIENT)).height
    share = gradients / weights if weights else 0.0
    regions = optimizer_regions(view.trace, view.steady)
    length = (pl.col("dur") * share).cast(pl.Int64)
    return regions.select(start="ts", end=pl.col("ts") + length)


def _length(spans: pl.DataFrame) -> int:
    parts = disjoint(spans)
    return int((parts["end"] - parts["start"]).sum())


def _modules(paths: list[str]) -> str:
    return f"{len(paths)}, as {paths[0]}" if len(paths) > 1 else ""


def _advice(*, experts: bool, waits: bool) -> str:
    if experts:
        return (
            "sort the tokens by expert and multiply all of them at once with"
            " torch._grouped_mm (torch 2.8 on), or stack the experts' weights and use"
            " torch.bmm with a fixed capacity"
            + ("; that needs no where or nonzero, and so no wait" if waits else "")
        )
    return (
        "stack what the loop goes over and let its operators do all rounds at once;"
        " where a round needs the one before, compile the loop with torch.compile"
    )
