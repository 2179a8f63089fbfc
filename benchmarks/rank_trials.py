"""Trials on jobs of several ranks: what is matched, who is named, how clocks are known.

    python benchmarks/rank_trials.py cuts JOB…       windows cut at random
    python benchmarks/rank_trials.py culprits TRACE… one and two ranks late, by step
    python benchmarks/rank_trials.py noise           120 jobs in which nobody is
    python benchmarks/rank_trials.py clocks JOB…     planted offsets within the error

A JOB is a folder with the traces of its ranks, a TRACE one rank with collectives. With
--seed N the trials are others, of the same kinds.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import planting
import polars as pl

from traceq.ranks.analysis import analyse
from traceq.ranks.digest import Digest, digest_of
from traceq.ranks.job import assemble
from traceq.ranks.timeline import PARTS

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import ranking

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.ranks.analysis import Analysis

_TRIALS = 200
_NOISE_JOBS = 120
_RANKS = 8
_SHARE = 0.03
_STEPS = (1, 3, 10)
_CULPRITS = (1, 2)
# Planted in what is too small a share of a rank's time, a delay is no delay; nor is one
# of which less than this share is left.
_LEAST, _PLANTED = 0.15, 0.9
_FARTHEST_NS = 2_000_000_000
_STEP_NS = 100_000


def _digests(folder: Path) -> list[Digest]:
    paths = sorted(folder.glob("*.json*"))
    return [Digest(digest_of(str(path), findings=False)) for path in paths]


def cuts(jobs: list[Path], trials: int, seed: str) -> None:
    """Print how many parts are missing or wrong where windows are cut at random."""
    for folder in jobs:
        chance = random.Random(folder.name + seed)  # noqa: S311 - a benchmark
        whole = _digests(folder)
        truth = ranking.by_wall_clock(whole)
        shared = missing = wrong = 0
        for _ in range(trials):
            result = ranking.errors(
                [ranking.cut(digest, chance) for digest in whole], truth
            )
            shared, missing, wrong = (
                one + other
                for one, other in zip((shared, missing, wrong), result, strict=True)
            )
        print(f"{folder.name}: {trials} trials, {shared} parts of shared collectives,")
        print(f"  {missing} not matched, {wrong} matched with another one", flush=True)


def named(analysis: Analysis) -> set[int]:
    """Return all ranks that are named."""
    return {row for straggler in analysis.stragglers for row in straggler.ranks}


def _plants(rank: planting.Copied) -> Iterator[str]:
    own = rank.stretches.select(pl.sum_horizontal(PARTS).sum()).item()
    gpu = rank.stretches["compute"].sum() / own
    if gpu >= _LEAST:
        yield planting.SLOWER
    if gpu < 1 - _LEAST:
        yield from (planting.SLEEP, planting.DATA, planting.MALLOC)


def culprits(traces: list[Path], trials: int, seed: str) -> None:
    """Print how often the planted ranks are named, all of them and no other."""
    chance = random.Random(seed or 3)  # noqa: S311 - a benchmark
    right = tried = 0
    for path in traces:
        rank = planting.copied(path)
        for plant in _plants(rank):
            delay = _SHARE * rank.step_ns
            late = planting.planted(rank, plant, delay)
            if planting.delay_ns(rank, late) < _PLANTED * delay:
                print(f"{path.name}: {plant} delays no step", flush=True)
                continue
            for steps in _STEPS:
                for count in _CULPRITS:
                    result = sum(
                        _is_right(rank, late, chance, steps, count)
                        for _ in range(trials)
                    )
                    right, tried = right + result, tried + trials
                    print(
                        f"{path.name}: {plant}, {steps} steps, {count} late:"
                        f" {result} of {trials}",
                        flush=True,
                    )
    print(f"right ranks: {right} of {tried}, {right / tried:.1%}")


def _is_right(
    rank: planting.Copied, late: Digest, chance: random.Random, steps: int, count: int
) -> bool:
    rows = chance.sample(range(_RANKS), count)
    job = planting.job_of_steps(
        rank, dict.fromkeys(rows, late), chance, ranks=_RANKS, steps=steps
    )
    return named(analyse(assemble(job))) == set(rows)


def noise(jobs: int, seed: str) -> None:
    """Print in how many jobs a rank is named, in which none is late but by chance."""
    false = 0
    for number in range(jobs):
        chance = random.Random(f"{number} {seed}" if seed else number)  # noqa: S311 - a benchmark
        steps = chance.randint(3, 8)
        works = [
            [
                ranking.Works(compute=round(1000 * (1 + chance.expovariate(3))))
                for _ in range(steps)
            ]
            for _ in range(chance.randint(3, 8))
        ]
        with tempfile.TemporaryDirectory() as folder:
            job = ranking.analysed(ranking.write_job(Path(folder), works))
        false += bool(named(job))
    print(f"noise: a rank is named in {false} of {jobs} jobs")


def clocks(jobs: list[Path], trials: int, seed: str) -> None:
    """Print how often a planted offset is within the error that is stated.

    The whole job says what the clocks differ by without it; windows are cut. Then the
    clocks are set once in the middle, too, in as many trials.
    """
    for step in (0, _STEP_NS):
        covered = tried = 0
        for folder in jobs:
            chance = random.Random(f"clock {folder.name}{seed}")  # noqa: S311 - a benchmark
            whole = assemble(_digests(folder))
            for _ in range(trials):
                right, known = ranking.covered(whole, chance, _FARTHEST_NS, step=step)
                covered, tried = covered + right, tried + known
            print(f"{folder.name}: {covered} of {tried} offsets so far", flush=True)
        which = "of clocks that were set" if step else "of clocks"
        share = covered / max(1, tried)
        print(f"{which}: {covered} of {tried} within the error, {share:.1%}")


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("cuts", "culprits", "noise", "clocks"))
    parser.add_argument("paths", nargs="*", type=Path)
    parser.add_argument("--trials", type=int)
    parser.add_argument("--seed", default="")
    options = parser.parse_args()
    if options.what == "cuts":
        cuts(options.paths, options.trials or _TRIALS, options.seed)
    elif options.what == "culprits":
        culprits(options.paths, options.trials or 20, options.seed)
    elif options.what == "noise":
        noise(options.trials or _NOISE_JOBS, options.seed)
    else:
        clocks(options.paths, options.trials or _TRIALS, options.seed)


if __name__ == "__main__":
    main()
