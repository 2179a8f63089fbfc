"""Memoization of functions of a trace, for the lifetime of the trace."""

from __future__ import annotations

import weakref
from functools import cache, partial, wraps
from inspect import signature
from threading import Lock, RLock
from typing import TYPE_CHECKING, Generic, ParamSpec, TypeVar

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
    answers: dict[int, dict[tuple[object, ...], _Answer[Result]]] = {}
    # Only of those that are asked, and not with all arguments: it takes long.
    parameters = cache(partial(signature, question))
    count = len(question.__annotations__) - 1  # and what it returns
    lock = Lock()

    @wraps(question)
    def answer(*given: Arguments.args, **named: Arguments.kwargs) -> Result:
        if named or len(given) < count:
            call = parameters().bind(*given, **named)
            call.apply_defaults()
            trace, *others = call.arguments.values()
        else:
            trace, *others = given
        # By position: the parameters are in one order, however they were given.
        key = tuple(map(_identity, others))
        with lock:
            if id(trace) not in answers:
                answers[id(trace)] = {}
                weakref.finalize(trace, answers.pop, id(trace), None)
            known = answers[id(trace)]
            if key not in known:
                known[key] = _Answer(others)
            found = known[key]
        return found.get(partial(question, *given, **named))

    return answer


class _Answer(Generic[Result]):
    """The answer to a question, worked out by whoever asks first.

    Rules run at once: a second thread that asks waits for the first. No question asks
    itself again, however indirectly, so that no two threads wait for each other.
    """

    def __init__(self, others: list[object]) -> None:
        # The arguments are kept with it, so that no other object gets their id.
        self._others = others
        self._lock = RLock()
        self._found: list[Result] = []

    def get(self, work_out: Callable[[], Result]) -> Result:
        """Return the answer; where working it out fails, the next one tries again."""
        if not self._found:
            with self._lock:
                if not self._found:
                    self._found.append(work_out())
        return self._found[0]


def _identity(value: object) -> tuple[type, object]:
    """Return what only the same argument has; 1, 1.0 and True are not the same."""
    return type(value), value if isinstance(value, _SIMPLE) else id(value)
