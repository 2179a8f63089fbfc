"""An op table of a pipeline's ranks, through the replay, against published figures."""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest
import recordings
from command import traceq

from traceq.ranks.op_table import OpTable, read_op_table

if TYPE_CHECKING:
    from pathlib import Path

_FOLDER = recordings.SHARED / "ranks" / "bytedance_st"
_FILE = _FOLDER / "trace-ST.parquet"
pytestmark = pytest.mark.skipif(
    not _FILE.is_file(),
    reason="the op table is not ours to give away, and ../shared is not there",
)


@cache
def ops() -> pl.DataFrame:
    return pl.read_parquet(_FILE)


@cache
def table() -> OpTable:
    return read_op_table(_FILE)


def published(file: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((_FOLDER / file).read_text(encoding="utf-8"))
    return document


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


@pytest.mark.slow
def test_the_command_names_the_last_stage_and_the_published_slowdown() -> None:
    text = traceq("ranks", _FILE)
    data = json.loads(traceq("ranks", _FILE, "--format", "json").out)

    assert text.out.startswith("Stage 3 holds the others up")
    assert data["culprit"]["name"] == "3"
    assert data["culprit"]["share"] == pytest.approx(
        published("ms-ST.json")["Ms"], rel=0.01
    )
    expected = published("ms-ST.json")
    assert data["slowdown"] == pytest.approx(
        expected["tori"] / expected["tideal"], rel=0.01
    )


def test_a_table_of_ops_as_markdown_begins_with_the_verdict() -> None:
    answer = traceq("ranks", _FILE, "--format", "markdown")

    assert answer.out.startswith("**Stage 3 holds the others up")
    assert "| stage 3 |" in answer.out


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--format", "html"), "not as html"),
        (("--fail-on", "warning"), "--fail-on is for traces"),
        (("--findings",), "--findings is for traces"),
    ],
)
def test_what_a_table_of_ops_has_not_is_refused_in_a_sentence(
    options: tuple[str, ...], sentence: str
) -> None:
    answer = traceq("ranks", _FILE, *options)

    assert answer.status == 2
    assert sentence in answer.err


def test_another_table_is_refused_in_a_sentence(tmp_path: Path) -> None:
    file = tmp_path / "other.parquet"
    pl.DataFrame({"rank": [0], "step": [1]}).write_parquet(file)

    answer = traceq("ranks", file)

    assert answer.status == 2
    assert "the columns dp_rank, stage, optype" in answer.err


def test_what_is_no_parquet_file_is_refused_in_a_sentence(tmp_path: Path) -> None:
    file = tmp_path / "no.parquet"
    file.write_text("no table")

    answer = traceq("ranks", file)

    assert answer.status == 2
    assert "is no Parquet file that can be read" in answer.err
