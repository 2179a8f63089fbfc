"""DAT001: advice and prices by what loading does, and when."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from linting import placed, priced_findings

if TYPE_CHECKING:
    from traceq.linter import Finding

LOADING = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
LOADER = "torch/utils/data/dataloader.py(4): __iter__"
Span = tuple[int, int, str]


def loads(
    *inside: Span, epochs: bool = False, each: int = 6_000, gpu: tuple[Span, ...] = ()
) -> Finding:
    """Return what DAT001 finds of two steps that load for 6 ms and compute for 3 ms."""
    step = 9_200
    lanes: dict[str, list[Span]] = {
        "host ": [(0, step - 20, "ProfilerStep#{}")],
        "host  ": [(120, each, LOADING), (each + 140, 30, "cudaLaunchKernel>{}1")],
        "host   ": sorted(call for call in inside if "torch/" in call[2]),
        "host    ": sorted(call for call in inside if "torch/" not in call[2]),
        "gpu 7": [*gpu, (each + 180, 2_800, "gemm<{}1")],
    }
    if epochs:
        lanes["host  "].insert(0, (4, 100, LOADER))
    lanes = {name: spans for name, spans in lanes.items() if spans}
    (finding,) = priced_findings(placed(lanes, step, 2), "DAT001")
    return finding


def test_batches_that_are_kept_are_not_loaded_at_all() -> None:
    kept, usual = loads(epochs=True), loads()
    shuffled = loads((200, 300, "aten::randperm"), epochs=True)

    assert kept.advice.startswith("keep the batches of an epoch")
    assert usual.advice.startswith("give the DataLoader num_workers=")
    assert kept.fixes[0].host_share == 1
    assert any(line.label == "workers" for line in kept.evidence)
    # What is shuffled differs from epoch to epoch: then it is the price of workers.
    assert "keep the batches of an epoch" not in shuffled.advice
    assert shuffled.saves_ns < kept.saves_ns


@pytest.mark.parametrize(("calls", "expected"), [(6, True), (1, False)])
def test_samples_that_are_sent_one_by_one_need_no_workers(
    calls: int, *, expected: bool
) -> None:
    launches = [
        (400 + 900 * number, 600, f"cudaMemcpyAsync>{{}}{number + 3}")
        for number in range(calls)
    ]
    copies = tuple(
        (500 + 900 * number, 200, f"Memcpy<{{}}{number + 3}") for number in range(calls)
    )
    finding = loads(*launches, gpu=copies)

    assert finding.message.endswith("by work on the GPU") == expected
    assert ("num_workers=" in finding.advice) != expected
    assert "worker processes cannot" in finding.advice


@pytest.mark.parametrize(
    ("frame", "advice"),
    [
        ("collate.py(3): default_collate", "is stacking samples"),
        ("pin_memory.py(3): pin_memory", "into pinned memory"),
    ],
)
def test_what_takes_most_of_loading_is_in_the_advice(frame: str, advice: str) -> None:
    call = f"torch/utils/data/_utils/{frame}"

    assert advice in loads((400, 5_000, call)).advice
    assert advice not in loads((400, 500, call)).advice


def test_an_iterable_dataset_has_to_be_shared_out_among_workers() -> None:
    fetch = (200, 5_800, "torch/utils/data/_utils/fetch.py(30): fetch")

    assert "get_worker_info" in loads(fetch, (300, 90, "data.py(3): __iter__")).advice
    assert "get_worker_info" not in loads(fetch, (300, 90, "d.py(3): get")).advice
