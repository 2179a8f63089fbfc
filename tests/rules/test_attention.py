"""ATT: attention on slow kernels, on real traces and on calls that are drawn."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest
from linting import (
    case_findings,
    drawn_findings,
    findings_of,
    linted,
    mentions,
    outcome,
)
from recordings import loaded, path_of, saved_ns

from traceq.analysis.base.steady import steady_steps
from traceq.analysis.patterns.attention_kernels import softmax_and_matmuls
from traceq.inputs.load_trace import load
from traceq.linter.rule import inputs
from traceq.model.finding import Severity
from traceq.model.recording import Recording
from traceq.model.torch_versions import newer_than
from traceq.testing import load_drawn

if TYPE_CHECKING:
    from traceq.linter import Finding

HALF, FLOAT = "c10::BFloat16", "float"
SQUARE = [8, 12, 1024, 64]
H200 = {"id": 0, "name": "NVIDIA H200", "computeMajor": 9, "computeMinor": 0}
T4 = {"id": 0, "name": "Tesla T4", "computeMajor": 7, "computeMinor": 5}
MI300 = {"id": 0, "name": "AMD Instinct MI300X", "computeMajor": 9, "computeMinor": 4}
KERNELS = {"efficient": "fmha_cutlassF_bf16_aligned_64x64_rf_sm80", "math": "gemm"}


def called(
    *dims: list[int],
    types: tuple[str, ...] = (HALF, HALF, HALF),
    causal: bool = False,
    gqa: bool = False,
    strides: list[list[int]] | None = None,
) -> dict[str, Any]:
    """Return the arguments of SDPA: three inputs, and a mask as the fourth."""
    missing = 4 - len(dims)
    return inputs(
        [*dims, *([[]] * missing), [], []],
        [*types, *([""] * (4 - len(types))), "Scalar", "Scalar", "", "Scalar"],
        strides=strides,
        values=["", "", "", "", "0.", str(causal), "", str(gqa)],
    )


def masked_advice(mask: list[int], making: str = "", **cuts: dict[str, Any]) -> str:
    """Return the advice on a masked call after ``making`` of its mask, as drawn."""
    drawing = f"""
    host  [ProfilerStep#1                                                          ]
    host   {making}
    host                      [aten::scaled_dot_product_attention                 ]
    host                       [aten::_scaled_dot_product_efficient_attention    ]
    host                        [cudaLaunchKernel>1]
    gpu 7                             [{KERNELS["efficient"]}<1]
    """
    args = {f"aten::{name}": given for name, given in cuts.items()} | {
        "aten::scaled_dot_product_attention": called(
            *[SQUARE] * 3, mask, types=(HALF, HALF, HALF, "bool")
        )
    }
    recording = Recording("drawn", load_drawn(drawing, args, H200))
    (finding,) = findings_of(recording, "ATT")
    return finding.advice


def cut(diagonal: int) -> dict[str, Any]:
    """Return the arguments of tril and triu."""
    return inputs([[1024, 1024], []], ["bool", "Scalar"], values=["", str(diagonal)])


def found(
    arguments: dict[str, Any],
    backend: str = "efficient",
    device: dict[str, Any] = H200,
) -> list[tuple[str, str]]:
    """Return the findings in one call of attention: code and sentence."""
    return [
        (finding.code, finding.message)
        for finding in findings(arguments, backend, device)
    ]


def findings(
    arguments: dict[str, Any],
    backend: str = "efficient",
    device: dict[str, Any] = H200,
) -> tuple[Finding, ...]:
    """Return the findings in one call of attention."""
    op = {"math": "aten::_scaled_dot_product_attention_math"}.get(
        backend, f"aten::_scaled_dot_product_{backend}_attention"
    )
    drawing = f"""
    host  [ProfilerStep#1                                                          ]
    host   [aten::scaled_dot_product_attention                                    ]
    host    [{op}                   ]
    host     [cudaLaunchKernel>1]
    gpu 7              [{KERNELS.get(backend, "flash_fwd_kernel")}<1           ]
    """
    args = {"aten::scaled_dot_product_attention": arguments}
    recording = Recording("drawn", load_drawn(drawing, args, device))
    return findings_of(recording, "ATT")


def test_a_causal_mask_is_found_at_its_line_and_costs_what_its_removal_saves() -> None:
    (finding,) = case_findings("attn_mask_fmha.trace.json.gz", "ATT", measured=True)

    assert (finding.code, finding.place.file, finding.place.line) == (
        "ATT001",
        "dev_cases.py",
        48,
    )
    assert mentions(finding, "bool [1024,1024]", "shared")
    assert "if it is the lower triangle, drop attn_mask and pass" in finding.advice
    measured = saved_ns("attn_mask_fmha", "attn_flash")
    assert 0.8 * measured < finding.saves_ns < 1.05 * measured


def test_float32_is_the_cause_where_there_is_no_mask() -> None:
    (finding,) = case_findings("attn_fp32.trace.json.gz", "ATT")

    assert (finding.code, finding.place.line) == ("ATT002", 44)
    assert mentions(finding, "float32")


def test_attention_by_hand_costs_what_its_removal_saves() -> None:
    (finding,) = case_findings("attn_manual.trace.json.gz", "ATT", measured=True)

    assert (finding.code, finding.place.line) == ("ATT003", 52)
    assert "is_causal=True" in finding.advice
    measured = saved_ns("attn_manual", "attn_flash")
    assert 0.8 * measured < finding.saves_ns < 1.05 * measured


@pytest.mark.parametrize("case", ["attn_flash", "norm_fused"])
def test_fused_attention_has_no_finding(case: str) -> None:
    assert not case_findings(f"{case}.trace.json.gz", "ATT")


def test_the_committed_trace_has_its_finding(request: pytest.FixtureRequest) -> None:
    path = request.config.rootpath / "fixtures" / "attn_mask_fmha" / "trace.json.gz"
    recording = Recording("fixture", load(path, cache=False))

    (finding,) = findings_of(recording, "ATT")

    assert (finding.code, finding.count) == ("ATT001", 4)
    kernels = [line for line in finding.evidence if line.label == "kernel"]
    assert any("fmha_cutlassB" in line.name and line.count == 4 for line in kernels)


@pytest.mark.parametrize(
    ("mask", "kinds"),
    [
        ([1024, 1024], ["shared"]),
        ([1, 1, 1024, 1024], ["shared"]),
        ([8, 1, 1024, 1024], []),
        ([8, 1, 1, 1024], ["padding"]),
        ([1, 12, 1024, 1024], ["bias"]),
    ],
)
def test_a_mask_is_described_by_its_shape(mask: list[int], kinds: list[str]) -> None:
    masked = called(SQUARE, SQUARE, SQUARE, mask, types=(HALF, HALF, HALF, "bool"))

    ((code, message),) = found(masked)

    assert code == "ATT001"
    assert [item for item in ("shared", "padding", "bias") if item in message] == kinds


def test_a_mask_for_each_sequence_is_not_taken_for_causal() -> None:
    advice = masked_advice([8, 1, 1024, 1024])

    assert "is_causal" not in advice
    assert advice.startswith("if it masks padding")
    assert "torch.nn.attention.varlen" in advice
    assert "FlexAttention" in advice


@pytest.mark.parametrize(
    ("mask", "advice"),
    [
        ([1024, 1024], "drop attn_mask and pass is_causal=True"),
        ([8, 1, 1024, 1024], "where nothing is padded, drop attn_mask and pass"),
    ],
)
@pytest.mark.parametrize(
    ("making", "cuts"),
    [
        ("[aten::tril]", {"tril": cut(0)}),
        ("[aten::triu]", {"triu": cut(1)}),
        ("[mask.py(9): make_causal_mask]", {}),
    ],
)
def test_a_mask_is_causal_where_its_making_is_seen(
    mask: list[int], advice: str, making: str, cuts: dict[str, dict[str, Any]]
) -> None:
    assert masked_advice(mask, making, **cuts).startswith(advice)


@pytest.mark.parametrize(
    ("making", "cuts"),
    [
        ("[aten::tril][aten::triu]", {"tril": cut(0), "triu": cut(-256)}),
        ("[aten::tril]", {"tril": cut(256)}),
        ("[nn.Module: LlamaForCausalLM_0]", {}),
        ("[mask.py(9): create_sliding_window_causal_mask]", {}),
        ("[mask.py(9): create_causal_mask][mask.py(5): sliding_window_mask]", {}),
    ],
    ids=["sliding window", "other diagonal", "name of a model", "window", "both"],
)
def test_a_mask_that_is_cut_otherwise_is_not_called_causal(
    making: str, cuts: dict[str, dict[str, Any]]
) -> None:
    advice = masked_advice([1024, 1024], making, **cuts)

    assert advice.startswith("if it is the lower triangle")


@pytest.mark.parametrize(
    ("making", "cuts"),
    [
        ("", {}),
        ("[mask.py(9): create_bidirectional_mask][mask.py(5): causal_mask]", {}),
        (
            "[mask.py(9): _prepare_4d_attention_mask_for_sdpa][aten::tril]",
            {"tril": cut(0)},
        ),
    ],
    ids=["unseen", "with a causal mask elsewhere", "with a triangle elsewhere"],
)
@pytest.mark.parametrize("mask", [[8, 1, 1024, 1024], [8, 1, 1, 1024]])
def test_advice_on_a_bidirectional_padding_mask_keeps_it_bidirectional(
    mask: list[int], making: str, cuts: dict[str, dict[str, Any]]
) -> None:
    advice = masked_advice(mask, making, **cuts)

    assert "is_causal" not in advice
    assert "drop attn_mask where nothing is padded" in advice or advice.startswith(
        "where nothing is padded, drop attn_mask"
    )
    for instead in ("varlen", "nested jagged", "pack the sequences", "FlexAttention"):
        assert instead in advice


def test_the_mask_of_an_encoder_is_not_causal_because_a_decoder_makes_one() -> None:
    drawing = f"""
    host  [ProfilerStep#1                                                          ]
    host   [nn.Module: Decoder_0][nn.Module: Encoder_0                             ]
    host    [aten::tril     ]     [aten::scaled_dot_product_attention              ]
    host                           [aten::_scaled_dot_product_efficient_attention ]
    host     [cuLaunch>2]           [cudaLaunchKernel>1]
    gpu 7         [tril<2]                [{KERNELS["efficient"]}<1]
    """
    masked = called(*[SQUARE] * 3, [8, 1, 1024, 1024], types=(*[HALF] * 3, "bool"))
    args = {"aten::tril": cut(0), "aten::scaled_dot_product_attention": masked}
    recording = Recording("drawn", load_drawn(drawing, args, H200))

    (finding,) = findings_of(recording, "ATT")

    assert "is_causal" not in finding.advice


def test_a_mask_that_was_expanded_counts_as_what_it_was_expanded_from() -> None:
    arguments = inputs(
        [SQUARE, SQUARE, SQUARE, [8, 12, 1024, 1024], [], [], []],
        [HALF] * 4 + ["Scalar"] * 3,
        strides=[[786432, 65536, 64, 1]] * 3 + [[0, 0, 1024, 1], [], [], []],
        values=["", "", "", "", "True", "0.", "False"],
    )
    # A compiled program calls the backend itself.
    drawing = """
    host  [ProfilerStep#1                                                          ]
    host   [Torch-Compiled Region: 0/0                                            ]
    host    [aten::_scaled_dot_product_efficient_attention                       ]
    host     [cudaLaunchKernel>1]
    gpu 7              [fmha_cutlassF_bf16_aligned_64x64_rf_sm80<1           ]
    """
    args = {"aten::_scaled_dot_product_efficient_attention": arguments}
    recording = Recording("drawn", load_drawn(drawing, args, H200))

    (finding,) = findings_of(recording, "ATT")

    assert "bfloat16 added [1,1,1024,1024], shared by all" in finding.message


@pytest.mark.parametrize(
    ("arguments", "backend", "because"),
    [
        (
            called(SQUARE, SQUARE, SQUARE, types=(FLOAT, HALF, HALF)),
            "math",
            "float32 and",
        ),
        (
            called([8, 12, 1024, 320], *[[8, 12, 1024, 320]] * 2),
            "math",
            "head dim is 320",
        ),
        (
            called([8, 12, 64, 64], SQUARE, SQUARE, causal=True),
            "efficient",
            "64 queries",
        ),
        (called(*[[96, 1024, 64]] * 3), "math", "3 dims instead of 4"),
        (
            called(*[SQUARE] * 3, strides=[[786432, 65536, 1, 1024]] * 3),
            "math",
            "not contiguous",
        ),
        (called(SQUARE, *[[8, 4, 1024, 64]] * 2), "math", "query has 12 heads"),
    ],
    ids=["types", "head dim", "causal", "rank", "strides", "heads"],
)
def test_the_cause_is_named(
    arguments: dict[str, Any], backend: str, because: str
) -> None:
    ((code, message),) = found(arguments, backend)

    assert code == "ATT002"
    assert because in message


def test_float32_with_a_mask_is_not_blamed_on_the_mask() -> None:
    types = (FLOAT, FLOAT, FLOAT, "bool")
    ((code, message),) = found(called(*[SQUARE] * 3, [1024, 1024], types=types))

    assert code == "ATT002"
    assert message.endswith("are float32, and it has an attn_mask")


def test_a_mask_with_grouped_queries_on_unfused_kernels_is_the_masks_fault() -> None:
    few = [8, 4, 1024, 64]
    types = (HALF, HALF, HALF, "bool")
    masked = called(SQUARE, few, few, [1024, 1024], types=types, gqa=True)

    assert [code for code, _ in found(masked, "math")] == ["ATT001"]


@pytest.mark.parametrize("device", [T4, MI300], ids=["T4", "MI300"])
def test_mem_efficient_attention_is_not_a_fallback_where_nothing_is_faster(
    device: dict[str, Any],
) -> None:
    masked = called(*[SQUARE] * 3, [1024, 1024], types=(HALF, HALF, HALF, "bool"))

    assert not found(masked, device=device)


def test_without_a_cause_in_the_arguments_nothing_is_claimed() -> None:
    arguments = called(SQUARE, SQUARE, SQUARE)

    ((code, message),) = found(arguments)

    assert code == "ATT002"
    assert message.endswith("and its arguments do not show why")


@pytest.mark.parametrize(
    ("torch", "notes"),
    [
        ("", {"FlexAttention": "2.5", "torch.nn.attention.varlen": "2.10"}),
        ("2.4", {"FlexAttention": "2.5", "torch.nn.attention.varlen": "2.10"}),
        ("2.8", {"torch.nn.attention.varlen": "2.10"}),
        ("2.10", {}),
    ],
)
def test_advice_says_what_an_older_torch_lacks(
    torch: str, notes: dict[str, str]
) -> None:
    facts = replace(load_drawn("host [aten::mm]").facts, torch_from=torch)

    advice = "pack (torch.nn.attention.varlen), or use FlexAttention"
    assert newer_than(facts, advice) == notes


def test_a_module_of_torch_that_returns_its_weights_is_not_called_handwritten() -> None:
    half = [HALF] * 3
    (finding,) = findings_of(
        Recording(
            "drawn",
            load_drawn(
                """
                host [ProfilerStep#1                                                  ]
                host  [model.py(52): forward                                         ]
                host   [nn.Module: MultiheadAttention_0                             ]
                host    [aten::bmm          ] [aten::_softmax     ] [aten::baddbmm  ]
                host    [cudaLaunchKernel>1 ] [cudaLaunchKernel>2 ] [cudaLaunch>3   ]
                gpu 7               [gemm<1         ][softmax<2    ]      [gemm<3    ]
                """,
                {
                    "aten::bmm": inputs([[96, 1024, 64], [96, 64, 1024]], half[:2]),
                    "aten::_softmax": inputs([[96, 1024, 1024]], half[:1]),
                    "aten::baddbmm": inputs(
                        [[1], [96, 1024, 1024], [96, 1024, 64]], half
                    ),
                },
                H200,
            ),
        ),
        "ATT003",
    )

    assert finding.message.startswith("nn.MultiheadAttention runs op by op once a step")
    assert finding.advice.startswith("in forward: pass need_weights=False")


READ_WEIGHTS = """
    host [ProfilerStep#1                                                              ]
    host  [model.py(52): forward                                                      ]
    host   [{around:<75}]
    host    [aten::bmm         ] [aten::_softmax     ] [aten::baddbmm] [aten::{read:<5}]
    host    [cudaLaunchKernel>1] [cudaLaunchKernel>2 ] [cudaLaunch>3 ] [cuLaunch>4]
    gpu 7               [gemm<1         ][softmax<2    ]      [gemm<3    ]  [other<4 ]
"""


@pytest.mark.parametrize(
    ("read", "dims", "needed"),
    [
        ("mean", [96, 1024, 1024], True),
        ("mean", [8, 12, 1024, 1024], True),
        # The result of the attention.
        ("mul", [8, 1024, 768], False),
    ],
)
def test_attention_whose_weights_are_read_is_not_to_be_replaced(
    read: str, dims: list[int], *, needed: bool
) -> None:
    drawing = READ_WEIGHTS.format(around="model.py(60): attend", read=read)
    args = {
        "aten::bmm": inputs([[96, 1024, 64], [96, 64, 1024]], [HALF] * 2),
        "aten::_softmax": inputs([[96, 1024, 1024]], [HALF]),
        "aten::baddbmm": inputs([[1], [96, 1024, 1024], [96, 1024, 64]], [HALF] * 3),
        f"aten::{read.strip()}": inputs([dims], [HALF]),
    }
    recording = Recording("drawn", load_drawn(drawing, args, H200))

    (finding,) = findings_of(recording, "ATT003")

    assert ("its weights are read by aten::mean in attend" in finding.advice) == needed
    assert ("call F.scaled_dot_product_attention" in finding.advice) != needed
    assert (finding.severity.value == "info") == needed
    assert bool(finding.fixes) != needed


def test_the_mean_that_torchs_module_takes_is_read_only_by_what_is_outside() -> None:
    drawing = READ_WEIGHTS.format(around="nn.Module: MultiheadAttention_0", read="mean")
    args = {
        "aten::bmm": inputs([[96, 1024, 64], [96, 64, 1024]], [HALF] * 2),
        "aten::_softmax": inputs([[96, 1024, 1024]], [HALF]),
        "aten::baddbmm": inputs([[1], [96, 1024, 1024], [96, 1024, 64]], [HALF] * 3),
        "aten::mean": inputs([[8, 12, 1024, 1024]], [HALF]),
    }
    recording = Recording("drawn", load_drawn(drawing, args, H200))

    (finding,) = findings_of(recording, "ATT003")

    assert "need_weights=False" in finding.advice


def test_a_module_of_the_same_name_is_not_that_of_torch() -> None:
    half = ["c10::BFloat16"] * 3
    drawing = """
    host [ProfilerStep#1                                                  ]
    host  [esm/layer.py(52): forward                                     ]
    host   [nn.Module: MultiheadAttention_0                             ]
    host    [esm/attention.py(159): forward                            ]
    host    [aten::bmm          ] [aten::_softmax     ] [aten::baddbmm  ]
    host    [cudaLaunchKernel>1 ] [cudaLaunchKernel>2 ] [cudaLaunch>3   ]
    gpu 7               [gemm<1         ][softmax<2    ]      [gemm<3    ]
    """
    args = {
        "aten::bmm": inputs([[96, 1024, 64], [96, 64, 1024]], half[:2]),
        "aten::_softmax": inputs([[96, 1024, 1024]], half[:1]),
        "aten::baddbmm": inputs([[1], [96, 1024, 1024], [96, 1024, 64]], half),
    }
    recording = Recording("drawn", load_drawn(drawing, args, H200))

    (finding,) = findings_of(recording, "ATT003")

    assert finding.count == 1
    assert "need_weights" not in finding.advice


def by_hand(*names: str, **given: dict[str, Any]) -> list[Finding]:
    """Return what ATT003 says of ops in a row, each with a kernel."""
    return by_hand_in((), names, given)


def by_hand_in(
    around: tuple[str, ...], names: tuple[str, ...], given: dict[str, dict[str, Any]]
) -> list[Finding]:
    """Return the same of ops that functions call, the outermost of them first."""
    width = 20
    lines = {"op": "", "call": "", "gpu": " "}
    for number, name in enumerate(names, 1):
        lines["op"] += f"[aten::{name}".ljust(width - 1) + "]"
        lines["call"] += f"[cuLaunch>{number}]".ljust(width)
        lines["gpu"] += f"[k<{number}".ljust(width - 1) + "]"
    calls = "\n".join(
        f"    host   [{item}".ljust(10 + width * len(names)) + "]" for item in around
    )
    drawing = f"""
    host  [ProfilerStep#1{" " * width * len(names)}]
{calls}
    host   {lines["op"]}
    host   {lines["call"]}
    gpu 7  {lines["gpu"]}
    """
    args = {f"aten::{name.replace('__', '.')}": one for name, one in given.items()}
    recording = Recording("drawn", load_drawn(drawing, args, H200))
    return list(outcome(recording, "ATT003").findings)


SCORES, SUMS = [8, 12, 1024, 512], [8, 12, 1024, 1]
PRODUCTS = {
    "bmm__first": inputs([[96, 1024, 64], [96, 64, 512]], [HALF] * 2),
    "bmm__last": inputs([[96, 1024, 512], [96, 512, 64]], [HALF] * 2),
}
SOFTMAX = {
    "max": inputs([SCORES, [], []], [HALF, "Scalar", "Scalar"]),
    "sub": inputs([SCORES, SUMS], [HALF] * 2),
    "exp": inputs([SCORES], [HALF]),
    "sum": inputs([SCORES, [], []], [HALF, "ScalarList", "Scalar"]),
    "div__last": inputs([SCORES, SUMS], [HALF] * 2),
}
MASKED = ("bmm.first", "div", "where")
WRITTEN_OUT = ("max", "sub", "exp", "sum", "div.last")


def test_attention_with_a_softmax_by_hand_is_attention_by_hand() -> None:
    names = (*MASKED, *WRITTEN_OUT, "dropout", "to", "bmm.last")

    (finding,) = by_hand(*names, **PRODUCTS, **SOFTMAX)

    assert "its scores [8,12,1024,512] go through memory" in finding.message
    assert finding.data["steps"] == [name.partition(".")[0] for name in names]
    # All kernels from the first product to the last.
    (kernels, *_) = finding.fixes
    assert len(kernels.kernels) == len(names)


def test_exponentials_that_are_not_divided_by_their_sum_are_no_attention() -> None:
    names = [*MASKED, "max", "sub", "exp", "sum", "bmm.last"]

    assert not by_hand(*names, **PRODUCTS, **SOFTMAX)


def batched(
    width: int, kind: str, strides: tuple[int, int] = (512, 1), dims: int = 3
) -> Finding:
    """Return what ATT003 says of heads of a width, with strides of query and value."""
    lead = [96] if dims == 3 else [8, 12]
    steps = [1] * (dims - 2)
    scores = [*lead, 1024, 512]
    given = {
        "bmm__first": inputs(
            [[96, 1024, width], [96, width, 512]],
            [kind] * 2,
            [[1, *strides], [1, 1, width]],
        ),
        "_softmax": inputs([scores], [kind], [[*steps, 512, 1]]),
        "bmm__last": inputs(
            [[96, 1024, 512], [96, 512, width]],
            [kind] * 2,
            [[1, 512, 1], [1, *strides]],
        ),
    }
    (finding,) = by_hand("bmm.first", "_softmax", "bmm.last", **given)
    return finding


def test_in_float32_wide_heads_are_to_be_timed_and_promise_nothing() -> None:
    narrow, wide, half = (
        batched(*one) for one in ((128, "float"), (256, "float"), (256, HALF))
    )

    assert [bool(one.fixes) for one in (narrow, wide, half)] == [True, False, True]
    assert wide.severity.value == "info"
    assert "time it first" in wide.advice
    assert "time it" not in narrow.advice + half.advice


@pytest.mark.parametrize(
    ("strides", "dims", "needed"),
    [
        ((64, 1), 4, []),
        ((64, 1), 3, ["of three dims fused kernels take none"]),
        ((1, 1024), 4, ["contiguous()"]),
        ((1, 1024), 3, ["contiguous()", "unsqueeze(1)"]),
    ],
)
def test_query_key_and_value_are_to_be_laid_out_as_fused_kernels_take_them(
    strides: tuple[int, int], dims: int, needed: list[str]
) -> None:
    finding = batched(64, HALF, strides, dims)

    assert all(words in finding.advice for words in needed)
    assert ("[batch, heads, positions, head dim]" in finding.advice) is bool(needed)


def test_what_the_next_matmul_copies_are_no_weights_that_are_read() -> None:
    step = f"[ProfilerStep#1 {' ' * 190}]"
    drawing = f"""
    host   {step}
    host    [aten::bmm.first    ][aten::_softmax     ][aten::bmm.last     ][aten::matmul                        ]
    host    [cudaLaunchKernel>1 ][cudaLaunchKernel>2 ][cudaLaunchKernel>3 ][aten::copy_      ][aten::bmm.first ]
    host                                                                   [cudaLaunchKern>4][cudaLaunchKern>5]
    gpu 7   [k<1               ][k<2                ][k<3                ][k<4              ][k<5             ]
    """  # noqa: E501 - as wide as the calls are long
    args = {
        "aten::bmm.first": inputs([[96, 64, 32], [96, 32, 64]], [HALF] * 2),
        "aten::_softmax": inputs([[96, 64, 64]], [HALF]),
        "aten::bmm.last": inputs([[96, 64, 64], [96, 64, 32]], [HALF] * 2),
        "aten::copy_": inputs([[96, 64, 64]], [HALF]),
    }
    recording = Recording("drawn", load_drawn(drawing, args, H200))

    (finding,) = findings_of(recording, "ATT003")

    assert "are read by" not in finding.advice


def test_of_weights_in_the_shape_of_values_nothing_tells_who_reads_them() -> None:
    drawing = READ_WEIGHTS.format(around="model.py(60): attend", read="mean")
    args = {
        "aten::bmm": inputs([[96, 64, 64], [96, 64, 64]], [HALF] * 2),
        "aten::_softmax": inputs([[96, 64, 64]], [HALF]),
        "aten::baddbmm": inputs([[1], [96, 64, 64], [96, 64, 64]], [HALF] * 3),
        "aten::mean": inputs([[96, 64, 64]], [HALF]),
    }
    recording = Recording("drawn", load_drawn(drawing, args, H200))

    (finding,) = findings_of(recording, "ATT003")

    assert "are read by" not in finding.advice


def test_einsum_may_be_given_its_operands_in_the_other_order() -> None:
    turned = {
        "bmm__first": inputs([[96, 512, 64], [96, 64, 1024]], [HALF] * 2),
        "bmm__last": inputs([[96, 64, 512], [96, 512, 1024]], [HALF] * 2),
    }

    (finding,) = by_hand(*MASKED, *WRITTEN_OUT, "bmm.last", **turned, **SOFTMAX)

    assert finding.data["scores"] == SCORES


def test_matmuls_of_other_tensors_around_a_softmax_are_no_attention() -> None:
    other = PRODUCTS | {"bmm__last": inputs([[96, 64, 64], [96, 64, 64]], [HALF] * 2)}

    assert not by_hand(*MASKED, *WRITTEN_OUT, "bmm.last", **other, **SOFTMAX)


def test_matmuls_and_softmax_inside_of_sdpa_are_not_written_by_hand() -> None:
    drawing = """
    host  [ProfilerStep#1                                                              ]
    host   [aten::scaled_dot_product_attention                                        ]
    host    [aten::_scaled_dot_product_attention_math                                ]
    host     [aten::bmm.first    ] [aten::_softmax     ] [aten::bmm.last     ]
    host      [cudaLaunch>1   ]     [cudaLaunch>2   ]     [cudaLaunch>3   ]
    gpu 7              [gemm<1   ]            [softmax<2 ]          [gemm<3    ]
    """
    args = {
        "aten::bmm.first": PRODUCTS["bmm__first"],
        "aten::_softmax": SOFTMAX["exp"],
        "aten::bmm.last": PRODUCTS["bmm__last"],
    }
    recording = Recording("drawn", load_drawn(drawing, args, H200))

    report = outcome(recording, "ATT003")

    assert not report.findings
    assert not report.crashed


ADDED = [8, 1, 512, 512]
SQUARE_SCORES = PRODUCTS | {
    "bmm__first": inputs([[96, 512, 64], [96, 64, 512]], [HALF] * 2),
    "bmm__last": inputs([[96, 512, 512], [96, 512, 64]], [HALF] * 2),
    "_softmax": inputs([[8, 12, 512, 512]], [HALF]),
}


def added(mask: list[int]) -> dict[str, Any]:
    """Return the arguments of an addition to the scores."""
    return inputs([[8, 12, 512, 512], mask], [HALF] * 2)


def test_a_mask_that_is_added_is_causal_where_its_making_is_seen() -> None:
    given = SQUARE_SCORES | {
        "tril": inputs([[512, 512], []], ["bool", "Scalar"], values=["", "0"])
    }
    names = ("bmm.first", "add", "_softmax", "bmm.last")

    (seen,) = by_hand("tril", *names, **given, add=added(ADDED))
    (unseen,) = by_hand("to", *names, **given, add=added(ADDED))
    (bias,) = by_hand("tril", *names, **given, add=added([1, 12, 512, 512]))

    assert seen.advice.startswith("where nothing is padded, call F.scaled_dot")
    assert "is_causal=True" in seen.advice
    assert "is_causal" not in unseen.advice + bias.advice
    # Half of the scores of a causal mask need not be computed.
    assert seen.kernel_ns > unseen.kernel_ns == bias.kernel_ns


TRIANGLE = inputs([[512, 512], []], ["bool", "Scalar"], values=["", "0"])


@pytest.mark.parametrize("second", [[8, 1, 1, 512], [12, 512, 512], [8, 12, 512, 512]])
@pytest.mark.parametrize("before", ["tril", "to"])
def test_a_mask_that_is_added_to_masked_scores_is_not_dropped(
    before: str, second: list[int]
) -> None:
    given = SQUARE_SCORES | {
        "tril": TRIANGLE,
        "where": inputs([[1, 1, 512, 512], [8, 12, 512, 512], []], ["bool", HALF]),
        "add": added(second),
    }

    (finding,) = by_hand(
        before, "bmm.first", "where", "add", "_softmax", "bmm.last", **given
    )

    assert "attn_mask=mask" in finding.advice
    assert "join all of its masks" in finding.advice
    assert "is_causal" not in finding.advice + finding.example
    assert "attn_mask=mask" in finding.example


def test_two_masks_that_are_filled_in_become_one() -> None:
    scores = [8, 12, 512, 512]
    given = SQUARE_SCORES | {
        "masked_fill__first": inputs([scores, [512, 512]], [HALF, "bool"]),
        "masked_fill__last": inputs([scores, [8, 1, 1, 512]], [HALF, "bool"]),
    }
    masks = ("masked_fill.first", "masked_fill.last")

    (finding,) = by_hand("bmm.first", *masks, "_softmax", "bmm.last", **given)

    assert "join all of its masks" in finding.advice
    assert "is_causal" not in finding.advice + finding.example


def test_padding_that_is_added_stays_a_mask() -> None:
    given = SQUARE_SCORES | {"add": added([8, 1, 1, 512])}

    (finding,) = by_hand("bmm.first", "add", "_softmax", "bmm.last", **given)

    assert "attn_mask=mask" in finding.advice


def test_what_is_added_in_the_shape_of_the_scores_is_not_dropped() -> None:
    given = SQUARE_SCORES | {"add": added([8, 12, 512, 512])}

    (finding,) = by_hand("bmm.first", "add", "_softmax", "bmm.last", **given)

    assert "attn_mask=bias" in finding.advice


@pytest.mark.parametrize("joins", ["bitwise_or", "logical_or", "logical_or_"])
@pytest.mark.parametrize(("size", "count"), [(512, 0), (64, 1)])
def test_a_triangle_joined_with_another_mask_is_not_called_the_lower_triangle(
    joins: str, size: int, count: int
) -> None:
    """As of packed documents: what is outside of each stays masked."""
    drawing = f"""
    host [ProfilerStep#1                                                               ]
    host [aten::tril][aten::{joins} ][aten::scaled_dot_product_attention               ]
    host                                   [aten::_scaled_dot_product_cudnn_attention ]
    host                                    [cudaLaunchKernel>1]
    gpu 7                                            [cudnn_sdpa_sm90_flash_fprop<1]
    """
    given = [[1, 12, 512, 64]] * 3 + [[512, 512]]
    args = {
        "aten::tril": TRIANGLE,
        f"aten::{joins}": inputs([[size, size], [size, size]], ["bool", "bool"]),
        "aten::scaled_dot_product_attention": inputs(given, [HALF] * 3 + ["bool"]),
    }

    assert len(drawn_findings(drawing, "ATT005", args=args)) == count


def given_mask(mask: list[int], before: str = "aten::ones") -> tuple[Finding, ...]:
    """Return what ATT005 says of a mask that an op made, or not."""
    drawing = f"""
    host [ProfilerStep#1                                                               ]
    host [{before:<13}][aten::scaled_dot_product_attention                             ]
    host                                   [aten::_scaled_dot_product_cudnn_attention ]
    host                                    [cudaLaunchKernel>1]
    gpu 7                                            [cudnn_sdpa_sm90_flash_fprop<1]
    """
    given = [[2, 16, 1024, 128]] * 3 + [mask]
    args = {
        "aten::where": inputs([mask, [], []], ["bool", "Scalar", "Scalar"]),
        "aten::scaled_dot_product_attention": inputs(given, [HALF] * 3 + ["bool"]),
    }
    return drawn_findings(drawing, "ATT005", args=args)


def test_a_mask_that_was_made_before_the_recording_may_be_the_lower_triangle() -> None:
    (perhaps,) = given_mask([1, 1, 1024, 1024])

    assert perhaps.severity is Severity.info
    assert perhaps.advice.endswith(
        "if the mask is the lower triangle, drop attn_mask and pass is_causal=True"
    )


@pytest.mark.parametrize(
    ("mask", "before"),
    [
        ([2, 1, 1024, 1024], "aten::ones"),
        ([1, 16, 1024, 1024], "aten::ones"),
        ([1, 1, 1, 1024], "aten::ones"),
        ([1, 1, 1024, 1024], "aten::where"),
    ],
)
def test_a_mask_of_each_sequence_or_head_or_that_is_worked_on_is_not(
    mask: list[int], before: str
) -> None:
    assert not given_mask(mask, before)


def test_eager_attention_of_transformers_has_a_switch() -> None:
    drawing = """
    host  [ProfilerStep#1                                                              ]
    host   [train.py(8): step                                                         ]
    host    [/x/site-packages/transformers/gpt2.py(50): eager_attention_forward        ]
    host     [aten::bmm.first    ] [aten::_softmax     ] [aten::bmm.last     ]
    host      [cudaLaunch>1   ]     [cudaLaunch>2   ]     [cudaLaunch>3   ]
    gpu 7              [gemm<1   ]            [softmax<2 ]          [gemm<3    ]
    """
    args = {f"aten::{name.replace('__', '.')}": one for name, one in PRODUCTS.items()}
    args["aten::_softmax"] = SOFTMAX["exp"]
    recording = Recording("drawn", load_drawn(drawing, args, H200))

    (finding,) = findings_of(recording, "ATT003")

    assert 'attn_implementation="sdpa"' in finding.advice


@pytest.mark.parametrize(("length", "share"), [(1024, 0.35), (2048, 0.6), (8192, 0.6)])
def test_of_long_sequences_most_of_the_attention_goes_with_its_mask(
    length: int, share: float
) -> None:
    triangle = inputs([[length, length], []], ["bool", "Scalar"], values=["", "0"])
    given = [[8, 12, length, 64]] * 3 + [[length, length]]
    half = ["c10::BFloat16"] * 3
    drawing = """
    host  [ProfilerStep#1                                                   ]
    host   [aten::tril][aten::scaled_dot_product_attention                 ]
    host                [aten::_scaled_dot_product_cudnn_attention        ]
    host                 [cudaLaunchKernel>1]
    gpu 7                          [cudnn_sdpa_sm90_flash_fprop<1        ]
    """

    (finding,) = drawn_findings(
        drawing,
        "ATT005",
        args={
            "aten::scaled_dot_product_attention": inputs(given, [*half, "bool"]),
            "aten::tril": triangle,
        },
    )

    # The second is that there is no triangle to make.
    fix, _ = finding.fixes
    assert fix.kernel_share == share


COMPILED_MASK = """
host  [ProfilerStep#1                                                                 ]
host   [Torch-Compiled Region: 0/0                                                   ]
host    [triton_poi_fused_tril_1][aten::_scaled_dot_product_cudnn_attention         ]
host     [cuLaunchKernel>1]       [cudaLaunchKernel>2]
gpu 7              [triton_poi_fused_tril_1<1][cudnn_sdpa_sm90_flash_fprop<2]
"""


@pytest.mark.parametrize(("computes", "expected"), [("tril", 1), ("aten.add", 0)])
def test_a_mask_made_in_a_kernel_of_torch_compile_is_seen_to_be_causal(
    computes: str, expected: int
) -> None:
    """Compiled code has no op tril: what its kernels compute says so."""
    half = ["c10::BFloat16"]
    given = [[8, 12, 1024, 64]] * 3 + [[1024, 1024]]
    trace = load_drawn(
        COMPILED_MASK,
        {
            "triton_poi_fused_tril_1": inputs([[1024, 1024]], half),
            "aten::_scaled_dot_product_cudnn_attention": inputs(given, half * 4),
        },
    )
    kernel = trace.ops.filter(pl.col("name") == "triton_poi_fused_tril_1")["id"][0]
    row = dict.fromkeys(trace.fused.columns)
    row |= {"id": 0, "op": kernel, "computes": computes, "share": 1.0}
    fused = pl.DataFrame([row], schema=trace.fused.schema)
    recording = Recording("drawn", replace(trace, fused=fused))

    findings = findings_of(recording, "ATT005")

    assert len(findings) == expected


SQUARES = {
    "bmm__first": inputs([[96, 512, 64], [96, 64, 512]], [HALF] * 2),
    "_softmax": inputs([[8, 12, 512, 512]], [HALF]),
    "bmm__last": inputs([[96, 512, 512], [96, 512, 64]], [HALF] * 2),
}


@pytest.mark.parametrize(
    ("op", "second", "call"),
    [
        ("masked_fill", [512, 512], "is_causal=True)"),
        ("masked_fill", [8, 1, 1, 512], "attn_mask=mask)"),
        ("add", [12, 512, 512], "attn_mask=bias)"),
        ("mul", [], "v)"),
    ],
)
def test_the_example_of_attention_shows_the_call_that_is_advised(
    op: str, second: list[int], call: str
) -> None:
    given = SQUARES | {op: inputs([[8, 12, 512, 512], second], [HALF] * 2)}
    (finding,) = by_hand("bmm.first", op, "_softmax", "bmm.last", **given)

    assert call.replace("v)", "value)") in finding.advice
    assert finding.example.endswith(call)


def test_attention_of_a_library_is_rewritten_and_not_where_it_is_called() -> None:
    (finding,) = by_hand_in(
        ("train.py(9): step", "torchvision/models/swin.py(4): windows"),
        ("bmm.first", "_softmax", "bmm.last"),
        SQUARES,
    )

    assert finding.place.function == "step"
    assert finding.advice.startswith(
        "in your own version of windows (torchvision): call F.scaled_dot_product"
    )
    assert not finding.example


def test_attention_that_calls_another_library_s_matmuls_is_rewritten_in_its_own() -> (
    None
):
    einsum = f"[einops/einops.py(8): einsum{' ' * 10}]"
    drawing = f"""
    host  [ProfilerStep#1{" " * 130}]
    host   [model.py(9): attend {" " * 122}]
    host   {einsum} [aten::_softmax            ] {einsum}
    host   [aten::bmm.first     ] {" " * 11} [cuLaunch>2]{" " * 21}[aten::bmm.last     ]
    host   [cuLaunch>1]           {" " * 44}[cuLaunch>3]
    gpu 7  [k<1              ]{" " * 12}[k<2          ]{" " * 17}[k<3         ]
    """
    args = {f"aten::{name.replace('__', '.')}": one for name, one in SQUARES.items()}
    recording = Recording("drawn", load_drawn(drawing, args, H200))
    (finding,) = findings_of(recording, "ATT003")

    assert finding.advice.startswith("in attend: call F.scaled_dot_product_attention(")
    assert finding.example


@pytest.mark.parametrize(
    ("mask", "example"), [([1024, 1024], True), ([8, 1, 1, 1024], False)]
)
def test_a_mask_of_padding_has_no_example_of_a_causal_one(
    mask: list[int], *, example: bool
) -> None:
    masked = called(*[SQUARE] * 3, mask, types=(HALF, HALF, HALF, "bool"))
    (finding,) = findings(masked)

    assert bool(finding.example) is example


# Autocast calls an op that it casts for again, inside of itself.
UNDER_AUTOCAST = """
    host  [ProfilerStep#1                                                                                                                  ]
    host   [model.py(4): attend                                                                                                            ]
    host   [aten::bmm.first]                                                                                              [aten::bmm.last ]
    host                    [aten::exp                  ][aten::sum                        ][aten::div.last]
    host                    [aten::to    ][aten::exp    ][aten::sum                        ]
    host   [cuLaunch>1     ][cuLaunch>2  ][cuLaunch>3   ][cuLaunch>4                       ][cuLaunch>5    ]              [cuLaunch>6     ]
    gpu 7  [gemm<1         ][copy<2      ][exp<3        ][sum<4                            ][div<5         ]              [gemm<6         ]
"""  # noqa: E501 - as wide as a softmax is long


def _softmax_by_hand(drawing: str) -> Finding:
    args = {f"aten::{name.replace('__', '.')}": one for name, one in PRODUCTS.items()}
    args |= {f"aten::{name.replace('__', '.')}": one for name, one in SOFTMAX.items()}
    recording = Recording("drawn", load_drawn(drawing, args, H200))
    (finding,) = findings_of(recording, "ATT003")
    return finding


def test_the_softmax_by_hand_may_be_under_autocast() -> None:
    finding = _softmax_by_hand(UNDER_AUTOCAST)

    assert finding.data["steps"] == ["bmm", "exp", "sum", "div", "bmm"]
    (kernels, *_) = finding.fixes
    assert len(kernels.kernels) == len(range(1, 7))


def test_attention_that_autocast_casts_is_neither_new_nor_gone() -> None:
    lines = UNDER_AUTOCAST.splitlines()
    plain = "\n".join(line for line in lines if "aten::to" not in line)

    before, after = (_softmax_by_hand(name) for name in (plain, UNDER_AUTOCAST))

    assert before.fingerprint == after.fingerprint


def test_a_softmax_by_hand_may_subtract_logarithms() -> None:
    logarithm = {"logsumexp": inputs([SCORES, [], []], [HALF, "ScalarList", "Scalar"])}
    names = ("bmm.first", "logsumexp", "sub", "exp", "bmm.last")

    (finding,) = by_hand(*names, **PRODUCTS, **SOFTMAX, **logarithm)

    assert finding.data["scores"] == SCORES


def test_other_exponentials_beside_the_softmax_do_not_hide_it() -> None:
    softmax = {"_softmax": inputs([SCORES], [HALF]), "exp": inputs([[12]], [HALF])}
    names = ("bmm.first", "exp", "mul", "add", "_softmax", "bmm.last")

    (finding,) = by_hand(*names, **PRODUCTS, **softmax)

    assert finding.data["scores"] == SCORES


def test_attention_on_another_thread_is_found() -> None:
    """As where a second thread runs the model, and the first multiplies, too."""
    drawing = """
    host    [ProfilerStep#1                                                  ]
    host     [aten::bmm.other][aten::bmm.other][aten::bmm.other]
    host 2   [aten::bmm.first][aten::_softmax ][aten::bmm.last ]
    host 2   [cuLaunch>1     ][cuLaunch>2     ][cuLaunch>3     ]
    gpu 7    [gemm<1         ][softmax<2      ][gemm<3         ]
    """
    args = {f"aten::{name.replace('__', '.')}": one for name, one in PRODUCTS.items()}
    args |= {
        "aten::_softmax": inputs([SCORES], [HALF]),
        "aten::bmm.other": inputs([[2, 8, 8], [2, 8, 8]], [HALF] * 2),
    }
    recording = Recording("drawn", load_drawn(drawing, args, H200))

    (finding,) = findings_of(recording, "ATT003")

    assert finding.data["scores"] == SCORES


def mask_is_cast(cast: dict[str, Any], *, kernel: bool = True) -> Finding:
    """Return the finding on a masked call after a cast of this tensor."""
    drawing = f"""
    host  [ProfilerStep#1                                                          ]
    host   [aten::to          ][aten::scaled_dot_product_attention                ]
    host    [cuLaunchKernel>1] [aten::_scaled_dot_product_efficient_attention    ]
    host                         [cudaLaunchKernel>2]
    gpu 7            [cast<1          ]      [{KERNELS["efficient"]}<2]
    """
    if not kernel:
        drawing = drawing.replace("[cast<1          ]", " " * 17)
    mask = [8, 1, 1024, 1024]
    call = called(*[SQUARE] * 3, mask, types=(HALF, HALF, HALF, HALF))
    args = {"aten::to": cast, "aten::scaled_dot_product_attention": call}
    trace = load_drawn(drawing, args, H200)
    (finding,) = outcome(Recording("drawn", trace), "ATT001").findings
    return finding


def test_a_cast_of_the_mask_goes_with_it() -> None:
    with_cast = mask_is_cast(inputs([[8, 1, 1024, 1024]], ["bool"]))
    other = mask_is_cast(inputs([[8, 1024, 1024]], [HALF]))

    # The kernel of 16 µs and the op of 22 µs.
    assert with_cast.kernel_ns - other.kernel_ns == pytest.approx(17_000, abs=2_000)
    assert with_cast.host_ns - other.host_ns == pytest.approx(21_000, abs=2_000)
    assert "making" in {evidence.label for evidence in with_cast.evidence}
    assert "making" not in {evidence.label for evidence in other.evidence}


def test_matmuls_of_a_bias_between_scores_and_softmax_belong_to_the_attention() -> None:
    # The decomposed relative positions of an image encoder.
    half = ["c10::BFloat16"] * 2
    bias = inputs([[32, 384, 64], [32, 64, 32]], half)

    (finding,) = by_hand(
        *("bmm.a", "bmm.b", "bmm.b", "add", "_softmax", "bmm.c"),
        bmm__a=inputs([[12, 1024, 64], [12, 64, 1024]], half),
        bmm__b=bias,
        add=inputs([[12, 32, 32, 32, 32], [12, 32, 32, 32, 1]], half),
        _softmax=inputs([[12, 1024, 1024]], half[:1]),
        bmm__c=inputs([[12, 1024, 1024], [12, 1024, 64]], half),
    )

    assert "its scores [12,1024,1024]" in finding.message
    assert "attn_mask=bias" in finding.advice


@pytest.mark.parametrize(("wait", "host_bound"), [(400, True), (0, False)])
def test_autocast_is_not_advised_where_its_casts_are_waited_for(
    wait: int, *, host_bound: bool
) -> None:
    pause = " " * wait
    trace = load_drawn(
        f"""
        host   [ProfilerStep#1                                                {pause}]
        host    [model.py(44): attend                                        {pause}]
        host     [aten::scaled_dot_product_attention                        ]
        host      [aten::_scaled_dot_product_efficient_attention           ]
        host       [cudaLaunchKernel>1]
        gpu 7                [fmha_cutlassF_f32_aligned_64x64_rf_sm80<1      ]
        """,
        {
            "aten::scaled_dot_product_attention": inputs(
                [[8, 12, 1024, 64]] * 3, ["float"] * 3
            )
        },
        H200,
    )

    (finding,) = outcome(Recording("drawn", trace), "ATT002").findings

    assert ("not with torch.autocast" in finding.advice) is host_bound
    assert ("torch.autocast" in finding.example) is not host_bound
    assert "compare them" in finding.advice


def test_work_on_a_mask_that_takes_the_gpu_no_time_has_no_figure() -> None:
    finding = mask_is_cast(inputs([[8, 1, 1024, 1024]], ["bool"]), kernel=False)
    (line,) = (evidence for evidence in finding.evidence if evidence.label == "making")

    assert line.value is None


def test_attention_of_einops_under_autocast_is_found_and_priced() -> None:
    """As a course's transformer has it, recorded with stacks: 70.0 to 33.4 ms."""
    path = path_of("pairs/cs_hand.trace.json.gz")
    (finding,) = (
        item for item in linted(path, 70_000_000).findings if item.code == "ATT003"
    )
    attention = softmax_and_matmuls(loaded(path), steady_steps(loaded(path)).kernels)

    assert mentions(finding, 6, "[8,16,1024,1024]")
    assert finding.place.function == "scaled_dot_product_attention"
    assert finding.saves_low_ns < 36_600_000 < finding.saves_high_ns
    assert attention is not None


def of_width(width: int, kind: str, *masks: dict[str, Any]) -> Finding:
    """Return the finding on attention by hand with heads of this width."""
    names = ["masked_fill"] * len(masks)
    (finding,) = by_hand(
        *("bmm.first", *names, "_softmax", "bmm.last"),
        bmm__first=inputs([[96, 512, width], [96, width, 512]], [kind] * 2),
        _softmax=inputs([[8, 12, 512, 512]], [kind]),
        bmm__last=inputs([[96, 512, 512], [96, 512, width]], [kind] * 2),
        **dict(zip(names, masks, strict=True)),
    )
    return finding


PADDING = inputs([[8, 12, 512, 512], [8, 1, 1, 512]], [HALF, "bool"])


def test_heads_that_no_fused_kernel_takes_are_padded_first() -> None:
    finding = of_width(50, FLOAT)

    assert "F.pad(query, (0, 2))" in finding.advice
    assert "scale=50 ** -0.5" in finding.advice
    assert "take float32 only with a head dim that is a multiple of 4" in finding.advice
    assert not finding.example


@pytest.mark.parametrize(
    ("width", "kind", "masks"),
    [(52, FLOAT, ()), (64, HALF, (PADDING,)), (50, HALF, ())],
    ids=["float32", "with a mask", "padded by torch"],
)
def test_heads_that_a_fused_kernel_takes_stay(
    width: int, kind: str, masks: tuple[dict[str, Any], ...]
) -> None:
    assert "F.pad" not in of_width(width, kind, *masks).advice


def test_kernels_that_take_a_mask_take_16_bits_in_multiples_of_8() -> None:
    assert "F.pad(query, (0, 4))" in of_width(52, HALF, PADDING).advice


def test_attention_in_float64_has_no_fused_kernels() -> None:
    with pytest.raises(ValueError, match="not enough values"):
        of_width(64, "double")


def test_a_module_of_torch_gets_heads_that_fit_before_it_drops_its_weights() -> None:
    drawing = """
    host [ProfilerStep#1                                                  ]
    host  [model.py(52): forward                                         ]
    host   [nn.Module: MultiheadAttention_0                             ]
    host    [aten::bmm          ] [aten::_softmax     ] [aten::baddbmm  ]
    host    [cudaLaunchKernel>1 ] [cudaLaunchKernel>2 ] [cudaLaunch>3   ]
    gpu 7               [gemm<1         ][softmax<2    ]      [gemm<3    ]
    """
    args = {
        "aten::bmm": inputs([[128, 200, 50], [128, 50, 200]], [FLOAT] * 2),
        "aten::_softmax": inputs([[128, 200, 200]], [FLOAT]),
        "aten::baddbmm": inputs([[1], [128, 200, 200], [128, 200, 50]], [FLOAT] * 3),
    }

    (finding,) = findings_of(
        Recording("drawn", load_drawn(drawing, args, H200)), "ATT003"
    )

    assert "make embed_dim / num_heads 48 or 56 instead of 50" in finding.advice
    assert finding.advice.index("48 or 56") < finding.advice.index("need_weights=False")
    assert finding.severity == Severity.info
    assert not finding.example


def test_ops_between_the_matmuls_that_stay_are_not_saved() -> None:
    # A mask for the queries that were picked, and what is computed of the values.
    names = ("bmm.first", "cumsum", "ones", "triu", "index", "where", "_softmax")
    given = PRODUCTS | {
        "cumsum": inputs([[8, 12, 512, 64], []], [HALF, "Scalar"]),
        "ones": inputs([[], []], ["ScalarList", "Scalar"]),
        "triu": inputs([[512, 512], []], ["bool", "Scalar"], values=["", "1"]),
        "index": inputs([[8, 12, 512, 512], []], ["bool", "TensorList"]),
        "where": inputs([SCORES, SCORES, []], ["bool", HALF, "Scalar"]),
        "_softmax": inputs([SCORES], [HALF]),
    }

    (finding,) = by_hand(*names, "bmm.last", **given)

    assert finding.data["steps"] == ["bmm", "where", "_softmax", "bmm"]
    (kernels, host) = finding.fixes
    assert len(kernels.kernels) == 4
    # Before and after what stays.
    assert host.spans is not None
    assert host.spans.height == 2


def test_a_bias_that_is_computed_between_the_matmuls_stays() -> None:
    given = SQUARE_SCORES | {
        "bmm__bias": inputs([[96, 512, 64], [96, 64, 32]], [HALF] * 2),
        "add": added([8, 12, 512, 512]),
    }

    (finding,) = by_hand(
        "bmm.first", "bmm.bias", "add", "_softmax", "bmm.last", **given
    )

    assert finding.data["steps"] == ["bmm", "add", "_softmax", "bmm"]


def test_scores_and_result_of_different_functions_are_joined_first() -> None:
    drawing = """
    host  [ProfilerStep#1                                                       ]
    host   [attn.py(120): forward                                              ]
    host    [attn.py(50): make_scores]  [attn.py(90): use_scores              ]
    host     [aten::bmm.first  ]         [aten::_softmax    ][aten::bmm.last  ]
    host      [cuLaunch>1     ]           [cuLaunch>2      ]  [cuLaunch>3    ]
    gpu 7      [gemm<1         ]           [softmax<2      ]   [gemm<3       ]
    """
    args = {f"aten::{name.replace('__', '.')}": one for name, one in PRODUCTS.items()}
    args |= {"aten::_softmax": inputs([SCORES], [HALF])}

    (finding,) = findings_of(
        Recording("drawn", load_drawn(drawing, args, H200)), "ATT003"
    )

    assert finding.advice.startswith(
        "pass the query and key that make_scores multiplies to use_scores, instead of"
        " the scores, and there call F.scaled_dot_product_attention(query, key, value"
    )
