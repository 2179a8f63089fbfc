"""What lint says that fixes save, against steps that were measured before and after."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import pytest
from linting import outcome

from traceq.analysis.replay.simulation import Change
from traceq.finding import Severity
from traceq.lint.savings import Savings
from traceq.lint.view import View
from traceq.loading import load
from traceq.recording import Recording

if TYPE_CHECKING:
    from traceq.lint.engine import Outcome

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
_MS = 1_000_000
PAIRS = {
    f"{file.stem}-{name}": (file, name)
    for file in sorted(BENCHMARKS.glob("pairs*.json"))
    for name, case in json.loads(file.read_text())["cases"].items()
    if "twin" in case
}


def _case(file: Path, name: str) -> tuple[Path, dict[str, Any], float]:
    """Return the trace of the sick one, what is known of it, and its twin's step."""
    found = json.loads(file.read_text())
    path = file.parent / found["traces"] / f"{name}.trace.json.gz"
    if not path.is_file():
        pytest.skip(f"{found['traces']}/{path.name} is not there")
    case = found["cases"][name]
    return path, case, found["cases"][case["twin"]]["ms"]


@cache
def _linted(file: Path, name: str) -> tuple[Outcome, float]:
    """Return what lint says of the sick one, and the step that the fixes leave."""
    path, case, _ = _case(file, name)
    trace, step_ns = load(path), round(case["ms"] * _MS)
    found = outcome(Recording(name, trace, step_ns=step_ns))
    fixed = [
        one
        for one in found.findings
        if (
            one.code in case["fixes"]
            if "fixes" in case
            else one.severity is not Severity.info
        )
    ]
    left = [
        together.step_ns for together in Savings(View(trace, step_ns)).together(fixed)
    ]
    return found, (left[-1] if left else step_ns) / _MS


@pytest.mark.parametrize("pair", PAIRS)
def test_the_step_after_the_fixes_is_foretold_within_a_factor_of_two(pair: str) -> None:
    _, _, after = _case(*PAIRS[pair])

    _, said = _linted(*PAIRS[pair])

    assert after / 2 <= said <= 2 * after


@pytest.mark.parametrize("file", sorted({file for file, _ in PAIRS.values()}))
def test_at_the_median_the_step_after_the_fixes_is_foretold_within_a_fifth(
    file: Path,
) -> None:
    pairs = [pair for pair in PAIRS.values() if pair[0] == file]

    errors = [abs(_linted(*pair)[1] / _case(*pair)[2] - 1) for pair in pairs]

    assert median(errors) <= 0.2


@pytest.mark.parametrize(
    ("name", "codes"),
    [
        ("attn_mask_fmha", {"ATT001"}),
        ("attn_manual", {"ATT003"}),
        ("attn_fp32", {"GEM001"}),
        # The loss in 32 bits goes with autocast, and costs more than the norms.
        ("norm_mismatch", {"LOS001"}),
        ("layernorm_autocast", {"LOS001"}),
        ("copies", {"CPY003"}),
        ("graph_rerecord", {"JIT001"}),
        ("graph_record", {"JIT001"}),
        ("moe_loop", {"LCH001"}),
        ("optimizer_loop_sync", {"LCH003"}),
        ("vocab_misaligned", {"GEM002"}),
    ],
)
def test_the_cause_that_the_twin_repairs_comes_first(
    name: str, codes: set[str]
) -> None:
    found, _ = _linted(BENCHMARKS / "pairs.json", name)

    assert found.findings[0].code in codes


@pytest.mark.parametrize(
    ("name", "code", "saved_ms"),
    [("moe_loop", "LCH001", 47.39), ("optimizer_loop_sync", "LCH003", 2.37)],
)
def test_the_change_of_launches_that_fixes_a_host_bound_step_is_foretold_within_30(
    name: str, code: str, saved_ms: float
) -> None:
    found, _ = _linted(BENCHMARKS / "pairs.json", name)

    (finding,) = (one for one in found.findings if one.code == code)
    assert finding.saves_ns / _MS == pytest.approx(saved_ms, rel=0.3)


@pytest.mark.parametrize("name", ["moe_loop", "optimizer_loop_sync"])
def test_kernels_twice_as_fast_save_a_host_bound_step_next_to_nothing(
    name: str,
) -> None:
    path, case, _ = _case(BENCHMARKS / "pairs.json", name)
    view = View(load(path), round(case["ms"] * _MS))
    faster = Change(kernels=frozenset(view.kernels["id"]), kernel_share=0.5)

    before, after = (
        view.replay.run(changes, view.calibration.likely).step_ns
        for changes in ([], [faster])
    )

    assert 0 <= before - after <= 0.05 * before


def test_a_mask_costs_a_step_that_waits_for_the_host_next_to_nothing() -> None:
    found, _ = _linted(BENCHMARKS / "pairs_held_out.json", "mask_tiny")

    masks = [one for one in found.findings if one.code == "ATT001"]
    assert all(one.saves_ns <= 0.05 * found.step_ns for one in masks)
    assert found.bound is not None
    assert found.bound.by == "host"


@pytest.mark.parametrize(
    ("name", "ms", "busy"),
    [
        ("attn_flash", 9.30, 0.95),
        ("attn_mask_fmha", 12.23, 0.95),
        ("attn_mask_cudnn", 9.81, 0.95),
        ("attn_manual", 16.08, 0.95),
        ("attn_fp32", 67.01, 0.99),
        ("norm_mismatch", 12.25, 0.95),
        ("norm_fused", 9.24, 0.95),
        ("layernorm_autocast", 12.45, 0.95),
        ("copies", 13.20, 0.95),
        ("copies_fixed", 3.49, 0.95),
        ("vocab_misaligned", 13.47, 0.95),
        ("vocab_padded", 6.79, 0.93),
        ("moe_batched", 6.02, 0.95),
        ("moe_loop", 53.41, 0.13),
        ("optimizer_loop_sync", 8.15, 0.25),
        ("optimizer_fused", 5.78, 0.21),
        ("graph_rerecord", 54.63, 0.05),
        ("graph_record", 62.93, 0.04),
        ("recompile", 464, 0.003),
        ("memory_leak", 5.11, 0.53),
        ("graph_replay", 3.37, 0.71),
    ],
)
def test_the_gpu_is_busy_as_was_measured_without_the_profiler(
    name: str, ms: float, busy: float
) -> None:
    path = BENCHMARKS.parents[1] / "shared" / "traces" / f"{name}.trace.json.gz"
    if not path.is_file():
        pytest.skip(f"../shared/traces/{path.name} is not there")
    view = View(load(path), round(ms * _MS))

    found = view.bottleneck

    between = dict(found.waits.iter_rows()).get("between kernels", 0.0)
    assert 1 - (found.idle + between) / found.step_ns == pytest.approx(busy, abs=0.04)
