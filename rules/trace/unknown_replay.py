"""TRC007: CUDA graphs are replayed whose capture is not known."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.patterns import compilation
from traceq.linter import (
    Bad,
    Evidence,
    Good,
    Need,
    Rule,
    Seen,
    Severity,
    View,
    dataclass,
    often,
    option,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.linter import Finding


@dataclass(frozen=True)
class UnknownReplay(Rule):
    """CUDA graphs are replayed whose capture is not known, so rules see no operators.

    ## What it does

    Adds up the GPU's time of kernels that a CUDA graph replays and that no capture
    gives an operator, a module and a line.

    ## Why is this bad?

    It is not bad for the program. But a replay has no operators: rules on attention,
    norms, matmuls, copies and layouts cannot look at what these kernels are for, and
    find nothing there whatever is wrong.

    ## How to fix it

    Record with ``traceq collect``, which profiles the captures that it sees made, or
    give a trace of the capture.

    ```diff
    - traceq lint replay.json
    + traceq lint replay.json --capture capture.json
    ```

    ## When it is wrong

    Kernels that no rule has a word on may be part of it.
    """

    code = "TRC007"
    since = "0.2.0"
    see = ("torch.cuda.graph",)
    severity = Severity.info
    needs = frozenset({Need.GPU})
    priced = False
    advice = (
        "record with traceq collect, which profiles captures, or give the trace of the"
        " capture with --capture"
    )

    min_share: float = option(
        0.05, "A smaller share of the GPU's time is not reported."
    )

    seen = Seen(
        of="fixtures/graph_replay",
        text="""
        TRC007 unknown-replay
          CUDA graphs whose capture is not known are replayed twice a step: rules on
            operators skip their kernels
          share    48% of the GPU's time
          kernels  160 a step
          mostly   nvjet_sm90_tst_96x64_64x8_1x2_h_bz_NNN
          fix      record with traceq collect, which profiles captures, or give the
                   trace of the capture with --capture
        """,
    )

    examples = (
        Bad(
            """
            host   [ProfilerStep#1         ]
            host    [cudaGraphLaunch>1]
            gpu 7                [gemm<1   ]
            """,
            finds="CUDA graphs whose capture is not known are replayed once a step:"
            " rules on operators skip their kernels",
        ),
        Good(
            """
            host   [ProfilerStep#1         ]
            host    [aten::mm           ]
            host     [cudaLaunchKernel>1]
            gpu 7                [gemm<1   ]
            """
        ),
    )

    def check(self, view: View) -> Iterator[Finding]:
        """Add up what is replayed without a capture."""
        lost = compilation.without_capture(view.trace)[view.kernels["id"]]
        if not lost.any():
            return
        replayed = view.kernels.filter(lost)
        total = int(view.kernels["dur"].sum())
        if not total or replayed["dur"].sum() < self.min_share * total:
            return
        share = int(replayed["dur"].sum()) / total
        calls = replayed["launch"].n_unique() / view.steps
        yield self.finding(
            f"CUDA graphs whose capture is not known are replayed {often(calls)}: rules"
            " on operators skip their kernels",
            subject="replay without capture",
            count=calls,
            evidence=[
                Evidence("share", value=share, unit="share", note="of the GPU's time"),
                Evidence("kernels", value=replayed.height / view.steps, note="a step"),
                Evidence(
                    "mostly",
                    str(
                        replayed.group_by("name")
                        .agg(pl.col("dur").sum())
                        .sort("dur", "name", descending=[True, False])["name"]
                        .cast(pl.String)[0]
                    ),
                ),
            ],
            data={"share": share},
        )
