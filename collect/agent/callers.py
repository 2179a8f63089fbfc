"""Line of each Python call: torch records it, but does not write it into its trace.

torch names a Python call by where the called function begins. Its tree of events also
has the caller and the line that the caller was at, which is put into the trace's text
as ``"caller": "model.py(173): forward"`` after the name of the call.
"""

from __future__ import annotations

import os
import re
import sys
import sysconfig
from pathlib import Path
from typing import Any, BinaryIO, Iterator

import torch

MOST_EVENTS = 3_000_000  # a few microseconds each
TOO_MANY = "the trace has more than {most} events, too many to look for their lines"
_BLOCK = 1 << 22
_FRAME = re.compile(r"(?P<file>.*)\(\d+\): (?P<function>.*)", re.DOTALL)
_START = re.compile(rb'"baseTimeNanoseconds":\s*(\d+)')
_EVENT = re.compile(
    rb'("cat": "python_function",\s*"name": "([^"\\]*)",)'
    rb'(\s*"pid": [^,]*,\s*"tid": [^,]*,\s*"ts": (\d+)\.(\d{3})\b)'
)
_TORCH = str(Path(torch.__file__).parent)
_OURS = str(Path(__file__).parent.parent)
_STANDARD = (sysconfig.get_paths()["stdlib"], os.path.dirname(os.__file__))


class Callers:
    """Lines of the Python calls in a trace, without those that torch itself makes."""

    def __init__(self) -> None:
        self.lines: dict[tuple[int, str], bytes] = {}
        """The caller and its line, by start and name of the call."""
        self.files: dict[str, str] = {}
        """Source files of callers: the name in the trace, and the path."""
        self._whose: dict[str, tuple[str, str] | None] = {}
        self._paths: dict[str, set[str]] = {}

    def find(self, results: Any) -> None:
        """Look at all events of the profiler's results."""
        kinds: Any = torch._C._profiler._EventType  # noqa: SLF001
        function, builtin = kinds.PyCall, kinds.PyCCall
        self._paths = _loaded_files()
        waiting = [(event, "") for event in results.experimental_event_tree()]
        while waiting:
            event, caller = waiting.pop()
            kind = event.tag
            if kind in (function, builtin):
                name = _name(event)
                if caller:
                    self._note(event, name, caller)
                if kind == function:
                    caller = name if self._caller(name) else ""
            waiting += [(inner, caller) for inner in event.children]

    def _note(self, event: Any, name: str, caller: str) -> None:
        at = event.extra_fields.caller
        file, function = self._whose[caller] or ("", "")
        try:
            is_caller = at.function_name == function
        except UnicodeDecodeError:
            return
        if not is_caller or at.line_number < 1:
            return
        text = f"{file}({at.line_number}): {function}"
        self.lines[event.start_time_ns, name] = text.encode()

    def _caller(self, name: str) -> tuple[str, str] | None:
        """Return file and function of a call, none if its lines are of no use."""
        if name not in self._whose:
            match = _FRAME.fullmatch(name)
            self._whose[name] = None
            if match and not set(name) & set('"\\') and name.isprintable():
                paths = self._paths.get(match["file"], {match["file"]})
                if not any(map(is_base, paths)):
                    self._whose[name] = (match["file"], match["function"])
                    if len(paths) == 1:
                        self.files[match["file"]] = min(paths)
        return self._whose[name]

    def written(self, source: BinaryIO) -> Iterator[bytes]:
        """Yield the text of a trace with the callers in it."""
        rest = source.read(_BLOCK)
        match = _START.search(rest)
        start = int(match[1]) if match else 0

        def named(event: re.Match[bytes]) -> bytes:
            moment = start + int(event[4] + event[5])
            caller = self.lines.get((moment, event[2].decode("utf-8", "replace")))
            if caller is None:
                return event[0]
            return b'%b "caller": "%b",%b' % (event[1], caller, event[3])

        while rest:
            block = source.read(_BLOCK)
            # Only whole events: the last one may go on in the next block.
            end = rest.rfind(b'"ph"') if block else len(rest)
            if end <= 0:
                rest += block
                continue
            yield _EVENT.sub(named, rest[:end])
            rest = rest[end:] + block


def _name(event: Any) -> str:
    """Return the name of an event; empty if it is not text, as of some extensions."""
    try:
        return str(event.name)
    except UnicodeDecodeError:
        return ""


def _loaded_files() -> dict[str, set[str]]:
    """Return the source files of all modules by the names that a trace has for them.

    torch cuts off whatever folder of the import path a file is in.
    """
    packages = [os.path.dirname(os.path.dirname(torch.__file__))]
    folders = {os.path.abspath(package) for package in (*sys.path, *packages)}
    files: dict[str, set[str]] = {}
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        path = os.path.abspath(file) if isinstance(file, str) else ""
        for folder in folders:
            if path.startswith(folder + os.sep):
                files.setdefault(path[len(folder) + 1 :], set()).add(path)
        files.setdefault(path, set()).add(path)
    return files


def is_base(path: str) -> bool:
    """Return whether a file is torch's, Python's or ours."""
    if path.startswith((_TORCH, _OURS, "<")):
        return True
    return path.startswith(_STANDARD) and "-packages" not in path
