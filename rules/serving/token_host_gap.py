"""SRV002: the GPU idles between decode iterations while the host works."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.time import serving
from traceq.linter import (
    Bad,
    Evidence,
    Fix,
    Good,
    Need,
    Rule,
    Seen,
    View,
    at_function,
    dataclass,
    option,
)

from ._shared import loop, sync_calls, written

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.linter import Finding

_MOST_ACTIVITIES = 4
_WIDTH = 90


def _drawn(kernel: str) -> str:
    return loop(
        3,
        _WIDTH,
        ("host", " [cudaGraphLaunch>#]"),
        ("host", " " * 20 + "[aten::item               ]"),
        ("host", " " * 21 + "[cudaStreamSynchronize  ]"),
        ("host", " " * 47 + "[serve.py(9): detokenize               ]"),
        ("gpu 7", " " * 12 + kernel),
    )


@dataclass(frozen=True)
class TokenHostGap(Rule):
    """The GPU idles between decode iterations while the host works on the last token.

    ## What it does

    Adds up, in the decode iterations of a serving or generation trace, how long the GPU
    idles before each, and what the host does then: scheduling, sampling, detokenising,
    preparing inputs, as functions' names tell where stacks were recorded, else as
    operators and Python. It reports gaps of at least ``min-share`` of decode in which
    that work alone takes as much. Launching the iteration itself does not count.

    The fix lets the host launch the next iteration before it works on the last token:
    the replayed step goes without waiting for the token.

    ## Why is this bad?

    An iteration takes a few milliseconds or less, and the host's work comes on top of
    it for every token of every request. A faster GPU makes it worse.

    ## How to fix it

    Feed the sampled tokens to the next iteration on the GPU, launch it, and do the
    host's work on the tokens of the iteration before while it runs.

    ```diff
      token = decode(token)
    - texts.append(detokenize(token.tolist()))
    + ready = to_pinned(token)                       # non_blocking, with an event
    + texts.append(detokenize(previous.tolist()))    # while the GPU decodes on
    + previous = ready
    ```

    Engines have it: vLLM's ``--async-scheduling``, SGLang's overlap scheduler, which is
    on unless ``--disable-overlap-schedule``. Detokenise in another process.

    ## When it is wrong

    A request that ends is seen one iteration late, which computes a token for nothing.
    Where the next iteration depends on the token on the host, as with grammars, the
    work cannot be moved. Without stacks it is not known what the Python does.
    """

    code = "SRV002"
    since = "0.2.0"
    see = ("torch.Tensor.to",)
    needs = frozenset({Need.GPU, Need.STEPS})
    advice = (
        "launch the next iteration before the host works on the last token: keep the"
        " token on the GPU, copy it into pinned memory with non_blocking=True, and work"
        " on it while the next one runs (vLLM: --async-scheduling)"
    )

    min_share: float = option(
        serving.LEAST_GAP, "Smaller shares of decode are not reported."
    )

    seen = Seen(
        text="""
        SRV002 token-host-gap  saves 23.2 µs/step (42%), 16.9 µs to 23.2 µs
          the GPU idles before decode iterations while the host is detokenising
          idle   43% of decode
          host   detokenising, most in detokenize 26.7 µs an iteration, as recorded
          host   other Python 2.67 µs an iteration, as recorded
          waits  `.item()` before that
          fix    launch the next iteration before the host works on the last token:
                 keep the token on the GPU, copy it into pinned memory with
                 non_blocking=True, and work on it while the next one runs (vLLM:
                 --async-scheduling)
        """,
    )

    examples = (
        Bad(
            _drawn("[gemm<#                        ]"),
            finds=(
                "the GPU idles before decode iterations while the host is detokenising"
            ),
        ),
        Good(_drawn("[gemm<#" + " " * 71 + "]")),
    )

    def check(self, view: View) -> Iterator[Finding]:
        """Report the gaps in which the host works."""
        gaps = serving.token_gaps(view.trace)
        if not gaps or not gaps.by_work:
            return
        if min(gaps.share, gaps.work_share) < self.min_share:
            return
        work = (
            gaps.work.group_by("activity")
            .agg(pl.col("time").sum(), pl.col("name").get(pl.col("time").arg_max()))
            .sort("time", descending=True)
        )
        idle_ns = int((gaps.gaps["end"] - gaps.gaps["start"]).sum())
        yield self.finding(
            "the GPU idles before decode iterations while the host is"
            f" {_doing(work['activity'][0])}",
            subject="between decode iterations",
            count=gaps.gaps.height / view.steps,
            fix=_fix(view, gaps),
            gpu_idle_ns=idle_ns / view.steps,
            evidence=[
                Evidence("idle", value=gaps.share, unit="share", note="of decode"),
                *(
                    Evidence(
                        "host",
                        row["activity"]
                        + (f", most in {row['name']}" if row["name"] else ""),
                        value=row["time"] / gaps.iterations,
                        unit="ns",
                        note="an iteration, as recorded",
                    )
                    for row in work.head(_MOST_ACTIVITIES).iter_rows(named=True)
                ),
                *_sync(view, gaps),
            ],
            data={
                "gap_share": round(gaps.share, 4),
                "work_share": round(gaps.work_share, 4),
            },
        )


def _doing(activity: str) -> str:
    plain = {"other Python": "in Python", "other operators": "running operators"}
    return plain.get(
        activity, "in Python" if activity.startswith("Python") else activity
    )


def _fix(view: View, gaps: serving.TokenGaps) -> Fix:
    if gaps.syncs.height:
        return Fix(syncs=sync_calls(view, gaps.syncs))
    return Fix(spans=gaps.work.select("start", "end"))


def _sync(view: View, gaps: serving.TokenGaps) -> list[Evidence]:
    """Return where the host waits for the token before it works on it."""
    for row in gaps.syncs.head(1).iter_rows(named=True):
        place = at_function(row["file"], row["line"], row["function"])
        where = f" in {place}" if place else ""
        return [Evidence("waits", f"{written(view, row)}{where}", note="before that")]
    return []
