"""Checks of a run against the fixture that was made from it.

    python benchmarks/self_check.py traces/*.json.gz runs/train-1=runs/train-2

For each trace or run folder: shrink it, write what is expected with `check --update`,
check the fixture itself, and the whole against it. ``FIRST=SECOND`` checks a second
recording of the same program, too. Of a trace of four steps or more, a fixture is made
of two steps and the two after them are checked against it, as a second recording. A
line for each says the exit codes, which should be 0, and what failed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import polars as pl

from traceq.formats.chrome import read
from traceq.formats.run import is_run
from traceq.formats.sanitize.trace import read_written
from traceq.inputs.load_trace import load
from traceq.shrink.cuts import keeping_steps

_FEWEST = 4


def main() -> None:
    """Read the command line, and print a line for each recording."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recordings", nargs="+", help="FIRST, or FIRST=SECOND")
    parser.add_argument("--no-parts", action="store_true", help="no steps as a second")
    options = parser.parse_args()
    failed = 0
    print("recording | shrink | check | run | second | limits | what failed")
    for recording in options.recordings:
        first, _, second = recording.partition("=")
        with tempfile.TemporaryDirectory() as folder:
            row = _row(Path(first), second, Path(folder), parts=not options.no_parts)
        print(" | ".join(row), flush=True)
        failed += any(code not in ("0", "-") for code in row[1:5])
    sys.exit(1 if failed else 0)


def _row(first: Path, second: str, folder: Path, *, parts: bool) -> list[str]:
    fixture = folder / "fixture"
    made, why = _made(first, fixture)
    if made:
        return [str(first), str(made), "-", "-", "-", "-", why]
    check, on_fixture = _traceq("check", "--no-cache", fixture)
    against = ("check", "--no-cache", fixture, "--against")
    run, on_run = _traceq(*against, first)
    budgets = (fixture / "traceq.toml").read_text()
    limits = sum("min = " in line for line in budgets.splitlines())
    other, on_other = "-", ""
    if second:
        status, on_other = _traceq(*against, second)
        other = str(status)
    elif parts and not is_run(first):
        other, on_other = _later_steps(first, folder)
    text = "; ".join(filter(None, map(_failing, (on_fixture, on_run, on_other))))
    return [str(first), "0", str(check), str(run), other, str(limits), text]


def _made(path: Path, fixture: Path) -> tuple[int, str]:
    """Make a fixture with expectations; return the exit code, and why it failed."""
    status, text = _traceq("shrink", path, "-o", fixture, "--program", "a benchmark")
    if status:
        return status, text.strip().splitlines()[-1]
    status, text = _traceq("check", "--no-cache", fixture, "--update")
    return status, text.strip() if status else ""


def _later_steps(path: Path, folder: Path) -> tuple[str, str]:
    """Check two steps against a fixture of the two before them."""
    trace = load(path, cache=False)
    steps = trace.steps.filter(~pl.col("warmup"))
    if steps.height < _FEWEST:
        return "-", ""
    offset = read(path).start
    written = read_written(path)
    files = []
    for at in range(2):
        part = steps.slice(2 * at, 2)
        start = part["ts"][0] + offset
        end = part["ts"][-1] + part["dur"][-1] + offset
        file = folder / f"part-{at}.json.gz"
        file.write_bytes(keeping_steps(written, start, end).gzipped)
        files.append(file)
    fixture = folder / "part"
    status, text = _made(files[0], fixture)
    if not status:
        status, text = _traceq("check", "--no-cache", fixture, "--against", files[1])
    return str(status), text


def _failing(text: str) -> str:
    """Return the differences that fail a check, of what it prints."""
    lines = text.splitlines()[1:-1]
    starts = [line for line in lines if line.startswith("  ") and line[2:3].isalpha()]
    return "; ".join(" ".join(line.split()) for line in starts)


def _traceq(*words: str | Path) -> tuple[int, str]:
    environment = {key: one for key, one in os.environ.items() if key != "CI"}
    answer = subprocess.run(
        [sys.executable, "-m", "traceq", *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    return answer.returncode, answer.stdout or answer.stderr


if __name__ == "__main__":
    main()
