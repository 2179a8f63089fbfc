"""Tensors that are sent to the GPU: where they come from, and what spares the copies.

Pinned memory helps a batch that is loaded ahead. It does not help what the program
makes on the host a moment before: that is made on the GPU, or sent less often.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base import assumptions
from traceq.analysis.time import device_syncs
from traceq.linter import END, Fix, View, fill_false, has_like, named
from traceq.linter.minor import WORTH_FIXING

from ._made_after import advice_on_made
from ._pageable import blocking_calls
from ._transfers import TO_GPU, TO_HOST

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

# What is sent; the empty one is all else, as batches.
INDEX_MADE, INDEX, ARRAY, CONSTANT, OTHER = "made", "index", "array", "constant", ""
KINDS = {
    INDEX_MADE: ", used as indices",
    INDEX: ", used as indices",
    ARRAY: ", made of arrays or lists",
    CONSTANT: ", made on the CPU",
    OTHER: "",
}
_INDEXING = ("aten::index", "aten::index_put_", "aten::_index_put_impl_")
# What torch.tensor, torch.LongTensor and an array as an index make of a list or array.
_OF_ARRAY = ("aten::lift_fresh",)
_CONSTANT = (
    *("aten::ones", "aten::zeros", "aten::full", "aten::arange", "aten::eye"),
    *("aten::linspace", "aten::scalar_tensor"),
)
_CAST = ("aten::to", "aten::detach", "aten::detach_")
# What makes another constant of one.
_SHAPED = (
    *("aten::triu", "aten::tril", "aten::unsqueeze", "aten::view", "aten::expand"),
    *("aten::repeat", "aten::reshape", "aten::t", "aten::transpose"),
)
_BY_NAME = {
    ARRAY: _OF_ARRAY,
    CONSTANT: _CONSTANT,
    INDEX: _INDEXING,
    "cast": _CAST,
    "shaped": _SHAPED,
    "empty": ("aten::empty",),
}
_LOADER = r"torch/utils/data/dataloader\.py"
_NON_BLOCKING = ".to(device, non_blocking=True)"
ADVICE = {
    INDEX_MADE: "make the index on the GPU, as torch.arange(n, device=x.device) or"
    " torch.randint(…, device=x.device), whose numbers are others than on the CPU",
    INDEX: "an array or a list as an index is copied to the GPU by each x[index]: copy"
    " the index to the GPU once, as index = torch.as_tensor(index, device=x.device),"
    " and use it for all; or compute it there, or multiply by a mask",
    ARRAY: "send what is needed at once in one copy: join the arrays in NumPy, and pass"
    f" them to torch.from_numpy, which copies nothing, before {_NON_BLOCKING}; convert"
    " dtypes on the GPU; what does not change, as a replay buffer, can stay on the GPU",
    CONSTANT: "make it on the GPU, as torch.ones(…, device=x.device), and once, before"
    " the loop, if it does not change",
}
PINNED = {
    TO_GPU: "pin the tensor where it is created (DataLoader(pin_memory=True), or"
    f" .pin_memory() in the loading thread) and copy it with {_NON_BLOCKING}; a batch"
    " of a class of its own, not of tensors, lists or dicts, needs a pin_memory()"
    " method, or the DataLoader pins nothing",
    TO_HOST: "copy into a pinned buffer that is allocated once:"
    " buffer = torch.empty(shape, pin_memory=True), then"
    " buffer.copy_(tensor, non_blocking=True); sync only before reading it",
}
_NO_LOADER = (
    "pin the tensor where it is created, if that is ahead of the copy, before the loop"
    f" or in a thread that loads, and copy it with {_NON_BLOCKING}; one that is new in"
    " each step is better written into a pinned buffer that is allocated once, when its"
    " last copy has ended; what is the same in each step can stay on the GPU"
)


def with_origins(view: View, copies: pl.DataFrame) -> pl.DataFrame:
    """Return copies with what is sent as ``sent``, one of KINDS.

    Of a large array it is the bytes that count, not how many are sent.
    """
    around = _around(view, copies)
    rows = copies.join(around, on="request", how="left", maintain_order="left")
    called = device_syncs.written_as(view.trace, _calls(view, rows["request"]))
    array, expression = pl.col("array"), pl.col("bytes") < assumptions.RATED_COPY_BYTES
    # Only what no method of a tensor sends is an index itself.
    index = array & (pl.col("after") == INDEX) & called.is_null()
    sent = (
        pl.when(pl.col("direction") != TO_GPU)
        .then(pl.lit(OTHER))
        .when(pl.col("caller").is_in(_INDEXING))
        .then(pl.lit(INDEX_MADE))
        .when(pl.col("own") & index)
        .then(pl.lit(INDEX))
        .when(pl.col("own") & array & expression)
        .then(pl.lit(ARRAY))
        .when(pl.col("own") & pl.col("constant"))
        .then(pl.lit(CONSTANT))
        .otherwise(pl.lit(OTHER))
    )
    return rows.with_columns(sent=sent).drop("array", "constant", "after")


def _calls(view: View, requests: pl.Series) -> pl.DataFrame:
    return view.trace.ops[["thread", "ts", "dur"]][requests].with_columns(end=END)


def _around(view: View, copies: pl.DataFrame) -> pl.DataFrame:
    """Return what makes the tensor of each ``request``, and what comes ``after`` it.

    That is an ``array`` or list, or a ``constant``. All is of one function; casts in
    between do not count.
    """
    place = ["thread", "file", "function", "via"]
    ops = view.trace.ops
    threads = ops["thread"][copies["op"]].unique()
    chosen = ops["parent"].is_null() & ops["thread"].is_in(threads.implode())
    outermost = ops[["id", "ts", *place]].filter(chosen).sort("thread", "ts")
    kind = pl.lit(OTHER)
    for one, names in _BY_NAME.items():
        matches = named(ops, names)[outermost["id"]]
        kind = pl.when(matches).then(pl.lit(one)).otherwise(kind)
    requests = copies["request"].drop_nulls().unique()
    copied = pl.col("id").is_in(requests.implode())
    rows = outermost.with_columns(
        kind=pl.when(copied).then(pl.lit("sent")).otherwise(kind)
    )
    shaping, sending = ["cast", "shaped"], ["cast", "sent", ARRAY]

    def before(skipped: list[str]) -> pl.Expr:
        other = pl.when(~pl.col("kind").is_in(skipped)).then("kind")
        return other.forward_fill().shift(1).over(place)

    after = pl.when(~pl.col("kind").is_in(sending)).then("kind")
    # A list is copied into a tensor on the host, and sent, before it becomes one.
    of_list = (pl.col("kind").shift(1) == "empty") & (pl.col("kind").shift(-1) == ARRAY)
    return (
        rows.with_columns(
            array=(before(["cast"]) == ARRAY) | of_list.over(place),
            constant=before(shaping) == CONSTANT,
            after=after.backward_fill().shift(-1).over(place),
        )
        .filter(copied, pl.col("file").is_not_null())
        .select("array", "constant", "after", request="id")
    )


def countable(view: View, copies: pl.DataFrame, least_bytes: int) -> pl.DataFrame:
    """Return the copies that are large, and small ones to the GPU that do not wait.

    SYN001 has the waits.
    """
    waiting = device_syncs.syncs_in_ops(view.trace, view.steady)["op"]
    small = (pl.col("direction") == TO_GPU) & ~fill_false(
        pl.col("op").is_in(waiting.implode())
    )
    return copies.filter((pl.col("bytes") >= least_bytes) | small)


def many(view: View, least_bytes: int) -> pl.Expr:
    """Return whether the copies of a group are large, or many that take the host long.

    A small copy takes no time of its own, but its calls do: the driver's copy, and the
    sync at its end.
    """
    least = WORTH_FIXING * view.steady.time
    several = (pl.col("calls") > view.steps) & (pl.col("host") >= least)
    return (pl.col("largest") >= least_bytes) | several


def sent_in_groups(view: View) -> pl.Expr:
    """Return what groups send: an array alone can be sent with no other one."""
    alone = (pl.col("sent") == ARRAY) & (pl.col("calls") <= view.steps)
    return pl.when(alone).then(pl.lit(OTHER)).otherwise("sent").alias("sent")


def fix_of(view: View, row: Mapping[str, Any], share: float) -> Fix:
    """Return what the advice on a group removes.

    Of what is sent in one copy, the first of a step stays, and all of the bytes.
    """
    if row["sent"] in (INDEX_MADE, CONSTANT):
        return Fix(kernels=row["id"], ops=row["requests"])
    if row["sent"] in (INDEX, ARRAY):
        return Fix(ops=row["others"])
    calls = () if row["waits"] else blocking_calls(view, row["op"])
    return Fix(kernels=row["id"], kernel_share=share, calls=calls)


def advice_for(view: View, row: Mapping[str, Any]) -> str:
    if row["sent"] in ADVICE:
        return ADVICE[row["sent"]]
    frames = view.trace.frames
    if row["direction"] == TO_GPU and (advice := advice_on_made(view, row)):
        return advice
    if row["direction"] == TO_GPU and has_like(frames, "^torch/"):
        return PINNED[TO_GPU] if has_like(frames, _LOADER) else _NO_LOADER
    return PINNED[row["direction"]]
