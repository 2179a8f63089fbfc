"""Tables of a folder of Parquet files, as ``nsys export --type parquetdir`` writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.errors import InputError
from traceq.formats.nsys.recognition import PARQUET

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from traceq.formats.nsys.export import Filter

_TROUBLE = (pl.exceptions.PolarsError, OSError)


class ParquetFolder:
    """A parquetdir export: its tables, and the columns of each."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.damage: list[str] = []
        self.tables = {
            file.name.removesuffix(PARQUET): self._columns(file)
            for file in sorted(path.glob(f"*{PARQUET}"))
        }
        if not any(self.tables.values()):
            msg = f"{path} cannot be read: {'; '.join(self.damage)}"
            raise InputError(msg)

    def close(self) -> None:
        """Do nothing: files are closed once they are read."""

    def read(
        self,
        table: str,
        columns: Mapping[str, pl.DataType],
        only: Filter | None = None,
        reduce: Callable[[pl.DataFrame], pl.DataFrame] | None = None,
        present: str = "",
    ) -> pl.DataFrame:
        """Return columns of a table; a column that it lacks is null.

        Of the rows of ``only``, those that have a value in the column ``present``.
        """
        there = self.tables.get(table, {})
        empty = pl.DataFrame(schema=dict(columns))
        frame = empty
        usable = (only is None or only.column in there) and (
            not present or present in there
        )
        if usable and any(name in there for name in columns):
            try:
                frame = self._selected(table, columns, only, present)
            except _TROUBLE as error:
                self.damage.append(f"{table} could not be read ({_first_line(error)})")
        return frame if reduce is None else reduce(frame)

    def _selected(
        self,
        table: str,
        columns: Mapping[str, pl.DataType],
        only: Filter | None,
        present: str,
    ) -> pl.DataFrame:
        there = self.tables[table]
        rows = self._scan(table)
        if only is not None:
            shifted = pl.col(only.column).cast(pl.Int64, strict=False) // 2**only.shift
            rows = rows.filter(shifted == only.value)
        if present:
            rows = rows.filter(pl.col(present).is_not_null())
        return rows.select(
            pl.col(name).cast(dtype, strict=False)
            if name in there
            else pl.lit(None, dtype).alias(name)
            for name, dtype in columns.items()
        ).collect()

    def _scan(self, table: str) -> pl.LazyFrame:
        return pl.scan_parquet(self.path / f"{table}{PARQUET}", glob=False)

    def _columns(self, file: Path) -> dict[str, None]:
        try:
            names = pl.scan_parquet(file, glob=False).collect_schema().names()
        except _TROUBLE as error:
            self.damage.append(f"{file.name} could not be read ({_first_line(error)})")
            return {}
        return dict.fromkeys(names)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
