"""Output of torch.compile: dynamo's graphs and the code that inductor writes.

The graphs have the program's lines and modules, the code has the result. Both pass,
also from a cache, through methods of torch, which are watched and only read. These are
private to torch: if they are missing or have changed, that is noted, and the program
compiles as without us. Nothing is imported for it.
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Any, Callable, Iterator

from .after_import import AfterImport
from .compiled_file import CompiledFile
from .files import TooLargeError, check_room, compressed
from .wrapping import wrap

MOST_NODES = 200_000
MOST_TEXT = 32_000_000  # characters; redacting them takes seconds
WHAT = "compiled code"
MORE = "further compiled code"
_TOO_LARGE = f"it has more than {MOST_TEXT // 1_000_000} MB"
_GRAPH = "torch._dynamo.output_graph"
_CODE = "torch._inductor.output_code"


class CompiledGraphs:
    """Keeps what is compiled in this process, as plain text, up to a limit."""

    def __init__(self, *, code: bool, keep_paths: bool) -> None:
        self.graphs: list[dict[str, Any]] = []
        self.code: list[dict[str, Any]] = []
        self.files: dict[str, str] = {}  # source files by their names, once written
        self.missing: dict[str, str] = {}  # why something is, by what it is
        self._quotes = code  # whether lines of the program may be quoted
        self._keep_paths = keep_paths
        self._nodes = 0
        self._text = 0
        self._known: set[tuple[Any, ...]] = set()
        self._same: dict[Any, Any] = {}  # texts that many nodes share
        self._undo: list[Callable[[], None]] = []

    def install(self) -> None:
        """Watch what is compiled, as soon as the program has imported the compiler."""
        for module, owner, method, around in (
            (_GRAPH, "OutputGraph", "call_user_compiler", self._dynamo),
            (_CODE, "CompiledFxGraph", "post_compile", self._inductor),
        ):
            self._watch(module, owner, method, around)

    def _watch(
        self, module: str, owner: str, method: str, around: Callable[..., Any]
    ) -> None:
        def begin() -> None:
            with self._guarded():
                holder = getattr(sys.modules[module], owner)
                self._undo.append(wrap(holder, method, around))

        finder = AfterImport(module, begin)
        self._undo.append(finder.stop)
        finder.wait()

    def remove(self) -> None:
        """Stop watching."""
        while self._undo:
            self._undo.pop()()

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        """Note an error of ours as something that is missing: the program goes on."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - it reads what is private to torch
            text = f"this version of torch keeps it elsewhere: {type(error).__name__}"
            self.missing[WHAT] = text

    # What the program passes through.

    def _dynamo(self, method: Any, this: Any, graph: Any, *args: Any, **kw: Any) -> Any:
        with self._guarded():
            self._keep_graph(graph)
        return method(this, graph, *args, **kw)

    def _inductor(self, method: Any, this: Any, *args: Any, **kw: Any) -> Any:
        result = method(this, *args, **kw)
        with self._guarded():
            self._keep_code(this)
        return result

    def _keep_graph(self, module: Any) -> None:
        nodes, inner = [], []
        for name, graph in _graphs(module):
            for node in graph.nodes:
                if self._nodes >= MOST_NODES:
                    self.missing[MORE] = f"its graphs have more than {MOST_NODES} nodes"
                    return
                if self._text >= MOST_TEXT:
                    self.missing[MORE] = _TOO_LARGE
                    return
                self._nodes += 1
                entry = self._node(node)
                if name:
                    inner.append({**entry, "within": name})
                else:
                    nodes.append(entry)
        self.graphs.append({"id": _compile_id(), "nodes": nodes, "inner": inner})

    def _node(self, node: Any) -> dict[str, Any]:
        value = node.meta.get("example_value")
        stack = node.meta.get("stack_trace") or ""
        modules = tuple(map(_module, (node.meta.get("nn_module_stack") or {}).items()))
        shape = getattr(value, "shape", None)
        dtype = getattr(value, "dtype", None)
        return {
            "name": str(node.name),
            "op": str(node.op),
            "target": self._shared(_target(node.target)),
            "inputs": [
                str(all_input_node.name) for all_input_node in node.all_input_nodes
            ],
            "frames": self._shared(stack),
            "modules": self._shared(modules),
            "shape": None if shape is None else [str(size) for size in shape],
            "dtype": None if dtype is None else self._shared(str(dtype)),
        }

    def _shared(self, value: Any) -> Any:
        """Return an equal value that is kept already, if there is one."""
        if value not in self._same and isinstance(value, str):
            self._text += len(value)
        return self._same.setdefault(value, value)

    def _keep_code(self, made: Any) -> None:
        settings = getattr(made, "fx_kwargs", None) or {}
        entry: dict[str, Any] = {
            "id": _compile_id(),
            "key": getattr(made, "_fx_graph_cache_key", None),
            "name": getattr(made, "cache_key", None),
            "backward": bool(settings.get("is_backward")),
            "cudagraphs_disabled": getattr(made, "disabled_cudagraphs_reason", None),
            "text": getattr(made, "source_code", None) or "",
            "post_grad": getattr(made, "inductor_post_grad_graph_str", None) or "",
        }
        which = tuple(entry[key] for key in ("id", "key", "name", "backward"))
        size = len(entry["text"]) + len(entry["post_grad"])
        if which in self._known:
            return
        if self._text + size > MOST_TEXT:
            self.missing[MORE] = _TOO_LARGE
            return
        self._known.add(which)
        self._text += size
        self.code.append(entry)

    def write(self, file: Path) -> dict[str, Any] | None:
        """Write what was compiled so far and return what the manifest says of it."""
        if not self.graphs and not self.code:
            return None
        if "torch._inductor.compile_fx" in sys.modules and _CODE not in sys.modules:
            self.missing["inductor's code"] = "torch before 2.6 does not keep it"
        content = CompiledFile(self.graphs, self.code, self._quotes, self._keep_paths)
        try:
            check_room(file.parent, self._text + 1000 * self._nodes)
            with compressed(file) as target:
                for text in content.written():
                    target.write(text.encode("utf-8", "replace"))
        except TooLargeError as error:
            self.missing[WHAT] = str(error)
            return None
        self.files = content.files()
        return {
            "file": file.name,
            "bytes": file.stat().st_size,
            "graphs": len(self.graphs),
            "code": len(self.code),
        }


def _graphs(module: Any) -> Iterator[tuple[str, Any]]:
    """Yield a module's graph and those inside, as that of a checkpointed function."""
    for name, one in module.named_modules():
        graph = getattr(one, "graph", None)
        if hasattr(graph, "nodes"):
            yield name, graph


def _compile_id() -> str | None:
    """Return the compiler's number for what is compiled just now: 0/0."""
    context: Any = sys.modules["torch._guards"].CompileContext
    compile_id = context.current_compile_id()
    return None if compile_id is None else str(compile_id)


def _target(target: Any) -> str:
    if isinstance(target, str):
        return target[:300]
    if hasattr(target, "overloadpacket"):  # an op by its whole name: aten.mm.default
        return str(target)
    return str(getattr(target, "__name__", None) or type(target).__name__)


def _module(entry: tuple[Any, Any]) -> tuple[str, str, str]:
    key, value = entry
    path, kind = value if isinstance(value, tuple) else (key, value)  # torch 2.0
    return str(key), str(path), str(getattr(kind, "__name__", kind))
