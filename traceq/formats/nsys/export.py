"""Interface of both forms of an Nsight Systems export."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    import polars as pl


class Filter(NamedTuple):
    """Rows to read: those whose ``column``, shifted right, is ``value``."""

    column: str
    shift: int
    value: int


class Export(Protocol):
    """The tables of one export."""

    @property
    def path(self) -> Path:
        """The file or folder."""

    @property
    def tables(self) -> Mapping[str, Mapping[str, None]]:
        """The columns of each table."""

    @property
    def damage(self) -> list[str]:
        """Sentences on what could not be read."""

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

    def close(self) -> None:
        """Close the file."""
