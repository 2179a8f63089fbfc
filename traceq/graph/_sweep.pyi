from typing import TypeAlias

import polars as pl

_Column: TypeAlias = tuple[object, object]

INTERFACE: int

def preorder(
    thread: pl.Series, start: pl.Series, end: pl.Series, /
) -> _Column | None: ...
def parents(nowhere: int, thread: pl.Series, end: pl.Series, /) -> _Column: ...
def tree(
    threads: int, ranks: pl.Series, /, *tables: pl.Series
) -> tuple[_Column, ...]: ...
def depths(up: pl.Series, /) -> _Column | None: ...
def arrived(leads: pl.Series, /) -> _Column | None: ...
def numbered(
    code: pl.Series, parent: pl.Series, /
) -> tuple[_Column, _Column] | None: ...
def counted(key: pl.Series, /) -> tuple[_Column, _Column] | None: ...
def segments(
    nothing: int,
    threads: int,
    start: pl.Series,
    end: pl.Series,
    parent: pl.Series,
    thread: pl.Series,
    edges: pl.Series,
    inside: pl.Series,
    /,
) -> tuple[_Column, _Column, _Column] | None: ...
def sums(rows: int, row: pl.Series, value: pl.Series, /) -> _Column: ...
def counts(edges: pl.Series, moments: pl.Series, /) -> _Column: ...
