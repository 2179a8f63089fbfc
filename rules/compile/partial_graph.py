"""JIT004: one pass of compiled code replays a CUDA graph, the other does not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.patterns.compilation import CALL, recordings
from traceq.lint import Bad, Good, Need, Rule, View, option
from traceq.words import counted, time

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.lint import Finding

_BACKWARD = f"{CALL}Backward"


@dataclass(frozen=True)
class PartialGraph(Rule):
    """One pass of compiled code replays a CUDA graph while the other launches kernels.

    ## What it does

    Looks for compiled functions of which the forward is one ``cudaGraphLaunch`` and
    the backward launches its kernels one by one, or the other way round. Both were
    compiled with the same options: graphs were wanted and then skipped for one. Where
    they were skipped for both there is nothing to see in a trace; the program's log
    says so ("skipping cudagraphs due to"), and the LOG rules read it. The cost is the
    host's time for those launches.

    ## Why is this bad?

    The launches that ``mode="reduce-overhead"`` was to save are still there, and only
    a line of the log says so.

    ## How to fix it

    Read the log for "skipping cudagraphs due to", or run with
    ``TORCH_LOGS=cudagraphs``: it names the cause, such as an input that is changed
    in place, a tensor on the CPU, or an operator that cannot be recorded.

    ## When it is wrong

    In steps that are still warming up; those that record graphs are left out.
    """

    code = "JIT004"
    needs = frozenset({Need.GPU, Need.OPS})

    min_launches: int = option(2, "Fewer launches in the pass are not reported.")

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
        if recordings(view.trace, view.steady).height:
            return
        launches = _launches(view)
        pairs = (
            view.ops.filter(pl.col("name") == _BACKWARD)
            .join(launches, left_on="id", right_on="root")
            .join(launches, left_on="forward", right_on="root", suffix="_forward")
        )
        for slow, fast in (("backward", "forward"), ("forward", "backward")):
            mine, other = ("", "_forward") if slow == "backward" else ("_forward", "")
            rows = (
                pairs.filter(
                    pl.col(f"graphs{mine}") == 0,
                    pl.col(f"graphs{other}") > 0,
                    pl.col(f"kernels{mine}") >= self.min_launches,
                )
                .group_by("file", "line", "function", "module", maintain_order=True)
                .agg(
                    kernels=pl.col(f"kernels{mine}").sum(),
                    time=pl.col(f"time{mine}").sum(),
                    ops="id" if slow == "backward" else "forward",
                )
            )
            for row in rows.iter_rows(named=True):
                count = row["kernels"] / view.steps
                yield self.finding(
                    f"the {slow} of compiled code launches {counted(count, 'kernel')}"
                    f" a step though its {fast} replays a CUDA graph",
                    subject=f"{slow} without graph",
                    place=view.place(row),
                    count=count,
                    host_ns=row["time"] / view.steps,
                    evidence=[("launches", f"{time(row['time'] / view.steps)} a step")],
                    advice="look in the log for `skipping cudagraphs due to`, or run"
                    " with TORCH_LOGS=cudagraphs: it names the cause",
                    ops=row["ops"],
                )


def _launches(view: View) -> pl.DataFrame:
    """Return what each compiled call launches: graphs, kernels, and the host's time."""
    calls = view.runtime.filter(pl.col("op").is_not_null())
    roots = view.roots(pl.col("name").cast(pl.String).is_in([CALL, _BACKWARD]))
    single = pl.col("call") == "launch"
    return (
        calls.with_columns(root=roots.gather(calls["op"]))
        .drop_nulls("root")
        .group_by("root")
        .agg(
            graphs=(pl.col("call") == "graph launch").sum(),
            kernels=single.sum(),
            time=pl.col("dur").filter(single).sum(),
        )
    )
