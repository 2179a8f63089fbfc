"""Paths without the folders that identify the user's machine."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from traceq.model.owners import LIBRARIES

if TYPE_CHECKING:
    from collections.abc import Iterable

_FRAME = re.compile(r"^(?P<file>.+)(?P<rest>\(\d+\): .+)$")
_ABSOLUTE = re.compile(r"^([A-Za-z]:)?[/\\]")
# In a sentence, where a path ends at a blank, a quote or a bracket.
_IN_TEXT = re.compile(
    r"(?<![\w./\\:-])(?:[A-Za-z]:)?[/\\](?:[^/\\\s\"'():,;<>\[\]{}|]+[/\\])+"
    r"[^/\\\s\"'():,;<>\[\]{}|]*"
)
# From here on a path is the same on every machine, and says that it is a library's.
_LIBRARY = re.compile(
    r"^.*?(?=/(?:site|dist)-packages/|/lib/python\d|/torch/(?:nn|optim|autograd|utils"
    r"|cuda|profiler|distributed|fx|_\w+|functional)[./])"
)
# Files that torch_geometric generates for its layers, in a temporary folder.
_WRITTEN = re.compile(r"^.*/(?=torch_geometric\.[^/]+_[0-9a-z_]{8}\.py$)")
_INDUCTOR = re.compile(r"^.*/torchinductor(_[^/]*)?/")
_OF_USER = re.compile(
    r"(?:[/\\](?:home|Users)[/\\]|torchinductor_)(?P<name>[^/\\\s\"']+)"
)
# Folders that hold other people's folders.
_SHARED = ("", "/", "/home", "/Users", "/mnt", "/data", "/scratch", "/tmp")  # noqa: S108 - no file is made there
# Names that are nobody's, or that other words begin with.
_NOBODY = {"user", "users", "root", "ubuntu", "runner", "admin", "train", "test"}
_SHORTEST_NAME = 3


class Paths:
    """Writer of the paths of one recording.

    A path in a library begins with the library. One in the user's own code is
    relative to the folder that holds all of it; where that would be everybody's
    folder, it is the file's name alone. Relative paths stay as they are.
    """

    def __init__(self, files: Iterable[str], hosts: Iterable[str] = ()) -> None:
        paths = list(files)
        folders = [
            _slashed(file).rpartition("/")[0]
            for file in paths
            if _ABSOLUTE.match(file) and not _of_library(_slashed(file))
        ]
        self._root = _common(folders)
        users = {match["name"] for file in paths for match in _OF_USER.finditer(file)}
        names = {
            name
            for name in (*users, *hosts)
            if len(name) >= _SHORTEST_NAME and name.lower() not in _NOBODY
        }
        words = "|".join(map(re.escape, sorted(names)))
        self._names = re.compile(rf"(?<![A-Za-z0-9])(?:{words})(?![A-Za-z0-9])")
        self._named = bool(names)

    @staticmethod
    def shortens(file: str | None) -> bool:
        """Return whether a path identifies a machine or a user."""
        return bool(file and _ABSOLUTE.match(file))

    def short(self, file: str) -> str:
        """Return a path without the folders that are private."""
        if not _ABSOLUTE.match(file):
            return file
        path = _slashed(file)
        if match := _INDUCTOR.match(path):
            return "/tmp/torchinductor/" + path[match.end() :]  # noqa: S108 - a name
        if match := _LIBRARY.match(path) or _WRITTEN.match(path):
            return path[match.end() :]
        if self._root and path.startswith(f"{self._root}/"):
            return _unlike_a_library(path[len(self._root) + 1 :])
        return path.rpartition("/")[2]

    def frame(self, name: str) -> str:
        """Return the name of a Python call, ``file(line): function``."""
        match = _FRAME.match(name)
        return self.short(match["file"]) + match["rest"] if match else self.text(name)

    def text(self, text: str) -> str:
        """Return a sentence without private paths, and without names of their owner."""
        text = _IN_TEXT.sub(lambda match: self.short(match[0]), text)
        return self._names.sub("user", text) if self._named else text


def _unlike_a_library(path: str) -> str:
    """Return the user's own path less folders that would make it a library's.

    >>> _unlike_a_library("sglang/python/sglang/srt/run.py")
    'python/sglang/srt/run.py'
    """
    first, slash, rest = path.partition("/")
    return _unlike_a_library(rest) if slash and first in LIBRARIES else path


def _slashed(path: str) -> str:
    return path.replace("\\", "/")


def _of_library(path: str) -> bool:
    return any(pattern.match(path) for pattern in (_LIBRARY, _INDUCTOR, _WRITTEN))


def _common(folders: list[str]) -> str:
    """Return the folder that all are in, unless it is everybody's."""
    if not folders:
        return ""
    parts = [folder.split("/") for folder in folders]
    shared: list[str] = []
    for level in zip(*parts):  # noqa: B905 - as deep as the shallowest
        if len(set(level)) > 1:
            break
        shared.append(level[0])
    root = "/".join(shared)
    return "" if root in _SHARED else root
