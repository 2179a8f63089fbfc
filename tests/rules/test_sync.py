"""SYN: the host waits for the GPU, on real traces and drawn ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from linting import (
    case_findings,
    drawn_findings,
    placed,
    priced_findings,
    says,
)

from traceq.analysis.base.sync_calls import COPY_TO_HOST, OTHER_COPY, blocking_calls
from traceq.testing import load_drawn

if TYPE_CHECKING:
    from traceq.linter import Finding

STEP = "host  [ProfilerStep#1                                                      ]"


def read(method: str) -> str:
    """Draw a copy to the host that a method of a tensor makes."""
    return f"""
        {STEP}
        host   [aten::mm           ]                              [aten::add        ]
        host    [cudaLaunchKernel>1]                             [cudaLaunchKernel>3]
        host                        [{method}     ]
        host                         [aten::to                  ]
        host                         [cudaMemcpyAsync>2        ]
        gpu 7                [gemm<1         ][Memcpy DtoH (Device -> Pageable)<2][a<3]
        """


def test_where_of_a_mask_is_found_at_its_line_in_all_layers_at_once() -> None:
    (finding,) = case_findings("moe_loop.trace.json.gz", "SYN001")

    assert says(finding, "`torch.where(mask)`", "96 times a step")
    assert (finding.place.file, finding.place.line) == ("dev_cases.py", 87)


def test_items_on_the_cpu_are_not_reported() -> None:
    # The optimizer reads 52 step counters, which are on the CPU.
    (finding,) = case_findings("optimizer_loop_sync.trace.json.gz", "SYN")

    assert says(finding, "`.item()`", "once a step")
    assert (finding.place.file, finding.place.function) == ("dev_cases.py", "step")


@pytest.mark.parametrize("case", ["moe_batched", "optimizer_fused", "graph_replay"])
def test_repaired_programs_do_not_wait(case: str) -> None:
    assert not case_findings(f"{case}.trace.json.gz", "SYN")


@pytest.mark.parametrize("case", ["graph_rerecord", "graph_record"])
def test_waits_for_graph_capture_are_not_the_users(case: str) -> None:
    assert not case_findings(f"{case}.trace.json.gz", "SYN")


@pytest.mark.parametrize(
    ("frame", "written"),
    [
        ("<built-in method cpu of Tensor>", "`.cpu()`"),
        ("<built-in method tolist of Tensor>", "`.tolist()`"),
        ("torch/_tensor_str.py(9): _str   ", "printing a tensor"),
        ("<built-in method foo of Tensor>", "`.cpu()`"),
    ],
)
def test_a_copy_to_the_host_is_named_as_the_program_writes_it(
    frame: str, written: str
) -> None:
    (finding,) = drawn_findings(read(frame), "SYN001")

    assert says(finding, written, "once a step")


def test_the_idle_time_is_the_shorter_of_the_wait_and_of_the_gap_after_it() -> None:
    (finding,) = priced_findings(
        f"""
        {STEP}
        host   [aten::mm           ]                            [aten::add         ]
        host    [cudaLaunchKernel>1]                            [cudaLaunchKernel>2]
        host                        [aten::item            ]
        host                         [cudaStreamSynchronize]
        gpu 7                [gemm<1                      ]         [add<2]
        """,
        "SYN001",
    )

    assert finding.data == {"wait_ns": 23_000, "gap_ns": 9_000}
    assert finding.gpu_idle_ns == 9_000


def test_a_wait_of_the_allocator_is_not_reported() -> None:
    assert not drawn_findings(
        f"""
        {STEP}
        host   [aten::mm           ][aten::empty                               ]
        host    [cudaLaunchKernel>1] [cudaStreamSynchronize   ][cudaFree      ]
        gpu 7                [gemm<1                        ]
        """,
        "SYN001",
    )


def test_the_wait_with_which_the_profiler_ends_is_not_reported_without_steps() -> None:
    assert not drawn_findings(
        """
        host   [aten::mm           ]
        host    [cudaLaunchKernel>1] [cudaDeviceSynchronize                    ]
        gpu 7                [gemm<1                        ]
        """,
        "SYN",
    )


def test_a_pageable_batch_is_reported_as_a_copy_and_not_as_a_wait() -> None:
    case = "public/v100_resnet50_workers0.json.gz"

    assert case_findings(case, "CPY003")
    assert not case_findings(case, "SYN001")


def test_a_small_copy_that_waits_long_is_a_wait() -> None:
    findings = case_findings("public/v100_tp2_rank0.json.gz", "SYN001")

    assert any(
        says(finding, "a copy to the GPU", "5 times a step") for finding in findings
    )


def test_a_synchronize_can_be_allowed_in_the_program() -> None:
    drawing = """
        host  [ProfilerStep#1                                                   ]
        host   [aten::mm      ]  {region}
        host    [cudaLaunch>1]    [cudaDeviceSynchronize] [aten::mm      ]
        host                                               [cudaLaunch>2]
        gpu 7           [gemm<1                        ]             [gemm<2]
        """
    region = "[{:<27}]"

    assert priced_findings(
        drawing.format(region=region.format("@other region")), "SYN002"
    )
    assert not priced_findings(
        drawing.format(region=region.format("@traceq: allow SYN002")), "SYN002"
    )


@pytest.mark.parametrize("caller", ["nn.Module: Model_0", "train.py(1): <module>"])
def test_waits_in_two_files_of_libraries_are_two_findings(caller: str) -> None:
    findings = drawn_findings(
        f"""
        host  [ProfilerStep#1                                                       ]
        host   [{caller:<69}]
        host    [cudaLaunch>1]                                         [cudaLaunch>3]
        host                  [transformers/a.py(3): f] [peft/b.py(8): g       ]
        host                   [aten::item           ]   [aten::item          ]
        host                   [cudaStreamSynchronize]   [cudaEventSynchronize]
        gpu 7             [gemm<1               ]                           [gemm<3]
        """,
        "SYN001",
    )

    assert len(findings) == 2
    for where in ("f (transformers/a.py:3)", "g (peft/b.py:8)"):
        what = f"`.item()` in {where}"
        assert any(says(finding, what, "once a step") for finding in findings)
    assert len({finding.fingerprint for finding in findings}) == len(findings)


def test_a_wait_of_torch_itself_is_at_the_line_that_calls_torch() -> None:
    (finding,) = drawn_findings(
        """
        host  [ProfilerStep#1                                                       ]
        host   [train.py(3): step                                                  ]
        host    [cudaLaunch>1]                                         [cudaLaunch>3]
        host                  [torch/nn/utils/clip_grad.py(30): clip]
        host                   [aten::item                         ]
        host                   [cudaStreamSynchronize              ]
        gpu 7             [gemm<1                             ]             [gemm<3]
        """,
        "SYN001",
    )

    what = "`.item()` in clip (torch/nn/utils/clip_grad.py:30)"
    assert says(finding, what, "once a step")
    assert (finding.place.file, finding.place.line) == ("train.py", 3)


def test_waits_in_two_functions_of_torch_are_two_findings() -> None:
    findings = drawn_findings(
        """
        host  [ProfilerStep#1                                                       ]
        host   [train.py(3): step                                                  ]
        host    [cudaLaunch>1]                                         [cudaLaunch>3]
        host                  [torch/a/b.py(3): f     ] [torch/a/c.py(8): g    ]
        host                   [aten::item           ]   [aten::item          ]
        host                   [cudaStreamSynchronize]   [cudaEventSynchronize]
        gpu 7             [gemm<1               ]                           [gemm<3]
        """,
        "SYN001",
    )

    assert len(findings) == 2
    for where in ("f (torch/a/b.py:3)", "g (torch/a/c.py:8)"):
        what = f"`.item()` in {where}"
        assert any(says(finding, what, "once a step") for finding in findings)


def test_waits_of_two_functions_in_one_module_are_two_findings() -> None:
    findings = drawn_findings(
        """
        host  [ProfilerStep#1                                                       ]
        host   [nn.Module: Model_0                                                 ]
        host    [cudaLaunch>1]                                         [cudaLaunch>3]
        host                  [a.py(3): f             ] [a.py(8): g            ]
        host                   [aten::item           ]   [aten::item          ]
        host                   [cudaStreamSynchronize]   [cudaEventSynchronize]
        gpu 7             [gemm<1               ]                           [gemm<3]
        """,
        "SYN001",
    )

    assert {finding.place.line for finding in findings} == {3, 8}


@pytest.mark.parametrize(
    ("frame", "op", "written", "switch"),
    [
        ("torch/_tensor.py(9): __format__", "item", "formatting a tensor", "loop"),
        (
            "torch/storage.py(261): cpu",
            "copy_",
            "saving tensors of the GPU (`torch.save`)",
            "save less often",
        ),
        (
            "torch/optim/optimizer.py(91): _get_value",
            "item",
            "the optimizer's step counter, which is on the GPU,",
            "capturable=True",
        ),
        (
            "torch/amp/grad_scaler.py(371): <genexpr>",
            "item",
            "GradScaler's check of the gradients",
            "fused=True",
        ),
        (
            "torch/amp/grad_scaler.py(571): get_scale",
            "item",
            "`scaler.get_scale()`",
            "once in many steps",
        ),
        (
            "torch/nn/utils/clip_grad.py(47): _get_total_norm",
            "is_nonzero",
            "the error check of `clip_grad_norm_`",
            "error_if_nonfinite=False",
        ),
        (
            "transformers/trainer.py(2400): _inner_training_loop",
            "is_nonzero",
            "the Trainer's filter of NaN losses",
            "logging_nan_inf_filter=False",
        ),
        (
            "transformers/trainer.py(3000): _maybe_log_save_evaluate",
            "item",
            "the Trainer's logging",
            "logging_steps",
        ),
        (
            "transformers/masking_utils.py(729): find_packed_sequence_indices",
            "is_nonzero",
            "the check for packed sequences",
            "compile",
        ),
        (
            "transformers/masking_utils.py(236): _ignore_causal_mask_sdpa",
            "is_nonzero",
            "the check whether any token is padded",
            "attention_mask",
        ),
        (
            "transformers/masking_utils.py(309): _ignore_bidirectional_mask_sdpa",
            "is_nonzero",
            "the check whether any token is padded",
            "attention_mask",
        ),
        (
            "torch_geometric/utils/_scatter.py(14): scatter",
            "item",
            "counting the groups of a scatter",
            "size=",
        ),
        (
            "torch/distributions/distribution.py(70): __init__",
            "is_nonzero",
            "the check of a distribution's arguments",
            "validate_args=False",
        ),
    ],
)
def test_a_wait_of_a_library_is_named_with_its_switch(
    frame: str, op: str, written: str, switch: str
) -> None:
    wide = len(frame) + 4
    (finding,) = drawn_findings(
        f"""
        host  [ProfilerStep#1{" " * (wide + 60)}]
        host   [train.py(3): step{" " * (wide + 54)}]
        host    [aten::mm    ][{frame}   ]
        host    [cudaLaunch>1] [{"aten::" + op:<{wide - 4}}] [cudaLaunch>3]
        host                    [{"cudaStreamSynchronize":<{wide - 6}}]
        gpu 7             [gemm<1{" " * (wide - 12)}] [gemm<3]
        """,
        "SYN001",
    )

    assert finding.message.startswith(written)
    assert switch in finding.advice


def test_a_condition_of_a_model_that_a_trainer_calls_is_not_the_trainers() -> None:
    (finding,) = drawn_findings(
        """
        host  [ProfilerStep#1                                                       ]
        host   [transformers/trainer.py(2400): _inner_training_loop                ]
        host    [cudaLaunch>1]                                         [cudaLaunch>3]
        host                  [model.py(30): forward                ]
        host                   [aten::is_nonzero                   ]
        host                   [cudaStreamSynchronize              ]
        gpu 7             [gemm<1                             ]             [gemm<3]
        """,
        "SYN001",
    )

    assert finding.message.startswith("`if tensor` ")


def _asks(*, twice: bool, first: str = "a.py(3): f", second: str = "b.py(8): g") -> str:
    """Draw two GPU-bound steps, in which the host asks for one or two values."""
    lanes: dict[str, list[tuple[int, int, str]]] = {
        "host ": [(0, 300, "ProfilerStep#{}")],
        "host  ": [(60, 169, first)],
        "host   ": [(65, 160, "aten::item")],
        "host    ": [
            (20, 15, "cudaLaunch>{}1"),
            (42, 15, "cudaLaunch>{}2"),
            (67, 153, "cudaStreamSynchronize"),
        ],
        "gpu 7": [(32, 97, "gemm<{}1"), (135, 83, "gemm<{}2")],
    }
    if twice:
        lanes["host  "].append((235, 53, second))
        lanes["host   "].append((238, 48, "aten::item"))
        lanes["host    "].append((239, 21, "cudaMemcpyAsync>{}3"))
        lanes["host    "].append((262, 23, "cudaStreamSynchronize"))
        lanes["gpu 7"].append((255, 8, "Mem<{}3"))
    return placed(lanes, 300, steps=2)


def test_a_wait_that_the_next_one_would_take_over_goes_with_it() -> None:
    """Removing one of two waits in a row only moves the wait to the other."""
    (alone,) = priced_findings(_asks(twice=False), "SYN001")
    findings = priced_findings(_asks(twice=True), "SYN001")

    first = next(finding for finding in findings if finding.place.file == "a.py")
    assert first.saves_ns > 0.5 * alone.saves_ns
    (also,) = (line for line in first.evidence if line.label == "also")
    assert also.name == "g (b.py:8)"


def test_a_loop_of_reads_is_no_saving_of_the_wait_before_it() -> None:
    spans = {
        "host ": [(0, 900, "ProfilerStep#1")],
        "host  ": [(5, 190, "a.py(3): f"), (200, 680, "b.py(8): g")],
        "host   ": [(10, 20, "cudaLaunch>1"), (40, 150, "aten::item")],
        "host    ": [(45, 140, "cudaStreamSynchronize")],
        "gpu 7": [(30, 150, "gemm<1")],
    }
    for number in range(12):
        start = 210 + 50 * number
        spans["host   "].append((start, 40, "aten::is_nonzero"))
        spans["host    "].append((start + 2, 10, f"cudaMemcpyAsync>{number + 2}"))
        spans["host    "].append((start + 14, 24, "cudaStreamSynchronize"))
        spans["gpu 7"].append((start + 20, 2, f"Mem<{number + 2}"))

    findings = drawn_findings(placed(spans, 900), "SYN001")

    waits = {finding.place.file: len(finding.fixes[0].syncs) for finding in findings}
    assert waits["a.py"] == 1


def test_a_wait_is_not_said_to_take_the_place_of_itself() -> None:
    script = "train.py(3): <module>"
    findings = priced_findings(_asks(twice=True, first=script, second=script), "SYN001")

    assert [line.name for line in findings[0].evidence if line.label == "also"] == []


def test_a_wait_that_one_of_a_library_takes_over_saves_only_what_is_left() -> None:
    (alone,) = priced_findings(_asks(twice=False), "SYN001")
    trainer = "transformers/trainer.py(8): g"
    findings = priced_findings(_asks(twice=True, second=trainer), "SYN001")

    first = next(finding for finding in findings if finding.place.file == "a.py")
    assert first.saves_ns < 0.5 * alone.saves_ns
    (also,) = (line for line in first.evidence if line.label == "also")
    assert "waits instead" in also.note


def test_a_synchronize_is_not_said_to_be_in_torch() -> None:
    (finding,) = drawn_findings(
        """
        host  [ProfilerStep#1                                                       ]
        host   [train.py(3): step                                                  ]
        host    [aten::mm    ]
        host    [cudaLaunch>1]                                         [cudaLaunch>3]
        host                  [torch/cuda/__init__.py(9): synchronize]
        host                   [cudaDeviceSynchronize              ]
        gpu 7             [gemm<1                             ]             [gemm<3]
        """,
        "SYN002",
    )

    assert says(finding, "`torch.cuda.synchronize()`", "once a step")


def test_all_waits_of_printing_are_one_finding() -> None:
    spans = {
        "host ": [(0, 120, "ProfilerStep#1")],
        "host  ": [(20, 80, "torch/_tensor_str.py(9): _str")],
        "host   ": [
            (21, 35, "torch/_tensor_str.py(2): first"),
            (60, 35, "torch/_tensor_str.py(5): second"),
        ],
        "host    ": [(22, 30, "aten::item"), (62, 30, "aten::item")],
        "host     ": [
            (2, 14, "cudaLaunch>1"),
            (24, 26, "cudaStreamSynchronize"),
            (64, 26, "cudaStreamSynchronize"),
            (104, 14, "cudaLaunch>3"),
        ],
        "gpu 7": [(10, 38, "gemm<1"), (58, 30, "gemm"), (110, 9, "gemm<3")],
    }

    (finding,) = drawn_findings(placed(spans, 120), "SYN001")

    assert says(finding, "printing a tensor", "twice a step")


def test_a_blocking_call_has_the_kind_of_its_own_copy() -> None:
    trace = load_drawn(
        """
        host   [ProfilerStep#1                                              ]
        host    [cudaMemcpyAsync>1] [cudaMemcpyAsync>2] [cudaMemcpyAsync>3]
        gpu 7   [Memcpy HtoD (Pageable -> Device)<1]
        gpu 7                       [Memcpy DtoH (Device -> Pageable)<2]
        gpu 9                                 [Memcpy DtoH (Device -> Pinned)<3]
        """
    )

    assert blocking_calls(trace)["kind"].to_list() == [OTHER_COPY, COPY_TO_HOST]


COALESCED = """
host   [ProfilerStep#1                                                       ]
host    [aten::{before}          ]                             [aten::add  ]
host     [cudaLaunchKernel>1]
host                          [aten::{around}               ]
host                           [aten::_coalesce           ]
host                            [cudaMemcpyAsync>2       ]
gpu 7                [gemm<1             ][Memcpy DtoH (Device -> Pageable)<2]
"""


def test_what_coalesces_a_sparse_gradient_is_no_copy_to_the_host() -> None:
    drawing = COALESCED.format(before="embedding_sparse_backward", around="coalesce")
    (finding,) = drawn_findings(drawing, "SYN001")

    assert finding.message.startswith("`coalesce()` of a sparse tensor ")
    assert finding.advice.startswith("make the gradients dense (sparse=False")


def test_a_matmul_that_coalesces_is_not_of_an_embedding() -> None:
    drawing = COALESCED.format(before="mm", around="matmul")
    (finding,) = priced_findings(drawing, "SYN001")

    assert says(finding, "a matmul that coalesces its sparse tensor")
    assert "is_coalesced=True" in finding.advice
    assert "embedding" not in finding.advice
    # All that coalesces goes.
    assert (finding.host_ns, finding.kernel_ns) == (28_000, 36_000)


def _checked(*functions: str, before: str = "aten::ge", inside: str = "") -> str:
    """Draw calls of functions, each of which computes something and asks for it."""
    long = 40 + 130 * len(functions)
    inner, callee, ops, calls, gpu = ([] for _ in range(5))
    ops.append((2, 18, "aten::mm"))
    calls.append((3, 14, "cudaLaunch>1"))
    gpu.append((18, 12, "gemm<1"))
    for number, function in enumerate(functions):
        at, mark = 30 + 130 * number, 10 + number
        inner.append((at, 120, function))
        if inside:
            callee.append((at + 5, 50, inside))
        ops += [(at + 10, 40, before), (at + 60, 50, "aten::is_nonzero")]
        calls.append((at + 15, 15, f"cudaLaunch>{mark}"))
        calls.append((at + 65, 40, "cudaStreamSynchronize"))
        gpu.append((at + 25, 75, f"k<{mark}"))
    spans: dict[str, list[tuple[int, int, str]]] = {
        "host ": [(0, long, "ProfilerStep#1")],
        "host  ": [(1, long - 2, "train.py(3): step")],
        "host   ": inner,
        "host    ": callee,
        "host     ": ops,
        "host      ": calls,
        "gpu 7": gpu,
    }
    return placed(spans, long)


def test_checks_of_a_distribution_at_one_line_are_one_finding() -> None:
    (finding,) = drawn_findings(
        _checked(
            "torch/distributions/distribution.py(46): __init__",
            "torch/distributions/distribution.py(280): _validate_sample",
        ),
        "SYN001",
    )

    assert says(finding, "the check of a distribution's arguments", "twice a step")


@pytest.mark.parametrize(
    ("function", "before"),
    [
        ("torch/distributions/distribution.py(46): __init__", "aten::ge"),
        ("torch/nn/modules/transformer.py(1): _detect_is_causal_mask", "aten::eq"),
        ("torch/nn/utils/clip_grad.py(49): _get_total_norm", "aten::isnan"),
    ],
)
def test_a_switch_removes_the_ops_of_the_check(function: str, before: str) -> None:
    (finding,) = priced_findings(_checked(function, before=before), "SYN001")

    # From the first op to the end of the last one, and the kernel.
    assert (finding.host_ns, finding.kernel_ns) == (100_000, 75_000)


def test_what_is_no_part_of_a_check_stays() -> None:
    (finding,) = priced_findings(
        _checked("torch/nn/utils/clip_grad.py(49): _get_total_norm", before="aten::mm"),
        "SYN001",
    )

    assert (finding.host_ns, finding.kernel_ns) == (50_000, 0)


def test_what_a_distribution_computes_once_stays_without_its_check() -> None:
    # The op before the wait is in a lazy property, which others may ask for.
    (finding,) = priced_findings(
        _checked(
            "torch/distributions/distribution.py(46): __init__",
            inside="torch/distributions/utils.py(9): __get__",
        ),
        "SYN001",
    )

    assert (finding.host_ns, finding.kernel_ns) == (50_000, 0)


def _waits(*nests: list[str], function: str = "") -> str:
    """Draw nests of ops, the innermost of which waits, but for a single ``mul``."""
    depth, long = max(map(len, nests)), 40 + 100 * len(nests)
    frames: list[tuple[int, int, str]] = []
    ops: list[list[tuple[int, int, str]]] = [[] for _ in range(depth)]
    calls, gpu = [(3, 14, "cudaLaunch>1")], [(18, 12, "gemm<1")]
    ops[0].append((2, 18, "aten::mm"))
    for number, nest in enumerate(nests):
        at = 30 + 100 * number
        for deep, op in enumerate(nest):
            ops[deep].append((at + deep, 90 - 2 * deep, op))
        if function:
            frames.append((at - 4, 98, function))
        calls.append((at + 10, 15, f"cudaLaunch>{2 + number}"))
        if nest != ["aten::mul"]:
            calls.append((at + 40, 35, "cudaStreamSynchronize"))
        gpu.append((at + 20, 50, f"k<{2 + number}"))
    lanes: dict[str, list[tuple[int, int, str]]] = {
        "host ": [(0, long, "ProfilerStep#1")],
        "host  ": frames,
        "gpu 7": gpu,
    }
    lanes |= {f"host   {' ' * deep}": some for deep, some in enumerate(ops)}
    lanes[f"host   {' ' * depth}"] = calls
    return placed(lanes, long)


_INDEX = ["aten::index", "aten::nonzero"]
_PUT = ["aten::index_put_", "aten::_index_put_impl_", "aten::nonzero"]


def test_without_a_boolean_index_nothing_looks_for_its_elements() -> None:
    (finding,) = priced_findings(_waits(_INDEX), "SYN001")

    assert finding.message.startswith("a boolean index ")
    # The mean of all of them is another one.
    assert "does not depend on how many there are" in finding.advice
    # All of nonzero; the op around it stays, for one that takes all elements.
    assert (finding.host_ns, finding.kernel_ns) == (88_000, 0)


def test_a_boolean_index_of_the_program_is_gone_with_an_edit() -> None:
    findings = (
        *drawn_findings(_waits(_INDEX), "SYN001"),
        *drawn_findings(
            _waits(_INDEX, function="torch_geometric/a.py(3): f"), "SYN001"
        ),
        *drawn_findings(_waits(["aten::item"]), "SYN001"),
    )

    assert [finding.effort for finding in findings] == ["edit", "", ""]


def test_an_index_of_a_library_may_have_to_be_one() -> None:
    (finding,) = priced_findings(
        _waits(_INDEX, function="torch_geometric/a.py(3): f"), "SYN001"
    )

    assert "in f (torch_geometric/a.py:3)" in finding.message
    assert finding.host_ns == 0


def test_advice_on_a_library_says_that_it_is_not_the_programs_own_code() -> None:
    (finding,) = drawn_findings(
        _waits(_INDEX, function="torch_geometric/a.py(3): f"), "SYN001"
    )

    assert finding.advice.startswith("it is in torch_geometric: ")


def test_advice_for_who_calls_a_library_stays_as_it_is() -> None:
    (finding,) = drawn_findings(
        _waits(["aten::_coalesce"], function="torch/optim/_functional.py(24): adam"),
        "SYN001",
    )

    assert finding.advice.startswith("make the gradients dense")


def test_what_a_mask_selects_assigned_through_it_is_one_finding() -> None:
    (finding,) = priced_findings(_waits(_INDEX, _PUT), "SYN001")

    assert says(finding, "`x[mask] = y[mask]`", "twice a step")
    assert "torch.where(mask, y, x)" in finding.advice
    # All of the index, and what looks for the elements of the assignment.
    assert finding.host_ns == 90_000 + 86_000


def test_a_mask_that_is_used_twice_with_something_between_is_two_findings() -> None:
    findings = drawn_findings(_waits(_INDEX, ["aten::mul"], _PUT), "SYN001")

    assert len(findings) == 2
    for what in ("a boolean index", "an assignment through a boolean index"):
        assert any(says(finding, what) for finding in findings)


def test_the_gradient_of_a_boolean_index_goes_with_it() -> None:
    args = {
        "aten::index": {"Sequence number": 5, "Fwd thread id": 0},
        "IndexBackward0": {"Sequence number": 5, "Fwd thread id": 1},
    }
    backward = ["IndexBackward0", "aten::_index_put_impl_", "aten::nonzero"]
    (finding,) = drawn_findings(_waits(_INDEX, backward), "SYN001", args=args)

    assert says(finding, "a boolean index", "twice a step")
    assert finding.evidence[0].note == "and its gradient"


@pytest.mark.parametrize(
    ("nest", "written"),
    [
        (["aten::cumprod_backward", "aten::item"], "the gradient of `cumprod`"),
        (["aten::ctc_loss", "aten::to", "aten::copy_"], "`ctc_loss`"),
        (["aten::item", "aten::_local_scalar_dense"], "`.item()`"),
        (["Function", "aten::item", "aten::_local_scalar_dense"], "`.item()`"),
    ],
)
def test_an_op_that_reads_a_value_itself_is_named(
    nest: list[str], written: str
) -> None:
    (finding,) = drawn_findings(_waits(nest), "SYN001")

    assert says(finding, written)


@pytest.mark.parametrize(
    ("copy", "written"),
    [
        ("DtoH (Device -> Pageable)", "an index on the GPU into a tensor on the CPU"),
        ("HtoD (Pageable -> Device)", "an index on the CPU into a tensor on the GPU"),
    ],
)
def test_an_index_of_another_device_is_no_boolean_one(copy: str, written: str) -> None:
    lanes = {
        "host ": [(0, 200, "ProfilerStep#1")],
        "host  ": [(2, 20, "aten::mm"), (30, 130, "aten::index")],
        "host   ": [(3, 14, "cudaLaunch>1"), (32, 120, "aten::copy_")],
        "host    ": [(34, 20, "cudaMemcpyAsync>2"), (60, 80, "cudaStreamSynchronize")],
        "gpu 7": [(20, 60, "gemm<1"), (90, 45, f"Memcpy {copy}<2")],
    }
    (finding,) = drawn_findings(placed(lanes, 200), "SYN001")

    assert says(finding, written)


def _reads(count: int, *between: str) -> str:
    """Draw copies to the host, and what is done before each."""
    long = 40 + 100 * count
    lanes: dict[str, list[tuple[int, int, str]]] = {
        "host ": [(0, long, "ProfilerStep#1")],
        "host  ": [(1, long - 2, "train.py(3): step")],
        "host   ": [(2, 20, "aten::mm")],
        "host    ": [(3, 14, "cudaLaunch>1")],
        "gpu 7": [(18, 12, "gemm<1")],
    }
    for number in range(count):
        at = 30 + 100 * number
        for op in between:
            lanes["host   "].append((at, 20, op))
            lanes["host    "].append((at + 2, 16, f"cudaLaunch>{100 + number}"))
            lanes["gpu 7"].append((at + 22, 6, f"k<{100 + number}"))
        lanes["host   "].append((at + 30, 60, "aten::to"))
        lanes["host    "].append((at + 32, 50, f"cudaMemcpyAsync>{10 + number}"))
        copy = f"Memcpy DtoH (Device -> Pageable)<{10 + number}"
        lanes["gpu 7"].append((at + 40, 40, copy))
    return placed(lanes, long)


def test_the_copy_of_a_final_result_is_not_priced() -> None:
    assert not drawn_findings(_reads(1), "SYN001")


def test_a_copy_that_work_of_the_gpu_follows_is_priced() -> None:
    more = "\n".join(
        line + (" " * 9 + "[gemm]" if line.strip().startswith("gpu") else "")
        for line in _reads(1).splitlines()
    )

    assert len(drawn_findings(more, "SYN001")) == 1


def test_many_copies_in_a_row_are_copied_at_once() -> None:
    (finding,) = priced_findings(_reads(8), "SYN001")

    assert says(finding, "`.cpu()`", "8 times a step")
    assert "torch.stack(tensors).cpu()" in finding.advice
    # One of them stays, and the time of one more for what puts them together.
    assert (finding.host_ns, finding.kernel_ns) == (6 * 60_000, 7 * 40_000)


@pytest.mark.parametrize(("count", "between"), [(8, ["aten::mm"]), (7, [])])
def test_copies_between_launches_and_a_few_are_no_row(
    count: int, between: list[str]
) -> None:
    (finding,) = priced_findings(_reads(count, *between), "SYN001")

    assert "torch.stack" not in finding.advice
    assert finding.host_ns == 0


@pytest.mark.parametrize(
    ("file", "expected"), [("gymnasium/vector/vector_env.py", 0), ("model.py", 1)]
)
@pytest.mark.parametrize("launched", [True, False])
def test_an_action_that_an_environment_needs_is_no_needless_wait(
    file: str, expected: int, *, launched: bool
) -> None:
    after = f"{'[cudaLaunchKernel>2]' if launched else '':<20} [{file}(9): step]"
    drawing = f"""
    host   [ProfilerStep#1 {" " * 130}]
    host    [train.py(3): main {" " * 124}]
    host    [aten::mm           ]                           {after}
    host     [cudaLaunchKernel>1]
    host                         [aten::item               ]
    host                          [cudaStreamSynchronize  ]
    gpu 7                [gemm<1                        ] {" " * 20}[add<2]
    """
    drawing = drawing if launched else drawing.replace("[add<2]", "")

    findings = drawn_findings(drawing, "SYN001")

    assert len(findings) == (1 if launched else expected)


_BUSY_BEFORE = """
    host [cuLaunch>1]
    host              [ProfilerStep#1                                              ]
    host               [aten::item                          ][aten::mm  ]
    host                [cudaStreamSynchronize             ]  [cuLaunch>2]
    gpu 7    [before<1                                 ]            [gemm<2       ]
"""


def test_a_wait_longer_than_its_step_is_for_work_from_before_it() -> None:
    (finding,) = drawn_findings(_BUSY_BEFORE, "SYN001")
    (waits,) = [evidence for evidence in finding.evidence if evidence.label == "waits"]

    assert waits.note == "each, as recorded, mostly for work from before the step"


def _copies(idle: int, *, busy: int) -> Finding:
    """Return the finding of a copy that takes this long, as the GPU idles and works."""
    before, copy = f"[aten::mm {' ' * 12}]", f"[aten::copy_{' ' * (idle + busy)}]"
    launch = f"{' ' * len(before)}[cudaMemcpyAsync>2][cudaStreamSynchronize"
    gemm = f"[gemm<1{' ' * busy}]{' ' * idle}[Memcpy HtoD (Pageable -> Device)<2]"
    length = len(before) + len(copy) + 60
    (finding,) = priced_findings(
        f"""
        host   [ProfilerStep#1{" " * length}]
        host   {before}{copy}{" " * 40}[aten::add]
        host   [cuLaunch>1]
        host   {launch.ljust(len(before + copy) - 2)}]{" " * 42}[cuLaunch>3]
        gpu 7              {gemm}{" " * 45}[add<3]
        """,
        "SYN001",
    )
    return finding


def test_a_wait_while_the_gpu_idles_is_worth_nothing() -> None:
    idle, busy = _copies(150, busy=10), _copies(5, busy=155)

    assert idle.saves_ns == 0
    assert idle.gpu_idle_ns == 0
    assert "nothing to wait for" in str(idle.evidence)
    assert busy.saves_ns > 0
    assert "nothing to wait for" not in str(busy.evidence)


def _reads_of_a_loop(*idle: int) -> Finding:
    """Return the finding of `.item()` at one line: the GPU idles this long in each."""
    op, wait, inner, gpu = "", "", "", ""
    for at, time in enumerate(idle, 1):
        launch = f"[cudaLaunchKernel>{at}]"
        op += f"{launch}[aten::item{' ' * (time + 30)}]  "
        start, inside = " " * len(wait + launch), " " * (time + 14)
        wait += f"{' ' * (len(launch) + 1)}[aten::_local_scalar_dense{inside}]   "
        inner += (
            f"{' ' * (len(launch) + 2)}[cudaStreamSynchronize{' ' * (time + 16)}]    "
        )
        gpu += f"{' ' * (len(start) - len(gpu) + time + 10)}[gemm<{at}         ]"
        op, wait, inner = (line.ljust(len(op)) for line in (op, wait, inner))
    (finding,) = priced_findings(
        f"""
        host   [ProfilerStep#1{" " * len(op)}]
        host   [train.py(3): train{" " * len(op)}]
        host     {op}
        host     {wait}
        host     {inner}
        gpu 7    {gpu}
        """,
        "SYN001",
    )
    return finding


def test_a_read_that_waited_on_an_idle_gpu_once_is_worth_nothing() -> None:
    usual, once = _reads_of_a_loop(0, 0, 0), _reads_of_a_loop(0, 400, 0)

    assert usual.saves_ns > 0
    assert once.saves_ns == 0


def test_two_results_that_are_copied_in_a_row_take_one_copy() -> None:
    (two,) = drawn_findings(_reads(2), "SYN001")
    (finding,) = drawn_findings(_reads(2, "aten::mm"), "SYN001")

    assert "torch.cat" in two.advice
    assert "torch.cat" not in finding.advice
    assert "if it is only logged" in finding.advice


def test_to_save_less_often_removes_all_that_saving_does() -> None:
    spans = {
        "host ": [(0, 200, "ProfilerStep#1")],
        "host  ": [(20, 120, "torch/serialization.py(900): save")],
        "host   ": [(30, 60, "torch/storage.py(9): cpu")],
        "host    ": [(31, 50, "aten::copy_"), (160, 20, "aten::mm")],
        "host     ": [
            (2, 14, "cudaLaunch>1"),
            (34, 40, "cudaStreamSynchronize"),
            (162, 14, "cudaLaunch>3"),
        ],
        "gpu 7": [(10, 60, "gemm<1"), (180, 9, "gemm<3")],
    }

    (finding,) = priced_findings(placed(spans, 200), "SYN001")

    assert says(finding, "saving tensors of the GPU")
    assert finding.host_ns == 120_000
