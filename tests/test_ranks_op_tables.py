"""An op table of a pipeline's ranks, through the replay, against published figures."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import op_tables
import polars as pl
import pytest
import recordings

_FOLDER = recordings.SHARED / "ranks" / "bytedance_st"


@cache
def ops() -> pl.DataFrame:
    file = _FOLDER / "trace-ST.parquet"
    if not file.is_file():
        pytest.skip("the op table is not ours to give away, and ../shared is not there")
    return pl.read_parquet(file)


@cache
def table() -> op_tables.OpTable:
    return op_tables.op_table(ops())


def published(file: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((_FOLDER / file).read_text(encoding="utf-8"))
    return found


def share(ranks: pl.Expr) -> float:
    """Return the share of the slowdown that goes if these ranks are ideal."""
    took, ideal = (table().step_ns(pl.lit(value=value)) for value in (False, True))
    return (took - table().step_ns(ranks)) / (took - ideal)


def test_the_slowdown_is_the_published_one() -> None:
    took, ideal = (table().step_ns(pl.lit(value=value)) for value in (False, True))
    expected = published("ms-ST.json")

    assert took / 1e9 == pytest.approx(expected["tori"], rel=0.03)
    assert ideal / 1e9 == pytest.approx(expected["tideal"], rel=0.03)
    assert took / ideal == pytest.approx(
        expected["tori"] / expected["tideal"], rel=0.03
    )


def test_the_last_stage_explains_as_much_as_published() -> None:
    last = pl.col("stage") == ops()["stage"].max()

    assert share(last) == pytest.approx(published("ms-ST.json")["Ms"], rel=0.03)


def test_the_worst_worker_explains_as_much_as_published() -> None:
    ideal = table().step_ns(pl.lit(value=True))
    slower = {
        column: {
            value: table().step_ns(pl.col(column) != value) / ideal
            for value in ops()[column].unique()
        }
        for column in ("dp_rank", "stage")
    }
    workers = ops().select("rank", "dp_rank", "stage").unique().rows()
    scores = {
        rank: min(slower["dp_rank"][group], slower["stage"][stage])
        for rank, group, stage in workers
    }
    worst = max(scores, key=lambda rank: scores[rank])

    assert share(pl.col("rank") == worst) == pytest.approx(
        published("mw-ST.json")["Mw"], rel=0.03
    )
