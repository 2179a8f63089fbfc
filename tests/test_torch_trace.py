"""Structured logs of torch.compile (TORCH_TRACE): other people's, and damaged ones."""

from __future__ import annotations

import gzip
import json
import random
from typing import TYPE_CHECKING

import pytest
from command import traceq
from linting import log_findings, mentions
from recordings import SHARED

if TYPE_CHECKING:
    from pathlib import Path

    from traceq.model.finding import Finding

LOGS = sorted((SHARED / "torch_trace").glob("*.gz"))
RECOMPILED = "dedicated_log_torch_trace_rank_0.log.gz"
FAILED = "chromium_events.log.gz"
there = pytest.mark.skipif(not LOGS, reason="the logs of other people are not here")


def text_of(path: Path) -> str:
    return gzip.decompress(path.read_bytes()).decode()


@there
def test_a_recompilation_is_named_with_its_guard_and_the_users_line() -> None:
    path = SHARED / "torch_trace" / RECOMPILED
    (recompiled, overview) = log_findings(text_of(path), "LOG010")

    assert recompiled.count == 3
    assert (recompiled.place.line, recompiled.place.function) == (165, "main")
    assert recompiled.data["reason"] == "___check_obj_id(fn, 140439264606080)"
    assert overview.data["seconds"] == pytest.approx(6.7, abs=0.05)


@there
def test_a_failed_compilation_is_named_with_its_reason() -> None:
    path = SHARED / "torch_trace" / FAILED
    (failed, _) = log_findings(text_of(path), "LOG010")

    assert mentions(failed, "BackendCompilerFailed")
    assert (failed.place.function, failed.place.line) == ("fn", 10755)


@pytest.mark.parametrize("path", LOGS, ids=[path.name for path in LOGS])
def test_a_structured_log_is_never_clean(path: Path) -> None:
    text = text_of(path)

    for part in (text, text[: len(text) // 2], text[: len(text) // 7]):
        assert log_findings(part, "LOG010")


@there
@pytest.mark.parametrize(
    ("name", "compiled", "seconds", "recompiled", "missed"),
    [
        # Of tlparse 0.4.3; where it shows no time, the log has none under its names.
        ("chromium_events.log", 1, None, 0, 0),
        ("dedicated_log_torch_trace_rank_0.log", 4, 6.661, 3, 4),
        ("inductor_provenance_jit_cuda_log.txt", 1, 8.540, 0, 1),
        ("simple.log", 1, None, 0, 1),
    ],
)
def test_figures_are_those_of_tlparse(
    name: str, compiled: int, seconds: float | None, recompiled: int, missed: int
) -> None:
    findings = log_findings(text_of(SHARED / "torch_trace" / f"{name}.gz"), "LOG010")
    again = [
        finding.count
        for finding in findings
        if finding.subject.startswith("recompilation")
    ]
    overview = findings[-1]

    assert (overview.count, sum(again)) == (compiled, recompiled)
    assert overview.data["caches"] == ({"miss": missed} if missed else {})
    if seconds is not None:
        assert overview.data["seconds"] == pytest.approx(seconds, abs=0.001)


def test_a_record_of_an_unknown_kind_is_not_clean() -> None:
    log = 'V0804 12:34:14.100000 7 torch/_x.py:28] {"kind_to_come": {}}\n'

    assert log_findings(log, "LOG010")


def test_a_log_that_ends_amid_its_first_record_is_not_clean() -> None:
    assert log_findings('V0804 12:34:14.100000 7 torch/_x.py:28] {"chro', "LOG010")


def test_bytes_at_random_are_refused_in_a_sentence(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_bytes(random.Random(7).randbytes(20_000))  # noqa: S311 - no secret
    answer = traceq("lint", log)

    assert (answer.status, answer.err.count("\n")) == (2, 1)


def test_a_packed_log_that_is_cut_off_is_refused_in_a_sentence(tmp_path: Path) -> None:
    log = tmp_path / "train.log.gz"
    log.write_bytes(gzip.compress(b"step 1\n" * 1000)[:-20])
    answer = traceq("lint", log)

    assert (answer.status, answer.err.count("\n")) == (2, 1)


def test_a_graph_break_in_a_structured_log_has_its_line() -> None:
    log = (
        "V1118 10:49:22.037000 7 torch/_dynamo/symbolic_convert.py:5098] "
        '{"artifact": {"name": "dynamo_graph_break_reason", "encoding": "string"},'
        ' "frame_id": 0, "frame_compile_id": 0, "attempt": 0, "has_payload": "64"}\n'
        "\tGraph break in user code at /src/train.py:5\n"
        "\tGraph Break Reason: Failed to trace builtin operator\n"
    )
    (finding,) = log_findings(log, "LOG001")

    assert (finding.place.file, finding.place.line) == ("/src/train.py", 5)


def test_a_log_without_structure_has_no_overview() -> None:
    assert not log_findings('epoch 1 {"loss": 2.3}\n{"artifact": {}}\n', "LOG010")


def test_a_log_that_was_cut_before_its_compilations_says_so() -> None:
    log = (
        "V0804 12:34:14.100000 7 torch/_logging/structured.py:28]"
        ' {"str": ["/src/model.py", 1]}\n'
    )
    (overview,) = log_findings(log, "LOG010")

    assert mentions(overview, "without a compilation")


@there
def test_kernels_are_named_with_the_nodes_that_they_compute() -> None:
    path = SHARED / "torch_trace" / "inductor_provenance_jit_cuda_log.txt.gz"
    overview = log_findings(text_of(path), "LOG010")[-1]

    assert overview.data["kernels"] == {
        "triton_poi_fused_addmm_relu_sigmoid_0": "sigmoid, relu, add_tensor_1",
        "triton_poi_fused_mul_1": "mul",
        "triton_poi_fused_addmm_gelu_2": "mul_3, mul_1, add_tensor, add, erf, mul_2",
        "extern_kernels.mm": "mm_default_1, mm_default, mul",
    }


def metrics(compile_id: str, **fields: object) -> str:
    """Return the record of a compilation that took a second."""
    content = {"compile_id": compile_id, "entire_frame_compile_time_s": 1.0, **fields}
    record = json.dumps({"compilation_metrics": content})
    return f"V0804 12:34:15.529000 7 torch/_dynamo/utils.py:1626] {record}\n"


FORWARD = {"co_name": "forward", "co_filename": "/src/a.py", "co_firstlineno": 12}
UNNAMED = {"co_name": None, "co_filename": None, "co_firstlineno": None}


def test_the_limit_of_recompilations_is_of_the_function_that_reached_it() -> None:
    reason = "Dynamo recompile limit exceeded\n  Explanation: Dynamo attempted"
    beyond = {**UNNAMED, "fail_type": "Unsupported", "fail_reason": reason}
    failed, overview = log_findings(
        metrics("0/7", **FORWARD) + metrics("0/8", **beyond), "LOG010"
    )

    assert mentions(failed, "forward", "recompile limit exceeded")
    assert (failed.place.file, failed.place.line) == ("/src/a.py", 12)
    assert mentions(overview, "2 compilations of 1 function")


def test_a_failure_without_a_name_is_not_of_another_function() -> None:
    log = metrics("0/0", **FORWARD) + metrics("1/0", **UNNAMED, fail_type="Timeout")
    (failed, _) = log_findings(log, "LOG010")

    assert not mentions(failed, "forward")


def test_what_a_backend_raised_is_in_the_reason() -> None:
    reason = "backend='own' raised:\nValueError: no such dtype\n\nSet TORCHDYNAMO"
    failing = {"fail_type": "BackendCompilerFailed", "fail_reason": reason}
    (failed, _) = log_findings(metrics("0/0", **FORWARD, **failing), "LOG010")

    assert failed.data["reason"] == "backend='own' raised: ValueError: no such dtype"


def test_parts_of_a_function_after_graph_breaks_are_one_function() -> None:
    part = {**FORWARD, "co_name": "torch_dynamo_resume_in_forward_at_9"}
    (overview,) = log_findings(
        metrics("0/0", **FORWARD) + metrics("1/0", **part), "LOG010"
    )

    assert mentions(overview, "2 compilations of 1 function")


def test_a_function_in_a_stack_is_named_without_the_comma_after_it() -> None:
    log = (
        "V1118 10:49:22.037000 7 torch/_dynamo/symbolic_convert.py:5098] "
        '{"artifact": {"name": "dynamo_graph_break_reason", "encoding": "string"},'
        ' "frame_id": 0, "frame_compile_id": 0, "attempt": 0, "has_payload": "64"}\n'
        "\tGraph break in user code at /src/train.py:5\n"
        "\tGraph Break Reason: Data-dependent branching\n"
        '\t        # File "/src/train.py", line 5, in helper, code: if y.sum() > 0:\n'
    )
    (finding,) = log_findings(log, "LOG001")

    assert finding.place.function == "helper"


def test_a_folder_of_logs_is_read_a_log_at_a_time(tmp_path: Path) -> None:
    for rank in range(2):
        log = tmp_path / f"dedicated_log_torch_trace_rank_{rank}_abcd.log"
        log.write_text(metrics("0/0", **FORWARD))
    (tmp_path / "train.log").write_text("step 1\n")
    answer = traceq("lint", tmp_path, "--no-cache")

    assert answer.status == 0
    assert [f"rank_{rank}" in answer.out for rank in (0, 1, 2)] == [True, True, False]
    assert "train.log" not in answer.out


def test_what_is_not_the_backends_time_is_dynamos() -> None:
    log = metrics("0/0", **FORWARD, backend_compile_time_s=0.25)
    (overview,) = log_findings(log, "LOG010")
    (phases,) = [
        evidence.name for evidence in overview.evidence if evidence.label == "phases"
    ]

    assert phases.startswith("dynamo 0.8 s, backend 0.2 s")


def not_ended(overview: Finding) -> list[str]:
    """Return what an overview lists as begun and not ended."""
    return [
        evidence.name for evidence in overview.evidence if evidence.label == "not ended"
    ]


@there
def test_a_compilation_that_did_not_end_is_named_beside_those_that_did() -> None:
    text = text_of(SHARED / "torch_trace" / RECOMPILED)
    last = text.rindex('{"compilation_metrics"')
    *_, overview = log_findings(text[: text.rindex("\n", 0, last) + 1], "LOG010")

    assert mentions(overview, "3 compilations", "one more did not end")
    assert not_ended(overview) == ["a compilation"]


def test_a_backward_whose_compilation_did_not_end_is_named() -> None:
    head = "V1118 23:32:27.521000 11866 torch/_dynamo/utils.py:2350] "
    ids = '"frame_id": 0, "frame_compile_id": 0, "attempt": 0'
    begins = f'{head}{{"chromium_event": {{}}, {ids}, "has_payload": "5"}}\n\t{{\n'
    event = '\t"name": "entire_backward_compile",\n\t"ph": "B"\n\t}\n'
    (overview,) = log_findings(begins + event, "LOG010")

    assert not_ended(overview) == ["that of a backward"]
