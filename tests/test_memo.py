"""Answers about a trace that are kept as long as it is."""

from __future__ import annotations

import gc
import weakref

from traceq.analysis.base.cached import cached_per_trace


class Asked:
    """Stands for a trace: something that can be let go."""


def test_a_question_is_answered_once_for_the_same_arguments() -> None:
    asked = []

    @cached_per_trace
    def question(trace: Asked, least: int) -> int:
        asked.append(trace)
        return least + 1

    trace = Asked()

    assert [question(trace, 1), question(trace, 1), question(trace, 2)] == [2, 2, 3]
    assert len(asked) == 2


def test_another_trace_has_answers_of_its_own() -> None:
    @cached_per_trace
    def question(trace: Asked) -> int:
        return id(trace)

    first, second = Asked(), Asked()

    assert (question(first), question(second)) == (id(first), id(second))


def test_answers_do_not_keep_a_trace_alive() -> None:
    @cached_per_trace
    def question(trace: Asked) -> list[str]:
        return [str(id(trace))]

    trace = Asked()
    question(trace)
    gone = weakref.ref(trace)
    del trace
    gc.collect()

    assert gone() is None
