"""Diff on real traces: sick cases and their repaired twins, and others' pairs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from diffing import causes, diff_of, half, half_of, shared_diff, shared_half
from linting import linted
from recordings import CAPTURES, FIXTURE_TRACES, loaded

from traceq.differ.compare import compare
from traceq.report.diff.content import headline

if TYPE_CHECKING:
    from pathlib import Path

    from traceq.differ.compare import Diff

# What the repair did, as the first cause says it.
REPAIRS = {
    ("attn_mask_fmha", "attn_flash"): "attention: fmha_cutlassB",
    ("attn_mask_cudnn", "attn_flash"): "attention: cudnn_generated",
    ("attn_manual", "attn_flash"): "became aten::scaled_dot_product_attention",
    ("attn_fp32", "attn_flash"): "matmuls in bf16 instead of fp32",
    ("norm_mismatch", "norm_fused"): "94 fewer casts",
    ("layernorm_autocast", "attn_flash"): "94 fewer casts",
    ("copies", "copies_fixed"): "Memcpy HtoD (Pageable -> Device) -> Memcpy HtoD (Pin",
    ("graph_rerecord", "graph_replay"): "while CUDA graphs are set up or captured",
    ("graph_record", "graph_replay"): "while CUDA graphs are set up or captured",
    ("moe_loop", "moe_batched"): "2,491 fewer launches and 96 fewer syncs",
    ("optimizer_loop_sync", "optimizer_fused"): "idle: 411 fewer launches",
    ("vocab_misaligned", "vocab_padded"): "align1 -> nvjet",
}
SYNCS = ("SYN001", "SYN002")
PUBLIC = (
    ("public/diff_base", "public/diff_test"),
    ("public/t4_fp32", "public/t4_amp"),
    ("public/v100_resnet50_workers0", "public/v100_resnet50_workers4"),
    ("public/v100_tp2_rank0", "public/v100_tp2_rank1"),
    ("public/a100_alexnet", "public/v100_resnet50_workers4"),
    ("public/mi250_minitoy", "public/a100_nccl"),
    ("public/legacy_bare_list", "public/a100_vit_graph"),
    ("public/cpu_only_rank34", "public/t4_amp"),
)
PAIRS = pytest.mark.parametrize(("before", "after"), REPAIRS)


def adds_up(diff: Diff) -> bool:
    explained = sum(cause.ns for cause in diff.causes)
    return abs(explained - diff.change_ns) <= 0.001 * max(abs(diff.change_ns), 1000)


@PAIRS
@pytest.mark.parametrize("measured", [True, False], ids=["measured", "recorded"])
def test_the_repaired_cause_comes_first(
    before: str, after: str, *, measured: bool
) -> None:
    diff = shared_diff(before, after, measured=measured)

    assert REPAIRS[before, after] in causes(diff)[0]


@pytest.mark.slow
@PAIRS
def test_undoing_a_repair_costs_what_it_saved(before: str, after: str) -> None:
    there = shared_diff(before, after, measured=True)
    back = shared_diff(after, before, measured=True)

    assert there.verdict == "faster"
    assert back.verdict == "slower"
    assert back.causes[0].kind == there.causes[0].kind or {
        back.causes[0].kind,
        there.causes[0].kind,
    } == {"added", "removed"}
    assert back.causes[0].ns == pytest.approx(-there.causes[0].ns)


@PAIRS
@pytest.mark.parametrize("measured", [True, False], ids=["measured", "recorded"])
def test_causes_add_up_to_the_change_of_the_step(
    before: str, after: str, *, measured: bool
) -> None:
    assert adds_up(shared_diff(before, after, measured=measured))


@PAIRS
def test_the_biggest_cause_is_most_of_a_measured_change(
    before: str, after: str
) -> None:
    diff = shared_diff(before, after, measured=True)

    assert diff.causes[0].ns < diff.change_ns / 2


@PAIRS
def test_the_first_line_names_the_biggest_cause(before: str, after: str) -> None:
    diff = shared_diff(before, after, measured=True)

    assert REPAIRS[before, after] in headline(diff)


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), PUBLIC)
def test_causes_add_up_whatever_the_traces_have_in_common(
    before: str, after: str
) -> None:
    assert adds_up(shared_diff(before, after))


def test_a_trace_has_not_changed_against_itself(whole_trace: Path) -> None:
    one = half_of(whole_trace)
    diff = compare(one, one)

    assert diff.verdict == "no change"
    assert headline(diff).endswith(": no change")
    assert not causes(diff)
    assert not diff.findings.changes
    assert all(metric.change in (0, None) for metric in diff.metrics)


# Left out: recompile and graph_record, which do another thing in every step.
STEADY = sorted(
    {name for pair in REPAIRS for name in pair} - {"graph_record"} | {"memory_leak"}
)


@pytest.mark.slow
@pytest.mark.parametrize("name", STEADY)
def test_two_steps_of_one_program_are_no_change(name: str) -> None:
    trace = shared_half(name, measured=False).trace
    first, second = (
        replace(trace, steps=steps)
        for steps in (trace.steps.head(1), trace.steps.tail(1))
    )

    assert diff_of(first, second).verdict == "no change"


def test_the_data_loader_is_in_the_first_line() -> None:
    diff = shared_diff("public/v100_resnet50_workers0", "public/v100_resnet50_workers4")

    assert headline(diff) == (
        "177 ms -> 127 ms a step (-29%), 50.8 ms faster as recorded: -59.5 ms idle: the"
        " GPU waits less time for data to be loaded (_SingleProcessDataLoaderIter ->"
        " _MultiProcessingDataLoaderIter)"
    )


def test_amp_is_not_blamed_for_data_that_comes_late() -> None:
    diff = shared_diff("public/t4_fp32", "public/t4_amp")
    first, second, third = causes(diff)[:3]

    assert "the GPU waits longer for data to be loaded" in first
    assert second.startswith("matmuls in fp16 instead of fp32")
    assert third == "idle: 23 more launches and 1 more sync"
    assert diff.causes[1].ns < 0


def test_the_first_line_has_the_step_though_the_gpu_works_less() -> None:
    diff = shared_diff("public/t4_fp32", "public/t4_amp")

    first = headline(diff)

    assert first.startswith("23.3 ms -> 53.9 ms a step (+131%), 30.6 ms slower")
    assert "unclear" not in first
    assert "the GPU works" not in first


@pytest.mark.parametrize(
    ("sick", "kind", "name"),
    [
        ("varying_length", "operators on new shapes", "aten::_cudnn_attention"),
        ("forward_hooks", "module hooks", "keep"),
        ("python_in_step", "Python", "described"),
    ],
)
def test_the_host_takes_longer_for_what_was_planted(
    sick: str, kind: str, name: str
) -> None:
    before, after = (
        loaded(FIXTURE_TRACES[item]) for item in (f"twins/{sick}_fixed", sick)
    )
    diff = diff_of(before, after)

    first = diff.causes[0]
    assert (first.kind, first.host_kind.startswith(kind)) == ("host", True)
    assert first.after.ops[0].startswith(name)
    assert first.after.place.file == f"{sick}.py"
    assert adds_up(diff)


def test_ops_that_only_one_side_has_are_listed() -> None:
    diff = shared_diff("public/diff_base", "public/diff_test")

    assert diff.verdict == "no change"
    assert not diff.calls.before
    assert [name for name, _ in diff.calls.after] == [
        "AddmmBackward0",
        "All2All_Pooled_Req",
        "CatBackward0",
    ]


def test_a_longer_step_that_may_be_the_profilers_doing_is_not_called_slower() -> None:
    diff = shared_diff("attn_mask_fmha", "attn_flash")

    assert diff.change_ns > 0
    assert diff.verdict == "gpu"
    assert headline(diff).startswith("12.3 ms -> 14.1 ms a step as recorded (+15%),")
    assert "the GPU works 2.88 ms less (-24%)" in headline(diff)


def test_findings_of_a_repaired_case_are_gone() -> None:
    diff = compare(
        *(
            shared_half(name, measured=True, findings=True)
            for name in ("moe_loop", "moe_batched")
        )
    )

    removed = {
        change.finding.code
        for change in diff.findings.changes
        if change.state == "gone"
    }
    assert {"LCH001", "SYN001"} <= removed
    # The repair counts the tokens of each expert by a scan, and picks them by an index
    # with many of one row: both are slow themselves. Of its step, more can be fused.
    new = [
        change.finding.code for change in diff.findings.changes if change.state == "new"
    ]
    assert new == ["KRN001", "KRN002", "FUS001"]


def test_findings_are_known_again_in_another_recording_of_the_program() -> None:
    case = shared_half("moe_loop", measured=True, findings=True)
    other = half(
        case.trace, "another name", CAPTURES.step_ms["moe_loop"], findings=True
    )

    diff = compare(case, other)

    assert diff.findings.same == len(case.outcome.findings) > 0


def test_diff_counts_the_syncs_that_the_rules_report(whole_trace: Path) -> None:
    if not loaded(whole_trace).facts.gpu:
        pytest.skip("no GPU work in the trace")

    side = half_of(whole_trace)

    reported = [
        finding.count
        for finding in linted(whole_trace).findings
        if finding.code in SYNCS
    ]
    # A finding's count is whole, also where a sync is not in every step: in this job
    # the clock of calls is not that of ops, which lets a sync change its op.
    uneven = "torchrec_a2a" in whole_trace.parts
    off = len(reported) / 2 if uneven else 0
    assert side.parts.rows["syncs"].sum() == pytest.approx(sum(reported), abs=off)


def test_what_is_not_comparable_is_said() -> None:
    diff = shared_diff("public/a100_alexnet", "public/v100_resnet50_workers4")

    assert diff.caveats == (
        "before has no steps: its whole trace counts as one",
        "the GPUs differ, NVIDIA A100-PG509-200 and Tesla V100-DGXS-32GB, and so do"
        " kernel times",
        "the torch versions differ, torch 1.13 to 2.3 and torch 1.9 or earlier",
        "shapes were recorded after only: ops are matched without them",
        "stacks were recorded after only: ops are matched without module and line",
        "memory was recorded after only: memory cannot be compared",
    )
