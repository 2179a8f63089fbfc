"""Trainers of libraries that call the model, and how they compile it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceq.linter import has_like

if TYPE_CHECKING:
    from traceq.linter import View

# Trainers by a call that they make: how they are told to compile, and an example.
_TRAINERS = (
    (
        r"(^|/)transformers/trainer\.py\(",
        "torch_compile=True and torch_compile_mode="
        '"reduce-overhead" in TrainingArguments replay a CUDA graph',
        "- args = TrainingArguments(output_dir)\n"
        "+ args = TrainingArguments(output_dir, torch_compile=True,\n"
        '+                          torch_compile_mode="reduce-overhead")',
    ),
    (
        r"(^|/)(lightning/pytorch|pytorch_lightning)/",
        'net.compile(mode="reduce-overhead") of the network in the LightningModule'
        " replays a CUDA graph",
        '  self.net = Net()\n+ self.net.compile(mode="reduce-overhead")  # in __init__',
    ),
)


def trainer_of(view: View) -> tuple[str, str] | None:
    """Return how the trainer that calls the model compiles it, and an example of it."""
    for name, advice, example in _TRAINERS:
        if has_like(view.trace.frames, name):
            return advice, example
    return None
