"""ATT003: attention is hand-written as matmul, softmax and matmul."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from traceq.analysis.base import assumptions, ownership
from traceq.analysis.patterns.attention_handwritten import (
    handwritten_attention,
    writes_attention,
)
from traceq.linter import (
    FLOAT32,
    SIZES,
    Bad,
    Evidence,
    Good,
    Need,
    Rule,
    Seen,
    Severity,
    View,
    dataclass,
    dtype_name,
    fused_fixes,
    inputs,
    kernel_lines,
    listed,
    module_line,
    often,
    shape,
)

from ._handwritten_advice import MODULE, advice_for, described
from ._head_dims import FUSED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.linter import Finding, Row

_SCORES = [8, 12, 1024, 1024]
_FIRST = inputs([[96, 1024, 64], [96, 64, 1024]], ["c10::BFloat16"] * 2)


@dataclass(frozen=True)
class HandwrittenAttention(Rule):
    """Attention is hand-written as matmul, softmax and matmul instead of calling SDPA.

    ## What it does

    Finds a softmax between two batched matmuls (``matmul``, ``bmm`` or ``einsum``)
    whose shapes say that the first makes the scores and the second uses them. The
    softmax may be written by hand too: ``exp``, divided by its ``sum``. Scales, masks,
    casts and dropout of the scores belong to it, and so does the backward of it all;
    what else is computed in between, as a bias or a mask, stays.
    ``nn.MultiheadAttention`` does the same if it has to return the attention weights.

    ## Why is this bad?

    Every op in between reads and writes the scores, a matrix of queries by keys for
    each head, and they are kept for the backward. A fused kernel never writes them.

    ## How to fix it

    Call ``F.scaled_dot_product_attention``: a causal mask becomes ``is_causal=True``,
    dropout ``dropout_p``, a factor other than 1/sqrt(head dim) ``scale``. Other changes
    to the scores (a bias, a soft cap) become a ``score_mod`` of FlexAttention. Call
    ``nn.MultiheadAttention`` with ``need_weights=False``, and load models of
    transformers with ``attn_implementation="sdpa"``.

    ```diff
    - scores = (q @ k.transpose(-2, -1)) / math.sqrt(q.size(-1))
    - out = scores.masked_fill(~causal, float("-inf")).softmax(-1) @ v
    + out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    ```

    Without a mask, with another one, and with a bias:

    ```diff
    - out = (q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))).softmax(-1) @ v
    + out = F.scaled_dot_product_attention(q, k, v)
    ```

    ```diff
    - scores = (q @ k.transpose(-2, -1)) / math.sqrt(q.size(-1))
    - out = scores.masked_fill(~mask, float("-inf")).softmax(-1) @ v
    + out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    ```

    ```diff
    - scores = (q @ k.transpose(-2, -1)) / math.sqrt(q.size(-1))
    - out = (scores + bias).softmax(-1) @ v
    + out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
    ```

    With a causal mask and another one, for padding, which has to stay:

    ```diff
    - scores = (q @ k.transpose(-2, -1)) / math.sqrt(q.size(-1))
    - out = (scores.masked_fill(~causal, -1e4) + padding).softmax(-1) @ v
    + mask = torch.where(causal, padding, -1e4)
    + out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    ```

    The module of torch:

    ```diff
    - out, _ = self.attention(x, x, x)
    + out, _ = self.attention(x, x, x, need_weights=False)
    ```

    In code of a library, the same in a version of your own of its function or module.

    ## When it is wrong

    Fused kernels take float32 with head dims that are multiples of 4, and 16 bits with
    a mask with multiples of 8: other heads have to be padded, or chosen to fit, first.
    A program that inspects the attention weights needs them: where an op reads them,
    the finding is minor, as it is in float32 with a head dim above 128. The saving
    compares with FlashAttention as fast as it is on short sequences; in float32, which
    it does not take, half of the time is assumed. Fused kernels take four dims alone.
    """

    code = "ATT003"
    since = "0.1.0"
    see = (
        "torch.nn.functional.scaled_dot_product_attention",
        "torch.nn.MultiheadAttention",
        "torch.nn.attention.flex_attention",
    )
    needs = frozenset({Need.GPU, Need.OPS, Need.SHAPES})
    without_gpu = True

    seen = Seen(
        of="fixtures/twins/attn_manual",
        text="""
        ATT003 handwritten-attention  saves 6.48 ms/step (40%), 6.08 ms to 8.18 ms
          attention is hand-written 4 times a step: its scores [8,12,1024,1024] go
            through memory between matmul, softmax and matmul
          in       manual (dev_cases.py:52) of LM_0/Block_0
          ops      matmul, div, masked_fill, softmax, matmul
          scores   bfloat16 [8,12,1024,1024] 192 MiB each time
          kernel   elementwise_kernel<masked_fill_kernel> ×8
          kernel   softmax_warp_forward<BFloat16, BFloat16, float, 10, false, false>
                   ×4
          kernel   softmax_warp_backward<BFloat16, BFloat16, float, 10, false,
                   false> ×4
          kernel   vectorized_elementwise_kernel<BUnaryFunctor, MulFunctor> ×8
          modules  LM_0/Block_0 and 3 more
          fix      in manual: if the mask is the lower triangle, call
                   F.scaled_dot_product_attention(query, key, value, is_causal=True)
        """,
    )

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
                "attention is hand-written once a step: its scores [8,12,1024,1024] go"
                " through memory between matmul, softmax and matmul",
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
        if not writes_attention(view.trace):
            return
        handwritten = handwritten_attention(view.trace, view.kernels)
        rows = [
            described(view, row)
            for row in handwritten.iter_rows(named=True)
            if not row["type"] or row["type"] in FUSED
        ]
        for same in ownership.together(rows, "by_torch", "reading", "wide"):
            yield self._finding(view, same)

    def _finding(self, view: View, rows: list[Row]) -> Finding:
        most = max(rows, key=lambda row: (row["gpu_ns"], row["scores"]))
        calls = sum(row["calls"] for row in rows) / view.steps
        scores, kind = most["scores"], most["type"]
        steps = [name.removeprefix("aten::") for name in most["steps"] or ()]
        what = "attention is hand-written"
        if most["by_torch"]:
            what = f"nn.{MODULE} runs op by op"
        advice, example = advice_for(view, most)
        kernels = [kernel for row in rows for kernel in row["kernels"]]
        return self.finding(
            f"{what} {often(calls)}: its scores {shape(scores)} go through"
            " memory between matmul, softmax and matmul",
            subject=MODULE if most["by_torch"] else "attention",
            place=view.place(most),
            count=calls,
            severity=Severity.info if most["minor"] else None,
            fix=[
                fix
                for row in rows
                if not (row["reading"] or row["wide"])
                for fix in fused_fixes(row, assumptions.FUSED_ATTENTION_LAUNCHES)
            ],
            evidence=[
                Evidence("ops", listed(steps, most=12)),
                Evidence(
                    "scores",
                    f"{dtype_name(kind)} {shape(scores)}",
                    value=prod(scores) * SIZES.get(kind, SIZES[FLOAT32]),
                    unit="bytes",
                    note="each time",
                ),
                *kernel_lines(view, kernels, most=4),
                *module_line(most["modules"]),
            ],
            data={"scores": scores, "steps": list(steps), "type": kind},
            advice=advice,
            example="" if example is None else self.example(example),
            ops=[op for row in rows for op in row["ops"]],
        )
