"""Recognition of Nsight Systems exports, by their first bytes or their files' names.

Every command asks it of every path: nothing here imports Polars or SQLite.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceq.formats.kinds import SQLITE

if TYPE_CHECKING:
    from pathlib import Path

PARQUET = ".parquet"
_NAMES = ("StringIds", "META_DATA_EXPORT", "NVTX_EVENTS")
_ACTIVITY = "CUPTI_ACTIVITY_KIND_"


def is_export(path: Path) -> bool:
    """Return whether a path is an SQLite database or a folder of an export's tables."""
    try:
        if path.is_dir():
            return is_parquet_folder(path)
        with path.open("rb") as file:
            return file.read(len(SQLITE)) == SQLITE
    except OSError:
        return False


def is_parquet_folder(path: Path) -> bool:
    """Return whether a folder has the tables of an export, one Parquet file each."""
    return any(
        file.name.removesuffix(PARQUET) in _NAMES or file.name.startswith(_ACTIVITY)
        for file in path.glob(f"*{PARQUET}")
    )
