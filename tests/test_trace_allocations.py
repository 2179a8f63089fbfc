"""Ops of the trace that made the allocations of the snapshot of the same run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl
import pytest
from linting import case_snapshot, outcome
from recordings import loaded, path_of

from traceq.analysis.memory.history import History
from traceq.analysis.memory.trace_allocations import in_trace, made_by, modules
from traceq.common.expressions import text
from traceq.common.words import layer_name
from traceq.model.recording import Recording

if TYPE_CHECKING:
    from collections.abc import Sequence

MIB = 1 << 20


def ops(*rows: tuple[str, int, str, str, str | None, int | None]) -> pl.DataFrame:
    """Return operators of a trace: file, first line, function, op, module, MiB."""
    names = ["file", "line", "function", "trace_op", "module", "bytes"]
    table = pl.DataFrame(rows, schema=names, orient="row", infer_schema_length=None)
    return table.with_columns(
        pl.col("bytes").cast(pl.Int64) * MIB,
        pl.col("module").cast(pl.String),
        cast=pl.lit(value=False),
    )


def made(
    of: pl.DataFrame, place: tuple[str, int, str], op: str | None = None, mib: int = 8
) -> pl.DataFrame:
    """Return what may have made one allocation."""
    schema = {"file": pl.String, "line": pl.Int64, "function": pl.String}
    table = pl.DataFrame([place], schema=schema, orient="row").with_columns(
        pl.lit(op, pl.String).alias("op"), size=pl.lit(mib * MIB)
    )
    return made_by(in_trace(table.with_row_index("key"), of), of)


def module(table: pl.DataFrame) -> tuple[str | None, Sequence[str]]:
    rows = modules(table).select("module", "instances").rows()
    return rows[0] if rows else (None, [])


# Which function.


def test_a_file_is_the_same_from_another_folder_on() -> None:
    of = ops(("src/model.py", 3, "forward", "aten::mm", "LM_0", 8))

    assert made(of, ("model.py", 5, "forward")).height == 1
    assert made(of, ("home/src/model.py", 5, "forward")).height == 1
    # It ends with the same letters, but it is another file.
    assert made(of, ("odel.py", 5, "forward")).is_empty()
    assert made(of, ("lib/model.py", 5, "forward")).is_empty()


def test_of_methods_with_one_name_the_last_above_the_line_is_around_it() -> None:
    of = ops(
        ("model.py", 3, "forward", "aten::mm", "A_0", 8),
        ("model.py", 20, "forward", "aten::mm", "B_0", 8),
    )

    assert module(made(of, ("model.py", 9, "forward"))) == ("A", ["A_0"])
    assert module(made(of, ("model.py", 25, "forward"))) == ("B", ["B_0"])
    assert module(made(of, ("model.py", 2, "forward"))) == (None, [])


# Which op.


def test_the_name_of_the_op_counts_before_the_size() -> None:
    of = ops(
        ("model.py", 3, "forward", "aten::mm", "A_0", 4),
        ("model.py", 3, "forward", "aten::gelu", "B_0", 8),
    )
    place = ("model.py", 5, "forward")

    assert made(of, place, "mm")["trace_op"].to_list() == ["aten::mm"]
    assert made(of, place)["trace_op"].to_list() == ["aten::gelu"]
    assert made(of, place, "add", 2)["trace_op"].to_list() == ["aten::mm", "aten::gelu"]


def test_a_block_may_be_a_little_larger_than_what_was_asked_for() -> None:
    of = ops(
        ("model.py", 3, "forward", "aten::mm", "A_0", 9),
        ("model.py", 3, "forward", "aten::gelu", "B_0", 8),
    )

    table = made(of, ("model.py", 5, "forward"))

    assert table.select("trace_op", "fits").rows() == [("aten::gelu", True)]


# Which module.


def test_all_layers_are_one_module_with_an_instance_each() -> None:
    of = ops(
        ("model.py", 3, "forward", "aten::mm", "LM_0/Block_0", 8),
        ("model.py", 3, "forward", "aten::mm", "LM_0/Block_1", 8),
    )

    result = module(made(of, ("model.py", 5, "forward")))

    assert result == ("LM/Block", ["LM_0/Block_0", "LM_0/Block_1"])


def test_where_several_modules_may_have_made_it_the_one_around_them_did() -> None:
    of = ops(
        ("model.py", 3, "forward", "aten::mm", "LM_0/Block_0/Q_0", 8),
        ("model.py", 3, "forward", "aten::mm", "LM_0/Block_0/Key_0", 8),
        ("model.py", 3, "forward", "aten::mm", "LM_0/Block_1/Q_1", 8),
    )

    result = module(made(of, ("model.py", 5, "forward")))

    assert result == ("LM/Block", ["LM_0/Block_0", "LM_0/Block_1"])


def test_what_may_be_outside_of_any_module_has_none() -> None:
    of = ops(
        ("train.py", 3, "step", "aten::linear", "LM_0", 8),
        ("train.py", 3, "step", "aten::randn", None, 8),
    )
    place = ("train.py", 5, "step")

    assert module(made(of, place)) == (None, [])
    assert module(made(of, place, "randn")) == (None, [])
    assert module(made(of, place, "linear")) == ("LM", ["LM_0"])


# Real runs.


def run(name: str) -> tuple[Recording, History]:
    snapshot = case_snapshot(f"{name}.snapshot.pickle.gz")
    trace = loaded(path_of(f"{name}.trace.json.gz"))
    return Recording(name, trace, snapshots={0: snapshot}), History(snapshot, trace)


@pytest.mark.parametrize(
    "name", ["attn_manual", "copies", "layernorm_autocast", "memory_leak"]
)
def test_lint_and_memory_name_the_same_module(name: str) -> None:
    recording, history = run(name)
    needs_snapshot = [f"MEM{number:03}" for number in range(3, 11)]

    findings = outcome(recording, *needs_snapshot).findings

    assert any(finding.place.module for finding in findings)
    for item in findings:
        where = item.place
        (named_ops,) = [line.name for line in item.evidence if line.label == "op"]
        here = history.allocations.filter(
            pl.col("file") == where.file,
            pl.col("line") == where.line,
            (pl.lit("aten::") + text("op")).is_in(named_ops.split(", ")),
        )
        assert here.height
        named = set(here["module"].drop_nulls())
        assert named == ({layer_name(where.module)} if where.module else set())


def test_what_a_compiled_function_runs_is_in_its_module() -> None:
    _, history = run("graph_record")

    by_line = {
        (row["function"], row["op"]): row["module"]
        for row in history.at_peak.drop_nulls("file").to_dicts()
    }

    assert by_line["forward", None] == "LM"
    # The loss is computed outside of it.
    assert by_line["step", "cross_entropy_loss"] is None
