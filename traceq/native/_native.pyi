from collections.abc import Callable
from typing import TypeAlias

import polars as pl

Column: TypeAlias = tuple[object, object]

INTERFACE: int

# scan.c

def return_freed(size: int, /) -> None: ...

class Scanner:
    def __init__(
        self,
        separator: bytes,
        classify: Callable[[bytes], int],
        tables: list[tuple[int, int, list[tuple[bytes, int, int, bool, bool]]]],
        seed: int,
        /,
    ) -> None: ...
    def feed(
        self, block: bytes, start: int, end: int, /
    ) -> tuple[int, int, list[tuple[int, bytes]]]: ...
    def take(self, table: int, /) -> tuple[Column, ...]: ...
    def heads(self) -> list[str]: ...
    def texts(self, table: int, column: int, /) -> list[str]: ...

# snapshot_events.c

def events(
    data: bytes,
    begin: int,
    end: int,
    known: dict[bytes, int],
    places: int,
    implicit: bool,
    /,
) -> tuple[int, bytes, list[tuple[bytes, bool, bytes]]]: ...

# nesting.c

def preorder(
    thread: pl.Series, start: pl.Series, end: pl.Series, /
) -> Column | None: ...
def parents(nowhere: int, thread: pl.Series, end: pl.Series, /) -> Column: ...
def arrived(leads: pl.Series, /) -> Column | None: ...
def sums(rows: int, row: pl.Series, value: pl.Series, /) -> Column: ...

# replay.c

def worked(own: pl.Series, left: pl.Series, scale: float, /) -> Column: ...
def played(
    steps: tuple[pl.Series, ...],
    order: tuple[pl.Series, ...],
    groups: int,
    scale: float,
    rounds: int,
    /,
) -> tuple[float, Column, Column]: ...
def timeline(
    steps: tuple[pl.Series, ...],
    host: pl.Series,
    entered: pl.Series,
    scale: float,
    /,
) -> tuple[Column, ...]: ...
def waits(
    spans: tuple[pl.Series, ...],
    changes: tuple[tuple[pl.Series, pl.Series, float], ...],
    things: int,
    nodes: int,
    shortest: float,
    /,
) -> tuple[Column, Column]: ...
