"""Growth of a command's time with events, threads, streams, steps and shapes.

    python benchmarks/growth.py [--ops 100000] [--commands lint summary]

Makes traces with 1, 2, 4 and 8 times as many of one thing, the rest unchanged, and runs
each command on them in processes of their own. What is printed for each thing: the
processor's time at each size, less what the command takes on a trace of one op, and
the exponent of the power that fits them best: 1.1 at most, twice as many take twice as
long.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from many import event, measure

if TYPE_CHECKING:
    from collections.abc import Iterator

_TIMES = (1, 2, 4, 8)
_MOST = 1.1


@dataclass(frozen=True)
class Counts:
    """How many of each thing a trace has; an op launches a kernel."""

    ops: int
    threads: int = 8
    streams: int = 8
    steps: int = 8
    shapes: int = 8


def document(counts: Counts) -> dict[str, Any]:
    """Return a trace with as many ops, threads, streams, steps and shapes."""
    return {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "NVIDIA H200", "numSms": 132}],
        "traceEvents": list(_events(counts)),
    }


def _events(counts: Counts) -> Iterator[dict[str, Any]]:
    length = 10 * counts.ops / counts.steps
    for step in range(counts.steps):
        name = f"ProfilerStep#{step}"
        yield event("user_annotation", name, 1, step * length, length)
    for at in range(counts.ops):
        thread, stream = at % counts.threads + 1, at % counts.streams + 7
        rows = at % counts.shapes + 1
        dims = {"External id": at, "Input Dims": [[rows, 8], [8, 8]]}
        call = {"External id": at, "correlation": at}
        work = {"device": 0, "stream": stream, **call}
        yield event("cpu_op", "aten::mm", thread, 10 * at, 8, dims)
        yield event("cuda_runtime", "cudaLaunchKernel", thread, 10 * at + 1, 5, call)
        yield event("kernel", "gemm", stream, 10 * at + 4, 6, work, pid=0)


def exponent(counts: tuple[int, ...], seconds: list[float]) -> float:
    """Return the power of the count that fits the times best."""
    x, y = (
        [math.log(count) for count in counts],
        [math.log(second) for second in seconds],
    )
    middle = sum(x) / len(x)
    above = sum((one - middle) * other for one, other in zip(x, y, strict=True))
    return above / sum((value - middle) ** 2 for value in x)


def main() -> None:
    """Print how each command grows with each thing."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ops", type=int, default=100_000)
    parser.add_argument("--commands", nargs="+", default=("lint", "summary"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--things", nargs="+", default=[], help="all, unless given")
    options = parser.parse_args()
    base = Counts(options.ops)
    # As many as make a trace of their own kind, not as many as there are ops.
    crowd = Counts(8 * options.ops, *(max(8, options.ops // 100) for _ in range(4)))
    grown = {
        "ops": [replace(base, ops=options.ops * times) for times in _TIMES],
        "threads": [replace(crowd, threads=crowd.threads * n) for n in _TIMES],
        "streams": [replace(crowd, streams=crowd.streams * n) for n in _TIMES],
        "steps": [replace(crowd, steps=crowd.steps * n) for n in _TIMES],
        "shapes": [replace(crowd, shapes=crowd.shapes * n) for n in _TIMES],
    }
    with tempfile.TemporaryDirectory() as folder:
        for command in options.commands:
            start = _seconds(command, Counts(1), Path(folder), options.rounds)
            for thing, sizes in grown.items():
                if options.things and thing not in options.things:
                    continue
                took = [
                    max(
                        0.01,
                        _seconds(command, size, Path(folder), options.rounds) - start,
                    )
                    for size in sizes
                ]
                power = exponent(_TIMES, took)
                times = "  ".join(f"{value:6.2f} s" for value in took)
                missed = "  (missed)" if power > _MOST else ""
                print(f"{command:8} {thing:8} {times}  exponent {power:.2f}{missed}")


def _seconds(command: str, counts: Counts, folder: Path, rounds: int) -> float:
    """Return the processor's time of a command on such a trace, the best of several."""
    file = folder / "trace.json"
    file.write_text(json.dumps(document(counts)), encoding="utf-8")
    return min(measure(command, file).seconds for _ in range(rounds))


if __name__ == "__main__":
    main()
