"""LCH001: a Python loop launches a few tiny kernels in each iteration."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceq.analysis.base import assumptions
from traceq.analysis.patterns import optimizers
from traceq.analysis.patterns.loops import loops
from traceq.linter import (
    Bad,
    Evidence,
    Fix,
    Good,
    Need,
    Rule,
    Seen,
    View,
    counted,
    dataclass,
    listed,
    module_line,
    named_like,
    option,
    spans,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from traceq.analysis.patterns.loops import Loops
    from traceq.linter import Finding

# A mixture of experts picks tokens, runs the expert on them, adds the result back.
_PICK = ("aten::where", "aten::nonzero", "aten::index", "aten::masked_select")
_RUN = ("aten::linear", "aten::mm", "aten::addmm", "aten::matmul")
_ADD = tuple(
    f"aten::{op}{in_place}"
    for op in ("index_add", "index_put", "scatter_add", "index_copy")
    for in_place in ("_", "")
)
_CELLS = {
    f"aten::{kind}_cell": layer
    for kind, layer in (
        ("lstm", "nn.LSTM"),
        ("gru", "nn.GRU"),
        ("rnn_tanh", "nn.RNN"),
        ("rnn_relu", "nn.RNN"),
    )
}
# Ops on one tensor, and those that do the same to all tensors of a list.
_FOREACH = {
    f"aten::{op}": f"torch._foreach_{of_many}"
    for op, of_many in (
        *((name, name) for name in ("mul_", "add_", "lerp_", "copy_", "div_", "zero_")),
        ("linalg_vector_norm", "norm"),
        ("norm", "norm"),
        ("_foreach_norm", "norm"),
        ("_foreach_mul_", "mul_"),
    )
}
_CLIPPED = (
    "if one norm of all gradients is meant, call torch.nn.utils.clip_grad_norm_ once"
    " with all parameters; otherwise "
)
# What an average of weights calls, as that of a target network; beside these one op of
# what comes after the loop may be taken for one of its own.
_WRITES = (*("aten::copy_", "aten::lerp_", "aten::_has_compatible_shallow_copy_type"),)
_AVERAGES = (
    *("aten::mul", "aten::add", "aten::sub", "aten::lerp", "aten::mul_"),
    *("aten::add_", "aten::detach"),
)
_COMPILED = (
    '; or compile the model that each iteration runs with mode="reduce-overhead", so'
    " that one launch is left of it"
)
# An iteration with this many runs a model. Chosen by judgement.
_LAUNCHES_OF_MODEL = 20
# If calls of a loop are shorter at the mean, they differ.
_SHORTER = 0.9
# What the host reads decides what it does next, or is only written down.
_READ = ("aten::item", "aten::_local_scalar_dense")
_GRADIENT = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"
# With one kernel in each iteration it is a loop of copies or updates: CPY004, LCH003.
_FEWEST_LAUNCHES = 2
# From this share of iterations on that run a module of their own, a loop goes over
# layers. Chosen by judgement: what comes before the first mark is not seen.
_LAYERS = 0.75


def _drawn(iterations: int, kernels: str) -> str:
    """Draw a loop of this many iterations, each an op, a launch and its kernels."""
    numbers = range(1, iterations + 1)
    mark = f"[aten::mul{' ' * 25}]"
    width = len(mark) * iterations
    work = [kernels.format(n=n).ljust(len(mark)) for n in numbers]
    return "\n".join(
        (
            f"host   [ProfilerStep#1{' ' * width}]",
            f"host    [net.py(8): forward{' ' * (width - 8)}]",
            f"host     {mark * iterations}",
            "host     "
            + "".join(f"[cuLaunchKernel>{n}]".ljust(len(mark)) for n in numbers),
            "gpu 7                   " + "".join(work).rstrip(),
        )
    )


@dataclass(frozen=True)
class TinyKernelLoop(Rule):
    """A Python loop launches a few tiny kernels in each iteration, and the GPU idles.

    ## What it does

    Looks for operators that a single call of a function or module runs again and again:
    from one run to the next, where mostly the same operators run in the same order, is
    an iteration of a loop. A loop is reported, at the
    function it is in, if its kernels are tiny and take less time than the host needs to
    launch them. A loop over the experts of an MoE layer is recognised by what it does:
    pick tokens, run a layer, add the result. Other loops that run another module in
    each iteration are taken for the layers of a model. Without stacks, only loops over
    experts that sync in each iteration are found. The fix removes the host time of the
    loop and its backward, and for experts also the optimizer's host time for their
    weights; kernels stay.

    ## Why is this bad?

    Launching a kernel takes the host 5 to 15 µs, and a tiny kernel runs for 2 µs.
    However fast the GPU is, the loop takes as long as its launches.

    ## How to fix it

    Do all iterations in one operation: sort tokens by expert and use a grouped matmul
    (``torch.nn.functional.grouped_mm``), or stack the weights and use ``torch.bmm``
    with a fixed capacity. In general, stack what the loop goes over into one more
    dimension. For a loop over parameters there are ``torch._foreach_mul_`` and the
    like, which take lists of tensors. If iterations depend on each other, compile the
    loop. If they do by what the host reads, as the action of an agent, go through
    several sequences at once, as a batch: it then takes as long for all as for one.

    ```diff
    - out = torch.stack([x[i] @ weights[i] for i in range(len(weights))])
    + out = torch.bmm(x, weights)
    ```

    ## When it is wrong

    If the loop is in code that runs rarely, or cannot be batched.

    ## Measured

    On an H200, in ms a step. Experts in one batched or grouped matmul: ``moe_loop``
    53.4 → 6.0, ``experts`` 25.4 → 4.2, ``moe_grouped`` 30.3 → 7.3, ``mixtral_experts``
    154.1 → 39.2. ``nn.LSTM`` instead of a cell in a loop: ``lstm_cells`` 30.1 → 8.5.
    One call for all parameters instead of a loop over them: ``averaged_weights`` 25.3 →
    21.3, ``clipped_one_by_one`` 49.3 → 26.6, a momentum encoder 10.1 → 8.2, target
    networks of SAC 13.5 → 13.1. Losses and metrics of 21 classes at once instead of one
    by one: 26.2 → 8.6; the sines of a NeRF's encoding: 15.8 → 13.0. The model of a tree
    search compiled with ``mode="reduce-overhead"``: 36.2 → 11.8.
    """

    code = "LCH001"
    several_fixes = True
    since = "0.1.0"
    see = (
        "torch.bmm",
        "torch.nn.LSTM",
        "torch.nn.utils.clip_grad_norm_",
        "torch.compile",
    )
    needs = frozenset({Need.GPU, Need.OPS, Need.WARM})

    # Chosen by judgement: shorter loops are often a few layers or heads written out,
    # a kernel of 10 µs takes about as long as its launch, and more than 100 launches in
    # an iteration are a loop over layers or micro-batches.
    min_iterations: int = option(
        assumptions.FEWEST_ITERATIONS, "Loops with fewer iterations are not reported."
    )
    tiny_us: float = option(
        10.0, "Kernels that take longer at the median are not tiny."
    )
    max_launches: int = option(
        100, "Loops with more launches in an iteration are not reported."
    )

    seen = Seen(
        of="fixtures/twins/moe_loop",
        text="""
        LCH001 tiny-kernel-loop  saves 43.5 ms/step (81%)
          a loop over 32 experts launches 10 tiny kernels in each and 17 in its
            backward, and syncs with the GPU
          in        forward (dev_cases.py:87) of Sequential_0/LoopMoE_0
          launches  1,000 kernels a step
          backward  1,639 kernels a step in its backward
          kernels   1.76 µs each at the median
          ops       aten::eq, aten::where, aten::index, aten::linear, aten::silu,
                    aten::unsqueeze, aten::mul, aten::index_add_ and 5 more
          modules   Sequential_0/LoopMoE_0 and 2 more
          syncs     96 a step
          host      82.0 ms a step, as recorded
          gpu       5.57 ms of kernels a step
          fix       sort the tokens by expert and run all experts at once with
                    torch.nn.functional.grouped_mm (torch 2.10 on; torch._grouped_mm
                    from 2.8 on), or stack their weights and use torch.bmm with a
                    fixed capacity; neither needs where or nonzero, which sync
        """,
    )

    examples = (
        Bad(
            _drawn(8, "[a<{n}][b<{n}]"),
            finds=("a loop of 8 iterations launches 2 tiny kernels in each",),
        ),
        Good(_drawn(8, "[a<{n}                  ]")),
        Good(_drawn(4, "[a<{n}][b<{n}]")),
    )

    def check(self, view: View) -> Iterator[Finding]:
        """Group the loops by the function they are in."""
        found = loops(view.trace, view.steady, self.min_iterations)
        if not found.table.height:
            return
        for row in found.table.drop_nulls("kernels").iter_rows(named=True):
            if self._is_tiny(row, view):
                yield self._finding(view, row, found)

    def _is_tiny(self, row: Mapping[str, Any], view: View) -> bool:
        layers = row["called"] >= _LAYERS * row["longest"]
        # The last iteration of a call may be cut short.
        launches = round(row["kernels"] / row["iterations"])
        return (
            (_over_experts(row) or (view.trace.frames.height > 0 and not layers))
            and _FEWEST_LAUNCHES <= launches <= self.max_launches
            and row["kernel_median_ns"] < self.tiny_us * 1000
            and row["host_ns"] * view.host_scale > row["gpu_ns"]
        )

    def _finding(self, view: View, row: Mapping[str, Any], found: Loops) -> Finding:
        experts, parameters = _over_experts(row), _over_parameters(row, view)
        syncs = row["syncs"] >= row["iterations"]
        fixes = [Fix(spans=found.spans_of(row))]
        if experts:
            fixes.append(_fewer_weights(view, row["gradients"] or 0))
        return self.finding(
            _message(row, experts=experts, parameters=parameters)
            + (", and syncs with the GPU" if syncs else ""),
            subject="loop over experts" if experts else f"loop of {row['mark']}",
            place=view.place({**row, "module": next(iter(row["modules"]), None)}),
            count=row["kernels"] / view.steps,
            fix=fixes,
            gpu_idle_ns=row["idle_ns"] / view.steps,
            evidence=_evidence(row, view.steps, syncs=syncs),
            data={
                "iterations": row["iterations"] / row["calls"],
                "launches": row["kernels"] / row["iterations"],
                "backward_launches": row["back"] / row["iterations"],
                "ops": row["names"],
                "modules": row["modules"],
            },
            advice=_together(row)
            if parameters
            else _advice(row, experts=experts, syncs=syncs),
            ops=row["ops"],
        )


def _over_experts(row: Mapping[str, Any]) -> bool:
    """Return whether a loop picks tokens, runs weights on them, and adds the result."""
    places = [
        [at for at, name in enumerate(row["names"]) if name in some]
        for some in (_PICK, _RUN, _ADD)
    ]
    # What is picked after the weights ran is not what they ran on.
    return all(places) and places[0][0] < places[1][0] < places[2][-1]


def _over_parameters(row: Mapping[str, Any], view: View) -> bool:
    """Return whether a loop has an iteration for each parameter with a gradient."""
    if not set(row["names"]) & set(_FOREACH):
        return False
    return bool(row["longest"] == _gradients(view) / view.steps)


def _gradients(view: View) -> int:
    """Return how many gradients of weights are accumulated in all steps."""
    return int(named_like(view.ops, rf"{_GRADIENT}$").sum())


def _message(row: Mapping[str, Any], *, experts: bool, parameters: bool) -> str:
    mean = round(row["iterations"] / row["calls"])
    up_to = "up to " if mean < _SHORTER * row["longest"] else ""
    loop = f"a loop of {up_to}{row['longest'] if up_to else mean} iterations"
    if experts:
        # An expert that no token chose may be skipped.
        loop = f"a loop over {row['longest']} experts"
    elif parameters:
        loop = f"a loop over {row['longest']} parameters"
    back = row["back"] / row["iterations"]
    launches = row["kernels"] / row["iterations"] - back
    backward = f" and {back:.0f} in its backward" if back else ""
    return (
        f"{loop} launches {counted(round(launches), 'tiny kernel')} in each{backward}"
    )


def _fewer_weights(view: View, gradients: int) -> Fix:
    """Return what goes of the optimizer if all experts share one stacked weight.

    Its host time grows with the number of weights, of which this many go.
    """
    weights = _gradients(view)
    return Fix(
        spans=spans(optimizers.optimizer_regions(view.trace, view.steady)),
        host_share=gradients / weights if weights else 0.0,
    )


def _evidence(row: Mapping[str, Any], steps: int, *, syncs: bool) -> Iterator[Evidence]:
    forward, back = row["kernels"] - row["back"], row["back"]
    yield Evidence("launches", value=round(forward / steps), note="kernels a step")
    if back:
        note = "kernels a step in its backward"
        yield Evidence("backward", value=round(back / steps), note=note)
    yield Evidence(
        "kernels", value=row["kernel_median_ns"], unit="ns", note="each at the median"
    )
    yield Evidence("ops", listed(row["names"], 8))
    if len(row["modules"]) > 1:
        yield from module_line(row["modules"])
    if syncs:
        yield Evidence("syncs", value=row["syncs"] / steps, note="a step")
    yield Evidence("host", "", row["host_ns"] / steps, "ns", note="a step, as recorded")
    yield Evidence("gpu", "", row["gpu_ns"] / steps, "ns", note="of kernels a step")


def _together(row: Mapping[str, Any]) -> str:
    """Return what does the same to all parameters at once."""
    named = dict.fromkeys(_FOREACH[op] for op in row["names"] if op in _FOREACH)
    clips = _CLIPPED if "aten::_foreach_norm" in row["names"] else ""
    return f"{clips}give the tensors of all parameters as lists to {listed([*named])}"


def _updates(row: Mapping[str, Any]) -> bool:
    """Return whether each iteration only averages a tensor with another, in place."""
    names = set(row["names"])
    return bool(names & set(_WRITES)) and len(names - set(_WRITES + _AVERAGES)) <= 1


def _runs_a_model(row: Mapping[str, Any]) -> bool:
    return bool(row["kernels"] / row["iterations"] >= _LAUNCHES_OF_MODEL)


def _advice(row: Mapping[str, Any], *, experts: bool, syncs: bool) -> str:
    if experts:
        return (
            "sort the tokens by expert and run all experts at once with"
            " torch.nn.functional.grouped_mm (torch 2.10 on; torch._grouped_mm from 2.8"
            " on), or stack their weights and use"
            " torch.bmm with a fixed capacity"
            + ("; neither needs where or nonzero, which sync" if syncs else "")
        )
    for cell in set(row["names"]) & set(_CELLS):
        return (
            f"call {_CELLS[cell]} on the whole sequence instead of its cell in a loop"
        )
    if syncs and set(row["names"]) & set(_READ):
        return (
            "if no iteration needs what the one before read on the host, stack what the"
            " loop goes over and run its operators once for all iterations; if it does,"
            " as an action or a token, go through several such sequences at once, as a"
            " batch" + (_COMPILED if _runs_a_model(row) else "")
        )
    unrolled = (
        f", which unrolls all {row['longest']} iterations and may take minutes, or use"
        " a kernel that is made for the recurrence"
        if row["longest"] > assumptions.UNROLLED_ITERATIONS
        else ""
    )
    if _updates(row):
        return (
            "give the tensors that it goes over as lists to torch._foreach_lerp_,"
            " torch._foreach_mul_ or the like, which take any shapes"
        )
    return (
        "stack what the loop goes over and run its operators once for all iterations;"
        " if an iteration needs the one before, compile the loop with torch.compile"
        f"{unrolled}"
    )
