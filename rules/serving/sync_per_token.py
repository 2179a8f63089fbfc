"""SRV003: the host waits for every token before it launches the next iteration."""

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
    dataclass,
    option,
)

from ._shared import loop, sync_calls, written

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.linter import Finding

_WIDTH = 50


def _drawn(sync: str) -> str:
    return loop(
        3,
        _WIDTH,
        ("host", " [cudaGraphLaunch>#]"),
        ("host", " " * 21 + "[aten::item                ]"),
        ("host", " " * 22 + sync),
        ("gpu 7", " " * 12 + "[gemm<#                          ]"),
    )


@dataclass(frozen=True)
class SyncPerToken(Rule):
    """The host waits for every token before it launches the next decode iteration.

    ## What it does

    Looks for calls that block the host, as ``.item()`` or ``.tolist()`` do, and that
    return as the GPU runs out of work, in most decode iterations of a serving or
    generation trace, where the GPU then idles for at least ``min-share`` of decode. If
    the host works on the token in that time, SRV002 reports it instead. SYN001 and
    SYN002 leave these waits to this rule.

    ## Why is this bad?

    The launch of the next iteration begins only when the host knows the token, which
    the GPU has had all along. The GPU idles for the way there and back and for the
    launch, once a token.

    ## How to fix it

    Keep the sampled token on the GPU: it is the next iteration's input. Ask whether all
    requests have ended every few tokens, or one iteration later.

    ```diff
      for n in range(max_new_tokens):
          token = decode(token)
    -     if (token == eos).all().item():
    -         break
    +     ended |= token == eos
    +     if n % 16 == 15 and ended.all().item():
    +         break
    ```

    ## When it is wrong

    Up to that many tokens are computed for nothing at the end: drop them. If the next
    iteration depends on the token on the host, the wait is needed.
    """

    code = "SRV003"
    since = "0.2.0"
    see = ("torch.Tensor.item",)
    needs = frozenset({Need.GPU, Need.STEPS})
    advice = (
        "keep the sampled token on the GPU as the next iteration's input, and read it,"
        " or check for the end, every few tokens or one iteration later"
    )

    min_share: float = option(
        serving.LEAST_GAP,
        "Less idle time after it, as a share of decode, is not reported.",
    )

    seen = Seen(
        of="tests/data/serving/sync_item_graph_vllm.json.gz",
        text="""
        SRV003 sync-per-token  saves 181 µs/step (19%), 140 µs to 269 µs
          `.item()` makes the host wait for each token before the next decode
          waits  565 µs each, as recorded
          idle   406 µs on the GPU after each, as recorded
          share  35% of decode
          fix    keep the sampled token on the GPU as the next iteration's input,
                 and read it, or check for the end, every few tokens or one
                 iteration later
        """,
    )

    examples = (
        Bad(
            _drawn("[cudaStreamSynchronize   ]"),
            finds="`.item()` makes the host wait for each token before the next decode",
        ),
        Good(_drawn("[cudaEventQuery]")),
    )

    def check(self, view: View) -> Iterator[Finding]:
        """Group the waits for tokens by place."""
        gaps = serving.token_gaps(view.trace)
        if not gaps or not gaps.by_sync or gaps.share < self.min_share:
            return
        idle_ns = int((gaps.gaps["end"] - gaps.gaps["start"]).sum())
        rows = view.by_place(
            gaps.syncs,
            wait=pl.col("wait").sum(),
            op=pl.col("op").first(),
            name=pl.col("name").cast(pl.String).first(),
            copies=pl.col("copies").first(),
        )
        for row in rows.iter_rows(named=True):
            group_rows = gaps.syncs.filter(pl.col("id").is_in(row["ids"]))
            share = group_rows.height / gaps.syncs.height
            yield self.finding(
                f"{written(view, row)} makes the host wait for each token before the"
                " next decode",
                subject="token",
                place=view.place(row),
                count=group_rows.height / view.steps,
                fix=Fix(syncs=sync_calls(view, group_rows)),
                gpu_idle_ns=share * idle_ns / view.steps,
                evidence=[
                    Evidence(
                        "waits",
                        value=row["wait"] / group_rows.height,
                        unit="ns",
                        note="each, as recorded",
                    ),
                    Evidence(
                        "idle",
                        value=idle_ns / max(1, gaps.gaps.height),
                        unit="ns",
                        note="on the GPU after each, as recorded",
                    ),
                    Evidence("share", value=gaps.share, unit="share", note="of decode"),
                ],
                data={"gap_share": round(gaps.share, 4)},
                ops=[row["op"]] if row["op"] is not None else [],
            )
