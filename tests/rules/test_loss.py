"""LOS: logits in float32, on real traces and on calls that are drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from linting import (
    case_findings,
    drawn_findings,
    outcome,
    priced_findings,
)

from traceq.linter.rule import inputs
from traceq.model.recording import Recording
from traceq.testing import load_drawn
from traceq.testing.examples import DEVICE

if TYPE_CHECKING:
    from traceq.linter import Finding

HALF, FLOAT = "c10::BFloat16", "float"


@pytest.mark.parametrize("case", ["layernorm_autocast", "norm_mismatch"])
def test_log_probabilities_that_autocast_casts_are_found(case: str) -> None:
    (finding,) = case_findings(f"{case}.trace.json.gz", "LOS", measured=True)

    assert (finding.code, finding.place.line) == ("LOS001", 65)
    assert finding.message.startswith("log-probabilities [8192,32000] are cast")
    assert finding.advice.startswith("compile the loss")
    assert "without autocast" in finding.advice
    assert "rounds the loss itself to bfloat16" in finding.advice
    # 745 µs forward and 361 µs backward
    assert finding.saves_ns == pytest.approx(1.107e6, rel=0.01)


@pytest.mark.parametrize("case", ["attn_flash", "norm_fused", "attn_fp32", "copies"])
def test_logits_that_are_not_cast_have_no_finding(case: str) -> None:
    assert not case_findings(f"{case}.trace.json.gz", "LOS")


def test_a_cast_by_the_program_is_found_where_it_is() -> None:
    logits = [2, 512, 32000]
    (finding,) = drawn_findings(
        """
        host  [ProfilerStep#1                                                    ]
        host   [model.py(37): head                  ]
        host    [aten::to                 ]
        host     [aten::_to_copy         ]
        host      [aten::copy_          ]
        host       [cudaLaunchKernel>1]
        host   [train.py(65): step                                              ]
        host                                           [aten::cross_entropy_loss]
        gpu 7                         [bfloat16tofloat32_copy_kernel_cuda<1]
        """,
        "LOS001",
        args={
            "aten::copy_": inputs([logits, logits, []], [FLOAT, HALF, "Scalar"]),
            "aten::cross_entropy_loss": inputs(
                [[1022, 32000], [1022]], [FLOAT, "long int"]
            ),
        },
    )

    assert (finding.place.file, finding.place.line) == ("model.py", 37)
    assert "dropping the cast in head" in finding.advice
    assert "rounds the loss itself to bfloat16" in finding.advice


def test_of_a_softmax_in_float32_half_goes() -> None:
    logits = [1024, 32000]
    (finding,) = drawn_findings(
        """
        host  [ProfilerStep#1                                                    ]
        host   [train.py(65): step                                              ]
        host    [aten::cross_entropy_loss                                      ]
        host     [aten::log_softmax                                           ]
        host      [aten::to                 ] [aten::_log_softmax            ]
        host       [aten::copy_            ]  [cudaLaunchKernel>2           ]
        host        [cudaLaunchKernel>1]
        gpu 7                [bfloat16tofloat32_copy_kernel_cuda<1][softmax<2]
        """,
        "LOS001",
        args={
            "aten::copy_": inputs([logits, logits, []], [FLOAT, HALF, "Scalar"]),
            "aten::_log_softmax": inputs([logits, [], []], [FLOAT, "Scalar", "Scalar"]),
            "aten::cross_entropy_loss": inputs([logits, [1024]], [HALF, "long int"]),
        },
    )

    casts, softmax = finding.fixes
    assert (casts.kernel_share, softmax.kernel_share) == (1.0, 0.5)
    assert len(casts.kernels) == len(softmax.kernels) == 1


def test_beside_compiled_code_the_advice_is_to_compile_the_loss_too() -> None:
    logits = [1024, 32000]
    (finding,) = drawn_findings(
        """
        host  [ProfilerStep#1                                                        ]
        host   [Torch-Compiled Region: 0/0][aten::cross_entropy_loss                ]
        host                                [aten::to              ]
        host                                 [aten::copy_         ]
        host                                  [cudaLaunchKernel>1]
        gpu 7                                      [bfloat16tofloat32_copy_kernel<1]
        """,
        "LOS001",
        args={
            "aten::copy_": inputs([logits, logits, []], [FLOAT, HALF, "Scalar"]),
            "aten::cross_entropy_loss": inputs([logits, [1024]], [HALF, "long int"]),
        },
    )

    assert finding.advice.startswith("compile model and loss as one function")


@pytest.mark.parametrize(
    ("outer", "inner", "advice"),
    [
        (
            "train.py(1): <module>",
            "transformers/loss/loss_utils.py(47): ForCausalLMLoss",
            "the cast is in ForCausalLMLoss (transformers/loss/loss_utils.py:47): call"
            " the model without labels",
        ),
        (
            "train.py(9): step",
            "lm/loss.py(7): __call__",
            "dropping the cast in __call__",
        ),
        (
            "a.py(1): <module>",
            "train.py(1): <module>",
            "dropping the cast in train.py ",
        ),
    ],
)
def test_a_cast_in_a_library_is_left_out_by_the_library_s_own_switch(
    outer: str, inner: str, advice: str
) -> None:
    logits = [2, 512, 32000]
    (finding,) = drawn_findings(
        f"""
        host  [ProfilerStep#1 {" " * 100}]
        host   [{outer:<100}]
        host    [{inner:<90}]
        host    [aten::to                 ]
        host     [aten::_to_copy         ]
        host      [aten::copy_          ]
        host       [cudaLaunchKernel>1]
        host                                           [aten::cross_entropy_loss]
        gpu 7                         [bfloat16tofloat32_copy_kernel_cuda<1]
        """,
        "LOS001",
        args={
            "aten::copy_": inputs([logits, logits, []], [FLOAT, HALF, "Scalar"]),
            "aten::cross_entropy_loss": inputs(
                [[1022, 32000], [1022]], [FLOAT, "long int"]
            ),
        },
    )

    assert advice in finding.advice
    assert "the loss stays float32" in finding.advice
    assert "rounds the loss itself" in finding.advice


HEADED = """
    host   [ProfilerStep#1                                                            ]
    host    [model.py(9): forward                                                    ]
    host     [aten::mm              ][{pick:<20}][{reader:<20}]
    host      [cudaLaunchKernel>1]                          [cuLaunch>2]
    gpu 7                  [nvjet_tst<1                            ][other<2         ]
"""
LOGITS, KINDS = [8, 512, 32000], [HALF, "Scalar", "Scalar"]
MATMUL = {"aten::mm": inputs([[4096, 768], [768, 32000]], [HALF, HALF])}


def head(
    pick: dict[str, Any], name: str = "aten::slice", reader: str = "aten::argmax"
) -> tuple[Finding, ...]:
    """Return what LOS002 says of a head and what reads its logits."""
    read = {"aten::argmax": inputs([[8, 1, 32000]], [HALF])}
    drawing = HEADED.format(pick=name, reader=reader)
    return priced_findings(
        drawing,
        "LOS002",
        args=MATMUL
        | {name: pick}
        | read
        | {
            "aten::softmax": inputs([LOGITS], [HALF]),
            "aten::copy_": inputs([LOGITS, LOGITS], [FLOAT, HALF]),
        },
    )


@pytest.mark.parametrize(
    ("name", "values", "read"),
    [
        ("aten::select", ["", "1", "-1"], 8),
        ("aten::slice", ["", "1", "-1", "9223372036854775807", "1"], 8),
        ("aten::slice", ["", "1", "-64", "9223372036854775807", "1"], 512),
        # Shifted by one for the loss, all of them, and one of the words.
        ("aten::slice", ["", "1", "0", "-1", "1"], None),
        ("aten::slice", ["", "0", "0", "9223372036854775807", "1"], None),
        ("aten::select", ["", "2", "17"], None),
    ],
)
def test_a_head_is_reported_where_few_of_its_positions_are_read(
    name: str, values: list[str], read: int | None
) -> None:
    findings = head(inputs([LOGITS], KINDS, values=values), name)

    assert [finding.data["read"] for finding in findings] == [read] * (read is not None)
    for finding in findings:
        assert "head(hidden[:, -1:])" in finding.advice
        assert finding.fixes[0].kernel_share == pytest.approx(1 - (read or 0) / 4096)


def test_the_weight_of_a_head_is_read_for_one_position_as_for_all() -> None:
    trace = load_drawn(
        HEADED.format(pick="aten::select", reader="aten::argmax"),
        MATMUL | {"aten::select": inputs([LOGITS], KINDS, values=["", "1", "-1"])},
        DEVICE,
    )

    (finding,) = outcome(Recording("drawn", trace), "LOS002").findings

    # 49 MB of 41 µs.
    assert 0.5 < finding.fixes[0].kernel_share < 0.7


@pytest.mark.parametrize(
    ("reader", "reported"),
    [("aten::softmax", False), ("aten::copy_", True), ("aten::argmax", True)],
)
def test_a_head_all_of_whose_positions_something_reads_is_left_alone(
    reader: str, *, reported: bool
) -> None:
    pick = inputs([LOGITS], KINDS, values=["", "1", "-1"])

    assert bool(head(pick, "aten::select", reader)) is reported


def test_logits_that_the_host_reads_are_all_read() -> None:
    drawing = HEADED.format(pick="aten::select", reader="aten::copy_")
    args = MATMUL | {
        "aten::select": inputs([LOGITS], KINDS, values=["", "1", "-1"]),
        "aten::copy_": inputs([LOGITS, LOGITS], [HALF, HALF]),
    }

    sent = drawing.replace("[other<2         ]", "[Memcpy DtoH<2   ]")

    assert not drawn_findings(sent, "LOS002", args=args)


def test_a_mask_over_positions_picks_as_many_as_its_indices() -> None:
    drawing = """
    host   [ProfilerStep#1                                                            ]
    host    [model.py(9): forward                                                    ]
    host     [aten::mm              ][aten::index                  ][aten::argmax]
    host      [cudaLaunchKernel>1]    [aten::reshape][aten::reshape] [cuLaunch>2]
    gpu 7                  [nvjet_tst<1                            ][other<2         ]
    """
    args = MATMUL | {
        "aten::index": inputs([LOGITS, []], [HALF, ""]),
        "aten::reshape": inputs([[600], []], ["long int", "ScalarList"]),
        "aten::argmax": inputs([[600, 32000]], [HALF]),
    }

    (finding,) = priced_findings(drawing, "LOS002", args=args)

    assert finding.data["read"] == 600


@pytest.mark.parametrize(
    ("module", "causal", "length", "checked"),
    [
        ("LM_0", "False", 512, True),
        ("LM_0", "True", 512, False),
        ("BertForMaskedLM_0", "True", 512, True),
        # A classifier of one position of each sequence.
        ("ViT_0", "False", 64, False),
    ],
)
def test_whether_the_loss_ignores_most_positions_is_to_be_checked(
    module: str, causal: str, length: int, *, checked: bool
) -> None:
    loss = "cross_entropy_loss"
    drawing = f"""
    host   [ProfilerStep#1                                                            ]
    host    [nn.Module: {module:<20}                                                 ]
    host     [aten::scaled_dot_product_attention][aten::mm    ][aten::{loss}]
    host      [cuLaunch>3]                         [cuLaunch>1]   [cuLaunch>2]
    host 2                                                           [AddBackward0]
    gpu 7                    [flash<3]                [nvjet<1             ][loss<2   ]
    """
    args = MATMUL | {
        "aten::scaled_dot_product_attention": inputs(
            [[8, 12, length, 64]] * 3 + [[]] * 3,
            [HALF] * 3 + ["", "Scalar", "Scalar"],
            values=["", "", "", "", "0.", causal],
        ),
        "aten::cross_entropy_loss": inputs([[4096, 32000], [4096]], [HALF, "long int"]),
    }

    findings = priced_findings(drawing, "LOS002", args=args)

    assert [finding.subject for finding in findings] == ["masked"] * checked
    for finding in findings:
        assert "check how many targets the loss ignores" in finding.advice
        assert not finding.fixes
        assert not finding.kernels
