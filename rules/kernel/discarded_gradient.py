"""KRN011: gradients are computed that are cleared before an optimizer reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base import callers
from traceq.linter import (
    Bad,
    Evidence,
    Good,
    Need,
    Rule,
    Seen,
    View,
    at_function,
    counted,
    dataclass,
    inputs,
    kernel_lines,
    listed,
    named_like,
)

from ._discarded import discarded, readers
from ._weight_work import weight_work

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from traceq.linter import Finding

_MOST_READERS = 2
_MOST_SHAPES = 4
_NODE = "autograd::engine::evaluate_function: "
_ACCUMULATES = "torch::autograd::AccumulateGrad"


def _pass(first: int, *layers: str) -> tuple[str, str, str, str]:
    """Draw the backward of layers, of which each has a gradient and a launch."""
    rows = ["", "", "", ""]
    for number, layer in enumerate(layers, first):
        node = f"[{_NODE}MmBackward0".ljust(64) + "]"
        gradient = f"[{_ACCUMULATES} {layer}".ljust(40) + "]"
        for at, part in enumerate(
            (
                f"{node} {gradient} ",
                f"  [aten::mm {layer}        ]",
                f"   [cuLaunch>{number}  ]",
                f"                [gemm<{number}]",
            )
        ):
            rows[at] += part.ljust(len(node) + len(gradient) + 2)
    return rows[0], rows[1], rows[2], rows[3]


def _drawn(generator: str) -> str:
    """Draw steps of two models; the generator's backward is of these layers."""
    lanes, number = ["", "", "", "", ""], 1
    for step in (1, 2):
        begun = len(lanes[1])
        for layers, model in (("d", "d"), (generator, "g")):
            drawn = _pass(number, *layers)
            number += len(layers)
            update = f"[Optimizer.step#SGD.step                 ]{' ' * 4}"
            inside = f"  [aten::_foreach_add_ {model}]"
            tails = (update, inside, "", "")
            for at, (part, tail) in enumerate(zip(drawn, tails, strict=True), 1):
                lanes[at] += part + tail.ljust(len(update))
        width = len(lanes[1]) - begun
        lanes[0] += f"[ProfilerStep#{step}".ljust(width - 2) + "] "
    heads = ("host", "host", "host", "host", "gpu 7")
    return "\n".join(
        f"{head:<6} {lane.rstrip()}" for head, lane in zip(heads, lanes, strict=True)
    )


def _lists(*sides: int) -> dict[str, Any]:
    return {"Input Dims": [[[*sides]], []], "Input type": ["TensorList", "Scalar"]}


_ARGS = {
    **{
        f"{_ACCUMULATES} {model}": inputs([sides], ["float"])
        for model, sides in (("d", [64, 32]), ("g", [16, 8]))
    },
    **{
        f"aten::mm {model}": inputs([[rows, 4], [4, columns]], ["float"] * 2)
        for model, rows, columns in (("d", 64, 32), ("g", 16, 8))
    },
    "aten::_foreach_add_ d": _lists(64, 32),
    "aten::_foreach_add_ g": _lists(16, 8),
}


@dataclass(frozen=True)
class DiscardedGradient(Rule):
    """A backward computes gradients of another model, which are cleared unread.

    ## What it does

    Looks for gradients of weights, in a backward after which the optimizer of other
    weights makes its step, that are cleared before an optimizer with these weights
    does: ``zero_grad`` fills them with zeros, or the next gradient is written afresh
    and not added. Which optimizer has a weight is told by the shapes that its steps
    take; of shapes that several have nothing is said. The fix removes the kernels of
    these gradients alone: the backward still goes through the model.

    ## Why is this bad?

    In a GAN the loss of the generator goes through the discriminator, and autograd
    computes the gradients of all weights on the way: a third of the discriminator's
    forward and backward, for gradients that ``zero_grad`` clears. So it is with the
    critic in the update of an actor.

    ## How to fix it

    Name the parameters that the backward is for, or freeze the others while their
    model is called. Either leaves the gradients that are read as they are.

    ```diff
      loss = -discriminator(generator(noise)).mean()
    - loss.backward()
    + loss.backward(inputs=list(generator.parameters()))
      generator_optimizer.step()
    ```

    ## When it is wrong

    If something reads the gradients in between, as a hook, or a log of their norm: the
    finding names operators that may. Frozen weights have to be so when the model is
    called, not when the backward runs. Under DDP nothing is reported: it counts on
    the gradients of all weights.
    """

    code = "KRN011"
    effort = "edit"
    preview = True
    since = "0.3.0"
    without_gpu = True
    see = ("torch.autograd.backward", "torch.Tensor.requires_grad_")
    needs = frozenset({Need.GPU, Need.OPS, Need.SHAPES, Need.STEPS, Need.WARM})

    seen = Seen(
        text="""
        KRN011 discarded-gradient (preview)
          saves 19.6 µs/step (9%), 13.2 µs to 49.0 µs
          a backward computes gradients of 1 weight of another model in a step,
            which are cleared before their optimizer reads them
          weights  [64,32]
          kernel   gemm ×1
          fix      name the parameters that this backward is for:
                   loss.backward(inputs=[*model.parameters()]); or call
                   requires_grad_(False) on the other model before the forward of
                   this loss, and requires_grad_(True) after the backward: the
                   gradients that are read stay the same
        """,
    )

    examples = (
        Bad(
            _drawn("dg"),
            finds="a backward computes gradients of 1 weight of another model in a"
            " step, which are cleared before their optimizer reads them",
            args=_ARGS,
        ),
        Good(_drawn("g"), args=_ARGS),
    )

    def check(self, view: View) -> Iterator[Finding]:
        """Group the gradients by whose they are, and by whose backward."""
        if view.distributed:
            return
        wasted = discarded(view)
        if not wasted.height:
            return
        steps = view.steady.windows
        inside = wasted["ts"].is_between(steps["start"].min(), steps["end"].max())
        for _, group in wasted.filter(inside).group_by(
            "model", "by", maintain_order=True
        ):
            yield self._finding(view, group)

    def _finding(self, view: View, wasted: pl.DataFrame) -> Finding:
        model = wasted["name"][0] or ""
        count = wasted.height / view.steps
        weights = counted(round(count) or count, "weight")
        fixes = weight_work(view, wasted)
        shapes = wasted["shape"].unique().sort()
        return self.finding(
            f"a backward computes gradients of {weights} of"
            f" {model or 'another model'} in a step, which are cleared before their"
            " optimizer reads them",
            subject=model or "another model",
            place=view.place(_backward(view, wasted)),
            count=count,
            fix=fixes,
            evidence=[
                Evidence("weights", listed(shapes.to_list(), _MOST_SHAPES)),
                *kernel_lines(view, [row for fix in fixes for row in fix.kernels]),
            ],
            advice=_advice(wasted, readers(view, wasted)),
            ops=wasted["id"],
        )


def _backward(view: View, wasted: pl.DataFrame) -> Mapping[str, Any]:
    """Return the place that calls the backward."""
    frames = view.trace.frames
    calls = frames.filter(named_like(frames, "run_backward")).select(
        "thread", "ts", "dur"
    )
    moments = wasted["ts"].sort()
    first = moments.search_sorted(calls["ts"])
    past = moments.search_sorted(calls["ts"] + calls["dur"])
    around = callers.callers(frames, calls.filter(past > first).head(1))
    return around.row(0, named=True) if around.height else {}


def _advice(wasted: pl.DataFrame, reading: pl.DataFrame) -> str:
    model, trained = wasted["name"][0] or "the other model", wasted["trains"][0]
    change = (
        "name the parameters that this backward is for"
        f"{f', those of {trained}' if trained else ''}:"
        " loss.backward(inputs=[*model.parameters()]); or call"
        f" requires_grad_(False) on {model} before the forward of this loss, and"
        " requires_grad_(True) after the backward: the gradients that are read stay the"
        " same"
    )
    if not reading.height:
        return change
    named = reading.select(
        name=pl.col("name").cast(pl.String), place=pl.struct("file", "line", "function")
    ).unique(maintain_order=True)
    seen = [
        " in ".join(
            filter(None, (name, at_function(*place.values()) if place["file"] else ""))
        )
        for name, place in named.head(_MOST_READERS).iter_rows()
    ]
    return (
        f"{change}; first check that nothing reads these gradients: tensors of their"
        f" shapes, which may be the weights, go to {listed(seen, _MOST_READERS)}"
    )
