"""Sizes of messages, and their rates, where NCCL's metadata is missing."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from linting import drawn_findings
from ranking import analysed

from traceq.analysis.patterns.collectives import described
from traceq.testing import load_drawn
from traceq.testing.examples import DEVICE

if TYPE_CHECKING:
    from pathlib import Path

REDUCED = """
    host   [ProfilerStep#1                                ]
    host    [aten::mm           ] [c10d::allreduce_     ]
    host     [cudaLaunchKernel>1]  [cudaLaunchKernel>2]
    gpu 7           [gemm<1             ]
    gpu 20                               [ncclKernel_AllReduce_RING_LL_Sum_half<2  ]
"""


def _shaped(dims: object, kind: str = "TensorList") -> dict[str, dict[str, Any]]:
    return {
        "c10d::allreduce_": {
            "Input Dims": [dims, [], []],
            "Input type": [kind, "", ""],
        }
    }


@pytest.mark.parametrize(
    ("args", "size"),
    [
        (_shaped([[2048, 4, 4096]]), 2048 * 4 * 4096 * 2),
        (_shaped([[100], [28]]), 256),
        (_shaped([128], "float"), 512),
        (_shaped([]), None),
        ({}, None),
    ],
)
def test_the_op_states_what_its_kernel_sends(
    args: dict[str, Any], size: int | None
) -> None:
    trace = load_drawn(REDUCED, args)
    kernels = trace.kernels.filter(trace.kernels["kind"] == "communication")

    assert described(trace, kernels)["bytes"].to_list() == [size]


def _tensor_parallel(folder: Path, ranks: int) -> Path:
    """Write a job that reduces activations of 67.1 MB in 590 µs, without metadata."""
    for rank in range(ranks):
        events: list[dict[str, Any]] = []
        for step in range(4):
            begin = 2000 * step
            common = {"ph": "X", "pid": 1000, "tid": 1}
            op = {"Input Dims": [[[2048, 1, 16384]], []], "Input type": ["TensorList"]}
            events += [
                common
                | {"cat": "user_annotation", "name": f"ProfilerStep#{step}"}
                | {"ts": begin, "dur": 1990},
                common
                | {"cat": "cpu_op", "name": "c10d::allreduce_", "args": op}
                | {"ts": begin + 10, "dur": 20},
                common
                | {"cat": "cuda_runtime", "name": "cudaLaunchKernel"}
                | {"ts": begin + 15, "dur": 5, "args": {"correlation": step + 1}},
                {
                    "ph": "X",
                    "cat": "kernel",
                    "name": "ncclKernel_AllReduce_RING_LL_Sum_half(ncclWorkElem)",
                    "pid": 0,
                    "tid": 20,
                    "ts": begin + 100,
                    "dur": 590 + 7 * step,
                    "args": {"device": 0, "stream": 20, "correlation": step + 1},
                },
            ]
        trace = {
            "schemaVersion": 1,
            "deviceProperties": [DEVICE],
            "distributedInfo": {"rank": rank, "world_size": ranks, "backend": "nccl"},
            "traceEvents": events,
        }
        (folder / f"rank{rank}.json").write_text(json.dumps(trace))
    return folder


def test_bandwidths_are_those_of_nccl_tests(tmp_path: Path) -> None:
    job = analysed(_tensor_parallel(tmp_path, 8))

    (rate,) = job.rates.iter_rows(named=True)

    assert rate["bytes"] == 2048 * 16384 * 2
    assert rate["algorithm"] == pytest.approx(112, rel=0.02)
    assert rate["rate"] == pytest.approx(196, rel=0.02)


def test_without_all_ranks_of_a_collective_no_bandwidth_is_known(
    tmp_path: Path,
) -> None:
    folder = _tensor_parallel(tmp_path, 8)
    for rank in range(2, 8):
        (folder / f"rank{rank}.json").unlink()

    assert analysed(folder).rates.height == 0


def _advice(dims: object) -> str:
    (finding,) = drawn_findings(REDUCED, "NET001", args=_shaped(dims))
    return f"{finding.advice} {finding.example}"


def test_activations_of_tensor_parallelism_are_not_advised_on_as_gradients() -> None:
    text = _advice([[2048, 1, 4096]])

    assert "sequence parallelism" in text
    assert "AsyncTP" in text
    assert "no_sync" not in text
    assert "bucket" not in text


def test_sharded_gradients_are_not_advised_on_as_those_of_ddp() -> None:
    drawing = REDUCED.replace("AllReduce_RING_LL_Sum", "ReduceScatter_Sum")
    drawing = drawing.replace("allreduce_     ", "reduce_scatter_")
    (finding,) = drawn_findings(drawing, "NET001")

    assert "fully_shard" in finding.advice
    assert "bucket" not in finding.advice


def test_flat_gradients_are_advised_on_as_those_of_ddp() -> None:
    assert "bucket_cap_mb" in _advice([[8_388_608]])
