import polars as pl

INTERFACE: int

def parents(thread: pl.Series, end: pl.Series, /) -> tuple[object, object]: ...
def arrived(leads: pl.Series, /) -> tuple[object, object] | None: ...
def moments(
    start: pl.Series,
    end: pl.Series,
    parent: pl.Series,
    thread: pl.Series,
    edges: pl.Series,
    nothing: int,
    nobody: int,
    /,
) -> tuple[tuple[object, object], ...] | None: ...
