"""SRV005: a long prefill makes decoding requests wait."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.patterns import iteration_marks
from traceq.analysis.patterns.iterations import iterations
from traceq.linter import (
    Bad,
    Evidence,
    Good,
    Need,
    Rule,
    Seen,
    View,
    counted,
    dataclass,
    option,
)

from ._shared import DECODE as DRAWN

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.linter import Finding

_CHUNK = 1024
_LONG = "@execute_context_1(8192)_generation_16(16)"


def _drawn(long: int) -> str:
    """Draw a decode, an iteration that reads a prompt too, and a decode."""
    width = len(DRAWN) + 3
    widths = (width, long, width)
    names = (DRAWN, _LONG, DRAWN)
    regions = "".join(
        f"[{name}".ljust(wide - 1) + "]"
        for name, wide in zip(names, widths, strict=True)
    )
    launches = "".join(
        f" [cudaLaunchKernel>{at}]".ljust(wide) for at, wide in enumerate(widths, 1)
    )
    kernels = "".join(
        f"            [k<{at}".ljust(wide - 2) + "] "
        for at, wide in enumerate(widths, 1)
    )
    return f"""
        host   {regions}
        host   {launches}
        gpu 7  {kernels}
    """


@dataclass(frozen=True)
class PrefillStall(Rule):
    """A long prefill makes the requests that decode wait for their next token.

    ## What it does

    Looks at iterations that read a prompt, alone or together with decodes, while other
    requests decode before and after, and compares them with the decode iterations: it
    reports those that take at least ``min-times`` as long and ``min-ms`` longer. The
    requests and tokens are the engine's, or as shapes tell.

    ## Why is this bad?

    All requests that decode wait for the whole prompt: each of their users sees the
    text stop. The time between tokens is bounded by the longest prompt that arrives.

    ## How to fix it

    Read long prompts in chunks, each together with the decodes: vLLM's
    ``--max-num-batched-tokens``, SGLang's ``--chunked-prefill-size``; or read prompts
    on other GPUs (disaggregated prefill).

    ```diff
    - vllm serve MODEL --max-num-batched-tokens 16384
    + vllm serve MODEL --max-num-batched-tokens 2048
    ```

    ## When it is wrong

    If throughput is all that counts: chunks save no time, they spread it, and small
    ones cost some. That is why no saving is stated.
    """

    code = "SRV005"
    since = "0.2.0"
    needs = frozenset({Need.STEPS})
    priced = False
    advice = (
        "read long prompts in chunks together with the decodes: vLLM's"
        " --max-num-batched-tokens, SGLang's --chunked-prefill-size"
    )

    min_times: float = option(
        1.5, "Iterations shorter than this many decodes are not reported."
    )
    min_ms: float = option(5.0, "A stall shorter than this is not reported.")

    seen = Seen(
        text="""
        SRV005 prefill-stall
          a prefill of 8,192 tokens makes 16 decoding requests wait
          takes   6.00 ms as recorded
          decode  42.0 µs at the median, as recorded
          stalls  1 in the trace
          chunks  of 1,024 tokens: about 787 µs each, if time grows with the tokens
          fix     read long prompts in chunks together with the decodes: vLLM's
                  --max-num-batched-tokens, SGLang's --chunked-prefill-size
        """,
    )

    examples = (
        Bad(
            _drawn(6000),
            finds="a prefill of 8,192 tokens makes 16 decoding requests wait",
        ),
        Good(_drawn(60)),
    )

    def check(self, view: View) -> Iterator[Finding]:
        """Report the longest of these iterations, and how many there are."""
        every = iterations(view.trace)
        if not every.height:
            return
        every = every.with_columns(waiting=_waiting())
        usual = every.filter(pl.col("phase") == iteration_marks.DECODE)["time"].median()
        if not isinstance(usual, float) or not usual:
            return
        stalls = every.filter(
            pl.col("phase").is_in([iteration_marks.PREFILL, iteration_marks.MIXED]),
            pl.col("waiting") > 0,
            pl.col("prefill_tokens") > 1,
            pl.col("time") >= self.min_times * usual,
            pl.col("time") - usual >= self.min_ms * 1e6,
        ).sort("time", descending=True)
        if not stalls.height:
            return
        worst = stalls.row(0, named=True)
        tokens, extra = worst["prefill_tokens"], worst["time"] - usual
        chunk = usual + extra * min(1.0, _CHUNK / tokens)
        yield self.finding(
            f"a prefill of {tokens:,} tokens makes"
            f" {counted(worst['waiting'], 'decoding request')} wait",
            subject="prefill",
            count=stalls.height / max(1, every.height),
            evidence=[
                Evidence("takes", value=worst["time"], unit="ns", note="as recorded"),
                Evidence(
                    "decode", value=usual, unit="ns", note="at the median, as recorded"
                ),
                Evidence("stalls", value=stalls.height, note="in the trace"),
                *(
                    [
                        Evidence(
                            "chunks",
                            f"of {_CHUNK:,} tokens: about",
                            value=chunk,
                            unit="ns",
                            note="each, if time grows with the tokens",
                        )
                    ]
                    if tokens > _CHUNK
                    else []
                ),
            ],
            data={"tokens": tokens, "waiting": worst["waiting"], "step": worst["step"]},
        )


def _waiting() -> pl.Expr:
    """Return how many requests decode while a prompt is read.

    In an iteration of its own these are the requests that decode before and after.
    """
    mixed = pl.col("requests") - pl.col("prefill_requests")
    decoding = pl.when(pl.col("phase") == iteration_marks.DECODE).then("requests")
    before, after = decoding.forward_fill(), decoding.backward_fill()
    alone = pl.min_horizontal(before, after - pl.col("prefill_requests"))
    return (
        pl.when(pl.col("phase") == iteration_marks.MIXED)
        .then(mixed)
        .when(
            (pl.col("phase") == iteration_marks.PREFILL)
            & before.is_not_null()
            & after.is_not_null()
        )
        .then(alone)
        .otherwise(0)
    )
