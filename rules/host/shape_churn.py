"""HST001: shapes that are new in every step cost the host a search each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base import ownership
from traceq.linter import (
    Bad,
    Good,
    Need,
    Rule,
    Seen,
    View,
    dataclass,
    inputs,
    often,
    option,
)

from ._shape_advice import advice_for, evidence
from ._shape_calls import KINDS, SLOW, SUMS, calls_at_place, is_of_shapes, settled_calls
from ._varying_shapes import Varying, does_vary, fix, is_regular, varying_sizes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from traceq.linter import Finding

_ROWS = {
    "aten::mm": inputs([[317, 64], [64, 64]], ["c10::BFloat16"] * 2),
    "aten::addmm": inputs([[64], [411, 64], [64, 64]], ["c10::BFloat16"] * 3),
}
_LONG = " " * 300
# Two steps: the matmul of the first takes long, and so does that of the second.
_SEARCH = f"""
            host   [ProfilerStep#1 {_LONG}   ] [ProfilerStep#2 {_LONG}       ]
            host    [aten::mm {_LONG} ]         [aten::addmm {_LONG}]
            host     [cudaLaunchKernel>1]        [cudaLaunchKernel>2]
            gpu 7                  [gemm<1]                     [gemm<2]
"""
_FIRST_ONLY = f"""
            host   [ProfilerStep#1 {_LONG}   ] [ProfilerStep#2                  ]
            host    [aten::mm {_LONG} ]         [aten::mm           ]
            host     [cudaLaunchKernel>1]        [cudaLaunchKernel>2]
            gpu 7                  [gemm<1]                     [gemm<2]
"""


@dataclass(frozen=True)
class ShapeChurn(Rule):
    """Shapes that are new in every step make libraries choose algorithms on the host.

    ## What it does

    Looks for matmuls, convolutions, cuDNN attention, FFTs and other operators whose
    first call on a shape takes the host several times as long as a call on a shape that
    was seen before, in half of the steady-state steps and at least two; in fewer where
    sizes vary from step to step, as then any step may bring a new one. Iterations
    within a step count as steps: a generation calls its layers again for each token.
    What is counted is the op's own time beyond the usual: launches, waits, ops inside
    it and the loading of code, which passes by itself, are not.
    Compilation and CUDA graph capture, with what runs in them, are left to JIT001 and
    JIT002.

    ## Why is this bad?

    For each new shape cuBLAS, cuDNN or cuFFT searches for an algorithm or builds a
    plan, on the host, while the GPU waits: about 0.2 ms for a 16-bit matmul, 2 ms for
    a convolution, 30 ms for an FFT, 40 ms and more for cuDNN attention (H200, torch
    2.11). Now and then a kernel is used for the first time and its code is loaded, 2 to
    5 ms more. The search comes back as long as shapes are new; loading passes by
    itself.

    ## How to fix it

    Make shapes repeat: pad the dimension that varies to a few sizes (buckets). For
    experts, a grouped matmul takes any number of tokens; where values make the sizes
    inside of a library, the fix names its switch. For attention, another SDPA
    backend makes no plans. ``CUDA_MODULE_LOADING=EAGER`` was measured not to help.

    ```diff
      tokens = pad_sequence(rows, batch_first=True)
    + tokens = F.pad(tokens, (0, -tokens.size(1) % 256))
    ```

    ## When it is wrong

    If there are few shapes, all of them have been seen after some steps and the excess
    ends by itself: record later (``traceq collect --warmup``). Padding computes more,
    which costs a GPU-bound step, and changes results unless it is masked or cut off.
    """

    code = "HST001"
    several_fixes = True
    since = "0.2.0"
    see = ("torch.nn.functional.pad", "torch.backends.cudnn.benchmark")
    needs = frozenset({Need.GPU, Need.OPS, Need.SHAPES, Need.STEPS, Need.WARM})

    seen = Seen(
        of="fixtures/varying_length",
        text="""
        HST001 shape-churn  saves 142 ms/step (88%), 118 ms to 142 ms
          cuDNN builds a plan for attention of a new shape twice a step, backward
            included: dimension 2 of input 0 of aten::_cudnn_attention_forward
            varies
          in       forward (fixtures/programs/varying_length.py:25) of
                   Sequential_0/Block_0
                   > 25 |     def forward(self, x: torch.Tensor) -> torch.Tensor:
                     26 |         batch, length, _ = x.shape
                     27 |         q, k, v = (
          ops      aten::_cudnn_attention_forward, aten::_cudnn_attention_backward
                   of 12 calls a step
          sizes    303, 773
          new      67.8 ms each, as recorded
          known    70.2 µs each, as recorded
          modules  Sequential_0/Block_0 and 1 more
          fix      in forward: use an SDPA backend that makes no plans, with
                   torch.backends.cuda.enable_cudnn_sdp(False); or pad that
                   dimension to multiples of 128 (384, 896 are left), so that shapes
                   repeat; mask the padding in attention, and leave it out of the
                   loss
        """,
    )

    examples = (
        Bad(
            _SEARCH,
            finds="cuBLAS chooses an algorithm for a matmul of a new shape once a step:"
            " its shapes were not seen before",
            args=_ROWS,
        ),
        Good(_FIRST_ONLY, args=_ROWS),
    )

    min_share: float = option(
        0.01, "Findings with a smaller share of the step, as recorded, are left out."
    )

    def check(self, view: View) -> Iterator[Finding]:
        """Group the slow first calls by kind and line, backward with its forward."""
        planned = view.host_account.calls.filter("planned")
        slow = planned.filter(SLOW)
        # Mostly all of them together take too little.
        if int(slow["excess"].sum()) < self._least(view):
            return
        slow = settled_calls(view, slow)
        if not slow.height:
            return
        groups = view.by_place(
            # What varies is the user's: all functions of a library see the same.
            slow.with_columns(ownership.WHATEVER_LIBRARY),
            "kind",
            names=pl.col("name").unique(maintain_order=True),
            steps=pl.col("step").n_unique(),
            backward=(pl.col("phase") == "backward").sum(),
            usual=pl.col("usual").median(),
            **{name: pl.col(name).sum() for name in SUMS},
        )
        rows = groups.sort("excess", descending=True).iter_rows(named=True)
        churning = [row for row in rows if self._matters(view, row)]
        if not churning:
            return
        calls = settled_calls(view, planned)
        for row in churning:
            group_rows = calls_at_place(calls, row)
            if not is_of_shapes(group_rows):
                continue
            varying = varying_sizes(view, group_rows)
            if is_regular(view, row) or does_vary(view, varying):
                yield self._finding(view, row, group_rows, varying)

    def _matters(self, view: View, row: Mapping[str, Any]) -> bool:
        """Return whether it costs enough."""
        return bool(row["excess"] - row["passing"] >= self._least(view))

    def _least(self, view: View) -> float:
        return self.min_share * view.steady.time

    def _finding(
        self,
        view: View,
        row: Mapping[str, Any],
        calls: pl.DataFrame,
        varying: Varying,
    ) -> Finding:
        new = len(row["ids"]) / view.steps
        what = next(does for kind, _, does in KINDS if kind == row["kind"])
        both = ", backward included" if 0 < row["backward"] < len(row["ids"]) else ""
        return self.finding(
            f"{what} of a new shape {often(new)}{both}: {varying.text}",
            subject=f"{row['kind']} shapes",
            place=view.place(row),
            count=new,
            fix=fix(view, row, calls),
            gpu_idle_ns=row["idle"] / view.steps,
            ops=row["ids"],
            evidence=evidence(view, row, calls, varying),
            data={"sizes": list(varying.sizes), "ops": row["names"]},
            advice=advice_for(view, row, calls, varying),
        )
