"""LCH004: Adam updates its parameters by foreach operators, not by the fused one."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base import assumptions
from traceq.analysis.patterns import optimizers
from traceq.analysis.replay.simulation import NO_SPANS, Change
from traceq.linter import (
    Bad,
    Fix,
    Good,
    Need,
    Rule,
    Seen,
    View,
    counted,
    dataclass,
    has_like,
    merged,
    option,
)

from ._shared import (
    ONLY_NAMED,
    at_constructor,
    evidence,
    is_adam,
    launched,
    like_adam,
    of_torch,
    step_of_adamw,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from traceq.linter import Finding

# Those for which it was measured: with SGD nothing is gained, others have no fused
# implementation, or only in the newest torch.
_MEASURED = ("Adam", "AdamW")
_REGION = r"^Optimizer\.step#.+\.step$"
_SUBCLASS = (
    "{} is a subclass of Adam: pass fused=True to the constructor of its base class in"
    " torch.optim, in super().__init__(…) or among the arguments that it is called"
    " with; also in the param_groups of a checkpoint that is loaded; it rounds"
    " differently: compare the losses"
)
# Lightning clips no gradients of a fused optimizer in mixed precision: it raises.
_REFUSES = (
    r"(^|/)(lightning/pytorch|pytorch_lightning)/plugins/precision/amp\.py"
    r"\(\d+\): clip_gradients$"
)
# With capturable=True the counts of steps are on the GPU as well: not measured.
_CAPTURABLE = "aten::_foreach_pow"


@dataclass(frozen=True)
class UnfusedOptimizer(Rule):
    """Adam or AdamW updates its parameters by foreach operators, not by the fused one.

    ## What it does

    Looks for steps of Adam, AdamW and their subclasses in which all work of the GPU is
    of ``aten::_foreach_*`` operators. It is shown where the optimizer is made, if the
    source tells. ``fused=True`` removes nine tenths of the host's time from the first
    of them to the last, and half of their kernels' time.

    ## Why is this bad?

    It is torch's default, and not the fastest. It counts the steps of every parameter
    on the host, one by one, and goes over all parameters eight times, with a temporary
    copy of them. The fused implementation counts on the GPU and goes over them once. A
    program that waits for the host gets faster by what the host no longer does, one
    that waits for the GPU by what the GPU no longer reads and writes.

    ## How to fix it

    ```diff
    - optimizer = torch.optim.AdamW(parameters, lr=3e-4)
    + optimizer = torch.optim.AdamW(parameters, lr=3e-4, fused=True)
    ```

    The Trainer of transformers takes ``optim="adamw_torch_fused"``. Loading a
    checkpoint that was saved without it turns it off again: set ``group["fused"] =
    True`` in the ``param_groups`` of the state before ``load_state_dict``.

    It rounds differently, since it computes an update in one pass: compare the losses
    of a few hundred steps. With a ``GradScaler`` it unscales the gradients and skips a
    step with infinite ones by itself, without the host waiting for the check; code that
    looks at the gradients, as clipping, still calls ``scaler.unscale_`` first.

    ## When it is wrong

    If a parameter is complex or not on the GPU, or a gradient is sparse: the fused
    implementation refuses those. If the step is differentiated. AdamW has it from torch
    2.0 on, with a ``GradScaler`` use 2.1 or later. On parameters of FSDP2 (DTensor)
    torch 2.11 leaks host memory with it, a little in every step. Lightning ends with an
    error if it is to clip the gradients of a fused optimizer in mixed precision: where
    it is seen to, there is no finding.
    """

    code = "LCH004"
    effort = "edit"
    since = "0.3.0"
    see = ("torch.optim.AdamW", "torch.optim.Adam")
    needs = frozenset({Need.GPU, Need.OPS, Need.WARM})

    # Heuristic threshold: for less, comparing losses is not worth it.
    min_share: float = option(0.02, "Where a fix saves less of the step, it is silent.")

    seen = Seen(
        of="fixtures/twins/adam_foreach",
        text="""
        LCH004 unfused-optimizer  saves 405 µs/step (17%), 309 µs to 928 µs
          Adam updates its parameters with 7 foreach operators, not with the fused
            one
          in        step (_opt.py:15)
          ops       aten::_foreach_lerp_, aten::_foreach_mul_,
                    aten::_foreach_addcmul_, aten::_foreach_sqrt,
                    aten::_foreach_div_, aten::_foreach_add_,
                    aten::_foreach_addcdiv_
          launches  7 kernels a step
          host      1.04 ms a step, as recorded
          gpu       111 µs of kernels a step
          fix       pass fused=True to torch.optim.Adam, also in the param_groups of
                    a checkpoint that is loaded; it rounds differently: compare the
                    losses
        """,
    )

    examples = (
        Bad(
            step_of_adamw("aten::_foreach_addcdiv_", 8),
            finds=(
                "AdamW updates its parameters with 8 foreach operators, not with the"
                " fused one",
            ),
        ),
        Good(step_of_adamw("aten::_fused_adamw_", 2)),
    )

    def check(self, view: View) -> Iterator[Finding]:
        """Group the steps of optimizers by class and place."""
        old = view.trace.facts.torch_to.startswith("1.")
        if old or not has_like(view.trace.annotations, _REGION):
            return
        if has_like(view.trace.frames, _REFUSES):
            return
        rows = (
            optimizers.foreach_steps(view.trace, view.steady)
            .filter(
                pl.col("optimizer").is_in(_MEASURED) | like_adam(),
                ~pl.col("names").list.contains(_CAPTURABLE),
            )
            .group_by("optimizer", "file", "line", "function", maintain_order=True)
            .agg(
                pl.col("kernels", "gpu_ns").sum(),
                calls=pl.len(),
                names=pl.col("names").first(),
                ops=pl.col("ops").explode(),
                spans=pl.struct("start", "end"),
            )
        )
        if not rows.height:
            return
        before = _step_ns(view)
        for row in rows.iter_rows(named=True):
            steps = pl.DataFrame(row["spans"])
            # Another class may have the name of torch's, and a subclass another name.
            torchs = of_torch(view, steps) is not False
            if not (torchs if row["optimizer"] in _MEASURED else is_adam(view, steps)):
                continue
            handled = _handled(view, pl.DataFrame(row["spans"]))
            fix = Fix(
                kernels=launched(view, row["ops"]),
                kernel_share=assumptions.FUSED_FOREACH_KERNELS_SAVED,
                spans=merged(handled),
                host_share=assumptions.FUSED_FOREACH_HOST_SAVED,
            )
            saves = before - _step_ns(view, fix)
            if saves >= self.min_share * view.bound.step_ns:
                yield self._finding(view, row, handled, fix)

    def _finding(
        self, view: View, row: Mapping[str, Any], handled: pl.DataFrame, fix: Fix
    ) -> Finding:
        name, own = row["optimizer"], row["optimizer"] not in _MEASURED
        handled_ns = int((handled["end"] - handled["start"]).sum())
        operators = counted(round(len(row["ops"]) / row["calls"]), "foreach operator")
        finding = self.finding(
            f"{name} updates its parameters with {operators}, not with the fused one",
            subject=name,
            place=view.place(row),
            count=len(row["ops"]) / view.steps,
            fix=fix,
            evidence=evidence(row, handled_ns, view.steps),
            data={"optimizer": name, "ops": row["names"]},
            advice=_SUBCLASS.format(name)
            if own
            else (
                f"pass fused=True to torch.optim.{name}, also in the param_groups of a"
                " checkpoint that is loaded; it rounds differently: compare the losses"
                + ONLY_NAMED
                * (not row["file"] and of_torch(view, handled) is None)
            ),
            ops=row["ops"],
        )
        example = "" if own else self.example().replace("AdamW", name)
        return replace(at_constructor(finding, view, name), example=example)


def _handled(view: View, windows: pl.DataFrame) -> pl.DataFrame:
    """Return when the host is at the operators, and at Python between them.

    What takes longer at once than Python between two operators is something else, which
    stays: a collection of garbage, a hook, another process.
    """
    # In order, and not overlapping; of a long recording there are millions.
    spans = view.host_account.spans
    first = spans["end"].search_sorted(windows["start"], side="right")
    last = spans["start"].search_sorted(windows["end"])
    rows = pl.select(pl.int_ranges(first, last).explode()).to_series().drop_nulls()
    if (first[1:] < last[:-1]).any():
        rows = rows.unique().sort()
    times = spans[["start", "end"]][rows]
    return times.filter(
        times["end"] - times["start"] <= assumptions.MOST_BETWEEN_OPS_NS
    )


def _step_ns(view: View, *fixes: Fix) -> float:
    """Return what a step takes without the profiler after fixes."""
    changes = [
        Change(
            kernels=frozenset(fix.kernels),
            kernel_share=fix.kernel_share,
            spans=fix.spans if fix.spans is not None else NO_SPANS,
            host_share=fix.host_share,
        )
        for fix in fixes
    ]
    return view.replay.run(changes, view.calibration.likely).step_ns
