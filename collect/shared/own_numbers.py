"""The program's own numbers: ``traceq.record(loss=...)`` writes, the launcher reads.

Each call is one line of JSON in a file of the run folder, so that the numbers of a
program that is killed are kept. Without a recording, nothing is written.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import math
import os
from pathlib import Path
from typing import Any, Iterable

PATTERN = "numbers-*.jsonl"
MOST_TENSORS = 256  # that wait to be read: reading one waits for the GPU
LONGEST_NAME = 100
_LARGEST = 64 << 20
_RANKS = ("RANK", "OMPI_COMM_WORLD_RANK")


class Recorder:
    """Writes the numbers of one process into a run folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._file: Any = None
        self._process = 0
        self._tensors: list[dict[str, Any]] = []

    def record(self, numbers: dict[str, Any]) -> None:
        """Write numbers; those that are tensors are read later, all at once."""
        if self._process != os.getpid():  # the first call, or the first after a fork
            self._tensors = []
            self._open()
        if any(hasattr(value, "detach") for value in numbers.values()):
            # A copy, as the program may change it in place before it is read.
            self._tensors.append({key: _copied(one) for key, one in numbers.items()})
            if len(self._tensors) >= MOST_TENSORS:
                self.flush()
            return
        self.flush()
        self._write(numbers)

    def flush(self) -> None:
        """Write the tensors that wait."""
        waiting, self._tensors = self._tensors, []
        if self._process == os.getpid():
            for numbers in waiting:
                self._write(numbers)

    def _open(self) -> None:
        ranks = [os.environ.get(name, "") for name in _RANKS]
        rank = next((item for item in ranks if item.isdigit()), "0")
        name = f"numbers-{rank}-{os.getpid()}.jsonl"
        self._process = os.getpid()
        self._file = (self.folder / name).open("a", encoding="utf-8", buffering=1)

    def _write(self, numbers: dict[str, Any]) -> None:
        plain = {str(key)[:LONGEST_NAME]: _number(one) for key, one in numbers.items()}
        known = {key: value for key, value in plain.items() if value is not None}
        if known:
            self._file.write(json.dumps(known) + "\n")


_recorder: list[Recorder] = []


def start(folder: str) -> None:
    """Write what ``record`` is called with into this run folder, from now on."""
    stop()
    _recorder.append(Recorder(Path(folder)))
    atexit.register(stop)


def stop() -> None:
    """Write what waits, and record no more."""
    recorders, _recorder[:] = list(_recorder), []
    with contextlib.suppress(Exception):  # the program must continue
        for recorder in recorders:
            recorder.flush()


def record(numbers: dict[str, Any]) -> None:
    """Write numbers of the program, if it is recorded; raises nothing."""
    if _recorder:
        try:
            _recorder[0].record(numbers)
        except Exception:  # noqa: BLE001 - the program must continue
            _recorder.clear()


def read(folder: Path) -> dict[str, list[float]]:
    """Return the numbers of a run folder by name, those of the lowest rank."""
    files = sorted(folder.glob(PATTERN), key=_rank)
    results: dict[str, list[float]] = {}
    for file in files:
        if _rank(file) != _rank(files[0]):
            break
        try:
            if file.stat().st_size > _LARGEST:
                continue
            lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            continue
        for line in lines:
            for key, value in _entries(line):
                results.setdefault(key, []).append(value)
    return results


def summary(values: Iterable[float]) -> dict[str, Any]:
    """Return last, mean, standard deviation and number of what was recorded."""
    import statistics  # noqa: PLC0415 - slow, and programs need it not

    every = list(values)
    finite = [value for value in every if math.isfinite(value)]
    last = every[-1] if every else None
    return {
        "last": last if last is not None and math.isfinite(last) else None,
        "mean": statistics.fmean(finite) if finite else None,
        "std": statistics.stdev(finite) if len(finite) > 1 else None,
        "n": len(finite),
        "not_finite": len(every) - len(finite),
    }


def _rank(file: Path) -> int:
    text = file.name.split("-")[1]
    return int(text) if text.isdigit() else 0


def _entries(line: str) -> list[tuple[str, float]]:
    try:
        content = json.loads(line)
    except ValueError:  # the process was killed in the middle of it
        return []
    if not isinstance(content, dict):
        return []
    return [(key, one) for key, one in content.items() if isinstance(one, (int, float))]


def _copied(value: Any) -> Any:
    return value.detach().clone() if hasattr(value, "detach") else value


def _number(value: Any) -> float | None:
    """Return a value as a number; None if it is none."""
    try:
        result = float(value)
    except (TypeError, ValueError, RuntimeError):
        return None
    return int(result) if isinstance(value, (int, bool)) else result
