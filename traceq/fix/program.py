"""The program that a recording is of: its files, as they are and as they were."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceq.fix.edit import RefusedError
from traceq.fix.source import read_source, same_as_recorded
from traceq.fix.syntax import Code

if TYPE_CHECKING:
    from collections.abc import Mapping

    import libcst as cst

    from traceq.common.git_repository import Repository
    from traceq.model.finding import Finding, Place

_NO_FILE = "the recording does not say in which file it is"


class Program:
    """Source files of one recording, parsed when an edit asks for them."""

    def __init__(
        self,
        repository: Repository,
        copies: Mapping[str, str],
        torch: str = "",
        entry: Place | None = None,
    ) -> None:
        self.repository, self.copies, self.torch = repository, copies, torch
        self.entry = entry
        self._codes: dict[str, Code] = {}

    def code(self, finding: Finding) -> Code:
        """Return the file of a finding, if it is as it was recorded.

        Raises:
            RefusedError: The finding has no file, or the file has changed.

        """
        place = finding.place
        if not place.file:
            raise RefusedError(_NO_FILE)
        if not place.path:
            msg = (
                f"{place.file} is not in {self.repository.root}; --root DIR says where"
            )
            raise RefusedError(msg)
        code = self._read(place.path, place.file)
        if place.file not in self.copies and finding.frame is None:
            msg = (
                f"{place.path} has no function {place.function} at line"
                f" {place.begins or place.line} any more: record it again"
            )
            raise RefusedError(msg)
        return code

    def codes(self, finding: Finding) -> list[Code]:
        """Return all files of the program that are known, that of the finding first.

        A file that is not in the repository, or has changed, cannot be edited; it may
        hold what an edit looks for, so that it raises ``RefusedError``. So it does
        where no file is known.
        """
        first = [self.code(finding)] if finding.place.file else []
        others = []
        for name in self.copies:
            path = self.repository.find(name)
            if path is not None and all(code.file != path for code in first):
                others.append(self._read(path, name))
        if not first and not others:
            raise RefusedError(_NO_FILE)
        return first + others

    def entry_code(self) -> Code | None:
        """Return the file in which the program starts, if it is known."""
        entry = self.entry
        if entry is None or not entry.file or not entry.path:
            return None
        return self._read(entry.path, entry.file)

    def _read(self, path: str, name: str) -> Code:
        if path not in self._codes:
            source = read_source(self.repository.root, path)
            if not same_as_recorded(source, self.copies, name):
                msg = f"{path} has changed since it was recorded: record it again"
                raise RefusedError(msg)
            self._codes[path] = Code(source)
        return self._codes[path]

    def text(self, file: str) -> str:
        """Return the text of a file that an edit has read."""
        return self._codes[file].text

    def encoded(self, file: str, text: str) -> bytes:
        """Return a changed text of a file in its encoding."""
        return self._codes[file].source.encoded(text)


def only(
    calls: list[tuple[Code, cst.Call]], what: str, where: str
) -> tuple[Code, cst.Call]:
    """Return the one call that there is; raise ``RefusedError`` if there are others."""
    if len(calls) == 1:
        return calls[0]
    if not calls:
        msg = f"{where} has no {what} that can be edited"
        raise RefusedError(msg)
    places = ", ".join(f"{code.file}:{code.lines(call)[0]}" for code, call in calls[:3])
    msg = f"{what} stands at several lines ({places}): the recording does not say which"
    raise RefusedError(msg)
