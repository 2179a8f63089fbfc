"""The lines of what a function does, from its source and what the trace shows of it."""

from __future__ import annotations

from textwrap import dedent

import pytest

from traceq.graph.source.control_flow import CALL, graph_of, read_program
from traceq.graph.source.follow import Event, Follower


def events(text: str) -> list[Event]:
    """Return events: ``mul`` is an op, ``relu()`` a call, ``relu():3`` at a line."""
    result = []
    for word in text.split():
        name, is_call, line = word.partition("()")
        kind = CALL if is_call else "op"
        result.append(Event(kind, name, int(line[1:]) if line else None))
    return result


def lines(source: str, *ways: str, begun: bool = False) -> list[int | None]:
    """Return the lines of the first way, of a function that went all of these."""
    program = read_program(dedent(source).strip())
    function = program.find("f", 1)
    assert function
    went = [events(way) for way in ways]
    return Follower(graph_of(function), went).lines(went[0], begun=begun)


STRAIGHT = """
    def f(x, n):
        y = x * n
        y = y.relu()
        return y * n
"""


def test_an_operator_is_between_the_calls_around_it() -> None:
    assert lines(STRAIGHT, "mul relu():3 mul") == [2, 3, 4]


def test_without_lines_of_calls_their_names_tell() -> None:
    assert lines(STRAIGHT, "mul relu() mul") == [2, 3, 4]


def test_an_operator_may_be_one_between_numbers() -> None:
    """One of two, and nothing tells which."""
    source = """
        def f(x, n):
            a = n * 2
            return x * a
    """
    assert lines(source, "mul") == [None]
    assert lines(source, "mul mul") == [2, 3]


def test_a_call_that_was_seen_once_is_not_passed_over() -> None:
    loop = """
        def f(x):
            for one in x:
                a = one * 2
                b = torch.relu(a)
                c = b * 2
    """
    assert lines(loop, "mul relu():4 mul mul relu():4 mul") == [3, 4, 5, 3, 4, 5]


def test_a_condition_leaves_what_it_may_skip() -> None:
    source = """
        def f(x, long):
            if long:
                x = x * 2
            else:
                x = x * 3
            return x.sum()
    """
    assert lines(source, "mul sum():6") == [None, 6]


def test_in_place_is_another_operator() -> None:
    source = """
        def f(x):
            y = x + 1
            x += 1
    """
    assert lines(source, "add_") == [3]
    assert lines(source, "add add_") == [2, 3]


def test_an_index_may_be_several_ops_of_one_line() -> None:
    source = """
        def f(x):
            y = x[:, None, 1]
            return torch.relu(y)
    """
    assert lines(source, "slice unsqueeze select relu():3") == [2, 2, 2, 3]


@pytest.mark.parametrize(
    ("before", "way", "expected"),
    [
        # A dict's value, and the size of a dimension, are no ops of a tensor.
        ('x = batch["image"]', "slice select", [3, 3]),
        ("n = x.shape[0]", "slice select", [3, 3]),
        ("n = x.size()[0]", "slice select", [3, 3]),
        # A constant picks no values, a slice no row.
        ("x = x[0]", "select slice select", [2, 3, 3]),
        ("x = x[0, 1:, None]", "select slice unsqueeze select", [2, 2, 2, 3]),
        ("x = x[:, None]", "unsqueeze select", [2, 3]),
        ("x[0] = 1.0", "select fill_ index", [2, 2, 3]),
        ("x[:, 1:] = y", "slice copy_ index", [2, 2, 3]),
        # The ends of a slice may be tensors, whose values are asked for.
        ("x = x[:n]", "item slice select", [2, None, 3]),
        # What a name picks may be anything.
        ("x = x[n]", "select select select", [2, 2, None]),
    ],
)
def test_a_subscript_is_told_by_what_it_may_pick(
    before: str, way: str, expected: list[int | None]
) -> None:
    after = "x[mask]" if "index" in way else "x[:, 0]"
    source = f"""
        def f(x, y, n, batch):
            {before}
            return {after}
    """
    assert lines(source, way) == expected


def test_what_autocast_casts_is_at_the_operator_that_follows() -> None:
    source = """
        def f(x, w):
            y = x.sum()
            return x @ w
    """
    assert lines(source, "sum():2 to to matmul") == [2, 3, 3, 3]


def test_a_value_is_asked_for_by_a_condition_or_a_number() -> None:
    source = """
        def f(x):
            if x.any():
                return float(x)
    """
    assert lines(source, "any():2 is_nonzero item") == [2, 2, 3]


@pytest.mark.parametrize(
    ("test", "line"),
    [
        ("y is not None", 2),
        ("not isinstance(y, tuple)", 2),
        ("y is None or not hasattr(y, 'x')", 2),
        # It may be a tensor's.
        ("y", None),
    ],
)
def test_a_condition_that_is_no_tensor_asks_for_no_value(
    test: str, line: int | None
) -> None:
    source = f"""
        def f(x, y):
            z = 1 if x > 0 else 2
            if {test}:
                z = 3
            return z
    """
    assert lines(source, "gt is_nonzero") == [2, line]


def test_what_cannot_have_been_so_has_no_line() -> None:
    assert lines(STRAIGHT, "relu():3 matmul mul") == [3, None, 4]
    assert lines(STRAIGHT, "mul mul mul") == [None, None, None]


def test_a_function_that_began_before_the_trace_may_be_anywhere() -> None:
    assert lines(STRAIGHT, "mul", begun=True) == [None]
    assert lines(STRAIGHT, "relu():3 mul", begun=True) == [3, 4]


def test_an_expression_of_several_lines_is_where_python_is() -> None:
    source = """
        def f(x):
            return (x.float()
                + x.half())
    """
    assert lines(source, "float():2 half():3 add") == [2, 3, 2]


@pytest.mark.parametrize(
    "source",
    ["def f(:", "def f():\n    x\x00", "(" * 5000 + ")" * 5000],
    ids=["syntax", "null", "deep"],
)
def test_a_source_that_cannot_be_parsed_has_no_functions(source: str) -> None:
    assert read_program(source).functions == []


def test_a_function_is_found_where_its_decorators_begin() -> None:
    program = read_program("@torch.no_grad()\n@other\ndef f():\n    pass\n")
    function = program.find("f", 1)

    assert function
    assert function.ends == 4
    assert program.find("f", 3) is None
