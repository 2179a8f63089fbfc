"""Score of the slow steps of planted.py: right causes, and no others.

``python benchmarks/slow_steps/score.py RUN [STEADY_RUN]``, anywhere with traceq.
"""

from __future__ import annotations

import sys
from pathlib import Path

from traceq.analysis.time.slow_steps import slow_step_rows
from traceq.formats.run import read_run

CAUSES = {
    "gc": ("Python's garbage collector",),
    "data": ("DataLoader",),
    "allocator": ("allocator retries", "cudaMalloc"),
    "sleep": ("waiting in the program",),
    "recompilation": ("recompilation",),
    "checkpoint": ("checkpointing",),
}
KINDS, STEPS = tuple(CAUSES), 2400


def causes(folder: Path) -> dict[int, str]:
    """Return the cause of each step that was kept."""
    slow = {rank.rank: rank.slow for rank in read_run(folder).ranks if rank.slow}
    return dict(slow_step_rows(slow).select("step", "cause").iter_rows())


def main() -> None:
    """Print each pause with the cause that is named, and the totals."""
    result = causes(Path(sys.argv[1]))
    right, near = 0, set()
    for step in range(150, STEPS, 200):
        kind = KINDS[step // 200 % 6]
        named = [result[at] for at in (step, step + 1) if at in result]
        near |= {step, step + 1}
        right += any(item in CAUSES[kind] for item in named)
        print(step, kind, named)
    others = {step: cause for step, cause in result.items() if step not in near}
    print(f"named: {right} of {len(range(150, STEPS, 200))}; others: {others}")
    for steady in sys.argv[2:]:
        print(f"kept of a steady run: {causes(Path(steady))}")


if __name__ == "__main__":
    main()
