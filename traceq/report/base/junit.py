"""Results as JUnit XML, which CI systems show as tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal
from xml.sax.saxutils import escape, quoteattr

from msgspec import Struct

from traceq.common.safe_text import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

Ending = Literal["passed", "failure", "error", "skipped"]


class Case(Struct, frozen=True):
    """One test: what was looked at, and how that ended."""

    name: str
    group: str
    """The file or fixture that it belongs to."""
    ending: Ending = "passed"
    message: str = ""
    details: str = ""
    file: str | None = None
    line: int | None = None


def document(suites: Sequence[tuple[str, Sequence[Case]]]) -> str:
    """Return one document with a suite for each name."""
    lines = ['<?xml version="1.0" encoding="utf-8"?>', '<testsuites name="traceq">']
    for name, cases in suites:
        counts = {
            f"{kind}s" if kind != "skipped" else kind: sum(
                case.ending == kind for case in cases
            )
            for kind in ("failure", "error", "skipped")
        }
        attributes = {"name": name, "tests": len(cases), **counts}
        lines.append(f"  <testsuite {_attributes(attributes)}>")
        lines += [line for case in cases for line in _case(case)]
        lines.append("  </testsuite>")
    return "\n".join([*lines, "</testsuites>"]) + "\n"


def _case(case: Case) -> list[str]:
    attributes: dict[str, object] = {"name": case.name, "classname": case.group}
    if case.file:
        attributes |= {"file": case.file, "line": case.line}
    head = f"    <testcase {_attributes(attributes)}"
    if case.ending == "passed":
        if not case.message:
            return [f"{head}/>"]
        output = f"      <system-out>{_text(case.message)}</system-out>"
        return [f"{head}>", output, "    </testcase>"]
    element = f"      <{case.ending} {_attributes({'message': case.message})}"
    inside = (
        f"{element}>{_text(case.details)}</{case.ending}>"
        if case.details
        else f"{element}/>"
    )
    return [f"{head}>", inside, "    </testcase>"]


def _attributes(values: dict[str, object]) -> str:
    return " ".join(
        f"{key}={quoteattr(printable(str(value)))}"
        for key, value in values.items()
        if value is not None
    )


def _text(text: str) -> str:
    return escape("\n".join(map(printable, text.splitlines())))
