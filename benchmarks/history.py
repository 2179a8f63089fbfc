"""Planted jumps in histories with real noise, and a history of 10,000 runs.

    python benchmarks/history.py --seeds 20
    python benchmarks/history.py --runs 10000

A run is the digest of a committed recording (an H200, torch 2.11), changed by noise
that was measured: step times are those of blocks of steps of ten programs, in the order
in which they were measured (fresh/measured.jsonl); the times of kernels differ as they
do between the two recorded steps; the GPU as a whole as a GPU-bound program does. Four
jumps are planted in 60 runs: casts (+3% of the GPU's time), a sync (+4% of the step), a
slower kernel (+4% of the GPU's time) and memory (+5%). What is printed for each
program's noise: how many were found at their run, with their cause, and how many more.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path
from statistics import median
from typing import NamedTuple

import polars as pl
from msgspec import structs

from traceq.api import settings
from traceq.api.history import DigestOptions, digests_of
from traceq.history.digest import Digest, Held, Memory, StepTime, Work
from traceq.history.series import Series, series_in
from traceq.history.store import add
from traceq.inputs.load_trace import load
from traceq.report.history.content import main_kind

ROOT = Path(__file__).resolve().parents[1]
TRACE = ROOT / "fixtures" / "twins" / "attn_flash" / "trace.json.gz"
MEASURED = ROOT / "benchmarks" / "fresh" / "measured.jsonl"
KINDS = ("casts", "syncs", "kernel time", "memory")
RUNS = 60
_GPU_BOUND = "segment_anything"
# Runs that follow each other drift together: as many blocks are taken in a row.
_IN_A_ROW = 4
_DAY = 86_400 * 10**9
_SAME_LENGTH = 4.0
_OF_GPU, _OF_STEP, _OF_MEMORY = 0.03, 0.04, 1.05
_SLOWER_OF_GPU = 0.04
# The GPU of a program with more noise than this waits for the host.
_HOST_BOUND = 0.02


class Planted(NamedTuple):
    """A history with jumps: the digests, and the run of each kind of jump."""

    digests: list[Digest]
    at: dict[str, int]


class Score(NamedTuple):
    """Planted, detected and false jumps of one history."""

    found: int
    with_cause: int
    false: int


@cache
def base() -> Digest:
    """Return the digest of the recording that all runs are made of."""
    config = settings.configuration(None)
    options = settings.LintOptions(
        config=config, load=settings.load_options(config, cache=False)
    )
    ((_, digest),) = digests_of(TRACE, options, DigestOptions(commit="0" * 40))
    return structs.replace(digest, name="run", series="train.py")


@cache
def noise_of_steps() -> dict[str, list[float]]:
    """Return step times by program, relative to their median, in order."""
    noise: dict[str, list[float]] = {}
    for line in MEASURED.read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        times = [block["mean_ms"] for block in entry["blocks"] if not block["on"]]
        level = median(times) if times else 1.0
        noise.setdefault(entry["program"], []).extend(
            duration / level for duration in times
        )
    return {name: times for name, times in noise.items() if len(times) > _IN_A_ROW}


@cache
def noise_of_kernels() -> list[tuple[float, float]]:
    """Return the time of each kernel in a step, and in the next relative to it."""
    trace = load(TRACE, cache=False)
    by_step = (
        trace.kernels.drop_nulls("step")
        .group_by("step", pl.col("name").cast(pl.String))
        .agg(pl.col("dur").sum())
        .pivot("step", index="name", values="dur")
        .drop_nulls()
        .sort("name")
    )
    return [(first, second / first) for _, first, second in by_step.iter_rows()]


def history(program: str, seed: int, runs: int = RUNS) -> Planted:
    """Return the digests of a history with four planted jumps."""
    # Programs do not share their draws.
    draw = random.Random(f"{program} {seed}")  # noqa: S311 - no secret
    kinds = draw.sample(KINDS, len(KINDS))
    part = runs // (len(kinds) + 1)
    at = {
        kind: part * place + draw.randint(-2, 2) for place, kind in enumerate(kinds, 1)
    }
    steps, gpu = (
        _in_a_row(noise_of_steps()[name], runs, draw) for name in (program, _GPU_BOUND)
    )
    spread = median(
        abs(noise_of_step - 1) for noise_of_step in noise_of_steps()[program]
    )
    idle = 0.03 if spread < _HOST_BOUND else 1.0
    digests = [
        _run(
            number,
            {kind for kind, first in at.items() if number >= first},
            (steps[number], gpu[number], idle),
            draw,
        )
        for number in range(runs)
    ]
    return Planted(digests, at)


def _in_a_row(pool: list[float], count: int, draw: random.Random) -> list[float]:
    drawn: list[float] = []
    while len(drawn) < count:
        start = draw.randrange(len(pool))
        drawn += [pool[(start + index) % len(pool)] for index in range(_IN_A_ROW)]
    return drawn[:count]


def _run(
    number: int,
    planted: set[str],
    noise: tuple[float, float, float],
    draw: random.Random,
) -> Digest:
    """Return one run with the jumps that were planted before it."""
    step_noise, gpu_noise, idle_share = noise
    rows = list(base().work)
    busy = sum(row.gpu_ns for row in rows)
    if "kernel time" in planted:
        slow = max(range(len(rows)), key=lambda at: rows[at].gpu_ns)
        more = rows[slow].gpu_ns + _SLOWER_OF_GPU * busy
        rows[slow] = structs.replace(rows[slow], gpu_ns=more)
    if "casts" in planted:
        name = ("forward", "LM/Block", "dev_cases.py:forward", "aten::to", "cast")
        kernel = "vectorized_elementwise_kernel"
        rows.append(Work(*name, kernel, 12, 12, _OF_GPU * busy, 0, 0, 0))
    rows = [_noisy(row, gpu_noise, draw) for row in rows]
    busy_now = sum(row.gpu_ns for row in rows)
    waits = _OF_STEP * busy * (1 + idle_share) if "syncs" in planted else 0.0
    if waits:
        name = ("optimizer", "", "train.py:step", "aten::item", "compute")
        rows.append(Work(*name, "Memcpy DtoH (Device -> Pinned)", 1, 0, 0, 0, 1, waits))
    step = step_noise * (busy_now * (1 + idle_share)) + waits
    step = max(step, busy_now)
    memory = base().memory
    size = memory.allocated if memory else 1 << 30
    held = [
        Held("parameters", "train.py:main", size // 4),
        Held("activations", "dev_cases.py:forward", size // 2),
    ]
    if "memory" in planted:
        more_bytes = round(size * (_OF_MEMORY - 1))
        size += more_bytes
        held[1] = structs.replace(held[1], size=held[1].size + more_bytes)
    return structs.replace(
        base(),
        name=f"run-{number}",
        at_ns=(1 + number) * _DAY,
        commit=hashlib.sha256(str(number).encode()).hexdigest()[:40],
        step=StepTime(step, 0.01 * step, 20, "measured"),
        busy_ns=busy_now,
        idle_ns=step - busy_now,
        kernels=sum(row.kernels for row in rows),
        syncs=sum(row.syncs for row in rows),
        work=tuple(rows),
        memory=Memory(size, size + (size >> 4), tuple(held)),
    )


def _noisy(row: Work, gpu: float, draw: random.Random) -> Work:
    """Return the row with the noise of kernels that take about as long."""
    alike = [
        ratio
        for length, ratio in noise_of_kernels()
        if 1 / _SAME_LENGTH <= length / max(row.gpu_ns, 1) <= _SAME_LENGTH
    ]
    ratio = draw.choice(alike) if alike else 1.0
    return structs.replace(row, gpu_ns=row.gpu_ns * ratio * gpu)


def score(series: Series, at: dict[str, int]) -> Score:
    """Return how many of the planted jumps were found, and how many others."""
    left = dict(at)
    with_cause = 0
    false = 0
    for jump in series.jumps:
        near = [kind for kind, place in left.items() if abs(place - jump.jump.at) <= 1]
        if not near:
            false += 1
            continue
        del left[near[0]]
        with_cause += main_kind(jump.difference, jump.jump.shifts) == near[0]
    return Score(len(at) - len(left), with_cause, false)


def scored(program: str, seed: int) -> Score:
    """Return the score of one planted history."""
    planted = history(program, seed)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "history.sqlite"
        add(file, [(digest.name, digest) for digest in planted.digests])
        (series,) = series_in(file)
    return score(series, planted.at)


def large(count: int) -> None:
    """Print the size of a history of many runs, and how long ``show`` takes."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "history.sqlite"
        planted = history(_GPU_BOUND, 0, count)
        add(file, [(digest.name, digest) for digest in planted.digests])
        print(f"{count} runs: {file.stat().st_size / 1e6:.1f} MB")
        command = [sys.executable, "-m", "traceq", "history", "show", "--db", str(file)]
        times = []
        for _ in range(5):
            start = time.perf_counter()
            shown = subprocess.run(command, check=True, capture_output=True).stdout
            times.append(time.perf_counter() - start)
        lines = shown.count(b"\n")
        print(f"show: {min(times):.2f} s, median {median(times):.2f} s, {lines} lines")


def main() -> None:
    """Print the scores of all programs, or the figures of a large history."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--runs", type=int, help="measure a history of as many runs")
    wanted = parser.parse_args()
    if wanted.runs:
        large(wanted.runs)
        return
    total = [0, 0, 0, 0]
    print("noise of              median   planted  found  with cause  false")
    for program, noise in noise_of_steps().items():
        scores = [scored(program, wanted.first + at) for at in range(wanted.seeds)]
        spread = 100 * median(abs(value - 1) for value in noise)
        counts = [len(KINDS) * len(scores), *map(sum, zip(*scores, strict=True))]
        total = [a + b for a, b in zip(total, counts, strict=True)]
        cells = "".join(f"{count:8}" for count in counts)
        print(f"{program:22}{spread:5.1f}% {cells}", flush=True)
    print(f"{'all':28} {''.join(f'{number:8}' for number in total)}")


if __name__ == "__main__":
    main()
