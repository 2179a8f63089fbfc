"""Expressions and joins that most pipelines need, under one short name each."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Literal, TypeVar

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from polars._typing import PolarsDataType

Condition = TypeVar("Condition", pl.Expr, pl.Series)

_FALSE = pl.Series([False])
# What a pattern matches characters by that it does not name.
_ANY_CHARACTER = re.compile(r"(?<!\\)\.|\[\^|\\[WDS]")
END = pl.col("ts") + pl.col("dur")
"""End of an event, in ns."""


def text(column: str) -> pl.Expr:
    """Return a column of categories, as names are, as text."""
    return pl.col(column).cast(pl.String)


def fill_false(condition: Condition) -> Condition:
    """Return a condition that does not hold where it is unknown.

    >>> fill_false(pl.Series([True, None, False])).to_list()
    [True, False, False]
    """
    if isinstance(condition, pl.Series):
        # As fill_null does, but without planning a query.
        return condition.zip_with(condition, _FALSE)
    return condition.fill_null(value=False)


known = fill_false  # its name outside of rules


def constant(value: object, count: int, dtype: PolarsDataType) -> pl.Series:
    """Return a column with one value, as ``pl.repeat`` does after planning a query.

    >>> constant(None, 2, pl.UInt32).to_list()
    [None, None]
    """
    return _one_row(value, dtype).new_from_index(0, count)


@cache
def _one_row(value: object, dtype: PolarsDataType) -> pl.Series:
    return pl.Series([value], dtype=dtype)


def sharing_nulls(frame: pl.DataFrame) -> pl.DataFrame:
    """Return a frame whose columns without any value are one in memory for each type.

    >>> frame = pl.DataFrame({"a": [1, 2], "b": [None, None]})
    >>> sharing_nulls(frame).equals(frame)
    True
    """
    if not frame.height:
        return frame
    return _sharing_nulls(frame.iter_columns(), frame.height, lambda column: column)


def rows_of(frame: pl.DataFrame, rows: pl.Series) -> pl.DataFrame:
    """Return rows of a frame; its columns without any value share memory.

    >>> frame = pl.DataFrame({"a": [1, 2], "b": [None, None]})
    >>> rows_of(frame, pl.Series([1, None])).rows()
    [(2, None), (None, None)]
    """
    return _sharing_nulls(frame.iter_columns(), len(rows), lambda column: column[rows])


def rows_moved(columns: list[pl.Series], rows: pl.Series) -> pl.DataFrame:
    """Return rows of columns as ``rows_of`` does; each column then leaves the list.

    So no more than one of them is in memory twice, if nothing else holds them.

    >>> columns = [pl.Series("a", [1, 2]), pl.Series("b", [None, None])]
    >>> rows_moved(columns, pl.Series([1, None])).rows(), columns
    ([(2, None), (None, None)], [])
    """
    return _sharing_nulls(_moved(columns), len(rows), lambda column: column[rows])


def _moved(columns: list[pl.Series]) -> Iterator[pl.Series]:
    columns.reverse()
    while columns:
        yield columns.pop()


def nulls_like(frame: pl.DataFrame) -> pl.DataFrame:
    """Return a frame of the same columns without any value; these share memory."""
    kinds = dict(zip(frame.columns, frame.dtypes, strict=True))
    nulls = {kind: constant(None, frame.height, kind) for kind in kinds.values()}
    return pl.DataFrame([nulls[kind].alias(name) for name, kind in kinds.items()])


def _sharing_nulls(
    columns: Iterable[pl.Series],
    height: int,
    taken: Callable[[pl.Series], pl.Series],
) -> pl.DataFrame:
    empty: dict[PolarsDataType, pl.Series] = {}

    def column(of: pl.Series) -> pl.Series:
        if of.null_count() < len(of):
            return taken(of)
        dtype = of.dtype
        if dtype not in empty:
            empty[dtype] = constant(None, height, dtype)
        return empty[dtype].alias(of.name)

    return pl.DataFrame([column(item) for item in columns])


def rows_where(holds: pl.Series) -> pl.Series:
    """Return the rows at which it holds, in a third of the time of ``arg_true``.

    >>> rows_where(pl.Series([True, None, False, True])).to_list()
    [0, 3]
    """
    return pl.int_range(len(holds), dtype=pl.UInt32, eager=True).filter(holds)


@cache
def ascii_only(pattern: str) -> str:
    r"""Return a pattern for Polars that knows the letters and digits of ASCII alone.

    Names of ops, kernels and calls have no others. With those of all scripts a pattern
    takes several times as long to compile, a tenth of a small lint in all.

    >>> ascii_only(r"nvjet_\w+|gemm"), ascii_only(r"^[^/]+\d")
    ('(?-u:nvjet_\\w+|gemm)', '^[^/]+[0-9]')
    """
    if _ANY_CHARACTER.search(pattern):
        # Whole characters, not bytes, are to match.
        return pattern.replace(r"\w", "[0-9A-Za-z_]").replace(r"\d", "[0-9]")
    return f"(?-u:{pattern})"


def place_among(column: pl.Series, distinct: pl.Series) -> pl.Series:
    """Return for each value of a column of categories its row among distinct ones.

    All values are among them. It takes a tenth of the time of a join.

    >>> names = pl.Series(["a", "b", None, "a"], dtype=pl.Categorical)
    >>> place_among(names, pl.Series(["b", None, "a"], dtype=pl.Categorical)).to_list()
    [2, 0, 1, 2]
    """
    codes, known_codes = column.to_physical(), distinct.to_physical()
    highest = known_codes.max()
    none = highest + 1 if isinstance(highest, int) else 0
    if known_codes.null_count():
        known_codes, codes = (
            # As fill_null does, but without planning a query.
            item.zip_with(item >= 0, pl.Series([none], dtype=item.dtype))
            for item in (known_codes, codes)
        )
    rows = pl.int_range(len(distinct), dtype=pl.UInt32, eager=True)
    return constant(0, none + 1, pl.UInt32).scatter(known_codes, rows)[codes]


def nth(column: str, at: int) -> pl.Expr:
    """Return one item of each list, none where the list is shorter.

    Of ``trace.inputs`` that is the shape, dtype, strides or value of one input.
    """
    return pl.col(column).list.get(at, null_on_oob=True)


def elements(at: int = 0) -> pl.Expr:
    """Return how many elements an input has, of a table with the inputs' ``dims``.

    >>> shapes = pl.DataFrame({"dims": [[[2, 3], [4]], [[]]]})
    >>> shapes.select(elements()).to_series().to_list()
    [6, 1]
    """
    return nth("dims", at).list.eval(pl.element().product()).list.first()


def asof(  # noqa: PLR0913 - those of join_asof that are used
    left: pl.DataFrame,
    right: pl.DataFrame,
    left_on: str,
    right_on: str,
    *,
    by: str | Sequence[str] | None = None,
    strategy: Literal["backward", "forward"] = "backward",
    suffix: str = "_right",
) -> pl.DataFrame:
    """Join each row with the last one at or before it, or the first one at or after.

    The rows come back in the order of ``left_on``, those of one moment in their own.

    >>> calls = pl.DataFrame({"ts": [5, 1]})
    >>> marks = pl.DataFrame({"at": [4, 2], "mark": ["b", "a"]})
    >>> asof(calls, marks, "ts", "at")["mark"].to_list()
    [None, 'b']
    """
    return _sorted(left, left_on).join_asof(
        _sorted(right, right_on),
        left_on=left_on,
        right_on=right_on,
        by=None if by is None else [by] if isinstance(by, str) else list(by),
        strategy=strategy,
        suffix=suffix,
        # Polars cannot check it where there is a ``by``, and warns; both were sorted.
        check_sortedness=False,
    )


def _sorted(table: pl.DataFrame, by: str) -> pl.DataFrame:
    """Return the rows in this order, those of one moment in their own."""
    if table[by].is_sorted() and not table[by].null_count():
        return table
    return table.sort(by, maintain_order=True)
