"""Display paths, which differ from the paths that are opened."""

from __future__ import annotations

import os
import re
from pathlib import Path, PosixPath, WindowsPath
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Callable

    _Base = Path
else:
    _Base = WindowsPath if os.name == "nt" else PosixPath

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")


class DisplayPath(_Base):
    """A local file with the name that the user knows it by.

    What was read from standard input, out of an archive or from another machine lies
    in a file of traceq's own; errors and reports speak of what was given.
    """

    display_name: str

    @classmethod
    def of(cls, path: Path, name: str) -> DisplayPath:
        """Return a path that is shown by a name."""
        copy = cls(path)
        copy.display_name = name
        return copy

    def __str__(self) -> str:
        return getattr(self, "display_name", "") or super().__str__()

    def __fspath__(self) -> str:
        return super().__str__()

    def __reduce__(self) -> tuple[Callable[..., Path], tuple[object, ...]]:
        # To another process it goes with its name.
        name = getattr(self, "display_name", "")
        return (DisplayPath.of, (Path(os.fspath(self)), name))


class Url(DisplayPath):
    """Path to a file on another machine, as the user typed it."""

    url: str

    @classmethod
    def at(cls, url: str) -> Url:
        """Return the path that stands for a URL, shown without anything secret."""
        name = without_secrets(url)
        last = name.rstrip("/").rsplit("/", 1)[-1]
        # Nothing can be there, whatever the working directory.
        path = cls(os.devnull, last)
        path.display_name, path.url = name, url
        return path

    def __reduce__(self) -> tuple[Callable[..., Path], tuple[object, ...]]:
        return (Url.at, (self.url,))


def parse_path(text: str | os.PathLike[str]) -> Path:
    """Return the path for what a user typed; a URL keeps all of its slashes."""
    if isinstance(text, Path):
        return text
    name = os.fspath(text)
    scheme = _URL.match(name)
    if scheme and scheme[1].lower() == "file":
        return Path(name[scheme.end() :])
    return Url.at(name) if scheme else Path(name)


def without_secrets(url: str) -> str:
    """Return a URL without user, password, query and fragment, which may be secret.

    >>> without_secrets("https://me:pw@host:1/a/b.json?sig=abc#x")
    'https://host:1/a/b.json'
    """
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
