"""NRM002: a norm is hand-written, op by op."""

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
    library_module,
    listed,
    located_advice,
    module_line,
    often,
    rewritten,
    shape,
)

from ._handwritten import handwritten_norms
from ._norms import fused_share

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.linter import Finding, Row

# LayerNorm subtracts a mean, RMSNorm does not.
_CENTRING = ("aten::sub", "aten::var")
# The examples of the page.
_KINDS, _OF_CHANNELS, _OF_LIBRARY = ("RMSNorm", "LayerNorm"), 2, 3

_DRAWN = """
    host  [ProfilerStep#1                                                              ]
    host   [model.py(9): norm                                                         ]
    host   [aten::pow       ] [aten::mean      ] [aten::rsqrt     ] [aten::mul       ]
    host   [cuLaunchKernel>1] [cuLaunchKernel>2] [cuLaunchKernel>3] [cuLaunchKernel>4]
    gpu 7             [pow<1 ]          [reduce<2 ]        [rsqrt<3 ]        [mul<4 ]
"""
# Batch, channels, rows, columns.
_IMAGES = 4
_INPUT, _MEAN = [8, 1024, 768], [8, 1024, 1]
_OPS = {
    "aten::pow": inputs([_INPUT, []], ["float", "Scalar"]),
    "aten::mean": inputs([_INPUT, []], ["float", "ScalarList"]),
    "aten::rsqrt": inputs([_MEAN], ["float"]),
}


@dataclass(frozen=True)
class HandwrittenNorm(Rule):
    """A norm over one dim is hand-written, op by op.

    ## What it does

    Finds the root of a mean over one dim by which the input is scaled, and around
    it the ops that make up an RMSNorm or a LayerNorm: casts, squares, the mean,
    epsilon, the weight. They are recognised by their shapes. ``F.normalize(x, dim=1)``
    that is multiplied by a weight is an RMSNorm too; without one it is left out.

    ## Why is this bad?

    A norm is memory-bound. As one kernel it reads its input and writes its result once;
    op by op it does so six to eight times, and again in the backward.

    ## How to fix it

    Call ``F.rms_norm`` (one kernel from torch 2.9 on) or ``F.layer_norm``, whose
    kernels compute in float32 inside, with a weight of the input's dtype. Or compile
    the model, which fuses the ops.

    ```diff
    - x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * self.weight
    + x = F.rms_norm(x, (x.size(-1),), self.weight, eps)
    ```

    ```diff
    - x = x - x.mean(-1, keepdim=True)
    - x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)
    - x = x * self.weight + self.bias
    + x = F.layer_norm(x, (x.size(-1),), self.weight, self.bias, eps)
    ```

    Over the channels of images, whose norm in torch is over the last dim, compile the
    norm's function; in ``channels_last`` the permuted input is contiguous:

    ```diff
    - x = F.normalize(x, dim=1) * self.weight * x.size(1) ** 0.5
    + x = F.rms_norm(x.permute(0, 2, 3, 1), (x.size(1),), self.weight.flatten())
    + x = x.permute(0, 3, 1, 2)
    ```

    The norm of a library can be replaced from outside:

    ```diff
    + def forward(self, x):
    +     return F.rms_norm(x, (x.size(-1),), self.weight, self.variance_epsilon)
    + LlamaRMSNorm.forward = forward  # once, before the model runs
    ```

    ## When it is wrong

    A norm that multiplies by ``1 + weight`` has to pass that sum as its weight, and
    advice says so where the trace shows it; in 16 bits the sum loses digits of a small
    weight. One that divides by a length has no epsilon under its root. A cast in
    the middle of the norm may round differently from the fused kernel. The saving
    assumes a fused kernel at 30% of the GPU's bandwidth, whose call takes the host as
    long as 3 launches of the ops that it replaces, and 4 in the backward.
    """

    code = "NRM002"
    since = "0.1.0"
    see = ("torch.nn.functional.rms_norm", "torch.nn.functional.layer_norm")
    needs = frozenset({Need.GPU, Need.OPS, Need.SHAPES})
    without_gpu = True

    seen = Seen(
        of="tests/data/compiled/transformer-eager",
        text="""
        NRM002 handwritten-norm  saves 4.70 ms/step (25%), 3.71 ms to 10.0 ms
          RMSNorm over 768 is hand-written as 9 ops, 13 times a step
          at       compiled.py:14-17 forward in Transformer_0/Block_0/Norm_0
                   > 14 |     def forward(self, x):
                     15 |         variance = x.float().pow(2).mean(-1, keepdim=True)
                     16 |         x = x.float() * torch.rsqrt(variance + 1e-6)
          ops      to, pow, mean, to, add, rsqrt, mul, mul, to
          input    bfloat16 [8,512,768]
          kernel   elementwise_kernel<BinaryFunctor, MulFunctor> ×26
          kernel   vectorized_elementwise_kernel<BinaryFunctor, MulFunctor> ×52
          kernel   unrolled_elementwise_kernel<direct_copy_kernel_cuda> ×39
          kernel   elementwise_kernel<BinaryFunctor, MulFunctor> ×26
          modules  Transformer_0/Block_0/Norm_0 and 12 more
          with     LCH002: one torch.compile fixes both
          fix      in forward: call F.rms_norm(x, (768,), weight, eps=eps), with
                   weight and x in one dtype, or compile the model
        """,
    )

    examples = (
        Bad(
            _DRAWN,
            finds=("RMSNorm over 768 is hand-written as 4 ops, once a step",),
            args=_OPS | {"aten::mul": inputs([_INPUT, _MEAN], ["float"] * 2)},
        ),
        Good(
            _DRAWN,
            args=_OPS | {"aten::mul": inputs([_INPUT, _INPUT], ["float"] * 2)},
        ),
    )

    def check(self, view: View) -> Iterator[Finding]:
        """Group the norms by place."""
        gpu = view.gpu
        norms = handwritten_norms(view.trace, view.kernels)
        rows = [
            row | {"kind": _kind(row), "share": fused_share(row, gpu)}
            for row in norms.iter_rows(named=True)
        ]
        for same in ownership.together(rows, "kind"):
            yield self._finding(view, same)

    def _finding(self, view: View, rows: list[Row]) -> Finding:
        most = max(rows, key=lambda row: (row["gpu_ns"], row["dims"]))
        kernels = [kernel for row in rows for kernel in row["kernels"]]
        calls = sum(row["calls"] for row in rows) / view.steps
        steps = [name.removeprefix("aten::") for name in most["steps"]]
        return self.finding(
            f"{most['kind']} over {_over(most)} is hand-written as"
            f" {len(steps)} ops, {often(calls)}",
            subject=most["kind"],
            place=view.place(most),
            count=calls,
            fix=[
                fix
                for row in rows
                for fix in fused_fixes(row, assumptions.FUSED_NORM_LAUNCHES)
            ],
            evidence=[
                Evidence("ops", listed(steps, most=12)),
                Evidence("input", f"{dtype_name(most['type'])} {shape(most['dims'])}"),
                *kernel_lines(view, kernels, most=4),
                *module_line(most["modules"]),
            ],
            data={"kind": most["kind"], "steps": list(steps), "dims": most["dims"]},
            advice=located_advice(view, rewritten(most), _advice(most)),
            example=self._example(most),
            ops=[op for row in rows for op in row["ops"]],
        )

    def _example(self, row: Row) -> str:
        if not row["via"] and not _is_last(row):
            by_rms = row["kind"] == "RMSNorm" and len(row["dims"]) == _IMAGES
            return self.example(_OF_CHANNELS) if by_rms else ""
        module = library_module(row)
        by_module = module and row["kind"] == "RMSNorm" and _is_last(row)
        if row["via"] and not by_module:
            return ""
        number = _OF_LIBRARY if row["via"] else _KINDS.index(row["kind"])
        example = self.example(number).replace("LlamaRMSNorm", module or "")
        if not row["shifted"]:
            return example
        example = example.replace("* self.weight", "* (1 + self.weight)")
        return example.replace(", self.weight", ", 1 + self.weight")


def _is_last(row: Row) -> bool:
    return bool(row["axis"] == len(row["dims"]) - 1)


def _over(row: Row) -> str:
    """Return what a norm is over: how many elements, and of which dim."""
    size = str(row["dims"][row["axis"]])
    return size if _is_last(row) else f"the {size} of dim {row['axis']}"


def _kind(row: Row) -> str:
    return "LayerNorm" if set(_CENTRING) & set(row["steps"]) else "RMSNorm"


def _advice(row: Row) -> str:
    call = "F.layer_norm" if row["kind"] == "LayerNorm" else "F.rms_norm"
    width = row["dims"][row["axis"]]
    if not _is_last(row):
        return (
            "compile the model, which makes one kernel of it; or, where dim"
            f" {row['axis']} can be the last without a copy, call"
            f" {call}(x, ({width},), weight)"
        )
    weight, of = "weight", "weight"
    if row["shifted"]:
        weight, of = "1 + weight", "that sum"
    text = (
        f"call {call}(x, ({width},), {weight}, eps=eps), with {of} and x in"
        " one dtype, or compile the model"
    )
    if row["shifted"] and row["type"] in HALF:
        rounded = dtype_name(row["type"])
        text += f"; in {rounded} the sum is rounded: compare the results"
    return text
