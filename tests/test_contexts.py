"""Rows of the host's tree by how they were called: against plain loops."""

from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traceq.analysis.time.call_paths import contexts

# The code of each row, and how far before it the row around it is, if any.
ROWS = st.lists(st.tuples(st.integers(1, 3), st.integers(0, 3)), max_size=40)
# Where compiled code was built it is asked, else both are the same.
BOTH = pytest.mark.parametrize("pure", ["", "1"])


def tree(codes: list[int], parents: list[int | None]) -> pl.DataFrame:
    """Return a tree of the host: its last row is nothing, around all others."""
    nothing = len(codes)
    above = [nothing if parent is None else parent for parent in parents]
    return pl.DataFrame(
        {
            "part": [0] * (nothing + 1),
            "row": list(range(nothing + 1)),
            "code": [*codes, 0],
            "parent": [*above, nothing],
        },
        schema={
            "part": pl.UInt8,
            "row": pl.UInt32,
            "code": pl.UInt32,
            "parent": pl.UInt32,
        },
    )


def by_loop(codes: list[int], parents: list[int | None]) -> list[tuple[int, ...]]:
    """Return the codes around each row, from the outside in, with its own."""
    result: list[tuple[int, ...]] = []
    for code, above in zip(codes, parents, strict=True):
        result.append((*(() if above is None else result[above]), code))
    return [*result, ()]


@pytest.mark.real
@BOTH
@settings(max_examples=200, deadline=None)
@given(rows=ROWS)
@pytest.mark.slow
def test_rows_are_one_where_they_and_all_around_them_are(
    pure: str, rows: list[tuple[int, int]]
) -> None:
    codes = [code for code, _ in rows]
    parents = [
        at - back if 0 < back <= at else None for at, (_, back) in enumerate(rows)
    ]

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRACEQ_PURE", pure)
        result = contexts(tree(codes, parents))

    paths = by_loop(codes, parents)
    number = {path: at for at, path in enumerate(dict.fromkeys(paths))}
    assert result.number.to_list() == [number[path] for path in paths]
    assert result.tree["first"].to_list() == [paths.index(path) for path in number]
    assert result.tree["parent"].to_list() == [
        number[path[:-1]] if len(path) > 1 else None for path in number
    ]


@BOTH
def test_deep_paths_that_are_alike_but_for_their_order_are_told_apart(
    pure: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Where the count of ones in a row's number is odd, and where it is even: sums of
    # such codes are the same for many ways of making one number of a path.
    monkeypatch.setenv("TRACEQ_PURE", pure)
    depth = 1 << 11
    codes = [1 + at.bit_count() % 2 for at in range(depth)]
    others = [3 - code for code in codes]
    around = [None, *range(depth - 1)]

    result = contexts(
        tree([*codes, *others], [*around, None, *range(depth, 2 * depth - 1)])
    )

    assert result.number.n_unique() == result.tree.height == 2 * depth + 1


def test_rows_apart_are_in_what_they_were_in() -> None:
    before = contexts(tree([1, 2, 2, 2], [None, 0, 0, 0]))
    some = pl.DataFrame(
        {"first": [2, 3], "row": [7, 8], "waited": [True, True]},
        schema_overrides={"first": pl.UInt32, "row": pl.UInt32},
    )

    result = before.apart(some)

    assert before.number.to_list() == [0, 1, 1, 1, 2]
    assert result.number.to_list() == [0, 1, 3, 3, 2]
    assert result.tree.select("first", "row", "parent", "waited").row(3) == (
        2,
        7,
        0,
        True,
    )
    assert result.tree["waited"].to_list() == [None, None, None, True]
