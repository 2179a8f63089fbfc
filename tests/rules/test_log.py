"""LOG: a program's warnings, as findings or as the reason of others."""

from __future__ import annotations

import polars as pl
import pytest
from linting import bundled_rules, case_findings, drawn_findings, log_findings, outcome

from traceq.lint.need import Need
from traceq.recording import Recording

CAPTURED_AGAIN = (
    "CUDAGraph supports dynamic shapes by recording a new graph for each distinct input"
    " size. We have observed {} distinct sizes."
)
SYNC = """
host   [ProfilerStep#1                                    ]
host    [aten::mm           ]
host     [cudaLaunchKernel>1]
host                         [aten::item                 ]
host                          [cudaStreamSynchronize    ]
gpu 7                [gemm<1                        ]
"""
WARNED = "train.py:31: UserWarning: called a synchronizing CUDA operation\n"


def test_a_line_that_explains_a_finding_becomes_its_evidence() -> None:
    found = drawn_findings(SYNC, "SYN001", "LOG009", log=WARNED)

    assert [one.code for one in found] == ["SYN001"]
    assert ("log", "torch warns that this line syncs with the GPU") in [
        (line.label, line.name) for line in found[0].evidence
    ]


def test_a_line_that_explains_nothing_found_is_a_finding() -> None:
    (found,) = log_findings(WARNED, "LOG")

    assert found.code == "LOG009"
    assert (found.place.file, found.place.line) == ("train.py", 31)


def test_the_log_of_the_graphs_explains_their_capture() -> None:
    found = case_findings("graph_rerecord.trace.json.gz", "JIT001", "LOG", log=True)

    assert [one.code for one in found] == ["JIT001"]
    assert any("9 distinct input sizes" in line.name for line in found[0].evidence)


def test_a_warning_repeated_is_one_finding_with_its_last_number() -> None:
    log = "\n".join(CAPTURED_AGAIN.format(count) for count in (9, 10, 10, 11))

    (found,) = log_findings(log, "LOG008")

    assert "11 distinct input sizes" in found.message
    assert found.count == 4
    (line,) = found.evidence
    assert (line.label, line.count, line.note) == ("line", 4, "(line 1)")
    assert line.name.endswith("We have observed 11 distinct sizes.")


def test_the_same_message_on_two_functions_is_two_findings() -> None:
    limit = "torch._dynamo hit config.recompile_limit (8)\n"
    log = (
        f"{limit}   function: 'forward' (/src/model.py:12)\n   last reason: a\n"
        f"{limit}   function: 'loss' (/src/loss.py:3)\n   last reason: b\n"
    )

    found = log_findings(log, "LOG001")

    assert {(one.place.function, one.place.line) for one in found} == {
        ("forward", 12),
        ("loss", 3),
    }


@pytest.mark.parametrize(
    "code", [code for code in bundled_rules() if code.startswith("LOG")]
)
def test_a_program_that_printed_nothing_has_no_finding(code: str) -> None:
    # What collect writes of a program that is silent is an empty file.
    lines = pl.DataFrame(schema={"line": pl.Int64, "text": pl.String})

    assert list(bundled_rules()[code]().check_log(lines)) == []


def test_a_place_in_a_library_is_not_a_place_of_the_user() -> None:
    (found,) = log_findings(
        f"/venv/lib/python3.12/site-packages/torch/{WARNED}",
        "LOG009",
    )

    assert found.place.file is None


@pytest.mark.parametrize(
    ("rest", "advice"),
    [
        ("2.00 GiB is reserved by PyTorch but unallocated.", "expandable_segments"),
        ("of which 9.00 GiB is free.", "set_per_process_memory_fraction"),
        ("of which 31.00 MiB is free.", "smaller batch"),
    ],
)
def test_full_memory_is_distinguished_from_fragmented_memory(
    rest: str, advice: str
) -> None:
    (found,) = log_findings(
        f"CUDA out of memory. Tried to allocate 512.00 MiB. {rest}", "LOG006"
    )

    assert found.severity == "error"
    assert advice in found.advice


def test_logs_of_healthy_programs_have_no_finding() -> None:
    assert not case_findings("attn_flash.trace.json.gz", "LOG", log=True)


def test_rules_on_logs_are_skipped_without_one() -> None:
    on_logs = {code for code, rule in bundled_rules().items() if Need.LOG in rule.needs}

    skipped = outcome(Recording("nothing"), *on_logs).skipped

    assert {one.code for one in skipped} == on_logs
    assert {one.reason for one in skipped} == {Need.LOG.value}


TF32 = (
    "UserWarning: TensorFloat32 tensor cores for float32 matrix multiplication"
    " available but not enabled. Consider setting\n"
)
MATMUL = """
host   [ProfilerStep#1                                    ]
host    [aten::mm           ]
host     [cudaLaunchKernel>1]
gpu 7                [nvjet_tst_128x64_bf16<1       ]
"""


def test_a_warning_that_the_trace_does_not_confirm_is_minor() -> None:
    """Compiled code warns of TF32 though no float32 matmul is worth a word."""
    (found,) = drawn_findings(MATMUL, "GEM001", "LOG004", log=TF32)

    assert (found.code, found.severity) == ("LOG004", "info")
    assert ("trace", "shows nothing of it (GEM001)") in [
        (line.label, line.name) for line in found.evidence
    ]


def test_a_warning_stays_one_where_no_rule_looked_for_it_in_a_trace() -> None:
    (without_rule,) = drawn_findings(MATMUL, "LOG004", log=TF32)
    (without_trace,) = log_findings(TF32, "GEM001", "LOG004")

    assert without_rule.severity == without_trace.severity == "warning"


@pytest.mark.parametrize(
    ("log", "rule", "code"),
    [
        (WARNED, "SYN001", "LOG009"),
        (CAPTURED_AGAIN.format(9), "JIT001", "LOG008"),
        ("Flash Attention does not support non-null attn_mask", "ATT001", "LOG002"),
        (
            "Mismatch dtype between input and weight: input dtype = c10::BFloat16,"
            " weight dtype = float, Cannot dispatch to fused implementation",
            "NRM001",
            "LOG003",
        ),
        (
            "This DataLoader will create 64 worker processes in total. Our suggested"
            " max number of worker in current system is 8",
            "DAT001",
            "LOG005",
        ),
    ],
)
def test_warnings_of_things_that_the_steps_do_not_have_are_minor(
    log: str, rule: str, code: str
) -> None:
    (found,) = drawn_findings(MATMUL, rule, code, log=log)

    assert (found.code, found.severity) == (code, "info")


def test_a_function_that_compilation_gave_up_on_matters_whatever_the_trace_has() -> (
    None
):
    log = (
        "torch._dynamo hit config.recompile_limit (8)\n"
        "   function: 'f' (/src/m.py:12)\n"
    )

    (found,) = drawn_findings(MATMUL, "JIT002", "LOG001", log=log)

    assert found.severity == "warning"
