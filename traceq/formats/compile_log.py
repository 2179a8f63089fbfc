"""Reader of the code that a structured log of torch.compile has (``TORCH_TRACE``).

A record is a line of JSON behind the head of torch's loggers; its payload is in the
lines after it, which begin with a tab. All of it is untrusted text, as in
``inductor_code``: records of an unexpected form are skipped.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import orjson
from msgspec import Struct

from traceq.errors import InputError
from traceq.formats.compression import DamagedError, blocks
from traceq.formats.inductor_code import (
    BACKWARD,
    generated_code,
    renaming,
    with_names,
)
from traceq.formats.inductor_graph import read_program
from traceq.model.compiled_graphs import EXTERN, CompiledCode, GeneratedCode

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping
    from pathlib import Path

    from traceq.model.compiled_graphs import KernelCall, LoweredNode, Node

_LARGEST = 256 << 20
_LONGEST_PAYLOAD = 32 << 20
_MOST_CODE = 4096
_BLOCK = 1 << 20
_RECORD = re.compile(rb"[A-Z]\d{4} [\d:.]+ \d+ \S+\] (?=\{)")
# The graphs of the program and of inductor, the code, its key and its provenance.
_PROGRAM = "dynamo_output_graph"
_GRAPHS = ("inductor_post_grad_graph", "after_post_grad_graph")
_CODE = "inductor_output_code"
_PROVENANCE = "inductor_provenance_tracking_node_mappings"
_KEYS = ("fx_graph_cache_miss", "fx_graph_cache_hit", "fx_graph_cache_bypass")
_READ = {name.encode() for name in (_PROGRAM, *_GRAPHS, _CODE, _PROVENANCE, *_KEYS)}
_NAMED = re.compile(rb'\{"(?:artifact": \{"name": ")?(\w+)"')


class _Piece(Struct):
    """Records of one piece of code, so far."""

    graph: str
    text: str
    name: str
    lowered: str
    key: str = ""
    provenance: Mapping[str, Any] = {}


def read_logged(file: Path, names: Collection[str] = ()) -> CompiledCode:
    """Return the code in a log of ``TORCH_TRACE``; none if the log has none.

    Files of the program are named as in ``names``, where they are there. Raises
    ``InputError`` for a file that cannot be read.
    """
    pieces: list[_Piece] = []
    lowered: dict[str, str] = {}
    programs: dict[str, tuple[Node, ...]] = {}
    for name, record, payload in _records(file):
        graph = f"{record.get('frame_id')}/{record.get('frame_compile_id')}"
        own = [part for part in pieces[-_MOST_CODE:] if part.graph == graph]
        if name == _PROGRAM and len(programs) < _MOST_CODE:
            programs[graph] = read_program(payload)
        elif name in _GRAPHS:
            lowered[graph] = payload
        elif name == _CODE and len(pieces) < _MOST_CODE:
            of_code = lowered.pop(graph, "")
            pieces.append(_Piece(graph, payload, _stem(record), of_code))
        elif own and name == _PROVENANCE:
            own[-1].provenance = _json(payload)
        elif own and not own[-1].key and name in _KEYS:
            own[-1].key = str(_json(payload).get("key") or "")
    renamed = renaming(names)
    graphs = {
        graph: tuple(
            replace(node, frames=tuple(map(renamed, node.frames))) for node in nodes
        )
        for graph, nodes in programs.items()
    }
    code = (with_names(_code(part, programs), names) for part in pieces)
    return CompiledCode(graphs, tuple(code))


def _records(file: Path) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Yield the records that are read: kind, the record and its payload."""
    head, kind, payload, size = b"", b"", list[bytes](), 0
    for line in _lines(file):
        if line.startswith(b"\t"):
            if kind and size < _LONGEST_PAYLOAD:
                payload.append(line[1:])
                size += len(line)
            continue
        if kind:
            yield kind.decode(), _json(head), _text(payload)
        kind, payload, size = b"", [], 0
        start = _RECORD.match(line)
        named = _NAMED.match(line, start.end()) if start else None
        if start and named and named[1] in _READ:
            head, kind = line[start.end() :], named[1]
    if kind:
        yield kind.decode(), _json(head), _text(payload)


def _lines(file: Path) -> Iterator[bytes]:
    rest, left = b"", _LARGEST
    try:
        with file.open("rb") as stream:
            for block in blocks(stream, _BLOCK):
                *lines, rest = (rest + block).split(b"\n")
                yield from lines
                left -= len(block)
                if left < 0 or len(rest) > _LONGEST_PAYLOAD:
                    break
    except (OSError, DamagedError) as error:
        msg = f"{file} cannot be read: {getattr(error, 'strerror', None) or error}"
        raise InputError(msg) from None
    yield rest


def _text(lines: list[bytes]) -> str:
    return b"\n".join(lines).decode(errors="replace")


def _json(text: str | bytes) -> dict[str, Any]:
    try:
        value = orjson.loads(text)
    except ValueError:
        # A record that was cut.
        return {}
    return value if isinstance(value, dict) else {}


def _stem(record: Mapping[str, Any]) -> str:
    entry = record.get(_CODE)
    name = entry.get("filename") if isinstance(entry, dict) else None
    return PurePath(name).stem if isinstance(name, str) else ""


def _code(fragment: _Piece, programs: Mapping[str, tuple[Node, ...]]) -> GeneratedCode:
    code = replace(
        generated_code(fragment.text, fragment.lowered),
        graph=fragment.graph,
        key=fragment.key,
        name=fragment.name,
        backward=bool(BACKWARD.search(fragment.text)),
    )
    to_source, of_kernel = (
        _names(fragment.provenance.get(part)) for part in ("postToPre", "cppCodeToPost")
    )
    program = {node.name: node for node in programs.get(fragment.graph, ())}
    lowered = {
        name: _with_frame(node, to_source.get(name, ()), program)
        for name, node in code.lowered.items()
    }
    once = [call.name for call in code.calls]
    calls = (
        _with_nodes(call, of_kernel, lowered, alone=once.count(call.name) == 1)
        for call in code.calls
    )
    return replace(code, lowered=lowered, calls=tuple(calls))


def _names(mapping: object) -> dict[str, tuple[str, ...]]:
    """Return names by name, without what has another form."""
    entries = mapping if isinstance(mapping, dict) else {}
    return {
        name: tuple(item for item in names if isinstance(item, str))
        for name, names in entries.items()
        if isinstance(names, list)
    }


def _with_frame(
    node: LoweredNode, source: Collection[str], program: Mapping[str, Node]
) -> LoweredNode:
    """Give a node that inductor made the line of the op that it replaces."""
    frames = [
        frame for name in source if name in program for frame in program[name].frames
    ]
    return replace(node, frame=frames[-1]) if frames and not node.frame else node


def _with_nodes(
    call: KernelCall,
    of_kernel: Mapping[str, tuple[str, ...]],
    lowered: Mapping[str, LoweredNode],
    *,
    alone: bool,
) -> KernelCall:
    """Give a call the nodes that provenance names of it.

    Newer versions of torch number the calls; older ones know the kernel alone, which
    is enough if it is called once.
    """
    by_name = call.name if alone and call.kind != EXTERN else ""
    made_of = {*of_kernel.get(call.handle, of_kernel.get(by_name, ()))}
    nodes = tuple(name for name in lowered if name in made_of)
    return replace(call, nodes=nodes, of_lowered=True) if nodes else call
