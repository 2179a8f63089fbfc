"""Reason for a failure before the first step, from the end of stderr."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

_TAIL = 1 << 16
_LONGEST = 200
# The line that ends a traceback; torchrun puts the rank before it.
_ERROR = re.compile(
    r"^(?:\[rank\d+\]: ?)?((?:\w+\.)*\w*(?:Error|Exception|Interrupt|Exit)\b: .+)$",
    re.MULTILINE,
)


def why_failed(ended: dict[str, Any], log: Path) -> str:
    """Return how a program ended that made no step; empty if it did not fail."""
    status, signal = ended["status"], ended["signal"]
    if not status or ended["stopped_by_traceq"]:
        return ""
    how = f"was ended by {signal}" if signal else f"ended with status {status}"
    error = "" if signal else last_error(log)
    return f"the program {how} before its first step{error and f': {error}'}"


def last_error(log: Path) -> str:
    """Return the last line of a log that names an error; empty if there is none."""
    errors = _ERROR.findall(tail(log))
    shown = "".join(char for char in errors[-1] if char.isprintable()) if errors else ""
    return shown if len(shown) <= _LONGEST else f"{shown[: _LONGEST - 1]}…"


def tail(log: Path) -> str:
    """Return the end of a log; empty if it cannot be read."""
    try:
        text = log.read_bytes()[-_TAIL:].decode(errors="replace")
    except OSError:
        return ""
    return text.replace("\r", "")
