"""LOG002: the log states why a fused attention kernel was not used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceq.linter import Bad, Good, Need, Rule, Seen, Severity, dataclass

from ._messages import Message, findings

if TYPE_CHECKING:
    from collections.abc import Iterator

    import polars as pl

    from traceq.linter import Finding

_MESSAGES = (
    Message(
        "mask",
        r"Flash Attention does not support non-null attn_mask",
        "FlashAttention does not support an attn_mask",
        "drop a causal mask and pass is_causal=True; for padding use variable-length"
        " sequences, for a bias FlexAttention",
        ("ATT001",),
        to_confirm=True,
    ),
    Message(
        "dtype",
        r"Expected query, key and value to all be of dtype: \{(?P<wanted>[^}]+)\}\."
        r" Got Query dtype: (?P<got>[^,]+)",
        "fused attention does not support {got}, only {wanted}",
        "run attention in bfloat16 or float16, for example under torch.autocast",
        ("ATT002",),
        to_confirm=True,
    ),
    Message(
        "head dim",
        r"requires q, ?k, ?v to have the same last dimension and to be less than or"
        r" equal to (?P<most>\d+)",
        "FlashAttention does not support head dimensions that differ or exceed {most}",
        "give queries, keys and values one head dimension of at most {most}",
        ("ATT002",),
        to_confirm=True,
    ),
    Message(
        "causal",
        r"does not support the is_causal flag when seqlen_q != seqlen_k",
        "FlashAttention supports is_causal only for queries and keys of equal length",
        "pass attn_mask=torch.nn.attention.bias.causal_lower_right(q_len, k_len)",
        ("ATT002",),
        to_confirm=True,
    ),
    Message(
        "stride",
        r"require the last dimension of the input to have stride 1",
        "fused attention supports only inputs whose last dimension is contiguous",
        "transpose so that the head dimension stays last in memory",
        ("ATT002",),
        to_confirm=True,
    ),
    Message(
        "hardware",
        r"[Ff]lash [Aa]ttention only supports gpu architectures in the range"
        r" (?P<range>\[[^\]]+\])",
        "FlashAttention does not run on this GPU, only on {range}",
        "nothing to fix in the program: FlashAttention does not support this GPU",
        ("ATT002",),
        Severity.info,
    ),
    Message(
        "build",
        r"Torch was not compiled with flash attention",
        "this build of torch has no FlashAttention",
        "install a build that has it (Linux, CUDA)",
        ("ATT002",),
        to_confirm=True,
    ),
    Message(
        "no kernel",
        r"No available kernel\. Aborting execution",
        "none of the allowed SDPA backends supports these inputs: the program fails",
        "allow another backend in sdpa_kernel([...]), or remove the cause that the"
        " lines before it name",
        severity=Severity.error,
    ),
    Message(
        "flex attention",
        r"flex_attention called without torch\.compile\(\)",
        "flex_attention runs uncompiled and materialises all scores",
        "call torch.compile(flex_attention)",
        ("ATT002",),
    ),
)


@dataclass(frozen=True)
class AttentionWarning(Rule):
    """The log states why a fused attention kernel was not used.

    ## What it does

    Looks in the program's log for the reasons that ``scaled_dot_product_attention``
    prints when none of the allowed backends supports its inputs, and for FlexAttention
    that is not compiled.

    ## Why is this bad?

    Attention without a fused kernel materialises all its scores: it takes several times
    longer, and its memory grows with the square of the sequence length.

    ## How to fix it

    The reason names what the kernel does not support: remove that, or allow a backend
    that supports it.

    ```diff
    - out = F.scaled_dot_product_attention(q, k, v, attn_mask=lower_triangle)
    + out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    ```

    ## When it is wrong

    torch prints the reasons of every backend, even of those that were not meant to be
    used. It prints nothing when it falls back by itself: ATT001 and ATT002 find that in
    a trace.
    """

    code = "LOG002"
    since = "0.1.0"
    see = ("torch.nn.functional.scaled_dot_product_attention",)
    needs = frozenset({Need.LOG})
    priced = False

    seen = Seen(
        text="""
        LOG002 attention-warning
          FlashAttention does not support an attn_mask
          line  train.py:9: UserWarning: Flash Attention does not support non-null
                attn_mask. (line 3)
          fix   drop a causal mask and pass is_causal=True; for padding use
                variable-length sequences, for a bias FlexAttention
        """,
    )

    examples = (
        Bad(
            "",
            log="""
train.py:9: UserWarning: Flash attention kernel not used because:
train.py:9: UserWarning: Flash Attention does not support non-null attn_mask.
""",
            finds=("FlashAttention does not support an attn_mask",),
        ),
        Good("", log="using flash attention\n"),
    )

    def check_log(self, log: pl.DataFrame) -> Iterator[Finding]:
        """Look for each message."""
        yield from findings(self, _MESSAGES, log)
