"""Shared code of the benchmarks: their files, a process per method, peak memory."""

from __future__ import annotations

import argparse
import gzip
import json
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from files import LAYOUTS, make

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

_GZIP = "gzip"


def options(description: str) -> argparse.Namespace:
    """Read the command line of a benchmark."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("traces", nargs="+", type=Path)
    parser.add_argument("--mb", action="append", type=int, help="size, default 400")
    parser.add_argument("--layout", action="append", choices=[*LAYOUTS, _GZIP])
    parser.add_argument("--folder", type=Path, help="keep the files here")
    arguments = parser.parse_args()
    arguments.mb = arguments.mb or [400]
    return arguments


@contextmanager
def files(
    arguments: argparse.Namespace, layouts: list[str]
) -> Iterator[dict[str, Path]]:
    """Make the files that were asked for, by what they are called in the result."""
    folder = arguments.folder or Path(tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["TRACEQ_CACHE"] = str(folder / "cache")
    try:
        yield {
            f"{size} MB {layout}": file(arguments.traces, folder, size, layout)
            for size in arguments.mb
            for layout in arguments.layout or layouts
        }
    finally:
        if not arguments.folder:
            shutil.rmtree(folder)


def file(traces: list[Path], folder: Path, size: int, layout: str) -> Path:
    """Return the trace of this many MB in a layout, made unless it is there."""
    path = folder / f"{layout}-{size}.json"
    if layout == _GZIP:
        packed = path.with_suffix(".json.gz")
        if not packed.exists():
            plain = file(traces, folder, size, "kineto-2.11")
            with plain.open("rb") as source, gzip.open(packed, "wb", 6) as target:
                shutil.copyfileobj(source, target)
        return packed
    if not path.exists():
        make(traces, path, size * 1_000_000, layout)
    return path


def unpacked_size(path: Path) -> int:
    """Return the size of a file, unpacked."""
    if path.suffix == ".gz":
        return int.from_bytes(path.read_bytes()[-4:], "little")
    return path.stat().st_size


def measure(script: str, method: str, path: Path) -> dict[str, Any]:
    """Run a method of a script in a process of its own."""
    command = [sys.executable, script, "--run", method, str(path)]
    run = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    if run.returncode:
        sys.exit(f"{method} failed on {path}")
    content: dict[str, Any] = json.loads(run.stdout)
    return content


def run_if_asked(methods: Mapping[str, Callable[[Path], dict[str, Any]]]) -> bool:
    """Run one method, if this is the process that ``measure`` started for it."""
    if sys.argv[1:2] != ["--run"]:
        return False
    result = methods[sys.argv[2]](Path(sys.argv[3]))
    print(json.dumps(result | {"peak": _peak()}))
    return True


def _peak() -> int:
    """Return the most memory this process held; rusage would count its parent's."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024
