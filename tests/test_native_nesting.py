"""Nesting by native code, against the same in Polars; and facts of both."""

from __future__ import annotations

import itertools
from contextlib import contextmanager
from typing import TYPE_CHECKING

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal, assert_series_equal

from traceq import native
from traceq.analysis.base.group_ids import counted
from traceq.analysis.time import call_paths, host_segments
from traceq.graph import nesting
from traceq.graph.nesting import INDEX
from traceq.native import _native

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.real

compiled = pytest.mark.skipif(not native.available(), reason="it was not built")
# Short times, so that many begin and end together, overlap or enclose each other.
SPANS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 12), st.integers(1, 8)), max_size=40
)
examples = settings(max_examples=200, deadline=None)


def rows_of(spans: list[tuple[int, int, int]]) -> pl.DataFrame:
    """Return spans of (thread, start, duration) in pre-order."""
    schema = {"thread": INDEX, "ts": pl.Int64(), "dur": pl.Int64()}
    rows = pl.DataFrame(spans, schema, orient="row")
    rows = rows.with_columns(end=pl.col("ts") + pl.col("dur"))
    return rows.sort("thread", "ts", -pl.col("end"), maintain_order=True)


@contextmanager
def without_compiled_code() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRACEQ_PURE", "1")
        yield


def in_polars(work: str, *columns: pl.Series) -> pl.Series:
    """Return what a function of ``nesting`` says without compiled code."""
    with without_compiled_code():
        column: pl.Series = getattr(nesting, work)(*columns)
        return column


def tree_of(spans: list[tuple[int, int, int]]) -> pl.DataFrame:
    """Return spans in pre-order, each with the one around it, if not nothing."""
    rows = rows_of(spans)
    parent = nesting.parents_or(rows["thread"], rows["end"], rows.height)
    return rows.with_columns(parent.alias("parent"))


def edges_of(edges: dict[int, bool]) -> pl.DataFrame:
    """Return moments in order, and whether it is inside a step from there on."""
    rows = sorted(edges.items())
    return pl.DataFrame(rows, {"time": pl.Int64, "inside": INDEX}, orient="row")


@compiled
@examples
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 12), st.integers(0, 8))))
def test_rows_are_in_the_order_of_the_reference(
    spans: list[tuple[int, int, int]],
) -> None:
    rows = pl.DataFrame(
        [(thread, ts, ts + dur, row) for row, (thread, ts, dur) in enumerate(spans)],
        {"thread": INDEX, "ts": pl.Int64, "end": pl.Int64, "row": INDEX},
        orient="row",
    )

    table = nesting.in_preorder(rows)

    with without_compiled_code():
        assert_frame_equal(table, nesting.in_preorder(rows))


@compiled
@pytest.mark.parametrize("period", [1, 7, 40, 1_000])
def test_rows_of_several_runs_are_in_the_order_of_the_reference(period: int) -> None:
    """Runs up and down, long and short, of one thread and of several."""
    at = pl.int_range(3_000, eager=True)
    start = (at % period) * pl.Series([1, -1, 1])[at * 3 // 3_000]
    rows = pl.DataFrame({"ts": start, "end": start + at % 3, "row": at}).with_columns(
        thread=(at * 5 // 3_000 % 2).cast(INDEX)
    )

    table = nesting.in_preorder(rows)

    with without_compiled_code():
        assert_frame_equal(table, nesting.in_preorder(rows))


@compiled
@examples
@given(SPANS)
def test_parents_are_those_of_the_reference(spans: list[tuple[int, int, int]]) -> None:
    rows = rows_of(spans)
    columns = rows["thread"], rows["end"]

    column = nesting.parents(*columns)

    assert_series_equal(column, in_polars("parents", *columns), check_names=False)


@compiled
@examples
@given(SPANS, st.lists(st.booleans(), min_size=40, max_size=40))
def test_the_nearest_marked_row_is_that_of_the_reference(
    spans: list[tuple[int, int, int]], marks: list[bool]
) -> None:
    rows = rows_of(spans)
    parent = nesting.parents(rows["thread"], rows["end"])
    marked = pl.Series(marks[: rows.height], dtype=pl.Boolean)

    column = nesting.nearest(parent, marked)

    expected = in_polars("nearest", parent, marked)
    assert_series_equal(column, expected, check_names=False)


def test_a_segment_goes_on_while_nothing_else_counts() -> None:
    tree = tree_of([(0, 0, 10), (1, 2, 3), (1, 6, 9)])

    table = host_segments.opened(tree, edges_of({0: True, 12: True, 20: False}), 2)

    assert table.rows() == [(0, 10, 0), (10, 12, 2), (12, 15, 2), (15, 20, 3)]


def test_rows_with_equal_codes_around_them_have_one_number() -> None:
    count = 10_000
    code = pl.concat([pl.int_range(1, count, dtype=INDEX, eager=True)] * 2)
    code = pl.concat([code, pl.Series([0], dtype=INDEX)])
    parent = pl.repeat(2 * (count - 1), 2 * count - 1, dtype=INDEX, eager=True)

    number, first = call_paths.by_paths(code, parent)

    assert number[: count - 1].equals(number[count - 1 : -1])
    assert first.to_list() == [*range(count - 1), 2 * (count - 1)]


@compiled
@examples
@given(st.lists(st.tuples(st.integers(0, 5) | st.none(), st.integers(-(2**62), 2**62))))
def test_sums_are_those_of_the_reference(
    values: list[tuple[int | None, int]],
) -> None:
    schema = {"row": INDEX, "value": pl.Int64()}
    row, value = pl.DataFrame(values, schema, orient="row")

    column = nesting.sums_of(row, value, 7)

    with without_compiled_code():
        expected = nesting.sums_of(row, value, 7)
    assert_series_equal(column, expected, check_names=False)


@compiled
def test_a_value_of_a_row_that_is_not_there_is_refused() -> None:
    row, value = pl.Series([0, 3], dtype=INDEX), pl.Series([1, 2])

    with pytest.raises(ValueError, match="a row that is not there"):
        nesting.sums_of(row, value, rows=3)


@compiled
def test_rows_that_lead_back_and_forth_are_left_to_the_reference() -> None:
    leads = pl.Series([2, 1, 1, 3], dtype=INDEX)

    assert _native.arrived(leads) is None
    assert nesting.arrived(leads).to_list() == [1, 1, 1, 3]


@compiled
def test_columns_of_another_type_are_left_to_the_reference() -> None:
    thread, end = pl.Series([0, 0], dtype=pl.UInt16), pl.Series([9, 5])

    assert nesting.parents(thread, end).to_list() == [None, 0]


@examples
@given(st.lists(st.integers(0, 9)))
def test_keys_are_counted_in_the_order_in_which_they_come_first(
    keys: list[int],
) -> None:
    key, ordered = pl.Series(keys, dtype=pl.UInt64), list(dict.fromkeys(keys))

    for size in (None, 10, 1 << 40):
        number, first = counted(key, size)
        assert number.to_list() == [ordered.index(item) for item in keys]
        assert first.to_list() == [keys.index(item) for item in ordered]


@examples
@given(st.sets(st.integers(0, 30), min_size=2), st.lists(st.integers(-5, 35)))
def test_moments_are_counted_between_edges(edges: set[int], moments: list[int]) -> None:
    ordered = sorted(edges)

    counts = nesting.counts_between(
        pl.Series(ordered, dtype=pl.Int64), pl.Series(moments, dtype=pl.Int64)
    )

    assert counts.to_list() == [
        sum(first <= timestamp < last for timestamp in moments)
        for first, last in itertools.pairwise(ordered)
    ]
