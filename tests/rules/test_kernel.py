"""KRN: kernels that are slow for what they do."""

from __future__ import annotations

from linting import case_findings


def test_rows_that_are_picked_often_are_found_by_the_time_of_their_gradient() -> None:
    (one,) = case_findings("moe_batched.trace.json.gz", "KRN002")

    assert one.message == (
        "the gradient of an index into [8192,512] adds rows one by one, 3 times a step"
    )
    assert one.place.function == "forward"
    # One of the three calls takes 1.13 ms: all of its rows go to one place.
    assert 1_100_000 > one.kernel_ns > 700_000
    assert one.advice.startswith("pick rows with F.embedding(index, x)")
