"""Answers about a trace that are kept as long as it is."""

from __future__ import annotations

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

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
    removed = weakref.ref(trace)
    del trace
    gc.collect()

    assert removed() is None


def test_the_same_value_for_another_argument_is_another_question() -> None:
    @cached_per_trace
    def question(_: Asked, least: int = 0, most: int = 9) -> tuple[int, int]:
        return least, most

    trace = Asked()

    assert question(trace, least=1) == (1, 9)
    assert question(trace, most=1) == (0, 1)


def test_a_number_is_not_the_object_that_has_it_as_its_id() -> None:
    @cached_per_trace
    def question(_: Asked, other: object) -> str:
        return type(other).__name__

    trace, other = Asked(), Asked()

    assert question(trace, other) == "Asked"
    assert question(trace, id(other)) == "int"


def test_values_of_two_types_that_are_equal_are_two_questions() -> None:
    @cached_per_trace
    def question(_: Asked, value: float) -> str:
        return repr(value)

    trace = Asked()

    assert [question(trace, value) for value in (1, 1.0, True)] == ["1", "1.0", "True"]


def test_it_does_not_matter_how_an_argument_is_given() -> None:
    asked = []

    @cached_per_trace
    def question(trace: Asked, least: int = 1) -> None:
        asked.append((trace, least))

    trace = Asked()
    question(trace)
    question(trace, 1)
    question(trace=trace, least=1)

    assert len(asked) == 1


def test_who_asks_while_another_thread_works_it_out_gets_its_answer() -> None:
    asked = []
    asking = Barrier(2, timeout=10)

    @cached_per_trace
    def question(trace: Asked) -> object:
        asked.append(trace)
        # Whoever comes second has asked by now, or will find the answer.
        asking.wait()
        return object()

    trace = Asked()

    def second() -> object:
        asking.wait()
        return question(trace)

    with ThreadPoolExecutor(2) as pool:
        answers = [pool.submit(question, trace), pool.submit(second)]

    assert answers[0].result() is answers[1].result()
    assert len(asked) == 1


def test_a_question_that_failed_is_asked_again() -> None:
    answers = iter([0, 1])

    @cached_per_trace
    def question(_: Asked) -> float:
        return 1 / next(answers)

    trace = Asked()

    with pytest.raises(ZeroDivisionError):
        question(trace)
    assert question(trace) == 1.0
