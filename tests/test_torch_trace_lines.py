"""Kernels of a trace with the lines and ops that a log of TORCH_TRACE knows."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest
from command import traceq as command
from linting import log_findings, mentions
from recordings import SHARED

import traceq
from traceq.errors import InputError
from traceq.formats.compile_log import read_logged
from traceq.inputs.load_trace import with_kernels

if TYPE_CHECKING:
    from traceq.linter import Finding
    from traceq.model.trace import Trace

_DATA = Path(__file__).parent / "data"
_LOGS = _DATA / "torch_trace"
_NAMES = ("clean", "sizes", "number", "printed", "branched", "lines")
_TYPES = {"torch.bfloat16": "bf16", "torch.float32": "f32", "torch.int64": "i64"}


def text_of(name: str) -> str:
    return gzip.decompress((_LOGS / f"{name}.log.gz").read_bytes()).decode()


def record(kind: dict[str, Any], graph: str, payload: str) -> str:
    """Return a record as torch's logger writes it."""
    frame, again = graph.split("/")
    ids = f'"frame_id": {frame}, "frame_compile_id": {again}, "attempt": 0'
    head = "V1118 17:31:25.757000 7 torch/_inductor/compile_fx.py:14] "
    lines = "".join(f"\t{line}\n" for line in payload.splitlines())
    return f'{head}{json.dumps(kind)[:-1]}, {ids}, "has_payload": "0"}}\n{lines}'


def artifact(name: str) -> dict[str, Any]:
    return {"artifact": {"name": name, "encoding": "string"}}


def size_of(node: dict[str, Any]) -> str:
    dtype = node.get("dtype")
    shape = ", ".join(node.get("shape", ()))
    return f': "{_TYPES.get(dtype, "f32")}[{shape}]"' if dtype else ""


def program_of(nodes: list[dict[str, Any]]) -> str:
    """Return a graph of Dynamo's as torch prints it."""
    given = [node for node in nodes if node["op"] == "placeholder"]
    names = ", ".join(node["target"] + (size_of(node) or ': "f32[]"') for node in given)
    lines = ["class GraphModule(torch.nn.Module):", f"    def forward(self, {names}):"]
    lines += [f"        {node['name']} = {node['target']}" for node in given]
    for node in nodes:
        if node["op"] in ("placeholder", "output"):
            continue
        file, _, function, line = node["frames"][-1] if node["frames"] else [""] * 4
        place = f"# File: {file}:{line} in {function}, code: …"
        lines += [
            f"        {place if file else '# No stacktrace found for following nodes'}",
            f"        {node['name']}{size_of(node)} ="
            f" torch.{node['target']}({', '.join(node['inputs'])})",
        ]
    return "\n".join(lines)


def log_of_recording(name: str) -> str:
    """Return what collect recorded of a compiled program as TORCH_TRACE writes it."""
    packed = (_DATA / "compiled" / name / "rank-0.compiled.json.gz").read_bytes()
    content = json.loads(gzip.decompress(packed))
    records = [
        record({"dynamo_output_graph": {}}, graph["id"], program_of(graph["nodes"]))
        for graph in content["graphs"]
    ]
    for entry in content["code"]:
        code = {"inductor_output_code": {"filename": f"/run/{entry['name']}.py"}}
        key = json.dumps({"key": entry["key"]})
        records += [
            record(
                artifact("inductor_post_grad_graph"), entry["id"], entry["post_grad"]
            ),
            record(code, entry["id"], entry["text"]),
            record(artifact("fx_graph_cache_miss"), entry["id"], key),
        ]
    return "".join(records)


def bare(name: str) -> Trace:
    """Return the trace of a run without what else is in its folder."""
    file = _DATA / "compiled" / name / "rank-0.trace.json.gz"
    return traceq.load(file, cache=False)


def generated(trace: Trace) -> pl.DataFrame:
    return trace.kernels.filter(pl.col("library") == "triton")


@pytest.mark.parametrize("name", ["transformer", "break", "masked"])
def test_triton_kernels_get_the_lines_that_collect_knows(
    name: str, tmp_path: Path
) -> None:
    log = tmp_path / "torch.log"
    log.write_text(log_of_recording(name))
    trace, missing = with_kernels(bare(name), log)
    known = traceq.load(_DATA / "compiled" / name, cache=False)

    assert not missing
    assert generated(bare(name))["call_line"].null_count() > 20
    lines = generated(trace)["call_line"]
    assert lines.to_list() == generated(known)["call_line"].to_list()


def test_lint_joins_a_log_that_is_named_with_the_trace(tmp_path: Path) -> None:
    log = tmp_path / "torch.log"
    log.write_text(log_of_recording("transformer"))
    trace = _DATA / "compiled" / "transformer" / "rank-0.trace.json.gz"
    answer = command("lint", "--no-cache", trace, log)

    assert "has the ops of" in answer.err
    assert "not there" not in answer.err


def test_a_log_of_another_program_is_not_taken(tmp_path: Path) -> None:
    log = tmp_path / "torch.log"
    log.write_text(log_of_recording("conv"))
    trace, missing = with_kernels(bare("transformer"), log)

    assert missing == 2
    assert trace.fused.is_empty()


def test_a_log_of_real_torch_gives_each_kernel_its_lines_and_ops() -> None:
    trace = traceq.load(_LOGS / "lines.trace.json.gz", cache=False)
    joined, missing = with_kernels(trace, _LOGS / "lines.log.gz")
    forward = joined.fused.filter(
        pl.col("kernel").cast(pl.String).str.contains("gelu_mul_sin")
    )
    ops = {*forward["computes"].cast(pl.String)}

    assert not missing
    assert {"aten.erf", "aten.sin", "aten.sum"} <= ops
    assert joined.fused["call_line"].null_count() == 0
    assert {*forward["call_line"]} == {34, 35, 36}


def test_a_product_in_a_log_of_real_torch_has_its_line() -> None:
    trace = traceq.load(_LOGS / "lines.trace.json.gz", cache=False)
    joined, _ = with_kernels(trace, _LOGS / "lines.log.gz")
    product = pl.col("name").cast(pl.String) == "aten::mm"
    lines = joined.ops.filter(product)["call_line"]

    assert trace.ops.filter(product)["call_line"].null_count() == len(lines)
    assert lines.unique().to_list() == [34]


@pytest.mark.skipif(not SHARED.exists(), reason="the logs of other people")
def test_an_op_that_inductor_made_has_the_line_of_the_op_that_it_replaces() -> None:
    path = SHARED / "torch_trace" / "inductor_provenance_jit_cuda_log.txt.gz"
    (code,) = read_logged(path).code
    frames = {name: node.frame for name, node in code.lowered.items()}
    named = {call.name: call.nodes for call in code.calls}

    assert frames["add_tensor_1"] is not None
    assert frames["add_tensor_1"].line == 29
    nodes = named["triton_poi_fused_addmm_relu_sigmoid_0"]
    assert nodes == ("add_tensor_1", "relu", "sigmoid")


def kinds(name: str) -> dict[str, list[Finding]]:
    """Return findings in a log of ours, by rule and first word of the subject."""
    text = text_of(name)
    again = [
        finding
        for finding in log_findings(text, "LOG010")
        if "recompil" in finding.subject
    ]
    return {"again": again, "breaks": [*log_findings(text, "LOG001")]}


@pytest.mark.parametrize(
    ("name", "again", "breaks"),
    [
        ("clean", 0, 0),
        ("sizes", 1, 0),
        ("number", 2, 0),
        ("printed", 0, 1),
        ("branched", 0, 1),
        ("lines", 0, 0),
    ],
)
def test_what_a_program_plants_is_what_its_log_shows(
    name: str, again: int, breaks: int
) -> None:
    result = kinds(name)

    assert sum(finding.count for finding in result["again"]) == again
    assert len(result["breaks"]) == breaks


@pytest.mark.parametrize("name", _NAMES)
def test_a_log_of_a_compiled_program_is_never_clean(name: str, tmp_path: Path) -> None:
    log = tmp_path / "torch.log"
    log.write_text(text_of(name))
    answer = command("lint", "--no-cache", log)

    assert "no findings" not in answer.out
    assert "LOG0" in answer.out


@pytest.mark.parametrize("name", _NAMES)
@pytest.mark.slow
def test_a_log_that_ends_anywhere_is_read_so_far(name: str, tmp_path: Path) -> None:
    content = text_of(name).encode()
    draw = random.Random(name)  # noqa: S311 - no secret
    log = tmp_path / "torch.log"
    for end in [draw.randrange(200, len(content)) for _ in range(34)]:
        log.write_bytes(content[:end])
        read_logged(log)

        text = content[:end].decode(errors="ignore")
        assert log_findings(text, "LOG010")


def test_a_packed_log_that_ends_anywhere_is_refused(tmp_path: Path) -> None:
    content = (_LOGS / "sizes.log.gz").read_bytes()
    log = tmp_path / "torch.log.gz"
    for share in range(1, 10):
        log.write_bytes(content[: len(content) * share // 10])
        with pytest.raises(InputError):
            read_logged(log)


def test_a_payload_of_another_form_is_left_out(tmp_path: Path) -> None:
    log = tmp_path / "torch.log"
    mapping = artifact("inductor_provenance_tracking_node_mappings")
    texts = ("{", "[]", '{"cppCodeToPost": 3}', '{"postToPre": {"a": [1, {}]}}')
    code = record({"inductor_output_code": {"filename": 3}}, "0/0", "def call(args):")
    log.write_text(code + "".join(record(mapping, "0/0", text) for text in texts))

    (generated_code,) = read_logged(log).code
    assert (generated_code.calls, generated_code.name) == ((), "")


def test_an_overview_of_a_clean_log_is_for_information() -> None:
    (overview,) = log_findings(text_of("clean"), "LOG010")

    assert mentions(overview, "1 compilation of 1 function")
