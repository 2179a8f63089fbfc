"""Recognition of Nsight Systems exports, by their first bytes or their files' names.

Another SQLite database is a memory snapshot.

Every command asks it of every path: nothing here imports Polars or SQLite.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

MAGIC = b"SQLite format 3\x00"
PARQUET = ".parquet"
_NAMES = ("StringIds", "META_DATA_EXPORT", "NVTX_EVENTS")
_ACTIVITY = "CUPTI_ACTIVITY_KIND_"
_SNAPSHOT = (b"device_traces", b"blocks", b"segments")


def is_export(path: Path) -> bool:
    """Return whether a path is an SQLite database or a folder of an export's tables."""
    try:
        if path.is_dir():
            return is_parquet_folder(path)
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def is_parquet_folder(path: Path) -> bool:
    """Return whether a folder has the tables of an export, one Parquet file each."""
    return any(
        file.name.removesuffix(PARQUET) in _NAMES or file.name.startswith(_ACTIVITY)
        for file in path.glob(f"*{PARQUET}")
    )


def is_snapshot_database(path: Path) -> bool:
    """Return whether a file is an SQLite database with the tables of a snapshot."""
    try:
        with path.open("rb") as file:
            # The names of tables are in the first pages.
            head = file.read(1 << 16)
    except OSError:
        return False
    return head.startswith(MAGIC) and all(name in head for name in _SNAPSHOT)
