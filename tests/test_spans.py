"""Intervals, against plain loops over the instants that they cover."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traceq.common import intervals
from traceq.common.intervals import Cover, count_before, count_until, holding, merged

if TYPE_CHECKING:
    from collections.abc import Iterator

    Spans = list[tuple[int, int]]

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


@pytest.fixture(autouse=True, scope="module", params=["few", "many"])
def _moments(request: pytest.FixtureRequest) -> Iterator[None]:
    """Search for each moment, and go through all of them at once."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "many":
            patch.setattr(intervals, "_MANY", 0)
        yield


def frame(spans: Spans, dtype: pl.DataType) -> pl.DataFrame:
    return pl.DataFrame(spans, {"start": dtype, "end": dtype}, orient="row")


def instants(spans: Spans) -> set[int]:
    """Return the instants that spans cover, each as long as 1."""
    return {at for start, end in spans for at in range(start, end)}


@pytest.mark.real
@examples
@given(SPANS, TIMES)
@pytest.mark.slow
def test_merged_spans_cover_the_same_and_do_not_touch(
    spans: Spans, dtype: pl.DataType
) -> None:
    result = merged(frame(spans, dtype)).cast(pl.Int64).rows()

    assert instants(result) == instants(spans)
    assert all(end < start for (_, end), (start, _) in itertools.pairwise(result))


@pytest.mark.real
@examples
@given(SPANS, MOMENTS, st.booleans(), TIMES)
@pytest.mark.slow
def test_what_is_covered_before_moments(
    spans: Spans,
    moments: list[int],
    in_order: bool,  # noqa: FBT001 - drawn
    dtype: pl.DataType,
) -> None:
    moments = sorted(moments) if in_order else moments

    column = Cover(frame(spans, dtype)).until(pl.Series(moments, dtype=dtype))

    covered = instants(spans)
    assert column.to_list() == [
        sum(at < timestamp for at in covered) for timestamp in moments
    ]


@pytest.mark.real
@examples
@given(SPANS, st.sets(st.integers(0, 40), min_size=2))
@pytest.mark.slow
def test_what_is_covered_between_edges(spans: Spans, edges: set[int]) -> None:
    ordered = sorted(edges)
    asked = pl.Series(ordered, dtype=pl.Int64)

    table = Cover(frame(spans, pl.Int64())).between(asked)

    covered = instants(spans)
    parts = [
        sum(at in covered for at in range(first, last))
        for first, last in itertools.pairwise(ordered)
    ]
    assert table.rows() == [(at, part) for at, part in enumerate(parts) if part]


@pytest.mark.real
@examples
@given(MOMENTS, MOMENTS, st.booleans(), TIMES)
def test_times_before_moments_are_counted(
    times: list[int],
    moments: list[int],
    in_order: bool,  # noqa: FBT001 - drawn
    dtype: pl.DataType,
) -> None:
    moments = sorted(moments) if in_order else moments
    columns = pl.Series(sorted(times), dtype=dtype), pl.Series(moments, dtype=dtype)

    before, until = count_before(*columns), count_until(*columns)

    assert before.to_list() == [
        sum(at < timestamp for at in times) for timestamp in moments
    ]
    assert until.to_list() == [
        sum(at <= timestamp for at in times) for timestamp in moments
    ]


@pytest.mark.real
@examples
@given(SPANS, MOMENTS)
@pytest.mark.slow
def test_events_hold_moments(spans: Spans, moments: list[int]) -> None:
    schema = {"ts": pl.Int64(), "end": pl.Int64()}
    events = pl.DataFrame(sorted(spans), schema, orient="row").with_row_index()
    events = events.with_columns(dur=pl.col("end") - pl.col("ts"))

    table = holding(events, pl.Series(moments, dtype=pl.Int64))

    assert table["index"].to_list() == [
        at
        for at, (start, end) in enumerate(sorted(spans))
        if any(start <= timestamp < end for timestamp in moments)
    ]


def test_moments_of_another_type_are_taken() -> None:
    moments = pl.Series([4, 0], dtype=pl.Int32)

    assert Cover(frame([(1, 3)], pl.Int64())).until(moments).to_list() == [2, 0]
