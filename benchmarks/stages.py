"""Time of one lint by stage: cold, again, and again with other options.

    python benchmarks/stages.py FILE

Each run is a process of its own, as from the shell. A stage ends where the next one
begins; its processor time is that of all threads. Cold, nothing is kept yet; again, the
report comes from the cache; with another rule left out, the tables do.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

_RUNS: dict[str, dict[str, Any]] = {
    "cold": {},
    "again": {},
    "other options": {"ignore": "SYN001"},
}


class _Clock:
    """Wall and processor time of each stage, in seconds."""

    def __init__(self, started: float) -> None:
        """Begin when the process was asked for."""
        self.found: dict[str, tuple[float, float]] = {}
        self._stage = "start and imports"
        self._began, self._used = started, 0.0

    def begin(self, stage: str) -> None:
        """End the stage before this one."""
        now, used = time.time(), time.process_time()
        wall, processor = self.found.get(self._stage, (0.0, 0.0))
        self.found[self._stage] = (
            wall + now - self._began,
            processor + used - self._used,
        )
        self._stage, self._began, self._used = stage, now, used


def _stages(
    path: str, options: dict[str, Any], started: float
) -> dict[str, tuple[float, float]]:
    """Lint as the command does, and return what each stage took."""
    from traceq.common.progress import ProgressListener, watched  # noqa: PLC0415 - imports are timed

    clock = _Clock(started)

    class Stages(ProgressListener):
        def tell(self, phase: str, *_: object) -> None:
            clock.begin(phase)

        def reading(self, name: str) -> AbstractContextManager[Any]:
            clock.begin("reading")
            return super().reading(name)

    with watched(Stages()):
        from traceq.api.lint import lint  # noqa: PLC0415
        from traceq.cache import store  # noqa: PLC0415

        result = lint(path, tables=False, **options)
        clock.begin("report")
        result.text(width=100)
        clock.begin("keeping the rest")
        store.finish()
        clock.begin("")
    return clock.found


def _measured(path: Path, options: dict[str, Any]) -> dict[str, list[float]]:
    arguments = json.dumps([str(path), options, time.time()])
    run = subprocess.run(
        [sys.executable, __file__, "--run", arguments],
        stdout=subprocess.PIPE,
        check=True,
    )
    content: dict[str, list[float]] = json.loads(run.stdout)
    return content


def main() -> None:
    """Print the stages of each run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    path = parser.parse_args().file
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TRACEQ_CACHE"] = folder
        for name, options in _RUNS.items():
            result = _measured(path, options)
            wall, used = (sum(group[at] for group in result.values()) for at in (0, 1))
            print(f"{name}: {wall:.2f} s, of the processor {used:.2f} s")
            for stage, (took, processor) in result.items():
                print(f"  {stage:30} {took:6.2f} s {processor:6.2f} s")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--run"]:
        print(json.dumps(_stages(*json.loads(sys.argv[2]))))
    else:
        main()
