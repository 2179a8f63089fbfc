"""TRC001: the trace lacks shapes or stacks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceq.linter import Bad, Good, Need, Rule, Seen, Severity, View, dataclass, inputs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.linter import Finding

# The profiler's option for each detail, and what findings lack without it.
_DETAILS = {
    "shapes": ("record_shapes=True", "shapes and dtypes"),
    "stacks": ("with_stack=True", "source lines"),
}
_OF_NSYS = {
    "shapes": "--pytorch=autograd-shapes-nvtx",
    "stacks": "--python-backtrace=cuda",
}


@dataclass(frozen=True)
class UnrecordedDetail(Rule):
    """The trace lacks shapes or stacks, so findings are less specific.

    ## What it does

    Checks whether the profiler recorded the shapes and dtypes of inputs, and the Python
    calls around operators.

    ## Why is this bad?

    Without shapes it remains unknown why attention or a norm falls back, and which size
    of a matmul is misaligned. Without stacks findings name operators and modules, but
    no source lines.

    ## How to fix it

    Record with ``profile(record_shapes=True, with_stack=True)``. Two or three steps are
    enough, and keep the file small.

    ```diff
    - with profile() as prof:
    + with profile(record_shapes=True, with_stack=True) as prof:
    ```

    ## When it is wrong

    Stacks make the host up to three times slower, and a step that compiles then fills
    gigabytes. To time the host, or to look at compilation, leave them out.
    """

    code = "TRC001"
    since = "0.1.0"
    see = ("torch.profiler.profile",)
    severity = Severity.info
    needs = frozenset({Need.OPS})
    priced = False

    seen = Seen(
        of="fixtures/recompile",
        text="""
        TRC001 unrecorded-detail
          stacks were not recorded: findings lack source lines
          fix  record two or three steps with profile(with_stack=True)
        """,
    )

    examples = (
        Bad(
            """
            host   [ProfilerStep#1        ]
            host    [aten::mm            ]
            host     [cudaLaunchKernel>1]
            gpu 7              [gemm<1   ]
            """,
            finds=("stacks were not recorded: findings lack source lines",),
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
        """Name what is missing in one sentence."""
        facts = view.trace.facts
        recorded = {"shapes": facts.shapes, "stacks": view.meets(Need.LINES)}
        missing = [name for name, there in recorded.items() if not there]
        if not missing:
            return
        lacking = " and ".join(_DETAILS[name][1] for name in missing)
        options = ", ".join(_DETAILS[name][0] for name in missing)
        command = f"profile({options})"
        if facts.recorder:
            command = " ".join(["nsys profile", *(_OF_NSYS[name] for name in missing)])
        yield self.finding(
            f"{' and '.join(missing)} were not recorded: findings lack {lacking}",
            subject=" and ".join(missing),
            data={"missing": list(missing)},
            advice=f"record two or three steps with {command}",
            example="" if facts.recorder else None,
        )
