"""Content of each generated kernel: lines, modules and fractions of its time."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import polars as pl

from traceq.common.expressions import text
from traceq.graph.inductor.op_kinds import (
    ATTENTION,
    CONVOLUTION,
    GEMM,
    LOOKUP,
    kind_of,
)
from traceq.graph.inductor.origins import origins_of
from traceq.graph.source import places as source_places
from traceq.model import schema
from traceq.model.compiled_graphs import EXTERN
from traceq.model.dtypes import SENT_SIZES
from traceq.model.owners import is_own, third_party

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from traceq.graph.inductor.origins import Origins, Part
    from traceq.model.compiled_graphs import (
        CompiledCode,
        Frame,
        KernelCall,
        Module,
        Size,
    )
    from traceq.model.owners import Owners

CALL = ("code", "call", "prefix")
"""Columns that identify a call of generated code, with the modules around it."""
_RESUMED = re.compile(r"^torch_dynamo_resume_in_(.+)_at_\d+$")
_COUNTED = r"^nn\.Module: (.+)_(\d+)$"
_TEMPLATE = "triton_tem_"
_HEAVY = (GEMM, ATTENTION, CONVOLUTION)
# Assumed value of a dynamic size: it is about the same in all ops of a kernel.
_CHANGING = 512
_SCHEMA = {
    "code": schema.ID,
    "call": schema.ID,
    "prefix": pl.String(),
    "kernel": pl.String(),
    "kind": pl.String(),
    "graph": pl.String(),
    "node": pl.String(),
    "computes": pl.String(),
    "module": pl.String(),
    "file": pl.String(),
    "line": schema.ID,
    "function": pl.String(),
    "via": pl.String(),
    "call_line": schema.ID,
    "bytes": schema.NUMBER,
    "share": pl.Float64(),
}


def parts_of(
    compiled: CompiledCode, owners: Owners, runs: pl.DataFrame, frames: pl.DataFrame
) -> pl.DataFrame:
    """Return the ops of each kernel, and the one that each operator is.

    ``runs`` are the runs of each ``code`` inside the modules ``prefix``, in order.
    """
    pairs = runs.select("code", "prefix").unique(maintain_order=True).rows()
    instances = Instances(compiled, pairs, frames)
    places = _Places(compiled, owners)
    origins = origins_of(compiled)
    rows = [
        row
        for code, prefix in pairs
        for row in _of_code(code, prefix, origins[code], places, instances)
    ]
    return pl.DataFrame(rows, schema=_SCHEMA, orient="row")


def _of_code(
    code: int,
    prefix: str | None,
    origins: Origins,
    places: _Places,
    instances: Instances,
) -> Iterator[tuple[Any, ...]]:
    graph = origins.code.graph
    for at, (call, nodes) in enumerate(
        zip(origins.code.calls, origins.of_call, strict=True)
    ):
        parts = [part for name in nodes if (part := origins.part(name, call))]
        of = (code, at, prefix, call.name, call.kind, graph)
        for part, moved, share in _shares(call, parts):
            path = instances.path(prefix, part.origin.modules)
            place = places.of(part.origin.frames)
            yield (*of, part.name, part.target, path, *place, moved, share)
        if not parts:
            yield from ((*of, *row) for row in _only_named(call, prefix))


def _only_named(call: KernelCall, prefix: str | None) -> Iterator[tuple[Any, ...]]:
    """Yield the names of a call's ops, where nothing else is known of them."""
    place, unknown = (None,) * 5, (None, None)
    for name in call.nodes:
        yield (name, None, prefix, *place, *unknown)
    for name in call.aten:
        yield (None, name, prefix, *place, *unknown)


def _shares(
    call: KernelCall, parts: Sequence[Part]
) -> Iterator[tuple[Part, int | None, float]]:
    """Yield the ops of a call, the bytes that each moves and its fraction of time."""
    if not parts:
        return
    if call.kind == EXTERN:
        kind = kind_of(call.name.rpartition("::")[2])
        alike = [part for part in parts if kind_of(part.target) == kind]
        yield (alike or parts)[-1], None, 1.0
        return
    heavy = {kind_of(name) for name in call.aten} & {*_HEAVY}
    template = call.name.startswith(_TEMPLATE)
    moved = [_moved(part, heavy, template=template) for part in parts]
    if not any(moved):
        moved = [_bytes(part.size) or 1 for part in parts]
    total = sum(moved)
    for part, count in zip(parts, moved, strict=True):
        yield part, count, count / total


def _moved(part: Part, heavy: set[str], *, template: bool) -> int:
    """Return the bytes that an op reads and writes if it runs by itself."""
    kind = kind_of(part.target)
    written = _bytes(part.size)
    if kind in _HEAVY:
        # Only a template runs the product itself; others add its bias, or look at it.
        return 2 * written if kind in heavy else 0
    if template or kind == "view":
        return 0
    if kind == LOOKUP:
        return 2 * written  # of the table it reads only these rows
    return written + sum(map(_bytes, part.inputs))


def _bytes(size: Size | None) -> int:
    """Return the bytes of a tensor, 0 if they are unknown.

    >>> from traceq.model.compiled_graphs import Size
    >>> _bytes(Size(("8", "2*s0"), "bfloat16"))
    16384
    """
    if size is None:
        return 0
    count = SENT_SIZES.get(size.dtype, 0)
    for dim in size.shape:
        for factor in dim.split("*"):
            count *= int(factor) if factor.strip().isdecimal() else _CHANGING
    return min(count, 1 << 60)


class _Places:
    """The user's line of each stack, and the library that it calls."""

    def __init__(self, compiled: CompiledCode, owners: Owners) -> None:
        frames = list(dict.fromkeys(_all_frames(compiled)))
        described = pl.DataFrame(
            {
                "file": [frame.file for frame in frames],
                "line": [frame.first_line for frame in frames],
                "function": [_function(frame) for frame in frames],
            },
            schema={"file": pl.String, "line": schema.ID, "function": pl.String},
        ).with_columns(own=is_own(pl.col("file"), owners, pl.col("function")))
        described = described.with_columns(
            library=third_party(pl.col("file"), pl.col("own"))
        ).select("own", source_places.VIA)
        self._described = dict(zip(frames, described.rows(), strict=True))

    def of(self, frames: Sequence[Frame]) -> tuple[Any, ...]:
        """Return file, line, function, via and call line."""
        via = None
        for frame in reversed(frames):
            own, library = self._described[frame]
            if own:
                first, line = frame.first_line, frame.line
                return frame.file, first, _function(frame), via, line
            via = via or library
        return None, None, None, via, None


def _all_frames(compiled: CompiledCode) -> Iterator[Frame]:
    for nodes in compiled.graphs.values():
        for node in nodes:
            yield from node.frames
    for code in compiled.code:
        for lowered in code.lowered.values():
            if lowered.frame:
                yield lowered.frame


def _function(frame: Frame) -> str:
    """Return the function's name, without what Dynamo adds after a graph break."""
    resumed = _RESUMED.match(frame.function)
    return resumed[1] if resumed else frame.function


class Instances:
    """Names of modules as the profiler gives them: Block_3 is the fourth one called.

    A graph that runs inside of several modules, as one that all layers share, has
    modules of its own in each.
    """

    def __init__(
        self,
        compiled: CompiledCode,
        runs: Iterable[tuple[int, str | None]],
        frames: pl.DataFrame,
    ) -> None:
        pairs = [(compiled.code[code].graph, prefix) for code, prefix in runs]
        prefixes: dict[str, set[str | None]] = {}
        for graph, prefix in pairs:
            prefixes.setdefault(graph, set()).add(prefix)
        self._shared = {
            module.key
            for graph, of in prefixes.items()
            if len(of) > 1
            for node in compiled.graphs.get(graph, ())
            for module in node.modules
        }
        self._next = _called(frames)
        self._names: dict[tuple[str | None, str], str] = {}
        for graph, prefix in dict.fromkeys(pairs):
            for node in compiled.graphs.get(graph, ()):
                if node.op != "placeholder":
                    for module in node.modules:
                        self._name(prefix, module)

    def _name(self, prefix: str | None, module: Module) -> str:
        key = (prefix if module.key in self._shared else None, module.key)
        if key not in self._names:
            kind = module.name.rpartition(".")[2]
            number = self._next.get(kind, 0)
            self._next[kind] = number + 1
            self._names[key] = f"{kind}_{number}"
        return self._names[key]

    def path(self, prefix: str | None, modules: Sequence[Module]) -> str | None:
        """Return the path of modules inside of others."""
        inner = [self._name(prefix, module) for module in modules]
        return "/".join([prefix, *inner] if prefix else inner) or None


def _called(frames: pl.DataFrame) -> dict[str, int]:
    """Return the next number of each class of which the trace has modules."""
    modules = frames.select(text("name").unique().str.extract_groups(_COUNTED))
    counted = modules.unnest("name").drop_nulls()
    numbers = counted.select("1", pl.col("2").cast(pl.Int64, strict=False))
    return dict(numbers.group_by("1").agg(pl.col("2").max() + 1).rows())


def largest(parts: pl.DataFrame) -> pl.DataFrame:
    """Return for each call the place with the largest fraction of it."""
    return (
        parts.group_by(*CALL, *source_places.COLUMNS, maintain_order=True)
        .agg(pl.col("share").sum())
        .sort("share", descending=True, maintain_order=True)
        .unique(CALL, keep="first", maintain_order=True)
        .select(*CALL, *source_places.COLUMNS)
    )
