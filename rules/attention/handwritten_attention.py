"""ATT003: attention is hand-written as matmul, softmax and matmul."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from traceq.analysis.base import assumptions, callers, ownership
from traceq.analysis.patterns import attention
from traceq.analysis.patterns.attention_handwritten import (
    handwritten_attention,
    writes_attention,
)
from traceq.linter import (
    FLOAT32,
    HALF,
    SIZES,
    Bad,
    Evidence,
    Good,
    Gpu,
    Need,
    Rule,
    Seen,
    View,
    dataclass,
    dtype_name,
    fill_false,
    fused_fixes,
    inputs,
    kernel_lines,
    listed,
    located_advice,
    module_line,
    often,
    own_function,
    rewritten,
    shape,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.linter import Finding, Row

_MASKING = ("aten::masked_fill", "aten::masked_fill_", "aten::where")
_ADDING = ("aten::add", "aten::add_")
_FLEX = "use FlexAttention under torch.compile and write {} in its score_mod"
_SDPA = "F.scaled_dot_product_attention(query, key, value{})"
# The module of torch that leaves fused attention to return the weights, its default.
_MODULE = "MultiheadAttention"
# What transformers calls for attn_implementation="eager".
_EAGER = "eager_attention_forward"
_NOT_EAGER = (
    'load the model with attn_implementation="sdpa", which calls SDPA; where'
    " transformers has that for the model it is the default: see whether something asks"
    ' for "eager", or for output_attentions'
)
_NO_WEIGHTS = (
    "pass need_weights=False to nn.MultiheadAttention, which then calls fused attention"
)
_BETWEEN = "which fuses what is between the matmuls"
_WHERE = ("function", "via", "module")
# The examples of the page.
_WITH_CAUSAL, _PLAIN, _WITH_MASK, _WITH_BIAS, _OF_TORCH = range(5)

_SCORES = [8, 12, 1024, 1024]
_FIRST = inputs([[96, 1024, 64], [96, 64, 1024]], ["c10::BFloat16"] * 2)


@dataclass(frozen=True)
class HandwrittenAttention(Rule):
    """Attention is hand-written as matmul, softmax and matmul instead of calling SDPA.

    ## What it does

    Finds a softmax between two batched matmuls (``matmul``, ``bmm`` or ``einsum``)
    whose shapes say that the first makes the scores and the second uses them. The
    softmax may be written by hand too: ``exp``, divided by its ``sum``. Scales, masks,
    casts and dropout in between belong to it, and so does the backward of it all.
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

    The module of torch:

    ```diff
    - out, _ = self.attention(x, x, x)
    + out, _ = self.attention(x, x, x, need_weights=False)
    ```

    In code of a library, the same in a version of your own of its function or module.

    ## When it is wrong

    A program that returns or inspects the attention weights needs them. The saving
    compares with FlashAttention as fast as it is on short sequences; in float32, which
    it does not take, half of the time is assumed.

    ## Measured

    On an H200, in ms a step. SDPA instead: ``attn_manual`` 16.1 → 9.3, ``hand_written``
    8.8 → 4.3, ``gpt2_eager`` 51.9 → 32.8, ``llama_eager`` 57.7 → 33.7,
    ``course_attention`` 31.5 → 10.5.
    """

    code = "ATT003"
    since = "0.1.0"
    see = (
        "torch.nn.functional.scaled_dot_product_attention",
        "torch.nn.MultiheadAttention",
        "torch.nn.attention.flex_attention",
    )
    needs = frozenset({Need.GPU, Need.OPS, Need.SHAPES})

    seen = Seen(
        of="fixtures/twins/attn_manual",
        text="""
        ATT003 handwritten-attention  saves 6.49 ms/step (40%)
          attention is hand-written 4 times a step: its scores [8,12,1024,1024] go
            through memory between matmul, softmax and matmul
          in       manual (dev_cases.py:52) of LM_0/Block_0
          ops      matmul, div, bitwise_not, masked_fill, softmax, matmul
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
        gpu = view.gpu
        found = handwritten_attention(view.trace, view.kernels)
        rows = []
        for row in found.iter_rows(named=True):
            row["making"] = _making(view, row)
            row["share"] = _share(row, gpu)
            row["by_torch"] = _MODULE in (row["module"] or "").rpartition("/")[2]
            rows.append(row)
        for same in ownership.together(rows, "by_torch"):
            yield self._finding(view, same)

    def _finding(self, view: View, rows: list[Row]) -> Finding:
        most = max(rows, key=lambda row: (row["gpu_ns"], row["scores"]))
        calls = sum(row["calls"] for row in rows) / view.steps
        scores, kind = most["scores"], most["type"]
        steps = [name.removeprefix("aten::") for name in most["steps"] or ()]
        what = "attention is hand-written"
        if most["by_torch"]:
            what = f"nn.{_MODULE} runs op by op"
        advice, example = _advice(view, most)
        kernels = [kernel for row in rows for kernel in row["kernels"]]
        return self.finding(
            f"{what} {often(calls)}: its scores {shape(scores)} go through"
            " memory between matmul, softmax and matmul",
            subject=_MODULE if most["by_torch"] else "attention",
            place=view.place(most),
            count=calls,
            fix=[
                one
                for row in rows
                for one in fused_fixes(row, assumptions.FUSED_ATTENTION_LAUNCHES)
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


def _share(row: Row, gpu: Gpu) -> float:
    """Return the share of the GPU time that fused attention would save."""
    if row["type"] not in HALF:
        return assumptions.FLOAT32_ATTENTION_SAVING
    return attention.flash_share(row, gpu, causal=_causal(row))


def _operands(row: Row, names: tuple[str, ...]) -> list[list[int]]:
    """Return the shapes of what ops of these names combine the scores with."""
    given = zip(row["steps"] or (), row["given"] or (), strict=True)
    shapes = [dims for name, dims in given if name in names for dims in dims or ()]
    return [dims for dims in shapes if len(dims) > 1 and dims != row["scores"]]


def _masks(row: Row) -> list[list[int]]:
    """Return the shapes of masks that all heads share, as far as they are squares."""
    square = row["scores"][-2:]
    found = _operands(row, _MASKING + _ADDING)
    return [
        dims
        for dims in found
        if dims[-2:] == square and square[0] == square[1] and dims[-3:-2] in ([], [1])
    ]


def _making(view: View, row: Row) -> str:
    """Return what is seen to make the mask of the scores causal, if anything."""
    if not _masks(row):
        return ""
    queries, keys = row["scores"][-2:]
    return attention.causal_making(view.trace, queries, keys, row["module"])


def _causal(row: Row) -> bool:
    """Return whether the mask is taken to be causal, for what remains to compute.

    That is a mask seen to be made so, or a square by which all are masked.
    """
    rows, columns = row["scores"][-2:]
    masks = _operands(row, _MASKING)
    return bool(row["making"]) or (
        rows == columns
        and bool(masks)
        and all(
            dims[-2:] == [rows, columns] and prod(dims) == rows * columns
            for dims in masks
        )
    )


def _is_eager(view: View, row: Row) -> bool:
    """Return whether transformers runs its attention op by op."""
    if not (view.trace.frames["function"] == _EAGER).any():
        return False
    moment = view.trace.ops.slice(row["first"], 1)
    running = callers.library_calls(view.trace.frames, moment)["library_function"]
    return bool(fill_false(running == _EAGER).any())


def _advice(view: View, row: Row) -> tuple[str, int | None]:
    """Return what to do, and which example of the page shows it, if any."""
    if row["by_torch"]:
        return located_advice(view, own_function(row), _NO_WEIGHTS), _OF_TORCH
    if _is_eager(view, row):
        return located_advice(view, own_function(row), _NOT_EAGER), None
    advice, example = _call(row)
    # Where the result is computed is where SDPA is to be called.
    last = view.trace.ops[[*_WHERE]].row(row["last"], named=True)
    if last["via"]:
        # No line of the user's is like the example.
        advice, example = f"{advice}; or compile the model, {_BETWEEN}", None
    elif example == _WITH_BIAS:
        advice = f"{advice}, or {_FLEX.format('the bias')}"
    return located_advice(view, rewritten(last), advice), example


def _call(row: Row) -> tuple[str, int | None]:
    """Return which call replaces it, and which example of the page shows it, if any."""
    steps = row["steps"] or ()
    if "aten::tanh" in steps:
        return _FLEX.format("the soft cap"), None
    dropout = ", dropout_p=…" if "aten::dropout" in steps else ""
    if row["making"]:
        padded = any(prod(dims[:-2]) > 1 for dims in _masks(row))
        call = f"call {_SDPA.format(f', is_causal=True{dropout}')}"
        call = f"where nothing is padded, {call}; see ATT001" if padded else call
        return call, _WITH_CAUSAL
    if any(row["scores"][-2:] == dims[-2:] for dims in _operands(row, _ADDING)):
        return f"call {_SDPA.format(', attn_mask=bias')}", _WITH_BIAS
    if _causal(row):
        call = _SDPA.format(f", is_causal=True{dropout}")
        return f"if the mask is the lower triangle, call {call}", _WITH_CAUSAL
    if any(name in _MASKING for name in steps):
        call = _SDPA.format(f", attn_mask=mask{dropout}")
        return f"call {call}; see ATT001 for masks", _WITH_MASK
    return f"call {_SDPA.format(dropout)}", _PLAIN
