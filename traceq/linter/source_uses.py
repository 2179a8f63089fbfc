"""Uses of values that the program reads on the host, from its source."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from traceq.linter.finding_lines import program_of

if TYPE_CHECKING:
    from traceq.graph.source.uses import Uses
    from traceq.model.trace import Trace

_Line = tuple[str | None, int | None, str | None, int | None]
_NOTHING: frozenset[str] = frozenset()


def value_uses(trace: Trace, at: _Line, method: str = "") -> frozenset[str]:
    """Return what is done with what a function reads on the host at one of its lines.

    The line is a file, where a function begins, its name, and the line in it that
    calls. The method is how the value is read, if that is known; `[]` is by an index.
    Nothing is returned without the source or the line, and ``unknown`` is among the
    uses if some could not be followed.
    """
    file, begins, function, line = at
    source = trace.rank.sources.get(file or "") if trace.rank else None
    if not source or line is None:
        return _NOTHING
    scope = program_of(source).find(function or "", begins)
    if scope is None:
        return _NOTHING
    uses = _uses_in(source)
    if method == "[]":
        return uses.of_index(scope.node, line)
    return uses.of_read(scope.node, line, method)


@lru_cache(maxsize=16)
def _uses_in(source: str) -> Uses:
    """Return the uses of values in a source, which is gone through once."""
    from traceq.graph.source.uses import Uses  # noqa: PLC0415 - few need it

    # The first one is of the file's own statements, with all of its functions.
    return Uses(program_of(source).functions[0].node)
