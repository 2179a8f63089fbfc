"""Jobs of many ranks: what is matched, found and measured, and what it takes.

    python benchmarks/ranks.py planted TRACE…  rank and cause found among 64 copies
    python benchmarks/ranks.py reduce TRACE    4,096 digests: seconds and memory
    python benchmarks/ranks.py files TRACE…    8 files of 400 MB against eight loads

A JOB is a folder with the traces of its ranks, a TRACE one rank with collectives; files
are made of any traces.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import planting
import polars as pl
from files import make

from traceq.inputs.load_trace import load
from traceq.inputs.options import UNCACHED
from traceq.ranks.analysis import analyse
from traceq.ranks.digest import Digest, digest_of
from traceq.ranks.executors.local import Workers, cores
from traceq.ranks.executors.tasks import run_all
from traceq.ranks.gather import digest_tasks
from traceq.ranks.job import assemble
from traceq.ranks.timeline import PARTS

_DELAYS = (0.03, 0.05, 0.10)
_COPIES = 4096
# Compute is too small a share of these to be planted in, or the host never late.
_LEAST_COMPUTE = 0.15
_MB = 1e6


def planted(traces: list[Path], trials: int) -> None:
    """Print how often the planted rank and cause are found, and stragglers in noise."""
    chance = random.Random(1)  # noqa: S311 - a benchmark
    right = tried = 0
    for path in traces:
        rank = planting.copied(path)
        own = rank.stretches.select(pl.sum_horizontal(PARTS).sum()).item()
        gpu = rank.stretches["compute"].sum() / own
        idle = [planting.SLEEP, planting.DATA, planting.MALLOC]
        plants = [planting.LINK]
        plants += [planting.SLOWER] if gpu >= _LEAST_COMPUTE else []
        plants += idle if gpu < 1 - _LEAST_COMPUTE else []
        print(f"{path.name}: step of {rank.step_ns / 1e6:.1f} ms, compute {gpu:.0%}")
        for count in (8, planting.RANKS):
            _print_noise(rank, chance, trials, count)
        for plant in plants:
            for share in _DELAYS:
                result = sum(
                    _is_named(rank, chance, plant, share) for _ in range(trials)
                )
                right, tried = right + result, tried + trials
                print(f"  {plant} of {share:.0%} of a step: {result} of {trials}")
    print(f"right rank and cause: {right} of {tried}, {right / tried:.1%}")


def _print_noise(
    rank: planting.Copied, chance: random.Random, trials: int, count: int
) -> None:
    """Print how often noise is taken for a straggler, and what one rank then costs."""
    false, most = 0, 0.0
    for _ in range(trials):
        copies = planting.job(rank, chance)[:count]
        result = analyse(
            assemble(
                [
                    planting.renumbered(digest, at, count)
                    for at, digest in enumerate(copies)
                ]
            )
        )
        false += bool(result.stragglers)
        most = max(most, *(result.by_rank["saved"].drop_nulls() / result.whatifs.took))
    print(
        f"  noise of 2%, {count} ranks: a straggler in {false} of {trials}, a rank"
        f" saves {most:.2%} at most"
    )


def _is_named(
    rank: planting.Copied, chance: random.Random, plant: str, share: float
) -> bool:
    late = chance.randrange(planting.RANKS)
    digests = planting.job(
        rank, chance, plant=plant, late=late, delay_ns=share * rank.step_ns
    )
    result = analyse(assemble(digests)).stragglers
    return bool(
        result
        and result[0].ranks == (late,)
        and result[0].cause.cause == planting.PLANTS[plant]
    )


def reduce(trace: Path, copies: int) -> None:
    """Print what reducing the digests of a large job takes, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        chance = random.Random(2)  # noqa: S311 - a benchmark
        rank = planting.copied(trace)
        side = planting.RANKS
        made = 0
        while made < copies:
            block = planting.job(
                rank, chance, plant=planting.SLEEP, late=7, delay_ns=0.05 * rank.step_ns
            )
            for digest in block[: min(side, copies - made)]:
                again = planting.renumbered(digest, made, copies)
                (Path(folder) / f"{made:05d}.arrow").write_bytes(again.content)
                made += 1
        done = subprocess.run(
            [sys.executable, __file__, "reduce-folder", folder],
            check=True,
            capture_output=True,
            text=True,
        )
        print(done.stdout.strip())


def reduce_folder(folder: Path) -> None:
    """Reduce the digests of a folder, and print what it took."""
    start = time.perf_counter()
    digests = [Digest(path.read_bytes()) for path in sorted(folder.glob("*.arrow"))]
    result = analyse(assemble(digests))
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    size = sum(len(digest.content) for digest in digests)
    print(
        f"{len(digests)} digests of {size / len(digests) / 1e3:.0f} kB, "
        f"{result.job.cells.height:,} parts of {result.job.collectives.height:,}"
        " collectives: "
        f"{seconds:.1f} s, peak {peak / 1e9:.2f} GB on {cores()} cores"
    )


def files(traces: list[Path], count: int, size: int) -> None:
    """Print what the digests of large files take, against loading them one by one.

    Loads and digests take turns, so that both have the machine as others leave it; its
    load is printed, and the processor's time, which others change least.
    """
    folder = Path(tempfile.mkdtemp())
    os.environ["TRACEQ_CACHE"] = str(folder / "cache")
    try:
        first = folder / "rank0.json"
        make(traces, first, size * 1_000_000, "kineto-2.11")
        paths = [first]
        for row in range(1, count):
            paths.append(folder / f"rank{row}.json")
            os.link(first, paths[-1])
        workers = min(cores(), count)
        loads, digests = [], []
        for row in range(0, count, workers):
            some = paths[row : row + workers]
            loads += [_measured("load", path) for path in some]
            digests.append(_measured("pool", *some))
            print(f"  {row + len(some)} files, load {os.getloadavg()[0]:.1f}")
        _print_files(loads, digests, workers, size)
    finally:
        shutil.rmtree(folder)


def _print_files(
    loads: list[dict[str, float]],
    digests: list[dict[str, float]],
    workers: int,
    size: int,
) -> None:
    for what, unit in (("cpu", "s of processors"), ("seconds", "s")):
        one, other = (sum(run[what] for run in runs) for runs in (loads, digests))
        print(
            f"{len(loads)} files of {size} MB by {workers} processes: {other:.1f}"
            f" {unit}, {other / one:.2f} of {len(loads)} loads one by one ({one:.1f})"
        )
    loaded, digested = (max(run["peak"] for run in runs) for runs in (loads, digests))
    print(
        f"peak of a process that digests {digested / _MB:.0f} MB, of one that loads"
        f" {loaded / _MB:.0f} MB"
    )


def pool(paths: list[Path]) -> None:
    """Digest files by processes, and print what that took."""
    start = time.perf_counter()
    tasks = digest_tasks([(path, None) for path in paths], UNCACHED, findings=False)
    with Workers(len(paths)) as executor:
        run_all(executor, digest_of, tasks)
    seconds = time.perf_counter() - start
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu, peak = used.ru_utime + used.ru_stime, used.ru_maxrss * 1024
    print(json.dumps({"seconds": seconds, "cpu": cpu, "peak": peak}))


def _measured(what: str, *paths: Path) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, __file__, what, *map(str, paths)],
        check=True,
        capture_output=True,
        text=True,
    )
    content: dict[str, float] = json.loads(done.stdout)
    return content


def one(path: Path) -> None:
    """Load one file, and print what it took."""
    start = time.perf_counter()
    load(path, cache=False)
    seconds = time.perf_counter() - start
    used = resource.getrusage(resource.RUSAGE_SELF)
    cpu, peak = used.ru_utime + used.ru_stime, used.ru_maxrss * 1024
    print(json.dumps({"seconds": seconds, "cpu": cpu, "peak": peak}))


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what")
    parser.add_argument("paths", nargs="+", type=Path)
    parser.add_argument("--trials", type=int)
    parser.add_argument("--count", type=int)
    parser.add_argument("--mb", type=int, default=400)
    options = parser.parse_args()
    if options.what == "planted":
        planted(options.paths, options.trials or 20)
    elif options.what == "reduce":
        reduce(options.paths[0], options.count or _COPIES)
    elif options.what == "reduce-folder":
        reduce_folder(options.paths[0])
    elif options.what == "files":
        files(options.paths, options.count or 8, options.mb)
    elif options.what == "pool":
        pool(options.paths)
    else:
        one(options.paths[0])


if __name__ == "__main__":
    main()
