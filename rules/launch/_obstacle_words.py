"""Obstacles to a CUDA graph in words: what forbids it, and what to do first."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._obstacle import Obstacle

FORBIDS = {
    "shapes": "sizes that are new in every step",
    "launches": "a number of kernels that varies from step to step",
    "values": "data-dependent sizes",
    "branches": "branches on values that only the GPU has",
    "syncs": "no syncs in the model",
    "copies": "no copies from the host in the model",
    "cache": "a KV cache that grows by cat (SRV007)",
    "replaced": "weights reallocated in every step (`.data = …`)",
    "sparse": "sparse gradients, with which compiling ends in an error",
    "passes": "several backward passes a step, which are not alike",
    "between": "syncs between modules of one forward pass",
    "backwards": "overwrites the gradients of several backward passes a step",
    "rnn": "does not capture nn.LSTM, nn.GRU and nn.RNN",
    "loop": "unrolls a loop of the model (LCH001), which may take minutes",
}
_FIRST = {
    "shapes": "pad or bucket the sizes that change to a few",
    "launches": "make loops and branches that depend on data the same in every step",
    "values": "compute {} once before the loop where its tensor does not change;"
    " otherwise avoid data-dependent sizes, as with torch.where in place of nonzero",
    "branches": "drop checks of values or make them rarely; what chooses, do on the GPU"
    " with torch.where",
    "cache": "write the KV cache in place, at a fixed size",
    "replaced": "write into the weights, with lerp_ or copy_, and do not replace them",
    "sparse": "make them dense (sparse=False), if the tables are small",
    "between": "read no value on the host between modules",
    "syncs": "take the syncs out of the model",
    "copies": "make the tensors of the model on the GPU",
}


def first_of(obstacle: Obstacle) -> str:
    """Return what to do about an obstacle before a graph is captured, if anything."""
    name = obstacle.name.removeprefix("aten::")
    return _FIRST.get(obstacle.reason, "").format(name or "what is read")
