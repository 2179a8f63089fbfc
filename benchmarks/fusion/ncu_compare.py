"""Bytes, FLOPs and bounds of ops, compared with the counters of Nsight Compute.

    python benchmarks/fusion/ncu_compare.py [FOLDER]

A folder has NAME.eager.json.gz and NAME.ncu.csv or NAME.ncu.csv.gz (``ncu.py`` makes
them); by default it is this one. Kernels of a step are matched in order, by grid and
block; ops of several kernels have their bytes and FLOPs divided by time. All shares are
of the time by ncu of ops that take 20 µs and more. The limiter is that of ncu's own
rule: compute or memory, whichever is used more, and latency where neither reaches 60%.
"""

from __future__ import annotations

import csv
import gzip
import sys
from collections import defaultdict
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl
from traceq import load
from traceq.analysis.base.steady import steady_steps
from traceq.analysis.time.roofline import roofline

_LEAST_NS = 20_000
_WITHIN = 0.25
_USED = 60.0
_LIMITER = {"compute": "compute", "bandwidth": "memory", "latency": "latency"}


class Counted(NamedTuple):
    """A kernel by ncu."""

    size: tuple[tuple[int, ...], tuple[int, ...]]
    time: float
    bytes: float
    flops: float | None
    limiter: str


class Compared(NamedTuple):
    """An op of both."""

    name: str
    time: float
    bytes_ratio: float | None
    flops_ratio: float | None
    bound: str
    limiter: str


def counted(path: Path) -> list[Counted]:
    """Return the kernels of ncu's CSV."""
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
        lines = [line for line in file if not line.startswith("==")]
    # The first row has the units.
    return [_counted(row) for row in list(csv.DictReader(lines))[1:]]


def _counted(row: dict[str, str]) -> Counted:
    def value(metric: str) -> float:
        return float((row.get(metric) or "0").replace(",", ""))

    def sizes(column: str) -> tuple[int, ...]:
        return tuple(int(one) for one in row[column].strip("()").split(","))

    compute = value("sm__throughput.avg.pct_of_peak_sustained_elapsed")
    memory = value("gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed")
    limiter = "compute" if compute > memory else "memory"
    paths = [metric for metric in row if metric.startswith("sm__ops_path_tensor")]
    return Counted(
        (sizes("Grid Size"), sizes("Block Size")),
        value("gpu__time_duration.sum"),
        value("dram__bytes_read.sum") + value("dram__bytes_write.sum"),
        sum(map(value, paths)) if paths else None,
        limiter if max(compute, memory) >= _USED else "latency",
    )


def compared(trace_path: Path, kernels: list[Counted]) -> list[Compared]:
    """Return the ops of a step that both have, of 20 µs and more."""
    trace = load(trace_path)
    ops = roofline(trace).ops
    step = steady_steps(trace).kernels
    step = step.filter(
        pl.col("activity") == "kernel", pl.col("step") == pl.col("step").min()
    ).sort("ts")
    size = [
        (tuple(grid), tuple(block))
        for grid, block in step.select("grid", "block").iter_rows()
    ]
    row_of = {
        kernel: row
        for row, some in enumerate(ops["kernels"].to_list())
        for kernel in some
    }
    matcher = SequenceMatcher(None, size, [one.size for one in kernels], autojunk=False)
    by_op: dict[int, list[tuple[int, Counted]]] = defaultdict(list)
    for mine, theirs, count in matcher.get_matching_blocks():
        for at in range(count):
            kernel = step["id"][mine + at]
            if kernel in row_of:
                by_op[row_of[kernel]].append(
                    (step["dur"][mine + at], kernels[theirs + at])
                )
    found = [_compared(ops.row(row, named=True), some) for row, some in by_op.items()]
    return [one for one in found if one.time >= _LEAST_NS]


def _compared(op: dict[str, Any], kernels: list[tuple[int, Counted]]) -> Compared:
    part = sum(dur for dur, _ in kernels) / op["gpu"]
    moved = sum(one.bytes for _, one in kernels)
    counters = [one.flops for _, one in kernels if one.flops is not None]
    has_flops = bool(op["flops"]) and op["dtype"] != "fp32" and bool(counters)
    longest = max(kernels, key=lambda one: one[1].time)[1]
    return Compared(
        op["name"],
        sum(one.time for _, one in kernels),
        op["bytes"] * part / moved if op["bytes"] and moved else None,
        op["flops"] * part / sum(counters) if has_flops and sum(counters) else None,
        _LIMITER[op["bound"]],
        longest.limiter,
    )


def report(name: str, ops: list[Compared]) -> None:
    """Print the shares of time in which bytes, FLOPs and bounds agree."""
    whole = sum(one.time for one in ops)
    print(f"{name}: {len(ops)} ops of 20 µs and more, {whole / 1e6:.2f} ms")
    for what, ratios in (
        ("bytes", [(one.time, one.bytes_ratio) for one in ops]),
        ("FLOPs", [(one.time, one.flops_ratio) for one in ops]),
    ):
        known = [(time, ratio) for time, ratio in ratios if ratio is not None]
        if not known:
            print(f"  {what}: no counter")
            continue
        near = sum(time for time, ratio in known if abs(ratio - 1) <= _WITHIN)
        print(f"  {what} within 25%: {near / sum(time for time, _ in known):.0%}")
    agree = sum(one.time for one in ops if one.bound == one.limiter)
    print(f"  bound as ncu's limiter: {agree / whole if whole else 0:.0%}")
    apart: dict[tuple[str, ...], float] = defaultdict(float)
    for one in ops:
        if one.bound != one.limiter:
            apart[one.name, one.bound, one.limiter] += one.time
    for (op, bound, limiter), time in sorted(apart.items(), key=lambda one: -one[1]):
        print(f"    {op}: {bound}, ncu {limiter}, {time / whole:.0%}")
    for one in sorted(ops, key=lambda one: -one.time):
        if one.bytes_ratio is not None and abs(one.bytes_ratio - 1) > _WITHIN:
            print(f"    {one.name}: {one.bytes_ratio:.2f} of ncu's bytes")
            break


def main(folder: Path) -> None:
    """Compare each program of a folder, then all together."""
    every: list[Compared] = []
    for path in sorted([*folder.glob("*.ncu.csv"), *folder.glob("*.ncu.csv.gz")]):
        name = path.name.partition(".")[0]
        ops = compared(folder / f"{name}.eager.json.gz", counted(path))
        report(name, ops)
        every += ops
    report("all", every)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
