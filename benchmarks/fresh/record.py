"""Recordings of the programs of ``programs.toml``, one after the other, on a GPU.

    python benchmarks/fresh/record.py CORPUS OUT [NAME ...]

CORPUS has a folder for each program, with its files and ``program.toml``. Each runs
under ``collect`` with its default options and ends after the recording. Needs Python
3.11 and torch alone.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import tomllib  # type: ignore[import-not-found]  # Python 3.11 has it

COLLECT = Path(__file__).resolve().parents[2] / "collect"
LIMIT_S = 75


def record(folder: Path, out: Path) -> str:
    """Record one program; return how that ended."""
    about = tomllib.loads((folder / "program.toml").read_text())
    words = [sys.executable, str(COLLECT), "--out", str(out), "--name", folder.name]
    words += ["--then-exit", "--", sys.executable, *about["command"][1:]]
    log = out / f"{folder.name}.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            words,
            cwd=folder,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            return f"exit {process.wait(LIMIT_S)}"
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            try:
                return f"exit {process.wait(20)} after {LIMIT_S} s"
            except subprocess.TimeoutExpired:
                process.kill()
                return f"killed after {LIMIT_S} s"


def main(corpus: Path, out: Path, names: list[str]) -> None:
    """Record all programs; one that fails costs itself alone."""
    out.mkdir(parents=True, exist_ok=True)
    folders = sorted(path.parent for path in corpus.glob("*/program.toml"))
    for folder in folders:
        if names and folder.name not in names:
            continue
        began = time.monotonic()
        ended = record(folder, out)
        print(f"{folder.name}: {ended}, {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main(
        Path(sys.argv[1]).resolve(),
        Path(sys.argv[2]).resolve(),
        sys.argv[3:],
    )
