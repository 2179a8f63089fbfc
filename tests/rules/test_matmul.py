"""GEM: matmuls on slow kernels, on real traces and on calls that are drawn."""

from __future__ import annotations

import pytest
from linting import (
    bundled_rules,
    case_findings,
    drawn_findings,
    outcome,
    priced_findings,
)
from recordings import saved_ns

from traceq.linter.rule import Bad, inputs
from traceq.linter.run import Views, run_rule
from traceq.model.recording import Recording
from traceq.testing import load_drawn
from traceq.testing.examples import DEVICE, drawn


def test_float32_matmuls_without_tf32_are_one_finding() -> None:
    (finding,) = case_findings("attn_fp32.trace.json.gz", "GEM", measured=True)

    assert (finding.code, finding.place.file) == ("GEM001", "dev_cases.py")
    assert finding.count == 51
    # The rest of what bfloat16 saves is not TF32's.
    saved = saved_ns("attn_fp32", "attn_flash")
    assert 0.6 * saved < finding.saves_ns < saved


def test_a_misaligned_vocabulary_is_found_where_the_head_is() -> None:
    (finding,) = case_findings("vocab_misaligned.trace.json.gz", "GEM", measured=True)

    assert (finding.code, finding.place.line) == ("GEM002", 37)
    assert finding.data == {"size": 50257, "loads": 1}
    assert finding.advice.startswith("pad 50257 to 50304, a multiple of 64")
    saved = saved_ns("vocab_misaligned", "vocab_padded")
    assert 0.8 * saved < finding.saves_ns < saved


@pytest.mark.parametrize(
    "case",
    [
        *(f"{case}.trace" for case in ("vocab_padded", "attn_flash", "graph_replay")),
        *(f"{case}.trace" for case in ("norm_fused", "moe_batched", "moe_loop")),
        # These GPUs have no TF32, and 10 classes are not padded to 16.
        *("public/t4_fp32", "public/t4_amp", "public/v100_resnet50_workers0"),
        # TF32 is on: some sizes have no kernel for it.
        "public/compact_sampled_rank0",
    ],
)
def test_matmuls_on_the_kernels_they_should_be_on_have_no_finding(case: str) -> None:
    assert not case_findings(f"{case}.json.gz", "GEM")


MM = """
    host  [ProfilerStep#1                                                    ]
    host   [aten::mm           ]
    host    [cudaLaunchKernel>1]
    gpu 7      [cutlass_75_tensorop_f16_s1688gemm_f16_256x128_nn_align2<1]
"""


@pytest.mark.parametrize(
    ("dims", "strides", "size"),
    [
        # The first matrix is transposed: its rows in memory are 1001 long.
        ([[1001, 64], [64, 512]], [[1, 1001], [512, 1]], 1001),
        # How many tokens there are does not matter.
        ([[1001, 64], [64, 512]], [[64, 1], [512, 1]], None),
    ],
)
def test_the_size_to_blame_is_the_length_of_a_row_in_memory(
    dims: list[list[int]], strides: list[list[int]], size: int | None
) -> None:
    (finding,) = drawn_findings(
        MM, "GEM002", args={"aten::mm": inputs(dims, ["c10::Half"] * 2, strides)}
    )

    assert finding.data["size"] == size


def test_without_shapes_the_kernel_shows_that_a_dimension_is_misaligned() -> None:
    (finding,) = priced_findings(MM, "GEM002")

    assert finding.message.endswith("a dimension that is not a multiple of 8")
    # Half of the kernel's time: how fast it could be is not known.
    assert finding.gpu_ns == pytest.approx(0.5 * 58_000, rel=0.1)


def test_the_matrices_of_one_matmul_are_named_together() -> None:
    half = ["c10::BFloat16"] * 2
    kernel = "cutlass_75_tensorop_bf16_s1688gemm_bf16_128x128_tn_align1"
    (finding,) = priced_findings(
        f"""
        host  [ProfilerStep#1                                                         ]
        host   [model.py(37): forward                                                ]
        host    [aten::mm           ][aten::bmm          ][aten::addmm              ]
        host    [cudaLaunchKernel>1 ][cudaLaunchKernel>2 ][cudaLaunchKernel>3       ]
        gpu 7      [{kernel}<1]
        gpu 7      {" " * 70}[{kernel}<2]
        gpu 7      {" " * 140}[{kernel}<3]
        """,
        "GEM002",
        args={
            "aten::mm": inputs([[64, 768], [768, 50257]], half),
            "aten::bmm": inputs([[64, 768], [768, 50259]], half),
            "aten::addmm": inputs(
                [[1], [32, 768], [768, 50257]], ["c10::BFloat16", *half]
            ),
        },
    )

    (shapes,) = [line.name for line in finding.evidence if line.label == "shapes"]
    assert sorted(shapes.split(", ")) == [
        "[32,768] × [768,50257]",
        "[64,768] × [768,50257]",
        "[64,768] × [768,50259]",
    ]


@pytest.mark.parametrize("code", ["GEM001", "GEM003"])
@pytest.mark.parametrize(
    ("right", "expected"), [([1023, 1], 0), ([1023, 511], 1), ([1023], 0)]
)
def test_a_matrix_times_a_vector_gains_nothing_from_tensor_cores(
    code: str, right: list[int], expected: int
) -> None:
    dtype = "float" if code == "GEM001" else "c10::Half"
    kernel = "ampere_sgemm_128x64_nn" if code == "GEM001" else "turing_fp16_sgemm_fp16"
    drawing = f"""
        host  [ProfilerStep#1 {" " * 60}]
        host   [aten::mm           ]
        host    [cudaLaunchKernel>1]
        gpu 7               [{kernel}<1 {" " * 30}]
    """
    given = inputs([[2560, 1023], right], [dtype] * 2)
    example = Bad(drawing, finds=(), args={"aten::mm": given})

    findings = run_rule(bundled_rules()[code](), Views(drawn(example)))

    assert len(findings) == expected


@pytest.mark.parametrize(("host", "advised"), [(300, False), (2, True)])
def test_autocast_is_faster_only_where_the_gpu_bounds_the_step(
    host: int, *, advised: bool
) -> None:
    wait = " " * host
    trace = load_drawn(
        f"""
        host  [ProfilerStep#1{wait}                           ]
        host   [aten::mm    ]{wait}[aten::mm    ]
        host    [cuLaunch>1]{wait} [cuLaunch>2]
        gpu 7         [ampere_sgemm_9<1]{wait[8:]}[ampere_sgemm_9<2]
        """,
        {"aten::mm": inputs([[512, 512], [512, 512]], ["float", "float"])},
        DEVICE,
    )

    (finding,) = outcome(Recording("drawn", trace), "GEM001").findings

    assert ("autocast" in finding.advice) is advised


def test_the_example_of_a_head_has_the_program_s_sizes() -> None:
    rule = bundled_rules()["GEM002"]
    bad = next(example for example in rule.examples if isinstance(example, Bad))
    sizes = inputs([[64, 1024], [1024, 32003]], ["c10::BFloat16"] * 2)

    (finding,) = drawn_findings(bad.drawing, "GEM002", args={"aten::mm": sizes})

    assert "nn.Linear(1024, 32003" in finding.example
    assert "nn.Linear(1024, 32064" in finding.example


def test_a_float32_matmul_beside_others_in_16_bits_is_to_be_checked() -> None:
    """As a loss in float32 under autocast: autocast is on already."""
    trace = load_drawn(
        """
        host  [ProfilerStep#1                                                          ]
        host   [aten::mm    ][aten::mm.16 ][aten::mm.16 ]
        host    [cuLaunch>1]  [cuLaunch>2]  [cuLaunch>3]
        gpu 7         [ampere_sgemm_9<1] [s16816gemm_bf16<2][s16816gemm_bf16_9<3]
        """,
        {
            "aten::mm": inputs([[512, 512], [512, 512]], ["float", "float"]),
            "aten::mm.16": inputs([[512, 512]] * 2, ["c10::BFloat16"] * 2),
        },
        DEVICE,
    )

    (finding,) = outcome(Recording("drawn", trace), "GEM001").findings

    assert "the other matmuls run in bfloat16: check" in finding.advice
    assert "torch.autocast" not in finding.advice


@pytest.mark.parametrize(
    ("op", "dims", "words"),
    [
        ("mm", [[64, 300], [300, 512]], "pad 300 to 304, a multiple of 8, where"),
        ("bmm", [[8, 64, 64], [8, 64, 197]], "call F.scaled_dot_product_attention"),
        ("mm", [[64, 768], [768, 50257]], "if it is the vocabulary"),
    ],
)
def test_what_is_to_be_padded_is_a_feature_a_length_or_the_vocabulary(
    op: str, dims: list[list[int]], words: str
) -> None:
    drawing = MM.replace("aten::mm ", f"aten::{op}".ljust(9))

    (finding,) = drawn_findings(
        drawing, "GEM002", args={f"aten::{op}": inputs(dims, ["c10::Half"] * 2)}
    )

    assert words in finding.advice


def test_a_row_of_3_values_is_not_padded_for_tensor_cores() -> None:
    """As of points in space: it would be almost three times as long."""
    drawing = """
        host  [ProfilerStep#1                                                  ]
        host   [aten::mm           ]
        host    [cudaLaunchKernel>1]
        gpu 7               [turing_fp16_sgemm_fp16_128x64_tn<1               ]
    """
    args = {"aten::mm": inputs([[2560, 3], [3, 512]], ["c10::Half"] * 2)}

    assert not drawn_findings(drawing, "GEM003", args=args)
