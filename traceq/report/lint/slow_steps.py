"""Words on rare slow steps: cause, frequency and cost of each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceq.common.safe_text import printable
from traceq.common.units import number, time

if TYPE_CHECKING:
    from traceq.model.lint_report import RecordingReport
    from traceq.model.slow_steps import SlowCause

_MOST = 5
BY = "slow steps by "
_FIXES = {
    "Python's garbage collector": "call gc.freeze() after the warm-up, or gc.disable()"
    " and gc.collect() where a pause does not matter",
    "checkpointing": "save less often, or asynchronously (torch.distributed.checkpoint"
    ".async_save)",
    "recompilation": "record with TORCH_LOGS=recompiles: the log names the guard",
    "first batch of an epoch": "pass persistent_workers=True to the DataLoader",
    "DataLoader": "give the DataLoader more workers, or a larger prefetch_factor",
    "allocator retries": "leave memory free: a retry frees the cache and waits",
    "cudaMalloc": "allocate the largest batch first, or set"
    " PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
    "other processes on the CPU": "leave the program a core: fewer workers, or"
    " processes pinned to cores (taskset)",
    "lower GPU clock": "see why with nvidia-smi -q -d PERFORMANCE",
    "another rank is late": "look at the rank that has a cause of its own",
}


def sentences(outcome: RecordingReport) -> list[str]:
    """Return the sentences on slow steps; none if the steps were not watched."""
    slow = outcome.slow_steps
    if slow is None:
        return []
    watched = f"of {number(slow.steps)} steps that were watched"
    if not slow.slow:
        return [f"slow steps: none {watched}, at {slow.factor:g} times the median"]
    usual = f"{slow.factor:g} times the median of {time(slow.median_ns)} or more"
    head = f"slow steps: {number(slow.slow)} {watched} took {usual}"
    retained = sum(cause.count for cause in slow.causes)
    all_kept = retained >= slow.slow
    if not all_kept:
        head += f"; {number(retained)} of them were kept"
    causes = slow.causes[:_MOST]
    return [head, *(_sentence(cause, all_kept=all_kept) for cause in causes)]


def _sentence(cause: SlowCause, *, all_kept: bool) -> str:
    at = f" at {cause.file}:{cause.line}" if cause.file else ""
    often = f"1 in {number(cause.every)} steps" if cause.count > 1 else "once"
    least = "" if all_kept else "at least "
    lost = (
        f"up to {time(cause.longest_ns)}, {time(cause.per_step_ns)} a step on average"
    )
    fix = _FIXES.get(cause.cause, "")
    return printable(
        f"{BY}{cause.cause}{at}: {least}{often}, {lost}" + (f"; {fix}" if fix else "")
    )
