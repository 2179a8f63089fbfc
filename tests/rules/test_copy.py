"""CPY: copies by their cause, on real traces and on calls that are drawn."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import pytest
from linting import (
    bundled_rules,
    case_findings,
    drawn_findings,
    mentions,
    outcome,
    priced_findings,
    says,
)
from recordings import ROOT, loaded, saved_ns

from traceq.linter import View, inputs
from traceq.model.recording import Recording
from traceq.model.run import Rank
from traceq.testing import load_drawn

if TYPE_CHECKING:
    from traceq.linter import Finding

HALF, FLOAT, INT8 = "c10::BFloat16", "float", "signed char"


def test_the_findings_of_needless_copies_explain_most_of_what_they_cost() -> None:
    findings = case_findings("copies.trace.json.gz", "CPY", measured=True)

    together = sum(finding.saves_ns for finding in findings)
    saved = saved_ns("copies", "copies_fixed")
    # The rest is elementwise work on tensors that are 16-bit in the repaired program.
    assert 0.75 * saved < together < saved


@pytest.mark.parametrize(
    ("code", "line", "subject", "count"),
    [
        ("CPY002", 137, "bfloat16 float32", 5),
        ("CPY003", 154, "to the GPU", 1),
        ("CPY005", 137, "undone aten::contiguous", 6),
        ("CPY005", 137, "clone aten::clone", 6),
        ("CPY006", 137, "weights", 12),
    ],
)
def test_a_needless_copy_is_found_at_its_line(
    code: str, line: int, subject: str, count: int
) -> None:
    findings = case_findings("copies.trace.json.gz", code, measured=True)
    finding = next(item for item in findings if item.subject == subject)

    # Casts of weights, once a step, stay: only those of gradients become faster.
    assert finding.severity.value == ("info" if code == "CPY006" else "warning")
    assert (finding.place.file, finding.place.line) == ("dev_cases.py", line)
    assert finding.count == count


def test_of_copies_that_are_needed_the_batch_could_be_sent_ahead() -> None:
    findings = case_findings("copies_fixed.trace.json.gz", "CPY", measured=True)
    finding = next(item for item in findings if item.code == "CPY001")

    assert [item.code for item in findings] == ["CPY007", "CPY001"]
    assert finding.severity.value == "info"
    assert finding.data["needed"] == pytest.approx(0.215, abs=0.001)


@pytest.mark.parametrize(
    "case", ["attn_flash", "norm_fused", "moe_batched", "graph_replay", "vocab_padded"]
)
def test_programs_that_copy_little_have_no_finding(case: str) -> None:
    assert not case_findings(f"{case}.trace.json.gz", "CPY")


def test_all_parts_of_the_copies_add_up_to_their_share() -> None:
    (finding,) = case_findings("layernorm_autocast.trace.json.gz", "CPY001")

    parts = finding.data["parts"]
    assert isinstance(parts, dict)
    assert set(parts) == {"loss", "backward", "weights", "autocast"}
    # 19.2% of 11.96 ms
    assert sum(map(int, parts.values())) == pytest.approx(2.294e6, rel=0.001)  # type: ignore[arg-type]  # numbers, in Json


def test_weights_that_are_cast_for_each_micro_batch_are_counted_once() -> None:
    linear = inputs([[32, 64], [128, 64]], [HALF, FLOAT])
    cast = inputs([[128, 64], [128, 64], []], [HALF, FLOAT, "Scalar"])
    (finding,) = drawn_findings(
        """
        host  [ProfilerStep#1                                                    ]
        host   [nn.Module: Linear_0        ] [nn.Module: Linear_0               ]
        host    [aten::linear             ]   [aten::linear                    ]
        host     [aten::to               ]     [aten::to               ]
        host      [aten::copy_          ]       [aten::copy_          ]
        host       [cudaLaunchKernel>1]          [cudaLaunchKernel>2]
        host 2                                                   [AddmmBackward0]
        gpu 7             [bfloat16_copy_kernel_cuda<1][bfloat16_copy_kernel_cuda<2]
        """,
        "CPY006",
        args={"aten::linear": linear, "aten::copy_": cast},
    )

    assert mentions(finding, 1, "float32", "bfloat16", "twice")
    assert "one autocast" in finding.advice


_WEIGHTS_OF_A_MODULE = """
    host  [ProfilerStep#1                                                  {step}]
    host   [nn.Module: Attention_0                            ]
    host    [aten::linear             ] [aten::linear        ]
    host     [aten::to               ]   [aten::to          ]
    host      [aten::copy_          ]     [aten::copy_     ]
    host       [cudaLaunchKernel>1]        [cuLaunch>2]
    host 2                                                     {added}
    gpu 7             [bfloat16_copy_kernel_cuda<1][bfloat16_copy_kernel_cuda<2]
"""
_ADDED = "[torch::autograd::AccumulateGrad]"


@pytest.mark.parametrize(("gradients", "weights"), [(2, 2), (1, 1)])
def test_a_module_has_as_many_weights_of_a_shape_as_gradients_are_added_up(
    gradients: int, weights: int
) -> None:
    """``F.linear(x, self.q)`` and ``F.linear(x, self.k)``, or one layer twice."""
    args = {
        "aten::linear": inputs([[32, 64], [128, 64]], [HALF, FLOAT]),
        "aten::copy_": inputs([[128, 64], [128, 64], []], [HALF, FLOAT, "Scalar"]),
        "torch::autograd::AccumulateGrad": inputs([[128, 64]], [FLOAT]),
    }
    drawing = _WEIGHTS_OF_A_MODULE.format(added=_ADDED * gradients, step=" " * 60)

    (finding,) = priced_findings(drawing, "CPY006", args=args)

    assert finding.data["weights"] == weights
    assert ("cache_enabled" in finding.advice) == (weights == 1)
    # Two weights are cast once each; one that is cast twice needs half of its casts.
    assert [fix.kernel_share for fix in finding.fixes] == [0.5] * (weights == 1)


def test_a_cache_that_the_program_turns_off_is_named() -> None:
    source = "with torch.autocast('cuda', cache_enabled=False):\n    loss = model(x)\n"
    args = {
        "aten::linear": inputs([[32, 64], [128, 64]], [HALF, FLOAT]),
        "aten::copy_": inputs([[128, 64], [128, 64], []], [HALF, FLOAT, "Scalar"]),
        "torch::autograd::AccumulateGrad": inputs([[128, 64]], [FLOAT]),
    }
    drawn = load_drawn(_WEIGHTS_OF_A_MODULE.format(added=_ADDED, step=" " * 60), args)
    rank = Rank("", 0, "", None, None, None, (), sources={"train.py": source})
    trace = replace(drawn, rank=rank)

    (finding,) = outcome(Recording("drawn", trace), "CPY006").findings

    assert "leave out cache_enabled=False (train.py:1)" in finding.advice


def _one_forward(
    half: str = HALF, *, then: str = "[aten::mean]"
) -> tuple[Finding, ...]:
    """Lint a linear layer whose weight autocast casts once, and what runs after it."""
    return priced_findings(
        f"""
        host  [ProfilerStep#1                                             ]
        host   [aten::linear             ]
        host    [aten::to               ]
        host     [aten::copy_          ]
        host      [cudaLaunchKernel>1]
        host 2                            {then}
        gpu 7             [float16_copy_kernel_cuda<1]
        """,
        "CPY006",
        args={
            "aten::linear": inputs([[32, 64], [128, 64]], [half, FLOAT]),
            "aten::copy_": inputs([[128, 64], [128, 64], []], [half, FLOAT, "Scalar"]),
        },
    )


@pytest.mark.parametrize("half", [HALF, "c10::Half"])
def test_weights_of_a_program_that_trains_nothing_are_cast_once_for_all_steps(
    half: str,
) -> None:
    (finding,) = _one_forward(half)

    assert mentions(finding, 1, "float32", "once")
    assert "before the loop" in finding.advice
    assert "layer.to(torch." in finding.example
    assert not finding.minor
    assert finding.kernel_ns == 1000 * len("[float16_copy_kernel_cuda<1]")


def test_weights_that_are_trained_and_cast_once_a_step_are_a_minor_finding() -> None:
    (finding,) = _one_forward(then="[AddmmBackward0]")

    assert finding.minor
    assert finding.saves_ns == 0
    assert "compile" not in finding.advice
    assert not finding.example


@pytest.mark.parametrize(("gradient", "share"), [(30, 0.5), (15, 0.0)])
def test_compiled_code_casts_gradients_as_fast_as_weights_and_removes_no_cast(
    gradient: int, share: float
) -> None:
    drawing = f"""
    host  [ProfilerStep#1                                                      ]
    host   [aten::linear          ]
    host    [aten::_to_copy      ]
    host     [aten::copy_       ]
    host      [cuLaunch>1]
    host 2                         [ToCopyBackward0      ]
    host 2                          [aten::_to_copy.back]
    host 2                           [aten::copy_.back ]
    host 2                            [cuLaunch>2]
    gpu 7          [copy_kernel<1]         {"[copy_kernel<2".ljust(gradient - 1)}]
    """
    args = {
        "aten::linear": inputs([[32, 64], [64, 64]], [HALF, FLOAT]),
        "aten::_to_copy": _of_node(7, 0, [64, 64], FLOAT),
        "aten::copy_": inputs([[64, 64]] * 2, [HALF, FLOAT]),
        "ToCopyBackward0": _of_node(7, 1, [64, 64], HALF),
        "aten::copy_.back": inputs([[64, 64]] * 2, [FLOAT, HALF]),
    }

    (finding,) = priced_findings(drawing, "CPY006", args=args)

    assert ("compile the model" in finding.advice) == (share > 0)
    assert finding.kernel_ns == pytest.approx(1000 * gradient * share, abs=1)
    # Never more than the casts of gradients take.
    assert finding.saves_ns <= 1000 * gradient


def _of_node(sequence: int, thread: int, dims: list[int], kind: str) -> dict[str, Any]:
    numbered = {"Sequence number": sequence, "Fwd thread id": thread}
    return inputs([dims, dims], [kind, kind]) | numbered


# A weight [64,4,16] that einsum multiplies by as a view, cast by autocast, and its
# gradient, which is cast back and reaches the weight through views.
_EINSUM = """
    host  [ProfilerStep#1                                                                              ]
    host   [aten::einsum          ]
    host    [aten::bmm           ]
    host     [aten::_to_copy    ]
    host      [aten::copy_     ]
    host       [cuLaunch>1]
    host 2                           [ToCopyBackward0      ][{between}][torch::autograd::AccumulateGrad]
    host 2                            [aten::_to_copy.back]
    host 2                             [aten::copy_.back ]
    host 2                              [cuLaunch>2]
    gpu 7                   [copy_kernel<1]            [copy_kernel<2]
"""  # noqa: E501 - a forward and its backward side by side


def _einsum(grad: list[int]) -> dict[str, Any]:
    return {
        "aten::bmm": inputs([[1, 256, 64], [1, 64, 64]], [FLOAT] * 2),
        "aten::_to_copy": _of_node(7, 0, [1, 64, 64], FLOAT),
        "aten::copy_": inputs([[1, 64, 64]] * 2, [HALF, FLOAT]),
        "ToCopyBackward0": _of_node(7, 1, [1, 64, 64], HALF),
        "aten::copy_.back": inputs([[1, 64, 64]] * 2, [FLOAT, HALF]),
        "torch::autograd::AccumulateGrad": inputs([grad], [FLOAT]),
    }


def test_a_weight_that_is_a_view_when_it_is_cast_is_a_weight() -> None:
    drawing = _EINSUM.format(between="PermuteBackward0")

    (finding,) = drawn_findings(drawing, "CPY006", args=_einsum([64, 4, 16]))

    assert mentions(finding, 1, "float32", "bfloat16", "once")


@pytest.mark.parametrize(
    ("between", "grad"),
    [
        # A matmul in between, and a gradient of another size.
        ("BmmBackward0    ", [64, 4, 16]),
        ("PermuteBackward0", [64, 4, 8]),
    ],
)
def test_an_activation_that_autocast_casts_is_not_a_weight(
    between: str, grad: list[int]
) -> None:
    drawing = _EINSUM.format(between=between)

    assert not drawn_findings(drawing, "CPY006", args=_einsum(grad))


def test_one_autocast_around_micro_batches_saves_casts_of_the_forward_only() -> None:
    drawing = """
    host  [ProfilerStep#1                                                      ]
    host   [nn.Module: Linear_0   ][nn.Module: Linear_0   ]
    host   [aten::linear          ][aten::linear          ]
    host    [aten::_to_copy      ]  [aten::_to_copy      ]
    host     [aten::copy_       ]    [aten::copy_       ]
    host      [cuLaunch>1]            [cuLaunch>2]
    host 2                                                 [ToCopyBackward0      ]
    host 2                                                  [aten::_to_copy.back]
    host 2                                                   [aten::copy_.back ]
    host 2                                                    [cuLaunch>3]
    gpu 7          [copy_kernel<1]        [copy_kernel<2]         [copy_kernel<3]
    """
    args = {
        "aten::linear": inputs([[32, 64], [64, 64]], [HALF, FLOAT]),
        "aten::_to_copy": _of_node(7, 0, [64, 64], FLOAT),
        "aten::copy_": inputs([[64, 64]] * 2, [HALF, FLOAT]),
        "ToCopyBackward0": _of_node(7, 1, [64, 64], HALF),
        "aten::copy_.back": inputs([[64, 64]] * 2, [FLOAT, HALF]),
    }

    (finding,) = priced_findings(drawing, "CPY006", args=args)

    assert "one autocast" in finding.advice
    assert finding.kernel_ns == 1000 * len("[copy_kernel<1]")
    assert finding.host_ns == 1000 * len("[aten::_to_copy      ]")


@pytest.mark.parametrize("half", [HALF, "c10::Half"])
def test_autocast_does_not_cache_a_weight_that_is_a_view_when_it_is_cast(
    half: str,
) -> None:
    lines = _EINSUM.format(between="PermuteBackward0").splitlines()
    # The second micro-batch is the first one again, in the same step.
    width = len("[ProfilerStep#1") + 80
    again = [
        line[:10] + (line[10:].ljust(width) + line[10:].translate({49: "3", 50: "4"}))
        if at > 1
        else line.replace("]", " " * width + "]")
        for at, line in enumerate(lines)
    ]
    module = "    host   [nn.Module: Einsum_0  ]"
    again.insert(2, module + " " * (10 + width - len(module)) + module[10:])

    args = {
        name: {**of, "Input type": [half if item == HALF else item for item in types]}
        for name, of in _einsum([64, 4, 16]).items()
        for types in [of["Input type"]]
    }
    (finding,) = drawn_findings("\n".join(again), "CPY006", args=args)

    assert mentions(finding, "twice")
    assert "one autocast" not in finding.advice
    # One cast of each weight stays, in the optimizer.
    assert "float32 copies" in finding.advice
    assert [fix.kernel_share for fix in finding.fixes] == [0.5]
    # GradScaler refuses gradients in float16.
    assert "weights in float16" not in finding.advice
    assert ("GradScaler" in finding.advice) == (half != HALF)


def test_a_pageable_copy_that_runs_beside_kernels_costs_the_gpu_nothing() -> None:
    drawing = """
        host  [ProfilerStep#1                                                        ]
        host   [aten::copy_                           ]
        host    [cudaMemcpyAsync>1                   ]
        host                                            [cuLaunchKernel>2]
        gpu 9       [Memcpy HtoD (Pageable -> Device)<1]
        gpu 7   [gemm<2                                              ]
    """
    args = {"Memcpy HtoD (Pageable -> Device)": {"bytes": 65536}}
    (hidden,) = priced_findings(drawing, "CPY003", args=args)
    (alone,) = priced_findings(
        "\n".join(drawing.splitlines()[:-2]), "CPY003", args=args
    )

    assert hidden.gpu_ns == 0 < alone.gpu_ns
    labels = [[line.label for line in finding.evidence] for finding in (hidden, alone)]
    assert labels == [["kernel", "rate"], ["kernel", "rate", "pinned", "saved"]]


@pytest.mark.parametrize(
    ("copy", "example"),
    [
        ("HtoD (Pageable -> Device)", 'x = x.to("cuda", non_blocking=True)'),
        ("DtoH (Device -> Pageable)", "buffer.copy_(y, non_blocking=True)"),
    ],
)
def test_the_example_of_a_pageable_copy_is_of_its_direction(
    copy: str, example: str
) -> None:
    (finding,) = drawn_findings(
        f"""
        host  [ProfilerStep#1                            ]
        host   [aten::copy_                             ]
        host    [cudaMemcpyAsync>1                     ]
        gpu 7       [Memcpy {copy}<1]
        """,
        "CPY003",
        args={f"Memcpy {copy}": {"bytes": 65536}},
    )

    assert f"+ {example}" in finding.example.splitlines()


def test_a_checkpoint_is_to_be_saved_less_often_not_read_through_a_buffer() -> None:
    copy = "Memcpy DtoH (Device -> Pageable)"
    (finding,) = drawn_findings(
        f"""
        host  [ProfilerStep#1                                      ]
        host   [train.py(3): main                                 ]
        host    [torch/storage.py(261): cpu                      ]
        host     [aten::copy_                                   ]
        host      [cudaMemcpyAsync>1                           ]
        gpu 7       [{copy}<1]
        """,
        "CPY003",
        args={copy: {"bytes": 65536}},
    )

    assert "save less often" in finding.advice
    assert not finding.example


def _read(*, kernel: int, copy: int, size: int) -> tuple[str, dict[str, Any]]:
    """Draw a tensor that is copied to the host behind a kernel, all of some length."""
    name, host = "Memcpy DtoH (Device -> Pageable)", kernel + copy
    drawing = f"""
        host  [ProfilerStep#1{" " * (host + 60)}]
        host   [aten::mm           ][aten::copy_{" " * host}] [aten::add         ]
        host    [cudaLaunchKernel>1] [cudaMemcpyAsync>2{" " * (host - 8)}]
        host   {" " * (host + 35)}[cudaLaunchKernel>3]
        gpu 7                {"[gemm<1".ljust(kernel)}]{f"[{name}<2".ljust(copy)}]
        gpu 7  {" " * (host + 50)}[add<3    ]
    """
    return drawing, {name: {"bytes": size}}


def test_a_wait_for_the_gpu_is_not_reported_as_its_copy_too() -> None:
    # As fast as pinned memory: what makes the host wait is what the GPU did before.
    drawing, args = _read(kernel=60, copy=40, size=1_640_000)

    (finding,) = drawn_findings(drawing, "SYN001", args=args)
    assert says(finding, "`.cpu()`", "once a step")
    assert not drawn_findings(drawing, "CPY003", args=args)


def test_of_a_wait_that_is_reported_pinning_saves_what_the_copy_takes_longer() -> None:
    drawing, args = _read(kernel=60, copy=40, size=65_536)

    assert priced_findings(drawing, "SYN001", args=args)
    (finding,) = priced_findings(drawing, "CPY003", args=args)
    assert finding.host_ns == 0
    # It takes 41 µs, and 6.6 into pinned memory, on a GPU that is not known.
    assert finding.gpu_ns == pytest.approx(34_400, abs=100)


def test_a_wait_for_the_copy_alone_is_not_reported_as_a_wait_too() -> None:
    drawing, args = _read(kernel=2, copy=98, size=65_536)

    (finding,) = priced_findings(drawing, "CPY003", args=args)
    assert finding.data["direction"] == "to the host"
    assert finding.host_ns > 0
    assert not priced_findings(drawing, "SYN001", args=args)


def test_a_small_pageable_copy_is_not_worth_pinning() -> None:
    assert not drawn_findings(
        """
        host  [ProfilerStep#1                            ]
        host   [aten::copy_                             ]
        host    [cudaMemcpyAsync>1                     ]
        gpu 7       [Memcpy HtoD (Pageable -> Device)<1]
        """,
        "CPY003",
        args={"Memcpy HtoD (Pageable -> Device)": {"bytes": 65535}},
    )


CONV = ("[aten::conv1d   ]", "[cuLaunch>2]", "[fprop<2]")
LAYOUT = """
    host  [ProfilerStep#1                                                      ]
    host   [model.py(7): forward                                              ]
    host    [aten::contiguous     ] [aten::conv1d   ] [aten::contiguous      ]
    host     [aten::clone        ]                     [aten::clone         ]
    host      [aten::copy_      ]                       [aten::copy_.back  ]
    host       [cuLaunch>1]          [cuLaunch>2]        [cuLaunch>3]
    gpu 7             [copy_kernel<1] [fprop<2]                    [copy_kernel<3]
"""


def without_conv() -> str:
    drawing = LAYOUT
    for span in CONV:
        drawing = drawing.replace(span, " " * len(span))
    return drawing


THERE = inputs([[8, 4], [8, 4], []], [FLOAT] * 2, [[4, 1], [1, 8], []])
BACK = inputs([[4, 8], [4, 8], []], [FLOAT] * 2, [[8, 1], [1, 4], []])


def test_a_layout_that_is_copied_back_at_once_is_found() -> None:
    args = {"aten::copy_": THERE, "aten::copy_.back": BACK}
    (finding,) = drawn_findings(without_conv(), "CPY005", args=args)

    assert finding.subject == "undone aten::contiguous"


def test_a_layout_that_a_kernel_uses_before_it_is_copied_back_is_not_reported() -> None:
    args = {"aten::copy_": THERE, "aten::copy_.back": BACK}

    assert not drawn_findings(LAYOUT, "CPY005", args=args)


def test_a_second_copy_into_yet_another_layout_undoes_nothing() -> None:
    other = inputs([[2, 16], [2, 16], []], [FLOAT] * 2, [[16, 1], [1, 2], []])
    args = {"aten::copy_": THERE, "aten::copy_.back": other}

    assert not drawn_findings(without_conv(), "CPY005", args=args)


@pytest.mark.parametrize(
    "copied",
    [
        # The last of 25 tokens, cloned, and then that of another tensor.
        inputs([[1, 1], [1, 1], []], [FLOAT] * 2, [[1, 1], [25, 1], []]),
        inputs([[1, 1], [1, 1], []], [FLOAT] * 2, [[1, 1], [1, 25], []]),
        inputs([[8, 8], [8, 8], []], [FLOAT] * 2, [[8, 1], [1, 8], []]),
    ],
)
def test_two_copies_that_read_the_same_both_ways_may_be_of_two_tensors(
    copied: dict[str, Any],
) -> None:
    args = {"aten::copy_": copied, "aten::copy_.back": copied}

    assert not drawn_findings(without_conv(), "CPY005", args=args)


def slice_loop(positions: list[int]) -> tuple[str, dict[str, dict[str, Any]]]:
    """Draw a loop that writes slices, and the backward pass of one of them."""
    width, lanes = 40, {"op": "", "call": "", "gpu": "   "}
    args = {"aten::copy_": inputs([[8, 64], [8, 64]], [FLOAT] * 2)}
    for number, at in enumerate(positions, 1):
        lanes["op"] += f"[aten::select.s{number}] [aten::copy_       ]".ljust(width)
        lanes["call"] += f"{' ' * 20}[cuLaunch>{number}]".ljust(width)
        lanes["gpu"] += f"{' ' * 20}[kernel<{number}]".ljust(width)
        args[f"aten::select.s{number}"] = inputs(
            [[8, 16, 64], [], []],
            [FLOAT, "Scalar", "Scalar"],
            values=["", "1", str(at)],
        )
    args["torch::autograd::CopySlices"] = inputs([[8, 16, 64]], [FLOAT])
    far = " " * len(lanes["op"])
    return (
        f"""
        host  [ProfilerStep#1{far}                                ]
        host   {lanes["op"]}
        host   {lanes["call"]}
        host   {far} [torch::autograd::CopySlices]
        host   {far}  [cuLaunch>99]
        gpu 7  {lanes["gpu"]}
        gpu 7  {far}          [kernel<99          ]
        """,
        args,
    )


def test_a_loop_over_slices_pays_for_its_backward_too() -> None:
    drawing, args = slice_loop([0, 1, 2, 3, 4])
    (finding,) = priced_findings(drawing, "CPY004", args=args)

    assert mentions(finding, "[8,16,64]", 5, "dimension 1")
    assert finding.count == 5
    # Five kernels of 10 µs and one of 21; what remains is unknown without the GPU.
    assert finding.gpu_ns == 5 * 10_000 + 21_000


def test_slices_in_host_memory_are_said_to_be_on_the_cpu() -> None:
    drawing, args = slice_loop([0, 1, 2, 3, 4])
    on_cpu = re.sub(r"\[(cuLaunch>|kernel<)\d\d? *\]", "", drawing)
    gpu = "\n        gpu 7   [gemm]"
    (finding,) = drawn_findings(on_cpu + gpu, "CPY004", args=args)

    assert mentions(finding, 5, "dimension 1", "CPU")
    assert not {"forward", "backward"} & {
        evidence.label for evidence in finding.evidence
    }


def test_slices_that_an_op_fills_itself_are_not_the_programs() -> None:
    drawing, args = slice_loop([0, 1, 2, 3, 4])
    lines = drawing.splitlines()
    end = lines[1].index(" ]") - len("                        ")
    lines.insert(2, f"{' ' * 8}host  [aten::_pad_packed_sequence".ljust(end) + "]")

    assert not drawn_findings("\n".join(lines), "CPY004", args=args)


def _padding(lengths: list[int], step: int = 1) -> tuple[str, dict[str, Any]]:
    """Draw ``out[i, :n] = x[s:s+n]`` for rows of these lengths."""
    args: dict[str, Any] = {}
    lanes = {"op": "", "call": "", "gpu": "   "}
    width = len("[aten::slice.s0][aten::select.s0][aten::slice.t0][aten::copy_.s0]") + 5
    kinds = [FLOAT, "Scalar", "Scalar", "Scalar"]
    for row, length in enumerate(lengths):
        name = f"{'abc'[step]}{row}"
        cut = f"[aten::slice.s{name}][aten::select.s{name}][aten::slice.t{name}]"
        lanes["op"] += f"{cut}[aten::copy_.s{name}]".ljust(width + 4)
        launch = f"[cuLaunch>{step * 100 + row}]"
        lanes["call"] += (" " * (len(cut) + 1) + launch).ljust(width + 4)
        kernel = f"[k<{step * 100 + row}]"
        lanes["gpu"] += (" " * (len(cut) + 1) + kernel).ljust(width + 4)
        packed = [[sum(lengths), 64], [], [], []]
        args |= {
            f"aten::slice.s{name}": inputs(packed, kinds, values=["", "0", "0", "9"]),
            f"aten::select.s{name}": inputs(
                [[8, 16, 64], [], []], kinds[:3], values=["", "0", str(row)]
            ),
            f"aten::slice.t{name}": inputs(
                [[16, 64], [], [], []], kinds, values=["", "0", "0", str(length)]
            ),
            f"aten::copy_.s{name}": inputs([[length, 64]] * 2, [FLOAT] * 2),
        }
    drawing = f"""
        host  [ProfilerStep#{step}{" " * len(lanes["op"])}]
        host   {lanes["op"]}
        host   {lanes["call"]}
        gpu 7  {lanes["gpu"]}
        """
    return drawing, args


def test_rows_of_different_length_are_slices_of_one_tensor() -> None:
    # Two rows are equally long; they are two rows all the same.
    drawing, args = _padding([3, 5, 5, 7, 9])

    (finding,) = priced_findings(drawing, "CPY004", args=args)

    assert mentions(finding, "[8,16,64]", 5, "dimension 0")
    assert "pad_sequence" in finding.advice
    # The host cuts and writes for 66 µs in each iteration; joining takes one of them.
    assert finding.host_ns == pytest.approx(4 * 70_000, rel=0.1)


def test_a_tensor_of_another_size_in_every_step_is_one_finding() -> None:
    numbers, height = range(4), [40, 50]
    kinds = [FLOAT, "Scalar", "Scalar", "Scalar"]
    args = {}
    lines = {"step": "", "op": "", "call": "", "gpu": "  "}
    for step, rows in enumerate(height):
        ops = "".join(f"[aten::slice.{step}{n}][aten::copy_        ]" for n in numbers)
        lines["step"] += f"[ProfilerStep#{step}".ljust(len(ops)) + "]"
        lines["op"] += " " + ops
        part = len(ops) // len(height) // 2
        for n in numbers:
            number = 10 * step + n + 1
            cut = len(f"[aten::slice.{step}{n}]")
            lines["call"] += (" " * cut + f"  [cuLaunch>{number}]").ljust(2 * part)
            lines["gpu"] += (" " * cut + f"  [kernel<{number}]").ljust(2 * part)
            values = ["", "0", str(7 * n), str(7 * n + n + 1)]
            args[f"aten::slice.{step}{n}"] = inputs(
                [[rows, 64], [], [], []], kinds, values=values
            )
    args["aten::copy_"] = inputs([[8, 64], [8, 64]], [FLOAT] * 2)
    drawing = "\n".join(
        f"{'gpu 7 ' if name == 'gpu' else 'host  '}{line}"
        for name, line in lines.items()
    )

    (finding,) = drawn_findings(drawing, "CPY004", args=args)

    assert finding.count == 4


def test_tensors_that_are_filled_to_different_lengths_are_many() -> None:
    drawing, args = _padding([3, 5, 7, 9])
    # Not a row of the tensor that was selected before.
    args = {
        name: one
        if not name.startswith("aten::select")
        else inputs([[8, 99], [], []], [FLOAT] * 3, values=["", "0", "0"])
        for name, one in args.items()
    }

    (finding,) = drawn_findings(drawing, "CPY004", args=args)

    assert mentions(finding, 4, "[16,64]", "dimension 0")


def test_one_position_in_many_tensors_is_not_a_loop_over_slices() -> None:
    drawing, args = slice_loop([7, 7, 7, 7, 7])

    assert not drawn_findings(drawing, "CPY004", args=args)


def _gradients(positions: list[int], *around: str) -> tuple[Finding, ...]:
    """Lint a backward pass that fills a whole gradient for each of these slices.

    They were cut in the forward pass, inside of the ops around.
    """
    node = "[autograd::engine::evaluate_function: SelectBackward0 ]"
    numbers = range(1, len(positions) + 1)
    width, cut = len(node), "[aten::select.{n}]"

    def row(part: str, width: int = width) -> str:
        return "".join(part.format(n=n).ljust(width) for n in numbers).rstrip()

    cuts = row(cut, len(cut))
    forward = 100
    later = " " * forward
    drawing = "\n".join(
        (
            f"host  [ProfilerStep#1{later}{' ' * (width * len(positions))}]",
            *(f"host   [{name.ljust(len(cuts))}]" for name in around),
            f"host    {cuts}",
            f"host 2 {later}" + node * len(positions),
            f"host 2 {later} " + row("[aten::select_backward.{n}            ]"),
            f"host 2 {later}  " + row("[cuLaunchKernel>{n}]"),
            f"gpu 7  {later}     " + row("[FillFunctor<{n}                   ]"),
        )
    )
    types = [HALF, "ScalarList", "Scalar", "Scalar"]
    shapes: list[list[int]] = [[64, 128], [], [], []]
    args: dict[str, dict[str, Any]] = {}
    for n, at in zip(numbers, positions, strict=True):
        values = ["", "[4, 64, 128]", "0", str(at)]
        args[f"aten::select_backward.{n}"] = {
            **inputs(shapes, types, values=values),
            "Sequence number": n,
            "Fwd thread id": 1,
        }
        args[f"aten::select.{n}"] = {"Sequence number": n, "Fwd thread id": 0}
    return drawn_findings(drawing, "CPY004", args=args)


@pytest.mark.parametrize(
    "around", [(), ("aten::narrow",), ("aten::tensor_split",), ("CheckpointFunction",)]
)
def test_a_gradient_that_is_materialised_slice_by_slice_is_found(
    around: tuple[str, ...],
) -> None:
    (finding,) = _gradients([0, 1, 2, 3], *around)

    assert mentions(finding, "[4,64,128]", 4, "dimension 0")
    assert "unbind(0)" in finding.advice


def test_the_same_slice_of_many_tensors_is_not_a_loop_in_the_backward_either() -> None:
    assert not _gradients([2, 2, 2, 2])


@pytest.mark.parametrize(
    "around", [("aten::_pad_packed_sequence",), ("CatBackward0", "aten::narrow")]
)
def test_slices_that_an_op_cuts_itself_are_not_the_programs(
    around: tuple[str, ...],
) -> None:
    # As pad_packed_sequence: nobody can write them otherwise.
    assert not _gradients([0, 1, 2, 3], *around)


def test_a_cast_inside_an_op_is_not_called_autocasts() -> None:
    # softmax(x, dtype=torch.float32) casts as well, in a program without autocast.
    (finding,) = drawn_findings(
        """
        host  [ProfilerStep#1                                 ]
        host   [aten::softmax                                ]
        host    [aten::to                 ]
        host     [aten::copy_            ]
        host      [cudaLaunchKernel>1    ]
        gpu 7                         [direct_copy_kernel_cuda<1]
        """,
        "CPY001",
        args={"aten::copy_": inputs([[64, 64]] * 2, [FLOAT, HALF])},
    )

    assert "casts inside other ops" in finding.message
    assert "by autocast" not in finding.message


def _round_trip(
    op: str, given: dict[str, Any], wide: str = FLOAT
) -> tuple[Finding, ...]:
    """Lint a cast to float32, or another dtype, and back with one op in between."""
    both = [[8, 64], [8, 64], []]
    return drawn_findings(
        f"""
        host  [ProfilerStep#1                                               ]
        host   [model.py(7): forward                                       ]
        host    [aten::to             ] [{op:<13}] [aten::to         ]
        host     [aten::_to_copy     ]                   [aten::_to_copy ]
        host      [aten::copy_      ]                     [aten::copy_.x]
        host       [cudaLaunchKern>1]                      [cudaLaunch>2]
        gpu 7                       [direct_copy_kernel<1] [copy_kernel<2]
        """,
        "CPY002",
        args={
            "aten::copy_": inputs(both, [wide, HALF, "Scalar"]),
            "aten::copy_.x": inputs(both, [HALF, wide, "Scalar"]),
            op: given,
        },
    )


def test_a_multiplication_by_a_number_needs_no_cast() -> None:
    assert _round_trip("aten::mul", inputs([[8, 64], []], [FLOAT, "double"]))


@pytest.mark.parametrize("stored", [INT8, "c10::Float8_e4m3fn", "long int"])
def test_a_cast_that_rounds_is_no_round_trip(stored: str) -> None:
    given = inputs([[8, 64], []], [stored, "double"])

    assert not _round_trip("aten::mul", given, stored)


def test_rotary_embeddings_with_float32_angles_have_a_reason_to_cast() -> None:
    assert not _round_trip("aten::mul", inputs([[8, 64], [64]], [FLOAT, FLOAT]))


def test_parts_of_a_tensor_that_meet_float32_angles_have_a_reason_to_cast() -> None:
    halves = inputs([[8, 32], [1, 32]], [FLOAT, FLOAT])

    assert not _round_trip("aten::mul", halves)


def test_the_example_of_a_round_trip_is_of_who_casts_back() -> None:
    (by_program,) = _round_trip("aten::mul", inputs([[8, 64], []], [FLOAT, "double"]))
    by_autocast = next(
        finding
        for finding in case_findings("copies.trace.json.gz", "CPY002")
        if "autocast" in finding.advice
    )

    assert ".to(x.dtype)" in by_program.example
    assert "self.linear(" in by_autocast.example


def test_a_float32_matmul_has_a_reason_to_cast() -> None:
    assert not _round_trip("aten::linear", inputs([[8, 64], [64, 64]], [FLOAT] * 2))


@pytest.mark.parametrize(("dims", "findings"), [([8, 64], 0), ([4, 4], 1)])
def test_a_clone_that_a_called_function_writes_to_is_needed(
    dims: list[int], findings: int
) -> None:
    both = [[8, 64], [8, 64], []]
    result = drawn_findings(
        """
        host  [ProfilerStep#1                                                 ]
        host   [model.py(7): forward                                         ]
        host    [aten::clone          ] [model.py(3): halve                 ]
        host     [aten::copy_        ]   [aten::mul_                       ]
        host      [cudaMemcpyAsync>2]
        gpu 7            [Memcpy DtoD (Device -> Device)<2]
        """,
        "CPY005",
        args={
            "aten::copy_": inputs(
                both, [FLOAT, FLOAT, "Scalar"], [[64, 1], [64, 1], []]
            ),
            "aten::mul_": inputs([dims, []], [FLOAT, "double"]),
        },
    )

    assert len(result) == findings


UPCAST, SAME = (FLOAT, HALF), (FLOAT, FLOAT)
OWN, OPTIMIZER = "model.py(3): forward", "Optimizer.step#Adam.step"
PAGEABLE, PINNED = "Pageable -> Device", "Pinned -> Device"


@pytest.mark.parametrize(
    ("around", "requested", "kernel", "types", "part"),
    [
        (OPTIMIZER, "aten::to", "copy_kernel", UPCAST, "optimizer"),
        (OPTIMIZER, "aten::to", f"Memcpy HtoD ({PAGEABLE})", SAME, "optimizer"),
        (OWN, "aten::to", f"Memcpy HtoD ({PAGEABLE})", SAME, "pageable"),
        (OWN, "aten::to", f"Memcpy HtoD ({PINNED})", SAME, "transfer"),
        (OWN, "aten::to", "CopyHostToDevice", SAME, "transfer"),
        ("aten::conv2d", "aten::to", "nchwToNhwcKernel", UPCAST, "conv layout"),
        ("aten::linear", "aten::to", "copy_kernel", (HALF, FLOAT), "weights"),
        ("aten::linear", "aten::to", "copy_kernel", UPCAST, "autocast"),
        ("aten::cross_entropy_loss", "aten::to", "copy_kernel", UPCAST, "loss"),
        (OWN, "aten::to", "copy_kernel", UPCAST, "cast"),
        (OWN, "aten::to", "copy_kernel", (HALF, INT8), "cast"),
        (OWN, "aten::to", "copy_kernel", (FLOAT, "bool"), "cast"),
        (OWN, "aten::copy_", "copy_kernel", ("int", "long int"), "cast"),
        ("aten::sum", "aten::to", "copy_kernel", ("long int", "bool"), "autocast"),
        ("aten::nll_loss", "aten::to", "copy_kernel", (FLOAT, "int"), "autocast"),
        (OWN, "aten::cat", "copy_kernel", SAME, "join"),
        (OWN, "aten::contiguous", "copy_kernel", SAME, "layout"),
        ("aten::matmul", "aten::contiguous", "copy_kernel", SAME, "inside"),
    ],
)
def test_a_copy_belongs_to_the_first_part_that_holds(
    around: str, requested: str, kernel: str, types: tuple[str, str], part: str
) -> None:
    trace = load_drawn(
        f"""
        host  [ProfilerStep#1                                                   ]
        host   [{around:<40}]
        host    [{requested:<30}]
        host     [aten::copy_                  ]
        host      [cudaLaunchKernel>1]
        gpu 7              [{kernel + "<1":<40}]
        """,
        {
            "aten::copy_": inputs([[8, 64], [8, 64]], types),
            "aten::linear": inputs([[32, 64], [8, 64]], [HALF, FLOAT]),
        },
    )

    assert View(trace).copies["part"].to_list() == [part]


def _sent(copy: str, kernel: str, stream: int = 7) -> tuple[Finding, ...]:
    """Lint a batch that goes to the GPU, and a kernel beside or after it."""
    name = "Memcpy HtoD (Pinned -> Device)"
    return priced_findings(
        f"""
        host   [ProfilerStep#1                                                        ]
        host    [aten::mm           ] [aten::to            ]
        host     [cudaLaunchKernel>2]  [aten::copy_       ]
        host                            [cudaMemcpyAsync>1]
        gpu 7  {kernel}
        gpu {stream:<2} {copy}
        """,
        "CPY007",
        args={
            "aten::copy_": inputs([[512, 1024]] * 2, [FLOAT, FLOAT]),
            name: {"bytes": 2 << 20},
        },
    )


BATCH = "[Memcpy HtoD (Pinned -> Device)<1]"


def test_of_a_copy_that_kernels_cover_in_part_only_the_rest_is_exposed() -> None:
    (whole,) = _sent(" " * 30 + BATCH, "         [gemm<2            ]")
    (part,) = _sent(" " * 30 + BATCH, "         [gemm<2                            ]")

    assert 0 < part.kernel_ns < whole.kernel_ns


def test_a_copy_on_a_stream_of_its_own_is_sent_ahead_already() -> None:
    assert not _sent(" " * 30 + BATCH, "         [gemm<2            ]", stream=20)


def test_a_copy_hides_behind_kernels_only_as_long_as_they_run() -> None:
    (finding,) = _sent(" " * 30 + BATCH, "         [gemm<2 ]")

    gemm, batch = len("[gemm<2 ]"), len(BATCH)
    removed = finding.kernel_ns / (finding.evidence[-1].value or 0)
    assert removed == pytest.approx(gemm / batch, rel=0.1)


_STORED = """
    host  [ProfilerStep#1                                                           ]
    host   [model.py(7): forward                                                   ]
    host    [aten::to            ] [aten::mul            ] [aten::linear         ]
    host     [aten::_to_copy    ]
    host      [aten::copy_     ]
    host       [cuLaunchKern>1]     [cuLaunchKernel>2   ]   [cuLaunchKernel>3   ]
    gpu 7           [direct_copy_kernel<1][mul_kernel<2     ]    [gemm<3 ]
"""


def _stored(
    cast: list[int], given: list[list[int]], kind: str = INT8
) -> tuple[str, Finding]:
    """Return the part of a cast to 16 bits before a matmul, and what is found."""
    args = {
        "aten::copy_": inputs([cast, cast], [HALF, kind]),
        "aten::mul": inputs([cast, [cast[0], 1]], [HALF, HALF]),
        "aten::linear": inputs(given, [HALF, HALF]),
    }
    (part,) = View(load_drawn(_STORED, args)).copies["part"].to_list()
    (finding,) = priced_findings(_STORED, "CPY001", args=args)
    return part, finding


@pytest.mark.parametrize("kind", [INT8, "unsigned char", "c10::Float8_e4m3fn"])
def test_weights_that_are_stored_in_8_bits_are_better_dequantized_once(
    kind: str,
) -> None:
    part, finding = _stored([96, 64], [[8, 64], [96, 64]], kind)

    assert part == "dequantized"
    assert mentions(finding, "8 bits")
    assert "contiguous" not in finding.advice
    assert "dequantize them once" in finding.advice
    # What scales them goes with the cast.
    assert finding.kernel_ns == 1000 * (
        len("[direct_copy_kernel<1]") + len("[mul_kernel<2     ]")
    )


def test_weights_that_are_stored_in_groups_are_weights() -> None:
    assert _stored([96, 4, 16], [[8, 64], [96, 64]])[0] == "dequantized"


@pytest.mark.parametrize(
    ("cast", "argument", "kind"),
    [
        # A batch, one that is as large as the weight, and weights of 16 bits.
        ([32, 64], [[32, 64], [96, 64]], "unsigned char"),
        ([96, 64], [[96, 64], [96, 64]], "unsigned char"),
        ([96, 64], [[8, 64], [96, 64]], "c10::Half"),
    ],
)
def test_other_casts_before_a_matmul_are_just_casts(
    cast: list[int], argument: list[list[int]], kind: str
) -> None:
    part, finding = _stored(cast, argument, kind)

    assert part == "cast"
    assert not mentions(finding, "8 bits")


def test_a_batch_of_a_class_of_its_own_is_pinned_by_its_own_method() -> None:
    example = bundled_rules()["CPY003"].examples[0]

    (finding,) = drawn_findings(example.drawing, "CPY003", args=example.args)

    assert "needs a pin_memory() method" in finding.advice


def test_casts_of_activations_by_autocast_are_priced() -> None:
    (finding,) = case_findings("layernorm_autocast.trace.json.gz", "CPY008")

    assert (finding.count, finding.data["half"]) == (9, "bfloat16")


_CASTS_FOR_EXP = """
    host  [ProfilerStep#1                                                            ]
    host   [{matmul}           ] [aten::exp                                     ]
    host    [aten::to             ]   [aten::to               ]
    host     [aten::_to_copy     ]     [aten::_to_copy       ]
    host      [aten::copy_      ]       [aten::copy_.up     ]
    host       [cuLaunchKern>1]          [cudaLaunchKernel>2]
    gpu 7                      [copy_kernel<1]              [copy_kernel<2]
"""


def _autocast_args() -> dict[str, Any]:
    return {
        "aten::copy_": inputs([[32, 64]] * 2, [HALF, FLOAT]),
        "aten::copy_.up": inputs([[32, 32]] * 2, [FLOAT, HALF]),
    }


def test_casts_to_float32_of_autocast_count_too() -> None:
    drawing = _CASTS_FOR_EXP.format(matmul="aten::matmul")
    (finding,) = drawn_findings(drawing, "CPY008", args=_autocast_args())

    assert finding.count == 2


def test_casts_inside_ops_without_autocast_are_those_of_the_program() -> None:
    drawing = _CASTS_FOR_EXP.format(matmul="aten::sum   ")

    assert not drawn_findings(drawing, "CPY008", args=_autocast_args())


@pytest.mark.parametrize(("between", "advised"), [("mul", False), ("", True)])
def test_an_input_is_cast_once_only_where_several_ops_in_a_row_take_it(
    between: str, *, advised: bool
) -> None:
    """``self.q(x), self.k(x)``, or ``self.down(gate * self.up(x))``."""
    other = f"[aten::{between}  ]" if between else ""
    call, kernel = ("[cuLaunch>9]", "[k<9]") if between else ("", "")
    pad = " " * len(other)
    drawing = f"""
    host  [ProfilerStep#1                                                    {pad}]
    host   [model.py(9): forward                                             {pad}]
    host   [aten::linear          ]{other:14}[aten::linear          ]
    host    [aten::_to_copy      ] {call:14} [aten::_to_copy      ]
    host     [aten::copy_       ]  {"":14}    [aten::copy_       ]
    host      [cuLaunch>1]         {"":14}     [cuLaunch>2]
    gpu 7          [copy_kernel<1] {kernel:14}          [copy_kernel<2]
    """
    args = {
        "aten::linear": inputs([[32, 64], [64, 64]], [FLOAT, HALF]),
        "aten::copy_": inputs([[32, 64]] * 2, [HALF, FLOAT]),
    }

    (finding,) = drawn_findings(drawing, "CPY008", args=args)

    assert ("what 2 ops in a row take in forward" in finding.advice) is advised


def test_casts_of_activations_save_what_compiling_for_a_graph_leaves() -> None:
    trace = loaded(ROOT / "benchmarks" / "models" / "autocast_small.trace.json.gz")
    findings = outcome(Recording("autocast_small", trace), "CPY008", "LCH002").findings
    by_code = {finding.code: finding for finding in findings}

    assert by_code["LCH002"].saves_ns > 10 * by_code["CPY008"].saves_ns
    assert by_code["CPY008"].minor


@pytest.mark.parametrize("case", ["copies", "norm_mismatch", "layernorm_autocast"])
def test_mainly_is_at_least_half_of_the_copies(case: str) -> None:
    (finding,) = case_findings(f"{case}.trace.json.gz", "CPY001")

    parts = cast("dict[str, int]", finding.data["parts"])
    named = sum(sorted(parts.values())[-2:])
    assert ("mainly" in finding.message) == (2 * named >= sum(parts.values()))
    assert ("first of all" in finding.message) == (2 * named < sum(parts.values()))


TO_GPU = "Memcpy HtoD (Pageable -> Device)"


def sent(*ops: str, size: int = 1024) -> tuple[Finding, ...]:
    """Return what CPY003 says of ops of one function, with copies in ``aten::to>``."""
    lines, number = {"op": "", "in": "", "call": "", "gpu": ""}, 0
    for name in ops:
        width = 40
        copies = name.endswith(">")
        number += copies
        lines["op"] += f"[aten::{name.rstrip('>')}".ljust(width - 1) + "]"
        for line, part in (
            ("in", " [aten::copy_".ljust(width - 2) + "] "),
            ("call", f"  [cudaMemcpyAsync>{number}".ljust(width - 3) + "]  "),
            ("gpu", f"   [{TO_GPU}<{number}".ljust(width - 3) + "] "),
        ):
            lines[line] += part if copies else " " * width
    drawing = f"""
    host   [ProfilerStep#1{" " * 40 * len(ops)}]
    host    [train.py(9): step{" " * 40 * len(ops)}]
    host     {lines["op"]}
    host     {lines["in"]}
    host     {lines["call"]}
    gpu 7    {lines["gpu"]}
    """
    return drawn_findings(drawing, "CPY003", args={TO_GPU: {"bytes": size}})


def test_an_index_that_is_an_array_is_sent_once() -> None:
    pair = ("lift_fresh", "to>", "lift_fresh", "to>", "index")

    (finding,) = sent(*pair, *pair)

    assert "4 tensors" in finding.message
    assert "used as indices" in finding.message
    assert "pin" not in finding.advice
    assert "copy the index to the GPU once" in finding.advice
    assert not finding.example


def test_tensors_that_are_made_of_arrays_are_sent_in_one_copy() -> None:
    (finding,) = sent("lift_fresh", "to", "to>", "lift_fresh", "to", "to>", "embedding")

    assert "2 tensors" in finding.message
    assert "torch.from_numpy" in finding.advice
    assert "pin" not in finding.advice


def test_a_constant_is_made_on_the_gpu() -> None:
    (finding,) = sent("ones", "triu", "to>", "mm", size=65536)

    assert "device=" in finding.advice
    assert "pin" not in finding.advice


def test_what_is_sent_after_a_constant_is_not_taken_for_one() -> None:
    made, batch = sent("ones", "to>", "to>", "mm", size=65536)

    assert "device=x.device" in made.advice
    assert "pin" in batch.advice


def test_an_index_on_the_cpu_is_made_on_the_gpu() -> None:
    drawing = f"""
    host   [ProfilerStep#1                              ]
    host    [train.py(9): step                         ]
    host     [aten::index                             ]
    host      [aten::to                              ]
    host       [aten::copy_                         ]
    host        [cudaMemcpyAsync>1                 ]
    gpu 7        [{TO_GPU}<1]
    """

    (finding,) = drawn_findings(drawing, "CPY003", args={TO_GPU: {"bytes": 65536}})

    assert "make the index on the GPU" in finding.advice


def test_many_small_copies_count_by_their_calls() -> None:
    assert sent("to>", "mm", "to>", "mm")
    # Of a long step they are a small part.
    assert not sent("to>", "mm", "to>", *["mm"] * 300)


def test_a_list_is_an_index_that_is_copied_too() -> None:
    names = ("empty", "to>", "lift_fresh", "index")

    (finding,) = sent(*names, *names)

    assert "used as indices" in finding.message
    assert "copy the index to the GPU once" in finding.advice


def test_an_array_that_is_indexed_is_no_index() -> None:
    drawing = f"""
    host   [ProfilerStep#1                                                      ]
    host    [train.py(9): step                                                 ]
    host     [aten::lift_fresh] [<built-in method to of Tensor object>]
    host                         [aten::to                           ][aten::index]
    host                          [aten::copy_                      ]
    host                           [cudaMemcpyAsync>1              ]
    gpu 7                             [{TO_GPU}<1]
    """

    (finding,) = drawn_findings(drawing, "CPY003", args={TO_GPU: {"bytes": 65536}})

    assert "indices" not in finding.message


@pytest.mark.parametrize(("count", "size"), [(2, 64 << 20), (1, 65536)])
def test_an_array_that_is_large_or_alone_is_not_joined_with_others(
    count: int, size: int
) -> None:
    (finding,) = sent(*("lift_fresh", "to>", "mm") * count, size=size)

    assert "join" not in finding.advice


def test_copies_that_make_the_host_wait_are_not_counted_as_small_ones() -> None:
    def copies(sync: int) -> tuple[Finding, ...]:
        lines = {"op": "", "copy": "", "call": "", "gpu": " " * 3}
        for number in (1, 2):
            width = 60 + sync
            lines["op"] += "[aten::to".ljust(width - 1) + "]"
            lines["copy"] += " [aten::copy_".ljust(width - 2) + "] "
            call = f"  [cudaMemcpyAsync>{number}]"
            lines["call"] += f"{call}[cudaStreamSynchronize".ljust(width - 3) + "]  "
            lines["gpu"] += f"[{TO_GPU}<{number}]".ljust(width)
        drawing = f"""
        host   [ProfilerStep#1{" " * 2 * width}]
        host    [train.py(9): step{" " * 2 * width}]
        host     {lines["op"]}
        host     {lines["copy"]}
        host     {lines["call"]}
        gpu 7    {lines["gpu"]}
        """
        return drawn_findings(drawing, "CPY003", args={TO_GPU: {"bytes": 64}})

    assert copies(0)
    assert not copies(60)


@pytest.mark.parametrize(
    ("strides", "found"),
    [
        # Only the batch dim has a stride of 1: no matmul reads rows or columns.
        ([1, 11264, 176], True),
        # Rows, or columns, are next to each other, and the copy has another reason.
        ([32768, 64, 1], False),
        ([32768, 1, 512], False),
    ],
)
def test_operands_that_a_batched_matmul_copies_are_to_have_batch_dims_first(
    strides: list[int], *, found: bool
) -> None:
    dims = [176, 512, 64]
    findings = priced_findings(
        """
        host  [ProfilerStep#1                                            ]
        host   [model.py(9): attend                                     ]
        host    [aten::einsum                                          ]
        host     [aten::bmm                                           ]
        host      [aten::clone                ]
        host       [aten::copy_              ]
        host        [cudaLaunchKernel>1]        [cudaLaunchKernel>2]
        gpu 7                 [direct_copy_kernel<1       ][gemm<2        ]
        """,
        "CPY001",
        args={
            "aten::copy_": inputs(
                [dims, dims, []],
                ["float", "float", "Scalar"],
                [[32768, 64, 1], strides, []],
            )
        },
    )

    named = [one for one in findings if one.subject == "operands of batched matmuls"]
    assert len(named) == found
    if named:
        (finding,) = named
        assert (finding.place.file, finding.count) == ("model.py", 1)
        copied = next(line for line in finding.evidence if line.label == "copy")
        assert copied.name == "aten::bmm in aten::einsum [176,512,64]"
        assert "bnij" in finding.advice
        assert finding.saves_ns > 0
