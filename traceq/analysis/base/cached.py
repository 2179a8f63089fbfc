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
    """Memoize a function of a trace for the lifetime of the trace.

    The trace, or a table of it, is the first argument. Numbers and strings among the
    others are compared by value, everything else by identity.
    """
    answers: dict[int, dict[tuple[object, ...], _Answer[Result]]] = {}
    # Computed on demand, if arguments are missing or named: it takes long.
    parameters = cache(partial(signature, question))
    count = len(question.__annotations__) - 1  # without the return type
    lock = Lock()

    @wraps(question)
    def answer(*arguments: Arguments.args, **named: Arguments.kwargs) -> Result:
        if named or len(arguments) < count:
            call = parameters().bind(*arguments, **named)
            call.apply_defaults()
            trace, *others = call.arguments.values()
        else:
            trace, *others = arguments
        # By position, also for arguments that are passed by name.
        key = tuple(map(_identity, others))
        with lock:
            if id(trace) not in answers:
                answers[id(trace)] = {}
                weakref.finalize(trace, answers.pop, id(trace), None)
            by_key = answers[id(trace)]
            if key not in by_key:
                by_key[key] = _Answer(others)
            entry = by_key[key]
        return entry.get(partial(question, *arguments, **named))

    return answer


class _Answer(Generic[Result]):
    """A memoized result, computed by the first caller.

    Rules run in parallel: a second thread waits for the first. No memoized function
    calls itself, even indirectly, so no two threads wait for each other.
    """

    def __init__(self, others: list[object]) -> None:
        # Hold the arguments, so that no other object gets their id.
        self._others = others
        self._lock = RLock()
        self._result: list[Result] = []

    def get(self, work_out: Callable[[], Result]) -> Result:
        """Return the result; if computing it fails, the next caller tries again."""
        if not self._result:
            with self._lock:
                if not self._result:
                    self._result.append(work_out())
        return self._result[0]


def _identity(value: object) -> tuple[type, object]:
    """Return the key of an argument; 1, 1.0 and True have different keys."""
    return type(value), value if isinstance(value, _SIMPLE) else id(value)
