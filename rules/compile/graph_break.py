"""JIT003: a graph break splits a compiled function into parts."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.patterns import compilation, compile_reasons
from traceq.linter import (
    Bad,
    Evidence,
    Fix,
    Good,
    Need,
    Place,
    Rule,
    Seen,
    Severity,
    View,
    dataclass,
    module_line,
    often,
    text,
)

from ._fusion import unfused
from ._graph_breaks import apart_lines, breaks_by_place, breaks_here, evidence, overhead

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from traceq.linter import Finding
    from traceq.model.run import CompiledPlace


@dataclass(frozen=True)
class GraphBreak(Rule):
    """A graph break splits a compiled function into parts.

    ## What it does

    Looks for compiled regions inside other compiled regions. Where torch.compile cannot
    take a function in one piece, it compiles what comes before the break, runs the
    break as Python, and compiles what follows as a function of its own, called from
    there. With stacks, with the log or in a run of ``traceq collect`` it names the line
    of the break, with either of the last two the reason too. The fix removes the host
    time of guards and wrappers of the parts after a break, in the forward. Where the
    last kernel before it and the first after it are inductor's and share a tensor, it
    also removes the time to read that tensor: the two would be one kernel.

    ## Why is this bad?

    Nothing is fused across a break, results are written to memory and read again, each
    part checks its guards, and one CUDA graph becomes several. A ``print`` or
    ``.item()`` in the middle of a model can cost most of what compiling gained.

    ## How to fix it

    Move what breaks the graph out of the compiled function: ``print`` and logging,
    ``.item()`` and ``if tensor``, calls into libraries other than PyTorch.
    ``torch.compile(fullgraph=True)`` turns a break into an error;
    ``TORCH_LOGS=graph_breaks`` prints the reason for each.

    ```diff
      @torch.compile
      def step(x):
          y = layer(x)
    -     print(y.mean().item())
          return head(y)
    + # print what step returned, outside of it
    ```

    ## When it is wrong

    If the break is intentional (``torch.compiler.disable``), or in code that runs
    rarely.
    """

    code = "JIT003"
    several_fixes = True
    since = "0.1.0"
    see = (
        "torch.compile",
        "torch.compiler.disable",
        "torch.cond",
        "torch._logging.set_logs",
    )
    needs = frozenset({Need.OPS})

    seen = Seen(
        of="tests/data/compiled/break",
        text="""
        JIT003 graph-break  saves 1.26 ms/step (9%), 861 µs to 3.44 ms
          a graph break in `forward` splits compiled code 6 times a step
          at       compiled.py:60 forward
                     59 |         if self.plant == "break":
                   > 60 |             torch._dynamo.graph_break()
                     61 |         return x + self.mlp(self.norm2(x))
          reason   Call to `torch._dynamo.graph_break()`
          after    Torch-Compiled Region: 2/0
          unfused  triton_poi_fused__unsafe_view_add_1 and
                   triton_per_fused__to_copy_add_mean_mul_pow_rsqrt_0 ×6
          modules  Transformer_0/Block_0 and 5 more
          fix      remove the call of torch._dynamo.graph_break()
        """,
    )

    examples = (
        Bad(
            """
            host   [ProfilerStep#1                                               ]
            host    [Torch-Compiled Region: 0/0                                 ]
            host     [CompiledFunction][aten::item][Torch-Compiled Region: 1/0 ]
            """,
            finds=("a graph break splits compiled code once a step",),
        ),
        Good(
            """
            host   [ProfilerStep#1                                               ]
            host    [Torch-Compiled Region: 0/0]   [Torch-Compiled Region: 1/0 ]
            host     [CompiledFunction][aten::item][CompiledFunction]
            """
        ),
    )

    def check(self, view: View) -> Iterator[Finding]:
        """Group the inner regions by the line at which the outer one broke."""
        breaks = compilation.graph_breaks(view.trace)
        by_place = breaks_by_place(view)
        if not by_place.height:
            yield from map(self._not_seen, breaks)
            return
        rows = view.by_place(
            by_place,
            before=pl.col("before").drop_nulls().unique(maintain_order=True),
            parts=text("name").unique(maintain_order=True),
            frames=pl.col("frame").drop_nulls().unique(maintain_order=True),
        )
        seen = set()
        for row in rows.iter_rows(named=True):
            here = breaks_here(breaks, row)
            seen |= set(here)
            yield self._finding(view, row, here, by_place)
        yield from (
            self._not_seen(compiled_place)
            for compiled_place in breaks
            if compiled_place not in seen
        )

    def _finding(
        self,
        view: View,
        row: Mapping[str, Any],
        here: list[CompiledPlace],
        breaks: pl.DataFrame,
    ) -> Finding:
        reasons = [
            compile_reasons.break_reason(compiled_place.why) for compiled_place in here
        ]
        function = row["function"]
        where = f" in `{function}`" if function else ""
        regions = breaks.filter(pl.col("id").is_in(row["ids"]))
        apart = unfused(view.trace, regions)
        place = replace(view.place(row), module=None, line_is="call")
        if not place.file:
            place = _place(here[0]) if len(here) == 1 else view.place(row)
        return self.finding(
            f"a graph break{where} splits compiled code"
            f" {often(len(row['ids']) / view.steps)}",
            subject="graph break",
            place=place,
            count=len(row["ids"]) / view.steps,
            fix=[
                Fix(spans=overhead(view, regions)),
                *(
                    Fix(kernels=apart["kernel"], kernel_share=share)
                    for (share,), apart in apart.group_by("share", maintain_order=True)
                ),
            ],
            evidence=[
                *evidence(row, reasons),
                *apart_lines(apart, view.steps),
                *module_line(row["modules"]),
            ],
            data={
                "before": row["before"],
                "why": [reason.text for reason in reasons],
                "frames": row["frames"],
            },
            advice=reasons[0].advice if reasons else _advice(row["before"]),
            ops=row["ids"],
        )

    def _not_seen(self, compiled_place: CompiledPlace) -> Finding:
        """Return a graph break that happened when something else was recorded."""
        reason = compile_reasons.break_reason(compiled_place.why)
        where = f" in `{compiled_place.function}`" if compiled_place.function else ""
        return self.finding(
            f"a graph break{where} splits compiled code, in none of these steps",
            subject="graph break",
            place=_place(compiled_place),
            evidence=[Evidence("reason", reason.text)],
            data={"why": [reason.text]},
            advice=reason.advice,
            severity=Severity.info,
        )


def _place(compiled_place: CompiledPlace) -> Place:
    return Place(
        compiled_place.file,
        compiled_place.line,
        compiled_place.function,
        line_is="call",
    )


def _advice(before: list[str]) -> str:
    if {"aten::item", "aten::is_nonzero"} & set(before):
        return (
            "the value of a tensor is read there (`.item()`, `if tensor`): keep it on"
            " the GPU (torch.where, torch.cond), or read it outside compiled code"
        )
    return (
        "move what breaks the graph out of the compiled function; run with"
        " TORCH_LOGS=graph_breaks to see why it breaks"
    )
