"""JIT003: a graph break splits a compiled function into parts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import PurePath
from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.patterns import compilation, compile_reasons
from traceq.linter import (
    END,
    NOTHING,
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
    asof,
    dataclass,
    fill_false,
    listed,
    module_line,
    often,
    text,
)

from ._fusion import unfused

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

    from traceq.linter import Finding
    from traceq.model.run import CompiledPlace

# What torch calls the rest of a function after a break in it.
_RESUME = r"^torch_dynamo_resume_in_(?<of>.+)_at_(?<at>\d+)$"
# What the host does for each part of a function, before its compiled code runs.
_WRAPPERS = ("Pregraph bytecode", "AOTDispatcher Runtime Wrapper Prologue")

_MOST_REASONS = 3


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

    ## Measured

    On an H200 (``benchmarks/models/advice.py``): 12 compiled layers with a break after
    each take 0.56 ms, without 0.44 ms.
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
        JIT003 graph-break  saves 1.26 ms/step (9%)
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
        found = _breaks(view)
        if not found.height:
            yield from map(self._not_seen, breaks)
            return
        rows = view.by_place(
            found,
            before=pl.col("before").drop_nulls().unique(maintain_order=True),
            parts=text("name").unique(maintain_order=True),
            frames=pl.col("frame").drop_nulls().unique(maintain_order=True),
        )
        seen = set()
        for row in rows.iter_rows(named=True):
            here = _here(breaks, row)
            seen |= set(here)
            yield self._finding(view, row, here, found)
        yield from (self._not_seen(one) for one in breaks if one not in seen)

    def _finding(
        self,
        view: View,
        row: Mapping[str, Any],
        here: list[CompiledPlace],
        found: pl.DataFrame,
    ) -> Finding:
        reasons = [compile_reasons.break_reason(one.why) for one in here]
        function = row["function"]
        where = f" in `{function}`" if function else ""
        regions = found.filter(pl.col("id").is_in(row["ids"]))
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
                Fix(spans=_overhead(view, regions)),
                *(
                    Fix(kernels=apart["kernel"], kernel_share=share)
                    for (share,), apart in apart.group_by("share", maintain_order=True)
                ),
            ],
            evidence=[
                *_evidence(row, reasons),
                *_apart(apart, view.steps),
                *module_line(row["modules"]),
            ],
            data={
                "before": row["before"],
                "why": [one.text for one in reasons],
                "frames": row["frames"],
            },
            advice=reasons[0].advice if reasons else _advice(row["before"]),
            ops=row["ids"],
        )

    def _not_seen(self, one: CompiledPlace) -> Finding:
        """Return a graph break that happened when something else was recorded."""
        reason = compile_reasons.break_reason(one.why)
        where = f" in `{one.function}`" if one.function else ""
        return self.finding(
            f"a graph break{where} splits compiled code, in none of these steps",
            subject="graph break",
            place=_place(one),
            evidence=[Evidence("reason", reason.text)],
            data={"why": [reason.text]},
            advice=reason.advice,
            severity=Severity.info,
        )


def _here(
    breaks: Sequence[CompiledPlace], row: Mapping[str, Any]
) -> list[CompiledPlace]:
    """Return the breaks that are at a row's place; without one, all there are."""
    if row["file"] is None:
        return list(breaks)
    name = PurePath(row["file"]).name
    return [
        one
        for one in breaks
        if (PurePath(one.file or "").name, one.line) == (name, row["line"])
    ]


def _place(one: CompiledPlace) -> Place:
    return Place(one.file, one.line, one.function, line_is="call")


def _evidence(
    row: Mapping[str, Any], reasons: list[compile_reasons.Reason]
) -> Iterator[Evidence]:
    for reason in reasons[:_MOST_REASONS]:
        yield Evidence("reason", reason.text)
    if row["before"]:
        yield Evidence("before", listed(row["before"], 6))
    yield Evidence("after", listed(row["parts"]))


def _apart(found: pl.DataFrame, steps: int) -> Iterator[Evidence]:
    """Yield the kernels that the break keeps apart."""
    pairs = found.group_by("before", "after", maintain_order=True).len()
    for before, after, count in pairs.head(_MOST_REASONS).iter_rows():
        yield Evidence("unfused", f"{before} and {after}", count=count / steps)


def _breaks(view: View) -> pl.DataFrame:
    """Return the regions inside other regions, each with the break before it.

    ``lookup`` is when the guards of the part after the break began to be checked,
    ``before`` the last op before it, ``frame`` the number of the function that broke,
    and file, line and function are those of the break.
    """
    ops = view.ops
    region = view.ops_matching(compilation.REGION)
    # Regions are few, and mostly none of them is inside another.
    if not fill_false(region[view.trace.ops["parent"].filter(region)]).any():
        return NOTHING
    inside = fill_false(region[ops["parent"]])
    inner = ops.filter(inside & region[ops["id"]])
    if not inner.height:
        return NOTHING
    parts = ops.filter(inside)
    outer = view.trace.ops["name"].gather(inner["parent"]).cast(pl.String)
    return (
        inner.drop("file", "line", "function")
        .with_columns(frame=outer.str.extract(compilation.REGION_FRAME))
        .join(_resumed(parts), left_on="id", right_on="parent", how="left")
        .pipe(asof, _lookups(parts), "ts", "at", by="parent")
        .drop("at")
        .pipe(asof, _own_ops(parts), "ts", "at", by="parent")
    )


def _lookups(parts: pl.DataFrame) -> pl.DataFrame:
    """Return the guard checks in the outer regions: each is for the region after it."""
    return parts.filter(pl.col("name") == compilation.LOOKUP).select(
        "parent", at="ts", lookup="ts"
    )


def _overhead(view: View, regions: pl.DataFrame) -> pl.DataFrame:
    """Return the host time of the parts after a break that one part would not have.

    That is from the check of the guards to the first operator of compiled code, and
    from its last one to the end of the region.
    """
    ops = view.ops
    roots = view.roots(pl.col("id").is_in(regions["id"].implode()))
    name = text("name")
    work = (
        ops.with_columns(root=roots.gather(ops["id"]))
        .filter(
            pl.col("root").is_not_null(),
            ~name.is_in([*_WRAPPERS, compilation.LOOKUP, compilation.CALL]),
            ~name.str.contains(compilation.REGION),
        )
        .group_by("root")
        .agg(first=pl.col("ts").min(), last=END.max())
    )
    timed = regions.join(work, left_on="id", right_on="root", how="left").select(
        begin=pl.coalesce("lookup", "ts"), end=END, first="first", last="last"
    )
    before = timed.select(start="begin", end=pl.coalesce("first", "end"))
    after = timed.drop_nulls("last").select(start="last", end="end")
    return pl.concat([before, after]).filter(pl.col("start") < pl.col("end"))


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
    after = (name == compilation.CALL).cum_sum().over("parent") > 0
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
