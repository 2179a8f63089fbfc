"""LOS: logits in float32, on real traces and on calls that are drawn."""

from __future__ import annotations

import pytest
from linting import (
    case_findings,
    drawn_findings,
)

from traceq.linter.rule import inputs

HALF, FLOAT = "c10::BFloat16", "float"


@pytest.mark.parametrize("case", ["layernorm_autocast", "norm_mismatch"])
def test_log_probabilities_that_autocast_casts_are_found(case: str) -> None:
    (finding,) = case_findings(f"{case}.trace.json.gz", "LOS", measured=True)

    assert (finding.code, finding.place.line) == ("LOS001", 65)
    assert finding.message.startswith("log-probabilities [8192,32000] are cast")
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
    assert finding.advice.startswith("drop the cast in head")


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
            "drop the cast in __call__",
        ),
        ("a.py(1): <module>", "train.py(1): <module>", "drop the cast in train.py: "),
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

    assert finding.advice.startswith(advice)
