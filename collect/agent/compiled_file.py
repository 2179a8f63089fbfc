"""File with torch.compile's output: lines and files as the trace names them.

Inductor's texts are stored without the folders of this machine, without credentials
and, if the user wants no source copied, without the program's lines that they quote.
"""

from __future__ import annotations

import json
import linecache
import os
import re
from typing import Any, Iterator, NamedTuple

from ..shared import redact
from .callers import is_base
from .source_names import SourceNames, function_name

FORMAT = 1
_TEXTS = ("cudagraphs_disabled", "text", "post_grad")
_UNKNOWN = "# No stacktrace found for following nodes"  # as torch writes it

_FRAME = re.compile(
    r'^ *File "(?P<file>.+)", line (?P<line>\d+), in (?P<function>.+)\n(?P<code>.*)',
    re.MULTILINE,
)
_FILE_LINE = re.compile(
    r"(?P<before>#.*?\bFile: )(?P<file>.+?):(?P<line>\d+) in (?P<function>.+?)"
    r"(?:, code: (?P<code>.*))?$",
    re.MULTILINE,
)
_QUOTED = re.compile(r'(^ *File ".+", line \d+, in .+$)\n.*', re.MULTILINE)
_FILE = re.compile(r'(^ *File ")(.+)(", line \d+, in )', re.MULTILINE)
_PATH_LINE = re.compile(r"(# (?:kernel|Original) path: )(.*)$", re.MULTILINE)
_PATH = re.compile(  # but for the names of files, which are those of the trace
    r"(?<!File: )(?<!File \")(?<![\w.$)\]/])/(?:[\w.+-]+/)+[\w.+-]+"
)
_OWN_KERNEL = re.compile(
    r"(# Original path: .*\n(?:#.*\n)*\w+ = async_compile\.triton\([^,]+, )"
    r"'{3}.*?'{3}",
    re.DOTALL,
)


class _Frame(NamedTuple):
    """A line of the program that dynamo has gone through."""

    file: str
    line: int
    function: str
    code: str


class CompiledFile:
    """The content of the file, made of what was kept while the program compiled."""

    def __init__(
        self,
        graphs: list[dict[str, Any]],
        code: list[dict[str, Any]],
        quotes: bool,  # noqa: FBT001 - whether lines of the program may be quoted
        keep_paths: bool,  # noqa: FBT001
    ) -> None:
        self.graphs = graphs
        # A cache has the backward at once, else it comes when it is first run.
        order = {graph["id"]: place for place, graph in enumerate(graphs)}
        self.code = sorted(
            code, key=lambda one: (order.get(one["id"], len(order)), one["backward"])
        )
        self._quotes = quotes
        self._keep_paths = keep_paths
        self._names = SourceNames()
        self._frames = {
            node["frames"]: _frames(node["frames"])
            for graph in graphs
            for node in (*graph["nodes"], *graph["inner"])
        }

    def written(self) -> Iterator[str]:
        """Yield the text of the file."""
        yield f'{{"format": {FORMAT}, "graphs": ['
        shown = {stack: self._shown_frames(stack) for stack in self._frames}
        for place, graph in enumerate(self.graphs):
            content = {**graph}
            for kind in ("nodes", "inner"):
                content[kind] = [
                    {**node, "frames": shown[node["frames"]]} for node in graph[kind]
                ]
            yield (",\n" if place else "\n") + json.dumps(content)
        yield '],\n"code": ['
        for place, entry in enumerate(self.code):
            lines = self._lines_of(entry["id"])
            content = {
                key: self._shown(str(value), lines)
                if key in _TEXTS and value
                else value
                for key, value in entry.items()
            }
            yield (",\n" if place else "\n") + json.dumps(content)
        yield "]}\n"

    def files(self) -> dict[str, str]:
        """Return the paths of the program's files by their names."""
        paths = {frame.file for frames in self._frames.values() for frame in frames}
        return {self._names.file(path): path for path in paths if not is_base(path)}

    def _shown_frames(self, stack: str) -> list[list[Any]]:
        """Return file, beginning, function and line of each frame, outermost first."""
        names = self._names
        return [
            [names.file(file), names.begin(file, function, line), function, line]
            for file, line, function, _ in self._frames[stack]
        ]

    def _lines_of(self, compile_id: str | None) -> set[_Frame]:
        """Return the lines of the program that one compilation has gone through."""
        return {
            frame
            for graph in self.graphs
            if graph["id"] == compile_id
            for node in (*graph["nodes"], *graph["inner"])
            for frame in self._frames[node["frames"]]
        }

    def _shown(self, text: str, lines: set[_Frame]) -> str:
        """Return a text of inductor's with files named as in the trace."""
        text = _FILE_LINE.sub(lambda match: self._file_line(match, lines), text)
        text = _FILE.sub(lambda at: at[1] + self._names.file(at[2]) + at[3], text)
        if not self._quotes:
            text = _OWN_KERNEL.sub(r"\1''", _QUOTED.sub(r"\1", text))
        if not self._keep_paths:
            text = _PATH_LINE.sub(lambda at: at[1] + self._short(at[2]), text)
            text = _PATH.sub(lambda at: self._short(at[0]), text)
        return redact.log(text)

    def _file_line(self, match: re.Match[str], lines: set[_Frame]) -> str:
        code = (match["code"] or "").strip()
        function = function_name(match["function"])
        frame = _Frame(match["file"], int(match["line"]), function, code)
        now = _as_it_is_now(frame, lines)
        if now is None:
            return _UNKNOWN
        shown = (
            f"{match['before']}{self._names.file(now.file)}:{now.line} in {function}"
        )
        return f"{shown}, code: {code}" if self._quotes and code else shown

    def _short(self, path: str) -> str:
        """Return a path without the folders of this machine."""
        name = self._names.file(path)
        return os.path.basename(name) if os.path.isabs(name) else name


def _frames(stack: str) -> list[_Frame]:
    return [
        _Frame(
            match["file"],
            int(match["line"]),
            function_name(match["function"]),
            match["code"].strip(),
        )
        for match in _FRAME.finditer(stack)
    ]


def _as_it_is_now(frame: _Frame, lines: set[_Frame]) -> _Frame | None:
    """Return a line that inductor names as the program has it; None if it is gone.

    Inductor's cache knows a graph again whose lines have moved since, and has the old
    ones: they are told by what they say.
    """
    if not frame.code or frame in lines:
        return frame
    same = {line for line in lines if line[2:] == frame[2:]}
    if len(same) == 1:
        return same.pop()
    quoted = linecache.getline(frame.file, frame.line).strip()
    return frame if quoted == frame.code else None
