"""Compiled replay of steps, compared with the same in Polars."""

from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from traceq import native
from traceq.analysis.replay import native_simulation
from traceq.analysis.replay.idle_account import _summed, _waited
from traceq.analysis.replay.model import StepModel
from traceq.analysis.replay.simulation import AS_RECORDED, Change, Replay, TimeScale

pytestmark = pytest.mark.real

compiled = pytest.mark.skipif(not native.available(), reason="it was not built")
examples = settings(max_examples=150, deadline=None)

# Work on the GPU: its stream, when it was launched, how long it took to begin, its gap
# and how long it took; whether it comes after the work before it, of another stream.
WORK = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.integers(0, 110),
        st.integers(0, 5),
        st.integers(0, 3),
        st.integers(1, 20),
        st.booleans(),
    ),
    max_size=12,
)
# Blocking calls: the time until each and in it, and whether it waits for the last work.
WAITS = st.lists(
    st.tuples(st.integers(1, 15), st.integers(1, 10), st.booleans()), max_size=5
)
SPANS = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 20)).map(
        lambda span: (span[0], span[0] + span[1])
    ),
    max_size=5,
)
_TIMES = {"start": pl.Int64(), "end": pl.Int64()}
SCALES = st.sampled_from([AS_RECORDED, TimeScale(), TimeScale(0.5, 0.9)])


def steps_of(
    work: list[tuple[int, int, int, int, int, bool]],
    waits: list[tuple[int, int, bool]],
    *,
    repeats: bool,
) -> StepModel:
    """Return steps of 100 ns, which the host works through in pieces of 10 and less."""
    work = sorted(work)
    rows = [
        {
            "id": 7 + row,
            "lane": lane,
            "launched_at": launched,
            "start": launched + latency,
            "end": launched + latency + dur,
            "dur": dur,
            "after": row - 1 if after and row and work[row - 1][0] != lane else None,
            "before": None,
            "latency": latency,
            "gap": gap,
        }
        for row, (lane, launched, latency, gap, dur, after) in enumerate(work)
    ]
    calls, now = [], 0
    for number, (until, took, some) in enumerate(waits):
        start, now = now + until, now + until + took
        target = len(work) - 1 if some and work else None
        calls.append((number, start, now, target, 1))
    whole, index = pl.Int64(), pl.UInt32()
    blocking = pl.DataFrame(
        calls,
        {
            "id": index,
            "start": whole,
            "end": whole,
            "waits_for": index,
            "resume": whole,
        },
        orient="row",
    )
    seen = [launched for _, launched, *_ in work if launched <= 100]
    sides = [*blocking["start"], *blocking["end"]]
    moments = sorted({*range(0, 101, 10), *seen, *(at for at in sides if at <= 100)})
    host = pl.DataFrame({"start": moments[:-1], "end": moments[1:]})
    columns = ["id", "lane", "launched_at", "start", "end", "dur", "after", "before"]
    columns += ["latency", "gap"]
    schema = {name: index if name in ("id", "after") else whole for name in columns}
    return StepModel(
        work=pl.DataFrame(rows, schema),
        waits=blocking,
        host=host.with_columns(own=(pl.col("end") - pl.col("start")) * 0.7),
        steps=2,
        repeats=repeats,
    )


def played(
    model: StepModel, changes: list[Change], scale: TimeScale
) -> tuple[pl.DataFrame, float, pl.DataFrame]:
    replay = Replay(model)
    run = replay.run(changes, scale)
    host = pl.DataFrame({"host": run.host})
    return host, run.step_ns, replay.timeline(scale, changes)


@pytest.mark.slow
@compiled
@examples
@given(WORK, WAITS, SCALES, st.booleans(), st.booleans())
def test_steps_go_as_in_the_reference(
    work: list[tuple[int, int, int, int, int, bool]],
    waits: list[tuple[int, int, bool]],
    scale: TimeScale,
    repeats: bool,  # noqa: FBT001 - drawn
    changed: bool,  # noqa: FBT001 - drawn
) -> None:
    model = steps_of(work, waits, repeats=repeats)
    spans = pl.DataFrame({"start": [3, 42], "end": [17, 60]})
    changes = [
        Change(kernels=frozenset([7, 9, 10]), kernel_share=1.0),
        Change(kernels=frozenset([8, 9]), kernel_share=0.5),
        Change(spans=spans, host_share=0.8, syncs=frozenset([0, 2])),
    ]

    tables = played(model, changes if changed else [], scale)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRACEQ_PURE", "1")
        expected = played(model, changes if changed else [], scale)
    assert_frame_equal(tables[0], expected[0])
    assert tables[1] == pytest.approx(expected[1])
    assert_frame_equal(tables[2], expected[2])


@compiled
def test_steps_that_do_not_fit_each_other_are_refused() -> None:
    replay = Replay(steps_of([(0, 5, 1, 1, 4, False)], [], repeats=False))
    steps = replay._steps((), AS_RECORDED)  # noqa: SLF001 - what no model has
    behind_the_last = steps._replace(launch=steps.launch + 1000)

    with pytest.raises(ValueError, match="do not fit"):
        native_simulation.timeline(
            behind_the_last, pl.Series([0.0]), pl.Series([0.0]), 1.0
        )


@compiled
@examples
@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(3, 9), st.integers(0, 4)), min_size=1
    ),
    st.lists(st.tuples(st.integers(1, 4), st.integers(1, 10)), max_size=6),
    SPANS,
    st.booleans(),
)
def test_the_gpu_waits_for_what_it_does_in_the_reference(
    spans: list[tuple[int, int, int]],
    pieces: list[tuple[int, int]],
    removed: list[tuple[int, int]],
    changed: bool,  # noqa: FBT001 - drawn
) -> None:
    schema = {"gap": pl.Int64(), "length": pl.Int64(), "activity": pl.UInt32()}
    host = pl.DataFrame(spans, schema, orient="row").select(
        "activity",
        start=(pl.col("gap") + pl.col("length")).cum_sum() - pl.col("length"),
        end=(pl.col("gap") + pl.col("length")).cum_sum(),
        # A row of the host's tree may be of two things.
        at=pl.int_range(pl.len(), dtype=pl.UInt32) // 2 % 5,
    )
    counts = pl.Series([count for count, _ in pieces], dtype=pl.Int64)
    waited = pl.DataFrame(
        {
            "first": counts.cum_sum() - counts,
            "count": counts,
            "worked": counts.cast(pl.Float64) * 3,
            "share": pl.Series([share / 10 for _, share in pieces], dtype=pl.Float64),
        }
    ).filter(pl.col("first") + pl.col("count") <= host.height)
    last = waited["first"] + waited["count"] - 1
    # A piece may begin and end within a span.
    waited = waited.with_columns(
        start=host["start"][waited["first"]] + 1, end=host["end"][last] - 1
    )
    cover = pl.DataFrame(removed, _TIMES, orient="row")
    changes = [Change(spans=cover, host_share=0.9)] if changed else []

    table = native_simulation.waits(
        host, waited, [(change.cover.spans, 0.9) for change in changes], 5, 1e-3
    )

    assert table is not None
    expected = _summed(
        pl.concat(
            [
                host.clear().select("activity", "at", waits=pl.lit(0.0)),
                _waited(host, waited, changes),
            ]
        )
    )
    assert_frame_equal(table, expected.sort("activity"))
