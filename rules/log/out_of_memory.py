"""LOG006: the log reports that the GPU ran out of memory."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from traceq.linter import Bad, Good, Need, Rule, Seen, Severity, dataclass

from ._messages import Message, findings

if TYPE_CHECKING:
    from collections.abc import Iterator

    import polars as pl

    from traceq.linter import Finding

_BYTES = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_SIZE = r"[\d.]+ (?:bytes|[KMGT]iB)"
_FRAGMENTED = (
    "the allocator holds {unused} that are free, but in blocks that are too small: set"
    " PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
)
_LIMITED = (
    "the GPU has {free} free that the process may not use: look for"
    " set_per_process_memory_fraction or another limit; within it, use less memory"
)
_MESSAGE = Message(
    "out of memory",
    rf"(?:CUDA|HIP|XPU) out of memory\. Tried to allocate (?P<tried>{_SIZE})",
    "OOM: {tried} could not be allocated",
    "use less: a smaller batch, activation checkpointing, bfloat16, gradients freed"
    " before the next forward; a memory snapshot names the lines that hold the memory",
    explains=("MEM010",),
    severity=Severity.error,
    details=(
        rf"(?P<unused>{_SIZE}) is reserved by PyTorch but unallocated",
        rf"total capacity of (?P<total>{_SIZE})",
        rf"of which (?P<free>{_SIZE}) is free",
    ),
)


@dataclass(frozen=True)
class OutOfMemory(Rule):
    """The log reports that the GPU ran out of memory (OOM).

    ## What it does

    Looks in the program's log for the allocator's error, and compares what could not be
    allocated with what the allocator had reserved without using it.

    ## Why is this bad?

    Most programs end with it. One that goes on has emptied the allocator's cache and
    waits for the driver from then on.

    ## How to fix it

    If the GPU has room, a limit was set: raise it. If it has none, and more was
    reserved and unused than requested, memory is fragmented:
    ``expandable_segments:True``. Otherwise the program has to use less: a smaller
    batch, activation checkpointing, a smaller dtype.

    ```diff
    - python train.py
    + PYTORCH_ALLOC_CONF=expandable_segments:True python train.py
    ```

    ## When it is wrong

    Programs that search for the largest batch run into this error intentionally.
    """

    code = "LOG006"
    several_fixes = True
    since = "0.1.0"
    see = ("PYTORCH_ALLOC_CONF",)
    severity = Severity.error
    needs = frozenset({Need.LOG})
    priced = False

    seen = Seen(
        of="fixtures/captures/oom_fragmented.log",
        text="""
        LOG006 out-of-memory (error)
          OOM: 512.00 MiB could not be allocated
          line  OOM CUDA out of memory. Tried to allocate 512.00 MiB. GPU 0 has a
                total capacity of 139.80 GiB of which 135.48 GiB is free. Including
                non-PyTorch memory, this process has 4.31 GiB memory in use. 4.00  …
                (line 1)
          fix   the GPU has 135.48 GiB free that the process may not use: look for
                set_per_process_memory_fraction or another limit; within it, use
                less memory
        """,
    )

    examples = (
        Bad(
            "",
            log="torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 512.00"
            " MiB. GPU 0 has a total capacity of 79.10 GiB of which 31.00 MiB is free."
            " 2.00 GiB is reserved by PyTorch but unallocated.\n",
            finds=("OOM: 512.00 MiB could not be allocated",),
        ),
        Good("", log="allocated 512.00 MiB\n"),
    )

    def check_log(self, log: pl.DataFrame) -> Iterator[Finding]:
        """Look for the message, and tell fragmentation and limits from full memory."""
        for finding in findings(self, [_MESSAGE], log):
            sizes = {key: str(value) for key, value in finding.data.items()}
            yield replace(finding, advice=_advice(sizes) or finding.advice)


def _advice(sizes: dict[str, str]) -> str | None:
    """Return what helps where there was enough memory; none where it was full."""
    tried = _bytes(sizes.get("tried", "")) or 0.0
    for name, advice in (("free", _LIMITED), ("unused", _FRAGMENTED)):
        size = _bytes(sizes.get(name, ""))
        if size is not None and size >= tried:
            return advice.format_map(sizes)
    return None


def _bytes(text: str) -> float | None:
    """Return a size in bytes; none for what is no size."""
    number, _, unit = text.partition(" ")
    try:
        return float(number) * _BYTES[unit]
    except (KeyError, ValueError):
        return None
