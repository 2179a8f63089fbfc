"""`traceq query` and `traceq schema`: SQL over the tables, and what is in them."""

from __future__ import annotations

import csv
import io
import json
from typing import TYPE_CHECKING

import polars as pl
import pytest
from command import traceq
from conftest import FIXTURES

import traceq as api
from traceq.model.facts import FACTS
from traceq.model.schema import TABLES
from traceq.testing import draw

if TYPE_CHECKING:
    from pathlib import Path

TRACE = next(path for path in FIXTURES if path.parent.name == "copies")
BY_KIND = """
SELECT kind, count(*) AS n, sum(dur) AS ns FROM kernels GROUP BY kind ORDER BY ns DESC
"""


@pytest.fixture(scope="module")
def by_kind() -> list[tuple[str, int, int]]:
    """Return what BY_KIND should find, without SQL."""
    kernels = api.load(TRACE).kernels
    totals: dict[str, tuple[int, int]] = {}
    for kind, dur in kernels.select("kind", "dur").iter_rows():
        count, time = totals.get(kind, (0, 0))
        totals[kind] = count + 1, time + dur
    rows = [(kind, count, time) for kind, (count, time) in totals.items()]
    return sorted(rows, key=lambda row: -row[2])


def test_a_table_has_a_title_and_a_line_for_each_row(
    by_kind: list[tuple[str, int, int]],
) -> None:
    answer = traceq("query", TRACE, BY_KIND)

    title, *rows = (tuple(line.split()) for line in answer.lines)
    assert title == ("kind", "n", "ns")
    assert rows == [tuple(map(str, row)) for row in by_kind]


def test_csv_has_the_same_rows(by_kind: list[tuple[str, int, int]]) -> None:
    answer = traceq("query", TRACE, BY_KIND, "--format", "csv")

    title, *rows = csv.reader(io.StringIO(answer.out))
    assert title == ["kind", "n", "ns"]
    assert rows == [list(map(str, row)) for row in by_kind]


def test_json_has_the_same_rows_as_numbers(
    by_kind: list[tuple[str, int, int]],
) -> None:
    answer = traceq("query", TRACE, BY_KIND, "--format", "json")

    assert json.loads(answer.out) == [
        {"kind": kind, "n": count, "ns": time} for kind, count, time in by_kind
    ]


@pytest.mark.parametrize("form", ["table", "csv", "json"])
def test_every_table_can_be_asked_for_all_it_has(form: str) -> None:
    for name in TABLES:
        answer = traceq("query", TRACE, f"SELECT * FROM {name}", "--format", form)  # noqa: S608 - names of ours

        assert (answer.status, answer.err) == (0, "")
        assert answer.out


def test_names_can_be_compared_with_patterns() -> None:
    answer = traceq(
        "query", TRACE, "SELECT DISTINCT name FROM kernels WHERE name LIKE 'Memcpy H%'"
    )

    assert answer.lines == ["name", "Memcpy HtoD (Pageable -> Device)"]


def test_lists_are_json_in_csv() -> None:
    sql = "SELECT grid FROM kernels WHERE grid IS NOT NULL LIMIT 1"

    (_, [cell]) = csv.reader(
        io.StringIO(traceq("query", TRACE, sql, "--format", "csv").out)
    )

    assert len(json.loads(cell)) == 3


def test_nothing_found_is_a_title_alone() -> None:
    sql = "SELECT name, dur FROM ops WHERE dur < 0"

    assert traceq("query", TRACE, sql).out == "name  dur\n"
    assert traceq("query", TRACE, sql, "--format", "json").out == "[]\n"


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        (
            "SELECT nme FROM kernels",
            'unable to find column "nme"; valid columns: ["id"',
        ),
        ("SELECT name FROM kernel", "the tables are ops, kernels, runtime"),
        ("SELECT name FROM", "Expected: identifier, found: EOF"),
        ("SELECT guess(name) FROM ops", "unsupported function 'guess'"),
        ("SELECT 1; SELECT 2", "one (and only one) statement"),
        ("SELEC name FROM ops", "begin it with SELECT or WITH"),
        ("", "begin it with SELECT or WITH"),
        ("DROP TABLE ops", "begin it with SELECT or WITH"),
        ("CREATE TABLE x AS SELECT * FROM ops", "begin it with SELECT or WITH"),
        ("/* SELECT */ DELETE FROM ops", "begin it with SELECT or WITH"),
    ],
)
def test_a_query_that_cannot_be_run_gets_one_sentence(sql: str, message: str) -> None:
    answer = traceq("query", TRACE, sql)

    assert answer.status == 2
    assert answer.out == ""
    assert answer.err.count("\n") == 1
    assert message in answer.err


@pytest.mark.parametrize(
    "source",
    [
        "read_csv('{}')",
        "READ_CSV ('{}')",
        "read_csv/* */('{}')",
        "read_csv/* /* */ */('{}')",
        "read_csv--\n('{}')",
        "\"read_csv\"('{}')",
        "'{}'",
        '"{}"',
    ],
)
def test_a_query_reads_no_other_file(source: str, tmp_path: Path) -> None:
    secret = tmp_path / "secret.csv"
    secret.write_text("token\n1234\n")
    sql = f"SELECT 'a', * FROM {source.format(secret)}"  # noqa: S608 - it is refused

    answer = traceq("query", TRACE, sql)

    assert answer.status == 2
    assert "token" not in answer.out + answer.err
    assert "1234" not in answer.out + answer.err


def test_a_query_of_many_comments_is_judged_in_linear_time() -> None:
    answer = traceq("query", TRACE, "/**/" * 2_000 + "DROP TABLE ops")

    assert "begin it with SELECT or WITH" in answer.err


def test_comments_and_brackets_may_come_first() -> None:
    answer = traceq("query", TRACE, "/* why */ (SELECT count(*) AS n FROM steps)")

    assert answer.lines == ["n", "2"]


def many_ops(path: Path, count: int) -> Path:
    events = [
        {"ph": "X", "cat": "cpu_op", "name": f"op{at}", "pid": 1, "tid": 1, "ts": at,
         "dur": 1}
        for at in range(count)
    ]  # fmt: skip
    path.write_text(json.dumps({"traceEvents": events}))
    return path


@pytest.mark.real
@pytest.mark.parametrize("form", ["table", "csv"])
def test_a_large_result_is_written_whole(form: str, tmp_path: Path) -> None:
    path = many_ops(tmp_path / "many.json", 30_000)

    answer = traceq("query", path, "SELECT name FROM ops", "--format", form)

    assert answer.lines == ["name", *(f"op{at}" for at in range(30_000))]


@pytest.mark.parametrize("width", [40, 60, 80])
def test_on_a_terminal_names_are_cut_and_numbers_are_not(width: int) -> None:
    sql = "SELECT name, dur, ts FROM kernels ORDER BY dur DESC LIMIT 20"
    kernels = api.load(TRACE).kernels.sort("dur", descending=True)

    lines = traceq("query", TRACE, sql, width=width).lines

    assert max(map(len, lines)) <= width
    assert any("…" in line for line in lines)
    for line, (dur, ts) in zip(
        lines[1:], kernels.select("dur", "ts").iter_rows(), strict=False
    ):
        assert line.split()[-2:] == [str(dur), str(ts)]


def test_no_column_is_left_out_however_narrow_the_terminal() -> None:
    answer = traceq("query", TRACE, "SELECT * FROM kernels LIMIT 1", width=40)

    assert answer.lines[0].split() == list(TABLES["kernels"].columns)


NASTY = "=cmd|'/c calc'!A0 \x1b[2J[red]x\u202egpj\x9b31m"


@pytest.fixture
def nasty(tmp_path: Path) -> Path:
    path = tmp_path / "nasty.json"
    path.write_text(json.dumps(draw("host [nasty     ]")).replace("nasty", "NAME"))
    path.write_text(path.read_text().replace('"NAME"', json.dumps(NASTY)))
    return path


@pytest.mark.parametrize("form", ["table", "csv", "json"])
def test_a_nasty_name_cannot_act_on_a_terminal(form: str, nasty: Path) -> None:
    out = traceq("query", nasty, "SELECT name FROM ops", "--format", form).out

    assert "[red]x" in out
    assert not set(out) & set("\x1b\u202e\x9b")


def test_json_keeps_a_nasty_name_as_it_is(nasty: Path) -> None:
    out = traceq("query", nasty, "SELECT name FROM ops", "--format", "json").out

    assert json.loads(out) == [{"name": NASTY}]


def test_a_sheet_does_not_compute_a_name(nasty: Path) -> None:
    out = traceq("query", nasty, "SELECT name FROM ops", "--format", "csv").out

    (_, [cell]) = csv.reader(io.StringIO(out))
    assert cell.startswith("'=cmd|")


def test_a_sheet_gets_negative_numbers_as_they_are() -> None:
    sql = "SELECT -1 AS number, '-2.5' AS text"

    assert traceq("query", TRACE, sql, "--format", "csv").lines == [
        "number,text",
        "-1,-2.5",
    ]


def test_what_json_has_no_form_for_becomes_text() -> None:
    sql = "SELECT CAST(1.5 AS DECIMAL(10, 2)) AS price"

    out = traceq("query", TRACE, sql, "--format", "json").out

    assert json.loads(out) == [{"price": "1.50"}]


def test_the_schema_has_every_column_with_type_unit_and_meaning() -> None:
    out = " ".join(traceq("schema", width=200).out.split())

    for name, table in TABLES.items():
        assert f"{name} {table.meaning}" in out
        for column, definition in table.columns.items():
            unit = f" ({definition.unit})" if definition.unit else ""
            dtype = str(definition.dtype)
            dtype = "Enum" if dtype.startswith("Enum") else dtype
            assert f"{column} {dtype}{unit} {definition.meaning}" in out
    for fact, (dtype, meaning) in FACTS.items():
        assert f"{fact} {dtype} {meaning}" in out


def test_the_schema_of_one_table_has_no_other() -> None:
    lines = traceq("schema", "steps").lines

    assert lines[0].startswith("steps  ")
    assert len(lines) == 1 + len(TABLES["steps"].columns)


@pytest.mark.parametrize("width", [50, 80])
def test_the_schema_fits_the_terminal(width: int) -> None:
    assert max(map(len, traceq("schema", width=width).lines)) <= width


def test_the_schema_is_what_the_tables_have() -> None:
    trace = api.load(TRACE)

    for name, frame in trace.frames_by_name().items():
        assert frame.schema == pl.Schema(
            {
                column: definition.dtype
                for column, definition in TABLES[name].columns.items()
            }
        )
