"""LOG009: the log names lines that sync the host with the GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceq.linter import Bad, Good, Need, Rule, Seen, dataclass

from ._messages import WARNED_AT, Message, findings

if TYPE_CHECKING:
    from collections.abc import Iterator

    import polars as pl

    from traceq.linter import Finding

_MESSAGES = (
    Message(
        "synchronizing operation",
        rf"{WARNED_AT}called a synchronizing CUDA operation",
        "torch warns that this line syncs with the GPU",
        "keep the value on the GPU, or do this less often",
        ("SYN001",),
        to_confirm=True,
    ),
)


@dataclass(frozen=True)
class SynchronizationWarning(Rule):
    """The log names lines that make the host wait for the GPU.

    ## What it does

    Looks in the program's log for the warnings that
    ``torch.cuda.set_sync_debug_mode(1)`` turns on: one for each operation that syncs,
    with its line.

    ## Why is this bad?

    While the host waits it launches nothing, and then the GPU waits for the host.

    ## How to fix it

    Keep values on the GPU: ``torch.where`` instead of a boolean index, a loss that is
    read every hundred steps. What has to be copied can be copied with
    ``non_blocking=True`` and read later.

    ```diff
    - x[mask] = 0.0
    + x = torch.where(mask, 0.0, x)
    ```

    ## When it is wrong

    Syncs before and after the loop cost next to nothing. Where a trace shows no wait in
    its steps (SYN001), the warning is minor.
    """

    code = "LOG009"
    several_fixes = True
    since = "0.1.0"
    see = ("torch.cuda.set_sync_debug_mode", "torch.where")
    needs = frozenset({Need.LOG})
    priced = False

    seen = Seen(
        text="""
        LOG009 synchronization-warning
          torch warns that this line syncs with the GPU
          at    train.py:31
          line  train.py:31: UserWarning: called a synchronizing CUDA operation
                (Triggered internally at CUDAFunctions.cpp:177.) (line 1)
          fix   keep the value on the GPU, or do this less often
        """,
    )

    examples = (
        Bad(
            "",
            log="train.py:31: UserWarning: called a synchronizing CUDA operation"
            " (Triggered internally at CUDAFunctions.cpp:177.)\n",
            finds=("torch warns that this line syncs with the GPU",),
        ),
        Good("", log="train.py:31: synchronized\n"),
    )

    def check_log(self, log: pl.DataFrame) -> Iterator[Finding]:
        """Look for the message at each line."""
        yield from findings(self, _MESSAGES, log)
