"""A Python call whose return was not recorded ends where the call around it does."""

from __future__ import annotations

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from traceq.analysis.time.call_paths import PARTS
from traceq.analysis.time.host_segments import host_segments
from traceq.graph.unreturned_calls import closed
from traceq.testing import load_drawn

LOST = """
host  [train.py(1): main                                                        ]
host   [train.py(5): step                  ]  [train.py(9): log                 ]
host    [torch/x.py(3): call      ]
host     [<built-in method __exit__ of guard object>                            ]
host                                            [aten::mm]  [aten::mm]
"""
OPEN = """
host  [train.py(1): main                                                        ]
host   [train.py(5): step                  ]  [train.py(9): log                 ]
host    [torch/x.py(3): call      ]             [torch/profiler/x.py(2): stop   ]
"""


def ends(drawing: str) -> dict[str, int]:
    """Return where each call ends, by its function, in characters."""
    frames = load_drawn(drawing).frames
    table = frames.select(
        pl.col("name").cast(pl.String), end=(pl.col("ts") + pl.col("dur")) // 1000
    )
    return {name.split()[-1]: end for name, end in table.iter_rows()}


def test_a_call_that_never_returned_ends_with_the_call_around_it() -> None:
    result = ends(LOST)
    assert result["object>"] == result["call"] < result["step"]


def test_calls_that_were_open_when_the_recording_stopped_last_until_then() -> None:
    result = ends(OPEN)
    assert result["main"] == result["log"] == result["stop"]


def test_what_comes_later_is_not_inside_of_a_call_that_never_returned() -> None:
    trace = load_drawn(LOST)
    host = host_segments(trace)
    between = host.segments["at"][-2]
    assert host.tree["part"][between] == PARTS.index("frames")
    assert trace.frames["function"][host.tree["row"][between]] == "log"


# Thread, start and length of calls that nest, and where some never returned.
_SPAN = st.tuples(st.integers(0, 1), st.integers(0, 20), st.integers(1, 20))


@pytest.mark.real
@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.lists(_SPAN, max_size=20))
def test_only_calls_that_last_until_the_end_are_cut_and_to_what_is_around(
    spans: list[tuple[int, int, int]],
) -> None:
    last = 100_000
    rows = [
        (thread, start * 2_000, min(length * 2_000, last - start * 2_000))
        for thread, start, length in spans
    ]
    rows.append((0, 0, last))
    rows += [(thread, ts + 500, last - ts - 500) for thread, ts, _ in rows[:5]]
    frames = pl.DataFrame(
        rows,
        schema={"thread": pl.UInt32, "ts": pl.Int64, "dur": pl.Int64},
        orient="row",
    )

    result = closed(frames)["dur"].to_list()

    for (thread, ts, dur), now in zip(rows, result, strict=True):
        around = [
            (start, -start - length)
            for other, start, length in rows
            if other == thread
            and start < ts < start + length
            and start + length < last - 1_000
        ]
        is_open = ts + dur >= last - 1_000
        assert now == (-max(around)[1] - ts if is_open and around else dur)
