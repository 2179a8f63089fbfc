"""Source files of the project: read byte for byte, and only inside its root."""

from __future__ import annotations

import io
import tokenize
from typing import TYPE_CHECKING

from msgspec import Struct

from traceq.fix.edit import RefusedError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

LARGEST = 2_000_000
"""Bytes of a file; longer ones are no one's own program."""
_BOM = b"\xef\xbb\xbf"


class Source(Struct, frozen=True):
    """A source file as it is on the disk."""

    file: str
    """Path from the root."""
    path: Path
    """The file itself, behind links."""
    text: str
    """Its characters, with the line ends that it has."""
    encoding: str

    def encoded(self, text: str) -> bytes:
        """Return a changed text in the file's encoding."""
        return text.encode(self.encoding)


def read_source(root: Path, file: str) -> Source:
    """Read a file of the project.

    Raises:
        RefusedError: It is outside of the root, or no text that can be written back.

    """
    path = root / file
    try:
        place = path.resolve(strict=True)
        if not place.is_relative_to(root.resolve()):
            msg = f"{file} is outside of {root}, which an edit never leaves"
            raise RefusedError(msg)
        if not place.is_file() or place.stat().st_size > LARGEST:
            msg = f"{file} is no source file of at most {LARGEST // 1_000_000} MB"
            raise RefusedError(msg)
        content = place.read_bytes()
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        msg = f"{file} cannot be read: {reason}"
        raise RefusedError(msg) from None
    text, encoding = _decoded(file, content)
    return Source(file, place, text, encoding)


def _decoded(file: str, content: bytes) -> tuple[str, str]:
    """Return the text of a file and its encoding, if these bytes are that text."""
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
        text = content.decode(encoding)
        same = text.encode(encoding) == content
    except (SyntaxError, ValueError, LookupError):
        same, text, encoding = False, "", ""
    if not same:
        msg = f"{file} is not text in the encoding that it declares"
        raise RefusedError(msg)
    return text, encoding


def same_as_recorded(source: Source, copies: Mapping[str, str], name: str) -> bool:
    """Return whether a file has the text of the copy that the run folder has.

    Line ends are not compared: a checkout may have other ones.
    """
    copy = copies.get(name)
    return copy is None or _lines(copy) == _lines(source.text)


def _lines(text: str) -> list[str]:
    return text.removeprefix("\ufeff").splitlines()
