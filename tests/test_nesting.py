"""Nesting, depth and self time of events, compared with plain loops."""

from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traceq.graph.nesting import depth, nearest, parents, self_times
from traceq.testing import load_drawn

# Thread, start and end. Small numbers make equal starts, equal spans, durations of
# zero, touching and crossing spans common.
_SPAN = st.tuples(st.integers(0, 2), st.integers(0, 12), st.integers(0, 12)).map(
    lambda span: (span[0], span[1], span[1] + span[2])
)
Spans = list[tuple[int, int, int]]
SPANS = st.lists(_SPAN, max_size=40).map(
    lambda spans: sorted(spans, key=lambda span: (span[0], span[1], -span[2]))
)


def frame(spans: Spans) -> pl.DataFrame:
    return pl.DataFrame(
        spans,
        schema={"thread": pl.UInt32, "start": pl.Int64, "end": pl.Int64},
        orient="row",
    )


def found_parents(spans: Spans) -> list[int | None]:
    events = frame(spans)
    return parents(events["thread"], events["end"]).to_list()


def found_self_times(spans: Spans) -> list[int]:
    events = frame(spans)
    parent = parents(events["thread"], events["end"])
    return self_times(
        events["thread"], events["start"], events["end"], parent
    ).to_list()


def parents_by_loop(spans: Spans) -> list[int | None]:
    """Look at every earlier event of the thread; the last that encloses is it."""
    result: list[int | None] = []
    for row, (thread, start, end) in enumerate(spans):
        enclosing = [
            other
            for other in range(row)
            if spans[other][0] == thread
            and spans[other][1] <= start
            and end <= spans[other][2]
        ]
        result.append(enclosing[-1] if enclosing else None)
    return result


def ancestors(parent: list[int | None], row: int) -> list[int]:
    result: list[int] = []
    above = parent[row]
    while above is not None:
        assert above not in result
        result.append(above)
        above = parent[above]
    return result


@pytest.mark.real
@settings(max_examples=200, deadline=None)
@given(SPANS)
def test_the_parent_is_the_last_event_before_that_encloses(spans: Spans) -> None:
    assert found_parents(spans) == parents_by_loop(spans)


@pytest.mark.real
@settings(max_examples=100, deadline=None)
@given(SPANS)
def test_the_depth_is_the_number_of_ancestors(spans: Spans) -> None:
    parent = found_parents(spans)

    result = depth(pl.Series(parent, dtype=pl.UInt32)).to_list()

    assert result == [len(ancestors(parent, row)) for row in range(len(spans))]


@pytest.mark.real
@settings(max_examples=200, deadline=None)
@given(SPANS)
def test_each_instant_is_of_the_event_that_started_last_of_those_open(
    spans: Spans,
) -> None:
    expected = [0] * len(spans)
    for thread in range(3):
        for instant in range(25):
            is_open = [
                row
                for row, (on, start, end) in enumerate(spans)
                if on == thread and start <= instant < end
            ]
            if is_open:
                expected[is_open[-1]] += 1

    assert found_self_times(spans) == expected


@pytest.mark.real
@settings(max_examples=100, deadline=None)
@given(SPANS)
def test_self_times_of_a_thread_add_up_to_its_covered_time(spans: Spans) -> None:
    times = found_self_times(spans)

    for thread in range(3):
        own = [row for row, span in enumerate(spans) if span[0] == thread]
        covered = {
            instant for row in own for instant in range(spans[row][1], spans[row][2])
        }
        assert sum(times[row] for row in own) == len(covered)


@settings(max_examples=100, deadline=None)
@given(SPANS, st.data())
def test_the_nearest_marked_row_is_the_row_or_its_first_marked_ancestor(
    spans: Spans, data: st.DataObject
) -> None:
    count = len(spans)
    marks = data.draw(st.lists(st.booleans(), min_size=count, max_size=count))
    parent = found_parents(spans)

    column = nearest(
        pl.Series(parent, dtype=pl.UInt32), pl.Series(marks, dtype=pl.Boolean)
    )

    for row in range(count):
        marked = [at for at in (row, *ancestors(parent, row)) if marks[at]]
        assert column[row] == (marked[0] if marked else None)


def test_a_chain_deeper_than_pythons_stack_is_followed() -> None:
    count = 5_000
    spans = [(0, row, 2 * count - row) for row in range(count)]

    parent = parents(frame(spans)["thread"], frame(spans)["end"])

    assert parent.to_list() == [None, *range(count - 1)]
    assert depth(parent).to_list() == list(range(count))


def test_ops_of_one_thread_are_not_inside_those_of_another() -> None:
    trace = load_drawn(
        """
        host    [aten::linear        ]
        host 2      [aten::addmm   ]
        """
    )

    assert trace.ops["parent"].to_list() == [None, None]


def test_an_op_has_its_parent_depth_children_and_own_time() -> None:
    trace = load_drawn(
        """
        host    [aten::linear                   ]
        host      [aten::t     ] [aten::addmm  ]
        host        [aten::x]
        """
    )

    rows = trace.ops.select("name", "parent", "depth", "children", "dur", "self_dur")
    assert rows.rows() == [
        ("aten::linear", None, 0, 2, 33_000, 4_000),
        ("aten::t", 0, 1, 1, 14_000, 5_000),
        ("aten::x", 1, 2, 0, 9_000, 9_000),
        ("aten::addmm", 0, 1, 0, 15_000, 15_000),
    ]


def test_a_call_with_the_very_span_of_its_op_is_inside_it() -> None:
    trace = load_drawn(
        """
        host    [cudaLaunchKernel>1]
        host    [aten::mm          ]
        gpu 7       [gemm<1  ]
        """
    )

    assert trace.runtime["op"].to_list() == [0]
    assert trace.kernels["op"].to_list() == [0]


def test_regions_and_python_calls_are_no_parents_of_ops() -> None:
    trace = load_drawn(
        """
        host    [@FORWARD                       ]
        host     [train.py(3): main            ]
        host      [nn.Module: Linear_0        ]
        host       [aten::linear             ]
        """
    )

    assert trace.ops.select("parent", "depth", "self_dur").rows() == [(None, 0, 27_000)]
