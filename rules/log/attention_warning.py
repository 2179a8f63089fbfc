"""LOG002: the log says why a fused attention kernel was not used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from traceq.lint import Bad, Good, Need, Rule, Severity
from traceq.lint.log_messages import Message, findings

if TYPE_CHECKING:
    from collections.abc import Iterator

    import polars as pl

    from traceq.lint import Finding

_MESSAGES = (
    Message(
        "mask",
        r"Flash Attention does not support non-null attn_mask",
        "flash attention refuses an attn_mask",
        "drop a causal mask and pass is_causal=True; for padding use sequences of"
        " variable length, for a bias FlexAttention",
        ("ATT001",),
    ),
    Message(
        "dtype",
        r"Expected query, key and value to all be of dtype: \{(?P<wanted>[^}]+)\}\."
        r" Got Query dtype: (?P<got>[^,]+)",
        "fused attention refuses queries of type {got}: it takes {wanted}",
        "run attention in bfloat16 or float16, as under torch.autocast",
        ("ATT002",),
    ),
    Message(
        "head dim",
        r"requires q, ?k, ?v to have the same last dimension and to be less than or"
        r" equal to (?P<most>\d+)",
        "flash attention refuses head dimensions that differ or exceed {most}",
        "give queries, keys and values one head dimension of at most {most}",
        ("ATT002",),
    ),
    Message(
        "causal",
        r"does not support the is_causal flag when seqlen_q != seqlen_k",
        "flash attention refuses is_causal where queries and keys differ in length",
        "pass attn_mask=torch.nn.attention.bias.causal_lower_right(q_len, k_len)",
        ("ATT002",),
    ),
    Message(
        "stride",
        r"require the last dimension of the input to have stride 1",
        "fused attention refuses inputs whose last dimension is not contiguous",
        "transpose so that the head dimension stays last in memory",
        ("ATT002",),
    ),
    Message(
        "hardware",
        r"[Ff]lash [Aa]ttention only supports gpu architectures in the range"
        r" (?P<range>\[[^\]]+\])",
        "flash attention does not run on this GPU, only on {range}",
        "nothing to change in the program: this GPU has no flash attention",
        ("ATT002",),
        Severity.info,
    ),
    Message(
        "build",
        r"Torch was not compiled with flash attention",
        "this build of torch has no flash attention",
        "install a build that has it (Linux, CUDA)",
        ("ATT002",),
    ),
    Message(
        "no kernel",
        r"No available kernel\. Aborting execution",
        "no allowed kernel of scaled_dot_product_attention fits: the program fails",
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
    """The log says why a fused attention kernel was not used.

    ## What it does

    Looks in the program's log for the reasons that ``scaled_dot_product_attention``
    prints when a backend was demanded and does not fit, and for FlexAttention that is
    not compiled.

    ## Why is this bad?

    Attention without a fused kernel writes all its scores to memory: it takes several
    times longer, and memory that grows with the square of the length.

    ## How to fix it

    The reason says what the kernel does not take; remove that, or choose a backend that
    takes it.

    ## When it is wrong

    torch prints the reasons of all backends that it tried, also when a later one fits.
    """

    code = "LOG002"
    since = "0.1.0"
    needs = frozenset({Need.LOG})
    priced = False

    examples = (
        Bad(
            "",
            log="""
train.py:9: UserWarning: Flash attention kernel not used because:
train.py:9: UserWarning: Flash Attention does not support non-null attn_mask.
""",
            finds=("flash attention refuses an attn_mask",),
        ),
        Good("", log="using flash attention\n"),
    )

    def check_log(self, log: pl.DataFrame) -> Iterator[Finding]:
        """Look for each message."""
        yield from findings(self, _MESSAGES, log)
