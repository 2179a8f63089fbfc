"""Several recordings in one table: a row each, with labels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceq.analysis.time.tokens_per_step import EMBEDDING
from traceq.common import units
from traceq.common.safe_text import printable
from traceq.report.base.columns import Column, cut_module
from traceq.report.base.content import TextTable, telling_names
from traceq.report.summary.facts import percent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceq.analysis.summary import Summary

_NUMBERS = (
    "busy",
    "gemm",
    "launches",
    "<5 µs",
    "memory",
    "MFU",
)


def label_keys(summaries: Sequence[Summary]) -> list[str]:
    """Return the keys of all labels, in the order in which they come."""
    return list(dict.fromkeys(key for summary in summaries for key in summary.labels))


def overview(summaries: Sequence[Summary]) -> TextTable:
    """Return a table with one row a trace, with its labels."""
    measured = any(summary.bound.measured for summary in summaries)
    tokens = any(_rate(summary) != "-" for summary in summaries)
    title = "trace" if measured else "trace (as recorded)"
    keys = label_keys(summaries)
    columns = (
        Column(title, cut=cut_module),
        *(_label_column(key, summaries) for key in keys),
        *(Column(title, number=True) for title in _titles(measured, tokens)),
    )
    names = _names(summaries)
    return TextTable(
        columns,
        tuple(
            (
                printable(name) + (" (incomplete)" if summary.facts.incomplete else ""),
                *(printable(summary.labels.get(key, "-")) for key in keys),
                *_row(summary, measured, tokens),
            )
            for name, summary in zip(names, summaries, strict=True)
        ),
    )


def _names(summaries: Sequence[Summary]) -> list[str]:
    """Return a name for each trace; ranks of one file have their numbers."""
    names = telling_names([summary.facts.path for summary in summaries])
    return [
        f"{name} rank {summary.facts.rank}" if names.count(name) > 1 else name
        for name, summary in zip(names, summaries, strict=True)
    ]


def _label_column(key: str, summaries: Sequence[Summary]) -> Column:
    values = [summary.labels[key] for summary in summaries if key in summary.labels]
    return Column(printable(key), number=all(map(_is_number, values)))


def _is_number(text: str) -> bool:
    return text.replace(".", "", 1).isdigit()


def _titles(measured: bool, tokens: bool) -> tuple[str, ...]:  # noqa: FBT001 - columns
    step = ("recorded ms", "measured ms") if measured else ("ms/step",)
    return ("steps", *step, *(["tokens/s"] if tokens else []), *_NUMBERS)


def _row(summary: Summary, measured: bool, tokens: bool) -> tuple[str, ...]:  # noqa: FBT001 - columns
    memory, mfu = summary.memory, summary.compute.utilisation
    on_gpu = (
        units.share(summary.true_gpu_busy, 1),
        units.share(summary.gemm_share, 1),
        units.average(summary.launches),
        units.share(summary.small_kernels, 1),
    )
    return (
        str(summary.steady.count) if summary.steps.height else "-",
        units.milliseconds(summary.step_time),
        *([_measured_ms(summary)] if measured else ()),
        *([_rate(summary)] if tokens else ()),
        *(on_gpu if summary.facts.gpu else ["-"] * len(on_gpu)),
        units.size(memory.allocated) if memory else "-",
        percent(mfu) if mfu is not None else "-",
    )


def _measured_ms(summary: Summary) -> str:
    is_measured = summary.bound.measured
    return units.milliseconds(summary.bound.step_ns) if is_measured else "-"


def _rate(summary: Summary) -> str:
    """Return the tokens per second; targets of a loss may be something else."""
    tokens, rate = summary.tokens, summary.tokens_per_second
    if not tokens or not rate or tokens.source != EMBEDDING:
        return "-"
    return f"{units.three_digits(rate):,.0f}"
