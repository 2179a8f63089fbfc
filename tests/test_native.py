"""Compiled functions called directly, with arguments that no caller of ours passes.

`.ci/sanitize` runs this and the other tests of compiled code under the sanitizers.
"""

from __future__ import annotations

import math
from typing import Any

import polars as pl
import pytest

from traceq import native
from traceq.formats import scan
from traceq.native import _native
from traceq.native.columns import to_series

if not native.available():
    pytest.skip("compiled code was not built", allow_module_level=True)

LEAST, MOST = -(1 << 63), (1 << 63) - 1
TABLES = [table.scanner_table for table in scan.columns()]
TEXT = b'ph": "X", "cat": "cpu_op", "name": "a", "pid": 1, "tid": 1, "ts": 1, "dur": 2'


def whole(*values: int) -> pl.Series:
    return pl.Series(values, dtype=pl.Int64)


def index(*values: int) -> pl.Series:
    return pl.Series(values, dtype=pl.UInt32)


def part(*values: float) -> pl.Series:
    return pl.Series(values, dtype=pl.Float64)


def values(made: Any) -> list[Any]:  # noqa: ANN401 - what compiled code returns
    return to_series(made).to_list()


def new_scanner() -> _native.Scanner:
    return _native.Scanner(b"},{", scan.classify, TABLES, 1)


BAD_TABLES: list[Any] = [
    [(2, 1, 5)],
    [(2, 1, None)],
    [(1, 1, [])],
    [(2, 0, [])],
    [(2, 65, [])],
    [(10**9, 10**9, [])],
    [(2, 1, [(b"a", 1, 2, False, False)])],
    [(2, 1, [(b"a", 9, 0, False, False)])],
    [(2, 1, [(b"a", 1, -1, False, False)])],
    [(2, 1, [None])],
    [(2, 1, [(b"a",)])],
    [TABLES[0], 7],
    7,
]


@pytest.mark.parametrize("tables", BAD_TABLES, ids=str)
def test_a_scanner_that_was_not_made_does_nothing(tables: Any) -> None:  # noqa: ANN401
    scanner = _native.Scanner.__new__(_native.Scanner)
    with pytest.raises((TypeError, ValueError, SystemError)):
        scanner.__init__(b"},{", scan.classify, tables, 1)  # type: ignore[misc]

    for call in (
        lambda: scanner.feed(TEXT, 0, len(TEXT)),
        lambda: scanner.take(0),
        lambda: scanner.texts(0, 1),
        scanner.heads,
    ):
        with pytest.raises(RuntimeError, match="was not made"):
            call()


def test_a_scanner_is_made_once_after_a_failure_too() -> None:
    scanner = _native.Scanner.__new__(_native.Scanner)
    with pytest.raises(ValueError, match="columns"):
        scanner.__init__(b"},{", scan.classify, [(1, 1, [])], 1)  # type: ignore[misc]

    with pytest.raises(RuntimeError, match="made once"):
        scanner.__init__(b"},{", scan.classify, TABLES, 1)  # type: ignore[misc]


def test_a_scanner_at_work_is_not_read() -> None:
    raised: list[str] = []

    def classify(_: bytes) -> int:
        for call in (
            scanner.heads,
            lambda: scanner.take(0),
            lambda: scanner.texts(0, 1),
        ):
            with pytest.raises(RuntimeError, match="at work") as exception_info:
                call()
            raised.append(str(exception_info.value))
        return 0

    scanner = _native.Scanner(b"},{", classify, TABLES, 1)
    scanner.feed(TEXT, 0, len(TEXT))

    assert len(raised) == 3


@pytest.mark.parametrize(
    ("start", "end"), [(-1, 5), (5, 4), (0, MOST), (LEAST, 0), (3, 10**6)]
)
def test_a_part_that_is_not_there_is_not_scanned(start: int, end: int) -> None:
    with pytest.raises(IndexError):
        new_scanner().feed(TEXT, start, end)


@pytest.mark.parametrize("table", [-1, len(TABLES), 2**31 - 1])
def test_a_table_that_is_not_there_is_not_taken(table: int) -> None:
    with pytest.raises(IndexError):
        new_scanner().take(table)
    with pytest.raises(IndexError):
        new_scanner().texts(table, 1)


def test_no_text_at_all_is_a_text() -> None:
    scanner = _native.Scanner(b"", lambda _: 0, TABLES, 1)

    assert scanner.feed(b"", 0, 0)[0] == 1


def test_sums_of_rows_that_are_not_there_are_refused() -> None:
    with pytest.raises(ValueError, match="not there"):
        _native.sums(1, index(1), whole(1))


def test_sums_that_go_beyond_64_bits_begin_again() -> None:
    assert values(_native.sums(1, index(0, 0), whole(MOST, 1))) == [LEAST]


def played(item: pl.Series, groups: int, rounds: int = 3) -> float:
    work = (part(), index(), part(), index(), index(), part(), part(), part())
    steps = (part(0.0, 1.0), *work, index(), index())
    none = index(*[2**32 - 1] * len(item))
    zeros = index(*[0] * len(item))
    order = (item, zeros, zeros, none, index(), index(), part(), part(0.0))
    return _native.played(steps, order, groups, 1.0, rounds)[0]


def test_groups_without_work_take_no_time() -> None:
    assert played(index(*range(64)), 64) == 1.0


@pytest.mark.parametrize("rounds", [0, -1, -(2**31)])
def test_no_rounds_take_no_time(rounds: int) -> None:
    assert played(index(0), 1, rounds) == 0.0


def test_a_group_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match="fit"):
        played(index(5), 5)


def test_waits_between_the_ends_of_time_are_summed() -> None:
    pieces = (whole(0), whole(1), whole(LEAST), whole(MOST), part(1.0), part(1.0))
    spans = (whole(LEAST), whole(MOST), index(0), index(0), *pieces)
    removed = ((whole(LEAST), whole(MOST), 0.5),)

    time, calls = _native.waits(spans, removed, 1, 1, 0.0)

    assert not math.isnan(values(time)[0])
    assert len(values(calls)) == 1


@pytest.mark.parametrize(
    ("begin", "until"), [(-1, 1), (2, 1), (0, 99), (MOST, MOST), (LEAST, 0)]
)
def test_events_of_a_part_that_is_not_there_are_refused(begin: int, until: int) -> None:
    with pytest.raises(ValueError, match="no such part"):
        _native.events(b"}r", begin, until, {}, 1, False)  # noqa: FBT003


@pytest.mark.parametrize(
    "series",
    [
        pl.Series([None, 1], dtype=pl.UInt32),
        pl.Series([1.0]),
        pl.Series(["a"]),
        pl.concat([index(0), index(0)], rechunk=False),
        None,
        7,
    ],
    ids=str,
)
def test_other_columns_are_refused(series: Any) -> None:  # noqa: ANN401
    with pytest.raises((ValueError, AttributeError)):
        _native.arrived(series)
    with pytest.raises((ValueError, AttributeError)):
        _native.parents(0, series, whole(1))
