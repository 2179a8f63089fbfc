"""Soak test: many files in one process, and the memory and files it retains.

    python benchmarks/soak.py [--count 1000] [--threads 1]

Files are copies of small fixtures that differ in a name, so that none is known from
before. From the 100th file on, memory is measured after every tenth of the files, with
the free pages of the C allocator returned: what it retains of 20 threads varies by 10%
in both directions. Fails if the later half of these figures is more than 5% above the
earlier half, or if there are more threads, open files or entries of caches without a
limit in the end than after the 100th file.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import gzip
import os
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import _lru_cache_wrapper
from pathlib import Path
from statistics import fmean

from traceq.api.lint import lint

_ROOT = Path(__file__).parents[1]
_FIXTURES = sorted((_ROOT / "fixtures").glob("*/trace.json.gz"))
_WARM = 100
_MEASURED = 10
_MOST_GROWTH = 1.05
_SMALL = 400_000


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--threads", type=int, default=1)
    return parser.parse_args()


def _memory() -> int:
    """Return the bytes of memory that the process uses."""
    gc.collect()
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):  # glibc has it
        trim(0)
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def _cached() -> dict[str, int]:
    """Return how many entries each cache of traceq's functions has."""
    results = {}
    for name, module in list(sys.modules.items()):
        if not name.startswith("traceq"):
            continue
        for key, value in list(vars(module).items()):
            if isinstance(value, _lru_cache_wrapper):
                results[f"{name}.{key}"] = value.cache_info().currsize
    return results


def _limits() -> dict[str, int | None]:
    """Return how many entries each of these caches may have."""
    return {
        f"{name}.{key}": value.cache_info().maxsize
        for name, module in list(sys.modules.items())
        if name.startswith("traceq")
        for key, value in list(vars(module).items())
        if isinstance(value, _lru_cache_wrapper)
    }


def _lint(texts: list[bytes], number: int, folder: Path) -> None:
    """Lint a file that nobody has seen before."""
    text = texts[number % len(texts)]
    changed = text.replace(b'"aten::mm"', b'"aten::mm%d"' % number)
    file = folder / f"{number}.json"
    file.write_bytes(changed)
    try:
        lint(file, cache=False, tables=False)
    finally:
        file.unlink()


def main() -> None:
    """Run the files, in turn or on threads, and compare."""
    options = _options()
    texts = [gzip.decompress(path.read_bytes()) for path in _FIXTURES]
    texts = [text for text in texts if len(text) < _SMALL] or texts[:1]
    warm = max(1, min(_WARM, options.count // 2))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)

        def run(numbers: range) -> None:
            if options.threads == 1:
                for number in numbers:
                    _lint(texts, number, folder)
                return
            with ThreadPoolExecutor(options.threads) as pool:
                list(pool.map(lambda number: _lint(texts, number, folder), numbers))

        run(range(warm))
        before = threading.active_count(), _open_files(), _cached()
        memory = [_memory()]
        size = max(1, (options.count - warm) // _MEASURED)
        for first in range(warm, options.count, size):
            run(range(first, min(first + size, options.count)))
            memory.append(_memory())
        after = threading.active_count(), _open_files(), _cached()
    half = len(memory) // 2
    growth = fmean(memory[-half:]) / fmean(memory[:half])
    print(
        f"{options.count} files on {options.threads} threads, after the first {warm}:"
    )
    print(
        f"memory {' '.join(str(number >> 20) for number in memory)} MiB, ×{growth:.3f}"
    )
    print(f"threads {before[0]} -> {after[0]}, files {before[1]} -> {after[1]}")
    endless = _limits()
    grown = {
        key: (before[2].get(key, 0), count)
        for key, count in after[2].items()
        if endless.get(key) is None and count > before[2].get(key, 0)
    }
    print(f"caches without a limit that grew: {grown or 'none'}")
    failed = growth > _MOST_GROWTH or after[0] > before[0] or after[1] > before[1]
    sys.exit(1 if failed or grown else 0)


if __name__ == "__main__":
    main()
