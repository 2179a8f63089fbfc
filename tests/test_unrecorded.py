"""Time of a step that the recording does not show: what is said of it."""

from __future__ import annotations

import pytest
from linting import outcome

from traceq.model.recording import Recording
from traceq.testing import load_drawn

_LOADER = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
_NOT_THERE = "of a step are not in the recording"
_QUEUE = "the wait for the DataLoader's workers may be hidden"


def lacks(step_ns: int | None, region: str = "data") -> str:
    """Return what is lacking in a recorded step of 100 µs that waits for the host."""
    trace = load_drawn(
        f"""
        host   [ProfilerStep#1 {" " * 83}]
        host    [@{region:<65}] [aten::mm           ]
        host    {" " * 70}[cudaLaunchKernel>1]
        gpu 7   {" " * 85}[gemm<1]
        """.replace("[@enumerate", "[enumerate")
    )
    recording = Recording("drawn", trace=trace, step_ns=step_ns)
    facts = outcome(recording, "HST003").facts
    return "; ".join(facts.lacks if facts else ())


def test_a_step_longer_than_as_recorded_has_time_that_the_recording_lacks() -> None:
    text = lacks(150_000)

    assert _NOT_THERE in text
    assert "150 µs" in text


@pytest.mark.parametrize("step_ns", [None, 60_000, 105_000])
def test_a_step_about_as_long_as_recorded_or_shorter_lacks_nothing(
    step_ns: int | None,
) -> None:
    assert _NOT_THERE not in lacks(step_ns)


@pytest.mark.parametrize(("region", "hidden"), [(_LOADER, True), ("data", False)])
def test_with_workers_the_wait_for_them_may_be_what_is_lacking(
    region: str, *, hidden: bool
) -> None:
    assert (_QUEUE in lacks(150_000, region)) == hidden
