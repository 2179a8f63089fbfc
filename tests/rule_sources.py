"""Sentences in the sources of rules, written again by ``make goldens``."""

from __future__ import annotations

import ast
import inspect
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from traceq.linter import Bad, Rule

_WIDTH = 88


def write_finds(rule: type[Rule], example: Bad, sentences: Sequence[str]) -> None:
    """Write what an example finds now into the file that has the example."""
    file, node = _place(rule, example)
    text = file.read_bytes()
    lines = text.splitlines(keepends=True)
    begin = sum(map(len, lines[: node.value.lineno - 1])) + node.value.col_offset
    end = sum(map(len, lines[: (node.value.end_lineno or 0) - 1]))
    end += node.value.end_col_offset or 0
    # Parentheses around a text of several lines are no part of it.
    before, after = text[:begin], text[end:]
    if before.rstrip().endswith(b"finds=("):
        before = before.rstrip()[:-1]
        after = after.lstrip()[1:]
    indent = len(before) - before.rfind(b"\n") - 1 - len(b"finds=")
    written = _written(sentences, indent)
    file.write_bytes(before + written.encode() + after)


def _place(rule: type[Rule], example: Bad) -> tuple[Path, ast.keyword]:
    """Return the file and the argument that state what an example finds."""
    source = Path(inspect.getfile(rule))
    files = [source, *sorted(source.parent.glob("_*.py"))]
    for file in files:
        for drawing, keyword in _finds(file):
            same = ast.literal_eval(keyword.value) == example.finds
            if same and drawing in {None, example.drawing}:
                return file, keyword
    msg = f"what an example of {rule.code} finds is no literal: edit it yourself"
    raise AssertionError(msg)


def _finds(file: Path) -> Iterator[tuple[str | None, ast.keyword]]:
    """Yield the literal ``finds`` of a file, each with its drawing if that is one."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Bad":
            for keyword in node.keywords:
                if keyword.arg == "finds":
                    try:
                        ast.literal_eval(keyword.value)
                    except ValueError:
                        continue
                    first = node.args[0] if node.args else None
                    literal = isinstance(first, ast.Constant)
                    yield (str(first.value) if literal else None), keyword  # type: ignore[union-attr]  # a constant


def _written(sentences: Sequence[str], indent: int) -> str:
    """Return the value of ``finds``, which begins at a column, as the formatter does.

    >>> print(_written(["a tensor is sorted once a step"], 12))
    "a tensor is sorted once a step"
    """
    if len(sentences) == 1:
        whole = _quoted(sentences[0])
        if indent + len(f"finds={whole},") <= _WIDTH:
            return whole
        return "\n".join(["(", *_pieces(sentences[0], indent + 4), " " * indent + ")"])
    lines = ["("]
    for sentence in sentences:
        line = " " * (indent + 4) + _quoted(sentence) + ","
        pieces = [line] if len(line) <= _WIDTH else _pieces(sentence, indent + 4)
        lines += [*pieces[:-1], pieces[-1].rstrip(",") + ","]
    return "\n".join([*lines, " " * indent + ")"])


def _pieces(sentence: str, indent: int) -> list[str]:
    """Return a sentence as texts that follow each other, a line each."""
    first, *others = textwrap.wrap(
        sentence, _WIDTH - indent - 3, break_long_words=False, break_on_hyphens=False
    )
    return [
        " " * indent + _quoted(name) for name in (first, *(f" {o}" for o in others))
    ]


def _quoted(text: str) -> str:
    quote = "'" if '"' in text and "'" not in text else '"'
    return quote + text.replace("\\", r"\\").replace(quote, f"\\{quote}") + quote
