"""Real jobs of several ranks: matched, on one clock, replayed, and explained."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING

import polars as pl
import pytest
import ranking
import recordings
from command import traceq
from ranking import NAMES, digests, real_job

from traceq.ranks.analysis import analyse
from traceq.ranks.job import assemble
from traceq.ranks.notices import Unread

if TYPE_CHECKING:
    from traceq.ranks.job import Job

pytestmark = pytest.mark.real

MS = 1_000_000
US = 1_000
# Collectives that two ranks or more recorded, by hand from the files.
SHARED = {"dlrm": 8, "resnet18": 12, "torchrec_a2a": 13}


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_all_collectives_that_two_ranks_recorded_are_matched(name: str) -> None:
    job = real_job(name)

    assert job.collectives.height == SHARED[name]
    assert job.unmatched == 0
    assert job.notices == ()


def test_a_window_that_begins_a_collective_later_is_shifted_by_one() -> None:
    job = real_job("torchrec_a2a")

    places = job.cells.filter(pl.col("instance") == 5).sort("rank")["collective"]

    assert places.to_list() == [5, 5, 4, 5]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_no_pair_is_wrong_where_windows_are_cut_at_random(name: str) -> None:
    chance = random.Random(name)  # noqa: S311 - a test
    truth = {(rank, end): instance for rank, end, instance in _parts(real_job(name))}
    for _ in range(5):
        job = assemble([ranking.cut(digest, chance) for digest in digests(name)])
        result = list(_parts(job))

        by_truth: dict[int, set[int]] = {}
        for rank, end, instance in result:
            by_truth.setdefault(truth[rank, end], set()).add(instance)

        assert all(len(instances) == 1 for instances in by_truth.values())
        assert len(by_truth) == job.collectives.height
        assert len(result) == _shared(job, truth)


def _parts(job: Job) -> list[tuple[int, int, int]]:
    """Return the parts of collectives: rank, its end on its own clock, instance."""
    ends = {
        (at, row): digest.table("collectives")["end"][row] + digest.rank["start_ns"]
        for at, digest in enumerate(job.digests)
        for row in range(digest.table("collectives").height)
    }
    rows = job.cells.select("rank", "collective", "instance").iter_rows()
    return [(rank, ends[rank, place], instance) for rank, place, instance in rows]


def _shared(job: Job, truth: dict[tuple[int, int], int]) -> int:
    """Return how many parts in the digests are of collectives that two ranks have."""
    count: dict[int, int] = {}
    for at, digest in enumerate(job.digests):
        for end in digest.table("collectives")["end"] + digest.rank["start_ns"]:
            instance = truth[at, end]
            count[instance] = count.get(instance, 0) + 1
    return sum(ranks for ranks in count.values() if ranks > 1)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.slow
def test_no_rank_waits_longer_than_its_collectives_last(name: str) -> None:
    cells = real_job(name).cells

    assert (cells["wait"] >= 0).all()
    assert (cells["wait"] <= cells["end"] - cells["start"]).all()
    # And that without cutting waits off: the last one comes before the first is done.
    late = real_job(name).collectives
    assert ((late["last"] - late["soonest"]) < 100 * US).all()


@pytest.mark.parametrize("name", NAMES)
def test_the_replay_takes_as_long_as_the_job_did(name: str) -> None:
    analysis = analyse(real_job(name))

    assert analysis.whatifs.took == pytest.approx(analysis.job.window_ns, rel=0.015)


@pytest.mark.parametrize("name", NAMES)
def test_clocks_that_are_off_by_seconds_and_drift_are_aligned(name: str) -> None:
    chance = random.Random(f"clock {name}")  # noqa: S311 - a test
    truth = real_job(name)
    for _ in range(3):
        offsets = [chance.randint(-2_000 * MS, 2_000 * MS) for _ in digests(name)]
        drifts = [chance.uniform(-50e-6, 50e-6) for _ in digests(name)]
        moved = [
            ranking.shifted(*row)
            for row in zip(digests(name), offsets, drifts, strict=True)
        ]

        job = assemble(moved)

        assert job.collectives.height == SHARED[name]
        both = job.cells.select("rank", "collective", "end").join(
            truth.cells.select("rank", "collective", true="end"),
            on=["rank", "collective"],
        )
        # The job's clock is that of the first rank, which was moved, too.
        begin = both.filter(pl.col("rank") == 0)
        first = (begin["end"] - begin["true"])[0]
        expected = both["true"] + first + (drifts[0] * both["true"]).cast(pl.Int64)
        off = (both["end"] - expected).abs()
        assert off.median() < 10 * US


def test_the_rank_that_sleeps_is_found_with_its_region_and_its_time() -> None:
    analysis = analyse(real_job("torchrec_a2a"))

    worst = analysis.stragglers[0]

    assert [analysis.job.ranks["number"][row] for row in worst.ranks] == [2]
    assert worst.cause.cause == "host"
    assert worst.cause.region == "# running sparse arch"
    # It sleeps a second in each of the three recorded steps.
    assert worst.cause.parts["host"] / 3 == pytest.approx(1000 * MS, rel=0.01)
    assert worst.saved_ns / analysis.steps == pytest.approx(975 * MS, rel=0.02)


def test_rank_7_of_dlrm_costs_most_alone_and_rank_2_nothing() -> None:
    analysis = analyse(real_job("dlrm"))

    saved = dict(analysis.by_rank.select("number", "saved").iter_rows())

    assert max(saved, key=lambda rank: saved[rank]) == 7
    assert saved[2] == 0


@pytest.mark.parametrize("name", NAMES)
def test_nothing_saves_more_than_everything_together(name: str) -> None:
    analysis = analyse(real_job(name))

    for change in analysis.changes:
        assert 0 <= change.saved_ns <= analysis.whatifs.all.saved_ns
    assert (analysis.by_rank["saved"] <= analysis.whatifs.all.saved_ns).all()


def test_a_rank_that_cannot_be_read_is_named_and_the_others_are_compared() -> None:
    job = assemble(digests("dlrm")[:7], [Unread("rank7.json.gz", "it is cut")])

    assert job.ranks.height == 7
    assert any("rank7.json.gz could not be read" in notice for notice in job.notices)
    assert any("1 of 8 ranks are not here (7)" in notice for notice in job.notices)


def test_two_jobs_in_one_folder_are_told_apart() -> None:
    job = assemble([*digests("dlrm"), *digests("resnet18")])

    assert job.ranks.height == 8
    assert any("2 of the traces are of another job" in notice for notice in job.notices)


def test_ranks_without_a_common_collective_are_not_compared() -> None:
    first, second = digests("resnet18")
    early = ranking.changed(
        first,
        collectives=lambda table: table.head(4),
        meetings=lambda table: table.filter(pl.col("collective") < 4),
    )
    late = ranking.changed(
        second,
        collectives=lambda table: table.tail(4),
        meetings=lambda table: table.filter(pl.col("collective") > 7).with_columns(
            pl.col("collective") - 8
        ),
    )

    job = assemble([early, late])

    assert job.collectives.height == 0
    assert any("could not be aligned" in notice for notice in job.notices)
    assert analyse(job).stragglers == ()


def test_the_command_says_it_in_one_sentence_and_as_json() -> None:
    folder = str(recordings.job("torchrec_a2a")[0].parent)

    text = traceq("ranks", folder)
    data = json.loads(traceq("ranks", folder, "--format", "json").out)

    assert text.out.startswith("Rank 2 of 4 holds the others up")
    assert '"# running sparse arch"' in text.out
    assert data["stragglers"][0]["ranks"] == [2]
