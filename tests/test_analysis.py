"""Idle causes, GPU time, compute rates and memory peaks of drawn traces."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest

from traceq import load
from traceq.analysis.base.steady import steady_steps
from traceq.analysis.memory.trace_peak import peak_memory
from traceq.analysis.summary import summarise
from traceq.analysis.time.gpu_time import (
    by_host_op,
    by_kernel,
    by_kind_and_phase,
    by_op,
)
from traceq.analysis.time.idle_causes import idle_causes
from traceq.analysis.time.mfu import Compute, compute
from traceq.analysis.time.roofline import roofline
from traceq.linter import inputs
from traceq.model.gpu_peaks import peak_of
from traceq.testing import draw, load_drawn
from traceq.testing.examples import DEVICE

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from traceq import Trace


def load_document(folder: Path, document: Mapping[str, Any]) -> Trace:
    path = folder / "trace.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    return load(path, cache=False)


# Idle time.


def idle(drawing: str) -> dict[str, int]:
    trace = load_drawn(drawing)
    return dict(idle_causes(trace, steady_steps(trace)).iter_rows())


@pytest.mark.parametrize(
    ("host", "cause"),
    [
        ("[cudaLaunchKernel      ]", "launching"),
        ("[cudaMemcpyAsync       ]", "launching"),
        ("[cudaStreamSynchronize ]", "waiting for the GPU"),
        ("[cudaMalloc            ]", "allocating memory"),
        ("[cudaStreamBeginCapture]", "capturing CUDA graphs"),
        ("[cudagraphify          ]", "capturing CUDA graphs"),
        ("[entire_frame_compile  ]", "compiling"),
        ("[aten::view            ]", "running operators"),
        ("[train.py(3): main     ]", "running Python"),
        ("[torch/optim/a.py(1): f]", "unknown"),
        ("[cudaEventQuery        ]", "unknown"),
    ],
)
def test_idle_time_has_the_cause_that_the_host_was_busy_with(
    host: str, cause: str
) -> None:
    result = idle(
        f"""
        host   [ProfilerStep#1                     ]
        host      {host}
        gpu 7  [a]                        [b       ]
        """
    )

    assert result == {cause: 24_000}


def test_loading_data_is_a_cause_of_idling() -> None:
    result = idle(
        """
        host   [ProfilerStep#1                                                 ]
        host      [enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__]
        host        [aten::stack     ]
        gpu 7  [a ]
        """
    )

    assert result["loading data"] == 60_000


def test_the_cause_is_what_matters_most_of_all_that_was_going_on() -> None:
    result = idle(
        """
        host   [ProfilerStep#1                                  ]
        host    [train.py(3): main                             ]
        host        [aten::item                         ]
        host            [cudaStreamSynchronize    ]
        gpu 7  [a]                    [b]
        """
    )

    # The wait is 27 long and the GPU works for 3 of it, and so on outwards.
    assert result == {
        "waiting for the GPU": 27_000 - 3_000,
        "running operators": 37_000 - 27_000,
        "running Python": 48_000 - 37_000 - 2_000,
        "unknown": 1_000,
    }


def test_the_gpu_does_not_idle_while_any_stream_works() -> None:
    result = idle(
        """
        host   [ProfilerStep#1             ]
        gpu 7  [a          ]
        gpu 20      [b          ]  [c      ]
        """
    )

    assert result == {"unknown": 2_000}


def test_time_outside_of_the_steps_is_not_idle() -> None:
    result = idle(
        """
        host          [ProfilerStep#1 ]        [ProfilerStep#2 ]
        gpu 7  [a    ][b              ]        [c              ]
        """
    )

    assert result == {}


def test_a_trace_without_a_gpu_has_no_idle_time() -> None:
    assert idle("host   [ProfilerStep#1 ]\nhost     [aten::mm]") == {}


def test_idle_causes_add_up_to_the_idle_time_of_the_busiest_gpu(tmp_path: Path) -> None:
    document = draw(
        """
        host   [ProfilerStep#1                                        ]
        host    [cudaLaunchKernel>1][cudaLaunchKernel>2]
        gpu 7                  [near<1              ]
        gpu 8                                              [far<2 ]
        """
    )
    far = next(event for event in document["traceEvents"] if event["name"] == "far")
    far["args"]["device"] = 1
    trace = load_document(tmp_path, document)

    table = idle_causes(trace, steady_steps(trace))

    assert table["time"].sum() == trace.steps["gpu_idle"].sum() == 34_000


# Where the GPU's time goes.

MIXED = """
host   [ProfilerStep#1                                                           ]
host     [train.py(3): main                                                      ]
host     [@FORWARD                                       ][Optimizer.step#S.step]
host      [aten::mm           ] [aten::mm           ]      [aten::add_         ]
host      [cudaLaunchKernel>1]  [cudaLaunchKernel>2]       [cudaLaunchKernel>3]
gpu 7                    [nvjet_sm90_tst<1 ][nvjet_sm90_tst<2 ]          [elementwise<3]
gpu 20                        [elementwise ]
"""


def test_gpu_time_by_kind_adds_up_to_the_durations_of_all_kernels() -> None:
    trace = load_drawn(MIXED)
    summary = summarise(trace)

    kinds = by_kind_and_phase(trace.kernels)

    assert kinds.select("kind", "phase", "time", "kernels").rows() == [
        ("gemm", "forward", 38_000, 2),
        ("optimizer", "optimizer", 15_000, 1),
        ("elementwise", None, 14_000, 1),
    ]
    assert kinds["time"].sum() == summary.gpu_time == 67_000
    # Two streams overlap: the GPU was busy for less.
    assert summary.steady.gpu_busy == 53_000


def test_gpu_time_by_op_counts_calls_and_says_where_they_are() -> None:
    trace = load_drawn(MIXED)

    rows = by_op(trace, trace.kernels).select("name", "time", "calls", "file", "line")

    assert rows.rows() == [
        ("aten::mm", 38_000, 2, "train.py", 3),
        ("aten::add_", 15_000, 1, "train.py", 3),
        (None, 14_000, 1, None, None),
    ]


def test_gpu_time_by_kernel_is_by_name() -> None:
    rows = by_kernel(load_drawn(MIXED).kernels).select("name", "time", "kernels")

    assert rows.rows() == [
        ("nvjet_sm90_tst", 38_000, 2),
        ("elementwise", 29_000, 2),
    ]


def test_host_time_by_op_is_the_time_ops_spent_themselves() -> None:
    trace = load_drawn(
        """
        host   [aten::linear         ]
        host     [aten::addmm     ]
        """
    )

    rows = by_host_op(trace, steady_steps(trace).windows).select(
        "name", "time", "calls"
    )

    assert rows.rows() == [("aten::addmm", 18_000, 1), ("aten::linear", 5_000, 1)]


@pytest.mark.real
def test_a_summary_counts_launches_and_small_kernels_per_step() -> None:
    summary = summarise(
        load_drawn(
            """
            host   [ProfilerStep#1                           ][ProfilerStep#2       ]
            host    [cudaLaunchKernel>1][cudaLaunchKernel>2]   [cudaLaunchKernel>3]
            gpu 7              [a<1]                  [long<2][b<3]
            """
        )
    )

    assert summary.launches == 1.5
    assert summary.small_kernels == 0.0
    assert summary.step_time == (43_000 + 23_000) / 2


def test_kernels_of_less_than_five_microseconds_are_small() -> None:
    summary = summarise(load_drawn("gpu 7   [a ][long        ][Memset ]"))

    assert summary.small_kernels == 0.5


# How fast it computed.

PRODUCT = """
host   [ProfilerStep#1         ]
host    [aten::mm             ]
host     [cudaLaunchKernel>1 ]
gpu 7          [nvjet_sm90_tst<1 ]
"""
# The GPU is done two microseconds after the host.
STEP_SECONDS = 27e-6
H200 = {"id": 0, "name": "NVIDIA H200", "numSms": 132, "totalGlobalMem": 1}


def product(dtype: str = "c10::BFloat16", **more: object) -> dict[str, Any]:
    args = {"Input Dims": [[1024, 512], [512, 256]], "Input type": [dtype, dtype]}
    return {"deviceProperties": [H200], **more, **draw(PRODUCT, {"aten::mm": args})}


def computed(trace: Trace) -> Compute:
    return compute(trace, steady_steps(trace))


def test_mfu_is_the_share_of_the_step_that_its_operations_take_at_peak(
    tmp_path: Path,
) -> None:
    result = computed(load_document(tmp_path, product()))

    flops = 2 * 1024 * 512 * 256
    assert result.unknown == ""
    assert result.flops == flops
    assert result.rate == pytest.approx(flops / STEP_SECONDS)
    assert (result.dtype, result.peak) == ("bf16", 989e12)
    assert result.utilisation == pytest.approx(flops / STEP_SECONDS / 989e12)


def test_float_products_that_ran_in_tf32_are_held_against_its_peak(
    tmp_path: Path,
) -> None:
    document = product("float")
    document["traceEvents"][-1]["name"] = "cutlass_80_tensorop_s1688gemm_128x128"

    result = computed(load_document(tmp_path, document))

    assert (result.dtype, result.peak) == ("tf32", 495e12)


@pytest.mark.parametrize(
    "before",
    ["init_device_workspace_kernel", "Kernel<ReduceSplitK<float>>", "nchwToNhwcKernel"],
)
def test_a_convolution_is_of_the_dtype_of_its_longest_kernel(before: str) -> None:
    trace = load_drawn(
        f"""
        host   [ProfilerStep#1                                                     ]
        host    [aten::convolution                                                ]
        host     [aten::cudnn_convolution                                        ]
        host      [cudaLaunchKernel>1] [cudaLaunchKernel>2]
        gpu 7              [{before}<1][sm90_xmma_fprop_tf32f32_f32_nhwckrsc_nhwc<2]
        """,
        {
            "aten::convolution": inputs(
                [[8, 64, 56, 56], [64, 64, 3, 3], [], [], [], [], [], [], []],
                ["float"] * 2,
                values=["", "", "", "[1, 1]", "[1, 1]", "[1, 1]", "False", "[]", "1"],
            )
        },
        DEVICE,
    )

    assert computed(trace).dtype == "tf32"
    (op,) = roofline(trace).ops["dtype"].to_list()
    assert op == "tf32"


def test_a_gpu_without_a_known_peak_has_a_rate_but_no_mfu(tmp_path: Path) -> None:
    device = {**H200, "name": "Some GPU of tomorrow"}

    result = computed(load_document(tmp_path, product(deviceProperties=[device])))

    assert result.rate is not None
    assert (result.peak, result.utilisation) == (None, None)


def test_a_number_format_without_a_known_peak_has_no_mfu(tmp_path: Path) -> None:
    result = computed(load_document(tmp_path, product("double")))

    assert result.dtype == "fp64"
    assert (result.peak, result.utilisation) == (None, None)


def test_a_slice_of_a_gpu_has_a_slice_of_its_peak(tmp_path: Path) -> None:
    device = {**H200, "numSms": 33}

    result = computed(load_document(tmp_path, product(deviceProperties=[device])))

    assert result.peak == 989e12 / 4


def test_a_negative_number_of_multiprocessors_scales_no_peak(tmp_path: Path) -> None:
    device = {**H200, "numSms": -(1 << 32)}

    result = computed(load_document(tmp_path, product(deviceProperties=[device])))

    assert result.peak == 989e12


def test_without_shapes_mfu_is_unknown() -> None:
    assert computed(load_drawn(PRODUCT)).unknown == "shapes were not recorded"


def test_without_matrix_products_mfu_is_unknown() -> None:
    trace = load_drawn("gpu 7   [elementwise_kernel ]")

    assert computed(trace).unknown == "no matmuls on the GPU"


def test_where_most_products_have_no_shapes_mfu_is_unknown(tmp_path: Path) -> None:
    document = product()
    graph = draw(
        """
        host   [ProfilerStep#1         ]
        host 2   [cudaGraphLaunch>2 ]
        gpu 7                          [nvjet_sm90_tst<2                        ]
        """
    )
    document["traceEvents"] += graph["traceEvents"][1:]

    result = computed(load_document(tmp_path, document))

    assert result.unknown.startswith("only 31% of the time in matmuls")
    assert (result.flops, result.utilisation) == (None, None)


def test_work_of_ops_inside_a_counted_one_is_counted_with_it(tmp_path: Path) -> None:
    name = "aten::_scaled_dot_product_flash_attention"
    args = {
        "Input Dims": [[1, 2, 8, 4]] * 3,
        "Input type": ["c10::Half"] * 3,
        "Concrete Inputs": ["", "", "", "0.", "False", "False"],
    }
    document = draw(
        f"""
        host   [{name}]
        host     [aten::_flash_attention_forward ]
        host       [cudaLaunchKernel>1 ]
        gpu 7                     [flash_fwd_kernel<1 ]
        """,
        {name: args},
    )

    result = computed(load_document(tmp_path, document))

    assert result.unknown == ""
    assert result.flops == 2 * 1 * 2 * 8 * 8 * (4 + 4)


@pytest.mark.parametrize(
    ("name", "tflops"),
    [
        ("NVIDIA H100 80GB HBM3", 989),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA H200", 989),
        ("NVIDIA H20", 148),
        ("NVIDIA A100-SXM4-40GB", 312),
        ("NVIDIA A10", 125),
        ("NVIDIA A10G", 70),
        ("NVIDIA L40S", 362),
        ("NVIDIA L4", 121),
        ("NVIDIA GB200", 2500),
        ("NVIDIA B200", 2250),
        ("AMD Instinct MI300X", 1307),
    ],
)
def test_a_gpu_is_not_taken_for_another_of_a_similar_name(
    name: str, tflops: float
) -> None:
    peak = peak_of(name, None)

    assert peak is not None
    assert peak.flops["bf16"] == tflops * 1e12


@pytest.mark.parametrize(("name", "fp16"), [("Tesla T4", 65), ("Tesla V100-SXM2", 125)])
def test_a_gpu_without_bf16_has_no_peak_in_it(name: str, fp16: float) -> None:
    peak = peak_of(name, None)

    assert peak is not None
    assert "bf16" not in peak.flops
    assert peak.flops["fp16"] == fp16 * 1e12


# Memory.


def memory_event(ts: int, allocated: int, **args: int) -> dict[str, Any]:
    result = {
        "Bytes": 512,
        "Addr": 1,
        "Total Allocated": allocated,
        "Device Type": 1,
        "Device Id": 0,
    }
    result |= {key.replace("_", " "): value for key, value in args.items()}
    return {
        "ph": "i",
        "cat": "cpu_instant_event",
        "s": "t",
        "name": "[memory]",
        "pid": 1000,
        "tid": 1,
        "ts": ts,
        "args": result,
    }


def test_the_peak_is_where_the_gpu_held_most(tmp_path: Path) -> None:
    document = draw(
        """
        host   [ProfilerStep#1                       ]
        host    [train.py(3): main                  ]
        host      [aten::mm ]  [Optimizer.step#A   ]
        host                    [aten::add_       ]
        """
    )
    document["traceEvents"] += [
        memory_event(5, 100, Total_Reserved=900),
        memory_event(20, 300, Total_Reserved=800),
        memory_event(25, 200),
        memory_event(26, 9000, Device_Type=0, Device_Id=-1),
    ]

    peak = peak_memory(load_document(tmp_path, document))

    assert peak is not None
    assert (peak.device, peak.allocated, peak.reserved) == (0, 300, 900)
    assert (peak.step, peak.phase, peak.op) == (1, "optimizer", "aten::add_")
    assert peak.place == "main (train.py:3)"


def test_without_memory_events_there_is_no_peak() -> None:
    assert peak_memory(load_drawn("host   [aten::mm ]")) is None


def test_memory_of_the_cpu_alone_has_no_peak_on_the_gpu(tmp_path: Path) -> None:
    document = draw("host   [aten::mm ]")
    document["traceEvents"].append(memory_event(2, 100, Device_Type=0, Device_Id=-1))

    trace = load_document(tmp_path, document)

    assert trace.memory.select(pl.col("allocated")).rows() == [(100,)]
    assert peak_memory(trace) is None
