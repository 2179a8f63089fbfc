"""SRV009: every token is computed again for each new one."""

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
    module_line,
    often,
)

from ._shared import generates_with_transformers, static_cache

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.linter import Finding, Place

_OWN = (
    "keep the keys and values of earlier tokens in a cache, and run the model on the"
    " newest token only"
)
_USE_CACHE = "generate(…, use_cache=True)"
_BF16 = "c10::BFloat16"
_SDPA = "aten::_scaled_dot_product_"
_FUSED = tuple(f"{_SDPA}{name}_attention" for name in ("flash", "efficient", "cudnn"))
# Overloads: what is drawn under one name has the same shapes in all steps.
_SCORES = ("aten::bmm", "aten::bmm.out", "aten::bmm.dtype")


def _steps(names: tuple[str, ...]) -> str:
    """Draw three steps, with one of these ops in each."""
    width = max(map(len, names)) + 30
    lanes = {
        "host  ": "[ProfilerStep#{at}".ljust(width) + "]",
        "host   ": " [{name:<24}]",
        "host    ": "  [cudaLaunchKernel>{at}]",
        "gpu 7": "          [attention<{at}   ]",
    }
    return "\n".join(
        f"    {lane:8}"
        + "".join(
            drawn.format(at=at, name=name).ljust(width) for at, name in enumerate(names)
        )
        for lane, drawn in lanes.items()
    )


def _attends(*lengths: tuple[int, int]) -> dict[str, dict[str, object]]:
    """Return the inputs of fused attention, for the queries and keys of each step."""
    return {
        name: inputs([[1, 12, query, 64], *[[1, 12, key, 64]] * 2], [_BF16] * 3)
        for name, (query, key) in zip(_FUSED, lengths, strict=True)
    }


def _multiplies(*lengths: int) -> dict[str, dict[str, object]]:
    """Return the inputs of the product of queries and keys, for each step."""
    return {
        name: inputs([[12, length, 64], [12, 64, length]], [_BF16] * 2)
        for name, length in zip(_SCORES, lengths, strict=True)
    }


@dataclass(frozen=True)
class MissingKvCache(Rule):
    """Generation computes the whole text again for each new token, without a KV cache.

    ## What it does

    Looks for self-attention with as many queries as keys whose length grows by the same
    few tokens from step to step, in at least three steps without a backward pass. The
    saving is the time of the kernels beyond what the newest token needs: matmuls still
    read their weights (roofline), other kernels shrink with the number of tokens.

    ## Why is this bad?

    The keys and values of earlier tokens do not change. Computing them again makes
    the cost of a token grow with the length of the text, the cost of a text with its
    square. Sizes that are new in every step also rule out a CUDA graph.

    ## How to fix it

    ```diff
    - logits = model(tokens)[:, -1]
    + logits, cache = model(tokens[:, -1:], cache)   # the prompt goes first, as a whole
    ```

    With transformers call ``generate(…, use_cache=True)``, which is the default.

    ## When it is wrong

    Attention that is not causal (each new token changes what the earlier ones attend
    to) cannot be cached. Where the host is the limit and texts are short, a cache alone
    saves little; together with a CUDA graph (SRV001) it does.
    """

    code = "SRV009"
    since = "0.5.0"
    see = ("torch.Tensor.index_copy_",)
    needs = frozenset({Need.GPU, Need.OPS, Need.SHAPES, Need.STEPS})

    seen = Seen(
        text="""
        SRV009 missing-kv-cache
          GPU 11.0 µs/step, but a fix saves nothing: it is not on the critical path
          every step computes the whole text again: 302 tokens at last, 1 more than
            in the step before
          gpu    16.0 µs
          calls  of attention once a step
          fix    keep the keys and values of earlier tokens in a cache, and run the
                 model on the newest token only; if it is transformers that
                 generates, generate(…, use_cache=True)
        """,
    )

    examples = (
        Bad(
            _steps(_FUSED),
            finds=(
                "every step computes the whole text again: 302 tokens at last, 1 more"
                " than in the step before"
            ),
            args=_attends((300, 300), (301, 301), (302, 302)),
        ),
        Bad(
            _steps(_SCORES),
            finds=(
                "every step computes the whole text again: 34 tokens at last, 2 more"
                " than in the step before"
            ),
            args=_multiplies(30, 32, 34),
        ),
        Good(_steps(_FUSED), args=_attends((1, 300), (1, 301), (1, 302))),
        Good(_steps(_FUSED), args=_attends((256, 256), (320, 320), (384, 384))),
        Good(_steps(_SCORES), args=_multiplies(30, 31, 30)),
    )

    def check(self, view: View) -> Iterator[Finding]:
        """Report the loop once, at the attention that takes longest."""
        calls = kv_cache.recomputed_attention(view.trace)
        if not calls.height:
            return
        owner = ownership.inside(view.trace, calls["id"]).gather(view.kernels["op"])
        attention = view.kernels.with_columns(owner=owner).drop_nulls("owner")
        groups = view.by_place(
            attention, gpu_ns=pl.col("dur").sum(), ops=pl.col("owner").unique()
        )
        if not groups.height:
            return
        lengths = calls["length"].unique().sort()
        longest, growth = int(lengths[-1]), int(lengths[-1] - lengths[-2])
        place = groups.sort("gpu_ns", descending=True, maintain_order=True).row(
            0, named=True
        )
        kernels, share = kv_cache.recomputed_kernels(
            view.trace, view.kernels, view.gpu, longest / growth
        )
        steps = f"{growth:,} more than in the step before"
        yield self.finding(
            f"every step computes the whole text again: {longest:,} tokens at last,"
            f" {steps}",
            subject="KV cache",
            place=_loop(view, calls) or view.place(place),
            count=calls.height / view.steps,
            fix=Fix(kernels=kernels["id"].to_list(), kernel_share=share),
            evidence=[
                Evidence(
                    "gpu", value=int(kernels["dur"].sum()) / view.steps, unit="ns"
                ),
                Evidence("calls", f"of attention {often(calls.height / view.steps)}"),
                *module_line(place["modules"]),
            ],
            data={"length": longest, "growth": growth},
            advice=static_cache(view, _OWN, _USE_CACHE),
            example=None if not generates_with_transformers(view) else "",
            ops=place["ops"],
        )


def _loop(view: View, calls: pl.DataFrame) -> Place | None:
    """Return the innermost function of the user's that makes all of these calls."""
    frames = view.trace.frames.filter(
        "own",
        pl.col("thread") == calls["thread"][0],
        pl.col("ts") <= calls["ts"].min(),
        pl.col("ts") + pl.col("dur") >= calls["ts"].max(),
    )
    for row in frames.sort("dur").head(1).iter_rows(named=True):
        return view.place(row)
    return None
