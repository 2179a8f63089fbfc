"""Words of a failed allocation: what ran, what was live, and what would have fit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from traceq.linter import Evidence, listed, size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.analysis.memory import oom_changes

_MOST_CHANGES = 4
_MISTAKES = ("leak", "no_grad")
_MOST_CATEGORIES = 4
_RAISE = "or raise torch.cuda.set_per_process_memory_fraction: the device has room"
_WORDS = {
    "leak": "release what each step leaks, {value}{at}: keep .item() or"
    " .detach().cpu() instead, or clear the container",
    "no_grad": "evaluate {subject} under torch.no_grad(): activations are kept for a"
    " backward that never comes",
    "expandable_segments": "set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True: free"
    " blocks between tensors can be used then",
    "logits": "compute logits and loss in chunks of the tokens, each recomputed in the"
    " backward (torch.utils.checkpoint), or with a fused linear cross-entropy",
    "attention": "use F.scaled_dot_product_attention, which keeps no scores",
    "fused_optimizer": "pass fused=True to {subject}, which makes no temporaries then",
    "optimizer_state": "keep the optimizer's state smaller: 8-bit (bitsandbytes,"
    " torchao), factored (torch.optim.Adafactor), or sharded over the ranks (FSDP)",
    "checkpoint": "checkpoint each {subject}, {value} of them:"
    " torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False)",
    "batch": "use a batch of {value} instead of {subject}",
}


def change_words(row: dict[str, Any]) -> str:
    """Return a change, a row of ``CHANGES``, as advice."""
    subject, value = row["subject"], row["value"]
    if row["change"] == "leak":
        at = f" at {subject}" if subject else ""
        return _WORDS["leak"].format(value=size(value), at=at)
    return _WORDS[row["change"]].format(subject=subject or "the model", value=value)


def change_lines(changes: pl.DataFrame, needed: int) -> Iterator[Evidence]:
    """Yield what would have made it fit, and what would not, with what each saves."""
    for row in changes.head(_MOST_CHANGES).iter_rows(named=True):
        fits = "fits with" if row["enough"] else "too little"
        note = f"saved, of {size(needed)} missing"
        yield Evidence(fits, f"{_name(row)}:", row["saves"], "bytes", note=note)


def _name(row: dict[str, Any]) -> str:
    names = {
        "leak": "the leak removed",
        "no_grad": "torch.no_grad()",
        "expandable_segments": "expandable_segments:True",
        "logits": "chunked logits and loss",
        "attention": "scaled_dot_product_attention",
        "fused_optimizer": "a fused optimizer",
        "optimizer_state": "8-bit optimizer state",
        "checkpoint": f"{row['subject']} checkpointed",
        "batch": f"a batch of {row['value']} instead of {row['subject']}",
    }
    return names[row["change"]]


def advice(changes: pl.DataFrame, failure: oom_changes.Failure) -> str | None:
    """Return the first change that suffices; none if nothing is known to save any.

    Of fragmented memory, the lines that lie between the free blocks say more.
    """
    first = changes.row(0, named=True) if changes.height else {"change": None}
    if first["change"] is None:
        return None
    limited = failure.limited
    fragmented = failure.room.cause == "fragmented"
    usual = not first["enough"] or first["change"] == "expandable_segments" or limited
    if fragmented and usual and first["change"] not in _MISTAKES:
        return None
    if first["enough"]:
        text = change_words(first)
    else:
        most = changes.sort("saves", descending=True, maintain_order=True)
        saves = size(int(most["saves"][0]))
        text = (
            f"no small change suffices: {size(failure.needed)} are missing, and one"
            f" saves {saves} at most: {change_words(most.row(0, named=True))}"
        )
    return f"{text}; {_RAISE}" if limited else text


def what_ran(failure: oom_changes.Failure) -> Iterator[Evidence]:
    """Yield what the program was doing, as collect recorded it."""
    oom = failure.context
    if oom is None:
        return
    phase = f"the {oom.phase} of " if oom.phase else ""
    node = f", in {oom.node}" if oom.node else ""
    of = f" with {oom.parameter}" if oom.parameter else ""
    yield Evidence("during", f"{phase}step {oom.step}{node}{of}")
    if oom.modules:
        yield Evidence("module", _module(failure))
    if failure.later:
        rest = "for the rest of the step, about"
        yield Evidence("more", value=failure.later, unit="bytes", note=rest)


def _module(failure: oom_changes.Failure) -> str:
    oom: Any = failure.context
    module, layer = oom.modules[-1], oom.layer
    path = f"{module.path} ({module.kind})" if module.path else module.kind
    if layer is None:
        return str(path)
    return f"{path}, {layer.kind} {(layer.position or 0) + 1} of {layer.siblings}"


def categories(failure: oom_changes.Failure) -> list[dict[str, Any]]:
    """Return what was live by category, the largest first."""
    return (
        failure.live.group_by(pl.col("category").cast(pl.String))
        .agg(bytes=pl.sum("size"), count=pl.len())
        .sort(-pl.col("bytes"), "category")
        .to_dicts()
    )


def live_line(held: list[dict[str, Any]]) -> Evidence:
    parts = [f"{entry['category']} {size(entry['bytes'])}" for entry in held]
    return Evidence("live", listed(parts, _MOST_CATEGORIES))
