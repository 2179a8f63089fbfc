"""What several questions about a trace need is computed once for it."""

from __future__ import annotations

import weakref
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

_SIMPLE = (bool, int, float, str, type(None))


def cached_per_trace(
    question: Callable[Arguments, Result],
) -> Callable[Arguments, Result]:
    """Return the question with its answers kept as long as their trace is.

    The trace, or a table of it, is its first argument. Others that are no numbers or
    texts count as the same if they are one object.
    """
    answers: dict[int, dict[tuple[object, ...], tuple[Any, Result]]] = {}

    @wraps(question)
    def answer(*given: Arguments.args, **named: Arguments.kwargs) -> Result:
        trace, *others = [*list(given), *named.values()]
        if id(trace) not in answers:
            answers[id(trace)] = {}
            weakref.finalize(trace, answers.pop, id(trace), None)
        known = answers[id(trace)]
        key = tuple(one if isinstance(one, _SIMPLE) else id(one) for one in others)
        if key not in known:
            # The arguments are kept with it, so that no other object gets their id.
            known[key] = (others, question(*given, **named))
        return known[key][1]

    return answer
