"""Traces that the real profiler writes here and now."""

from __future__ import annotations

import gzip
import importlib
import json
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
from linting import bundled_rules

import traceq
from traceq.analysis.base.callers import innermost_calls
from traceq.analysis.patterns.host_collectives import host_collectives
from traceq.analysis.time.device_syncs import written_as

pytestmark = pytest.mark.collect

PROGRAM = """
import sys
import torch
from torch.profiler import ProfilerActivity, profile, schedule

class Head(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(64, 8)

    def forward(self, x):
        return self.inner(x).relu()

model = torch.nn.Sequential(torch.nn.Linear(64, 64), Head())
optimizer = torch.optim.AdamW(model.parameters())
profiler = profile(
    activities=[ProfilerActivity.CPU],
    record_shapes=True,
    with_stack=True,
    profile_memory=True,
    schedule=schedule(wait=0, warmup=1, active=2),
)
profiler.start()
for step in range(3):
    optimizer.zero_grad()
    model(torch.randn(4, 64)).sum().backward()
    optimizer.step()
    if step < 2:
        profiler.step()
profiler.stop()
profiler.export_chrome_trace(sys.argv[1] + "/kineto.json")
for name in ("/python.json", "/python.json.gz"):
    profiler.export_chrome_trace(sys.argv[1] + name, use_python_export=True)
"""
EXPORTS = ("kineto.json", "python.json", "python.json.gz")
NAME = "train.py"
FORWARD = PROGRAM.splitlines().index("    def forward(self, x):") + 1


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("torch")
    program = folder / NAME
    program.write_text(PROGRAM)
    subprocess.run(
        [sys.executable, str(program), str(folder)], check=True, capture_output=True
    )
    return folder


@pytest.fixture(params=EXPORTS)
def trace(request: pytest.FixtureRequest, folder: Path) -> traceq.Trace:
    return traceq.load(folder / request.param, cache=False)


def test_every_event_is_read(folder: Path) -> None:
    for name in EXPORTS:
        content = (folder / name).read_bytes()
        text = gzip.decompress(content) if name.endswith(".gz") else content
        facts = traceq.load(folder / name, cache=False).facts
        assert facts.events == len(json.loads(text)["traceEvents"])
        assert not facts.damage


def test_the_two_steps_are_found(trace: traceq.Trace) -> None:
    assert trace.steps["step"].to_list() == [1, 2]


def test_each_step_has_the_same_matrix_products(trace: traceq.Trace) -> None:
    products = trace.ops.filter(pl.col("name") == "aten::addmm")
    assert products.group_by("step").len().sort("step")["len"].to_list() == [2, 2]


def test_ops_know_their_module_and_line(trace: traceq.Trace) -> None:
    product = trace.ops.filter(pl.col("name") == "aten::addmm").row(1, named=True)
    assert product["module"] == "Sequential_0/Head_0/Linear_1"
    assert (Path(product["file"]).name, product["line"]) == (NAME, FORWARD)


def test_backward_ops_know_the_line_of_their_forward_twin(trace: traceq.Trace) -> None:
    name = "autograd::engine::evaluate_function: ReluBackward0"
    backward = trace.ops.filter(pl.col("name") == name)
    assert backward["line"].to_list() == [FORWARD, FORWARD]


def test_phases_are_known_without_regions(trace: traceq.Trace) -> None:
    phase = dict(trace.ops.select("name", "phase").iter_rows())
    assert phase["aten::addmm"] == "forward"
    assert phase["AddmmBackward0"] == "backward"
    assert phase["aten::addcdiv_"] == "optimizer"


def test_shapes_are_decoded(trace: traceq.Trace) -> None:
    product = trace.ops.filter(pl.col("name") == "aten::addmm").row(0, named=True)
    inputs = trace.inputs.row(product["inputs"], named=True)
    assert inputs["dims"][:3] == [[64], [4, 64], [64, 64]]


def test_allocations_are_read(trace: traceq.Trace) -> None:
    assert trace.memory.height > 0


GLOO = """
import sys
import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

store = dist.FileStore(sys.argv[1] + "/store", 1)
dist.init_process_group("gloo", store=store, rank=0, world_size=1)
with profile(activities=[ProfilerActivity.CPU]) as profiler:
    dist.all_reduce(torch.ones(4))
profiler.export_chrome_trace(sys.argv[1] + "/gloo.json")
"""


def test_a_collective_of_gloo_is_one_through_the_host(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-c", GLOO, str(tmp_path)], check=True, capture_output=True
    )
    trace = traceq.load(tmp_path / "gloo.json", cache=False)

    result = host_collectives(trace).select("backend", "collective").rows()

    assert result == [("gloo", "all_reduce")]


WAITS = """
import sys
import torch
from torch.profiler import ProfilerActivity, profile

model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
scaler = torch.amp.GradScaler("cpu")
with profile(activities=[ProfilerActivity.CPU], with_stack=True) as profiler:
    loss = model(torch.randn(4, 8)).sum()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
    scaler.step(optimizer)
    scaler.update()
    scaler.get_scale()
    print(f"{loss:.3f}", loss)
    torch.distributions.Normal(loss.detach(), torch.tensor(1.0))
profiler.export_chrome_trace(sys.argv[1] + "/waits.json")
"""


def test_waits_that_have_a_switch_are_where_torch_has_them(tmp_path: Path) -> None:
    """The functions by which SYN001 knows them; on a CPU they do not wait."""
    subprocess.run(
        [sys.executable, "-c", WAITS, str(tmp_path)], check=True, capture_output=True
    )
    trace = traceq.load(tmp_path / "waits.json", cache=False)
    package = bundled_rules()["SYN001"].__module__.rpartition(".")[0]
    known = importlib.import_module(f"{package}._known_waits").known_wait
    asking = pl.col("name").cast(pl.String).is_in(["aten::item", "aten::is_nonzero"])
    ops = trace.ops.filter(asking).with_columns(end=pl.col("ts") + pl.col("dur"))

    rows = zip(
        ops["name"].cast(pl.String),
        innermost_calls(trace.frames, ops)
        .select("inner_file", "inner_function")
        .iter_rows(),
        written_as(trace, ops),
        strict=True,
    )
    writtens = {
        wait.written
        for op, (file, function), method in rows
        if method != "print" and (wait := known(file, function, op))
    }

    assert "print" in set(written_as(trace, ops))
    assert writtens == {
        "the error check of `clip_grad_norm_`",
        "GradScaler's check of the gradients",
        "`scaler.get_scale()`",
        "formatting a tensor",
        "the check of a distribution's arguments",
    }


READING = """
import sys
import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils.data import DataLoader, TensorDataset

model = torch.nn.Linear(8, 8)
optimizer = torch.optim.AdamW(model.parameters())
data = TensorDataset(torch.randn(4, 8))

def log_norms():
    for parameter in model.parameters():
        print(parameter.grad.norm().item())

with profile(activities=[ProfilerActivity.CPU], with_stack=True) as profiler:
    for epoch in range(3):
        for (batch,) in DataLoader(data, batch_size=4, shuffle=True):
            model(batch).sum().backward()
            log_norms()
            optimizer.step()
            profiler.step()
profiler.export_chrome_trace(sys.argv[1] + "/reading.json")
"""


def test_without_a_gpu_only_the_programs_own_reads_of_values_are_named(
    tmp_path: Path,
) -> None:
    program = tmp_path / NAME
    program.write_text(READING)
    subprocess.run(
        [sys.executable, str(program), str(tmp_path)], check=True, capture_output=True
    )

    findings = traceq.lint(tmp_path / "reading.json", cache=False).findings

    reads = [finding for finding in findings if finding.code == "SYN003"]
    begins = READING.splitlines().index("def log_norms():") + 1
    assert [
        (finding.place.file, finding.place.line, finding.count) for finding in reads
    ] == [(NAME, begins, 2)]
