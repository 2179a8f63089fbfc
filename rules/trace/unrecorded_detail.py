"""TRC001: the trace lacks shapes or stacks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from traceq.lint import Bad, Good, Need, Rule, Severity, View, inputs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.lint import Finding

# What the profiler was not asked for: its option, and what stays unsaid without it.
_DETAILS = {
    "shapes": ("record_shapes=True", "causes that lie in shapes"),
    "stacks": ("with_stack=True", "the program's lines"),
}


@dataclass(frozen=True)
class UnrecordedDetail(Rule):
    """The trace lacks shapes or stacks, so that less can be said of what is found.

    ## What it does

    Says whether the profiler recorded the shapes and types of inputs, and the Python
    calls around operators.

    ## Why is this bad?

    Without shapes it stays open why attention or a norm left its fast path, and which
    size of a matrix is odd. Without stacks findings name operators and modules, and no
    line of the program.

    ## How to fix it

    Record with ``profile(record_shapes=True, with_stack=True)``. Two or three steps are
    enough, and few enough for the file to stay small.

    ## When it is wrong

    Stacks make the host up to three times slower, and with them a step that compiles
    fills gigabytes: to time the host, or to look at compilation, leave them out.
    """

    code = "TRC001"
    since = "0.1.0"
    severity = Severity.info
    needs = frozenset({Need.OPS})
    priced = False

    examples = (
        Bad(
            """
            host   [ProfilerStep#1        ]
            host    [aten::mm            ]
            host     [cudaLaunchKernel>1]
            gpu 7              [gemm<1   ]
            """,
            finds=("stacks were not recorded: the program's lines stay unknown",),
            args={"aten::mm": inputs([[8, 8], [8, 8]], ["float", "float"])},
        ),
        Good(
            """
            host   [ProfilerStep#1          ]
            host    [train.py(3): main     ]
            host     [aten::mm            ]
            host      [cudaLaunchKernel>1]
            gpu 7               [gemm<1    ]
            """,
            args={"aten::mm": inputs([[8, 8], [8, 8]], ["float", "float"])},
        ),
    )

    def check(self, view: View) -> Iterator[Finding]:
        """Say what is missing in one sentence."""
        facts = view.trace.facts
        known = {"shapes": facts.shapes, "stacks": facts.stacks}
        missing = [name for name, there in known.items() if not there]
        if not missing:
            return
        unsaid = " and ".join(_DETAILS[name][1] for name in missing)
        options = ", ".join(_DETAILS[name][0] for name in missing)
        yield self.finding(
            f"{' and '.join(missing)} were not recorded: {unsaid} stay unknown",
            subject=" and ".join(missing),
            data={"missing": list(missing)},
            advice=f"record two or three steps with profile({options})",
        )
