"""Expected findings of a fixture as data, without measured values."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any, TypeVar

import orjson

from traceq.errors import InputError
from traceq.model.finding import LED, Evidence, Place

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from traceq.model.finding import Finding

VERSION = 2
_LARGEST = 16 << 20
# Declared types of the fields of an entry, and their types in JSON.
_NUMBER = (int, float)
_TYPES: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "LineIs": (str,),
    "Unit": (str,),
    "None": (type(None),),
    "int": _NUMBER,
    "float": _NUMBER,
}

Entry = TypeVar("Entry", "Expected", Evidence, Place)
# Times, and shares of times, differ with the machine and with the replay.
_MEASURED = ("ns", "share")


@dataclass(frozen=True)
class Expected:
    """A finding by what stays the same as long as the trace and the rules do."""

    code: str
    name: str
    fingerprint: str
    place: Place
    subject: str
    count: int
    cost_bytes: int
    evidence: tuple[Evidence, ...]
    """Without times, shares and notes."""
    message: str = field(compare=False)
    """For people: it is not compared."""

    @property
    def saves_ns(self) -> None:
        """None: the savings of a fix are measured, so they are not compared."""
        return

    @property
    def order(self) -> tuple[object, ...]:
        """Return a key by which findings are always in the same order."""
        place = self.place
        file, line, module = place.file or "", place.line or 0, place.module or ""
        return (self.code, file, line, module, self.subject, self.message)


def expected(findings: Iterable[Finding]) -> tuple[Expected, ...]:
    """Return findings as what to expect of the next run, in a lasting order."""
    entries = [
        Expected(
            code=finding.code,
            name=finding.name,
            fingerprint=finding.fingerprint,
            place=finding.place,
            subject=finding.subject,
            count=finding.count,
            cost_bytes=finding.cost_bytes,
            # Which finding leads depends on what the others save.
            evidence=tuple(
                unmeasured(evidence)
                for evidence in finding.evidence
                if evidence.label != LED
            ),
            message=finding.message,
        )
        for finding in findings
    ]
    return tuple(sorted(entries, key=lambda entry: entry.order))


def unmeasured(entry: Evidence) -> Evidence:
    """Return a line of evidence without times, shares and notes on them.

    >>> unmeasured(Evidence("waits", "item()", 1500, "ns", 2, "each"))
    Evidence(label='waits', name='item()', value=None, unit='', count=2, note='')
    """
    if entry.unit in _MEASURED:
        return Evidence(entry.label, entry.name, count=entry.count)
    return Evidence(entry.label, entry.name, entry.value, entry.unit, entry.count)


def write_expected(findings: Iterable[Expected]) -> bytes:
    """Return the content of a findings.json."""
    entries = [
        asdict(finding) | {"evidence": [_written(entry) for entry in finding.evidence]}
        for finding in findings
    ]
    content = {"version": VERSION, "findings": entries}
    return orjson.dumps(content, option=orjson.OPT_INDENT_2) + b"\n"


def _written(entry: Evidence) -> dict[str, Any]:
    """Return a line of evidence as plain data."""
    return {
        key: value for key, value in asdict(entry).items() if value not in ("", None)
    }


def read_expected(file: Path) -> tuple[Expected, ...]:
    """Return the expected findings in a findings.json."""
    try:
        content: Any = orjson.loads(file.read_bytes()[:_LARGEST])
        version = content["version"]
        entries = content["findings"] if version == VERSION else ()
        expectations = [_read(entry) for entry in entries]
    except OSError as error:
        msg = f"{file} cannot be read: {error.strerror or error}"
        raise InputError(msg) from None
    except (ValueError, LookupError, TypeError):
        msg = f"{file} is not a list of findings: write it with traceq check --update"
        raise InputError(msg) from None
    if version != VERSION:
        msg = (
            f"{file} is of version {version}, not {VERSION}: write it again with"
            " traceq check --update, and read what changed"
        )
        raise InputError(msg)
    return tuple(sorted(expectations, key=lambda expectation: expectation.order))


def _read(entry: Any) -> Expected:  # noqa: ANN401 - JSON
    evidence = tuple(_typed(Evidence(**line)) for line in entry["evidence"])
    parsed = {"place": _typed(Place(**entry["place"])), "evidence": evidence}
    return _typed(Expected(**(entry | parsed)))


def _typed(entry: Entry) -> Entry:
    """Return an entry whose texts are texts and whose numbers are numbers."""
    for item in fields(entry):
        kinds = [_TYPES[name] for name in str(item.type).split(" | ") if name in _TYPES]
        if kinds and not any(isinstance(getattr(entry, item.name), it) for it in kinds):
            raise TypeError
    return entry
