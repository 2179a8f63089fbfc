"""Text on the known fraction of replayed CUDA graphs, the same in every report."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceq.common.words import counted

if TYPE_CHECKING:
    from traceq.model.lint_report import Replayed


def sentence(ran: Replayed) -> str:
    """Return the share of replayed kernels with their captured op, or how to get it.

    >>> from traceq.model.lint_report import Replayed
    >>> print(sentence(Replayed(kernels=9, mapped=8, certain=7, captures=True)))
    8 of 9 replayed kernels are mapped to the ops of their capture, 7 for certain
    """
    if not ran.mapped:
        why = (
            "no capture at hand fits the graphs"
            if ran.captures
            else "the capture is not at hand"
        )
        return (
            f"{counted(ran.kernels, 'kernel')} replayed in CUDA graphs without known"
            f" ops: {why}; give a trace of it with --capture FILE, or record with"
            " traceq collect"
        )
    text = (
        f"{ran.mapped:,} of {ran.kernels:,} replayed kernels are mapped to the ops"
        " of their capture"
    )
    sure = ran.certain == ran.mapped
    return text if sure else f"{text}, {ran.certain:,} for certain"
