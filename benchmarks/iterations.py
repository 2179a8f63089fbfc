"""Detection of steps without their marks: the same count, the same length.

``python benchmarks/iterations.py [TRACE=COUNT ...]``: of every trace with two marked
steps or more, the marks of the profiler, the optimizer's calls, or all annotations are
taken out of its tables, and the steps are found again. One step, and the forward of one
step, cut out of each trace are traces of something done once: no steps are there to be
found. The last step of each, six times in a row and cut at both ends, is a window of
time: all but the cut ones are there. A trace without marks is given with the number of
its iterations.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from recordings import TRACES

from traceq.common.expressions import END
from traceq.formats.chrome import read
from traceq.graph import host, steps
from traceq.graph.link import link
from traceq.model import names

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_MARKS = {
    "marks": rf"{names.STEP}|{names.OPTIMIZER_STEP}",
    "all annotations": r"",
}
_LENGTH = 0.02
# Where a window of time cuts the first of this many steps, and the last.
_IN_WINDOW = 6
_CUTS = ((0.3, 0.5), (0.7, 0.2), (0.5, 0.9))
# Loops that nobody marked for the profiler, and how often they ran.
_LOOPS = {"public/a100_vit_graph": 5}


@dataclass(frozen=True)
class Result:
    """What was found in a trace of which the steps are known."""

    name: str
    without: str
    wanted: int
    found: int
    length: float
    """The median length by that of the marked steps."""
    share: float
    """How long the finding took by what reading and linking took."""

    @property
    def right(self) -> bool:
        """Whether there are as many steps."""
        return self.wanted == self.found


def stripped(raw: Mapping[str, pl.DataFrame], pattern: str) -> dict[str, pl.DataFrame]:
    """Return the tables without the annotations whose name matches."""
    name = pl.col("name").cast(pl.String)
    retained = raw["annotations"].filter(~name.str.contains(pattern))
    return {**raw, "annotations": retained}


def cut(
    raw: Mapping[str, pl.DataFrame], start: int, end: int
) -> dict[str, pl.DataFrame]:
    """Return what the host did between two moments, without annotations."""
    inside = pl.col("ts").is_between(start, end) & END.le(end)
    host_tables = {name: raw[name].filter(inside) for name in ("ops", "runtime")}
    calls = host_tables["runtime"].select("correlation")
    kernels = raw["kernels"].join(calls, on="correlation", how="semi")
    return stripped({**raw, **host_tables, "kernels": kernels}, "")


def found_in(raw: Mapping[str, pl.DataFrame], by: str = "") -> steps.Steps:
    """Return the steps of raw tables."""
    regions = host.describe(raw["annotations"], names.describe_regions)
    return steps.find(raw, regions, by)


def compared(
    name: str, raw: Mapping[str, pl.DataFrame], read_s: float
) -> Iterator[Result]:
    """Find the marked steps of a trace without their marks."""
    begin = time.perf_counter()
    marked = link(raw).tables["steps"]
    loading = read_s + time.perf_counter() - begin
    for without, pattern in _MARKS.items():
        bare = stripped(raw, pattern)
        begin = time.perf_counter()
        found_in(bare)
        took = time.perf_counter() - begin
        result = link(bare).tables["steps"]
        yield Result(
            name,
            without,
            marked.height,
            result.height,
            _median(result) / _median(marked),
            took / loading,
        )


def _median(table: pl.DataFrame) -> float:
    typical = table["time"].median()
    return typical if isinstance(typical, float) else 0.0


def once(raw: Mapping[str, pl.DataFrame]) -> Iterator[tuple[str, int]]:
    """Yield how many steps are found in one step, and in one forward."""
    first = found_in(raw, "profiler").windows.row(0, named=True)
    start, end = first["ts"], first["end"]
    yield "one step", found_in(cut(raw, start, end)).windows.height
    backward = (
        raw["ops"]
        .filter(
            pl.col("name").cast(pl.String).str.contains(names.BACKWARD_OP),
            pl.col("ts") >= start,
        )["ts"]
        .min()
    )
    if isinstance(backward, int) and backward < end:
        yield "one forward", found_in(cut(raw, start, backward)).windows.height


def windows(name: str, raw: Mapping[str, pl.DataFrame]) -> Iterator[Result]:
    """Find the last step in windows that hold it several times, the ends cut."""
    start, end = found_in(raw, "profiler").windows.select("ts", "end").row(-1)
    span = end - start
    long = _repeated(raw, start, end)
    for first, last in _CUTS:
        began = start + round(first * span)
        until = start + round((_IN_WINDOW - 1 + last) * span)
        result = found_in(cut(long, began, until)).windows
        whole = _IN_WINDOW - 2
        # What is whole depends on where an iteration is taken to begin.
        count = whole if whole - 1 <= result.height <= whole + 1 else result.height
        length = (result["end"] - result["ts"]).median()
        each = length / span if isinstance(length, float) else 0.0
        yield Result(name, "marks and ends", whole, count, each, 0.0)


def _repeated(
    raw: Mapping[str, pl.DataFrame], start: int, end: int
) -> dict[str, pl.DataFrame]:
    """Return what the host did between two moments several times in a row."""
    once = cut(raw, start, end)
    numbers = once["runtime"]["correlation"].max()
    step = numbers + 1 if isinstance(numbers, int) else 1
    shifted = {
        name: pl.concat(
            once[name].with_columns(
                pl.col("ts") + number * (end - start),
                *([pl.col("correlation") + number * step] if name != "ops" else []),
            )
            for number in range(_IN_WINDOW)
        )
        for name in ("ops", "runtime", "kernels")
    }
    return {**once, **shifted}


def main() -> None:
    """Print each trace, then how many are right."""
    files = dict(text.rpartition("=")[::2] for text in sys.argv[1:])
    inputs = _LOOPS | {file: int(count or 0) for file, count in files.items()}
    results: list[Result] = []
    singles: list[tuple[str, int]] = []
    for name, path in {**TRACES, **{file: Path(file) for file in files}}.items():
        begin = time.perf_counter()
        raw = read(path).tables
        took = time.perf_counter() - begin
        count = found_in(raw, "profiler").windows.height
        if count > 1:
            results += compared(name, raw, took)
        elif inputs.get(name):
            result = link(stripped(raw, "")).tables["steps"].height
            results.append(Result(name, "", inputs[name], result, 1.0, 0.0))
        else:
            result = found_in(stripped(raw, "")).windows.height
            singles.append((f"{name}, {count} marked", result))
        if count:
            results += windows(name, raw)
            singles += [(f"{name}, {part}", result) for part, result in once(raw)]
    _print(results, singles)


def _print(results: list[Result], singles: list[tuple[str, int]]) -> None:
    for item in results:
        flag = "" if item.right and abs(item.length - 1) <= _LENGTH else "  <-"
        print(
            f"{item.name:45} without {item.without:16} {item.wanted:4} steps, found"
            f" {item.found:4}, length x{item.length:.3f}, {item.share:.2f} x load{flag}"
        )
    for name, result in singles:
        print(f"{name:60} done once, found {result}" + ("  <-" if result else ""))
    for without in dict.fromkeys(entry.without for entry in results):
        some = [entry for entry in results if entry.without == without]
        right = [entry for entry in some if entry.right]
        near = [entry for entry in right if abs(entry.length - 1) <= _LENGTH]
        print(
            f"without {without or 'marks of its own'}: the same count in {len(right)}"
            f" of {len(some)} ({len(right) / len(some):.1%}), of these the median"
            f" length within 2% in {len(near)}; finding takes"
            f" {max(entry.share for entry in some):.2f} x load at most"
        )
    wrong = sum(result > 0 for _, result in singles)
    print(f"done once: steps claimed in {wrong} of {len(singles)}")


if __name__ == "__main__":
    main()
