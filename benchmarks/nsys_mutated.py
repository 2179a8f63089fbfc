"""Mutated exports of Nsight Systems: each is read or refused in one sentence.

    python benchmarks/nsys_mutated.py EXPORT.sqlite [--count 500] [--seed 1]

Bytes are flipped, pages are swapped, cut or zeroed, values of any type are put into any
column, and tables are replaced by views, triggers and other tables. A mutation that
crashes the process, takes a minute of CPU time or raises anything but traceq's own
errors fails; its seed makes it again.
"""

from __future__ import annotations

import argparse
import random
import resource
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_PAGE = 4096
_MOST = 8
# Changes of a table; its names are its own.
_SHAPES = (
    'DROP TABLE "{table}"',
    'ALTER TABLE "{table}" RENAME COLUMN "{column}" TO "odd"',
    'ALTER TABLE "{table}" DROP COLUMN "{column}"',
    'ALTER TABLE "{table}" RENAME TO "odd{number}"',
    'CREATE TRIGGER t{number} AFTER INSERT ON "{table}" BEGIN SELECT 1; END',
    'UPDATE "{table}" SET rowid = -rowid',
    'DELETE FROM "{table}" WHERE rowid % 3 > 0',
    'UPDATE "{table}" SET rowid = rowid * 1000000007',
)
_ENDLESS = (
    'CREATE VIEW "{table}" AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1'
    " FROM n) SELECT i AS start, i AS end FROM n"
)
_LONGEST_S = 60.0
_VALUES: tuple[Any, ...] = (
    *(None, 0, -1, 2**63 - 1, -(2**63), 1.5, float("inf"), "", "x", "9" * 40),
    *(b"\xff\xfe", b"", "aten::mm, seq = 99999999999999999999, sizes = [[", "é\x00y"),
    *("a, sizes = [[1, 2], [3]], op_id = x", "[" * 3000, "\x1b[31mred", 2**40, -7),
)


def flipped(rng: random.Random, file: Path) -> None:
    """Change single bytes anywhere."""
    content = bytearray(file.read_bytes())
    for _ in range(rng.randint(1, 64)):
        content[rng.randrange(len(content))] = rng.randrange(256)
    file.write_bytes(content)


def header(rng: random.Random, file: Path) -> None:
    """Change bytes of the header and of the first page."""
    content = bytearray(file.read_bytes())
    for _ in range(rng.randint(1, _MOST)):
        content[rng.randrange(16, _PAGE)] = rng.randrange(256)
    file.write_bytes(content)


def pages(rng: random.Random, file: Path) -> None:
    """Swap, copy or empty whole pages."""
    content = bytearray(file.read_bytes())
    count = len(content) // _PAGE
    for _ in range(rng.randint(1, _MOST)):
        one, two = (rng.randrange(1, count) * _PAGE for _ in range(2))
        other = bytes(content[two : two + _PAGE])
        if rng.random() < 0.5:
            content[two : two + _PAGE] = content[one : one + _PAGE]
        content[one : one + _PAGE] = rng.choice((other, bytes(_PAGE)))
    file.write_bytes(content)


def cut(rng: random.Random, file: Path) -> None:
    """Leave out the end."""
    content = file.read_bytes()
    file.write_bytes(content[: rng.randrange(1, len(content))])


def values(rng: random.Random, file: Path) -> None:
    """Put values of any type into any columns of some rows."""
    with sqlite3.connect(file) as database:
        for table in _some_tables(rng, database):
            columns = [
                row[1] for row in database.execute(f'PRAGMA table_info("{table}")')
            ]
            column = rng.choice(columns)
            every = rng.choice((1, 2, 7, 100))
            with suppress(sqlite3.Error, OverflowError):
                database.execute(
                    f'UPDATE "{table}" SET "{column}" = ? WHERE rowid % {every} = 0',  # noqa: S608 - its own names
                    (rng.choice(_VALUES),),
                )


def shape(rng: random.Random, file: Path) -> None:
    """Drop or rename tables and columns; put views and triggers in their place."""
    with sqlite3.connect(file) as database:
        for table in _some_tables(rng, database):
            columns = [
                row[1] for row in database.execute(f'PRAGMA table_info("{table}")')
            ]
            column = rng.choice(columns)
            names = {"table": table, "column": column, "number": rng.randrange(9**9)}
            with suppress(sqlite3.Error):
                database.execute(rng.choice(_SHAPES).format(**names))
            if rng.random() < 0.2:
                with suppress(sqlite3.Error):
                    database.execute(_SHAPES[0].format(**names))
                    database.execute(_ENDLESS.format(**names))


def _some_tables(rng: random.Random, database: sqlite3.Connection) -> list[str]:
    named = "SELECT name FROM sqlite_master WHERE type = 'table'"
    names = [
        name
        for (name,) in database.execute(named)
        if not name.startswith(("ENUM_", "sqlite_"))
    ]
    return rng.sample(names, min(len(names), rng.randint(1, _MOST)))


_MUTATIONS: tuple[Callable[[random.Random, Path], None], ...] = (
    *(flipped, flipped, header, pages, cut, values, values, shape, shape),
)


def mutated(source: Path, file: Path, seed: int) -> str:
    """Write a mutated copy of an export; return what was done."""
    rng = random.Random(seed)  # noqa: S311 - the same again
    shutil.copyfile(source, file)
    file.chmod(0o600)
    done = rng.choice(_MUTATIONS)
    done(rng, file)
    return done.__name__


def read_all(source: Path, first: int, last: int) -> int:
    """Lint mutated copies in this process; print and count what went wrong."""
    from traceq.api.lint import lint  # noqa: PLC0415 - only the child needs it
    from traceq.errors import TraceqError  # noqa: PLC0415 - as above

    wrong = refused = 0
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(first, last):
            file = Path(folder) / "report.sqlite"
            kind = mutated(source, file, seed)
            print(f"seed {seed} {kind}", file=sys.stderr, flush=True)
            start = time.process_time()
            try:
                result = lint(file, cache=False, packs=False)
                crashed = [
                    item for out in result.report.outcomes for item in out.crashed
                ]
            except TraceqError as error:
                refused += 1
                crashed = []
                if "\n" in str(error):
                    print(f"seed {seed} {kind}: several lines: {error}")
                    wrong += 1
            except BaseException as error:  # noqa: BLE001 - what must not be
                print(f"seed {seed} {kind}: {type(error).__name__}: {error}")
                wrong += 1
                continue
            if crashed:
                print(f"seed {seed} {kind}: crashed rules {crashed}"[:300])
                wrong += 1
            if (took := time.process_time() - start) > _LONGEST_S:
                print(f"seed {seed} {kind}: took {took:.0f} s")
                wrong += 1
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    done = last - first
    print(f"{done} mutations, {refused} refused, {wrong} wrong, peak {peak:.0f} MiB")
    return wrong


def main() -> int:
    """Read mutated exports in child processes, so that a crash is counted too."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("export", type=Path)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--here", action="store_true", help="in this process")
    options = parser.parse_args()
    first, last = options.seed, options.seed + options.count
    if options.here:
        return int(read_all(options.export, first, last) > 0)
    wrong = 0
    for begin in range(first, last, 50):
        count = min(50, last - begin)
        numbers = ["--count", str(count), "--seed", str(begin), "--here"]
        command = [sys.executable, __file__, str(options.export), *numbers]
        child = subprocess.run(command, check=False, stderr=subprocess.PIPE, text=True)
        if child.returncode not in (0, 1):
            print(f"crash {child.returncode} after {child.stderr.splitlines()[-1:]}")
        wrong += child.returncode != 0
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
