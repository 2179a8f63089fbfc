"""What several analyses ask of a trace is computed once for it."""

from __future__ import annotations

import weakref
from functools import wraps
from inspect import signature
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

    The trace, or a table of it, is its first argument. Numbers and texts among the
    others are compared by value, everything else by identity.
    """
    answers: dict[int, dict[tuple[object, ...], tuple[Any, Result]]] = {}
    parameters = signature(question)

    @wraps(question)
    def answer(*given: Arguments.args, **named: Arguments.kwargs) -> Result:
        if named or len(given) < len(parameters.parameters):
            call = parameters.bind(*given, **named)
            call.apply_defaults()
            trace, *others = call.arguments.values()
        else:
            trace, *others = given
        if id(trace) not in answers:
            answers[id(trace)] = {}
            weakref.finalize(trace, answers.pop, id(trace), None)
        known = answers[id(trace)]
        # By position: the parameters are in one order, however they were given.
        key = tuple(map(_identity, others))
        if key not in known:
            # The arguments are kept with it, so that no other object gets their id.
            known[key] = (others, question(*given, **named))
        return known[key][1]

    return answer


def _identity(value: object) -> tuple[type, object]:
    """Return what only the same argument has; 1, 1.0 and True are not the same."""
    return type(value), value if isinstance(value, _SIMPLE) else id(value)
