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
    case = Failure(history, row, oom, free, live, _missing(row, oom), 0)
    return case._replace(later=_later(case))


def _missing(row: Mapping[str, Any], oom: OutOfMemory | None) -> int:
    spare = 0 if is_limited(row) else row["device_free"] or 0
    if oom is not None and oom.limit and row["reserved"]:
        spare = min(spare or oom.limit, max(0, oom.limit - row["reserved"]))
    return max(1, row["asked"] - spare)


def _later(case: Failure) -> int:
    """Return what the rest of the step needs: the other layers, the other states."""
    oom, requested = case.context, case.row["asked"]
    if oom is None:
        return 0
    layer = oom.layer
    if case.phase == "optimizer":
        return max(0, _states(oom) - case.held("optimizer state") - requested)
    if case.phase == "backward":
        # Gradients of all parameters remain, where the activations were.
        retained = case.held("activations", "attention scores", "gradients")
        return max(0, oom.trainable_bytes - retained)
    if case.phase != "forward" or layer is None or not oom.grad_enabled:
        return 0
    done = _done(layer)
    retained = int(_of_this_call(case)["size"].sum())
    left = (layer.siblings or 0) - done
    return max(0, round(retained / done * left) - requested)


def _of_this_call(case: Failure) -> pl.DataFrame:
    """Return the activations of the call that failed, not those of an earlier one."""
    kinds = text("category").is_in(["activations", "attention scores"])
    activations = case.live.filter(kinds)
    stack = case.context.stack if case.context is not None else ()
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
        optimizer.parameter_bytes
        * next(count for kind, count in _STATES if re.search(kind, optimizer.kind))
        for optimizer in oom.optimizers
    )


def changes(case: Failure) -> pl.DataFrame:
    """Return changes that free memory, sufficient ones first; see ``CHANGES``."""
    rows = list(_changes(case))
    return CHANGES.shaped(
        pl.DataFrame(rows, schema=CHANGES.dtypes, orient="row").sort(
            "enough", descending=True, maintain_order=True
        )
    )


_Row = tuple[str, int, bool, str | None, int | None]


def _changes(case: Failure) -> Iterator[_Row]:
    """Yield the changes: mistakes first, then what does not change the training."""
    in_optimizer = case.phase == "optimizer"
    yield from _leak(case)
    yield from _no_grad(case)
    yield from _expandable(case)
    yield from _logits(case)
    yield from _scores(case)
    if in_optimizer:
        yield from _optimizer(case)
    yield from _checkpoint(case)
    yield from _batch(case)
    if not in_optimizer:
        yield from _optimizer(case)


def _row(
    case: Failure,
    change: str,
    saves: int,
    subject: str | None = None,
    value: int | None = None,
) -> _Row:
    return (change, saves, saves >= case.needed, subject, value)


def _leak(case: Failure) -> Iterator[_Row]:
    leaks = memory_leaks(case.history).filter(pl.col("device") == case.row["device"])
    held = case.live.join(leaks.select("stack"), on="stack", how="semi")
    # What the running step has made is not leaked yet.
    leaked = int(held["size"].sum()) - int(leaks["per_step"].sum())
    if leaked < min(case.needed, _LARGE * case.allocated):
        return
    first = leaks.row(0, named=True)
    line = f"{first['file']}:{first['line']} {first['function']}"
    subject = line if first["file"] else None
    yield _row(case, "leak", leaked, subject, int(leaks["per_step"].sum()))


def _no_grad(case: Failure) -> Iterator[_Row]:
    if case.context is not None and case.context.evaluates:
        # What the layer that runs has made stays.
        held = case.held(*_FORWARD)
        layer = case.context.layer
        stays = round(held / _done(layer)) if layer else case.row["asked"]
        saves = max(0, held - stays) + case.later
        yield _row(case, "no_grad", saves, case.context.modules[0].kind)


def _expandable(case: Failure) -> Iterator[_Row]:
    free = case.room
    expandable = case.history.snapshot.segments["expandable"].any()
    if free.cause == "fragmented" and not case.limited and not expandable:
        yield _row(
            case, "expandable_segments", free.whole_pages, None, free.free_blocks
        )


def _fails_in(case: Failure, flag: str, node: str) -> bool:
    """Return whether the failed allocation was of one kind of operator."""
    stack = case.history.snapshot.events["stack"][case.row["event"]]
    if stack is not None:
        sources = case.history.sources.filter(pl.col("stack") == stack)
        if sources[flag].any():
            return True
    return case.context is not None and bool(re.search(node, case.context.node))


def _logits(case: Failure) -> Iterator[_Row]:
    held, requested = case.held("logits and loss"), case.row["asked"]
    fails = _fails_in(case, "loss", r"LogSoftmax|NllLoss|CrossEntropy")
    if fails:
        # What the loss was to be computed of has the size of what was requested.
        of_size = pl.col("size").is_in([requested, requested // 2, requested * 2])
        others = case.live.filter(of_size, text("category") == "activations")
        held += requested + int(others["size"].sum())
    if fails or held >= _LARGE * case.allocated:
        yield _row(case, "logits", held - held // _CHUNKS)


def _scores(case: Failure) -> Iterator[_Row]:
    held = case.held("attention scores")
    if _fails_in(case, "softmax", "Softmax") and not _fails_in(case, "loss", "Log"):
        held += case.row["asked"]
    if held >= _LARGE * case.allocated:
        yield _row(case, "attention", held)


def _optimizer(case: Failure) -> Iterator[_Row]:
    oom, requested = case.context, case.row["asked"]
    held = case.held("optimizer state")
    if oom is None or not oom.optimizers:
        if held >= _LARGE * case.allocated:
            yield _row(case, "optimizer_state", round(held * (1 - _EIGHT_BIT)))
        return
    kind = oom.optimizers[0].kind
    total = max(held, _states(oom))
    if case.phase == "optimizer" and not case.later:
        made = sum(optimizer.state_bytes for optimizer in oom.optimizers)
        if made >= _states(oom) and not any(
            optimizer.fused for optimizer in oom.optimizers
        ):
            saves = requested + int(_temporaries(case)["size"].sum())
            yield _row(case, "fused_optimizer", saves, kind)
    if case.phase != "optimizer":
        total = held
    if total >= _LARGE * case.allocated:
        yield _row(case, "optimizer_state", round(total * (1 - _EIGHT_BIT)), kind)


def _temporaries(case: Failure) -> pl.DataFrame:
    in_optimizer = text("phase") == "optimizer"
    return case.live.filter(text("category") == "temporaries", in_optimizer)


def _checkpoint(case: Failure) -> Iterator[_Row]:
    oom = case.context
    if oom is None or oom.evaluates:
        return
    layer = oom.layer
    if case.phase == "forward" and layer is not None and oom.grad_enabled:
        count, kind, each = layer.siblings or 0, layer.kind, layer.input_bytes
    elif case.phase == "backward" and oom.layers is not None:
        count, kind, each = oom.layers.count, oom.layers.kind, 0
    else:
        return
    retained = case.held("activations", "attention scores")
    if case.phase == "forward":
        retained += case.later + case.row["asked"]
    # One layer is recomputed at a time, and the inputs of all stay.
    saves = max(0, retained - retained // count - count * each)
    if saves:
        yield _row(case, "checkpoint", saves, kind, count)


def _batch(case: Failure) -> Iterator[_Row]:
    batch = case.context.batch if case.context is not None else None
    if batch is None or case.phase == "optimizer":
        return
    grows = case.held(*_BY_BATCH) + case.row["asked"] + case.later
    smaller = int(batch * (1 - case.needed / grows))
    if smaller >= _SMALL_BATCH:
        smaller -= smaller % _ROUND_BATCH
    if smaller >= 1:
        saves = grows * (batch - smaller) // batch
        yield ("batch", saves, saves >= case.needed, str(batch), smaller)
