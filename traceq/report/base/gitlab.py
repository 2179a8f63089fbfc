"""Code-quality report of GitLab: a list of issues at lines of files."""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import TYPE_CHECKING

import orjson
from msgspec import Struct

from traceq.common.safe_text import as_unicode, plain_json, printable

if TYPE_CHECKING:
    from collections.abc import Iterable


class Issue(Struct, frozen=True):
    """One issue; ``level`` is info, minor, major, critical or blocker."""

    text: str
    check: str
    path: str
    line: int = 1
    level: str = "critical"
    same: str = ""
    """Fingerprint: the same in another run; by default the text and the path."""


def document(issues: Iterable[Issue]) -> str:
    """Return the report; no two issues in it have the same fingerprint."""
    seen: Counter[str] = Counter()
    entries = []
    for issue in issues:
        key = "\n".join((issue.check, issue.same or f"{issue.path}\n{issue.text}"))
        seen[key] += 1
        unique = f"{key}\n{seen[key]}".encode(errors="surrogateescape")
        entries.append(
            {
                "description": printable(issue.text),
                "check_name": issue.check,
                "fingerprint": hashlib.sha256(unique).hexdigest(),
                "severity": issue.level,
                "location": {
                    "path": as_unicode(issue.path),
                    "lines": {"begin": issue.line},
                },
            }
        )
    return plain_json(orjson.dumps(entries, option=orjson.OPT_INDENT_2).decode()) + "\n"
