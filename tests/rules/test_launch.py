"""LCH: a host that cannot feed the GPU, on real traces and drawn ones."""

from __future__ import annotations

import pytest
from linting import case_findings, drawn_findings
from recordings import GPU_BOUND, saved_ns


def test_the_loop_over_experts_costs_what_the_batched_run_is_faster() -> None:
    (found,) = case_findings("moe_loop.trace.json.gz", "LCH", measured=True)

    assert found.message == (
        "a loop over 32 experts launches 27 tiny kernels in each and syncs with the GPU"
    )
    assert (found.place.file, found.place.line) == ("dev_cases.py", 87)
    saved = saved_ns("moe_loop", "moe_batched")
    assert 0.8 * saved < found.saves_ns <= saved


def test_all_layers_of_experts_are_one_finding() -> None:
    (found,) = case_findings("moe_loop.trace.json.gz", "LCH001")

    assert found.data["modules"] == [f"Sequential_0/LoopMoE_{n}" for n in range(3)]


# Most of these look host-bound in their trace.
@pytest.mark.parametrize("case", GPU_BOUND)
def test_no_gpu_bound_step_is_called_launch_bound(case: str) -> None:
    assert not case_findings(f"{case}.trace.json.gz", "LCH")
    assert not case_findings(f"{case}.trace.json.gz", "LCH", measured=True)


@pytest.mark.parametrize("case", ["graph_rerecord", "graph_record", "recompile"])
def test_steps_that_compile_or_capture_are_not_called_launch_bound(
    case: str,
) -> None:
    assert not case_findings(f"{case}.trace.json.gz", "LCH")


def test_replayed_graphs_have_no_finding() -> None:
    assert not case_findings("graph_replay.trace.json.gz", "LCH", measured=True)


def test_the_loop_of_an_optimizer_costs_what_the_fused_one_is_faster() -> None:
    found = case_findings("optimizer_loop_sync.trace.json.gz", "LCH003", measured=True)

    (one,) = found
    assert one.message == (
        "AdamW updates 52 parameters one by one, with 8 kernels for each"
    )
    assert "fused=True" in one.advice
    saved = saved_ns("optimizer_loop_sync", "optimizer_fused")
    assert 0.8 * saved < one.saves_ns <= saved


def test_the_rest_of_the_step_is_counted_apart_from_the_optimizer() -> None:
    by_code = {
        found.code: found
        for found in case_findings(
            "optimizer_loop_sync.trace.json.gz", "LCH", measured=True
        )
    }

    assert by_code["LCH002"].count == 154
    assert by_code["LCH003"].count == 416


def test_a_fused_optimizer_has_no_finding_of_its_own_in_a_launch_bound_step() -> None:
    (found,) = case_findings("optimizer_fused.trace.json.gz", "LCH", measured=True)

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
