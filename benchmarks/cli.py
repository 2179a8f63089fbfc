"""User-visible latency, from Enter to findings: every speed target in one run.

    python benchmarks/cli.py --folder FOLDER [--write] [--with hta,perfetto,tracelens]

Makes files of several sizes and layouts from the fixtures' real traces and snapshots,
runs the commands from the shell, in turns with what they are measured against (orjson
and pickle, with the garbage collector off), and prints each ratio: the median of the
rounds, the lowest and the highest, and the bar. Peaks are resident memory against the
size of the file. Run it on an otherwise idle machine.

``--write`` puts the table into docs/speed.md. ``--with`` measures other tools on the
same file, those that this Python has installed. ``--large FILE`` lints a trace of your
own as well, such as one of several GB.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import common
from files import LAYOUTS, make
from snapshot import make as make_snapshot

if TYPE_CHECKING:
    from collections.abc import Sequence

_HERE = Path(__file__).parent
_CAPTURES = _HERE.parent / "fixtures" / "captures"
_PAGE = _HERE.parent / "docs" / "speed.md"
_MARKS = ("<!-- speed -->", "<!-- /speed -->")
_TRACEQ = (str(Path(sys.executable).with_name("traceq")),)
_KINETO = "kineto-2.11"
_PAIR = ("before.json", "after.json")
_COMPLETION = {"_TRACEQ_COMPLETE": "complete_bash", "COMP_CWORD": "2"}
# Calls that do next to nothing, with what they must take at most, and would better.
_STARTS = (
    ("--version", 0.1, 0.05),
    ("--help", 0.2, 0.15),
    ("lint --help", 0.4, 0.2),
    ("rules", 0.4, 0.3),
)
# What takes less than a second is measured this often in each round.
_TURNS = 7
# Exit 1 says that there are findings.
_EXITS = (0, 1)
_PEERS = {
    "hta": "from hta.common.trace_file import *; from hta.trace_analysis import"
    " TraceAnalysis; TraceAnalysis(trace_files={{0: {path!r}}}, trace_dir='.')",
    "perfetto": "from perfetto.trace_processor import TraceProcessor;"
    " TraceProcessor(trace={path!r}).close()",
    "tracelens": "from TraceLens import TreePerfAnalyzer;"
    " TreePerfAnalyzer.from_file({path!r})",
}


@dataclass(frozen=True)
class Shell:
    """What a command took, from Enter to its end."""

    seconds: float
    peak: int
    """The most bytes of memory that it held."""


@dataclass
class Bar:
    """A figure that may not be passed, and what each round found."""

    text: str
    must: float
    stretch: float
    unit: str = "×"
    found: list[float] = field(default_factory=list)


class Bars:
    """All bars, by their text."""

    def __init__(self) -> None:
        """Begin without any."""
        self.by_text: dict[str, Bar] = {}

    def add(
        self, text: str, figure: float, must: float, stretch: float, unit: str = "×"
    ) -> None:
        """Note what a round found."""
        bar = self.by_text.setdefault(text, Bar(text, must, stretch, unit))
        bar.found.append(figure)
        print(f"  {text}: {_figure(figure, unit)}", flush=True)

    def table(self) -> str:
        """Return the figures as a table of Markdown."""
        lines = [
            "| | median | rounds | must | stretch |",
            "| --- | --- | --- | --- | --- |",
        ]
        for bar in self.by_text.values():
            middle, unit = statistics.median(bar.found), bar.unit
            low, high = min(bar.found), max(bar.found)
            missed = " (missed)" if middle > bar.must else ""
            lines.append(
                f"| {bar.text} | {_figure(middle, unit)}{missed} | {_figure(low, unit)}"
                f" to {_figure(high, unit)} | {bar.must:g} | {bar.stretch:g} |"
            )
        return "\n".join(lines)


def _figure(value: float, unit: str) -> str:
    return f"{value:.2f} {unit}"


def _shell(
    arguments: Sequence[str], cache: Path | None = None, **environment: str
) -> Shell:
    """Run a command as a shell does; its output is thrown away."""
    variables = os.environ | {"TRACEQ_CACHE": str(cache or "")} | environment
    # An installed traceq is compiled: it is not to be compiled again in every run.
    variables.pop("PYTHONDONTWRITEBYTECODE", None)
    start = time.perf_counter()
    process = subprocess.Popen(
        arguments, env=variables, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    stderr = process.stderr.read() if process.stderr else b""
    # The parent is small, so what the child has from it is no part of its peak: see
    # _made.
    _, status, used = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    if (exit_code := os.waitstatus_to_exitcode(status)) not in _EXITS:
        sys.exit(f"{' '.join(arguments)}: exit {exit_code}\n{stderr.decode()}")
    return Shell(seconds, used.ru_maxrss * 1024)


def _lint(path: Path, cache: Path) -> Shell:
    return _shell([*_TRACEQ, "lint", str(path)], cache)


def _inside(script: str, method: str, path: Path) -> float:
    """Return what a method of another benchmark took, without its start."""
    return float(common.measure(str(_HERE / script), method, path)["seconds"])


def _trace(bars: Bars, path: Path, label: str, scratch: Path) -> None:
    """Measure what is asked of a trace of 400 MB in each layout."""
    size = common.unpacked_size(path)
    plain = _inside("load.py", "orjson.loads", path)
    bars.add(
        f"load ÷ orjson, {label}",
        _inside("load.py", "traceq.load", path) / plain,
        0.75,
        0.5,
    )
    with tempfile.TemporaryDirectory(dir=scratch) as cache:
        first = _lint(path, Path(cache))
        bars.add(f"lint ÷ orjson, {label}", first.seconds / plain, 1.0, 0.75)
        again = _lint(path, Path(cache))
        bars.add(f"lint again ÷ orjson, {label}", again.seconds / plain, 0.25, 0.12)
    bars.add(f"peak of lint ÷ file, {label}", first.peak / size, 1.2, 0.8)


def _large(bars: Bars, path: Path, label: str, scratch: Path) -> None:
    """Measure what is asked of a trace of 1.5 GB."""
    plain = _inside("load.py", "orjson.loads", path)
    with tempfile.TemporaryDirectory(dir=scratch) as cache:
        first = _lint(path, Path(cache))
    bars.add(f"lint ÷ orjson, {label}", first.seconds / plain, 0.7, 0.5)
    size = common.unpacked_size(path)
    bars.add(f"peak of lint ÷ file, {label}", first.peak / size, 0.9, 0.6)


def _huge(bars: Bars, path: Path, label: str, scratch: Path) -> None:
    """Measure what is asked of a gzipped trace of several GB: that lint ends."""
    with tempfile.TemporaryDirectory(dir=scratch) as cache:
        peak = _lint(path, Path(cache)).peak
    bars.add(f"peak of lint, {label}", peak / 1e9, 3, 2, "GB")


def _rules(bars: Bars, path: Path, label: str) -> None:
    result = common.measure(str(_HERE / "lint.py"), "load and lint", path)
    bars.add(
        f"rules and pricing ÷ load, {label}",
        result["lint_seconds"] / result["load_seconds"],
        0.25,
        0.1,
    )


def _start(bars: Bars, small: Path, scratch: Path) -> None:
    """Measure what a command takes that does next to nothing, and a small lint."""
    cache = scratch / "start"
    for command, must, stretch in _STARTS:
        _shell([*_TRACEQ, *command.split()], cache)
        took = _shell([*_TRACEQ, *command.split()], cache).seconds
        bars.add(f"`traceq {command}`", took, must, stretch, "s")
    with tempfile.TemporaryDirectory(dir=scratch) as cached:
        _lint(small, Path(cached))
        took = _lint(small, Path(cached)).seconds
    bars.add("lint again, 10 MB", took, 0.4, 0.3, "s")
    took = _shell(_TRACEQ, cache, COMP_WORDS="traceq rule SYN", **_COMPLETION).seconds
    bars.add("completion of a rule's code", took, 0.4, 0.2, "s")
    bare, lints = [], []
    for _ in range(_TURNS):
        bare.append(_shell([sys.executable, "-c", "import polars"]).seconds)
        with tempfile.TemporaryDirectory(dir=scratch) as nothing:
            lints.append(_lint(small, Path(nothing)).seconds)
    ratio = statistics.median(lints) / statistics.median(bare)
    bars.add("lint, 10 MB ÷ start of Python with Polars", ratio, 3, 2)


def _diff(bars: Bars, pair: Path, label: str) -> None:
    loads = _inside("diff.py", "two loads", pair)
    files = [str(pair / name) for name in _PAIR]
    took = _shell([*_TRACEQ, "diff", "--no-cache", *files]).seconds
    bars.add(f"diff ÷ two loads, {label} each", took / loads, 1.2, 1.05)


def _snapshot(bars: Bars, path: Path, label: str) -> None:
    bare = _inside("snapshot.py", "pickle.load, gc off", path)
    result = common.measure(str(_HERE / "snapshot.py"), "read_snapshot", path)
    bars.add(
        f"snapshot ÷ pickle.load, {label}", float(result["seconds"]) / bare, 1.5, 1.0
    )
    bars.add(
        f"peak of a snapshot ÷ file, {label}",
        result["peak"] / path.stat().st_size,
        1.5,
        1.0,
    )


def _own(path: Path, scratch: Path) -> str:
    """Lint a trace of the user's own once, and say what it took."""
    with tempfile.TemporaryDirectory(dir=scratch) as cache:
        took = _lint(path, Path(cache))
    return (
        f"{path.name}, {common.unpacked_size(path) / 1e9:.1f} GB unpacked: lint"
        f" {took.seconds:.0f} s, {took.peak / 1e9:.2f} GB"
    )


def _peers(names: Sequence[str], path: Path) -> list[str]:
    """Say what other tools take to read the same file, where they are installed."""
    lines = []
    for name in names:
        code = _PEERS[name].format(path=str(path))
        run = subprocess.run(
            [sys.executable, "-c", code.partition(";")[0]],
            capture_output=True,
            check=False,
        )
        if run.returncode:
            lines.append(f"{name} is not installed")
            continue
        took = _shell([sys.executable, "-c", code])
        lines.append(
            f"{name} reads {path.name} in {took.seconds:.1f} s, peak"
            f" {took.peak / common.unpacked_size(path):.1f} × the file"
        )
    return lines


def _write(text: str) -> None:
    start, end = _MARKS
    before, _, rest = _PAGE.read_text(encoding="utf-8").partition(start)
    after = rest.partition(end)[2]
    _PAGE.write_text(f"{before}{start}\n{text}\n{end}{after}", encoding="utf-8")


@dataclass(frozen=True)
class _Files:
    """The files that are measured, by what they are called in the result."""

    layouts: dict[str, Path]
    small: Path
    pair: Path
    """A folder with the two that are compared."""
    large: Path | None
    huge: Path | None
    snapshot: Path | None


def _files(options: argparse.Namespace, folder: Path) -> _Files:
    """Make the files, those that are not there."""
    traces = sorted(_CAPTURES.glob("*.trace.json.gz"))
    pair = folder / f"pair-{options.mb}"
    pair.mkdir(exist_ok=True)
    for name, sources in zip(_PAIR, (traces, traces[::-1]), strict=True):
        if not (pair / name).exists():
            make(sources, pair / name, options.mb * 1_000_000, _KINETO)
    large = huge = snapshot = None
    if options.large_mb:
        large = common.file(traces, folder, options.large_mb, _KINETO)
    if options.huge_mb:
        huge = common.file(traces, folder, options.huge_mb, "gzip")
    if options.snapshot_mb:
        snapshot = folder / f"{options.snapshot_mb}.pickle"
        if not snapshot.exists():
            snapshots = sorted(_CAPTURES.glob("*.snapshot.pickle.gz"))
            make_snapshot(snapshots, snapshot, options.snapshot_mb * 1_000_000)
    layouts = {
        f"{options.mb} MB {layout}": common.file(traces, folder, options.mb, layout)
        for layout in options.layouts
    }
    small = common.file(traces, folder, 10, _KINETO)
    return _Files(layouts, small, pair, large, huge, snapshot)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, help="keep the files here")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--mb", type=int, default=400)
    parser.add_argument("--large-mb", type=int, default=1500, help="0: without")
    parser.add_argument("--huge-mb", type=int, default=3400, help="0: without")
    parser.add_argument("--snapshot-mb", type=int, default=1000, help="0: without")
    parser.add_argument("--layouts", nargs="+", default=[*LAYOUTS, "gzip"])
    parser.add_argument("--large", type=Path, action="append", default=[])
    parser.add_argument("--with", dest="peers", default="", help=", ".join(_PEERS))
    parser.add_argument("--write", action="store_true", help="into docs/speed.md")
    parser.add_argument("--make", action="store_true", help="only make the files")
    return parser.parse_args()


def _measure(options: argparse.Namespace, folder: Path) -> str:
    files, bars = _files(options, folder), Bars()
    first = next(iter(files.layouts))
    for number in range(options.rounds):
        print(f"round {number + 1} of {options.rounds}", flush=True)
        _start(bars, files.small, folder)
        for label, path in files.layouts.items():
            _trace(bars, path, label, folder)
        _rules(bars, files.layouts[first], first)
        _diff(bars, files.pair, f"{options.mb} MB")
        if files.large:
            _large(bars, files.large, f"{options.large_mb} MB", folder)
        if files.huge:
            _huge(bars, files.huge, f"{options.huge_mb} MB gzip", folder)
        if files.snapshot:
            _snapshot(bars, files.snapshot, f"{options.snapshot_mb} MB")
    figures = [_own(path, folder) for path in options.large]
    peers = [name for name in options.peers.split(",") if name]
    figures += _peers(peers, files.layouts[first])
    return "\n\n".join([bars.table(), *figures])


def _made(options: argparse.Namespace, folder: Path) -> None:
    """Make the files in a process of its own.

    Making large ones takes gigabytes. A command that is started counts what its parent
    held at most as its own.
    """
    if options.make:
        _files(options, folder)
        return
    command = [sys.executable, *sys.argv, "--make", "--folder", str(folder)]
    subprocess.run(command, check=True)


def main() -> None:
    """Make the files, measure, and print the table."""
    options = _options()
    folder = options.folder or Path(tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    try:
        _made(options, folder)
        if options.make:
            return
        text = _measure(options, folder)
    finally:
        if not options.folder:
            shutil.rmtree(folder)
    print("\n" + text)
    if options.write:
        _write(text)


if __name__ == "__main__":
    main()
