"""Bytes, FLOPs and losses of kernels, compared with the counters of Nsight Compute.

    python benchmarks/fusion/ncu_compare.py [FOLDER]

A folder has NAME.eager.json.gz and NAME.ncu.csv or NAME.ncu.csv.gz (``ncu.py`` makes
them); by default it is this one. Kernels of a step are matched in order, by grid and
block. All shares are of the time by ncu.

Bytes and FLOPs are of ops that take 20 µs and more; those of an op with several
kernels are divided by time. Limiters are of kernels that take 20 µs and more: what the
largest loss of a kernel in the account of GPU time implies. Where no loss is a quarter
of its time, or the loss is of its bytes, that is the bound of its op, or latency where
the op reaches less than 60% of that peak: ncu's own rule. Where the account claims
compute or memory, the unit that is used more is compared, too.
"""

from __future__ import annotations

import csv
import gzip
import sys
from collections import Counter
from difflib import SequenceMatcher
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import polars as pl
from traceq import load
from traceq.analysis.base.steady import steady_steps
from traceq.analysis.time import gpu_account as accounts
from traceq.analysis.time.gpu_account import gpu_account
from traceq.analysis.time.roofline import in_two_orders, roofline

if TYPE_CHECKING:
    from collections.abc import Iterable

    from traceq.model.trace import Trace

_LEAST_NS = 20_000
_WITHIN = 0.25
_USED = 60.0
_NAMED = 0.25
_BOUND = {"compute": "compute", "bandwidth": "memory", "latency": "latency"}
# What a loss says of a kernel: few blocks and short kernels wait, an older algorithm or
# a misaligned shape keeps the cores from computing. The others are of the op's bound.
_LIMITER = {
    accounts.BLOCKS: "latency",
    accounts.LAUNCH: "latency",
    accounts.SHAPES: "not compute",
    accounts.ALGORITHM: "not compute",
}


class Counted(NamedTuple):
    """A kernel by ncu."""

    size: tuple[tuple[int, ...], tuple[int, ...]]
    time: float
    bytes: float
    flops: float | None
    used_more: str
    limiter: str


class ComparedOp(NamedTuple):
    """An op of both."""

    name: str
    time: float
    bound: str
    bytes_ratio: float | None
    flops_ratio: float | None


class ComparedKernel(NamedTuple):
    """A kernel of both: what the account implies, and ncu's limiter."""

    name: str
    time: float
    part: str
    implied: str
    used_more: str
    limiter: str

    @property
    def agrees(self) -> bool:
        """True if the account implies ncu's limiter."""
        if self.implied == "not compute":
            return self.limiter != "compute"
        return self.implied == self.limiter

    @property
    def names_the_unit(self) -> bool:
        """True if it does, or names the unit that is used more."""
        return self.agrees or self.implied == self.used_more


class Compared(NamedTuple):
    """Ops and kernels of a step that both have."""

    ops: list[ComparedOp]
    kernels: list[ComparedKernel]


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
        return tuple(int(size) for size in row[column].strip("()").split(","))

    compute = value("sm__throughput.avg.pct_of_peak_sustained_elapsed")
    memory = value("gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed")
    used_more = "compute" if compute > memory else "memory"
    paths = [metric for metric in row if metric.startswith("sm__ops_path_tensor")]
    return Counted(
        (sizes("Grid Size"), sizes("Block Size")),
        value("gpu__time_duration.sum"),
        value("dram__bytes_read.sum") + value("dram__bytes_write.sum"),
        sum(map(value, paths)) if paths else None,
        used_more,
        used_more if max(compute, memory) >= _USED else "latency",
    )


def compared(trace_path: Path, kernels: list[Counted]) -> Compared:
    """Return the ops and kernels of a step that both have, of 20 µs and more."""
    trace = load(trace_path)
    matches = _matches(trace, kernels)
    return Compared(_ops(trace, matches), _kernels(trace, matches))


def _matches(trace: Trace, kernels: list[Counted]) -> dict[int, tuple[int, Counted]]:
    """Return duration and counters of kernels, by their id in the trace."""
    step = steady_steps(trace).kernels
    step = step.filter(
        pl.col("activity") == "kernel", pl.col("step") == pl.col("step").min()
    ).sort("ts")
    sizes = [
        (tuple(grid), tuple(block))
        for grid, block in step.select("grid", "block").iter_rows()
    ]
    by_ncu = [kernel.size for kernel in kernels]
    matcher = SequenceMatcher(None, sizes, by_ncu, autojunk=False)
    return {
        step["id"][own + at]: (step["dur"][own + at], kernels[theirs + at])
        for own, theirs, count in matcher.get_matching_blocks()
        for at in range(count)
    }


def _ops(trace: Trace, matches: dict[int, tuple[int, Counted]]) -> list[ComparedOp]:
    rows = roofline(trace).ops.iter_rows(named=True)
    some = ((op, [matches[k] for k in op["kernels"] if k in matches]) for op in rows)
    ops = [_op(op, kernels) for op, kernels in some if kernels]
    return [op for op in ops if op.time >= _LEAST_NS]


def _op(op: dict[str, Any], kernels: list[tuple[int, Counted]]) -> ComparedOp:
    part = sum(dur for dur, _ in kernels) / op["gpu"]
    moved = sum(kernel.bytes for _, kernel in kernels)
    counters = [kernel.flops for _, kernel in kernels if kernel.flops is not None]
    has_flops = bool(op["flops"]) and op["dtype"] != "fp32" and bool(counters)
    return ComparedOp(
        op["name"],
        sum(kernel.time for _, kernel in kernels),
        op["bound"],
        op["bytes"] * part / moved if op["bytes"] and moved else None,
        op["flops"] * part / sum(counters) if has_flops and sum(counters) else None,
    )


def _kernels(
    trace: Trace, matches: dict[int, tuple[int, Counted]]
) -> list[ComparedKernel]:
    parts = gpu_account(trace).parts.with_columns(
        pl.col("part", "bound").cast(pl.String),
        share=pl.col("time") / pl.col("time").sum().over("kernel"),
    )
    work = parts["part"].is_in([accounts.WORK, accounts.UNKNOWN])
    # A loss that is large enough comes before the work.
    named = ~work & (parts["share"] >= _NAMED)
    largest = (
        parts.with_columns(named=named)
        .sort("named", "time", descending=True)
        .unique("kernel", keep="first")
    )
    # Kernels that are bound by their instructions have no operations, and those with
    # gaps between what they read move more than their bytes.
    ops = roofline(trace).ops
    gaps = in_two_orders(trace)[ops["inputs"]].fill_null(value=False)
    streams = (pl.col("bound") == "bandwidth") & ~gaps
    known = streams | (pl.col("flops") > 0)
    reached = ops.select(
        kernel="kernels",
        reached=100 * pl.when(known).then(pl.col("least") / pl.col("gpu")),
    )
    largest = largest.join(reached.explode("kernel"), on="kernel", how="left")
    rows = largest.select("kernel", "name", "part", "bound", "reached").iter_rows()
    return [
        ComparedKernel(
            name,
            matches[kernel][1].time,
            part,
            _implied(part, bound, reached),
            matches[kernel][1].used_more,
            matches[kernel][1].limiter,
        )
        for kernel, name, part, bound, reached in rows
        if kernel in matches and matches[kernel][1].time >= _LEAST_NS
    ]


def _implied(part: str, bound: str | None, reached: float | None) -> str:
    """Return what limits a kernel by the account: its loss, or what it reaches."""
    if part in _LIMITER:
        return _LIMITER[part]
    if reached is not None and reached < _USED:
        return "latency"
    return _BOUND.get(bound or "", "unknown")


def _share(times: Iterable[tuple[float, bool]]) -> float:
    """Return the share of time for which something holds."""
    pairs = list(times)
    whole = sum(time for time, _ in pairs)
    return sum(time for time, holds in pairs if holds) / whole if whole else 0.0


def report(name: str, both: Compared) -> None:
    """Print the shares of time in which bytes, FLOPs and limiters agree."""
    time = sum(kernel.time for kernel in both.kernels)
    print(f"{name}: {len(both.kernels)} kernels of 20 µs and more, {time / 1e6:.2f} ms")
    slow = [op for op in both.ops if op.bound == "bandwidth"]
    for what, ratios in (
        ("bytes", [(op.time, op.bytes_ratio) for op in both.ops]),
        ("bytes of bandwidth-bound ops", [(op.time, op.bytes_ratio) for op in slow]),
        ("FLOPs", [(op.time, op.flops_ratio) for op in both.ops]),
    ):
        near = [(at, abs(ratio - 1) <= _WITHIN) for at, ratio in ratios if ratio]
        print(f"  {what} within 25%: {_share(near):.0%}" if near else f"  no {what}")
    agree = _share((kernel.time, kernel.agrees) for kernel in both.kernels)
    units = _share((kernel.time, kernel.names_the_unit) for kernel in both.kernels)
    print(f"  account as ncu's limiter: {agree:.0%}, or as its unit: {units:.0%}")
    apart: Counter[str] = Counter()
    for kernel in both.kernels:
        if not kernel.agrees:
            apart[
                f"{kernel.name}: {kernel.part}, {kernel.implied}, ncu {kernel.limiter}"
            ] += round(kernel.time)
    for op in both.ops:
        if op.bytes_ratio is not None and abs(op.bytes_ratio - 1) > _WITHIN:
            fewer = "fewer" if op.bytes_ratio < 1 else "more"
            apart[f"{op.name}: {fewer} bytes than ncu"] += round(op.time)
    for difference, ns in apart.most_common(12):
        print(f"    {difference}, {ns / time:.0%}")


def main(folder: Path) -> None:
    """Compare each program of a folder, then all together."""
    every = Compared([], [])
    for path in sorted([*folder.glob("*.ncu.csv"), *folder.glob("*.ncu.csv.gz")]):
        name = path.name.partition(".")[0]
        both = compared(folder / f"{name}.eager.json.gz", counted(path))
        report(name, both)
        every.ops.extend(both.ops)
        every.kernels.extend(both.kernels)
    report("all", every)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
