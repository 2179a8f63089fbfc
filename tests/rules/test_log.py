"""LOG: a program's warnings, as findings or as the reason of others."""

from __future__ import annotations

import polars as pl
import pytest
from linting import (
    bundled_rules,
    case_findings,
    drawn_findings,
    log_findings,
    outcome,
    priced_findings,
)

from traceq.linter.need import Need
from traceq.model.recording import Recording

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
    findings = drawn_findings(SYNC, "SYN001", "LOG009", log=WARNED)

    assert [finding.code for finding in findings] == ["SYN001"]
    assert ("log", "torch warns that this line syncs with the GPU") in [
        (line.label, line.name) for line in findings[0].evidence
    ]


def test_a_line_that_explains_nothing_found_is_a_finding() -> None:
    (finding,) = log_findings(WARNED, "LOG")

    assert finding.code == "LOG009"
    assert (finding.place.file, finding.place.line) == ("train.py", 31)


def test_the_log_of_the_graphs_explains_their_capture() -> None:
    findings = case_findings("graph_rerecord.trace.json.gz", "JIT001", "LOG", log=True)

    assert [finding.code for finding in findings] == ["JIT001"]
    assert any("9 distinct input sizes" in line.name for line in findings[0].evidence)


def test_a_warning_repeated_is_one_finding_with_its_last_number() -> None:
    log = "\n".join(CAPTURED_AGAIN.format(count) for count in (9, 10, 10, 11))

    (finding,) = log_findings(log, "LOG008")

    assert "11 distinct input sizes" in finding.message
    assert finding.count == 4
    (line,) = finding.evidence
    assert (line.label, line.count, line.note) == ("line", 4, "(line 1)")
    assert line.name.endswith("We have observed 11 distinct sizes.")


def test_the_same_message_on_two_functions_is_two_findings() -> None:
    limit = "torch._dynamo hit config.recompile_limit (8)\n"
    log = (
        f"{limit}   function: 'forward' (/src/model.py:12)\n   last reason: a\n"
        f"{limit}   function: 'loss' (/src/loss.py:3)\n   last reason: b\n"
    )

    findings = log_findings(log, "LOG001")

    assert {(finding.place.function, finding.place.line) for finding in findings} == {
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
    (finding,) = log_findings(
        f"/venv/lib/python3.12/site-packages/torch/{WARNED}",
        "LOG009",
    )

    assert finding.place.file is None


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
    (finding,) = log_findings(
        f"CUDA out of memory. Tried to allocate 512.00 MiB. {rest}", "LOG006"
    )

    assert finding.severity == "error"
    assert advice in finding.advice


def test_expandable_segments_are_not_advised_under_a_limit() -> None:
    (finding,) = log_findings(
        "CUDA out of memory. Tried to allocate 512.00 MiB. GPU 0 has a total capacity"
        " of 139.80 GiB of which 9.00 GiB is free. 2.00 GiB is reserved by PyTorch but"
        " unallocated.",
        "LOG006",
    )

    assert "set_per_process_memory_fraction" in finding.advice
    assert "expandable_segments" not in finding.advice


def test_logs_of_healthy_programs_have_no_finding() -> None:
    assert not case_findings("attn_flash.trace.json.gz", "LOG", log=True)


def test_rules_on_logs_are_skipped_without_one() -> None:
    on_logs = {code for code, rule in bundled_rules().items() if Need.LOG in rule.needs}

    skipped = outcome(Recording("nothing"), *on_logs).skipped

    assert {item.code for item in skipped} == on_logs
    assert {item.reason for item in skipped} == {Need.LOG.value}


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
    (finding,) = priced_findings(MATMUL, "GEM001", "LOG004", log=TF32)

    assert (finding.code, finding.severity) == ("LOG004", "info")
    assert ("trace", "shows nothing of it (GEM001)") in [
        (line.label, line.name) for line in finding.evidence
    ]


def test_a_warning_stays_one_where_no_rule_looked_for_it_in_a_trace() -> None:
    (without_rule,) = priced_findings(MATMUL, "LOG004", log=TF32)
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
    (finding,) = priced_findings(MATMUL, rule, code, log=log)

    assert (finding.code, finding.severity) == (code, "info")


def test_a_function_that_compilation_gave_up_on_matters_whatever_the_trace_has() -> (
    None
):
    log = (
        "torch._dynamo hit config.recompile_limit (8)\n"
        "   function: 'f' (/src/m.py:12)\n"
    )

    (finding,) = priced_findings(MATMUL, "JIT002", "LOG001", log=log)

    assert finding.severity == "warning"


HEAD = "V1115 23:36:27.53 18 torch/_dynamo/guards.py:4760] [{}] [__recompiles] "


def recompiled(*guards: str, more: str = "") -> str:
    """Return what torch 2.11 prints of a function compiled again for each guard."""
    return "".join(
        f"{HEAD.format(f'0/{number}')}{line}\n"
        for number, guard in enumerate(guards, 1)
        for line in (
            "Recompiling function forward in /src/model.py:12",
            "    triggered by the following guard failure(s):",
            f"    - 0/{number - 1}: {guard}{more}",
            '    -   File "/src/model.py", line 17, in forward',
        )
    )


@pytest.mark.parametrize(
    ("guard", "says", "advice"),
    [
        (
            "tensor 'tokens' size mismatch at index 1. expected 512, actual 448",
            "the size of dim 1 of `tokens` changes (512, then 448)",
            "mark_dynamic(tokens, 1)",
        ),
        (
            "tensor 'x' dtype mismatch. expected Float, actual Half",
            "the dtype of `x` changes (Float, then Half)",
            "one dtype",
        ),
        (
            "tensor 'x' requires_grad mismatch. expected requires_grad=0",
            "`x` needs a gradient in some calls and none in others",
            "requires_grad",
        ),
        ("self.n == 3", "the number `self.n` changes", "allow_unspec_int"),
        ("scale == 0.5", "the number `scale` changes", "pass it as a tensor"),
        ("L['flag'] == True", "`flag` changes", "a function for each"),
        ("len(xs) == 2", "the length of `xs` changes", "as many entries"),
        (
            "GLOBAL_STATE changed: grad_mode ",
            "torch's global state changes (grad_mode)",
            "evaluation",
        ),
        ("___odd_guard(x)", "___odd_guard(x)", "the guard"),
    ],
)
def test_a_recompilation_says_what_changes_and_how_to_keep_it(
    guard: str, says: str, advice: str
) -> None:
    (finding,) = log_findings(recompiled(guard), "LOG001")

    assert finding.message == f"torch.compile recompiles forward: {says}"
    assert advice in finding.advice


def test_a_size_that_changes_seven_times_is_one_finding() -> None:
    sizes = "tensor 'x' size mismatch at index 0. expected {}, actual {}"

    (finding,) = log_findings(
        recompiled(*(sizes.format(size, size + 1) for size in range(7))), "LOG001"
    )

    assert finding.count == 7
    assert "(6, then 7)" in finding.message


def test_two_guards_of_a_function_are_two_findings() -> None:
    findings = log_findings(recompiled("self.n == 3", "scale == 0.5"), "LOG001")

    assert len(findings) == 2


def test_the_line_that_uses_what_changed_is_evidence() -> None:
    quoted = "       # return y + self.n  # src/model.py:17 in forward"

    (finding,) = log_findings(recompiled("self.n == 3", more=quoted), "LOG001")

    (guard,) = [evidence for evidence in finding.evidence if evidence.label == "guard"]
    assert (guard.name, guard.note) == ("self.n == 3", "(model.py:17)")


def test_a_function_that_was_given_up_on_has_one_finding_for_its_cause() -> None:
    guard = "tensor 'x' size mismatch at index 0. expected 8, actual 9"
    limit = (
        "torch._dynamo hit config.recompile_limit (8)\n"
        "   function: 'forward' (/src/model.py:12)\n"
        f"   last reason: 0/7: {guard}\n"
    )

    (finding,) = log_findings(recompiled(guard) + limit, "LOG001")

    assert "gave up on forward after 8" in finding.message


def test_a_break_in_a_library_is_at_the_users_line_that_calls_it() -> None:
    (finding,) = log_findings(
        "Graph break in user code at /usr/lib/python3.12/logging/__init__.py:2087\n"
        "Graph Break Reason: logging.Logger method not supported\n"
        "User code traceback:\n"
        '  File "/src/net.py", line 75, in forward\n'
        '  File "/usr/lib/python3.12/logging/__init__.py", line 2087, in getLogger\n',
        "LOG001",
    )

    assert (finding.place.file, finding.place.line) == ("/src/net.py", 75)
    assert "ignore_logging_functions" in finding.advice
