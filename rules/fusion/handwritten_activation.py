"""FUS002: an activation is hand-written, op by op."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceq.analysis.base import assumptions, ownership
from traceq.linter import (
    HALF,
    Bad,
    Evidence,
    Good,
    Need,
    Rule,
    Seen,
    View,
    dataclass,
    dtype_name,
    fused_fixes,
    inputs,
    kernel_lines,
    listed,
    located_advice,
    module_line,
    often,
    rewritten,
    shape,
)

from ._activations import GELU, GELU_TANH, SILU, fused_share, handwritten_activations

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.linter import Finding, Row

_NAMES = {GELU_TANH: "GELU's tanh approximation", GELU: "GELU", SILU: "SiLU"}
_SWITCH = (
    "set activation_function or hidden_act of the model's config to"
    ' "gelu_pytorch_tanh", which is one kernel in each pass'
)
_EXAMPLES = (GELU_TANH, GELU, SILU)
_DRAWN = """
    host  [ProfilerStep#1                                                            ]
    host   [model.py(9): forward                                                    ]
    host   [aten::div ] [aten::div ] [aten::erf       ] [aten::add ] [aten::mul     ]
    host   [cuLaunch>1] [cuLaunch>2] [cuLaunch>3      ] [cuLaunch>4] [cuLaunch>5    ]
    gpu 7        [div<1]     [div<2]       [erf<3   ]         [add<4]      [mul<5   ]
"""
_INPUT = [8, 1024, 768]
_NUMBER = inputs([_INPUT, []], ["float", "double"])
_OPS = {
    "aten::div": _NUMBER,
    "aten::erf": inputs([_INPUT], ["float"]),
    "aten::add": _NUMBER,
}


@dataclass(frozen=True)
class HandwrittenActivation(Rule):
    """A GELU or a SiLU is hand-written, op by op, where torch has one call.

    ## What it does

    Finds the ops of a GELU, exact or in its approximation with tanh, by their order and
    shapes; and the product of a value and its own sigmoid, where the source shows that
    it is one. The fix removes the host's time for all of these ops but two of them, and
    for their backward; and the GPU's, but for one kernel in each pass.

    ## Why is this bad?

    Written by hand, the activation of a transformer is eight kernels in the forward and
    more in the backward. Each costs the host 5 to 15 µs, whatever its size, and each
    reads and writes all of the largest tensors of the model, of which autograd keeps
    several. Under autocast ``pow`` makes them float32, too.

    ## How to fix it

    ```diff
    - x = 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))
    + x = F.gelu(x, approximate="tanh")
    ```

    ```diff
    - x = x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))
    + x = F.gelu(x)
    ```

    ```diff
    - x = x * torch.sigmoid(x)
    + x = F.silu(x)
    ```

    ## When it is wrong

    If the numbers are others than those of a GELU, which a trace does not have. In 16
    bits the call rounds once, at the end, and hand-written ops each time. Compiling the
    model fuses the ops as well.
    """

    code = "FUS002"
    effort = "edit"
    preview = True
    since = "0.3.0"
    see = ("torch.nn.functional.gelu", "torch.nn.functional.silu")
    needs = frozenset({Need.GPU, Need.OPS, Need.SHAPES})

    seen = Seen(
        text="""
        FUS002 handwritten-activation (preview)
          saves 27.6 µs/step (67%), 22.8 µs to 34.3 µs
          GELU is hand-written as 5 ops, once a step
          in      forward (model.py:9)
          ops     div, div, erf, add, mul
          input   float32 [8,1024,768]
          kernel  div ×2
          kernel  erf ×1
          kernel  mul ×1
          fix     in forward: call F.gelu(x), which is one kernel in each pass
        """,
    )

    examples = (
        Bad(
            _DRAWN,
            finds=("GELU is hand-written as 5 ops, once a step",),
            args=_OPS | {"aten::mul": inputs([_INPUT] * 2, ["float"] * 2)},
        ),
        Good(_DRAWN, args=_OPS | {"aten::mul": _NUMBER}),
    )

    def check(self, view: View) -> Iterator[Finding]:
        """Group the activations by place."""
        if view.compiled:
            return
        gpu = view.gpu
        rows = [
            row | {"share": fused_share(row, gpu, view)}
            for row in handwritten_activations(view).iter_rows(named=True)
        ]
        for same in ownership.together(rows, "call"):
            yield self._finding(view, same)

    def _finding(self, view: View, rows: list[Row]) -> Finding:
        most = max(rows, key=lambda row: (row["gpu_ns"], row["dims"]))
        kernels = [kernel for row in rows for kernel in row["kernels"]]
        calls = sum(row["calls"] for row in rows) / view.steps
        kind = _NAMES[most["call"]]
        return self.finding(
            f"{kind} is hand-written as {len(most['steps'])} ops, {often(calls)}",
            subject=kind,
            place=view.place(most),
            count=calls,
            fix=[
                fix
                for row in rows
                for fix in fused_fixes(row, assumptions.FUSED_ACTIVATION_LAUNCHES)
            ],
            evidence=[
                Evidence("ops", listed(most["steps"], most=12)),
                Evidence("input", f"{dtype_name(most['type'])} {shape(most['dims'])}"),
                *kernel_lines(view, kernels),
                *module_line(most["modules"]),
            ],
            data={"call": most["call"], "steps": most["steps"], "dims": most["dims"]},
            advice=located_advice(
                view,
                None if _is_of_transformers(most) else rewritten(most),
                _advice(most),
            ),
            example="" if most["via"] else self.example(_EXAMPLES.index(most["call"])),
            # What a library computes is not the program's to write otherwise.
            effort="rewrite"
            if most["via"] and not _is_of_transformers(most)
            else "edit",
            ops=[op for row in rows for op in row["ops"]],
        )


def _is_of_transformers(row: Row) -> bool:
    return "(transformers/" in (row["via"] or "") and row["call"] == GELU_TANH


def _advice(row: Row) -> str:
    if _is_of_transformers(row):
        return _SWITCH
    advice = f"call {row['call']}, which is one kernel in each pass"
    if row["call"] == GELU_TANH and not row["shown"]:
        advice += ", if its numbers are 0.044715 and sqrt(2 / pi)"
    if row["type"] in HALF:
        advice += "; it rounds once, and gives what it takes: compare the losses"
    return advice
