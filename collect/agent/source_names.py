"""Names of source files in a trace, and the first lines of functions in them."""

from __future__ import annotations

import ast
import linecache
import os
import re
import site
import sys
from pathlib import Path

import torch

from .callers import is_base

_RESUMED = re.compile(r"torch_dynamo_resume_in_(.+)_at_\d+")
_LARGEST = 2_000_000  # characters of a file that is parsed
_NAMES: dict[type[ast.AST], str] = {
    ast.Lambda: "<lambda>",
    ast.ListComp: "<listcomp>",
    ast.SetComp: "<setcomp>",
    ast.DictComp: "<dictcomp>",
    ast.GeneratorExp: "<genexpr>",
}


class SourceNames:
    """File names as torch's profiler writes them, by the import path as it is now."""

    def __init__(self) -> None:
        self._folders = _import_folders()
        self._functions: dict[str, list[tuple[int, int, str, int]]] = {}

    def file(self, path: str) -> str:
        """Return a file's name in the trace, without a folder of the import path.

        Of a file that is not there (any more), as in a cache of another program's, the
        trace has no name: nothing is left of its folders.
        """
        for folder in self._folders:
            if path.startswith(folder):
                return path[len(folder) :]
        there = not os.path.isabs(path) or os.path.exists(path)
        return path if there else os.path.basename(path)

    def begin(self, path: str, function: str, line: int) -> int | None:
        """Return the first line of the function around a line, if that is known."""
        if function == "<module>":
            return 1
        if is_base(path):  # nobody asks for them, and some of them are long
            return None
        if path not in self._functions:
            self._functions[path] = _functions(path)
        results = [
            (first, begin)
            for first, last, name, begin in self._functions[path]
            if name == function and first <= line <= last
        ]
        return max(results)[1] if results else None


def function_name(name: str) -> str:
    """Return a function's own name: dynamo renames what follows a graph break."""
    match = _RESUMED.fullmatch(name)
    return match[1] if match else name


def _import_folders() -> list[str]:
    """Return the folders that torch cuts off, in its order: see its python_tracer."""
    folders = [*sys.path, str(Path(torch.__file__).parent.parent)]
    for name in ("getsitepackages", "getusersitepackages", "getuserbase"):
        result: str | list[str] = getattr(
            site, name, list
        )()  # an old virtual environment has none
        folders += [result] if isinstance(result, str) else result
    whole = {os.path.abspath(folder) for folder in folders}
    return [item + os.sep for item in sorted(whole, reverse=True)]


def _functions(path: str) -> list[tuple[int, int, str, int]]:
    """Return first and last line, name and beginning of a file's functions.

    A function begins at its first decorator, as its code object says.
    """
    text = "".join(linecache.getlines(path))
    if len(text) > _LARGEST:
        return []
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return []
    functions = []
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            begin = min([node.lineno, *(item.lineno for item in node.decorator_list)])
            functions.append((begin, node.end_lineno or begin, node.name, begin))
        elif isinstance(node, ast.expr) and type(node) in _NAMES:
            name, begin = _NAMES[type(node)], node.lineno
            functions.append((begin, node.end_lineno or begin, name, begin))
    return functions
