"""The account of the GPU's busy time: it adds up, and names losses."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl
import pytest
from recordings import ROOT, loaded

from traceq import lint
from traceq.analysis.base.steady import steady_steps
from traceq.analysis.time import gpu_account as accounts
from traceq.analysis.time.gpu_account import GpuAccount, gpu_account
from traceq.linter import View, inputs
from traceq.linter.explained_gpu import explained_gpu
from traceq.testing import load_drawn

if TYPE_CHECKING:
    from pathlib import Path

    from traceq.model.trace import Trace

LARGE = [1024, 1024]
H200 = {
    "id": 0,
    "name": "NVIDIA H200",
    "numSms": 132,
    "totalGlobalMem": 1,
    "computeMajor": 9,
}


def time_of(account: GpuAccount, part: str) -> float:
    rows = account.kinds.filter(pl.col("part") == part)
    return float(rows["time"].sum())


def one_op(
    name: str,
    dims: list[list[int]],
    types: list[str],
    kernel: str = "k",
    strides: list[list[int]] | None = None,
) -> Trace:
    return load_drawn(
        f"""
        host   [ProfilerStep#1                                                   ]
        host    [{name:<22}]
        host     [cudaLaunchKernel>1]
        gpu 7                  [{kernel + "<1":<36}]
        """,
        args={name: inputs(dims, types, strides)},
        device=H200,
    )


def test_the_account_adds_up_to_the_busy_time(real_trace: Path) -> None:
    trace = loaded(real_trace)
    account = gpu_account(trace)

    assert account.parts["time"].sum() == steady_steps(trace).gpu_busy
    assert (account.parts["time"] > 0).all()


def test_an_instant_of_two_streams_counts_once() -> None:
    trace = load_drawn("""
        host   [ProfilerStep#1                                 ]
        host    [cudaLaunchKernel>1][cudaLaunchKernel>2]
        gpu 7                   [a<1                ]
        gpu 8                           [b<2                ]
    """)

    account = gpu_account(trace)

    assert account.busy_total == account.parts["time"].sum() == 29_000
    assert time_of(account, accounts.CONTENTION) == 29_000


def test_the_streams_that_an_op_divides_its_work_among_do_not_contend() -> None:
    trace = load_drawn("""
        host   [ProfilerStep#1                                 ]
        host    [aten::convolution_backward                   ]
        host    [cudaLaunchKernel>1][cudaLaunchKernel>2]
        gpu 7                   [a<1                ]
        gpu 29                          [b<2                ]
    """)

    assert time_of(gpu_account(trace), accounts.CONTENTION) == 0


def test_bytes_that_the_driver_copies_keep_their_layout() -> None:
    trace = load_drawn("""
        host   [ProfilerStep#1                                     ]
        host    [autograd::engine::evaluate_function: AddBackward0 ]
        host     [aten::copy_           ]
        host      [cudaMemcpyAsync>1]
        gpu 7                     [Memcpy DtoD (Device -> Device)<1]
    """)
    account = gpu_account(trace)

    assert time_of(account, accounts.LAYOUT) == 0
    assert time_of(account, accounts.COPIES) > 0


def test_a_matmul_in_float32_loses_by_its_dtype() -> None:
    account = gpu_account(one_op("aten::mm", [LARGE, LARGE], ["float", "float"]))

    assert time_of(account, accounts.DTYPE) > 0
    assert account.bounds["bound"].to_list() == ["compute"]


def test_a_misaligned_matmul_loses_by_its_shape() -> None:
    half = ["c10::BFloat16"] * 2
    account = gpu_account(one_op("aten::mm", [[512, 511], [511, 512]], half))

    assert time_of(account, accounts.SHAPES) > 0


def test_a_transposed_matrix_is_misaligned_by_the_rows_in_memory() -> None:
    half, dims = ["c10::BFloat16"] * 2, [[511, 512], [512, 512]]
    rows = gpu_account(one_op("aten::mm", dims, half, strides=[[512, 1], [512, 1]]))
    columns = gpu_account(one_op("aten::mm", dims, half, strides=[[1, 511], [512, 1]]))

    assert time_of(rows, accounts.SHAPES) == 0
    assert time_of(columns, accounts.SHAPES) > 0


def test_attention_of_an_earlier_gpu_is_a_slow_algorithm() -> None:
    name, half = "aten::_scaled_dot_product_efficient_attention", ["c10::Half"] * 3
    dims = [[8, 16, 1280, 64]] * 3
    kernel = "fmha_cutlassF_bf16_aligned_64x64_rf_sm{}"
    old = gpu_account(one_op(name, dims, half, kernel.format(80)))
    new = gpu_account(one_op(name, dims, half, kernel.format(90)))

    assert time_of(old, accounts.ALGORITHM) > time_of(new, accounts.ALGORITHM)


def test_a_cast_is_lost_as_a_whole() -> None:
    types = ["c10::BFloat16", "float"]
    kernel = "bfloat16_copy_kernel_cuda"
    account = gpu_account(one_op("aten::copy_", [LARGE, LARGE], types, kernel))

    assert account.floor_ns == 0


def test_a_kernel_without_a_known_op_is_unknown() -> None:
    trace = load_drawn("""
        host   [ProfilerStep#1                  ]
        host    [cudaLaunchKernel>1]
        gpu 7                  [k<1            ]
    """)

    assert gpu_account(trace).kinds["part"].to_list() == [accounts.UNKNOWN]


def test_time_whose_need_is_unknown_is_no_loss_that_findings_leave() -> None:
    trace = load_drawn(
        """
        host   [ProfilerStep#1                                                    ]
        host    [aten::mul             ]
        host     [cudaLaunchKernel>1]    [cudaLaunchKernel>2]
        gpu 7                  [k<1     ][replayed<2                             ]
        """,
        args={"aten::mul": inputs([LARGE, LARGE], ["float", "float"])},
        device=H200,
    )
    gpu = explained_gpu(View(trace), ())

    assert gpu is not None
    assert gpu.above_ns == sum(entry.ns for entry in gpu.unexplained)
    assert gpu.above_ns < gpu.busy_ns - gpu.floor_ns


def test_the_ridge_is_the_peak_over_the_bandwidth() -> None:
    account = gpu_account(one_op("aten::mul", [LARGE, LARGE], ["float", "float"]))
    peak = account.gpu.peak

    assert peak is not None
    assert account.ridge["bf16"] == pytest.approx(peak.flops["bf16"] / peak.bandwidth)


@pytest.mark.real
def test_the_residual_finding_is_of_what_no_fix_changes() -> None:
    report = lint(ROOT / "fixtures" / "tutorial" / "2", tables=False).report
    ((outcome,), (named,)) = (
        report.outcomes,
        [
            finding
            for finding in report.outcomes[0].findings
            if finding.code == "KRN010"
        ],
    )
    assert outcome.gpu is not None
    left = outcome.gpu.above_ns - outcome.gpu.explained_ns

    assert (named.place.file, named.place.line) == ("train.py", 17)
    assert named.data["unexplained_ns"] == round(left)


def test_a_rule_reads_the_account_from_its_view() -> None:
    trace = one_op("aten::mul", [LARGE, LARGE], ["float", "float"])

    assert View(trace).gpu_account is gpu_account(trace)


def test_time_of_which_no_need_is_known_is_not_lost() -> None:
    trace = load_drawn(
        """
        host   [ProfilerStep#1                  ]
        host    [cudaLaunchKernel>1]
        gpu 7                  [k<1            ]
        """,
        device=H200,
    )

    account = gpu_account(trace)

    assert account.unjudged_ns == account.busy_ns > 0
    assert account.above_ns == 0
    assert account.losses().height == 0
