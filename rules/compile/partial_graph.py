"""JIT004: one pass of compiled code replays a CUDA graph, the other does not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.patterns import compilation
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
    option,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from traceq.linter import Finding

_BACKWARD = f"{compilation.CALL}Backward"
_MOST_REASONS = 3
_SKIPPING = "skipping cudagraphs due to "
# Words of torch's reason, and what to do.
_REASONS = {
    "cpu device": "move the tensors on the CPU to the GPU before compiled code",
    "mutated inputs": "return what is changed in place instead of writing to an input",
    "mutation": "return what is changed in place instead of writing to an input",
    "multiple devices": "compile the part of each GPU by itself",
    "dynamic shape": "pad to a few fixed sizes",
    "incompatible op": "move the operator that it names out of compiled code",
}


@dataclass(frozen=True)
class PartialGraph(Rule):
    """One pass of compiled code replays a CUDA graph while the other launches kernels.

    ## What it does

    Looks for compiled functions whose forward is one ``cudaGraphLaunch`` while the
    backward launches its kernels one by one, or the other way round. Both passes are
    compiled with the same options, so graphs were wanted and skipped for one of them.
    If they were skipped for both, a trace does not show it; a run of ``traceq collect``
    does, with torch's reason, and the log does ("skipping cudagraphs due to"), which
    LOG008 reads. The fix removes the host time of the launches.

    ## Why is this bad?

    The launches that ``mode="reduce-overhead"`` was meant to save are still there, and
    only a line of the log reports it.

    ## How to fix it

    Look in the log for "skipping cudagraphs due to", or run with
    ``TORCH_LOGS=cudagraphs``: it names the cause, such as an input that is changed in
    place, a tensor on the CPU, or an operator that cannot be captured.

    ```diff
      @torch.compile(mode="reduce-overhead")
      def step(x, running):
    -     running.mul_(0.9).add_(x.mean())  # an input that is changed in place
    -     return head(x)
    +     return head(x), 0.9 * running + x.mean()
    ```

    ## When it is wrong

    In steps that are still warming up. Steps that capture graphs are not looked at.
    """

    code = "JIT004"
    several_fixes = True
    since = "0.1.0"
    see = ("torch.compile", "torch._logging.set_logs")
    needs = frozenset({Need.GPU, Need.OPS})

    min_launches: int = option(2, "Passes with fewer launches are not reported.")

    seen = Seen(
        text="""
        JIT004 partial-graph  saves 13.5 µs/step (47%), 4.96 µs to 13.5 µs
          the backward of compiled code launches 2 kernels a step though its forward
            replays a CUDA graph
          launches  36.0 µs of the host a step, as recorded
          fix       look in the log for `skipping cudagraphs due to`, or run with
                    TORCH_LOGS=cudagraphs: it names the cause
        """,
    )

    examples = (
        Bad(
            """
            host   [ProfilerStep#1                                               ]
            host    [CompiledFunction   ]
            host     [cudaGraphLaunch>1]
            host 2                        [CompiledFunctionBackward             ]
            host 2                         [cuLaunchKernel>2] [cuLaunchKernel>3]
            gpu 7                    [a<1]                [b<2]              [c<3]
            """,
            finds=(
                "the backward of compiled code launches 2 kernels a step"
                " though its forward replays a CUDA graph",
            ),
            args={
                "CompiledFunction": {"Sequence number": 5, "Fwd thread id": 0},
                "CompiledFunctionBackward": {"Sequence number": 5, "Fwd thread id": 1},
            },
        ),
        Good(
            """
            host   [ProfilerStep#1                                               ]
            host    [CompiledFunction   ]
            host     [cudaGraphLaunch>1]
            host 2                        [CompiledFunctionBackward             ]
            host 2                         [cudaGraphLaunch>2]
            gpu 7                    [a<1]                 [b<2]
            """,
            args={
                "CompiledFunction": {"Sequence number": 5, "Fwd thread id": 0},
                "CompiledFunctionBackward": {"Sequence number": 5, "Fwd thread id": 1},
            },
        ),
    )

    def check(self, view: View) -> Iterator[Finding]:
        """Compare what the forward and the backward of each compiled call launch."""
        if not view.has_op([compilation.CALL, _BACKWARD]):
            return
        if compilation.captures(view.trace, view.steady).height:
            return
        launches = _launches(view)
        calls = (
            view.ops.filter(pl.col("name") == _BACKWARD)
            .join(launches, left_on="id", right_on="root")
            .join(launches, left_on="forward", right_on="root", suffix="_forward")
        )
        yield from self._findings(view, calls, "backward", "", "_forward")
        yield from self._findings(view, calls, "forward", "_forward", "")
        reasons = view.trace.rank.graphs_disabled if view.trace.rank else ()
        if reasons and not launches["graphs"].sum():
            yield from self._disabled(view, launches, reasons)

    def _disabled(
        self, view: View, launches: pl.DataFrame, reasons: Sequence[str]
    ) -> Iterator[Finding]:
        """Yield that no pass replays a graph though graphs were requested."""
        calls = launches.explode("launches").drop_nulls("launches")
        count = calls.height / view.steps
        if count < self.min_launches:
            return
        why = reasons[0].removeprefix(_SKIPPING)
        yield self.finding(
            f"compiled code launches {counted(count, 'kernel')} a step though CUDA"
            f" graphs were requested: {why}",
            subject="no graph",
            count=count,
            fix=Fix(calls=calls["launches"].to_list()),
            evidence=[Evidence("reason", reason) for reason in reasons[:_MOST_REASONS]],
            advice=_advice(why),
            ops=launches["root"].to_list(),
        )

    def _findings(
        self, view: View, calls: pl.DataFrame, slow: str, own: str, other: str
    ) -> Iterator[Finding]:
        """Yield the compiled calls one pass of which launches its kernels.

        ``mine`` and ``other`` are the suffixes of that pass's columns and the other's.
        """
        fast = "forward" if slow == "backward" else "backward"
        rows = (
            calls.filter(
                pl.col(f"graphs{own}") == 0,
                pl.col(f"graphs{other}") > 0,
                pl.col(f"launches{own}").list.len() >= self.min_launches,
            )
            .group_by("file", "line", "function", "module", maintain_order=True)
            .agg(
                launches=pl.col(f"launches{own}").explode(),
                host=pl.col(f"host{own}").sum(),
                ops="id" if slow == "backward" else "forward",
            )
        )
        for row in rows.iter_rows(named=True):
            count = len(row["launches"]) / view.steps
            yield self.finding(
                f"the {slow} of compiled code launches {counted(count, 'kernel')}"
                f" a step though its {fast} replays a CUDA graph",
                subject=f"{slow} without graph",
                place=view.place(row),
                count=count,
                fix=Fix(calls=row["launches"]),
                evidence=[
                    Evidence(
                        "launches",
                        value=row["host"] / view.steps,
                        unit="ns",
                        note="of the host a step, as recorded",
                    )
                ],
                advice="look in the log for `skipping cudagraphs due to`, or run"
                " with TORCH_LOGS=cudagraphs: it names the cause",
                ops=row["ops"],
            )


def _advice(why: str) -> str:
    """Return what removes the reason for which torch skips graphs."""
    for sign, advice in _REASONS.items():
        if sign in why:
            return advice
    return "remove the reason, or compile without requesting graphs"


def _launches(view: View) -> pl.DataFrame:
    """Return what each compiled call launches: graphs, kernels, and the host's time."""
    calls = view.runtime[["id", "op", "call", "dur"]].drop_nulls("op")
    roots = view.roots(pl.lit(view.ops_named([compilation.CALL, _BACKWARD])))
    single = pl.col("call") == "launch"
    return (
        calls.with_columns(root=roots.gather(calls["op"]))
        .drop_nulls("root")
        .group_by("root")
        .agg(
            graphs=(pl.col("call") == "graph launch").sum(),
            launches=pl.col("id").filter(single),
            host=pl.col("dur").filter(single).sum(),
        )
    )
