import polars as pl

INTERFACE: int

def merged(
    start: pl.Series, end: pl.Series, fractions: bool, /
) -> tuple[tuple[object, object], ...] | None: ...
def until(
    start: pl.Series,
    end: pl.Series,
    before: pl.Series,
    moments: pl.Series,
    fractions: bool,
    /,
) -> tuple[object, object]: ...
def between(
    start: pl.Series, end: pl.Series, edges: pl.Series, /
) -> tuple[tuple[object, object], tuple[object, object]]: ...
def holding(
    start: pl.Series, dur: pl.Series, moments: pl.Series, /
) -> tuple[object, object] | None: ...
def passed(
    times: pl.Series, moments: pl.Series, fractions: bool, before: bool, /
) -> tuple[object, object]: ...
