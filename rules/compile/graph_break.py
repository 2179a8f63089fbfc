"""JIT003: a graph break splits a compiled function into parts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.patterns.compilation import CALL, LOOKUP, REGION
from traceq.expressions import asof, known, text
from traceq.lint import Bad, Evidence, Fix, Good, Need, Rule, View
from traceq.words import listed, often

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from traceq.lint import Finding

# What torch calls the rest of a function after a break in it.
_RESUME = r"^torch_dynamo_resume_in_(?<of>.+)_at_(?<at>\d+)$"
# What the host does for each part of a function, before its compiled code runs.
_OVERHEAD = ("Pregraph bytecode", "AOTDispatcher Runtime Wrapper Prologue")


@dataclass(frozen=True)
class GraphBreak(Rule):
    """A graph break splits a compiled function into parts.

    ## What it does

    Looks for compiled regions inside other compiled regions. Where torch.compile cannot
    take a function in one piece, it compiles what comes before the break, runs the
    break as Python, and compiles what follows as a function of its own, called from
    there. With stacks it names the line of the break. The fix removes the host time of
    guards and wrappers of the parts after a break; what fusion across it would save is
    not included.

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

    ## Measured

    On an H200 (``benchmarks/models/advice.py``): 12 compiled layers with a break after
    each take 0.56 ms, without 0.44 ms.
    """

    code = "JIT003"
    several_fixes = True
    since = "0.1.0"
    needs = frozenset({Need.OPS})

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
        rows = (
            _breaks(view)
            .group_by("file", "line", "function", "module", maintain_order=True)
            .agg(
                calls=pl.len(),
                parts=text("name").unique(maintain_order=True),
                before=pl.col("before").drop_nulls().unique(maintain_order=True),
                overhead=pl.col("overhead").explode().drop_nulls(),
                lookups=pl.col("lookup").drop_nulls(),
                regions="id",
            )
        )
        for row in rows.iter_rows(named=True):
            where = f" in `{row['function']}`" if row["function"] else ""
            yield self.finding(
                f"a graph break{where} splits compiled code"
                f" {often(row['calls'] / view.steps)}",
                subject="graph break",
                place=view.place(row),
                count=row["calls"] / view.steps,
                fix=Fix(ops={*row["overhead"], *row["lookups"]}),
                evidence=_evidence(row),
                data={"before": row["before"]},
                advice=_advice(row["before"]),
                ops=row["regions"],
            )


def _evidence(row: Mapping[str, Any]) -> Iterator[Evidence]:
    if row["before"]:
        yield Evidence("before", listed(row["before"], 6))
    yield Evidence("after", listed(row["parts"]))


def _breaks(view: View) -> pl.DataFrame:
    """Return the regions inside other regions, each with the break before it.

    ``overhead`` and ``lookup`` are the ops that run only because of the break,
    ``before`` is the last op before it, and file, line and function are those of the
    break.
    """
    ops = view.ops
    region = view.trace.ops.select(text("name").str.contains(REGION)).to_series()
    inside = known(region.gather(ops["parent"]))
    parts = ops.filter(inside)
    return (
        ops.filter(inside & region.gather(ops["id"]))
        .drop("file", "line", "function")
        .join(_overhead(parts), left_on="id", right_on="parent", how="left")
        .join(_resumed(parts), left_on="id", right_on="parent", how="left")
        .pipe(asof, _lookups(parts), "ts", "at", by="parent")
        .drop("at")
        .pipe(asof, _own_ops(parts), "ts", "at", by="parent")
    )


def _lookups(parts: pl.DataFrame) -> pl.DataFrame:
    """Return the guard checks in the outer regions: each is for the region after it."""
    return parts.filter(pl.col("name") == LOOKUP).select("parent", at="ts", lookup="id")


def _overhead(parts: pl.DataFrame) -> pl.DataFrame:
    """Return the wrappers that the host runs in each region."""
    return (
        parts.filter(text("name").is_in(_OVERHEAD))
        .group_by("parent")
        .agg(overhead="id")
    )


def _resumed(parts: pl.DataFrame) -> pl.DataFrame:
    """Return where the function broke whose rest each region is, if stacks show it."""
    resume = text("function").str.extract_groups(_RESUME)
    return (
        parts.select("parent", "file", resume.alias("resume"))
        .unnest("resume")
        .drop_nulls("at")
        .group_by("parent", maintain_order=True)
        .agg(
            pl.col("file").first(),
            line=pl.col("at").first().cast(pl.UInt32),
            function=pl.col("of").first(),
        )
    )


def _own_ops(parts: pl.DataFrame) -> pl.DataFrame:
    """Return the ops that the program itself ran in a region, after compiled code.

    Without autograd there is no mark around compiled code, so its ops cannot be
    distinguished from the program's own, and none are returned.
    """
    name = text("name")
    after = (name == CALL).cum_sum().over("parent") > 0
    return (
        parts.sort("ts")
        .filter(after, name.str.starts_with("aten::"))
        .select("parent", at="ts", before=name)
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
