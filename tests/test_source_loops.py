"""Lines of loops: from the source of a function, and what an iteration calls."""

from __future__ import annotations

from dataclasses import replace
from textwrap import dedent

import pytest

from traceq.linter.source_loops import at_loops, loop_lines
from traceq.model.finding import Place
from traceq.model.run import Rank
from traceq.testing import load_drawn

TWO_LOOPS = """
    def update(self):
        a = self.tau * self.p
        for p, t in zip(self.critic, self.targets):
            t.copy_(self.tau * p + (1 - self.tau) * t)
        for p, t in zip(self.actor, self.others):
            t.copy_(self.tau * p + (1 - self.tau) * t)
        for p in self.actor:
            p.grad = None
"""


def lines(source: str, *ops: str, least: int = 2, called: str = "") -> list[int]:
    """Return the lines of the loops that call these ops twice each."""
    drawn = "".join(f"[aten::{op}{called}]".ljust(60) for op in ops * 2)
    trace = load_drawn(f"""
        host  [net.py(1): update{" " * len(drawn)}]
        host   {drawn.rstrip()}
    """)
    text = dedent(source).strip()
    rank = Rank("rank-0", 0, "done", None, None, None, (), sources={"net.py": text})
    trace = replace(trace, rank=rank)
    return loop_lines(trace, Place("net.py", 1, "update"), trace.ops["id"], least)


@pytest.mark.parametrize(
    ("ops", "loops"),
    [
        (("mul", "add", "copy_"), [3, 5]),
        # What is written nowhere is of a layer, or of another function.
        (("mul", "add", "copy_", "linear"), [3, 5]),
        (("linear",), []),
        # One operator is written in many places.
        (("mul",), []),
        # No loop has this one.
        (("mul", "copy_", "div"), [3, 5]),
    ],
)
def test_loops_are_those_that_have_all_that_is_called(
    ops: tuple[str, ...], loops: list[int]
) -> None:
    assert lines(TWO_LOOPS, *ops) == loops


def test_a_single_loop_with_what_is_called_is_the_one() -> None:
    source = """
        def update(self, tags):
            new = tags.contiguous()
            for at in range(9):
                new[:, at] = tags[:, at - 1] * 8 + tags[:, at]
            return new
    """

    assert lines(source, "select", "mul", "add", "copy_") == [3]
    assert lines(source, "mul") == [3]
    # It is written, but in no loop.
    assert lines(source, "mul", "contiguous") == []


def test_what_is_called_once_may_come_after_the_loop() -> None:
    source = """
        def update(self, x):
            for at in range(9):
                x = x * at
            return x.exp()
    """

    assert lines(source, "mul", "exp") == []
    assert lines(source, *("mul",) * 3, "exp", least=4) == [2]


@pytest.mark.parametrize(("ops", "loop"), [(("mul",), 3), (("mul", "exp"), 2)])
def test_the_loop_is_the_innermost_that_has_all(
    ops: tuple[str, ...], loop: int
) -> None:
    source = """
        def update(self, x):
            for row in x:
                for at in row:
                    at *= 2
                row.exp()
    """

    assert lines(source, *ops) == [loop]


def test_a_comprehension_is_a_loop_and_one_of_another_function_is_none() -> None:
    source = """
        def update(self, x):
            def other():
                for at in x:
                    at * 2
            return [at * 2 for at in x]
    """

    assert lines(source, "mul") == [5]


def test_known_lines_name_the_loop_whatever_is_written() -> None:
    source = """
        def update(self, x):
            for at in x:
                at.mul(2)
            for at in x:
                at.mul(3)
    """

    assert lines(source, "mul", called=" by net.py(5): update") == [4]


def test_a_line_that_is_known_of_few_calls_is_not_that_of_all() -> None:
    source = """
        def update(self, x):
            for at in x:
                at * 2
            return x * 3
    """
    names = ("mul",) * 8

    assert lines(source, *names, "mul by net.py(4): update", least=3) == [2]


@pytest.mark.parametrize("other", ["", " by net.py(6): update"])
def test_of_two_loops_the_lines_of_one_may_be_known(other: str) -> None:
    names = ("mul", "add", "copy_")
    first = tuple(f"{name} by net.py(4): update" for name in names)
    second = tuple(f"{name}{other}" for name in names)

    assert lines(TWO_LOOPS, *first * 2, *second) == [3, 5]


def test_nothing_is_named_without_the_source_of_the_function() -> None:
    assert lines("def other(x):\n    for at in x:\n        at * 2", "mul") == []
    assert lines("def update(x) for", "mul") == []


def test_a_place_at_loops_is_at_the_first_and_counts_the_others() -> None:
    place = Place("net.py", 1, "update")

    assert at_loops(place, []) == place
    at = at_loops(place, [3, 5])
    assert (at.line, at.exact, at.begins, at.other_lines) == (3, True, 1, 1)


def test_a_loop_that_only_calls_other_functions_is_at_their_lines() -> None:
    source = """
        def update(self, xs):
            for _ in range(2):
                self.reset()
            for x in xs:
                h = self.cell(x)
            return h
    """
    calls = ["[net.py(9): cell by net.py(5): update  ]"] * 3
    trace = load_drawn(f"""
        host  [net.py(1): update{" " * 130}]
        host   {"".join(calls)}
        host    {"".join("[aten::mm]".ljust(len(calls[0])) for _ in calls)}
    """)
    rank = Rank("rank-0", 0, "done", None, None, None, ())
    text = dedent(source).strip()
    trace = replace(trace, rank=replace(rank, sources={"net.py": text}))
    place = Place("net.py", 1, "update")

    assert loop_lines(trace, place, trace.ops["id"], 2) == [4]
    assert loop_lines(trace, place, trace.ops["id"], 9) == []
