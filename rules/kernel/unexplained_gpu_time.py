"""KRN010: the GPU takes longer than its work needs, and no other finding says why."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from traceq.linter import (
    Bad,
    Evidence,
    Good,
    Need,
    Rule,
    Seen,
    View,
    at_function,
    dataclass,
    inputs,
    listed,
    option,
)

from ._loss_remedies import advice, remedied

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.linter import Finding, Row

_MOST_ENTRIES = 5
# Entries of a smaller part of the largest are not named. Heuristic threshold.
_NAMED = 0.1
_NO_REMEDY = "no remedy is known of what takes most"
_LONGEST = 60
_DRAWN = """
    host   [ProfilerStep#1                                                            ]
    host    [model.py(9): forward                                                    ]
    host     [aten::_softmax        ]
    host      [cudaLaunchKernel>1]
    gpu 7                  [softmax_forward<1                                      ]
"""


@dataclass(frozen=True)
class UnexplainedGpuTime(Rule):
    """The GPU takes longer than its work needs, and no other finding says why.

    ## What it does

    Reports what remains of a step, in which the GPU works for at least ``min-busy``,
    after the other findings: the time of
    kernels above what their operations and bytes need at the rate that kernels of their
    class reach (``traceq summary --gpu``), where no finding's fix changes the kernel.
    Names the five largest entries with their lines. It is minor where no remedy is
    known of the largest. Entries of which it is known that
    nothing makes them faster are left out, as depthwise convolutions and a sort along
    the last dimension. It is reported if what remains is more than ``min-share`` of the
    losses, and more than ``min-step`` of the step.

    ## Why is this bad?

    A GPU-bound step gets shorter only if kernels do, and this is where they are far
    from what the GPU can do.

    ## How to fix it

    Look at the entries, the largest first. A slow algorithm has a shape, a stride or a
    dtype that its kernel was not made for: see ``traceq roofline``. For convolutions
    cuDNN has others (``torch.backends.cudnn.benchmark = True``, unless
    ``cudnn.deterministic`` excludes them); in float32 they take longer than under
    ``torch.autocast``. None of this was measured for this rule. Few blocks use a
    part of the GPU: give the op more rows, or split its long dimension. Launch-bound
    kernels are too small: batch them, or compile the function, as here.

    ```diff
    - def loss_of(logits, target):
    + @torch.compile
    + def loss_of(logits, target):
    ```

    ## When it is wrong

    The need is an estimate: bytes are the least that an op has to move, and the rates
    of classes are medians of some programs on an H200. Kernels whose need no shape
    shows, as those of other libraries and of replayed graphs, are left out.
    """

    code = "KRN010"
    since = "0.2.0"
    several_fixes = True
    residual = True
    general = True
    preview = True
    needs = frozenset({Need.GPU, Need.OPS, Need.SHAPES, Need.WARM})
    # As LCH002 has it for the host's time. Heuristic thresholds.
    min_share: float = option(
        0.2, "A smaller part of the GPU's losses is not reported."
    )
    min_step: float = option(0.1, "Nor is a smaller share of the step.")
    # The GPU bounds such a step soon. Heuristic threshold.
    min_busy: float = option(0.75, "Nor is a step in which the GPU works for less.")

    seen = Seen(
        text="""
        KRN010 unexplained-gpu-time (preview)
          the GPU takes longer than its work needs, most in aten::_softmax
          in    forward (model.py:9)
          lost  56.8 µs a step unexplained, estimated
          in    aten::_softmax: slow algorithm 56.8 µs estimated, forward
                (model.py:9) ×1
          fix   look at these ops with traceq roofline: at their shapes, strides and
                dtypes, and at a torch.compile of the function
        """,
    )

    examples = (
        Bad(
            _DRAWN,
            finds="the GPU takes longer than its work needs, most in aten::_softmax",
            args={"aten::_softmax": inputs([[64, 1024]], ["float"])},
        ),
        Good(
            _DRAWN,
            args={"aten::_softmax": inputs([[8192, 4096]], ["float"])},
        ),
    )

    def check(self, view: View) -> Iterator[Finding]:
        """Report the losses of kernels that no other finding is about."""
        bound = view.bound
        busy = view.steady.gpu_busy >= self.min_busy * bound.step_ns * view.steps
        if view.gpu.peak is None or not (bound.by == "gpu" or busy):
            return
        account = view.gpu_account
        rest = account.losses(view.changed)
        left = float(rest["time"].sum())
        least = max(self.min_share * account.above_ns, self.min_step * bound.step_ns)
        if left < least:
            return
        losses = remedied(view, rest)
        hopeless = sum(loss.row["time"] for loss in losses if loss.remedy is None)
        if left - hopeless < least:
            return
        losses = [loss for loss in losses if loss.remedy is not None][:_MOST_ENTRIES]
        most = losses[0].row["time"]
        losses = [loss for loss in losses if loss.row["time"] >= _NAMED * most]
        top = [loss.row for loss in losses]
        names = dict.fromkeys(_short(row["name"]) for row in top)
        finding = self.finding(
            "the GPU takes longer than its work needs, most in"
            f" {listed([*names], _MOST_ENTRIES)}",
            subject="losses",
            place=view.place(top[0]),
            evidence=[
                Evidence(
                    "lost",
                    value=left - hopeless,
                    unit="ns",
                    note="a step unexplained, estimated",
                ),
                *(
                    Evidence(
                        "in",
                        f"{_short(row['name'])}: {row['part']}",
                        value=row["time"],
                        unit="ns",
                        note=_at(row),
                        count=row["kernels"],
                    )
                    for row in top
                ),
            ],
            data={
                "unexplained_ns": round(left),
                "above_floor_ns": round(account.above_ns),
            },
            advice=advice(view, losses),
        )
        yield finding if losses[0].remedy else replace(finding, minor=_NO_REMEDY)


def _short(name: str | None) -> str:
    """Return the name of an op or kernel, the longest without their end."""
    name = name or "unknown"
    return name if len(name) <= _LONGEST else f"{name[:_LONGEST]}…"


def _at(row: Row) -> str:
    place = at_function(row["file"], row["line"], row["function"])
    return f"estimated, {place}" if place else "estimated"
