"""Ops by name, and the Python code that runs around a moment."""

from __future__ import annotations

import polars as pl
import pytest
from msgspec import structs

from traceq.analysis.base.callers import innermost_calls
from traceq.analysis.base.ownership import (
    has_like,
    has_named,
    inside,
    named,
    named_like,
    outermost_ops,
)
from traceq.analysis.base.steady import in_steps, steady_steps
from traceq.testing import load_drawn

_DRAWN = """
    host   [ProfilerStep#1                                                  ]
    host    [model.py(3): forward                                          ]
    host     [aten::add.Tensor    ] [aten::mm           ] [aten::add_      ]
    host     [cudaLaunchKernel>1  ] [cudaLaunchKernel>2 ]
    gpu 7            [add<1       ]           [gemm<2     ]
"""
_STEPS = """
    host   [ProfilerStep#1 ][ProfilerStep#2 ][ProfilerStep#5 ]
    host    [aten::a      ]  [aten::b      ]  [aten::c      ]
"""
_MANY = [f"aten::op{number}" for number in range(20)]


def names(chosen: pl.Series, table: pl.DataFrame) -> list[str]:
    return table["name"].filter(chosen).cast(pl.String).to_list()


def test_an_op_is_found_in_any_overload_and_not_by_a_part_of_its_name() -> None:
    ops = load_drawn(_DRAWN).ops

    assert has_named(ops, ["aten::add"])
    assert names(named(ops, ["aten::add"]), ops) == ["aten::add.Tensor"]
    assert not has_named(ops, ["aten::ad", "add"])
    assert not named(ops, ["aten::ad", "add"]).any()


def test_many_names_are_looked_up_as_few_are_compared() -> None:
    ops = load_drawn(_DRAWN).ops

    few, many = named(ops, ["aten::mm"]), named(ops, ["aten::mm", *_MANY])

    assert few.to_list() == many.to_list()
    assert names(many, ops) == ["aten::mm"]


def test_a_pattern_is_of_whole_names_with_their_overloads() -> None:
    ops = load_drawn(_DRAWN).ops

    result = names(named_like(ops, r"^aten::add"), ops)

    assert result == ["aten::add.Tensor", "aten::add_"]
    assert not named_like(ops, "nothing").any()


@pytest.mark.parametrize(
    "pattern",
    [
        "aten::add",
        "^aten::add$",
        r"Tensor$|^aten::(bmm|mm)$",
        r"^aten::((b|badd)?mm|add)_?$",
        r"(\.Tensor)?$",
        "d(d|_)_",
        r"^aten::add\.(Tensor|Scalar)$|(?i)MM",
        r"^aten::\w+$",
        "",
    ],
)
def test_a_pattern_of_texts_is_not_compiled_and_finds_the_same(pattern: str) -> None:
    ops = load_drawn(_DRAWN).ops

    expected = ops["name"].cast(pl.String).str.contains(pattern)

    assert named_like(ops, pattern).to_list() == expected.to_list()
    assert has_like(ops, pattern) == expected.any()


def test_names_may_be_text() -> None:
    table = pl.DataFrame({"name": ["aten::mm", "aten::add", None]})

    assert named_like(table, "mm").to_list() == [True, False, False]


def test_a_name_that_is_not_known_matches_no_pattern() -> None:
    table = pl.DataFrame({"name": ["a", None]}, schema={"name": pl.Categorical})

    assert named_like(table, "").to_list() == [True, False]


def test_nothing_is_around_where_no_op_is_chosen() -> None:
    trace = load_drawn(_DRAWN)

    assert inside(trace, trace.ops["id"].clear()).null_count() == trace.ops.height
    assert outermost_ops(trace, ("aten::bmm",)).null_count() == trace.ops.height


def test_steps_with_another_one_in_between_are_looked_up() -> None:
    trace = load_drawn(_STEPS)
    between = trace.steps["step"] != 2
    chosen = structs.replace(steady_steps(trace), windows=trace.steps.filter(between))

    table = in_steps(trace.ops, trace, chosen)

    assert table["name"].cast(pl.String).to_list() == ["aten::a", "aten::c"]


def test_no_row_is_of_a_step_whose_number_is_missing() -> None:
    trace = load_drawn(_STEPS)
    table = pl.DataFrame({"step": [1, 2, 5, None]})

    assert in_steps(table, trace, steady_steps(trace))["step"].to_list() == [1, 2, 5]


def test_the_innermost_call_is_of_the_moments_thread() -> None:
    frames = pl.DataFrame(
        {
            "thread": [1, 1, 1, 2],
            "ts": [0, 10, 40, 0],
            "dur": [100, 20, 10, 100],
            "file": ["outer.py", "inner.py", "later.py", "other.py"],
            "line": [1, 2, 3, 4],
            "function": ["outer", "inner", "later", "other"],
        }
    )
    moments = pl.DataFrame({"thread": [1, 1, 2, 1], "ts": [15, 30, 15, 100]})

    result = innermost_calls(frames, moments)["inner_file"].to_list()

    assert result == ["inner.py", "outer.py", "other.py", None]
