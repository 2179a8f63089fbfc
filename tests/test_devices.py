"""Devices and communication of NVIDIA and of others, under whatever names."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest

from traceq import load
from traceq.analysis.base.device import used_gpu
from traceq.analysis.patterns.collectives import exposed_by_collective
from traceq.analysis.patterns.host_collectives import host_collectives
from traceq.analysis.summary import summarise
from traceq.report.summary import text as summary_text
from traceq.testing import draw, load_drawn

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from traceq.model.trace import Trace

_DRAWING = """
    host   [ProfilerStep#1                       ]
    host    [aten::mm           ]
    host     [cudaLaunchKernel>1]
    gpu 7                         [gemm_kernel<1]
"""
_MI300X = {
    "id": 0,
    "name": "AMD Instinct MI300X",
    "warpSize": 64,
    "numSms": 304,
    "computeMajor": 9,
    "computeMinor": 4,
    "totalGlobalMem": 206_141_652_992,
}
_Event = dict[str, Any]


def _changed(
    folder: Path,
    change: Callable[[_Event], None],
    devices: list[dict[str, object]] | None = None,
) -> Trace:
    """Return the drawing with each of its events changed, on these devices."""
    drawn = draw(_DRAWING)
    for event in drawn["traceEvents"]:
        change(event)
    if devices is not None:
        drawn["deviceProperties"] = devices
    file = folder / "trace.json"
    file.write_text(json.dumps(drawn), encoding="utf-8")
    return load(file, cache=False)


def _on_device(number: int) -> Callable[[_Event], None]:
    def change(event: _Event) -> None:
        if event.get("cat") == "kernel":
            event["args"]["device"] = number

    return change


def test_the_one_device_that_is_named_is_the_one_that_is_used(tmp_path: Path) -> None:
    trace = _changed(tmp_path, _on_device(9), [_MI300X])

    assert trace.devices.select("device", "name", "used").rows() == [
        (9, "AMD Instinct MI300X", True)
    ]
    assert used_gpu(trace).peak is not None


def test_of_several_models_none_is_taken_for_a_device_with_another_number(
    tmp_path: Path,
) -> None:
    other = _MI300X | {"id": 1, "name": "AMD Instinct MI250X"}

    trace = _changed(tmp_path, _on_device(9), [_MI300X, other])

    assert used_gpu(trace).name == ""


@pytest.mark.parametrize("name", ["", "AMD Radeon Graphics"])
def test_a_gpu_of_amd_without_a_name_is_known_by_its_properties(
    tmp_path: Path, name: str
) -> None:
    trace = _changed(tmp_path, _on_device(0), [_MI300X | {"name": name}])

    assert used_gpu(trace).name == "AMD Instinct MI300X"


def test_a_gpu_of_amd_with_unknown_properties_has_no_name(tmp_path: Path) -> None:
    device = _MI300X | {"name": "", "numSms": 7}

    assert used_gpu(_changed(tmp_path, _on_device(0), [device])).peak is None


def _on_mtia(event: _Event) -> None:
    event["cat"] = {"kernel": "mtia_ccp_events", "cuda_runtime": "mtia_runtime"}.get(
        event.get("cat", ""), event.get("cat", "")
    )


def _on_xpu(event: _Event) -> None:
    if event.get("cat") == "kernel":
        event["args"]["sycl queue"] = event["args"].pop("stream")
    if event.get("cat") == "cuda_runtime":
        event |= {"cat": "xpu_runtime", "name": "urEnqueueKernelLaunch"}


@pytest.mark.parametrize("change", [_on_mtia, _on_xpu])
def test_events_of_mtia_and_xpu_are_gpu_work(
    tmp_path: Path, change: Callable[[_Event], None]
) -> None:
    trace = _changed(tmp_path, change)

    assert trace.facts.gpu
    assert trace.kernels["kind"].to_list() == ["gemm"]
    assert trace.runtime["call"].to_list() == ["launch"]
    assert trace.ops["name"].gather(trace.kernels["op"]).to_list() == ["aten::mm"]
    summary = summarise(trace)
    assert summary.gpu_time == trace.kernels["dur"].sum()
    assert "gemm" in summary_text.render([summary], width=100, color=False)


def test_runtime_calls_of_intel_are_launches_copies_and_syncs(tmp_path: Path) -> None:
    names = {
        "urEnqueueUSMMemcpy": "copy",
        "zeCommandListAppendLaunchKernel": "launch",
        "zeEventHostSynchronize": "sync",
        "urQueueFinish": "sync",
        "urUSMDeviceAlloc": "allocation",
    }
    for name, call in names.items():

        def change(event: _Event, name: str = name) -> None:
            if event.get("cat") == "cuda_runtime":
                event |= {"cat": "xpu_runtime", "name": name}

        assert _changed(tmp_path, change).runtime["call"].to_list() == [call]


def test_a_kernel_without_a_family_is_not_taken_to_move_memory(tmp_path: Path) -> None:
    def change(event: _Event) -> None:
        if event.get("cat") == "kernel":
            event["name"] = "my_own_kernel"

    summary = summarise(_changed(tmp_path, change))

    assert summary.kinds["kind"].cast(pl.String).to_list() == ["unknown"]
    assert "unknown kernels" in summary_text.render([summary], width=100, color=False)
    assert "moving memory" not in summary_text.render([summary], width=100, color=False)


@pytest.mark.parametrize(
    ("name", "collective"),
    [
        ("void dpsk::ep::internode::combine<false, 8, __nv_bfloat16>(P)", "combine"),
        ("void deep_ep::internode_ll::dispatch<true, 7168>(P)", "dispatch"),
        (
            "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(P)",
            "cross_device_reduce",
        ),
        ("multimem_all_reduce_kernel<c10::BFloat16, 16>(P)", "all_reduce"),
        ("oneccl_allreduce_pcie", "allreduce"),
    ],
)
def test_communication_under_other_names_is_a_collective_of_its_operation(
    tmp_path: Path, name: str, collective: str
) -> None:
    def change(event: _Event) -> None:
        if event.get("cat") == "kernel":
            event["name"] = name

    trace = _changed(tmp_path, change)
    exposed = exposed_by_collective(trace, trace.kernels, slowest_link=10.0)

    assert exposed.select("collective", "kernels").rows() == [(collective, 1)]


def test_collectives_through_shared_memory_are_collectives_of_the_host() -> None:
    trace = load_drawn("""
        host   [ProfilerStep#1                                 ]
        host    [aten::mm] [_C::shm_allreduce ] [_C::shm_all_gather]
    """)

    table = host_collectives(trace)

    assert table["backend"].to_list() == ["shm", "shm"]
    assert table["collective"].to_list() == ["allreduce", "all_gather"]


def test_communication_that_compute_overlaps_is_not_the_time_of_the_step() -> None:
    trace = load_drawn("""
        host   [ProfilerStep#1                                                      ]
        host    [aten::mm ][cudaLaunchKernel>1][cudaLaunchKernel>2]
        gpu 9                               [ncclDevKernel_AllReduce<1             ]
        gpu 7                                                   [gemm_kernel<2]
    """)

    causes = summarise(trace).bound.bottleneck
    assert causes is not None
    times = dict(causes.rows)
    gemm = trace.kernels.filter(pl.col("kind") == "gemm")["dur"].item()
    whole = trace.kernels.filter(pl.col("kind") == "communication")["dur"].item()
    assert times["computing"] == pytest.approx(gemm, rel=0.01)
    assert times["communicating"] == pytest.approx(whole - gemm, rel=0.01)
