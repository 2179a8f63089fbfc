"""Rows of the host's tree by how they were called: against plain loops."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from traceq.analysis.time import contexts as module
from traceq.analysis.time.contexts import contexts

if TYPE_CHECKING:
    import pytest

# The code of each row, and how far before it the row around it is, if any.
ROWS = st.lists(st.tuples(st.integers(1, 3), st.integers(0, 3)), max_size=40)


def tree(codes: list[int], parents: list[int | None]) -> pl.DataFrame:
    """Return a tree of the host: its last row is nothing, around all others."""
    nothing = len(codes)
    above = [nothing if one is None else one for one in parents]
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
            "code": pl.UInt64,
            "parent": pl.UInt32,
        },
    )


def by_loop(codes: list[int], parents: list[int | None]) -> list[tuple[int, ...]]:
    """Return the codes around each row, from the outside in, with its own."""
    found: list[tuple[int, ...]] = []
    for code, above in zip(codes, parents, strict=True):
        found.append((*(() if above is None else found[above]), code))
    return [*found, ()]


@settings(max_examples=200, deadline=None)
@given(ROWS)
def test_rows_are_one_where_they_and_all_around_them_are(
    rows: list[tuple[int, int]],
) -> None:
    codes = [code for code, _ in rows]
    parents = [
        at - back if 0 < back <= at else None for at, (_, back) in enumerate(rows)
    ]

    found = contexts(tree(codes, parents))

    paths = by_loop(codes, parents)
    number = {path: at for at, path in enumerate(dict.fromkeys(paths))}
    assert found.number.to_list() == [number[path] for path in paths]
    assert found.tree["first"].to_list() == [paths.index(path) for path in number]
    assert found.tree["parent"].to_list() == [
        number[path[:-1]] if len(path) > 1 else None for path in number
    ]


def test_paths_that_get_one_number_are_told_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # With this factor the path 1, 2 has the number of the path 3, and of 2, 1.
    monkeypatch.setattr(module, "_FACTORS", (1, 3))

    found = contexts(tree([1, 2, 3, 2, 1], [None, 0, None, None, 3]))

    assert found.number.n_unique() == found.tree.height == 6


def test_paths_that_get_one_number_with_every_factor_are_not_taken_for_one() -> None:
    # Where the count of ones in a row's number is odd, and where it is even: sums of
    # such codes are the same modulo 2**64 for the powers of any odd number.
    depth = 1 << 11
    codes = [1 + at.bit_count() % 2 for at in range(depth)]
    others = [3 - code for code in codes]
    around = [None, *range(depth - 1)]

    found = contexts(
        tree([*codes, *others], [*around, None, *range(depth, 2 * depth - 1)])
    )

    assert found.number[depth - 1] != found.number[2 * depth - 1]


def test_rows_apart_are_in_what_they_were_in() -> None:
    before = contexts(tree([1, 2, 2, 2], [None, 0, 0, 0]))
    some = pl.DataFrame(
        {"first": [2, 3], "row": [7, 8], "waited": [True, True]},
        schema_overrides={"first": pl.UInt32, "row": pl.UInt32},
    )

    found = before.apart(some)

    assert before.number.to_list() == [0, 1, 1, 1, 2]
    assert found.number.to_list() == [0, 1, 3, 3, 2]
    assert found.tree.select("first", "row", "parent", "waited").row(3) == (
        2,
        7,
        0,
        True,
    )
    assert found.tree["waited"].to_list() == [None, None, None, True]
