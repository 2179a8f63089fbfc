"""Feed the compiled scanner mutated traces under gcc's sanitizers.

    python benchmarks/scan.py [--seconds 300] [--seed 1]

Compiles traceq/native with the address and the undefined-behaviour sanitizer
into a folder of its own, and starts a Python that loads it from there. The first access
behind the end of a buffer ends the run with a report; exit 0 says that there was none.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import random
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fuzz_seeds import read_seeds
from mutate import text_of

from traceq import native
from traceq.formats import scan
from traceq.formats.chunks import layout_of
from traceq.native.columns import to_series

if TYPE_CHECKING:
    from types import ModuleType

_SOURCES = sorted(map(str, Path(native.__file__).parent.glob("*.c")))
_FLAGS = ("-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
_COMPILER = shutil.which("gcc") or sys.exit("there is no gcc here")
_LONGEST = 20_000


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--built", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def _library(name: str) -> str:
    done = subprocess.run(
        [_COMPILER, f"-print-file-name={name}"],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def _start(options: argparse.Namespace) -> int:
    """Compile the scanner, and run this file again with it."""
    with tempfile.TemporaryDirectory() as folder:
        built = Path(folder) / "_native.so"
        include = sysconfig.get_path("include")
        command = [_COMPILER, *_FLAGS, "-fPIC", "-shared", f"-I{include}"]
        subprocess.run([*command, *_SOURCES, "-o", str(built)], check=True)
        preloaded = ":".join(map(_library, ("libasan.so", "libubsan.so")))
        again = [f"--seconds={options.seconds}", f"--seed={options.seed}"]
        return subprocess.run(
            [sys.executable, __file__, *again, f"--built={built}"],
            # Python keeps small objects in blocks of its own, which hide an overrun.
            env={
                **os.environ,
                "LD_PRELOAD": preloaded,
                "PYTHONMALLOC": "malloc",
                "ASAN_OPTIONS": "detect_leaks=0",
            },
            check=False,
        ).returncode


def _loaded(built: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("_native", built)
    if spec is None or spec.loader is None:
        sys.exit(f"{built} cannot be loaded")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _feed(rng: random.Random, module: Any, text: bytes, separator: bytes) -> int:  # noqa: ANN401 - a module
    """Feed a text and a part of it, read what was made of them; return the events."""
    strange = rng.random() < 1 / 2
    scanner = module.Scanner(
        separator,
        (lambda _: rng.randrange(-2, 8)) if strange else scan.classify,
        [columns.scanner_table for columns in scan.columns()],
        rng.getrandbits(64),
    )
    starts = (0, rng.randrange(len(text) + 1))
    events = sum(scanner.feed(text, start, len(text))[0] for start in starts)
    for number, columns in enumerate(scan.columns()):
        for column in scanner.take(number):
            to_series(column).sum()
        for at in range(1, len(columns.texts)):
            scanner.texts(number, at)
    scanner.heads()
    return events


def _run(options: argparse.Namespace) -> int:
    rng = random.Random(options.seed)  # noqa: S311 - nothing to keep secret
    module = _loaded(options.built)
    texts = [
        json.dumps(trace, indent=indent).encode()
        for trace in read_seeds().traces
        for indent in (None, 2)
    ]
    end = time.monotonic() + options.seconds
    cases = events = 0
    while time.monotonic() < end:
        whole = rng.choice(texts)
        at = rng.randrange(len(whole))
        text = whole[at : at + rng.randrange(1, _LONGEST)]
        for _ in range(rng.choice((0, 1, 3, 9))):
            text = text_of(rng, text) or b"{"
        first = max(0, text.find(b'ph":'))
        events += _feed(rng, module, text[first:], layout_of(whole).separator)
        cases += 1
    print(f"{cases} texts with {events} events: nothing was read behind an end")
    return 0


def main() -> None:
    """Compile and run, or only run what was compiled."""
    options = _options()
    sys.exit(_run(options) if options.built else _start(options))


if __name__ == "__main__":
    main()
