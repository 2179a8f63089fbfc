"""The causes of a change in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceq.analysis.replay.host_account import NEW_SHAPE
from traceq.common.safe_text import printable
from traceq.common.units import number, time
from traceq.common.words import counted, listed
from traceq.differ.kinds import ALL_OVER
from traceq.differ.structure import REGION
from traceq.report.base.columns import cut_middle
from traceq.report.base.text import at, short_kernel, where

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from traceq.differ.causes import Cause, Used
    from traceq.differ.compare import Diff

_KERNEL = 44
_MOST_OPS = 3
# Details that are this much smaller than the largest are not listed.
_TELLING = 0.1

KIND_WORDS = {
    "gemm": "matmuls",
    "attention": "attention",
    "conv": "convolutions",
    "norm": "norms",
    "softmax": "softmax",
    "elementwise": "elementwise kernels",
    "reduction": "reductions",
    "copy": "copies",
    "embedding": "embeddings",
    "optimizer": "the optimizer",
    "communication": "communication",
    "memory": "fills",
    "fused": "fused kernels",
    "sort": "sorts and selections",
    "pooling": "pooling",
    "routing": "routing to experts",
    "unknown": "unknown kernels",
}
# Ops by cuBLASLt, and dtypes in which cuBLAS picks an algorithm without a search.
_MATMULS = frozenset({"aten::addmm", "aten::linear", "aten::mm", "aten::bmm"})
_WHOLE = ("fp32", "tf32")
_HOST = {
    "compiling": "while torch.compile compiles",
    "loading data": "for data to be loaded",
    "capturing CUDA graphs": "while CUDA graphs are set up or captured",
    "allocating memory": "while memory is allocated",
}


def signed(nanoseconds: float) -> str:
    """Write by how much longer or shorter.

    >>> signed(1_234_567), signed(-980), signed(0)
    ('+1.23 ms', '-980 ns', '0 ns')
    """
    return ("+" if nanoseconds > 0 else "") + time(nanoseconds)


def a_step(diff: Diff) -> str:
    """Return the unit of times and counts, for the end of a phrase."""
    return " a step" if diff.stepped else ""


def cause_text(cause: Cause, diff: Diff) -> str:
    """Return the change in words, without its place."""
    if cause.kind in _HOST:
        return _while(cause, diff)
    if cause.kind == "host":
        return _host(cause, diff)
    return _TEXTS[cause.kind](cause)


def cause_where(cause: Cause) -> str:
    """Return the ops and the place of a cause that is in one."""
    if cause.kind in ALL_OVER or cause.kind == "compiled":
        return ""
    used = cause.mostly
    place = where(used.place)
    named_in_text = cause.kind in ("added", "removed", "replaced", "calls", "host")
    ops = "" if named_in_text else op_names(used)
    text = " ".join(filter(None, [ops, at(used.place).strip()]))
    other = cause.after if used is cause.before else cause.before
    elsewhere = where(other.place)
    if elsewhere and elsewhere != place:
        text += f", {'then' if used is cause.before else 'before'} {elsewhere}"
    return text


def cause_details(cause: Cause) -> tuple[str, ...]:
    """Return the largest parts of a cause that is in many places."""
    if cause.kind not in ("casts", "dtype", "launches", "same launches"):
        return ()
    largest = max((abs(detail.ns) for detail in cause.details), default=0.0)
    return tuple(
        f"{signed(detail.ns)} from {op_name(detail.op)}" + at(detail.place)
        for detail in cause.details
        if abs(detail.ns) >= _TELLING * largest
    )


def op_names(used: Used) -> str:
    """Return the ops that a cause is about."""
    return listed(list(dict.fromkeys(op_name(op) for op in used.ops)), _MOST_OPS)


def op_name(name: str) -> str:
    """Return an op's name; where there is no op, it is that of a kernel."""
    short = short_kernel(name) if "(" in name else printable(name)
    return short if len(short) <= _KERNEL else cut_middle(short, _KERNEL)


def _dtype(cause: Cause) -> str:
    before, after = _kernel(cause.before), _kernel(cause.after)
    switch = f", {before} -> {after}" if before and after and before != after else ""
    formats = f"{cause.after.dtype} instead of {cause.before.dtype}"
    return f"{_what(cause)} in {formats}{switch}"


def _casts(cause: Cause) -> str:
    return _more(cause.after.kernels - cause.before.kernels, "cast")


def _switched(cause: Cause) -> str:
    names = f"{_kernel(cause.before)} -> {_kernel(cause.after)}"
    return f"{_what(cause)}: {names}{_became(cause)}"


def _fused(cause: Cause) -> str:
    became = _became(cause).strip(" ()")
    return f"{_what(cause)}: {became or 'as many kernels, for other calls'}"


def _calls(cause: Cause) -> str:
    more = _more(cause.after.calls - cause.before.calls, "call")
    return f"{_what(cause)}: {more or 'as many calls'} of {op_names(cause.mostly)}"


def _shapes(cause: Cause) -> str:
    return f"{_what(cause)} of other shapes{_became(cause)}"


def _added(cause: Cause) -> str:
    return f"new: {op_names(cause.after)}, {_pieces(cause, cause.after)}"


def _removed(cause: Cause) -> str:
    return f"gone: {op_names(cause.before)}, {_pieces(cause, cause.before)}"


def _replaced(cause: Cause) -> str:
    before, after = op_names(cause.before), op_names(cause.after)
    return f"{before or 'nothing'} became {after or 'nothing'}{_became(cause)}"


def _compiled(cause: Cause) -> str:
    eager = "torch.compile no longer used" if REGION in cause.before.ops else "compiled"
    return f"{eager}{_became(cause)}"


def _same_kernels(cause: Cause) -> str:
    if cause.kernel_kind == "communication":
        return f"communication takes {_longer(cause)}, in as many kernels"
    if cause.affects == "host":
        return f"the same ops take {_longer(cause)}"
    names = [{name for name, _ in used.names} for used in (cause.before, cause.after)]
    same = "the same kernels" if names[0] == names[1] else "kernels of the same kind"
    return f"{same} take {_longer(cause)}"


def _overlap(cause: Cause) -> str:
    now = "now run" if cause.ns < 0 else "no longer run"
    return f"{_what(cause)} {now} beside other work of the GPU"


def _launches(cause: Cause) -> str:
    before, after = cause.before, cause.after
    parts = [
        _more(after.launches - before.launches, "launch"),
        _more(after.syncs - before.syncs, "sync"),
    ]
    text = " and ".join(filter(None, parts))
    fewer = after.launches + after.syncs < before.launches + before.syncs
    if fewer == (cause.ns < 0):
        return f"idle: {text}"
    return f"idle: the host takes {_longer(cause)} despite {text}"


def _same_launches(_: Cause) -> str:
    return "idle: residual, which no change of ops, launches or syncs explains"


def _host(cause: Cause, diff: Diff) -> str:
    """Return the part of the host's account that takes longer, and its calls."""
    text = f"idle: {cause.host_kind}, {op_names(cause.mostly)}"
    before, after = (_rounded(used.calls) for used in (cause.before, cause.after))
    if not cause.host_kind.startswith("operators") or before == after:
        return text
    calls = "call" if after == 1 else "calls"
    text = f"{text}: {number(before, 6)} -> {number(after, 6)} {calls}{a_step(diff)}"
    return text + _searched(cause, diff)


def _searched(cause: Cause, diff: Diff) -> str:
    """Return why new shapes cost time in one dtype and not in another, if so."""
    dtypes = [item for item in diff.causes if item.kind == "dtype"]
    matmuls = _MATMULS.intersection(op_name(op) for op in cause.mostly.ops)
    switched = [
        (dtype.before.dtype, dtype.after.dtype)[:: 1 if cause.ns > 0 else -1]
        for dtype in dtypes
        if dtype.kernel_kind == "gemm"
    ]
    if cause.host_kind != NEW_SHAPE or not matmuls or not switched:
        return ""
    free, searched = switched[0]
    if free not in _WHOLE or searched in _WHOLE:
        return ""
    return (
        f"; cuBLASLt searches an algorithm for each new shape in {searched}, and not in"
        f" {free}"
    )


def _outside(cause: Cause) -> str:
    return f"the host spends {_longer(cause)} outside operators"


def _missing(_: Cause) -> str:
    return "idle time that the traces do not show"


_TEXTS: Mapping[str, Callable[[Cause], str]] = {
    "dtype": _dtype,
    "casts": _casts,
    "kernel": _switched,
    "fused": _fused,
    "calls": _calls,
    "shapes": _shapes,
    "added": _added,
    "removed": _removed,
    "replaced": _replaced,
    "compiled": _compiled,
    "overlap": _overlap,
    "same kernels": _same_kernels,
    "launches": _launches,
    "same launches": _same_launches,
    "outside operators": _outside,
    "not in the trace": _missing,
}


def _while(cause: Cause, diff: Diff) -> str:
    """Return the cause of the GPU's waits, and the data loader."""
    text = f"idle: the GPU waits {_longer(cause)} {_HOST[cause.kind]}"
    loaders = (diff.before.loaders, diff.after.loaders)
    if cause.kind != "loading data" or not any(loaders):
        return text
    names = [printable(", ".join(side) or "no DataLoader") for side in loaders]
    return f"{text} ({' -> '.join(dict.fromkeys(names))})"


def _what(cause: Cause) -> str:
    return KIND_WORDS.get(
        cause.kernel_kind, "ops" if cause.affects == "host" else "other kernels"
    )


def _longer(cause: Cause) -> str:
    return "longer" if cause.ns > 0 else "less time"


def _more(count: float, noun: str) -> str:
    """Write a change of a number of things.

    >>> _more(-94, "cast"), _more(1, "launch"), _more(0, "sync")
    ('94 fewer casts', '1 more launch', '')
    """
    if not _rounded(count):
        return ""
    number, _, things = counted(_rounded(abs(count)), noun).partition(" ")
    return f"{number} {'more' if count > 0 else 'fewer'} {things}"


def _rounded(count: float) -> float:
    """Return a mean of counts with the digits that matter."""
    return round(count) if abs(count) >= 10 else round(count, 1)  # noqa: PLR2004 - digits


def _pieces(cause: Cause, used: Used) -> str:
    return counted(
        _rounded(used.kernels), "call" if cause.affects == "host" else "kernel"
    )


def _became(cause: Cause) -> str:
    before, after = (_rounded(used.kernels) for used in (cause.before, cause.after))
    if before == after:
        return ""
    pieces = _pieces(cause, cause.before)
    return f" ({pieces} became {number(after, 6)})"


def _kernel(used: Used) -> str:
    """Return the kernel that takes longest, short."""
    if not used.names:
        return ""
    name = short_kernel(used.names[0][0])
    base, opening, inner = name.partition("<")
    # A name that all kernels of a library share tells less than its argument.
    if base in ("Kernel", "Kernel2") and opening:
        name = inner.removesuffix(">")
    elif base:
        name = base.rpartition("::")[2]
    return name if len(name) <= _KERNEL else cut_middle(name, _KERNEL)
