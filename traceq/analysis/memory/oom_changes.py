"""Single changes that would have made a failed allocation fit, and by how much."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

import polars as pl

from traceq.analysis.memory.leaks import memory_leaks
from traceq.analysis.memory.oom import Room, droppable, failures, is_limited, room
from traceq.common.expressions import text
from traceq.model.schema import NUMBER, TEXT, Column, Table

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from traceq.analysis.memory.history import History
    from traceq.model.oom import OpenModule, OutOfMemory

__all__ = ["CHANGES", "Failure", "changes", "failure", "failures"]

CHANGES = Table(
    "Single changes that free memory for a failed allocation, the first to try first.",
    {
        "change": Column(TEXT, "Its kind, as checkpoint."),
        "saves": Column(NUMBER, "What it frees, about, the request included.", "bytes"),
        "enough": Column(pl.Boolean(), "It frees as much as was missing."),
        "subject": Column(TEXT, "What it is about: a module, an optimizer, a line."),
        "value": Column(NUMBER, "A number: of modules, or the new batch."),
    },
)

# Heuristic thresholds. A part of the live memory that is worth a change of its own ...
_LARGE = 0.25
# ... the pieces in which logits are computed, which are recomputed or not kept ...
_CHUNKS = 8
# ... what 8-bit states, each with a scale for a block, take of 32-bit ones ...
_EIGHT_BIT = 0.26
# ... and how batches are rounded down.
_ROUND_BATCH, _SMALL_BATCH = 8, 16
# Tensors of a parameter's size that an optimizer keeps.
_STATES = ((r"(?i)adafactor|^sgd$", 0), (r"(?i)adam|lamb|novograd", 2), (r"", 1))
_FORWARD = ("activations", "attention scores", "logits and loss")
_BY_BATCH = (*_FORWARD, "temporaries")


class Failure(NamedTuple):
    """A failed allocation, with what is needed to weigh changes."""

    history: History
    row: Mapping[str, Any]
    """A row of ``FAILURES``."""
    context: OutOfMemory | None
    """Activity of the program at the error, where that was recorded."""
    room: Room
    live: pl.DataFrame
    """The allocations that lived then."""
    missing: int
    """Bytes that had to be free for the request and were not."""
    later: int
    """Bytes that the rest of the step needs beside it, about."""

    @property
    def needed(self) -> int:
        """Bytes that a change has to free."""
        return self.missing + self.later

    def held(self, *categories: str) -> int:
        """Return what these categories held."""
        return int(self.live.filter(text("category").is_in(categories))["size"].sum())

    @property
    def allocated(self) -> int:
        """All that was live."""
        return int(self.live["size"].sum())

    @property
    def limited(self) -> bool:
        """True if the device had room, and a limit forbade using it."""
        return is_limited(self.row)

    @property
    def holders(self) -> pl.DataFrame:
        """Holders of memory, ``HOLDERS``; those that free the most first."""
        return droppable(self.history, self.row["device"], self.row["event"])

    @property
    def phase(self) -> str:
        """The phase of the step, as the program's frames or the history show it."""
        if self.context is not None and self.context.phase:
            return self.context.phase
        shown = self.history.phases["phase"][self.row["event"]]
        return str(shown or "")


def failure(
    history: History, row: Mapping[str, Any], oom: OutOfMemory | None
) -> Failure:
    """Return one of the ``failures`` with what was live and what was missing."""
    live = history.live(row["device"], row["event"])
    free = room(history, row)
    found = Failure(history, row, oom, free, live, _missing(row, oom), 0)
    return found._replace(later=_later(found))


def _missing(row: Mapping[str, Any], oom: OutOfMemory | None) -> int:
    spare = 0 if is_limited(row) else row["device_free"] or 0
    if oom is not None and oom.limit and row["reserved"]:
        spare = min(spare or oom.limit, max(0, oom.limit - row["reserved"]))
    return max(1, row["asked"] - spare)


def _later(found: Failure) -> int:
    """Return what the rest of the step needs: the other layers, the other states."""
    oom, asked = found.context, found.row["asked"]
    if oom is None:
        return 0
    layer = oom.layer
    if found.phase == "optimizer":
        return max(0, _states(oom) - found.held("optimizer state") - asked)
    if found.phase == "backward":
        # Gradients of all parameters remain, where the activations were.
        kept = found.held("activations", "attention scores", "gradients")
        return max(0, oom.trainable_bytes - kept)
    if found.phase != "forward" or layer is None or not oom.grad_enabled:
        return 0
    done = _done(layer)
    kept = int(_of_this_call(found)["size"].sum())
    left = (layer.siblings or 0) - done
    return max(0, round(kept / done * left) - asked)


def _of_this_call(found: Failure) -> pl.DataFrame:
    """Return the activations of the call that failed, not those of an earlier one."""
    kinds = text("category").is_in(["activations", "attention scores"])
    activations = found.live.filter(kinds)
    stack = found.context.stack if found.context is not None else ()
    if not stack:
        return activations
    outermost = f"{stack[-1].file}:{stack[-1].line} {stack[-1].function}"
    same = activations.filter(text("chain").str.ends_with(outermost))
    return same if same.height else activations


def _done(layer: OpenModule) -> float:
    """Return how many layers have run; of the running one a half is assumed."""
    return (layer.position or 0) + 0.5


def _states(oom: OutOfMemory) -> int:
    """Return what the states of all optimizers take once each has made a step."""
    return sum(
        one.parameter_bytes
        * next(count for kind, count in _STATES if re.search(kind, one.kind))
        for one in oom.optimizers
    )


def changes(found: Failure) -> pl.DataFrame:
    """Return changes that free memory, sufficient ones first; see ``CHANGES``."""
    rows = list(_changes(found))
    return CHANGES.shaped(
        pl.DataFrame(rows, schema=CHANGES.dtypes, orient="row").sort(
            "enough", descending=True, maintain_order=True
        )
    )


_Row = tuple[str, int, bool, str | None, int | None]


def _changes(found: Failure) -> Iterator[_Row]:
    """Yield the changes: mistakes first, then what does not change the training."""
    in_optimizer = found.phase == "optimizer"
    yield from _leak(found)
    yield from _no_grad(found)
    yield from _expandable(found)
    yield from _logits(found)
    yield from _scores(found)
    if in_optimizer:
        yield from _optimizer(found)
    yield from _checkpoint(found)
    yield from _batch(found)
    if not in_optimizer:
        yield from _optimizer(found)


def _row(
    found: Failure,
    change: str,
    saves: int,
    subject: str | None = None,
    value: int | None = None,
) -> _Row:
    return (change, saves, saves >= found.needed, subject, value)


def _leak(found: Failure) -> Iterator[_Row]:
    leaks = memory_leaks(found.history).filter(pl.col("device") == found.row["device"])
    held = found.live.join(leaks.select("stack"), on="stack", how="semi")
    # What the running step has made is not leaked yet.
    leaked = int(held["size"].sum()) - int(leaks["per_step"].sum())
    if leaked < min(found.needed, _LARGE * found.allocated):
        return
    first = leaks.row(0, named=True)
    line = f"{first['file']}:{first['line']} {first['function']}"
    subject = line if first["file"] else None
    yield _row(found, "leak", leaked, subject, int(leaks["per_step"].sum()))


def _no_grad(found: Failure) -> Iterator[_Row]:
    if found.context is not None and found.context.evaluates:
        # What the layer that runs has made stays.
        held = found.held(*_FORWARD)
        layer = found.context.layer
        stays = round(held / _done(layer)) if layer else found.row["asked"]
        saves = max(0, held - stays) + found.later
        yield _row(found, "no_grad", saves, found.context.modules[0].kind)


def _expandable(found: Failure) -> Iterator[_Row]:
    free = found.room
    expandable = found.history.snapshot.segments["expandable"].any()
    if free.cause == "fragmented" and not found.limited and not expandable:
        yield _row(
            found, "expandable_segments", free.whole_pages, None, free.free_blocks
        )


def _fails_in(found: Failure, flag: str, node: str) -> bool:
    """Return whether the failed allocation was of one kind of operator."""
    stack = found.history.snapshot.events["stack"][found.row["event"]]
    if stack is not None:
        sources = found.history.sources.filter(pl.col("stack") == stack)
        if sources[flag].any():
            return True
    return found.context is not None and bool(re.search(node, found.context.node))


def _logits(found: Failure) -> Iterator[_Row]:
    held, asked = found.held("logits and loss"), found.row["asked"]
    fails = _fails_in(found, "loss", r"LogSoftmax|NllLoss|CrossEntropy")
    if fails:
        # What the loss was to be computed of has the size of what was requested.
        of_size = pl.col("size").is_in([asked, asked // 2, asked * 2])
        others = found.live.filter(of_size, text("category") == "activations")
        held += asked + int(others["size"].sum())
    if fails or held >= _LARGE * found.allocated:
        yield _row(found, "logits", held - held // _CHUNKS)


def _scores(found: Failure) -> Iterator[_Row]:
    held = found.held("attention scores")
    if _fails_in(found, "softmax", "Softmax") and not _fails_in(found, "loss", "Log"):
        held += found.row["asked"]
    if held >= _LARGE * found.allocated:
        yield _row(found, "attention", held)


def _optimizer(found: Failure) -> Iterator[_Row]:
    oom, asked = found.context, found.row["asked"]
    held = found.held("optimizer state")
    if oom is None or not oom.optimizers:
        if held >= _LARGE * found.allocated:
            yield _row(found, "optimizer_state", round(held * (1 - _EIGHT_BIT)))
        return
    kind = oom.optimizers[0].kind
    total = max(held, _states(oom))
    if found.phase == "optimizer" and not found.later:
        made = sum(one.state_bytes for one in oom.optimizers)
        if made >= _states(oom) and not any(one.fused for one in oom.optimizers):
            saves = asked + int(_temporaries(found)["size"].sum())
            yield _row(found, "fused_optimizer", saves, kind)
    if found.phase != "optimizer":
        total = held
    if total >= _LARGE * found.allocated:
        yield _row(found, "optimizer_state", round(total * (1 - _EIGHT_BIT)), kind)


def _temporaries(found: Failure) -> pl.DataFrame:
    in_optimizer = text("phase") == "optimizer"
    return found.live.filter(text("category") == "temporaries", in_optimizer)


def _checkpoint(found: Failure) -> Iterator[_Row]:
    oom = found.context
    if oom is None or oom.evaluates:
        return
    layer = oom.layer
    if found.phase == "forward" and layer is not None and oom.grad_enabled:
        count, kind, each = layer.siblings or 0, layer.kind, layer.input_bytes
    elif found.phase == "backward" and oom.layers is not None:
        count, kind, each = oom.layers.count, oom.layers.kind, 0
    else:
        return
    kept = found.held("activations", "attention scores")
    if found.phase == "forward":
        kept += found.later + found.row["asked"]
    # One layer is recomputed at a time, and the inputs of all stay.
    saves = max(0, kept - kept // count - count * each)
    if saves:
        yield _row(found, "checkpoint", saves, kind, count)


def _batch(found: Failure) -> Iterator[_Row]:
    batch = found.context.batch if found.context is not None else None
    if batch is None or found.phase == "optimizer":
        return
    grows = found.held(*_BY_BATCH) + found.row["asked"] + found.later
    smaller = int(batch * (1 - found.needed / grows))
    if smaller >= _SMALL_BATCH:
        smaller -= smaller % _ROUND_BATCH
    if smaller >= 1:
        saves = grows * (batch - smaller) // batch
        yield ("batch", saves, saves >= found.needed, str(batch), smaller)
