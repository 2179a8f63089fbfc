"""LCH: a host that cannot feed the GPU, on real traces and drawn ones."""

from __future__ import annotations

import pytest
from linting import case_findings, drawn_findings

# GPU-bound steps, most of which look host-bound in their trace.
GPU_BOUND = {
    "attn_flash": 9.30,
    "attn_fp32": 67.01,
    "attn_manual": 16.08,
    "attn_mask_cudnn": 9.81,
    "attn_mask_fmha": 12.23,
    "copies": 13.20,
    "copies_fixed": 3.49,
    "layernorm_autocast": 12.45,
    "moe_batched": 6.02,
    "norm_fused": 9.24,
    "norm_mismatch": 12.25,
    "vocab_misaligned": 13.47,
    "vocab_padded": 6.79,
}


def test_the_loop_over_experts_costs_what_the_batched_run_is_faster() -> None:
    (found,) = case_findings("moe_loop.trace.json.gz", "LCH", step_ms=53.41)

    assert found.message == (
        "a loop over 32 experts launches 27 tiny kernels in each and syncs with the GPU"
    )
    assert (found.place.file, found.place.line) == ("dev_cases.py", 87)
    assert 0.8 * (53.41 - 6.02) * 1e6 < found.saves_ns <= (53.41 - 6.02) * 1e6


def test_all_layers_of_experts_are_one_finding() -> None:
    (found,) = case_findings("moe_loop.trace.json.gz", "LCH001")

    assert found.data["modules"] == [f"Sequential_0/LoopMoE_{n}" for n in range(3)]


@pytest.mark.parametrize(("case", "step_ms"), GPU_BOUND.items())
def test_no_gpu_bound_step_is_called_launch_bound(case: str, step_ms: float) -> None:
    assert not case_findings(f"{case}.trace.json.gz", "LCH")
    assert not case_findings(f"{case}.trace.json.gz", "LCH", step_ms=step_ms)


@pytest.mark.parametrize("case", ["graph_rerecord", "graph_record", "recompile"])
def test_steps_that_compile_or_capture_are_not_called_launch_bound(
    case: str,
) -> None:
    assert not case_findings(f"{case}.trace.json.gz", "LCH")


def test_replayed_graphs_have_no_finding() -> None:
    assert not case_findings("graph_replay.trace.json.gz", "LCH", step_ms=3.37)


def test_the_loop_of_an_optimizer_costs_what_the_fused_one_is_faster() -> None:
    found = case_findings("optimizer_loop_sync.trace.json.gz", "LCH003", step_ms=8.145)

    (one,) = found
    assert one.message == (
        "AdamW updates 52 parameters one by one, with 8 kernels for each"
    )
    assert "fused=True" in one.advice
    assert 0.8 * (8.145 - 5.778) * 1e6 < one.saves_ns <= (8.145 - 5.778) * 1e6


def test_the_rest_of_the_step_is_counted_apart_from_the_optimizer() -> None:
    by_code = {
        found.code: found
        for found in case_findings(
            "optimizer_loop_sync.trace.json.gz", "LCH", step_ms=8.145
        )
    }

    assert by_code["LCH002"].count == 154
    assert by_code["LCH003"].count == 416


def test_a_fused_optimizer_has_no_finding_of_its_own_in_a_launch_bound_step() -> None:
    (found,) = case_findings("optimizer_fused.trace.json.gz", "LCH", step_ms=5.778)

    assert found.code == "LCH002"
    assert found.message == ("the GPU waits for the host to launch 159 kernels a step")


def test_with_stacks_and_no_measured_step_it_is_only_likely() -> None:
    (found,) = case_findings("optimizer_fused.trace.json.gz", "LCH002")

    assert found.message.startswith("the GPU likely waits")


def test_with_an_old_torch_the_fix_is_a_newer_one() -> None:
    (found,) = case_findings("public/v100_resnet50_workers4.json.gz", "LCH003")

    assert "161 parameters" in found.message
    assert found.advice == (
        "upgrade torch: SGD updates many parameters at once from 2.0 on"
    )


@pytest.mark.parametrize("add", ["aten::index_add ", "aten::index_add_"])
def test_experts_are_recognised_whether_results_are_added_in_place_or_not(
    add: str,
) -> None:
    ops = f"[aten::where       ][aten::linear      ][{add}  ]"
    width = len(ops)
    numbers = range(8)
    launches = "".join(
        "".join(f"[cuLaunch>{3 * n + k}]".ljust(20) for k in (1, 2, 3)).ljust(width)
        for n in numbers
    )
    kernels = "".join(
        "".join(f"[k<{3 * n + k}]".ljust(20) for k in (1, 2, 3)).ljust(width)
        for n in numbers
    )
    (found,) = drawn_findings(
        f"""
        host  [ProfilerStep#1{" " * width * 8}]
        host   [moe.py(8): forward{" " * (width * 8 - 8)}]
        host    {ops * 8}
        host     {launches.rstrip()}
        gpu 7         {kernels.rstrip()}
        """,
        "LCH001",
    )

    assert found.message.startswith("a loop over 8 experts")
