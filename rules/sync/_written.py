"""How a program writes the ops that need a value on the host, and what instead."""

from __future__ import annotations

_READ = "keep the value on the GPU, and read it only once in many steps"
_MASK = "only the GPU knows how many elements a mask selects: "
_UNIQUE = "only the GPU knows how many unique values there are: avoid it in the step"
WRITTEN = {
    "aten::item": ("`.item()`", _READ),
    "aten::_local_scalar_dense": ("`.item()`", _READ),
    "aten::is_nonzero": (
        "`if tensor`",
        "decide on the GPU with torch.where, or check the condition less often",
    ),
    "aten::equal": (
        "`torch.equal`",
        "compare with (a == b).all(), and keep the result on the GPU",
    ),
    "aten::nonzero": (
        "`nonzero`",
        f"{_MASK}use torch.where(mask, a, b), or torch.nonzero_static(mask, size=…)",
    ),
    "aten::where": (
        "`torch.where(mask)`",
        f"{_MASK}use torch.where(mask, a, b), or torch.nonzero_static(mask, size=…)",
    ),
    "aten::index": (
        "a boolean index",
        f"{_MASK}instead of x[mask], multiply by the mask or use"
        " torch.where(mask, a, b)",
    ),
    "aten::index_put_": (
        "an assignment through a boolean index",
        "use x.masked_fill_(mask, value) or torch.where(mask, value, x)",
    ),
    "aten::masked_select": (
        "`masked_select`",
        f"{_MASK}multiply by the mask, or use torch.where(mask, a, b)",
    ),
    "aten::unique_dim": ("`unique`", _UNIQUE),
    "aten::_unique2": ("`unique`", _UNIQUE),
    "aten::bincount": (
        "`bincount`",
        "use zeros(n).scatter_add_(0, x, ones), whose size is known",
    ),
    "aten::_coalesce": (
        "`coalesce()` of a sparse tensor",
        "make the gradients dense (sparse=False of the embedding), if its table is"
        " small: only the GPU knows how many rows a sparse one has",
    ),
    "c10d::barrier": (
        "`dist.barrier()`",
        "leave it out: a collective waits for the other ranks anyway",
    ),
    "aten::repeat_interleave": (
        "`repeat_interleave`",
        "pass output_size=… where it is known",
    ),
}
"""By op: how the program writes it, and what to write instead."""
INNER = {"aten::_local_scalar_dense": "aten::item"}
"""An op and the one inside it may begin and end together: either may be outside."""
