"""Messages of the compiler, grouped by cause and by line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import PurePath
from typing import TYPE_CHECKING

from traceq.analysis.patterns import compile_reasons

from ._messages import frames_of, place_of

if TYPE_CHECKING:
    from typing import Any

    from traceq.linter import Place

    from ._messages import Hit


def by_cause(hits: list[Hit]) -> dict[tuple[Place, str], list[Hit]]:
    """Group recompilations by function and by what changes."""
    groups: dict[tuple[Place, str], list[Hit]] = {}
    for hit in hits:
        place = replace(place_of(hit.groups), line_is="function")
        cause = compile_reasons.guard_reason(hit.groups.get("reason", "?")).key
        groups.setdefault((place, cause), []).append(hit)
    return groups


def by_line(hits: list[Hit]) -> dict[Place, list[Hit]]:
    """Group graph breaks by the user's line: in its stack where a library breaks."""
    groups: dict[Place, list[Hit]] = {}
    for hit in hits:
        stack = frames_of(hit.whole)
        place = stack[-1] if stack else place_of(hit.groups)
        groups.setdefault(place, []).append(hit)
    return groups


def frames(group: list[Hit]) -> list[Any]:
    """Return the numbers of the compiled functions that messages are about."""
    return [*sorted({hit.frame for hit in group if hit.frame})]


def place_of_hit(used: Place | None) -> str:
    return f"({PurePath(used.file or '').name}:{used.line})" if used else ""
