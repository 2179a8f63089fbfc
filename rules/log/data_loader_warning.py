"""LOG005: the log warns that a DataLoader does not suit the machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceq.linter import Bad, Good, Need, Rule, Seen, dataclass

from ._messages import Message, findings

if TYPE_CHECKING:
    from collections.abc import Iterator

    import polars as pl

    from traceq.linter import Finding

_MESSAGES = (
    Message(
        "workers",
        r"This DataLoader will create (?P<count>\d+) worker processes in total",
        "the DataLoader has {count} workers for {most} cores",
        "set num_workers={most} or less: workers without a core of their own slow each"
        " other down",
        ("DAT001",),
        to_confirm=True,
        details=(r"suggested max number of worker[^.]*? is (?P<most>\d+)",),
    ),
    Message(
        "pinning",
        r"'pin_memory' argument is set as true but (?:no accelerator is found"
        r"|not supported on MPS)",
        "pin_memory=True has no effect: torch sees no accelerator",
        "check that torch sees the GPU (torch.cuda.is_available()); on a machine"
        " without one remove the argument",
    ),
)


@dataclass(frozen=True)
class DataLoaderWarning(Rule):
    """The log warns that the settings of a DataLoader do not suit the machine.

    ## What it does

    Looks in the program's log for warnings of the DataLoader: more workers than cores,
    and pinned memory without a GPU.

    ## Why is this bad?

    Workers without a core of their own slow down each other and the training process.
    Pinned memory without a GPU usually means that the program runs on the CPU.

    ## How to fix it

    Use as many workers as there are cores for the process, less one for itself.

    ```diff
    - loader = DataLoader(data, batch_size=64, num_workers=64)
    + cores = len(os.sched_getaffinity(0))
    + loader = DataLoader(data, batch_size=64, num_workers=cores - 1)
    ```

    ## When it is wrong

    Workers that wait for the network rather than compute may outnumber the cores. Where
    a trace shows that the GPU does not wait for data (DAT001), the warning is minor.
    """

    code = "LOG005"
    several_fixes = True
    since = "0.1.0"
    see = ("torch.utils.data.DataLoader",)
    needs = frozenset({Need.LOG})
    priced = False

    seen = Seen(
        text="""
        LOG005 data-loader-warning
          the DataLoader has 64 workers for 8 cores
          line  dataloader.py:604: UserWarning: This DataLoader will create 64
                worker processes in total. Our suggested max number of worker in
                current system is 8, which is smaller than what this DataLoader is
                going … (line 1)
          fix   set num_workers=8 or less: workers without a core of their own slow
                each other down
        """,
    )

    examples = (
        Bad(
            "",
            log="dataloader.py:604: UserWarning: This DataLoader will create 64 worker"
            " processes in total. Our suggested max number of worker in current system"
            " is 8, which is smaller than what this DataLoader is going to create.\n",
            finds=("the DataLoader has 64 workers for 8 cores",),
        ),
        Good("", log="DataLoader with 8 worker processes\n"),
    )

    def check_log(self, log: pl.DataFrame) -> Iterator[Finding]:
        """Look for each message."""
        yield from findings(self, _MESSAGES, log)
