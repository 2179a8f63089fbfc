"""Reader of torch.compile's recorded output: graphs and generated code.

All of it is untrusted text: it is read line by line, never run, and lines of an
unexpected form are skipped.
"""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import islice
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import orjson

from traceq.errors import InputError
from traceq.formats.compression import DamagedError, blocks
from traceq.formats.inductor_graph import is_line, names_in, outputs_of, read_lowered
from traceq.model.compiled_graphs import (
    CPP,
    EXTERN,
    TRITON,
    CompiledCode,
    Frame,
    GeneratedCode,
    KernelCall,
    Module,
    Node,
    Size,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
    from pathlib import Path

_FORMAT = 1
_LARGEST = 256 << 20
_MOST_FILES = 20_000
_LONGEST_TEXT = 32 << 20
_MOST_CODE = 4096
_MOST_NODES = 1 << 20
_BLOCK = 1 << 20
# Operators that generated code calls by another name than the profiler gives them.
_EXTERN_NAMES = {"bias_addmm": "addmm", "fp8_mm": "_scaled_mm"}

# Code that runs kernels, and the files of its graph beside it, the best one first.
_MARK = re.compile(r"^ *def call\(", re.MULTILINE)
_GRAPH_FILES = ("fx_graph_transformed.py", "fx_graph_readable.py")
_AOT = re.compile(r"# AOT ID: \['(\d+)_(\w+)'\]")
BACKWARD = re.compile(r"# AOT ID: \['\d+_backward'\]")
"""The line of code that runs a backward."""

_NODES = re.compile(
    r" *# Topologically Sorted Source Nodes: \[([^\]]*)\], Original ATen: \[([^\]]*)\]"
)
_HANDLE = re.compile(r" *# \[Provenance debug handles\] (\S+)")
_PATH = re.compile(r"# kernel path: (\S+)")
_MAPPED = re.compile(r"#   (\w+) => ([\w, ]+)$")
_DEFINED = re.compile(r"(\w+) = async_compile\.(triton|cpp_pybinding|cpp)\(")
_BODY = re.compile(r"( *)def (call|partition_\d+)\(")
_PARTITION = re.compile(r"\bpartitions\[(\d+)\]\(|= (partition_\d+)\(")
_RUN = re.compile(r" *(\w+)\.run\(")
_EXTERN = re.compile(r" *(?:\w+ = )?extern_kernels\.(\w+)\(")
_OPERATOR = re.compile(r" *(?:\w+ = )?(?:torch\.ops\.(\w+)|aten)\.(\w+)")
_CPP = re.compile(r" *(?:\w+ = )?(cpp_\w+)\(")

_INPUT = re.compile(r"\bprimals_(\d{1,9})\b")


def read_compiled(file: Path) -> CompiledCode:
    """Return the compiled code in a file of ``traceq collect``.

    Raises ``InputError`` for a file that cannot be read.
    """
    content = _content(file)
    version = content.get("format")
    if version != _FORMAT:
        msg = f"{file} has another format than this traceq reads: update traceq"
        raise InputError(msg)
    left = _MOST_NODES
    graphs: dict[str, tuple[Node, ...]] = {}
    for item in _entries(content.get("graphs"))[:_MOST_CODE]:
        nodes = [*_nodes(_entries(item.get("nodes"))[:left])]
        left -= len(nodes)
        inner = _entries(item.get("inner"))[:left]
        left -= len(inner)
        graphs[str(item.get("id"))] = tuple(_with_inner(nodes, inner))
    code = [_code(entry) for entry in _entries(content.get("code"))[:_MOST_CODE]]
    return CompiledCode(graphs, tuple(code))


def read_generated(folder: Path, names: Collection[str] = ()) -> CompiledCode:
    """Return the code in a folder of inductor's: its cache, or torch_compile_debug.

    Files of the program are named as in ``names``, where they are there. Raises
    ``InputError`` for a folder without any code.
    """
    codes: dict[tuple[KernelCall, ...], GeneratedCode] = {}
    left = _LARGEST
    for file in islice(sorted(folder.rglob("*.py")), _MOST_FILES):
        text = _limited(file, left)
        left -= len(text)
        if not _MARK.search(text):
            continue
        graphs = (_limited(file.with_name(name), left) for name in _GRAPH_FILES)
        graph = next(filter(None, graphs), "")
        code = with_names(replace(generated_code(text, graph), **_aot_id(text)), names)
        # The same code lies in several places; with its graph it tells more.
        if code.calls not in codes or code.lowered:
            codes[code.calls] = code
    if not codes:
        msg = (
            f"{folder} has no code that inductor generated: give"
            " TORCHINDUCTOR_CACHE_DIR or torch_compile_debug of the run"
        )
        raise InputError(msg)
    return CompiledCode({}, tuple(codes.values()))


def _limited(file: Path, most: int) -> str:
    try:
        if file.stat().st_size > min(most, _LONGEST_TEXT):
            return ""
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _aot_id(text: str) -> dict[str, Any]:
    match = _AOT.search(text)
    if not match:
        return {}
    return {"graph": match[1], "backward": match[2] == "backward"}


def with_names(code: GeneratedCode, names: Collection[str]) -> GeneratedCode:
    """Return code whose lines are in files as the trace names them."""
    renamed = renaming(names)
    lowered = {
        name: replace(node, frame=renamed(node.frame)) if node.frame else node
        for name, node in code.lowered.items()
    }
    return replace(code, lowered=lowered)


def renaming(names: Collection[str]) -> Callable[[Frame], Frame]:
    """Return a function that names the file of a frame as the trace does."""
    by_base: dict[str, list[str]] = {}
    for name in names:
        by_base.setdefault(PurePath(name).name, []).append(name)

    def renamed(frame: Frame) -> Frame:
        paths = by_base.get(PurePath(frame.file).name, ())
        same = [name for name in paths if f"/{frame.file}".endswith(f"/{name}")]
        return frame._replace(file=max(same, key=len)) if same else frame

    return renamed


def _content(file: Path) -> dict[str, Any]:
    content = bytearray()
    try:
        with file.open("rb") as stream:
            for block in blocks(stream, _BLOCK):
                content += block
                if len(content) > _LARGEST:
                    msg = f"{file} is larger than {_LARGEST >> 20} MiB"
                    raise InputError(msg)
        value = orjson.loads(bytes(content))
    except (OSError, ValueError, DamagedError):
        value = None
    if not isinstance(value, dict):
        msg = f"{file} is damaged: compiled kernels have no lines without it"
        raise InputError(msg)
    return value


def _entries(value: object) -> list[dict[str, Any]]:
    if not isinstance(value, list):
        return []
    return [entry for entry in value if isinstance(entry, dict)]


def _texts(value: object) -> tuple[str, ...]:
    entries = value if isinstance(value, list) else []
    return tuple(entry for entry in entries if isinstance(entry, str))


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _with_inner(nodes: list[Node], inner: list[dict[str, Any]]) -> Iterator[Node]:
    """Yield the nodes of a graph, those of the graphs that it calls before the call."""
    bodies: dict[str, list[Node]] = {}
    for entry, node in zip(inner, _nodes(inner), strict=True):
        if node.op not in ("placeholder", "output"):
            bodies.setdefault(_text(entry.get("within")), []).append(node)
    for node in nodes:
        for name in node.inputs:
            # Once: a graph that is called again has the same names.
            yield from bodies.pop(name, [])
        yield node


def _nodes(entries: list[dict[str, Any]]) -> Iterator[Node]:
    for item in entries:
        dtype = _text(item.get("dtype")).removeprefix("torch.")
        frames = item.get("frames")
        modules = item.get("modules")
        yield Node(
            name=_text(item.get("name")),
            op=_text(item.get("op")),
            target=_text(item.get("target")),
            inputs=_texts(item.get("inputs")),
            frames=tuple(_frames(frames if isinstance(frames, list) else [])),
            modules=tuple(
                Module(*texts)
                for entry in (modules if isinstance(modules, list) else [])
                if len(texts := _texts(entry)) == len(Module._fields)
            ),
            size=Size(_texts(item.get("shape")), dtype) if dtype else None,
        )


def _frames(entries: list[Any]) -> Iterator[Frame]:
    for entry in entries:
        if not isinstance(entry, list) or len(entry) != len(Frame._fields):
            continue
        file, first, function, line = entry
        if isinstance(file, str) and isinstance(function, str) and is_line(line):
            yield Frame(file, first if is_line(first) else None, function, line)


def _code(entry: dict[str, Any]) -> GeneratedCode:
    graph_id, key, name = (_text(entry.get(part)) for part in ("id", "key", "name"))
    text, graph = (
        _text(entry.get(part))[:_LONGEST_TEXT] for part in ("text", "post_grad")
    )
    reason = entry.get("cudagraphs_disabled")
    return replace(
        generated_code(text, graph),
        graph=graph_id,
        key=key,
        name=name,
        backward=entry.get("backward") is True,
        cudagraphs_disabled=reason if isinstance(reason, str) else None,
    )


def generated_code(text: str, graph: str = "") -> GeneratedCode:
    """Return the calls of inductor's output code, in order, with their source ops.

    ``graph`` is the text of the graph that it was generated from, if that is known. The
    code's own id, key and name are empty.
    """
    lines = text.splitlines()
    bodies = _bodies(lines)
    hashes, made_of = _definitions(lines)
    return GeneratedCode(
        graph="",
        key="",
        name="",
        backward=False,
        cudagraphs_disabled=None,
        calls=tuple(_calls("call", bodies)),
        hashes=hashes,
        lowered=read_lowered(graph),
        outputs=outputs_of(graph),
        made_of=made_of,
    )


def _bodies(lines: list[str]) -> dict[str, list[str]]:
    """Return the lines of the functions that run kernels, by their names."""
    bodies: dict[str, list[str]] = {}
    body: list[str] | None = None
    depth = 0
    for line in lines:
        if start := _BODY.match(line):
            depth = len(start[1])
            body = bodies[start[2]] = []
        elif body is not None and line.strip():
            if len(line) - len(line.lstrip()) <= depth:
                body = None
            else:
                body.append(line)
    return bodies


def _calls(name: str, bodies: Mapping[str, list[str]]) -> Iterator[KernelCall]:
    """Yield the calls of a function; those of a partition where it is called."""
    nodes: tuple[str, ...] = ()
    aten: tuple[str, ...] = ()
    handle = ""
    for line in bodies.get(name, []):
        if comment := _NODES.match(line):
            nodes, aten = names_in(comment[1]), names_in(comment[2])
        elif numbered := _HANDLE.match(line):
            handle = numbered[1]
        elif name == "call" and (part := _PARTITION.search(line)):
            yield from _calls(part[2] or f"partition_{part[1]}", bodies)
        elif called := _called(line):
            reads = tuple(map(int, _INPUT.findall(line)))
            yield KernelCall(*called, nodes, aten, reads, handle)
            nodes, aten, handle = (), (), ""


def _called(line: str) -> tuple[str, str] | None:
    """Return the kind of kernel or operator that a line runs, and its traced name."""
    if match := _RUN.match(line):
        return TRITON, match[1]
    if match := _EXTERN.match(line):
        return EXTERN, f"aten::{_EXTERN_NAMES.get(match[1], match[1])}"
    if match := _OPERATOR.match(line):
        return EXTERN, f"{match[1] or 'aten'}::{match[2]}"
    if match := _CPP.match(line):
        return CPP, match[1]
    return None


def _definitions(
    lines: Iterable[str],
) -> tuple[dict[str, str], dict[str, dict[str, tuple[str, ...]]]]:
    """Return the file of each kernel, and the nodes that it was made of."""
    hashes: dict[str, str] = {}
    made_of: dict[str, dict[str, tuple[str, ...]]] = {}
    path, mapping = "", dict[str, tuple[str, ...]]()
    for line in lines:
        if line.startswith("#"):
            if file := _PATH.match(line):
                path, mapping = PurePath(file[1]).stem, {}
            elif pair := _MAPPED.match(line):
                mapping[pair[1]] = names_in(pair[2])
        elif defined := _DEFINED.match(line):
            made_of[defined[1]] = mapping
            if path:
                hashes[defined[1]] = path
            path, mapping = "", {}
    return hashes, made_of
