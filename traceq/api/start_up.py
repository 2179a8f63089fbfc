"""Warning about traces of a program's start-up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceq.common.progress import notify

if TYPE_CHECKING:
    from pathlib import Path

    from traceq.model.trace import Trace


def warn_of_start(path: Path, trace: Trace) -> None:
    """Warn of a trace that is of a program's start; lint has a finding for it."""
    from traceq.analysis.base.start_up import start_up  # noqa: PLC0415 - few need it

    if start_up(trace):
        notify(
            f"{path} has the first use of the GPU in its steps: their time tells"
            " nothing of later ones, record those"
        )
