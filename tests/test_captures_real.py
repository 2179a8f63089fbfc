"""Captures and replays of real programs: whole graphs, by hand and by torch.compile."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING

import polars as pl
import pytest
from command import traceq
from recordings import CAPTURES, FIXTURE_TRACES, ROOT, SERVING

from traceq.analysis.base.graph_replays import replayed
from traceq.common.expressions import text
from traceq.inputs.load_trace import load
from traceq.model.lint_report import Replayed

if TYPE_CHECKING:
    from pathlib import Path

    from traceq.model.trace import Trace

pytestmark = pytest.mark.real

MASKED = ROOT / "tests" / "data" / "graphs" / "masked"
"""Forward and backward of a model in one graph, captured by hand, on an H200."""
REPLAYED = 3 * 433
CONV = ROOT / "tests" / "data" / "graphs" / "conv"
"""A convolutional net compiled with CUDA graphs, one step of it."""
CAPTURING = CAPTURES.paths(".trace.json.gz")["graph_record"]
REPLAYING = FIXTURE_TRACES["graph_replay"]


@pytest.fixture(scope="module")
def masked() -> Trace:
    return load(MASKED, cache=False)


def with_op_names(trace: Trace) -> pl.DataFrame:
    mapped = trace.kernels.filter(pl.col("certain").is_not_null())
    names = trace.ops["name"][mapped["op"]].cast(pl.String)
    return mapped.with_columns(text("kind"), text("name"), op_name=names)


def test_all_kernels_of_a_graph_that_was_captured_by_hand_have_their_op(
    masked: Trace,
) -> None:
    assert replayed(masked) == Replayed(REPLAYED, REPLAYED, REPLAYED, captures=True)


@pytest.mark.parametrize(
    ("kind", "ops"),
    [
        ("gemm", r"^aten::mm$"),
        ("attention", r"^aten::_cudnn_attention_(forward|backward)$"),
        ("softmax", r"softmax"),
        ("embedding", r"gather|index|embedding"),
        ("reduction", r"^aten::(sum|mean|nll_loss|embedding_dense_backward)"),
    ],
)
def test_kernels_of_a_kind_are_of_ops_that_run_such(
    masked: Trace, kind: str, ops: str
) -> None:
    kernels = with_op_names(masked).filter(pl.col("kind") == kind)

    assert kernels.height
    assert kernels["op_name"].str.contains(ops).all()


def test_a_kernel_is_of_the_same_op_in_every_replay(masked: Trace) -> None:
    kernels = with_op_names(masked)
    nth = pl.int_range(pl.len()).over("launch")
    names = kernels.group_by(nth).agg(pl.col("name", "op_name", "call_line").n_unique())

    assert kernels["launch"].n_unique() == 3
    assert names.select(pl.col("name", "op_name", "call_line").max()).row(0) == (
        1,
        1,
        1,
    )


def test_captured_kernels_have_the_phase_module_and_line_of_their_op(
    masked: Trace,
) -> None:
    kernels = with_op_names(masked).filter(pl.col("kind") == "attention")
    row = kernels.row(0, named=True)

    assert set(kernels["phase"]) == {"forward", "backward"}
    assert row["module"] == "Transformer_0/Block_0/Attention_0"
    assert (row["file"], row["function"]) == ("compiled.py", "forward")


def test_steps_calls_and_host_are_as_without_the_capture(
    masked: Trace, tmp_path: Path
) -> None:
    manifest = json.loads((MASKED / "run.json").read_text())
    for file in MASKED.glob("rank-0.*"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    del manifest["ranks"][0]["captures"]
    (tmp_path / "run.json").write_text(json.dumps(manifest))
    bare = load(tmp_path, cache=False)

    assert replayed(bare) == Replayed(REPLAYED, 0, 0, captures=False)
    for name in ("steps", "runtime", "annotations", "frames", "memory"):
        assert masked.table(name).equals(bare.table(name))
    assert masked.host_ops.drop("id").equals(bare.ops.drop("id"))
    assert masked.kernels["launch"].equals(bare.kernels["launch"])


def test_a_planted_cause_inside_a_graph_is_found_with_its_line() -> None:
    answer = traceq("lint", MASKED, "--format", "json", "--no-cache")

    (recording,) = json.loads(answer.out)["recordings"]
    (result,) = [
        finding for finding in recording["findings"] if finding["code"] == "ATT005"
    ]
    assert result["place"]["file"] == "compiled.py"
    assert result["place"]["function"] == "forward"
    assert result["count"] == 4
    assert recording["replayed"]["mapped"] == REPLAYED


def test_that_replays_have_no_known_ops_is_said_once() -> None:
    trace = ROOT / "fixtures" / "graph_replay" / "trace.json.gz"
    result = traceq("lint", trace, "-v").out
    without = traceq("lint", trace, "--select", "ATT").out

    assert "TRC007" in result
    assert "without known ops" not in result
    assert "320 kernels replayed in CUDA graphs without known ops" in without


def test_graphs_captured_in_a_trace_are_followed_by_their_replays() -> None:
    assert replayed(load(CAPTURING)) == Replayed(160, 160, 160, captures=True)


def test_triton_kernels_are_of_the_op_of_their_name() -> None:
    kernels = with_op_names(load(CAPTURING))
    triton = kernels.filter(pl.col("name").str.starts_with("triton_"))

    assert triton.height > 50
    assert triton["name"].equals(triton["op_name"].rename("name"))


def test_a_capture_of_other_shapes_names_nothing() -> None:
    """Its forward has the same ops, but runs them on 704 tokens, not on 1024."""
    trace = load(REPLAYING, captures=[CAPTURING])
    result = replayed(trace)

    assert result is not None
    assert result.mapped == 0
    assert result.captures


def test_a_capture_that_does_not_fit_is_said() -> None:
    answer = traceq("summary", REPLAYING, "--capture", CAPTURING)

    assert "no capture at hand fits the graphs" in " ".join(answer.out.split())


def test_without_a_capture_it_is_said_how_to_get_one() -> None:
    output = " ".join(traceq("lint", REPLAYING, "--select", "ATT").out.split())

    assert (
        "the capture is not at hand; give a trace of it with --capture FILE" in output
    )


def test_a_capture_that_is_no_trace_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "capture.json"
    file.write_text("{}")

    answer = traceq("summary", REPLAYING, "--capture", file)
    assert answer.status == 2
    assert "capture.json" in answer.err


def test_a_run_whose_capture_is_cut_off_is_read_without_it(tmp_path: Path) -> None:
    for file in MASKED.iterdir():
        content = file.read_bytes()
        if "capture" in file.name:
            content = gzip.compress(gzip.decompress(content)[:300_000])
        (tmp_path / file.name).write_bytes(content)

    result = replayed(load(tmp_path, cache=False))
    assert result == Replayed(REPLAYED, 0, 0, captures=True)


@pytest.mark.skipif(not SERVING, reason="these traces are not ours to give away")
def test_a_served_model_has_the_ops_of_its_capture() -> None:
    trace = load(
        SERVING["serving/sglang_decode"],
        captures=[SERVING["serving/sglang_decode.capture_bs32"]],
    )
    kernels = with_op_names(trace)

    assert trace.kernels.filter(pl.col("activity") == "kernel").height == 555
    assert replayed(trace) == Replayed(544, 544, 544, captures=True)
    gemms = kernels.filter(pl.col("kind") == "gemm")
    assert set(gemms["op_name"]) == {"aten::mm"}
    assert kernels["module"].null_count() == 0


def test_compiled_code_in_replays_has_the_lines_and_modules_of_the_user() -> None:
    trace = load(CONV, cache=False)
    kernels = with_op_names(trace)

    assert replayed(trace) == Replayed(220, 220, 220, captures=True)
    assert set(kernels["file"].cast(pl.String)) == {"compiled.py"}
    assert kernels["call_line"].null_count() == 0
    convolutions = kernels.filter(pl.col("kind") == "conv")
    assert convolutions["op_name"].str.contains("conv").all()
    assert convolutions["module"].cast(pl.String).str.contains(r"/Conv2d_\d+$").all()


def test_parts_of_fused_kernels_are_known_in_every_replay() -> None:
    trace = load(CONV, cache=False)
    triton = with_op_names(trace).filter(pl.col("name").str.starts_with("triton_"))
    parts = trace.fused.filter(pl.col("op").is_in(triton["op"].implode()))

    assert set(parts["op"]) == set(triton["op"])
    assert trace.fused["id"].to_list() == list(range(trace.fused.height))
