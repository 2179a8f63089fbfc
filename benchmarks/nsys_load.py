"""Time and memory of loading an Nsight Systems export, against plain SELECTs.

    python benchmarks/nsys_load.py EXPORT.sqlite [--mb 1000] [--folder DIR] [--one]

Makes a large export of a small one: its rows again and again, later each time, with
their correlations, and with shapes in torch's texts; with --one of the first of its
processes. Each method runs in a process of
its own: traceq loads the export with linked tables, the other selects all columns of
the same tables into Polars. Prints both times, their ratio and the peaks of memory over
the size of the file. On a busy machine the ratio of CPU times, of all threads, is the
one to read.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_MB = 1_000_000
_TABLES = (
    "CUPTI_ACTIVITY_KIND_KERNEL",
    "CUPTI_ACTIVITY_KIND_MEMCPY",
    "CUPTI_ACTIVITY_KIND_MEMSET",
    "CUPTI_ACTIVITY_KIND_RUNTIME",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
    "CUPTI_ACTIVITY_KIND_OVERHEAD",
    "PROFILER_OVERHEAD",
    "NVTX_EVENTS",
    "StringIds",
)
_SHAPES = (
    " || ', sizes = [[' || (rowid % 64 + 1) || ', 1024], [1024, 4096]],"
    " input_op_ids = [(' || rowid || ',0)]'"
)
_BATCH = 65_536
# Between the correlations of two copies.
_APART = 4_000_000


_PROCESS_BITS = 24


def _of_one_process(database: sqlite3.Connection, tables: list[str]) -> None:
    """Delete the rows of all processes but the first with kernels."""
    (first,) = database.execute(
        f"SELECT min(globalPid >> {_PROCESS_BITS}) FROM CUPTI_ACTIVITY_KIND_KERNEL"  # noqa: S608 - its own names
    ).fetchone()
    for name in tables:
        columns = [row[1] for row in database.execute(f"PRAGMA table_info({name})")]
        key = next((item for item in ("globalPid", "globalTid") if item in columns), "")
        if key:
            database.execute(
                f"DELETE FROM {name} WHERE {key} >> {_PROCESS_BITS} <> {first}"  # noqa: S608 - as above
            )


def enlarged(source: Path, file: Path, size: int, *, one: bool = False) -> None:
    """Write an export of this size, of the rows of a small one."""
    shutil.copyfile(source, file)
    file.chmod(0o600)
    database = sqlite3.connect(file)
    database.execute("PRAGMA journal_mode = OFF")
    database.execute("PRAGMA synchronous = OFF")
    named = "SELECT name FROM sqlite_master WHERE type = 'table'"
    there = [name for (name,) in database.execute(named) if name in _TABLES[:-1]]
    if one:
        _of_one_process(database, there)
    if "NVTX_EVENTS" in there:
        database.execute(
            f"UPDATE NVTX_EVENTS SET text = text{_SHAPES} WHERE text LIKE '%op_id = %'"  # noqa: S608 - its own names
        )
    database.commit()
    rows = {
        name: database.execute(
            f"SELECT min(start), max(end), max(rowid) FROM {name}"  # noqa: S608 - as above
        ).fetchone()
        for name in there
    }
    rows = {name: values for name, values in rows.items() if values[0] is not None}
    first = min(start for start, _, _ in rows.values())
    length = max(end for _, end, _ in rows.values()) - first + 1
    copies = 0
    while file.stat().st_size < size:
        copies += 1
        for name, (_, _, last) in rows.items():
            columns = [row[1] for row in database.execute(f"PRAGMA table_info({name})")]
            later = {
                "start": f"start + {length * copies}",
                "end": f"end + {length * copies}",
                "correlationId": f"correlationId + {_APART * copies}",
            }
            chosen = ", ".join(later.get(column, column) for column in columns)
            database.execute(
                f"INSERT INTO {name} SELECT {chosen} FROM {name} WHERE rowid <= {last}"  # noqa: S608 - as above
            )
        database.commit()
    database.close()


def select_all(file: Path) -> int:
    """Select all columns of the tables into Polars, as a plain script does."""
    import polars as pl  # noqa: PLC0415 - each method pays for its own imports

    database = sqlite3.connect(f"file:{file}?mode=ro&immutable=1", uri=True)
    named = "SELECT name FROM sqlite_master WHERE type = 'table'"
    there = [name for (name,) in database.execute(named) if name in _TABLES]
    rows = 0
    tables = {}
    for name in there:
        cursor = database.execute(f"SELECT * FROM {name}")  # noqa: S608 - as above
        columns = [description[0] for description in cursor.description]
        parts = []
        while batch := cursor.fetchmany(_BATCH):
            parts.append(
                pl.DataFrame(
                    batch, schema=columns, orient="row", infer_schema_length=None
                )
            )
        tables[name] = pl.concat(parts, how="vertical_relaxed") if parts else None
        rows += sum(part.height for part in parts)
    return rows


def traceq(file: Path, *, every: bool) -> int:
    """Load the lowest rank, or all ranks one after the other, as the command does."""
    from traceq.cli.malloc import free_soon  # noqa: PLC0415 - before Polars

    free_soon()
    from traceq.formats.nsys.read import ranks_in  # noqa: PLC0415 - as above
    from traceq.inputs.load_trace import load  # noqa: PLC0415 - as above

    rows = 0
    for rank in ranks_in(file) if every else [0]:
        trace = load(file, rank=rank, cache=False)
        rows += sum(frame.height for frame in trace.frames_by_name().values())
    return rows


_METHODS: dict[str, Callable[[Path], int]] = {
    "select": select_all,
    "one rank": partial(traceq, every=False),
    "all ranks": partial(traceq, every=True),
}


def measured(method: str, file: Path) -> dict[str, float]:
    """Run a method in a process of its own."""
    command = [sys.executable, __file__, str(file), "--method", method]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    answer: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return answer


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("export", type=Path)
    parser.add_argument("--mb", type=int, default=1000)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--one", action="store_true")
    parser.add_argument("--method", choices=_METHODS)
    options = parser.parse_args()
    if options.method:
        start = time.perf_counter()
        rows = _METHODS[options.method](options.export)
        seconds = time.perf_counter() - start
        used = resource.getrusage(resource.RUSAGE_SELF)
        cpu, peak = used.ru_utime + used.ru_stime, used.ru_maxrss * 1024
        print(json.dumps({"seconds": seconds, "cpu": cpu, "peak": peak, "rows": rows}))
        return
    folder = options.folder or Path(tempfile.mkdtemp())
    file = folder / f"nsys_{options.mb}{'_one' if options.one else ''}.sqlite"
    if not file.exists():
        enlarged(options.export, file, options.mb * _MB, one=options.one)
    size = file.stat().st_size
    # Of one process, all ranks are the one rank.
    methods = [name for name in _METHODS if not (options.one and name == "all ranks")]
    results = {method: measured(method, file) for method in methods}
    plain, plain_cpu = results["select"]["seconds"], results["select"]["cpu"]
    print(f"{size / _MB:,.0f} MB")
    for method, one in results.items():
        print(
            f"{method:10} {one['seconds']:7.1f} s {one['seconds'] / plain:5.2f} of"
            f" SELECT  CPU {one['cpu']:6.1f} s {one['cpu'] / plain_cpu:5.2f}"
            f"  peak {one['peak'] / _MB:7,.0f} MB"
            f" {one['peak'] / size:5.2f} of the file  {one['rows']:,.0f} rows"
        )
    if not options.folder:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
