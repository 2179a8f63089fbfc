"""Copies of a real rank: one that is late by something planted is found, with why."""

from __future__ import annotations

import random

import planting
import pytest
import recordings

from traceq.ranks.analysis import analyse
from traceq.ranks.job import assemble

pytestmark = pytest.mark.real

_HOST_BOUND, _GPU_BOUND = (
    "public/a100_nccl.json.gz",
    "public/mi300_resnet_checkpoint.json.gz",
)
_PLANTED = {
    planting.SLOWER: _GPU_BOUND,
    planting.SLEEP: _HOST_BOUND,
    planting.DATA: _HOST_BOUND,
    planting.MALLOC: _HOST_BOUND,
    planting.LINK: _GPU_BOUND,
}


@pytest.mark.slow
@pytest.mark.parametrize("plant", _PLANTED)
def test_the_planted_rank_is_found_with_its_cause(plant: str) -> None:
    chance = random.Random(plant)  # noqa: S311 - a test
    rank = planting.copied(recordings.path_of(_PLANTED[plant]))
    late = chance.randrange(planting.RANKS)

    digests = planting.job(
        rank, chance, plant=plant, late=late, delay_ns=0.04 * rank.step_ns
    )
    stragglers = analyse(assemble(digests)).stragglers

    assert stragglers[0].ranks == (late,)
    assert stragglers[0].cause.cause == planting.PLANTS[plant]
    assert [straggler.ranks for straggler in stragglers] == [(late,)]


@pytest.mark.slow
@pytest.mark.parametrize("file", [_HOST_BOUND, _GPU_BOUND])
def test_noise_alone_makes_no_straggler(file: str) -> None:
    chance = random.Random(file)  # noqa: S311 - a test
    rank = planting.copied(recordings.path_of(file))

    analysis = analyse(assemble(planting.job(rank, chance)))

    assert analysis.stragglers == ()


def test_a_digest_is_small() -> None:
    for file in (_HOST_BOUND, _GPU_BOUND):
        digest = planting.copied(recordings.path_of(file)).digest

        assert len(digest.content) <= 0.01 * digest.rank["trace_bytes"]


def test_more_late_ranks_than_are_tried_alone_are_no_crash() -> None:
    chance = random.Random("many")  # noqa: S311 - a test
    rank = planting.copied(recordings.path_of(_HOST_BOUND))
    late = planting.job(
        rank, chance, plant=planting.SLEEP, late=7, delay_ns=0.3 * rank.step_ns
    )
    world = 24 * planting.RANKS
    ranks = [
        planting.renumbered(late[row], block * planting.RANKS + row, world)
        for block in range(24)
        for row in (5, 6, 7, 8)
    ]

    stragglers = analyse(assemble(ranks)).stragglers

    assert {row % 4 for straggler in stragglers for row in straggler.ranks} == {2}
