"""NRM002: a norm is written op by op."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from traceq.analysis.base.device import used_gpu
from traceq.analysis.patterns.norms import fused_saving
from traceq.analysis.patterns.norms_handwritten import handwritten_norms
from traceq.lint import Bad, Good, Need, Rule, View, inputs
from traceq.lint.evidence import dtype, kernel_lines, module_line
from traceq.words import listed, shape, times

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.lint import Finding

# LayerNorm takes off a mean, RMSNorm does not.
_CENTRING = ("aten::sub", "aten::var")
# Of the host's time for all the ops one remains.
_SAVED_ON_HOST = 0.5

_DRAWN = """
    host  [ProfilerStep#1                                                              ]
    host   [model.py(9): norm                                                         ]
    host   [aten::pow       ] [aten::mean      ] [aten::rsqrt     ] [aten::mul       ]
    host   [cuLaunchKernel>1] [cuLaunchKernel>2] [cuLaunchKernel>3] [cuLaunchKernel>4]
    gpu 7             [pow<1 ]          [reduce<2 ]        [rsqrt<3 ]        [mul<4 ]
"""
_INPUT, _MEAN = [8, 1024, 768], [8, 1024, 1]
_OPS = {
    "aten::pow": inputs([_INPUT, []], ["float", "Scalar"]),
    "aten::mean": inputs([_INPUT, []], ["float", "ScalarList"]),
    "aten::rsqrt": inputs([_MEAN], ["float"]),
}


@dataclass(frozen=True)
class HandwrittenNorm(Rule):
    """A norm over the last dim is written op by op.

    ## What it does

    Looks for the root of a mean over the last dim by which the input is scaled, and
    for the ops before and after it that make up an RMSNorm or a LayerNorm: casts,
    squares, the mean, epsilon, the weight. They are told by their shapes.

    ## Why is this bad?

    A norm is bound by memory. As one kernel it reads its input and writes its result
    once; op by op it does so six to eight times, and again in the backward.

    ## How to fix it

    Call ``F.rms_norm`` (one kernel from torch 2.9 on) or ``F.layer_norm``, whose
    kernels compute in float32 inside, with a weight of the input's dtype. Or compile
    the model, which fuses the ops.

    ## When it is wrong

    A weight that is used as ``1 + weight`` must be given so; a cast in the middle of
    the norm may round otherwise than the fused kernel. The cost compares with a fused
    kernel at a third of the GPU's bandwidth.
    """

    code = "NRM002"
    needs = frozenset({Need.GPU, Need.OPS, Need.SHAPES})

    examples = (
        Bad(
            _DRAWN,
            finds=("RMSNorm over 768 is written by hand, as 4 ops once a step",),
            args=_OPS | {"aten::mul": inputs([_INPUT, _MEAN], ["float"] * 2)},
        ),
        Good(
            _DRAWN,
            args=_OPS | {"aten::mul": inputs([_INPUT, _INPUT], ["float"] * 2)},
        ),
    )

    def check(self, view: View) -> Iterator[Finding]:
        """Group the norms by place."""
        gpu = used_gpu(view.trace)
        groups: dict[tuple[object, ...], list[dict[str, Any]]] = {}
        found = handwritten_norms(view.trace, view.kernels)
        for row in found.iter_rows(named=True):
            kind = "LayerNorm" if set(_CENTRING) & set(row["steps"]) else "RMSNorm"
            place = (row["file"], row["line"], row["function"], row["layers"])
            groups.setdefault((*place, kind), []).append(
                row | {"kind": kind, "saving": fused_saving(row, gpu)}
            )
        for rows in groups.values():
            yield self._finding(view, rows)

    def _finding(self, view: View, rows: list[dict[str, Any]]) -> Finding:
        most = max(rows, key=lambda row: (row["gpu_ns"], row["dims"]))
        kernels = [kernel for row in rows for kernel in row["kernels"]]
        calls = sum(row["calls"] for row in rows) / view.steps
        steps = [name.removeprefix("aten::") for name in most["steps"]]
        call = "F.layer_norm" if most["kind"] == "LayerNorm" else "F.rms_norm"
        advice = (
            f"call {call}(x, ({most['dims'][-1]},), weight, eps=eps), with weight and x"
            " in one dtype, or compile the model"
        )
        return self.finding(
            f"{most['kind']} over {most['dims'][-1]} is written by hand, as"
            f" {len(steps)} ops {times(calls)} a step",
            subject=most["kind"],
            place=view.place(most),
            count=calls,
            gpu_ns=sum(row["saving"] for row in rows) / view.steps,
            host_ns=sum(row["host_ns"] for row in rows) * _SAVED_ON_HOST / view.steps,
            evidence=[
                ("ops", listed(steps, most=12)),
                ("input", f"{shape(most['dims'])} {dtype(most['type'])}"),
                *kernel_lines(view, kernels, most=4),
                *module_line(most["modules"]),
            ],
            data={"kind": most["kind"], "steps": list(steps), "dims": most["dims"]},
            advice=f"in {most['function']}: {advice}" if most["function"] else advice,
            ops=[op for row in rows for op in row["ops"]],
            kernels=kernels,
        )
