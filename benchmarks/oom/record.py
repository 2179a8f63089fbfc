"""Run the programs that run out of memory on a GPU, with the recorder and fixed.

Needs torch and the standard library only: ``python benchmarks/oom/record.py OUT``.
Writes a run folder for each program and ``results.json``; takes about 5 minutes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
COLLECT = HERE.parent.parent / "collect"
EXPANDABLE = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
LONGEST_S = 120


def main() -> None:
    """Run all programs, or those that are named after the folder."""
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    names = sys.argv[2:] or list(json.loads((HERE / "expected.json").read_text()))
    results = {}
    for name in names:
        results[name] = record(name, out)
        print(name, json.dumps(results[name]), flush=True)
        (out / "results.json").write_text(json.dumps(results, indent=1) + "\n")


def record(name: str, out: Path) -> dict[str, Any]:
    """Run one program as it is, under collect, and fixed."""
    command = [sys.executable, str(HERE / "programs" / f"{name}.py")]
    if name == "ranks":
        launch = ["-m", "torch.distributed.run", "--nproc-per-node", "2"]
        command = [sys.executable, *launch, command[1]]
    collect = [sys.executable, str(COLLECT), "--out", str(out), "--name", name]
    recorded = [*collect, "--no-overhead", "--timed", "5", "--", *command]
    fixed = EXPANDABLE if name == "fragmented" else {}
    return {
        "plain": run(command),
        "recorded": run(recorded),
        "fixed": run([*command, "--fixed"], fixed),
    }


def run(command: list[str], more: dict[str, str] | None = None) -> dict[str, Any]:
    """Return the status, the seconds and the last line of what a command printed."""
    began = time.monotonic()
    try:
        done = subprocess.run(
            command,
            env={**os.environ, **(more or {})},
            capture_output=True,
            text=True,
            timeout=LONGEST_S,
            check=False,
        )
        status, lines = done.returncode, done.stderr.splitlines()
    except subprocess.TimeoutExpired:
        status, lines = None, []
    errors = [line for line in lines if "OutOfMemoryError" in line]
    return {
        "status": status,
        "seconds": round(time.monotonic() - began, 1),
        "error": errors[-1][:200] if errors else None,
        "last": lines[-1][:300] if lines else None,
    }


if __name__ == "__main__":
    main()
