"""LOG007: the profiler warns in the log that its trace is incomplete or skewed."""

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
        "buffers",
        r"Device profiling activity collection was stopped early",
        "the profiler's buffers filled up: the trace lacks the last GPU work",
        "record fewer steps",
        ("TRC005",),
    ),
    Message(
        "no warm-up",
        r"Profiler won't be using warmup, this can skew profiler results",
        "the profiler records without warm-up, so its first step is slow",
        "use schedule(warmup=2, …), so that the profiler's own start is not recorded",
        ("TRC003",),
        Severity.info,
    ),
)


@dataclass(frozen=True)
class ProfilerWarning(Rule):
    """The profiler warns in the log that its trace is incomplete or skewed.

    ## What it does

    Looks in the program's log for warnings of the profiler that affect its trace:
    buffers that filled up, a schedule without warm-up.

    ## Why is this bad?

    Missing work looks like idle time, and the start of the profiler like a slow step.

    ## How to fix it

    Record two or three steps, after two steps of warm-up.

    ```diff
    - with profile() as prof:
    + with profile(schedule=schedule(wait=3, warmup=2, active=3)) as prof:
          for batch in loader:
              train(batch)
    +         prof.step()
    ```

    ## When it is wrong

    The slow first step may already be left out of the averages: TRC003 reports it then.
    """

    code = "LOG007"
    since = "0.1.0"
    see = ("torch.profiler.profile",)
    needs = frozenset({Need.LOG})
    priced = False

    seen = Seen(
        text="""
        LOG007 profiler-warning
          the profiler records without warm-up, so its first step is slow
          line  UserWarning: Profiler won't be using warmup, this can skew profiler
                results (line 1)
          fix   use schedule(warmup=2, …), so that the profiler's own start is not
                recorded
        """,
    )

    examples = (
        Bad(
            "",
            log="UserWarning: Profiler won't be using warmup, this can skew profiler"
            " results\n",
            finds=("the profiler records without warm-up, so its first step is slow",),
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
