"""Drawings of host-bound steps."""

from __future__ import annotations


def drawn(launches: int, kernel: str) -> str:
    """Draw a step of this many ops, each with a launch and a kernel."""
    numbers = range(1, launches + 1)
    width = 21 * launches
    return "\n".join(
        (
            f"host  [ProfilerStep#1{' ' * (width - 10)}]",
            "host   " + "[aten::add          ]" * launches,
            "host    " + "".join(f"[cuLaunchKernel>{n}]".ljust(21) for n in numbers),
            "gpu 7          " + "".join(kernel.format(n=n).ljust(21) for n in numbers),
        )
    )


WAITING = """
    host  [ProfilerStep#1                                                        ]
    host   [train.py(3): main                                                   ]
    host    [train.py(9): tokenise                         ] [aten::mm           ]
    host                                                      [cudaLaunchKernel>1]
    gpu 7                                                                 [gemm<1]
"""
