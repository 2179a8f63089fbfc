"""The same finding in another run: one way to match it, one tolerance for growth."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from traceq.check.expected import expected
from traceq.linter.same_finding import Extent, Growth, extent, growth, matched
from traceq.model.finding import Evidence, Finding, Place, Severity

BEFORE = Extent(count=10, cost_bytes=0, saves_ns=1_000_000)
FINDING = Finding(
    code="SYN001",
    name="sync",
    severity=Severity.warning,
    message="item() blocks twice a step",
    advice="",
    place=Place("train.py", 3, "main"),
    subject="aten::item",
    count=2,
)


@pytest.mark.parametrize(
    ("after", "change"),
    [
        (BEFORE, "same"),
        (structs.replace(BEFORE, count=11, saves_ns=1_100_000), "same"),
        (structs.replace(BEFORE, count=12), "grown"),
        (structs.replace(BEFORE, count=9), "shrunk"),
        (structs.replace(BEFORE, saves_ns=1_100_001), "grown"),
        (structs.replace(BEFORE, saves_ns=0), "shrunk"),
        (structs.replace(BEFORE, cost_bytes=5), "grown"),
        # What costs less is not worse for happening more often.
        (structs.replace(BEFORE, count=20, saves_ns=500_000), "shrunk"),
        # Between machines, times are not compared.
        (structs.replace(BEFORE, saves_ns=None), "same"),
        (structs.replace(BEFORE, saves_ns=None, count=12), "grown"),
    ],
)
def test_growth_is_more_than_a_tenth(after: Extent, change: Growth) -> None:
    assert growth(BEFORE, after) == change


def test_growth_and_shrinking_mirror_each_other() -> None:
    for other in (Extent(9), Extent(11), Extent(12), Extent(10, 5), Extent(10, 0, 7)):
        there, back = growth(Extent(10), other), growth(other, Extent(10))
        assert (there, back) in (
            ("same",) * 2,
            ("grown", "shrunk"),
            ("shrunk", "grown"),
        )


def test_a_time_that_differs_by_the_noise_of_a_step_is_the_same() -> None:
    more = structs.replace(BEFORE, saves_ns=1_300_000)

    assert growth(BEFORE, more, step_ns=20_000_000) == "same"
    assert growth(BEFORE, more, step_ns=10_000_000) == "grown"


def test_a_finding_is_known_again_at_another_line_in_other_words() -> None:
    moved = replace(FINDING, message="other words", place=Place("train.py", 9, "main"))

    assert matched([FINDING], [moved]) == [([FINDING], [moved])]


def test_findings_of_one_fingerprint_are_compared_together() -> None:
    second = replace(FINDING, place=Place("train.py", 9, "main"), count=3)

    ((before, after),) = matched([FINDING], [FINDING, second])

    assert (extent(before).count, extent(after).count) == (2, 5)


def test_what_one_run_alone_has_is_matched_with_nothing() -> None:
    other = replace(FINDING, subject="aten::nonzero")

    assert matched([FINDING], [other]) == [([FINDING], []), ([], [other])]


def test_without_stacks_the_subject_is_what_matches() -> None:
    nowhere = replace(FINDING, place=Place())

    assert len(matched([FINDING], [nowhere])) == 2
    assert matched([FINDING], [nowhere], by_place=False) == [([FINDING], [nowhere])]


def test_an_expectation_is_compared_as_a_finding_is() -> None:
    (known,) = expected([FINDING])

    ((before, after),) = matched([known], [replace(FINDING, count=3, saves_ns=10**9)])

    assert growth(extent(before), extent(after)) == "grown"
    assert growth(extent(before), extent([FINDING])) == "same"


def test_words_and_times_are_not_expected() -> None:
    lines = (Evidence("idle", value=1500, unit="ns"), Evidence("op", "aten::item"))
    slower = (replace(lines[0], value=3000, note="each"), lines[1])
    one, other = (
        expected([replace(FINDING, evidence=lines)]),
        expected(
            [replace(FINDING, evidence=slower, message="other words", saves_ns=5)]
        ),
    )

    assert one == other


@pytest.mark.parametrize(
    "line",
    [
        Evidence("idle", value=1500, unit="ns", count=3),
        Evidence("idle", "item()", value=1500, unit="ns"),
        Evidence("holds", value=1500, unit="bytes"),
    ],
)
def test_names_counts_and_bytes_of_evidence_are_expected(line: Evidence) -> None:
    base = replace(FINDING, evidence=(Evidence("idle", value=1500, unit="ns"),))

    assert expected([replace(base, evidence=(line,))]) != expected([base])
