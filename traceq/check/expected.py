"""What is expected to be found, less what differs from run to run."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

import orjson

from traceq.errors import InputError
from traceq.finding import Place

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from traceq.finding import Finding

VERSION = 1
_LARGEST = 16 << 20
# What is measured, and what follows from it, says nothing on whether it was found.
_MEASURED = re.compile(r"(?:<|about )?\d[\d,.]*\s?(?:ns|µs|ms|s|%)(?![A-Za-z])")


@dataclass(frozen=True)
class Expected:
    """A finding by what stays the same as long as the trace and the rules do."""

    code: str
    name: str
    fingerprint: str
    file: str | None
    line: int | None
    function: str | None
    module: str | None
    subject: str
    count: int
    message: str
    """Without times and shares."""

    @property
    def place(self) -> Place:
        """Where it is in the user's program."""
        return Place(self.file, self.line, self.function, self.module)

    @property
    def order(self) -> tuple[str, str, int, str, str, str]:
        """Return a key by which findings are always in the same order."""
        file, line, module = self.file or "", self.line or 0, self.module or ""
        return (self.code, file, line, module, self.subject, self.message)


def expected(findings: Iterable[Finding]) -> tuple[Expected, ...]:
    """Return findings as what to expect of the next run, in a lasting order."""
    found = [
        Expected(
            code=one.code,
            name=one.name,
            fingerprint=one.fingerprint,
            file=one.place.file,
            line=one.place.line,
            function=one.place.function,
            module=one.place.module,
            subject=one.subject,
            count=one.count,
            message=unmeasured(one.message),
        )
        for one in findings
    ]
    return tuple(sorted(found, key=lambda one: one.order))


def unmeasured(message: str) -> str:
    """Return a sentence without times and shares.

    >>> unmeasured("the GPU waits 1.3 ms, 12% of the time, for 154 kernels")
    'the GPU waits …, … of the time, for 154 kernels'
    """
    return _MEASURED.sub("…", message)


def write_expected(findings: Iterable[Expected]) -> bytes:
    """Return the content of a findings.json."""
    content = {"version": VERSION, "findings": [asdict(one) for one in findings]}
    return orjson.dumps(content, option=orjson.OPT_INDENT_2) + b"\n"


def read_expected(file: Path) -> tuple[Expected, ...]:
    """Return what a findings.json expects."""
    try:
        content: Any = orjson.loads(file.read_bytes()[:_LARGEST])
        version, entries = content["version"], content["findings"]
        names = [item.name for item in fields(Expected)]
        found = [Expected(**{name: entry[name] for name in names}) for entry in entries]
    except OSError as error:
        msg = f"{file} cannot be read: {error.strerror or error}"
        raise InputError(msg) from None
    except (ValueError, LookupError, TypeError):
        msg = f"{file} is no list of expected findings: write it with check --update"
        raise InputError(msg) from None
    if version != VERSION:
        msg = f"{file} is of version {version}, not {VERSION}: update traceq"
        raise InputError(msg)
    return tuple(sorted(found, key=lambda one: one.order))
