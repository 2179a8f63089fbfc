"""Spans of time against each other, counted moment by moment."""

from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traceq.common.intervals import disjoint, overlap

_SPANS = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 8)).map(
        lambda span: (span[0], span[0] + span[1])
    ),
    max_size=6,
)


def frame(spans: list[tuple[int, int]]) -> pl.DataFrame:
    schema = {"start": pl.Int64, "end": pl.Int64}
    return pl.DataFrame(spans, schema=schema, orient="row")


def covers(spans: list[tuple[int, int]], moment: int) -> bool:
    return any(start <= moment < end for start, end in spans)


@pytest.mark.real
@settings(max_examples=200, deadline=None)
@given(_SPANS, _SPANS)
def test_overlap_is_the_number_of_moments_that_others_cover(
    spans: list[tuple[int, int]], cover: list[tuple[int, int]]
) -> None:
    assert overlap(frame(spans), frame(cover)).to_list() == [
        sum(covers(cover, moment) for moment in range(start, end))
        for start, end in spans
    ]


@pytest.mark.real
@settings(max_examples=200, deadline=None)
@given(_SPANS)
def test_disjoint_spans_cover_what_the_spans_cover_each_moment_once(
    spans: list[tuple[int, int]],
) -> None:
    pieces = disjoint(frame(spans))

    assert pieces.height == len(spans)
    assert (pieces["end"] - pieces["start"]).sum() == sum(
        covers(spans, moment) for moment in range(40)
    )
