"""Ranks that are late in the one step that was recorded, alone or by twos."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import planting
import pytest
import recordings
from ranking import Works, analysed, write_job

from traceq.ranks.analysis import analyse
from traceq.ranks.job import assemble
from traceq.report.ranks.content import composition, verdict

if TYPE_CHECKING:
    from pathlib import Path

    from traceq.ranks.analysis import Analysis

pytestmark = pytest.mark.real

RANKS = 8
_PLANTS = {
    planting.SLEEP: "public/a100_nccl.json.gz",
    planting.DATA: "public/a100_nccl.json.gz",
    planting.MALLOC: "public/a100_nccl.json.gz",
    planting.SLOWER: "public/mi300_resnet_checkpoint.json.gz",
}


def named(analysis: Analysis) -> set[int]:
    return {row for straggler in analysis.stragglers for row in straggler.ranks}


@pytest.mark.slow
@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("late", [(6,), (0, 6)])
@pytest.mark.parametrize("plant", _PLANTS)
def test_ranks_that_are_late_are_named_and_no_others(
    plant: str, late: tuple[int, ...], steps: int
) -> None:
    chance = random.Random(f"{plant} {late} {steps}")  # noqa: S311 - a test
    rank = planting.copied(recordings.path_of(_PLANTS[plant]))
    planted = planting.planted(rank, plant, 0.05 * rank.step_ns)

    job = planting.job_of_steps(
        rank, dict.fromkeys(late, planted), chance, ranks=RANKS, steps=steps
    )

    assert named(analyse(assemble(job))) == set(late)


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.slow
def test_copies_with_noise_have_no_straggler(steps: int) -> None:
    rank = planting.copied(recordings.path_of("public/a100_nccl.json.gz"))
    for seed in range(3):
        chance = random.Random(seed)  # noqa: S311 - a test
        job = planting.job_of_steps(rank, {}, chance, ranks=RANKS, steps=steps)

        assert named(analyse(assemble(job))) == set()


def test_whether_one_step_is_typical_is_said_to_be_unknown() -> None:
    rank = planting.copied(recordings.path_of("public/a100_nccl.json.gz"))
    late = planting.planted(rank, planting.DATA, 0.1 * rank.step_ns)
    chance = random.Random("typical")  # noqa: S311 - a test

    job = planting.job_of_steps(rank, {0: late, 6: late}, chance, ranks=RANKS, steps=1)
    text = verdict(analyse(assemble(job)))

    assert text.startswith("In this step ranks 0, 6 of 8 hold the others up")
    assert text.endswith("; whether that is typical is unknown.")


def test_a_large_slowdown_without_a_straggler_is_taken_apart(tmp_path: Path) -> None:
    chance = random.Random("turns")  # noqa: S311 - a test
    works = [
        [Works(compute=round(1000 * (1 + chance.expovariate(2)))) for _ in range(6)]
        for _ in range(4)
    ]
    analysis = analysed(write_job(tmp_path, works))

    assert analysis.stragglers == ()
    assert analysis.whatifs.slowdown > 1.1
    assert "compute" in composition(analysis)
    assert composition(analysis) in verdict(analysis)


def test_a_small_slowdown_is_not_taken_apart(tmp_path: Path) -> None:
    analysis = analysed(write_job(tmp_path, [Works()] * 4))

    assert composition(analysis) == ""
