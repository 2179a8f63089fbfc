"""Blocks that a GPU runs at once, and what a partial wave leaves idle."""

from __future__ import annotations

import csv
import gzip
from difflib import SequenceMatcher
from typing import TYPE_CHECKING

import polars as pl
import pytest
from conftest import ROOT

from traceq import load
from traceq.analysis.base.device import Gpu, used_gpu
from traceq.analysis.base.occupancy import blocks_at_once, idle_share, occupancy, size
from traceq.analysis.base.steady import steady_steps
from traceq.analysis.time.gpu_account import BLOCKS, gpu_account
from traceq.linter import inputs
from traceq.testing import load_drawn

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.model.trace import Trace

H200 = Gpu("NVIDIA H200", 132, (9, 0))
FUSION = ROOT / "benchmarks" / "fusion"


def kernel(
    blocks: int, threads: int, registers: int = 32, shared: int = 0
) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "grid": [[blocks, 1, 1]],
            "block": [[threads, 1, 1]],
            "registers": [registers],
            "shared_memory": [shared],
        }
    )


def at_once(table: pl.DataFrame, gpu: Gpu = H200) -> int | None:
    return table.select(blocks_at_once(gpu)).item()


def idle(table: pl.DataFrame, gpu: Gpu = H200) -> float | None:
    return table.select(idle_share(gpu)).item()


def test_warps_limit_the_blocks_of_a_multiprocessor() -> None:
    assert at_once(kernel(1, 128)) == 16
    assert at_once(kernel(1, 1024)) == 2


def test_a_block_of_few_threads_is_limited_by_the_number_of_blocks() -> None:
    assert at_once(kernel(1, 32)) == 32


def test_registers_limit_them() -> None:
    assert at_once(kernel(1, 128, registers=34)) == 12
    assert at_once(kernel(1, 256, registers=255)) == 1


def test_shared_memory_limits_them() -> None:
    assert at_once(kernel(1, 128, shared=100 << 10)) == 2


def test_another_gpu_has_other_limits() -> None:
    assert at_once(kernel(1, 128), Gpu("Tesla T4", 40, (7, 5))) == 8


@pytest.mark.parametrize(
    "gpu", [Gpu("NVIDIA H200", 132), Gpu("AMD Instinct MI300X", 304, (9, 4), amd=True)]
)
def test_without_known_limits_nothing_is_known(gpu: Gpu) -> None:
    assert at_once(kernel(132, 128), gpu) is None


def test_multiprocessors_without_a_block_are_idle() -> None:
    assert idle(kernel(33, 128)) == pytest.approx(0.75)


def test_a_whole_wave_leaves_nothing_idle() -> None:
    assert idle(kernel(132 * 16, 128)) == 0
    assert idle(kernel(132, 1024, registers=64)) == 0


def test_the_last_of_two_waves_leaves_most_of_the_gpu_idle() -> None:
    assert idle(kernel(132 * 16 + 1, 128)) == pytest.approx(0.5, abs=0.01)


def test_the_last_of_many_waves_hardly_matters() -> None:
    share = idle(kernel(132 * 16 * 20 + 1, 128))

    assert share is not None
    assert share < 0.05


def counted() -> Iterator[tuple[dict[str, object], dict[str, str]]]:
    """Yield the kernels of a step with their rows of Nsight Compute."""
    trace = load(FUSION / "dit_infer.eager.json.gz")
    gpu = used_gpu(trace)
    kernels = (
        steady_steps(trace)
        .kernels.filter(pl.col("activity") == "kernel")
        .filter(pl.col("step") == pl.col("step").min())
        .sort("ts")
        .select(
            "grid",
            "block",
            warps=100 * occupancy(gpu),
            waves=size("grid") / (blocks_at_once(gpu) * gpu.sms),
        )
        .rows(named=True)
    )
    with gzip.open(FUSION / "dit_infer.ncu.csv.gz", "rt") as file:
        rows = list(csv.DictReader(file))[1:]
    ours = [f"{item['grid']}{item['block']}" for item in kernels]
    theirs = [f"{row['Grid Size']}{row['Block Size']}" for row in rows]
    theirs = [their.replace("(", "[").replace(")", "]") for their in theirs]
    matcher = SequenceMatcher(None, ours, theirs, autojunk=False)
    for own, other, count in matcher.get_matching_blocks():
        for at in range(count):
            yield kernels[own + at], rows[other + at]


def test_occupancy_and_waves_are_those_of_nsight_compute() -> None:
    pairs = list(counted())

    assert len(pairs) == 160
    for own, theirs in pairs:
        limit = float(theirs["sm__maximum_warps_per_active_cycle_pct"])
        assert own["warps"] == pytest.approx(limit)
        waves = float(theirs["launch__waves_per_multiprocessor"])
        assert own["waves"] == pytest.approx(waves, abs=0.006)


def drawn(**launch: object) -> Trace:
    """Draw a sum of 36 µs whose bytes need a part of that."""
    return load_drawn(
        """
        host   [ProfilerStep#1                                                   ]
        host    [aten::sum             ]
        host     [cudaLaunchKernel>1]
        gpu 7                  [reduce<1                            ]
        """,
        args={"aten::sum": inputs([[2048, 2048]], ["float"]), "reduce": launch},
        device={
            "id": 0,
            "name": "NVIDIA H200",
            "numSms": 132,
            "totalGlobalMem": 1,
            "computeMajor": 9,
            "computeMinor": 0,
        },
    )


def of_blocks(trace: Trace) -> float:
    kinds = gpu_account(trace).kinds
    return float(kinds.filter(pl.col("part") == BLOCKS)["time"].sum())


def launch(blocks: int, threads: int, registers: int) -> dict[str, object]:
    return {
        "grid": [blocks, 1, 1],
        "block": [threads, 1, 1],
        "registers per thread": registers,
        "shared memory": 0,
    }


def test_a_kernel_on_few_multiprocessors_loses_by_its_blocks() -> None:
    assert of_blocks(drawn(**launch(16, 128, 32))) > 0


def test_a_kernel_whose_last_wave_is_small_loses_by_its_blocks() -> None:
    assert of_blocks(drawn(**launch(132 * 16 + 8, 128, 32))) > 0


def test_a_kernel_of_whole_waves_loses_by_something_else() -> None:
    assert of_blocks(drawn(**launch(132 * 16 * 4, 128, 32))) == 0


def test_a_kernel_with_few_warps_loses_by_its_occupancy() -> None:
    assert of_blocks(drawn(**launch(132 * 40, 32, 255))) > 0
