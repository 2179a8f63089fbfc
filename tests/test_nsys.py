"""Exports of Nsight Systems: what SQL counts is what the tables have."""

from __future__ import annotations

import os
import sqlite3
from typing import TYPE_CHECKING

import polars as pl
import pytest
from command import traceq
from linting import bundled_rules
from nsys_tables import write_export
from recordings import NSYS, ROOT, exports, path_of

from traceq.errors import InputError
from traceq.formats.chrome import read as read_chrome
from traceq.formats.nsys.read import ranks_in, read
from traceq.formats.nsys.shapes import with_shapes
from traceq.inputs.load_trace import load
from traceq.linter import Need

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from traceq.model.trace import Trace

_ACTIVITIES = {
    "kernel": "CUPTI_ACTIVITY_KIND_KERNEL",
    "memcpy": "CUPTI_ACTIVITY_KIND_MEMCPY",
    "memset": "CUPTI_ACTIVITY_KIND_MEMSET",
}
_CALLS = "CUPTI_ACTIVITY_KIND_RUNTIME"
_EXPORTS = exports()


@pytest.fixture
def export(tmp_path: Path) -> Path:
    file = tmp_path / "report.sqlite"
    write_export(file, read_chrome(path_of("copies_fixed.trace.json.gz")))
    return file


def queried(file: Path, query: str) -> list[tuple[object, ...]]:
    connection = sqlite3.connect(f"file:{file}?mode=ro&immutable=1", uri=True)
    try:
        return connection.execute(query).fetchall()
    finally:
        connection.close()


def tables_of(file: Path) -> set[object]:
    return {name for (name,) in queried(file, "SELECT name FROM sqlite_master")}


def changed(file: Path, *statements: str) -> Path:
    connection = sqlite3.connect(file)
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()
    return file


def ranks(file: Path) -> Iterator[Trace]:
    for rank in ranks_in(file):
        yield load(file, rank=rank, cache=False)


@pytest.mark.parametrize("activity", _ACTIVITIES)
@pytest.mark.parametrize("file", _EXPORTS)
def test_gpu_work_is_what_sql_says(file: Path, activity: str) -> None:
    table = _ACTIVITIES[activity]
    if table not in tables_of(file):
        pytest.skip(f"the export has no {table}")
    columns = "deviceId, streamId, correlationId, start, end - start"
    expected = queried(file, f"SELECT {columns} FROM {table}")  # noqa: S608 - of this file
    read_rows = [
        row
        for trace in ranks(file)
        for row in trace.kernels.filter(pl.col("activity") == activity)
        .select(
            "device",
            "stream",
            "correlation",
            pl.col("ts") + trace.facts.origin_ns,
            "dur",
        )
        .iter_rows()
    ]
    assert sorted(read_rows) == sorted(expected)


@pytest.mark.parametrize("file", _EXPORTS)
def test_calls_are_what_sql_says(file: Path) -> None:
    columns = "correlationId, start, end - start, globalTid & 0xFFFFFF"
    expected = queried(file, f"SELECT {columns} FROM {_CALLS}")  # noqa: S608 - as above
    with_work = {trace.runtime.height for trace in ranks(file)}
    read_rows = [
        row
        for trace in ranks(file)
        for row in trace.runtime.select(
            "correlation",
            pl.col("ts") + trace.facts.origin_ns,
            "dur",
            trace.threads["tid"][trace.runtime["thread"]].cast(pl.Int64),
        ).iter_rows()
    ]
    assert with_work
    assert sorted(read_rows) == sorted(expected)


@pytest.mark.parametrize("file", _EXPORTS)
def test_each_rank_has_the_work_of_its_process(file: Path) -> None:
    by_process = queried(
        file,
        "SELECT count(*), sum(end - start) FROM CUPTI_ACTIVITY_KIND_KERNEL"
        " GROUP BY globalPid ORDER BY min(deviceId)",
    )
    kernels = [
        trace.kernels.filter(pl.col("activity") == "kernel") for trace in ranks(file)
    ]
    assert [(rows.height, rows["dur"].sum()) for rows in kernels] == by_process


@pytest.mark.parametrize("file", _EXPORTS)
def test_what_sql_can_link_is_linked(file: Path) -> None:
    linked = sum(
        trace.kernels.filter(pl.col("activity") == "kernel")["launch"].count()
        for trace in ranks(file)
    )
    ((possible,),) = queried(
        file,
        "SELECT count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL AS k WHERE EXISTS (SELECT 1"
        " FROM CUPTI_ACTIVITY_KIND_RUNTIME AS r WHERE r.correlationId ="
        " k.correlationId AND r.globalTid / 0x1000000 = k.globalPid / 0x1000000)",
    )
    assert isinstance(possible, int)
    assert linked >= 0.99 * possible


@pytest.mark.parametrize("file", _EXPORTS)
def test_every_torch_range_is_an_op_or_a_region(file: Path) -> None:
    if "NVTX_EVENTS" not in tables_of(file):
        pytest.skip("the export has no NVTX_EVENTS")
    ((expected,),) = queried(
        file, "SELECT count(*) FROM NVTX_EVENTS WHERE eventType = 59"
    )
    assert (
        sum(trace.ops.height + trace.annotations.height for trace in ranks(file))
        == expected
    )


def test_the_ranks_of_a_job_are_on_one_clock() -> None:
    if "mfu_2gpu_before" not in NSYS:
        pytest.skip("the export is not ours to give away, and ../shared is not there")
    screen = traceq("ranks", "--no-cache", NSYS["mfu_2gpu_before"]).out
    assert "Rank 1 of 2 holds the others up" in screen
    assert "one clock for all ranks" in screen


def test_shapes_are_where_kineto_has_them(export: Path) -> None:
    def tensors(trace: Trace) -> list[list[tuple[int, list[int]]]]:
        # Of several lists of tensors nothing tells where one ends.
        lists = pl.col("name").cast(pl.String).str.contains("_fused_|_foreach_")
        asked = trace.ops.filter(~lists)["inputs"]
        return [
            [(at, size) for at, size in enumerate(dims or ()) if size]
            for dims in trace.inputs["dims"][asked].to_list()
        ]

    kineto = load(path_of("copies_fixed.trace.json.gz"), cache=False)
    assert tensors(load(export, cache=False)) == tensors(kineto)


def test_backward_ops_point_to_their_forward(export: Path) -> None:
    kineto = load(path_of("copies_fixed.trace.json.gz"), cache=False)
    assert load(export, cache=False).ops["forward"].equals(kineto.ops["forward"])


def test_a_list_of_tensors_is_one_input() -> None:
    ops = pl.DataFrame(
        {"name": ["aten::cat"], "inputs": ["[[2, 3], [2, 3], []]"]},
        {"name": pl.Categorical, "inputs": pl.Categorical},
    )
    assert with_shapes(ops)[1]["dims"].to_list() == [[None, []]]


def test_dtypes_are_those_of_the_kernels(export: Path) -> None:
    trace = load(export, cache=False)
    matmuls = trace.ops.filter(pl.col("name").cast(pl.String) == "aten::addmm")
    types = trace.inputs["types"][matmuls["inputs"]]
    assert set(types.list.first()) == {"c10::BFloat16"}


def test_what_is_missing_is_said_with_the_flag(tmp_path: Path) -> None:
    file = tmp_path / "report.sqlite"
    raw = read_chrome(path_of("copies_fixed.trace.json.gz"))
    write_export(file, raw, shapes=False)
    lacks = load(file, cache=False).facts.lacks
    assert "recorded without --pytorch=autograd-shapes-nvtx: no shapes" in lacks


def test_skipped_rules_name_the_flag_of_nsys(export: Path) -> None:
    changed(export, "DELETE FROM NVTX_EVENTS")
    text = traceq("lint", "--no-cache", "-v", export).out
    assert "nsys profile --pytorch=autograd-shapes-nvtx" in text


def test_any_table_may_be_missing(export: Path) -> None:
    for table in sorted(map(str, tables_of(export) - {_CALLS})):
        changed(export, f"DROP TABLE {table}")
        assert load(export, cache=False).runtime.height


def test_any_column_may_be_missing(export: Path) -> None:
    changed(export, f"ALTER TABLE {_CALLS} DROP COLUMN correlationId")
    trace = load(export, cache=False)
    assert trace.kernels["launch"].null_count() == trace.kernels.height


def test_a_view_is_not_read(export: Path) -> None:
    changed(
        export,
        "DROP TABLE NVTX_EVENTS",
        "CREATE VIEW NVTX_EVENTS AS SELECT start, end, 59 AS eventType, 'aten::mm' AS"
        " text, globalTid, NULL AS textId, 0 AS domainId FROM"
        " CUPTI_ACTIVITY_KIND_RUNTIME",
    )
    assert load(export, cache=False).ops.is_empty()


def test_another_database_is_refused(tmp_path: Path) -> None:
    file = changed(tmp_path / "other.sqlite", "CREATE TABLE users (id, name)")
    with pytest.raises(InputError, match="not an export of Nsight Systems"):
        load(file, cache=False)


def test_a_rank_that_is_not_there_is_refused(export: Path) -> None:
    with pytest.raises(InputError, match="has no rank 7, the ranks are 0"):
        load(export, rank=7, cache=False)


def test_a_folder_of_parquet_files_is_the_same_export(
    export: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "report_pqtdir"
    folder.mkdir()
    for table in map(str, tables_of(export)):
        with sqlite3.connect(export) as connection:
            rows = pl.read_database(f"SELECT * FROM {table}", connection)  # noqa: S608 - as above
        rows.write_parquet(folder / f"{table}.parquet")
    whole, other = load(export, cache=False), load(folder, cache=False)
    for name in ("ops", "kernels", "runtime", "annotations", "inputs"):
        assert whole.table(name).equals(other.table(name)), name


def test_the_cache_tells_ranks_apart() -> None:
    if "h100_2gpu_1s" not in NSYS:
        pytest.skip("the export is not ours to give away, and ../shared is not there")
    file = NSYS["h100_2gpu_1s"]
    devices = [load(file, rank=rank).kernels["device"][0] for rank in (0, 1, 0, 1)]
    assert devices == [0, 1, 0, 1]


def test_waits_between_streams_are_in_the_tables() -> None:
    if "mfu_2gpu_before" not in NSYS:
        pytest.skip("the export is not ours to give away, and ../shared is not there")
    file = NSYS["mfu_2gpu_before"]
    waits = sum(
        read(file, rank).raw.tables["other"]["name"].eq("Stream Wait Event").sum()
        for rank in ranks_in(file)
    )
    query = "SELECT count(*) FROM CUPTI_ACTIVITY_KIND_SYNCHRONIZATION WHERE syncType=2"
    assert [(waits,)] == queried(file, query)


def _needed(needs: frozenset[Need]) -> str:
    """Return what must be recorded for a rule, as the page says it."""
    elsewhere = {
        Need.JOB: "several processes, by `traceq ranks`",
        Need.LOG: "a log (`--log`)",
        Need.SNAPSHOT: "a memory snapshot of PyTorch",
        Need.VALUES: "values and strides of inputs, by PyTorch's profiler",
        Need.NO_GPU: "a program without a GPU",
    }
    for need, text in elsewhere.items():
        if need in needs:
            return text
    flags = []
    if Need.SHAPES in needs:
        flags.append("`--pytorch=autograd-shapes-nvtx`")
    elif Need.OPS in needs:
        flags.append("`--pytorch=autograd-nvtx`")
    if needs & {Need.STACKS, Need.LINES}:
        flags.append("`--python-backtrace=cuda`")
    if needs & {Need.STEPS, Need.WARM}:
        flags.append("steps")
    return ", ".join(flags) or "`--trace=cuda,nvtx`"


@pytest.mark.golden
def test_the_page_lists_rules_by_flag() -> None:
    rows: dict[str, list[str]] = {}
    for code, rule in sorted(bundled_rules().items()):
        rows.setdefault(_needed(rule.needs), []).append(code)
    expected = "".join(f"| {needs} | {', '.join(rows[needs])} |\n" for needs in rows)
    mark = "<!-- rules by flag -->\n"
    page = ROOT / "docs" / "nsys.md"
    text = page.read_text(encoding="utf-8")
    before, listed = text.split(mark)
    listed, after = listed.split("<!-- /rules by flag -->\n")
    if os.environ.get("UPDATE_GOLDEN"):
        whole = f"{before}{mark}{expected}<!-- /rules by flag -->\n{after}"
        page.write_text(whole, encoding="utf-8")
    else:
        assert listed == expected
