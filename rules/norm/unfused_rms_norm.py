"""NRM001: RMSNorm runs op by op instead of as one kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from traceq.analysis.base.device import used_gpu
from traceq.analysis.patterns.norms import fused_saving, unfused_rms_norms
from traceq.lint import Bad, Good, Need, Rule, View, inputs
from traceq.lint.evidence import dtype, kernel_lines, module_line
from traceq.words import counted, shape, times

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.lint import Finding

_FIRST_FUSED = (2, 9)
# Of the host's time for all the ops one remains.
_SAVED_ON_HOST = 0.5


@dataclass(frozen=True)
class UnfusedRmsNorm(Rule):
    """RMSNorm runs op by op, because its weight has another dtype than its input.

    ## What it does

    Looks for ``aten::rms_norm`` without ``aten::_fused_rms_norm`` inside, and compares
    the dtypes of input and weight. Torch before 2.9 has no fused RMSNorm at all; then
    that is the cause. LayerNorm is always fused: with other dtypes it fails.

    ## Why is this bad?

    A norm is bound by memory. As one kernel it reads its input and writes its result
    once; op by op it does so seven times, and again in the backward.

    ## How to fix it

    Give the norm weights of the input's dtype (``norm.to(torch.bfloat16)``, or
    ``nn.RMSNorm(…, dtype=torch.bfloat16)``): the fused kernel computes in float32
    inside. Or compile the model.

    ## When it is wrong

    Weights in float32 may be wanted for training without a master copy; then compile.
    The cost compares with a fused kernel at a third of the GPU's bandwidth.
    """

    code = "NRM001"
    needs = frozenset({Need.GPU, Need.OPS})

    examples = (
        Bad(
            """
            host   [ProfilerStep#1                                                 ]
            host    [nn.Module: RMSNorm_0                                         ]
            host     [aten::rms_norm                                             ]
            host      [aten::to        ]  [aten::pow       ]  [aten::mean       ]
            host      [cuLaunchKernel>1]  [cuLaunchKernel>2]  [cuLaunchKernel>3 ]
            gpu 7                 [copy<1 ]          [pow<2 ]         [reduce<3 ]
            """,
            finds=(
                "RMSNorm runs as 3 kernels instead of 1, once a step, because its input"
                " is bfloat16 and its weight float32",
            ),
            args={
                "aten::rms_norm": inputs(
                    [[8, 1024, 768], [], [768]],
                    ["c10::BFloat16", "ScalarList", "float"],
                ),
            },
        ),
        Good(
            """
            host   [ProfilerStep#1                                                   ]
            host    [nn.Module: RMSNorm_0                                           ]
            host     [aten::rms_norm                                               ]
            host      [aten::_fused_rms_norm]
            host       [cudaLaunchKernel>1]
            gpu 7                  [vectorized_layer_norm_kernel<1 ]
            """,
            args={
                "aten::rms_norm": inputs(
                    [[8, 1024, 768], [], [768]],
                    ["c10::BFloat16", "ScalarList", "c10::BFloat16"],
                ),
            },
        ),
    )

    def check(self, view: View) -> Iterator[Finding]:
        """Group the norms by place and cause."""
        gpu = used_gpu(view.trace)
        newest = _version(view.trace.facts.torch_to)
        groups: dict[tuple[object, ...], list[dict[str, Any]]] = {}
        found = unfused_rms_norms(view.trace, view.kernels)
        for row in found.iter_rows(named=True):
            cause = "version"
            if not newest or newest >= _FIRST_FUSED:
                cause = "dtype" if _differ(row) else "unknown"
            place = (row["file"], row["line"], row["function"], row["layers"])
            groups.setdefault((*place, cause), []).append(
                row | {"cause": cause, "saving": fused_saving(row, gpu)}
            )
        for rows in groups.values():
            yield self._finding(view, rows)

    def _finding(self, view: View, rows: list[dict[str, Any]]) -> Finding:
        most = max(rows, key=lambda row: (row["gpu_ns"], row["dims"] or []))
        kernels = [kernel for row in rows for kernel in row["kernels"]]
        calls = sum(row["calls"] for row in rows) / view.steps
        why, advice = _words(most)
        return self.finding(
            f"RMSNorm runs as {counted(most['launches'], 'kernel')} instead of 1,"
            f" {times(calls)} a step{why}",
            subject=f"rms_norm {most['cause']}",
            place=view.place(most),
            count=calls,
            gpu_ns=sum(row["saving"] for row in rows) / view.steps,
            host_ns=sum(row["host_ns"] for row in rows) * _SAVED_ON_HOST / view.steps,
            evidence=[
                ("op", f"aten::rms_norm {shape(most['dims'])}" if most["dims"] else ""),
                (
                    "dtype",
                    f"input {dtype(most['type'])}, weight {dtype(most['weight'])}"
                    if most["type"]
                    else "",
                ),
                *kernel_lines(view, kernels, most=4),
                *module_line(most["modules"]),
            ],
            data={key: most[key] for key in ("cause", "dims", "type", "weight")},
            advice=advice,
            ops=[op for row in rows for op in row["ops"]],
            kernels=kernels,
        )


def _differ(row: dict[str, Any]) -> bool:
    return bool(row["type"] and row["weight"]) and row["type"] != row["weight"]


def _words(row: dict[str, Any]) -> tuple[str, str]:
    """Say why a norm is not fused, and what to do."""
    if row["cause"] == "version":
        return (
            ": this torch has no fused one",
            "use torch 2.9 or later, whose RMSNorm is one kernel, or torch.compile",
        )
    if row["cause"] == "dtype":
        given, weight = dtype(row["type"]), dtype(row["weight"])
        return (
            f", because its input is {given} and its weight {weight}",
            f"give the norm weights in {given} (norm.to(torch.{given})), the kernel"
            " computes in float32 inside; or compile the model",
        )
    return (
        "",
        "see that weight and input have one dtype, that the input is contiguous, and"
        " that torch is 2.9 or later",
    )


def _version(text: str) -> tuple[int, ...]:
    parts = text.split(".")
    return tuple(map(int, parts)) if all(part.isdigit() for part in parts) else ()
