"""LOG007: the profiler itself says that its trace misleads."""

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
        "buffers",
        r"Device profiling activity collection was stopped early",
        "the profiler's buffers ran full: the trace lacks the end of the GPU's work",
        "record fewer steps",
        ("TRC005",),
    ),
    Message(
        "no warm-up",
        r"Profiler won't be using warmup, this can skew profiler results",
        "the profiler records without warm-up, which makes its first step slow",
        "use schedule(warmup=2, …): the profiler's own start is then not recorded",
        ("TRC003",),
        Severity.info,
    ),
)


@dataclass(frozen=True)
class ProfilerWarning(Rule):
    """The profiler itself says in the log that its trace misleads.

    ## What it does

    Looks in the program's log for warnings of the profiler that change what its trace
    can tell: buffers that ran full, a schedule without warm-up.

    ## Why is this bad?

    Work that is missing looks like idle time, and the profiler's own start like a slow
    step.

    ## How to fix it

    Record two or three steps, after two of warm-up.

    ## When it is wrong

    The first step may be left out of averages already; TRC003 says so.
    """

    code = "LOG007"
    since = "0.1.0"
    needs = frozenset({Need.LOG})
    priced = False

    examples = (
        Bad(
            "",
            log="UserWarning: Profiler won't be using warmup, this can skew profiler"
            " results\n",
            finds=(
                "the profiler records without warm-up, which makes its first step slow",
            ),
        ),
        Good(
            "",
            log="UserWarning: Warning: Profiler clears events at the end of each cycle."
            " Only events from the current cycle will be reported.\n",
        ),
    )

    def check_log(self, log: pl.DataFrame) -> Iterator[Finding]:
        """Look for each message."""
        yield from findings(self, _MESSAGES, log)
