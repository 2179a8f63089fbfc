"""Compiled loops over spans of time, compared with the same in Polars."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal, assert_series_equal

from traceq.common.native_loading import usable
from traceq.intervals import (
    _INTERFACE,
    Cover,
    _spans,
    count_before,
    count_until,
    holding,
    merged,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    Spans = list[tuple[int, int]]

_Found = TypeVar("_Found")

compiled = pytest.mark.skipif(not usable(_spans, _INTERFACE), reason="it was not built")
SPANS = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 8)).map(
        lambda span: (span[0], span[0] + span[1])
    ),
    max_size=12,
)
MOMENTS = st.lists(st.integers(-3, 45), max_size=20)
# Whole nanoseconds as recorded, and fractions in a replay.
TIMES = st.sampled_from([pl.Int64(), pl.Float64()])
examples = settings(max_examples=200, deadline=None)


def frame(spans: Spans, dtype: pl.DataType) -> pl.DataFrame:
    return pl.DataFrame(spans, {"start": dtype, "end": dtype}, orient="row")


def in_polars(ask: Callable[[], _Found]) -> _Found:
    """Return the answer without compiled code."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRACEQ_PURE", "1")
        return ask()


@compiled
@examples
@given(SPANS, TIMES)
def test_merged_spans_are_those_of_the_reference(
    spans: Spans, dtype: pl.DataType
) -> None:
    cover = frame(spans, dtype)

    assert_frame_equal(merged(cover), in_polars(lambda: merged(cover)))


@compiled
@examples
@given(SPANS, MOMENTS, TIMES)
def test_what_is_covered_before_moments_is_that_of_the_reference(
    spans: Spans, moments: list[int], dtype: pl.DataType
) -> None:
    cover, asked = frame(spans, dtype), pl.Series(moments, dtype=dtype)

    found = Cover(cover).until(asked)

    expected = in_polars(lambda: Cover(cover).until(asked))
    assert_series_equal(found, expected, check_names=False)


@compiled
@examples
@given(SPANS, st.sets(st.integers(0, 40), min_size=2))
def test_what_is_covered_between_edges_is_that_of_the_reference(
    spans: Spans, edges: set[int]
) -> None:
    cover, asked = frame(spans, pl.Int64()), pl.Series(sorted(edges), dtype=pl.Int64)

    found = Cover(cover).between(asked)

    assert_frame_equal(found, in_polars(lambda: Cover(cover).between(asked)))


@compiled
@examples
@given(MOMENTS, MOMENTS, TIMES, st.sampled_from([count_before, count_until]))
def test_times_before_moments_are_those_of_the_reference(
    times: list[int],
    moments: list[int],
    dtype: pl.DataType,
    count: Callable[[pl.Series, pl.Series], pl.Series],
) -> None:
    ordered = pl.Series(sorted(times), dtype=dtype)
    asked = pl.Series(moments, dtype=dtype)

    found = count(ordered, asked)

    expected = in_polars(lambda: count(ordered, asked))
    assert_series_equal(found, expected, check_names=False)


@compiled
@examples
@given(SPANS, MOMENTS)
def test_events_at_moments_are_those_of_the_reference(
    spans: Spans, moments: list[int]
) -> None:
    schema = {"ts": pl.Int64(), "end": pl.Int64()}
    events = pl.DataFrame(spans, schema, orient="row").sort("ts").with_row_index()
    events = events.with_columns(dur=pl.col("end") - pl.col("ts"))
    asked = pl.Series(moments, dtype=pl.Int64)

    found = holding(events, asked)

    assert_frame_equal(found, in_polars(lambda: holding(events, asked)))


@compiled
def test_moments_of_another_type_are_left_to_the_reference() -> None:
    moments = pl.Series([4, 0], dtype=pl.Int32)

    assert Cover(frame([(1, 3)], pl.Int64())).until(moments).to_list() == [2, 0]
