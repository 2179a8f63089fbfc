"""Source forms of the ops that need a value on the host, and their replacements."""

from __future__ import annotations

_READ = (
    "what is only logged can stay on the GPU for many steps; what decides, or is a"
    " size, take from what the host knows, as the lengths of a batch before they are"
    " sent"
)
_MASK = ": only the GPU knows how many elements a mask selects"
CONSTANT = (
    "where it is the same in each step, as of a constant mask, look for it once before"
    " the loop; else "
)
"""Advice on an op that looks for elements, where what it takes may be constant."""
_NONZERO = (
    "use torch.where(mask, a, b), or torch.nonzero_static(mask, size=…): only the GPU"
    " knows how many elements a mask selects"
)
MASKED_COPY = "x[mask] = y[mask]"
"""An index and an assignment through one mask, in place of an op."""
_UNIQUE = "only the GPU knows how many unique values there are: avoid it in the step"
WRITTEN = {
    "aten::item": ("`.item()`", _READ),
    "aten::_local_scalar_dense": ("`.item()`", _READ),
    "aten::is_nonzero": (
        "`if tensor`",
        "take the condition from what the host knows, or do the work in any case, with"
        " torch.where; what only checks, do once in many steps",
    ),
    "aten::equal": (
        "`torch.equal`",
        "compare with (a == b).all(), and keep the result on the GPU",
    ),
    "aten::nonzero": (
        "`nonzero`",
        _NONZERO,
    ),
    "aten::where": (
        "`torch.where(mask)`",
        _NONZERO,
    ),
    "aten::index": (
        "a boolean index",
        "where what follows does not depend on how many there are, compute it for all"
        f" of x and choose with torch.where(mask, a, b), instead of x[mask]{_MASK}",
    ),
    "aten::index_put_": (
        "an assignment through a boolean index",
        "use x.masked_fill_(mask, value) for one value, else x = torch.where(mask,"
        " values, x)",
    ),
    MASKED_COPY: (
        f"`{MASKED_COPY}`",
        "use x = torch.where(mask, y, x), with mask[:, None] if x has a dimension"
        f" more{_MASK}",
    ),
    "aten::masked_select": (
        "`masked_select`",
        "where what follows does not depend on how many there are, compute it for all"
        f" of x and choose with torch.where(mask, a, b){_MASK}",
    ),
    "aten::unique_dim": ("`unique`", _UNIQUE),
    "aten::_unique2": ("`unique`", _UNIQUE),
    "aten::bincount": (
        "`bincount`",
        "use zeros(n).scatter_add_(0, x, ones), whose size is known",
    ),
    "aten::cumprod_backward": (
        "the gradient of `cumprod`",
        "it asks whether any element is zero: where all are positive,"
        " torch.exp(torch.cumsum(torch.log(x), dim)) has a gradient that does not wait",
    ),
    "aten::ctc_loss": (
        "`ctc_loss`",
        "pass input_lengths and target_lengths on the CPU, where it reads them",
    ),
    "aten::_coalesce": (
        "`coalesce()` of a sparse tensor",
        "coalesce what stays the same once, before the loop; of the gradients of an"
        " embedding, make them dense (sparse=False), if its table is small",
    ),
    "c10d::barrier": (
        "`dist.barrier()`",
        "leave it out: a collective waits for the other ranks anyway",
    ),
    "aten::normal": (
        "`torch.normal` with a tensor of deviations",
        "use mean + std * torch.randn_like(mean): torch.normal asks whether any of std"
        " is negative",
    ),
    "aten::repeat_interleave": (
        "`repeat_interleave`",
        "pass output_size=… where it is known",
    ),
}
"""By op: how the program writes it, and what to write instead."""
SPARSE_GRADIENTS = (
    "`coalesce()` of a sparse tensor",
    "make the gradients dense (sparse=False of the embedding), if its table is small:"
    " only the GPU knows how many rows a sparse one has",
)
"""The same where the gradients of an embedding are coalesced."""
SPARSE_MATMULS = (
    "a matmul that coalesces its sparse tensor",
    "it sorts the indices each time: where they are sorted and unique, as of nonzero()"
    " but not of its transpose, make the tensor with torch.sparse_coo_tensor(…,"
    " is_coalesced=True); where it stays the same, coalesce it once before the loop; or"
    " keep it in CSR",
)
"""The same where a matmul coalesces what it multiplies."""
OF_CALLER = ("aten::_coalesce", "aten::ctc_loss", "aten::repeat_interleave")
"""Ops of which the advice is for whoever calls the library that has them."""
USED_INSIDE = ("aten::item", "aten::_local_scalar_dense", "aten::nonzero")
"""Ops that others call, too: then the program writes the other."""
COPYING = ("aten::to", "aten::_to_copy", "aten::copy_", "aten::clone")
"""Ops of a copy that are called as such, or by another of them."""
INNER = {"aten::_local_scalar_dense": "aten::item"}
"""An op and the one inside it may begin and end together: either may be outside."""
EDITED = (
    "aten::index",
    "aten::index_put_",
    MASKED_COPY,
    "aten::masked_select",
    "aten::repeat_interleave",
    "aten::ctc_loss",
    "aten::bincount",
)
"""Causes that an edit of their line removes, whatever is done with the result."""
_NO_SYNC = (
    "take it out of the loop; to time steps, record"
    " torch.cuda.Event(enable_timing=True) and read it a few steps later"
)
_STREAM = (
    "let the other stream wait for it on the GPU, by"
    " torch.cuda.current_stream().wait_stream(stream); the host has to wait only before"
    " it reads what was copied, as late as it can"
)
_EVENT = (
    "let the other stream wait for it on the GPU, by stream.wait_event(event); read"
    " elapsed_time() or a copy in pinned memory a step later, when it has passed"
)
_EXPLICIT = (
    ("Device", "`torch.cuda.synchronize()`", _NO_SYNC),
    ("Stream", "`stream.synchronize()`", _STREAM),
    ("Event", "`event.synchronize()`", _EVENT),
)


def explicit(call: str) -> tuple[str, str]:
    """Return how a program writes a blocking call, and what to write instead."""
    for part, written, advice in _EXPLICIT:
        if part in call:
            return written, advice
    return call, _NO_SYNC
