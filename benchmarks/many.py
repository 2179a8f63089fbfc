"""Very many threads, streams, names or deep nesting, against as many plain events.

    python benchmarks/many.py --count 100000

Makes traces of the same number of events and runs ``lint`` and ``summary`` on each in a
process of its own. What is printed: the processor's time, the peak of memory, and the
time beside that of the plain trace. None should take more than 10 times as long, or
more memory than 10 times the file and 300 MB.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

_STEPS = 4
_KINDS = ("plain", "threads", "streams", "names", "depth", "all")
# How many ops lie within each other.
_DEPTH = 10_000
_MEASURE = """
import resource, subprocess, sys
done = subprocess.run(sys.argv[1:], capture_output=True, text=True)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(done.returncode, used.ru_utime + used.ru_stime, used.ru_maxrss)
print(done.stderr.strip()[-300:])
"""


def document(count: int, kind: str) -> dict[str, Any]:
    """Return a trace of ``count`` ops that launch a kernel each, in a few steps."""
    return {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "NVIDIA H200", "numSms": 132}],
        "traceEvents": [*_steps(count), *_events(count, kind)],
    }


def _steps(count: int) -> Iterator[dict[str, Any]]:
    length = 10 * count // _STEPS
    for step in range(_STEPS):
        name = f"ProfilerStep#{step}"
        yield event("user_annotation", name, 1, step * length, length)


def _events(count: int, kind: str) -> Iterator[dict[str, Any]]:
    for at in range(count):
        thread = at + 2 if kind in ("threads", "all") else 1
        stream = at + 7 if kind in ("streams", "all") else 7
        name = f"_{at}" if kind in ("names", "all") else ""
        dims = {"External id": at, "Input Dims": [[8, 8], [8, 8]]}
        call = {"External id": at, "correlation": at}
        work = {"device": 0, "stream": stream, **call}
        nested = 10 * (_DEPTH - at % _DEPTH) if kind == "depth" else 8
        yield event("cpu_op", f"aten::mm{name}", thread, 10 * at, nested, dims)
        yield event("cuda_runtime", "cudaLaunchKernel", thread, 10 * at + 1, 5, call)
        yield event("kernel", f"gemm{name}", stream, 10 * at + 4, 6, work, pid=0)


def event(  # noqa: PLR0913, PLR0917 - an event has this many parts
    cat: str,
    name: str,
    tid: int,
    ts: float,
    dur: float,
    args: dict[str, Any] | None = None,
    pid: int = 1,
) -> dict[str, Any]:
    """Return a complete event as the profiler writes it; times in microseconds."""
    head = {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid}
    return head | {"ts": ts, "dur": dur, "args": args or {}}


def main() -> None:
    """Print what the commands take on each trace."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--kinds", nargs="+", choices=_KINDS, default=_KINDS)
    parser.add_argument("--commands", nargs="+", default=("lint", "summary"))
    options = parser.parse_args()
    plain: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        for kind in options.kinds:
            file = Path(folder) / "trace.json"
            file.write_text(json.dumps(document(options.count, kind)), encoding="utf-8")
            for command in options.commands:
                _print(command, kind, file, plain)


@dataclass(frozen=True)
class Measured:
    """What a command took."""

    status: int
    seconds: float
    """Of the processor."""
    peak: int
    said: str


def measure(command: str, file: Path) -> Measured:
    """Run a command on a trace in a process of its own."""
    call = [sys.executable, "-m", "traceq", command, str(file), "--no-cache"]
    done = subprocess.run(
        [sys.executable, "-c", _MEASURE, *call],
        capture_output=True,
        text=True,
        check=True,
    )
    figures, stdout = done.stdout.split("\n", 1)
    status, seconds, peak = figures.split()
    return Measured(int(status), float(seconds), int(peak) * 1024, stdout.strip())


def _print(command: str, kind: str, file: Path, plain: dict[str, float]) -> None:
    result = measure(command, file)
    plain.setdefault(command, result.seconds)
    size = file.stat().st_size / 1e6
    print(f"{command:8} {kind:8} {size:6.1f} MB  exit {result.status}", end="  ")
    print(
        f"{result.seconds:6.1f} s  {result.seconds / plain[command]:5.1f} x", end="  "
    )
    print(f"{result.peak / 1e6:7.0f} MB  {result.said}", flush=True)


if __name__ == "__main__":
    main()
