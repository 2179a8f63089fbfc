"""FUS001: memory-bound ops run one by one where a compiler would fuse them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.linter import (
    Bad,
    Evidence,
    Fix,
    Good,
    Need,
    Rule,
    Seen,
    View,
    at_function,
    counted,
    dataclass,
    inputs,
    located_advice,
    option,
    own_function,
)

from ._chains import (
    by_line,
    first_known,
    fused_calls,
    graph_breaks,
    host_fix,
    host_line,
    longest_chain,
    worth_naming,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.linter import Finding

_MOST_LINES = 5
_COMPILE = (
    "compile the model, or the function that runs these lines, with torch.compile"
)
_DRAWN = """
    host   [ProfilerStep#1                                                            ]
    host    [model.py(9): forward                                                    ]
    host     [aten::mul       ] [aten::tanh      ] [aten::add       ]
    host     [cuLaunchKernel>1] [cuLaunchKernel>2] [cuLaunchKernel>3]
    gpu 7                   [mul<1            ] [tanh<2          ] [add<3           ]
"""
_LARGE = [1024, 1024]
_OPS = {
    "aten::mul": inputs([_LARGE, []], ["float", "Scalar"]),
    "aten::tanh": inputs([_LARGE], ["float"]),
    "aten::add": inputs([_LARGE, []], ["float", "Scalar"]),
}


@dataclass(frozen=True)
class FusibleChain(Rule):
    """Memory-bound ops run one by one where a compiler would fuse them.

    ## What it does

    Finds chains of pointwise ops, reductions, casts, copies, norms, softmaxes, dropout
    and losses between two matmuls, convolutions or attentions, with their backward, and
    estimates what they take once they are fused: bytes that come from outside are read
    once, those that others use are written once. A chain may go on across modules, and
    past a matmul that uses nothing of it. Kernels that other findings are about are
    left out. There is one finding, at the line with the largest saving.

    ## Why is this bad?

    Each of these ops reads its inputs from memory and writes its result back, and
    computes next to nothing. Fused, the values between the ops stay in registers, and
    the backward computes them again instead of reading them.

    ## How to fix it

    ``torch.compile`` makes one or two kernels of each chain, and of its backward.

    ```diff
      model = Model().cuda()
    + model.compile()
    ```

    Where one call does the same, as ``F.rms_norm``, ``F.gelu``, ``F.silu``,
    ``F.cross_entropy`` or ``F.scaled_dot_product_attention``, it fuses without
    compiling; the fix names it. Compile the loss with the model if it is among the
    lines. ``breaks`` lists what ends a graph of these modules: a value that the host
    reads, sizes that depend on data.

    ## When it is wrong

    A trace does not say which tensor an op reads: that is told by sizes and dtypes, and
    by what runs before. The compiler may fuse less, as where a chain reduces over rows
    and over columns. With sizes that vary it compiles again, unless for all of them.
    """

    code = "FUS001"
    since = "0.2.0"
    see = ("torch.compile",)
    residual = True
    general = True
    preview = True
    needs = frozenset({Need.GPU, Need.OPS, Need.SHAPES})

    # Below that, two runs of one program differ as much (docs/savings.md).
    min_share: float = option(0.02, "Smaller shares of the step are not reported.")

    seen = Seen(
        text="""
        FUS001 fusible-chain (preview)  saves 45.2 µs/step (79%), 37.0 µs to 51.1 µs
          3 memory-bound kernels a step run one by one that a compiler would fuse
          in     forward (model.py:9)
          gpu    55.0 µs a step
          fused  4.90 µs a step, estimated
          host   48.6 µs a step less, as recorded
          chain  mul, tanh, add
          line   forward (model.py:9) 50.1 µs a step less, estimated
          fix    compile the model, or the function that runs these lines, with
                 torch.compile
        """,
    )

    examples = (
        Bad(
            _DRAWN,
            finds="3 memory-bound kernels a step run one by one that a compiler would"
            " fuse",
            args=_OPS,
        ),
        Good(_DRAWN.replace("aten::tanh", "aten::sort"), args=_OPS),
    )

    def check(self, view: View) -> Iterator[Finding]:
        """Make one finding of all chains: all have the same fix."""
        if view.compiled:
            return
        chains = view.chains
        saved = chains.saved_ns / view.steps
        if saved < self.min_share * view.bound.step_ns:
            return
        kernels = chains.kernels.filter(pl.col("share") > 0)
        lines = by_line(view, kernels)
        top = first_known(lines)
        # Which of them save time may differ from run to run, how many there are not.
        count = chains.several.height / view.steps
        gpu = int(kernels["dur"].sum()) / view.steps
        # What a library computes is not the program's to write otherwise.
        calls = "" if top["via"] else fused_calls(view, kernels, top)
        breaks = graph_breaks(view, kernels)
        old = view.trace.facts.torch_to.startswith("1.")
        upgrade = (
            "upgrade torch to 2.0 or later, which has torch.compile: " if old else ""
        )
        advice = upgrade + _COMPILE + (f"; or call {calls} here" if calls else "")
        on_host = host_fix(view, chains.several)
        yield self.finding(
            f"{counted(count, 'memory-bound kernel')} a step run one by one that a"
            " compiler would fuse",
            subject="chains",
            place=view.place(top),
            count=count,
            fix=[
                *(
                    Fix(kernels=ids, kernel_share=share)
                    for ids, share in chains.by_share().iter_rows()
                ),
                *on_host,
            ],
            evidence=[
                Evidence("gpu", value=gpu, unit="ns", note="a step"),
                Evidence(
                    "fused", value=gpu - saved, unit="ns", note="a step, estimated"
                ),
                *host_line(view, on_host),
                *longest_chain(view, kernels, top),
                *(
                    Evidence(
                        "line",
                        at_function(row["file"], row["line"], row["function"])
                        or row["module"]
                        or "unknown",
                        value=row["saved"] / view.steps,
                        unit="ns",
                        note="a step less, estimated",
                    )
                    for row in worth_naming(lines, _MOST_LINES).iter_rows(named=True)
                ),
                *breaks,
            ],
            data={
                "gpu_ns": round(gpu),
                "fused_ns": round(gpu - saved),
                "chains": chains.chains["chain"].n_unique() / view.steps,
                "breaks": [evidence.name for evidence in breaks],
            },
            advice=located_advice(view, own_function(top) if calls else None, advice),
        )
