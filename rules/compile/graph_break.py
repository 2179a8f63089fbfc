"""JIT003: a compiled function is cut into parts by code that cannot be compiled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.patterns.compilation import CALL, LOOKUP, REGION
from traceq.lint import Bad, Good, Need, Rule, View
from traceq.words import listed, times

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.lint import Finding

# What torch calls the rest of a function after a break in it.
_RESUME = r"^torch_dynamo_resume_in_(?<of>.+)_at_(?<at>\d+)$"
# What each part costs on its own, compiled or not.
_OVERHEAD = ("Pregraph bytecode", "AOTDispatcher Runtime Wrapper Prologue")


@dataclass(frozen=True)
class GraphBreak(Rule):
    """A compiled function is cut into parts by code that torch.compile cannot take.

    ## What it does

    Looks for compiled regions inside of other compiled regions: where a function
    cannot be compiled in one piece, torch compiles what comes before, runs the rest
    as Python, and compiles what follows as a function of its own, which is called from
    there. With stacks it names the line at which it broke. The cost is what the host
    spends on the guards and wrappers of the parts after a break; what fusion would have
    saved is not in it.

    ## Why is this bad?

    Nothing is fused across a break, results are written to memory and read again,
    each part checks its guards anew, and CUDA graphs become several. A
    ``print`` or ``.item()`` in the middle of a model can take most of what compiling
    had gained.

    ## How to fix it

    Take what breaks the graph out of the compiled function: ``print`` and logging,
    ``.item()`` and ``if tensor``, calls into libraries that are not PyTorch's.
    ``torch.compile(fullgraph=True)`` makes a break an error;
    ``TORCH_LOGS=graph_breaks`` prints the reason for each.

    ## When it is wrong

    Where a break is meant (``torch.compiler.disable``), or lies in code that runs
    rarely.
    """

    code = "JIT003"
    needs = frozenset({Need.OPS})

    examples = (
        Bad(
            """
            host   [ProfilerStep#1                                               ]
            host    [Torch-Compiled Region: 0/0                                 ]
            host     [CompiledFunction][aten::item][Torch-Compiled Region: 1/0 ]
            """,
            finds=("a graph break cuts compiled code once a step",),
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
                overhead=pl.col("overhead").sum(),
                calls=pl.len(),
                parts=pl.col("name").cast(pl.String).unique(maintain_order=True),
                between=pl.col("between").drop_nulls().unique(maintain_order=True),
                ops="id",
            )
        )
        for row in rows.iter_rows(named=True):
            where = f" in `{row['function']}`" if row["function"] else ""
            yield self.finding(
                f"a graph break{where} cuts compiled code"
                f" {times(row['calls'] / view.steps)} a step",
                subject="graph break",
                place=view.place(row),
                count=row["calls"] / view.steps,
                host_ns=row["overhead"] / view.steps,
                evidence=[
                    ("before", listed(row["between"], 6)),
                    ("then", listed(row["parts"])),
                ],
                data={"before": row["between"]},
                advice=_advice(row["between"]),
                ops=row["ops"],
            )


def _breaks(view: View) -> pl.DataFrame:
    """Return the regions inside of regions, each with the break before it."""
    ops = view.ops
    name = pl.col("name").cast(pl.String)
    region = view.trace.ops.select(name.str.contains(REGION)).to_series()
    inside = region.gather(ops["parent"]).fill_null(value=False)
    found = ops.filter(inside & region.gather(ops["id"])).sort("ts")
    parts = ops.filter(inside)
    return (
        found.drop("file", "line", "function")
        .join(_overhead(parts), left_on="id", right_on="parent", how="left")
        .join(_resumed(parts), left_on="id", right_on="parent", how="left")
        .pipe(_with_last, _lookups(parts))
        .pipe(_with_last, _last_op(parts))
        .with_columns(
            overhead=pl.col("overhead").fill_null(0) + pl.col("lookup").fill_null(0)
        )
    )


def _with_last(regions: pl.DataFrame, parts: pl.DataFrame) -> pl.DataFrame:
    """Add to each region what comes before it in the region around both."""
    return regions.join_asof(
        parts, on="ts", by="parent", strategy="backward", check_sortedness=False
    )


def _lookups(parts: pl.DataFrame) -> pl.DataFrame:
    found = parts.filter(pl.col("name") == LOOKUP).sort("ts")
    return found.select("ts", "parent", lookup="dur")


def _overhead(parts: pl.DataFrame) -> pl.DataFrame:
    """Return what the host spends on guards and wrappers in each region."""
    return (
        parts.filter(pl.col("name").cast(pl.String).is_in(_OVERHEAD))
        .group_by("parent")
        .agg(overhead=pl.col("dur").sum())
    )


def _resumed(parts: pl.DataFrame) -> pl.DataFrame:
    """Return where the function broke whose rest each region is, if stacks say."""
    resume = pl.col("function").cast(pl.String).str.extract_groups(_RESUME)
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


def _last_op(parts: pl.DataFrame) -> pl.DataFrame:
    """Return the ops that the program itself ran in a region: after the compiled ones.

    Without autograd the compiled code's own calls of ops look the same.
    """
    name = pl.col("name").cast(pl.String)
    after = (name == CALL).cum_sum().over("parent") > 0
    return (
        parts.sort("ts")
        .filter(after, name.str.starts_with("aten::"))
        .select("ts", "parent", between=name)
    )


def _advice(before: list[str]) -> str:
    if {"aten::item", "aten::is_nonzero"} & set(before):
        return (
            "the value of a tensor is read there (`.item()`, `if tensor`): keep it on"
            " the GPU (torch.where, torch.cond), or read it outside of what is compiled"
        )
    return (
        "take what breaks the graph out of the compiled function; run with"
        " TORCH_LOGS=graph_breaks to see why it breaks"
    )
