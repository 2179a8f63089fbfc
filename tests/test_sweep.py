"""What compiled loops say of nested rows is what the same in Polars says."""

from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal, assert_series_equal

from traceq.analysis.time import host_segments
from traceq.graph import nesting, sweep
from traceq.graph.nesting import INDEX

compiled = pytest.mark.skipif(not sweep.available(), reason="it was not built")
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


def in_polars(work: str, *columns: pl.Series) -> pl.Series:
    """Return what a function of ``nesting`` says without compiled code."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRACEQ_PURE", "1")
        found: pl.Series = getattr(nesting, work)(*columns)
        return found


@compiled
@examples
@given(SPANS)
def test_parents_are_those_of_the_reference(spans: list[tuple[int, int, int]]) -> None:
    rows = rows_of(spans)
    columns = rows["thread"], rows["end"]

    found = nesting.parents(*columns)

    assert_series_equal(found, in_polars("parents", *columns), check_names=False)


@compiled
@examples
@given(SPANS, st.lists(st.booleans(), min_size=40, max_size=40))
def test_the_nearest_marked_row_is_that_of_the_reference(
    spans: list[tuple[int, int, int]], marks: list[bool]
) -> None:
    rows = rows_of(spans)
    parent = nesting.parents(rows["thread"], rows["end"])
    marked = pl.Series(marks[: rows.height], dtype=pl.Boolean)

    found = nesting.nearest(parent, marked)

    expected = in_polars("nearest", parent, marked)
    assert_series_equal(found, expected, check_names=False)


@compiled
@examples
@given(SPANS, st.lists(st.integers(0, 20), max_size=5))
def test_moments_are_those_of_the_reference(
    spans: list[tuple[int, int, int]], edges: list[int]
) -> None:
    rows = rows_of(spans)
    parent = nesting.parents(rows["thread"], rows["end"]).fill_null(rows.height)
    tree = rows.with_columns(parent=parent)
    edge = pl.Series(sorted(set(edges)), dtype=pl.Int64)

    found = sweep.moments(tree, edge, nobody=4)

    assert found is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRACEQ_PURE", "1")
        assert_frame_equal(found, host_segments.moments(tree, edge, 4))


@compiled
def test_rows_that_lead_back_and_forth_are_left_to_the_reference() -> None:
    leads = pl.Series([2, 1, 1, 3], dtype=INDEX)

    assert sweep.arrived(leads) is None
    assert nesting.arrived(leads).to_list() == [1, 1, 1, 3]


@compiled
def test_very_many_rows_that_overlap_are_left_to_the_reference() -> None:
    count = 5_000
    at = pl.int_range(count, eager=True)
    tree = pl.DataFrame({"ts": at, "end": at + count}).with_columns(
        parent=pl.lit(count, INDEX), thread=pl.lit(0, INDEX)
    )

    assert sweep.moments(tree, pl.Series([], dtype=pl.Int64), nobody=1) is None


@compiled
def test_columns_of_another_type_are_left_to_the_reference() -> None:
    thread, end = pl.Series([0, 0], dtype=pl.UInt16), pl.Series([9, 5])

    assert sweep.parents(thread, end) is None
    assert nesting.parents(thread, end).to_list() == [None, 0]
