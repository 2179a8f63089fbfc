"""All-to-alls of real jobs, whose ranks finish apart: matched and explained."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING

import polars as pl
import pytest
import ranking
import recordings
from command import traceq
from ranking import digests, real_job

from traceq.ranks.analysis import analyse
from traceq.ranks.job import assemble
from traceq.report.ranks.content import content, verdict

if TYPE_CHECKING:
    from traceq.ranks.digest import Digest

pytestmark = pytest.mark.real

JOBS = ("torchrec_a2a_4", "torchrec_a2a_5")
# Collectives that all four ranks recorded, by hand from the files.
BY_ALL = 30


def _only(digest: Digest, rows: slice | list[int]) -> Digest:
    """Return a digest with some of its collectives, and no meetings."""
    return ranking.changed(
        digest,
        collectives=lambda table: table[rows],
        meetings=lambda table: table.head(0),
    )


@pytest.mark.parametrize("name", JOBS)
def test_collectives_that_all_ranks_recorded_are_matched(name: str) -> None:
    job = real_job(name)

    assert job.collectives.filter(pl.col("ranks") == 4).height == BY_ALL
    assert job.unmatched == 0
    assert job.notices == ()
    assert job.apart == ()


@pytest.mark.slow
@pytest.mark.parametrize("name", JOBS)
def test_windows_cut_at_random_are_matched_without_a_wrong_pair(name: str) -> None:
    chance = random.Random(f"cuts {name}")  # noqa: S311 - a test
    truth = ranking.by_wall_clock(digests(name))
    for _ in range(8):
        cut = [ranking.cut(digest, chance) for digest in digests(name)]
        shared, missing, wrong = ranking.errors(cut, truth)

        assert shared > 0
        assert (missing, wrong) == (0, 0)


def test_the_late_rank_is_named_with_its_cost() -> None:
    analysis = analyse(real_job("torchrec_a2a_4"))

    (worst,) = analysis.stragglers

    assert analysis.job.ranks["number"].gather(list(worst.ranks)).to_list() == [2]
    assert worst.saved_ns / analysis.whatifs.took == pytest.approx(0.07, abs=0.01)
    assert verdict(analysis).startswith("Rank 2 of 4 holds the others up")


@pytest.mark.parametrize(
    ("name", "steps"), [("torchrec_a2a_4", 3), ("torchrec_a2a", 3), ("resnet18", 3)]
)
def test_time_is_divided_by_the_steps_that_were_recorded(name: str, steps: int) -> None:
    assert analyse(real_job(name)).steps == steps


def test_ranks_without_a_common_collective_cannot_be_compared() -> None:
    first, second = (
        _only(digest, rows)
        for digest, rows in zip(
            digests("resnet18"), (slice(0, 4), slice(8, 12)), strict=True
        )
    )

    analysis = analyse(assemble([first, second]))

    assert analysis.job.apart == ((0,), (1,))
    assert verdict(analysis).startswith("The ranks cannot be compared: rank 0 and rank")


def test_ranks_without_a_common_collective_have_no_table_of_zeros() -> None:
    first, second = (
        _only(digest, rows)
        for digest, rows in zip(
            digests("resnet18"), (slice(0, 4), slice(8, 12)), strict=True
        )
    )

    screen = content(analyse(assemble([first, second]))).screen

    assert screen.tables == ()
    assert "slowdown" not in dict(screen.facts)


def test_two_sets_of_ranks_that_do_not_meet_are_both_named() -> None:
    early, late = slice(0, 12), slice(21, 30)
    ranks = [
        _only(digest, rows)
        for digest, rows in zip(
            digests("torchrec_a2a_4"), (early, early, late, late), strict=True
        )
    ]

    analysis = analyse(assemble(ranks))

    assert analysis.job.apart == ((0, 1), (2, 3))
    assert any("fall into 2 sets" in notice for notice in analysis.job.notices)
    assert "ranks 0, 1 and ranks 2, 3" in verdict(analysis)


@pytest.mark.parametrize("name", JOBS)
def test_clocks_of_even_and_odd_collectives_agree_within_their_errors(
    name: str,
) -> None:
    halves = []
    for parity in (0, 1):
        # The same collectives on all ranks: those whose number is even, or odd.
        numbers = real_job(name).cells.select("rank", "collective", "instance")
        some = [
            _only(digest, rows)
            for row, digest in enumerate(digests(name))
            for rows in [
                numbers.filter(pl.col("rank") == row, pl.col("instance") % 2 == parity)[
                    "collective"
                ]
                .sort()
                .to_list()
            ]
        ]
        halves.append(assemble(some).ranks)
    even, odd = halves

    apart = (even["offset"] - odd["offset"]).abs()

    assert (apart <= even["error"] + odd["error"]).all()


@pytest.mark.slow
@pytest.mark.parametrize("step", [0, 100_000])
def test_a_planted_offset_is_within_the_error_of_the_clock(step: int) -> None:
    chance = random.Random("offsets")  # noqa: S311 - a test
    trials = [
        ranking.covered(real_job(name), chance, 2_000_000_000, step=step)
        for name in JOBS
        for _ in range(10 if step else 5)
    ]

    right, known = (sum(row) for row in zip(*trials, strict=True))

    assert known
    assert right >= 0.9 * known


def test_the_command_names_the_rank() -> None:
    folder = recordings.job("torchrec_a2a_4")[0].parent

    data = json.loads(traceq("ranks", folder, "--format", "json").out)

    assert data["stragglers"][0]["ranks"] == [2]
    assert data["matched"]["collectives"] == BY_ALL
