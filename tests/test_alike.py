"""Group ids for rows that are equal in several columns."""

from __future__ import annotations

import polars as pl

from traceq.analysis.base.group_ids import alike


def test_rows_are_alike_where_all_columns_are_and_nothing_is_a_value_too() -> None:
    large = pl.Series([2**31, 2**31, 0, 2**31, None], dtype=pl.UInt32)
    other = pl.Series([1, 1, 1, None, None], dtype=pl.UInt32)

    # Three large columns do not fit into one number at once.
    columns = alike(large, other, large, large)

    assert columns.number.to_list() == [0, 0, 1, 2, 3]
    assert columns.first.to_list() == [0, 2, 3, 4]
