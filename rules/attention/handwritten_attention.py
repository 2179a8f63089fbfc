"""ATT003: attention is written as product, softmax and product."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from traceq.analysis.base.device import used_gpu
from traceq.analysis.patterns.attention import HALF, flash_saving
from traceq.analysis.patterns.attention_handwritten import handwritten_attention
from traceq.lint import Bad, Good, Need, Rule, View, inputs
from traceq.lint.evidence import dtype, kernel_lines, module_line
from traceq.model.torch_versions import newer_than
from traceq.words import listed, shape, size, times

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.lint import Finding

_MASKING = ("aten::masked_fill", "aten::masked_fill_", "aten::where")
_ADDING = ("aten::add", "aten::add_")
_FLEX = "use FlexAttention under torch.compile and write {} in its score_mod"
_SDPA = "F.scaled_dot_product_attention(query, key, value{})"
# The module of torch that leaves fused attention to return the weights, its default.
_MODULE = "MultiheadAttention"
_NO_WEIGHTS = (
    "pass need_weights=False to nn.MultiheadAttention, which then calls fused attention"
)
# In float32 there are no flash kernels, only somewhat faster ones.
_SAVED_IN_FLOAT32 = 0.5

_SCORES = [8, 12, 1024, 1024]
_FIRST = inputs([[96, 1024, 64], [96, 64, 1024]], ["c10::BFloat16"] * 2)


@dataclass(frozen=True)
class HandwrittenAttention(Rule):
    """Attention is written by hand, as product, softmax and product.

    ## What it does

    Looks for a softmax between two batched matrix products, of which the first makes
    what softmax is given and the second takes what it returns, by their shapes.
    ``nn.MultiheadAttention`` does the same if it has to return its weights.

    ## Why is this bad?

    Every op between the products reads and writes the scores, a matrix of queries by
    keys for each head, and the backward keeps them. A fused kernel never writes them.

    ## How to fix it

    Call ``F.scaled_dot_product_attention``: a causal mask becomes ``is_causal=True``,
    dropout ``dropout_p``, the factor before softmax ``scale``. What changes the scores
    in other ways (a bias, a soft cap) is a ``score_mod`` of FlexAttention. Call
    ``nn.MultiheadAttention`` with ``need_weights=False``.

    ## When it is wrong

    A program that returns or looks at the attention weights needs them. The cost is
    what a fused kernel would save at the rate it has on short sequences; half of the
    time in float32.
    """

    code = "ATT003"
    needs = frozenset({Need.GPU, Need.OPS, Need.SHAPES})

    examples = (
        Bad(
            """
            host   [ProfilerStep#1                                                     ]
            host    [model.py(52): attend                                             ]
            host     [aten::matmul        ] [aten::softmax      ] [aten::einsum      ]
            host     [aten::bmm           ] [aten::_softmax     ] [aten::baddbmm     ]
            host     [cudaLaunchKernel>1  ] [cudaLaunchKernel>2 ] [cudaLaunchKernel>3]
            gpu 7                 [gemm<1         ][softmax<2    ]      [gemm<3    ]
            """,
            finds=(
                "attention is written by hand once a step: its scores [8,12,1024,1024]"
                " go through memory between product, softmax and product",
            ),
            args={
                "aten::bmm": _FIRST,
                "aten::_softmax": inputs([_SCORES], ["c10::BFloat16"]),
                "aten::baddbmm": inputs(
                    [[1], [96, 1024, 1024], [96, 1024, 64]], ["c10::BFloat16"] * 3
                ),
            },
        ),
        Good(
            """
            host   [ProfilerStep#1                                                     ]
            host    [moe.py(52): route                                                ]
            host     [aten::matmul        ] [aten::softmax      ] [aten::einsum      ]
            host     [aten::bmm           ] [aten::_softmax     ] [aten::baddbmm     ]
            host     [cudaLaunchKernel>1  ] [cudaLaunchKernel>2 ] [cudaLaunchKernel>3]
            gpu 7                 [gemm<1         ][softmax<2    ]      [gemm<3    ]
            """,
            args={
                "aten::bmm": _FIRST,
                "aten::_softmax": inputs([[8192, 96]], ["c10::BFloat16"]),
                "aten::baddbmm": inputs(
                    [[1], [96, 1024, 1024], [96, 1024, 64]], ["c10::BFloat16"] * 3
                ),
            },
        ),
    )

    def check(self, view: View) -> Iterator[Finding]:
        """Group the softmaxes by place."""
        gpu = used_gpu(view.trace)
        groups: dict[tuple[object, ...], list[dict[str, Any]]] = {}
        rows = handwritten_attention(view.trace, view.kernels)
        for row in rows.iter_rows(named=True):
            saving = row["gpu_ns"] * _SAVED_IN_FLOAT32
            if row["type"] in HALF:
                saving = flash_saving(row, gpu, causal=_causal(row))
            place = (row["file"], row["line"], row["function"], row["layers"])
            ours = _MODULE in (row["module"] or "").rpartition("/")[2]
            found = groups.setdefault((*place, ours), [])
            found.append(row | {"saving": saving, "ours": ours})
        for same in groups.values():
            yield self._finding(view, same)

    def _finding(self, view: View, rows: list[dict[str, Any]]) -> Finding:
        most = max(rows, key=lambda row: (row["gpu_ns"], row["scores"]))
        kernels = [kernel for row in rows for kernel in row["kernels"]]
        calls = sum(row["calls"] for row in rows) / view.steps
        scores = most["scores"]
        width = 2 if most["type"] in HALF else 4
        steps = [name.removeprefix("aten::") for name in most["steps"] or ()]
        what, advice = "attention is written by hand", _advice(most)
        if most["ours"]:
            what, advice = f"nn.{_MODULE} runs op by op", _NO_WEIGHTS
        return self.finding(
            f"{what} {times(calls)} a step: its scores"
            f" {shape(scores)} go through memory between product, softmax and product",
            subject=_MODULE if most["ours"] else "attention",
            place=view.place(most),
            count=calls,
            gpu_ns=sum(row["saving"] for row in rows) / view.steps,
            # One op remains of at least three.
            host_ns=sum(row["host_ns"] for row in rows) / 2 / view.steps,
            evidence=[
                ("ops", listed(steps, most=12)),
                (
                    "scores",
                    f"{shape(scores)} {dtype(most['type'])},"
                    f" {size(prod(scores) * width)} each time",
                ),
                *kernel_lines(view, kernels, most=4),
                *module_line(most["modules"]),
            ],
            data={"scores": scores, "steps": list(steps), "type": most["type"]},
            advice=_told(view, most["function"], advice),
            ops=[op for row in rows for op in row["ops"]],
            kernels=kernels,
        )


def _operands(row: dict[str, Any], names: tuple[str, ...]) -> list[list[int]]:
    """Return the shapes of what ops of these names do to the scores."""
    given = zip(row["steps"] or (), row["given"] or (), strict=True)
    shapes = [dims for name, dims in given if name in names for dims in dims or ()]
    return [dims for dims in shapes if len(dims) > 1 and dims != row["scores"]]


def _causal(row: dict[str, Any]) -> bool:
    """Tell whether one square masks the scores of all sequences and heads."""
    rows, columns = row["scores"][-2:]
    masks = _operands(row, _MASKING)
    return (
        rows == columns
        and bool(masks)
        and all(
            dims[-2:] == [rows, columns] and prod(dims) == rows * columns
            for dims in masks
        )
    )


def _advice(row: dict[str, Any]) -> str:
    steps = row["steps"] or ()
    if "aten::tanh" in steps:
        return _FLEX.format("the soft cap")
    if any(row["scores"][-2:] == dims[-2:] for dims in _operands(row, _ADDING)):
        return f"call {_SDPA.format(', attn_mask=bias')}, or {_FLEX.format('the bias')}"
    dropout = ", dropout_p=…" if "aten::dropout" in steps else ""
    if _causal(row):
        call = _SDPA.format(f", is_causal=True{dropout}")
        return f"if the mask is the lower triangle, call {call}"
    if any(name in _MASKING for name in steps):
        return (
            f"call {_SDPA.format(f', attn_mask=mask{dropout}')}; see ATT001 for masks"
        )
    return f"call {_SDPA.format(dropout)}"


def _told(view: View, function: str | None, advice: str) -> str:
    """Say where to do it, and what of it needs a newer torch."""
    newer = newer_than(view.trace.facts, advice)
    notes = "".join(f"; {name} needs torch {first}" for name, first in newer.items())
    return (f"in {function}: " if function else "") + advice + notes
