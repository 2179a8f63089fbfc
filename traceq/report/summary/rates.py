"""The lines of a summary on how fast a step computes: tokens, roofline, attention."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceq.analysis.time.tokens_per_step import EMBEDDING
from traceq.common import units
from traceq.report import bound as bound_words

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.analysis.patterns.attention_kernels import AttentionParts
    from traceq.analysis.summary import Reached, Summary
    from traceq.analysis.time.tokens_per_step import Tokens

# With more of the time known than this, how much it is says nothing new.
_MOST_COVERED = 0.9
_LEAST_SAVED = 0.005


def rates(summary: Summary) -> Iterator[tuple[str, str]]:
    """Yield the lines on rates that the recording allows: title and text."""
    if summary.tokens:
        counted = "Tokens" if summary.tokens.source == EMBEDDING else "Targets"
        yield counted, _tokens(summary, summary.tokens)
    if summary.roofline:
        yield "Roofline", _roofline(summary, summary.roofline)
    if summary.attention:
        yield "Attention", _attention(summary, summary.attention)


def _each(summary: Summary) -> str:
    return " a step" if summary.steps.height else ""


def _ms(nanoseconds: float) -> str:
    return f"{units.milliseconds(nanoseconds)} ms"


def _tokens(summary: Summary, tokens: Tokens) -> str:
    """Return the tokens of a step, their source, and the rate."""
    each = units.average(tokens.per_step)
    rate = f"{units.three_digits(summary.tokens_per_second or 0):,.0f}"
    when = bound_words.MEASURED if summary.bound.measured else bound_words.AS_RECORDED
    rank = " on this rank" if (summary.facts.world_size or 1) > 1 else ""
    if tokens.source == EMBEDDING:
        return (
            f"{each}{_each(summary)}{rank}, looked up in the embedding: {rate} tokens/s"
            f" {when}"
        )
    return f"{each} of the cross-entropy{_each(summary)}{rank}: {rate} targets/s {when}"


def _attention(summary: Summary, parts: AttentionParts) -> str:
    """Return the time of attention's softmax, compared with its matmuls."""
    steps = summary.steady.count
    softmax, matmul = (ns / steps for ns in (parts.softmax_ns, parts.matmul_ns))
    text = (
        f"its softmax takes {parts.ratio:.0%} of the time of its matmuls"
        f" ({_ms(softmax)} against {_ms(matmul)}{_each(summary)})"
    )
    if all(parts.forward) and parts.forward != (parts.softmax_ns, parts.matmul_ns):
        text += f", {parts.forward[0] / parts.forward[1]:.0%} in the forward"
    return text


def _roofline(summary: Summary, reached: Reached) -> str:
    """Return the bounds of the kernels, and their efficiency relative to the peaks."""
    shares = [f"{name} {units.share(part, 1)}" for name, part in reached.bounds.items()]
    text = (
        f"kernels run at {units.share(reached.efficiency, 1)} of the peaks, bound by"
        f" {', '.join(shares)} of their time"
    )
    if reached.covered < _MOST_COVERED:
        text += f" (shapes tell this of {units.share(reached.covered, 1)} of it)"
    saved = reached.recoverable_ns
    whole = "a step" if summary.steps.height else "the trace"
    if saved < _LEAST_SAVED * summary.bound.step_ns:
        return f"{text}; faster ones would not shorten {whole}"
    return (
        f"{text}; if slow ones were as fast as their kind is elsewhere, {whole} would"
        f" take {units.time(saved)} less, estimated: traceq roofline names them"
    )
