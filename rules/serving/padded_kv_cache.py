"""SRV008: attention goes over a cache that is far longer than the context."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base import ownership
from traceq.analysis.patterns import kv_cache
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
    inputs,
    kernel_lines,
    module_line,
    often,
    option,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.linter import Finding

_BUCKET = 256
_BF16 = "c10::BFloat16"
_MASKED = "aten::_scaled_dot_product_efficient_attention"
_SDPA = "aten::scaled_dot_product_attention"
_STEPS = (f"[{_SDPA}]   ", f"[{_MASKED}]  ")
_MARKS = "".join(
    f"[ProfilerStep#{at}".ljust(len(step) - 1) + "]" for at, step in enumerate(_STEPS)
)
_DRAWN = f"""
    host   {_MARKS}
    host    {"".join(_STEPS)}
    host     [cudaLaunchKernel>1]                   [cudaLaunchKernel>2]
    gpu 7                [flash_fwd<1]                       [fmha_cutlassF<2      ]
"""


def _called(cache: int) -> dict[str, dict[str, object]]:
    prompt, key = [8, 16, 300, 64], [8, 16, cache, 64]
    return {
        _SDPA: inputs([prompt] * 3, [_BF16] * 3),
        _MASKED: inputs(
            [[8, 16, 1, 64], key, key, [8, 1, 1, cache]], [_BF16] * 3 + ["bool"]
        ),
    }


@dataclass(frozen=True)
class PaddedKvCache(Rule):
    """Attention of decode goes over a static cache far longer than the context.

    ## What it does

    Compares the keys that masked attention goes over in decode iterations with the
    context: what the engine states, else the prompts of the prefill before and a token
    for each decode since. It reports caches at least ``min-times`` as long. The saving
    is the share of the kernels' time that keys beyond the context take, up to the next
    multiple of 256.

    ## Why is this bad?

    Keys behind the mask are read and multiplied all the same. Where the cache is sized
    for the longest text, most of what attention reads is padding, in every layer and
    for every token.

    ## How to fix it

    Cut the cache to the length that is in use, rounded up to a few sizes so that graphs
    can be captured for each; or use attention that knows the lengths: paged, variable
    length, FlexAttention with a block mask.

    ```diff
    - y = sdpa(q, keys, values, attn_mask=mask)
    + n = bucket(length)     # 256, 512, 1024, …
    + y = sdpa(q, keys[:, :, :n], values[:, :, :n], attn_mask=mask[..., :n])
    ```

    With transformers give ``max_cache_len``, or the new tokens, no larger than needed.

    ## When it is wrong

    Requests of unequal length share the longest: then the mean context says too little.
    A graph for each bucket takes memory.
    """

    code = "SRV008"
    since = "0.2.0"
    see = (
        "torch.nn.attention.flex_attention",
        "torch.nn.functional.scaled_dot_product_attention",
    )
    needs = frozenset({Need.GPU, Need.OPS, Need.SHAPES, Need.STEPS})
    advice = (
        "attend over the part of the cache that is in use, rounded up to a few lengths,"
        " or use attention that knows the lengths (paged, FlexAttention)"
    )

    min_times: float = option(2.0, "Caches shorter than this many contexts are fine.")

    seen = Seen(
        text="""
        SRV008 padded-kv-cache
          GPU 10.1 µs/step, but a fix likely saves nothing; up to 3.71 µs if the
            host is faster than estimated
          attention goes over 4,096 keys for a context of 301, once in 2 steps
          gpu      11.5 µs
          padding  93%
          kernel   fmha_cutlassF ×0.5
          fix      attend over the part of the cache that is in use, rounded up to a
                   few lengths, or use attention that knows the lengths (paged,
                   FlexAttention)
        """,
    )

    examples = (
        Bad(
            _DRAWN,
            finds=(
                "attention goes over 4,096 keys for a context of 301, once in 2 steps"
            ),
            args=_called(4096),
        ),
        Good(_DRAWN, args=_called(512)),
    )

    def check(self, view: View) -> Iterator[Finding]:
        """Group the calls by place and length of the cache."""
        calls = kv_cache.padded_attention(view.trace)
        if not calls.height:
            return
        calls = calls.filter(
            pl.col("cache") >= self.min_times * pl.col("context"),
            pl.col("cache") - pl.col("context") >= _BUCKET,
        )
        if not calls.height:
            return
        owner = ownership.inside(view.trace, calls["id"]).gather(view.kernels["op"])
        kernels = view.kernels.with_columns(owner=owner).join(
            calls.select("cache", "context", owner="id"), on="owner"
        )
        groups = view.by_place(
            kernels,
            "cache",
            gpu_ns=pl.col("dur").sum(),
            ops=pl.col("owner").unique(),
            context=pl.col("context").max(),
        )
        for row in groups.iter_rows(named=True):
            used = -(-int(row["context"]) // _BUCKET) * _BUCKET
            count = len(row["ops"]) / view.steps
            yield self.finding(
                f"attention goes over {row['cache']:,} keys for a context of"
                f" {row['context']:,.0f}, {often(count)}",
                subject="attention",
                place=view.place(row),
                count=count,
                fix=Fix(kernels=row["ids"], kernel_share=1 - used / row["cache"]),
                evidence=[
                    Evidence("gpu", value=row["gpu_ns"] / view.steps, unit="ns"),
                    Evidence(
                        "padding", value=1 - row["context"] / row["cache"], unit="share"
                    ),
                    *kernel_lines(view, row["ids"]),
                    *module_line(row["modules"]),
                ],
                data={"cache": row["cache"], "context": round(row["context"])},
                ops=row["ops"],
            )
