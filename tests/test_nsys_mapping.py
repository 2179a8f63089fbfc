"""Rows of Nsight Systems' tables: what of the program each one becomes."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING

import polars as pl
import pytest
from nsys_tables import PROCESS, create_tables

from traceq.inputs.load_trace import load

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from traceq.model.trace import Trace

_THREAD = PROCESS | 7
_KERNEL = 1
_LAUNCH = 2


class _Drawing:
    """An export that a test draws row by row."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._connection = sqlite3.connect(file)
        create_tables(self._connection)
        self.rows("StringIds", (_KERNEL, "gemm"), (_LAUNCH, "cudaLaunchKernel_v7000"))

    def execute(self, statement: str) -> None:
        self._connection.execute(statement)

    def rows(self, table: str, *rows: Sequence[object]) -> None:
        for row in rows:
            places = ", ".join("?" * len(row))
            self._connection.execute(f"INSERT INTO {table} VALUES ({places})", row)  # noqa: S608 - of this file

    def range(self, text: str, start: int, end: int) -> None:
        row = (start, end, 59, text, _THREAD, None, 0)
        self.rows("NVTX_EVENTS", row)

    def launched(self, start: int, number: int = 1, *, gpu: int | None = None) -> None:
        """Draw a launch of 10 ns, and its kernel."""
        launch = (start, start + 10, _THREAD, number, _LAUNCH)
        self.rows("CUPTI_ACTIVITY_KIND_RUNTIME", launch)
        begin = start + 20 if gpu is None else gpu
        self._connection.execute(
            "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL (start, end, deviceId, streamId,"
            " correlationId, globalPid, demangledName) VALUES (?, ?, 0, 7, ?, ?, ?)",
            (begin, begin + 50, number, PROCESS, _KERNEL),
        )

    def loaded(self) -> Trace:
        self._connection.commit()
        self._connection.close()
        return load(self.file, cache=False)


@pytest.fixture
def drawing(tmp_path: Path) -> _Drawing:
    return _Drawing(tmp_path / "report.sqlite")


def _with_stacks(drawing: _Drawing) -> None:
    drawing.execute("ALTER TABLE CUPTI_ACTIVITY_KIND_RUNTIME ADD COLUMN callchainId")
    drawing.execute("UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET callchainId = 3")
    drawing.execute(
        "CREATE TABLE CUDA_CALLCHAINS (id, symbol, module, stackDepth, unresolved)"
    )
    drawing.rows(
        "StringIds",
        *((10, "forward"), (11, "/home/a/model.py:48")),
        *((12, "main"), (13, "/home/a/train.py:7"), (14, "libcuda.so")),
    )
    drawing.rows(
        "CUDA_CALLCHAINS",
        *((3, 14, 14, 0, 0), (3, 10, 11, 1, 0), (3, 12, 13, 2, 0)),
    )


def test_an_op_has_the_stack_of_its_cuda_call(drawing: _Drawing) -> None:
    drawing.range("aten::mm, op_id = 1", 0, 100)
    drawing.launched(10)
    _with_stacks(drawing)
    op = drawing.loaded().ops.row(0, named=True)
    assert (op["file"], op["line"]) == ("/home/a/model.py", 48)


def test_frames_of_libraries_are_not_on_a_stack(drawing: _Drawing) -> None:
    drawing.range("aten::mm, op_id = 1", 0, 100)
    drawing.launched(10)
    _with_stacks(drawing)
    assert drawing.loaded().ops["function"].to_list() == ["forward"]


def test_an_op_without_a_cuda_call_has_no_stack(drawing: _Drawing) -> None:
    drawing.range("aten::mm, op_id = 1", 0, 100)
    drawing.range("aten::view, op_id = 2", 200, 210)
    drawing.launched(10)
    _with_stacks(drawing)
    assert drawing.loaded().ops["line"].to_list() == [48, None]


def test_stacks_are_recorded_where_there_is_one(drawing: _Drawing) -> None:
    drawing.range("aten::mm, op_id = 1", 0, 100)
    drawing.launched(10)
    _with_stacks(drawing)
    assert drawing.loaded().facts.stacks


@pytest.mark.parametrize(
    "text",
    [
        "torch.nn.modules.linear.Linear.forward",
        "Linear.forward",
        "mine.layers.Linear.__call__(x)",
        "{'Module': 'model.layers.0.Linear', 'TrainableParams': {}}",
    ],
)
def test_a_range_of_a_module_is_its_call(drawing: _Drawing, text: str) -> None:
    drawing.range(text, 0, 100)
    drawing.range("aten::mm, op_id = 1", 10, 90)
    drawing.launched(20)
    assert drawing.loaded().frames["name"].cast(pl.String).to_list() == [
        "nn.Module: Linear"
    ]


def test_an_op_is_in_the_module_around_it(drawing: _Drawing) -> None:
    drawing.range("torch.nn.modules.linear.Linear.forward", 0, 100)
    drawing.range("aten::mm, op_id = 1", 10, 90)
    drawing.launched(20)
    assert "Linear" in str(drawing.loaded().ops["module"][0])


def test_a_range_of_an_optimizer_is_its_step(drawing: _Drawing) -> None:
    drawing.range("torch.optim.adamw.AdamW.step", 0, 100)
    drawing.launched(20)
    names = drawing.loaded().annotations["name"].cast(pl.String).to_list()
    assert names == ["Optimizer.step#AdamW.step"]


@pytest.mark.parametrize("text", ["EMA_FFT", "FORWARD", "load batch 3"])
def test_another_range_is_a_region(drawing: _Drawing, text: str) -> None:
    drawing.range(text, 0, 100)
    drawing.launched(20)
    assert drawing.loaded().annotations["name"].cast(pl.String).to_list() == [text]


def test_ranges_around_iterations_are_steps(drawing: _Drawing) -> None:
    for step in range(3):
        drawing.range("step", 1000 * step, 1000 * step + 900)
        drawing.launched(1000 * step + 10, step + 1)
    assert drawing.loaded().steps.height == 3


def test_ranges_of_vllm_are_iterations(drawing: _Drawing) -> None:
    for step in range(3):
        text = "execute_context_0(0)_generation_8(8)"
        drawing.range(text, 1000 * step, 1000 * step + 900)
        drawing.launched(1000 * step + 10, step + 1)
    assert drawing.loaded().facts.steps_from.startswith("vLLM's")


def _scopes(drawing: _Drawing, step: int, length: int = 300) -> None:
    for place, name in enumerate(("preprocess", "forward", "sample")):
        start = 1000 * step + length * place
        drawing.range(f"gpu_model_runner: {name}", start, start + length - 10)
    drawing.launched(1000 * step + length + 10, step + 1)


def test_scopes_of_vllm_are_iterations(drawing: _Drawing) -> None:
    for step in range(4):
        _scopes(drawing, step)
    assert drawing.loaded().steps["kernels"].to_list() == [1] * 4


def test_an_iteration_lasts_to_the_end_of_its_last_scope(drawing: _Drawing) -> None:
    for step in range(4):
        _scopes(drawing, step)
    assert drawing.loaded().steps["dur"].to_list() == [1000] * 3 + [890]


def test_scopes_of_vllm_are_regions(drawing: _Drawing) -> None:
    _scopes(drawing, 0)
    names = drawing.loaded().annotations["name"].cast(pl.String).to_list()
    assert names == [
        f"gpu_model_runner: {name}" for name in ("preprocess", "forward", "sample")
    ]


def test_a_graph_that_was_traced_as_a_whole_is_gpu_work(drawing: _Drawing) -> None:
    drawing.execute(
        "CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start, end, deviceId, streamId,"
        " correlationId, globalPid, graphId)"
    )
    row = (20, 90, 0, 7, 1, PROCESS, 5)
    drawing.rows("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", row)
    kernels = drawing.loaded().kernels
    assert kernels.select("dur", "graph_id").rows() == [(70, 5)]


def test_kernels_of_whole_graphs_are_not_visible(drawing: _Drawing) -> None:
    drawing.execute(
        "CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start, end, deviceId, streamId,"
        " correlationId, globalPid, graphId)"
    )
    row = (20, 90, 0, 7, 1, PROCESS, 5)
    drawing.rows("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", row)
    (sentence,) = (
        lack
        for lack in drawing.loaded().facts.lacks
        if "--cuda-graph-trace=node" in lack
    )
    assert "their kernels are not visible" in sentence


def test_calls_without_a_thread_are_of_one_thread(drawing: _Drawing) -> None:
    drawing.launched(0)
    drawing.execute(
        "ALTER TABLE CUPTI_ACTIVITY_KIND_RUNTIME RENAME COLUMN globalTid TO odd"
    )
    assert drawing.loaded().runtime["thread"].null_count() == 0


def test_overhead_of_nsys_is_the_profilers(drawing: _Drawing) -> None:
    drawing.execute("CREATE TABLE PROFILER_OVERHEAD (start, end, globalTid)")
    drawing.rows("PROFILER_OVERHEAD", (100, 150, _THREAD))
    drawing.launched(10)
    other = drawing.loaded().other
    assert other.select("dur", pl.col("category").cast(pl.String)).rows() == [
        (50, "overhead")
    ]


def test_the_gpu_has_its_name(drawing: _Drawing) -> None:
    drawing.launched(10)
    row = (0, "NVIDIA H100 80GB HBM3", 80 << 30, 132, 9, 0)
    drawing.rows("TARGET_INFO_GPU", row)
    assert drawing.loaded().devices["name"].to_list() == ["NVIDIA H100 80GB HBM3"]
