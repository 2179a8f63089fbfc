import polars as pl

INTERFACE: int

def worked(
    own: pl.Series, left: pl.Series, scale: float, /
) -> tuple[object, object]: ...
def played(
    steps: tuple[pl.Series, ...],
    order: tuple[pl.Series, ...],
    groups: int,
    scale: float,
    rounds: int,
    /,
) -> tuple[float, tuple[object, object], tuple[object, object]]: ...
def timeline(
    steps: tuple[pl.Series, ...],
    host: pl.Series,
    entered: pl.Series,
    scale: float,
    /,
) -> tuple[tuple[object, object], ...]: ...
def waits(
    spans: tuple[pl.Series, ...],
    changes: tuple[tuple[pl.Series, pl.Series, float], ...],
    things: int,
    nodes: int,
    shortest: float,
    /,
) -> tuple[tuple[object, object], tuple[object, object]]: ...
