"""NRM: norms op by op and between casts, on real traces and on calls that are drawn."""

from __future__ import annotations

import re
from typing import Any

import pytest
from linting import (
    case_findings,
    drawn_findings,
    mentions,
    priced_findings,
)
from recordings import saved_ns

from traceq.linter.rule import inputs

HALF, FLOAT = "c10::BFloat16", "float"
DIMS, MEAN, WEIGHT = [8, 1024, 768], [8, 1024, 1], [768]


@pytest.mark.parametrize(
    ("case", "norm"),
    [("norm_mismatch", "RMSNorm"), ("layernorm_autocast", "LayerNorm")],
)
def test_a_norm_whose_result_autocast_casts_is_found(case: str, norm: str) -> None:
    worst, last = case_findings(f"{case}.trace.json.gz", "NRM", measured=True)

    assert (worst.code, worst.place.file, worst.place.line, worst.count) == (
        *("NRM003", "dev_cases.py", 23),
        8,
    )
    assert (last.code, last.place.line, last.count) == ("NRM003", 37, 1)
    assert mentions(worst, norm, "float32", 8)
    # Casts of weights and sums in float32 make up the rest of the difference.
    assert 0.2e6 < worst.saves_ns < saved_ns(case, "attn_flash")


@pytest.mark.parametrize("case", ["norm_fused", "attn_flash", "moe_batched", "copies"])
def test_norms_in_the_dtype_of_the_model_have_no_finding(case: str) -> None:
    assert not case_findings(f"{case}.trace.json.gz", "NRM")


def ops_in_a_row(*names: str, around: tuple[str, ...] = (), copying: str = "k") -> str:
    """Draw ops one after the other, each with a kernel, and the calls around them.

    ``copying`` is the kernel of ops that copy.
    """
    width = 20
    lines = {"op": "", "call": "", "gpu": " "}
    for number, name in enumerate(names, 1):
        lines["op"] += f"[{name}".ljust(width - 1) + "]"
        lines["call"] += f"[cuLaunchKernel>{number}".ljust(width - 1) + "]"
        kernel = copying if name in ("aten::to", "aten::type_as") else "k"
        lines["gpu"] += f"[{kernel}<{number}".ljust(width - 1) + "]"
    calls = "\n".join(
        f"    host   [{item}".ljust(10 + width * len(names)) + "]" for item in around
    )
    return f"""
    host  [ProfilerStep#1{" " * width * len(names)}]
{calls}
    host   {lines["op"]}
    host   {lines["call"]}
    gpu 7  {lines["gpu"]}
    """


NORM: dict[str, Any] = {
    "aten::to": inputs([DIMS], [HALF]),
    "aten::pow": inputs([DIMS], [FLOAT]),
    "aten::mean": inputs([DIMS], [FLOAT]),
    "aten::add": inputs([MEAN], [FLOAT]),
    "aten::rsqrt": inputs([MEAN], [FLOAT]),
    "aten::mul": inputs([DIMS, MEAN], [FLOAT] * 2),
    "aten::type_as": inputs([DIMS, DIMS], [FLOAT, HALF]),
    "aten::mul_": inputs([DIMS, WEIGHT], [HALF] * 2),
    "aten::add_": inputs([DIMS, DIMS], [HALF] * 2),
}


def test_a_handwritten_norm_reaches_from_its_first_cast_to_its_weight() -> None:
    names = ("to", "pow", "mean", "add", "rsqrt", "mul", "type_as", "mul_", "add_")
    drawing = ops_in_a_row(*(f"aten::{name}" for name in names))

    (finding,) = drawn_findings(drawing, "NRM", args=NORM)

    # The sum with the residual is not part of the norm.
    assert finding.data["steps"] == list(names[:-1])
    assert mentions(finding, "RMSNorm", 768, 8, "once")


@pytest.mark.parametrize(
    ("copying", "casts"),
    [("copy_kernel", True), ("Memcpy HtoD", False), ("Memcpy DtoD", False)],
)
def test_a_cast_is_part_of_a_norm_and_a_transfer_is_not(
    copying: str, *, casts: bool
) -> None:
    names = ("to", "pow", "mean", "rsqrt", "mul", "type_as")
    drawing = ops_in_a_row(*(f"aten::{name}" for name in names), copying=copying)

    (finding,) = drawn_findings(drawing, "NRM002", args=NORM)

    assert finding.data["steps"] == list(names if casts else names[1:-1])


def test_a_norm_that_subtracts_its_mean_is_a_layer_norm() -> None:
    drawing = ops_in_a_row("aten::var", "aten::sub", "aten::sqrt", "aten::div")
    args = {
        "aten::var": inputs([DIMS], [FLOAT]),
        "aten::sub": inputs([DIMS, MEAN], [FLOAT] * 2),
        "aten::sqrt": inputs([MEAN], [FLOAT]),
        "aten::div": inputs([DIMS, MEAN], [FLOAT] * 2),
    }

    (finding,) = drawn_findings(drawing, "NRM002", args=args)

    assert finding.subject == "LayerNorm"
    assert "F.layer_norm(x, (768,)" in finding.advice
    assert "+ x = F.layer_norm(x" in finding.example


def test_the_norm_of_a_library_is_replaced_and_not_where_it_is_called() -> None:
    drawing = ops_in_a_row(
        *("aten::pow", "aten::mean", "aten::rsqrt", "aten::mul"),
        around=(
            "train.py(9): step",
            "nn.Module: T5LayerNorm_3",
            "transformers/models/t5/modeling_t5.py(59): forward",
        ),
    )

    (finding,) = drawn_findings(drawing, "NRM002", args=NORM)

    assert finding.place.function == "step"
    assert finding.advice.startswith(
        "in your own version of T5LayerNorm (transformers): call F.rms_norm("
    )
    assert "T5LayerNorm.forward = forward" in finding.example


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_norm_that_multiplies_by_one_and_the_weight_passes_their_sum(
    dtype: str,
) -> None:
    given = HALF if dtype == "bfloat16" else FLOAT
    shifted = {
        "aten::to": inputs([DIMS], [given]),
        "aten::add_": inputs([MEAN, []], [FLOAT, "Scalar"]),
        "aten::add": inputs([WEIGHT, []], [FLOAT, "Scalar"]),
        "aten::mul_": inputs([DIMS, WEIGHT], [FLOAT] * 2),
    }
    names = ("to", "pow", "mean", "add_", "rsqrt", "mul", "add", "mul_", "type_as")
    drawing = ops_in_a_row(*(f"aten::{name}" for name in names))

    (finding,) = drawn_findings(drawing, "NRM002", args=NORM | shifted)

    assert "F.rms_norm(x, (768,), 1 + weight, eps=eps)" in finding.advice
    assert ("the sum is rounded" in finding.advice) == (dtype == "bfloat16")
    assert "F.rms_norm(x, (x.size(-1),), 1 + self.weight, eps)" in finding.example
    assert "* (1 + self.weight)" in finding.example


def test_a_norm_that_adds_a_bias_passes_its_weight_as_it_is() -> None:
    biased = {
        "aten::add_": inputs([MEAN, []], [FLOAT, "Scalar"]),
        "aten::add": inputs([DIMS, WEIGHT], [FLOAT] * 2),
        "aten::mul_": inputs([DIMS, WEIGHT], [FLOAT] * 2),
    }
    names = ("to", "pow", "mean", "add_", "rsqrt", "mul", "mul_", "add", "type_as")
    drawing = ops_in_a_row(*(f"aten::{name}" for name in names))

    (finding,) = drawn_findings(drawing, "NRM002", args=NORM | biased)

    assert "1 + weight" not in finding.advice + finding.example


@pytest.mark.parametrize(
    ("argument", "weight"), [("float", HALF), (HALF, "float"), ("c10::Half", "float")]
)
def test_the_example_of_an_unfused_norm_has_the_dtype_of_its_fix(
    argument: str, weight: str
) -> None:
    dtypes = {"aten::rms_norm": inputs([DIMS, [], WEIGHT], [argument, "", weight])}
    drawing = ops_in_a_row("aten::to", "aten::pow", around=("aten::rms_norm",))

    (finding,) = drawn_findings(drawing, "NRM001", args=dtypes)

    (named,) = set(re.findall(r"torch\.(\w*float\d+)", finding.advice))
    assert set(re.findall(r"torch\.(\w*float\d+)", finding.example)) == {named}


def test_a_root_without_a_mean_is_not_a_norm() -> None:
    drawing = ops_in_a_row("aten::pow", "aten::rsqrt", "aten::mul")

    assert not drawn_findings(drawing, "NRM002", args=NORM)


def test_a_cast_of_another_shape_is_not_that_of_the_norm() -> None:
    drawing = """
    host  [ProfilerStep#1                                                      ]
    host   [aten::layer_norm        ][aten::linear                            ]
    host   [aten::native_layer_norm ][aten::_to_copy                         ]
    host   [cudaLaunchKernel>1]      [aten::copy_                          ]
    host                              [cudaLaunchKernel>2]
    gpu 7              [layer_norm<1 ]          [copy<2  ]
    """
    args = {
        "aten::native_layer_norm": inputs([DIMS], [FLOAT]),
        "aten::copy_": inputs([[2304, 768]] * 2, [HALF, FLOAT]),
    }

    assert not drawn_findings(drawing, "NRM003", args=args)


def test_the_result_of_a_norm_may_be_viewed_as_a_matrix_before_it_is_cast() -> None:
    drawing = """
    host  [ProfilerStep#1                                                      ]
    host   [aten::layer_norm        ][aten::addmm                             ]
    host   [aten::native_layer_norm ][aten::_to_copy                         ]
    host   [cudaLaunchKernel>1]      [aten::copy_                          ]
    host                              [cudaLaunchKernel>2]
    gpu 7              [layer_norm<1 ]          [copy<2  ]
    """
    args = {
        "aten::native_layer_norm": inputs([DIMS], [FLOAT]),
        "aten::copy_": inputs([[8 * 1024, 768]] * 2, [HALF, FLOAT]),
    }

    (finding,) = drawn_findings(drawing, "NRM003", args=args)

    assert "its result is cast to bfloat16" in finding.message


def test_the_casts_go_whole_and_the_norm_in_part() -> None:
    drawing = """
    host  [ProfilerStep#1                                                      ]
    host   [aten::layer_norm        ][aten::linear                            ]
    host   [aten::native_layer_norm ][aten::_to_copy                         ]
    host   [cudaLaunchKernel>1]      [aten::copy_                          ]
    host                              [cudaLaunchKernel>2]
    gpu 7              [layer_norm<1 ]          [copy<2  ]
    """
    args = {
        "aten::native_layer_norm": inputs([DIMS], [FLOAT]),
        "aten::copy_": inputs([DIMS] * 2, [HALF, FLOAT]),
    }

    (finding,) = priced_findings(drawing, "NRM003", args=args)

    norm, cast = 15_000, 10_000
    assert [(len(fix.kernels), fix.kernel_share) for fix in finding.fixes] == [
        (1, 1.0),
        (1, pytest.approx(1 / 3)),
    ]
    assert finding.kernel_ns == pytest.approx(cast + norm / 3, abs=1)


@pytest.mark.parametrize("trains", [True, False])
def test_a_model_that_is_trained_in_float16_is_not_to_be_kept_in_float16(
    *, trains: bool
) -> None:
    drawing = f"""
    host  [ProfilerStep#1                                                      ]
    host   [aten::layer_norm        ][aten::linear                            ]
    host   [aten::native_layer_norm ][aten::_to_copy                         ]
    host   [cudaLaunchKernel>1]      [aten::copy_                          ]
    host                              [cudaLaunchKernel>2]
    host 2                                              {"[AddmmBackward0]" * trains}
    gpu 7              [layer_norm<1 ]          [copy<2  ]
    """
    args = {
        "aten::native_layer_norm": inputs([DIMS], [FLOAT]),
        "aten::copy_": inputs([DIMS] * 2, ["c10::Half", FLOAT]),
    }

    (finding,) = priced_findings(drawing, "NRM003", args=args)

    assert ("GradScaler" in finding.advice) == trains
    assert ("model.to(torch.float16)" in finding.advice) != trains
    # Compiled code computes the norm in float32 as before: only the casts go.
    norm, cast = 15_000, 10_000
    assert finding.kernel_ns == pytest.approx(cast + (not trains) * norm / 3, abs=1)


MATMUL_BETWEEN = """
    host  [ProfilerStep#1                                                              ]
    host   [aten::layer_norm        ][aten::{between}      ][aten::to                 ]
    host   [aten::native_layer_norm ][cudaLaunchKernel>2]   [aten::_to_copy         ]
    host   [cudaLaunchKernel>1]                              [aten::copy_          ]
    host                                                     [cudaLaunchKernel>3]
    gpu 7              [layer_norm<1 ]           [kernel<2 ]        [copy<3        ]
"""


@pytest.mark.parametrize(("between", "cast"), [("linear", False), ("silu", True)])
def test_a_cast_behind_a_matmul_is_not_that_of_a_norm(
    between: str, *, cast: bool
) -> None:
    args = {
        "aten::native_layer_norm": inputs([DIMS], [FLOAT]),
        "aten::copy_": inputs([DIMS] * 2, [HALF, FLOAT]),
    }

    drawing = MATMUL_BETWEEN.format(between=between)

    assert bool(drawn_findings(drawing, "NRM003", args=args)) == cast


WRITTEN_CASTS = """
    host  [ProfilerStep#1                                                              ]
    host   [aten::to        ][aten::{norm}         ][aten::to        ]{later}
    host   [aten::_to_copy  ][aten::native_{norm}  ][aten::_to_copy  ]{cast}
    host   [aten::copy_.up  ][cudaLaunchKernel>2       ][aten::copy_.down]{copy}
    host   [cuLaunch>1]                                 [cuLaunch>3 ]
    gpu 7           [copy<1 ]             [norm<2 ]              [copy<3 ]
"""


@pytest.mark.parametrize("autocast", [True, False])
@pytest.mark.parametrize("norm", ["layer_norm", "group_norm"])
def test_casts_that_the_program_writes_around_a_norm_are_left_out(
    norm: str, *, autocast: bool
) -> None:
    """``super().forward(x.float()).type(x.dtype)``."""
    drawing = WRITTEN_CASTS.format(
        norm=norm,
        later="[aten::linear      ]" * autocast,
        cast="[aten::_to_copy.1]" * autocast,
        copy="[aten::copy_.1 ]" * autocast,
    )
    args = {
        f"aten::native_{norm}": inputs([DIMS], [FLOAT]),
        "aten::copy_.up": inputs([DIMS] * 2, [FLOAT, HALF]),
        "aten::copy_.down": inputs([DIMS] * 2, [HALF, FLOAT]),
        "aten::copy_.1": inputs([[64, 64]] * 2, [HALF, FLOAT]),
    }

    (finding,) = priced_findings(drawing, "NRM003", args=args)

    assert "its input is cast from bfloat16 and its result is cast" in finding.message
    assert (f"F.{norm}(x," in finding.advice) != autocast
    assert ("autocast would run" in finding.advice) == autocast
    assert not finding.example
    # The casts go whole, and a third of the norm where it may be narrow.
    assert [(len(fix.kernels), fix.kernel_share) for fix in finding.fixes] == (
        [(2, 1.0)] if autocast else [(2, 1.0), (1, pytest.approx(1 / 3))]
    )


def test_casts_before_the_recorded_steps_do_not_part_a_norm_from_its_own() -> None:
    """They run in a warm-up, none of whose kernels count."""
    step = WRITTEN_CASTS.format(norm="layer_norm", later="", cast="", copy="")
    warm_up = "[aten::to.1]".ljust(14)
    lines = [line for line in step.splitlines() if line.strip()]
    before = {
        1: warm_up,
        2: "[aten::_to_copy.w]",
        3: "[aten::copy_.1]",
        4: "[cuLaunch>9]",
    }
    drawing = "\n".join(
        line[:10] + " " + before.get(at, "").ljust(30) + line[10:]
        for at, line in enumerate(lines)
    )
    args = {
        "aten::native_layer_norm": inputs([DIMS], [FLOAT]),
        "aten::copy_.up": inputs([DIMS] * 2, [FLOAT, HALF]),
        "aten::copy_.down": inputs([DIMS] * 2, [HALF, FLOAT]),
        "aten::copy_.1": inputs([[64, 64]] * 2, [HALF, FLOAT]),
    }

    (finding,) = drawn_findings(drawing, "NRM003", args=args)

    assert "its input is cast from bfloat16 and its result is cast" in finding.message


def test_a_norm_that_runs_two_fused_ones_has_its_casts_counted_once() -> None:
    drawing = """
    host  [ProfilerStep#1                                                              ]
    host   [aten::layer_norm                                  ][aten::linear          ]
    host    [aten::native_layer_norm][aten::native_layer_norm] [aten::_to_copy       ]
    host    [cudaLaunchKernel>1]     [cudaLaunchKernel>2]       [aten::copy_        ]
    host                                                        [cudaLaunchKernel>3]
    gpu 7              [layer_norm<1 ]      [layer_norm<2 ]            [copy<3  ]
    """
    args = {
        "aten::native_layer_norm": inputs([DIMS], [FLOAT]),
        "aten::copy_": inputs([DIMS] * 2, [HALF, FLOAT]),
    }

    (finding,) = drawn_findings(drawing, "NRM003", args=args)

    (casts,) = (entry for entry in finding.evidence if entry.label == "casts")
    assert casts.value == pytest.approx(10_000, abs=1)


def test_of_a_handwritten_norm_all_host_time_goes_but_that_of_a_fused_call() -> None:
    names = ("to", "pow", "mean", "add", "rsqrt", "mul", "type_as", "mul_")
    drawing = ops_in_a_row(*(f"aten::{name}" for name in names))

    (finding,) = priced_findings(drawing, "NRM002", args=NORM)

    # A fused norm takes the host as long as three launches.
    assert finding.host_ns == 1000 * 20 * (len(names) - 3)


def test_the_backward_of_a_handwritten_norm_goes_too() -> None:
    forward = ("pow", "mean", "rsqrt", "mul")
    nodes = [*forward, "add"]
    names = [
        *(f"aten::{name}" for name in forward),
        *(f"{name}Backward0" for name in nodes),
    ]
    args = {
        f"aten::{name}": {**NORM[f"aten::{name}"], **_numbered(number, 0)}
        for number, name in enumerate(forward)
    } | {f"{name}Backward0": _numbered(at % 4, 1) for at, name in enumerate(nodes)}

    (finding,) = priced_findings(ops_in_a_row(*names), "NRM002", args=args)

    # Of four launches the fused forward leaves three, of five its backward four.
    assert finding.host_ns == 1000 * 20 * (1 + 1)


def _numbered(sequence: int, thread: int) -> dict[str, int]:
    return {"Sequence number": sequence, "Fwd thread id": thread}


def test_the_host_time_of_the_casts_around_a_norm_goes() -> None:
    drawing = """
    host  [ProfilerStep#1                                                      ]
    host   [aten::layer_norm        ][aten::linear                            ]
    host   [aten::native_layer_norm ][aten::_to_copy                         ]
    host   [cudaLaunchKernel>1]      [aten::copy_                          ]
    host                              [cudaLaunchKernel>2]
    gpu 7              [layer_norm<1 ]          [copy<2  ]
    """
    args = {
        "aten::native_layer_norm": inputs([DIMS], [FLOAT]),
        "aten::copy_": inputs([DIMS] * 2, [HALF, FLOAT]),
    }

    (finding,) = priced_findings(drawing, "NRM003", args=args)

    assert finding.host_ns == 1000 * len("[aten::_to_copy                         ]")


def test_a_cast_that_checkpointing_repeats_takes_not_the_node_it_is_repeated_in() -> (
    None
):
    norm = """
    {host}  {pad} [aten::layer_norm        ]   [aten::linear        ]
    {host}  {pad}  [aten::native_layer_norm]    [aten::_to_copy    ]
    {host}  {pad}   [cudaLaunchKernel>{a}]         [aten::copy_     ]
    {host}  {pad}                                   [cuLaunch>{b}]
    gpu 7   {pad}                 [layer_norm<{a}]           [bfloat16_copy_kernel<{b}]
    """
    width = 75
    drawing = (
        f"""
    host    [ProfilerStep#1{" " * 2 * width}]
    host 2  {" " * width}[AddmmBackward0{" " * (width - 20)}]"""
        + norm.format(host="host  ", pad="", a=1, b=2)
        + norm.format(host="host 2", pad=" " * width, a=3, b=4)
    )
    args = {
        "aten::native_layer_norm": inputs([DIMS], [FLOAT]),
        "aten::copy_": inputs([DIMS] * 2, [HALF, FLOAT]),
        "aten::linear": _numbered(1, 0),
        "AddmmBackward0": _numbered(1, 1),
    }

    (finding,) = priced_findings(drawing, "NRM003", args=args)

    assert mentions(finding, "LayerNorm", "float32", "twice")
    # That of both casts, not of all that the node computes again.
    assert finding.host_ns < 45_000


IMAGES, LENGTH, SCALES = [8, 64, 32, 32], [8, 1, 32, 32], [1, 64, 1, 1]
NORMALIZED: dict[str, Any] = {
    "aten::norm": inputs([IMAGES, []], [FLOAT, "Scalar"]),
    "aten::clamp_min": inputs([LENGTH, []], [FLOAT, "Scalar"]),
    "aten::div": inputs([IMAGES, IMAGES], [FLOAT] * 2),
    "aten::mul": inputs([IMAGES, SCALES], [FLOAT] * 2),
    "aten::mul.scale": inputs([IMAGES, []], [FLOAT, "double"]),
}


def test_vectors_of_length_one_that_are_scaled_are_an_rms_norm() -> None:
    """``F.normalize(x, dim=1) * g * scale``, over the channels of images."""
    names = ("norm", "clamp_min", "div", "mul", "mul.scale")
    drawing = ops_in_a_row(*(f"aten::{name}" for name in names))

    (finding,) = drawn_findings(drawing, "NRM002", args=NORMALIZED)

    assert mentions(finding, "RMSNorm", 64, "dim 1", 5, "once")
    assert "compile the model" in finding.advice
    assert "x.permute(0, 2, 3, 1)" in finding.example


def test_vectors_that_are_only_normalised_are_no_norm() -> None:
    """``F.normalize(x, dim=1)`` of what is compared by its direction."""
    names = ("norm", "clamp_min", "div", "mul.scale")
    drawing = ops_in_a_row(*(f"aten::{name}" for name in names))

    assert not drawn_findings(drawing, "NRM002", args=NORMALIZED)


def test_a_length_that_is_not_euclidean_is_no_norm() -> None:
    names = ("norm", "clamp_min", "div", "mul")
    drawing = ops_in_a_row(*(f"aten::{name}" for name in names))
    by_sum = inputs([IMAGES, []], [FLOAT, "Scalar"], values=["", "1.", "[1]"])
    args = NORMALIZED | {"aten::norm": by_sum}

    assert not drawn_findings(drawing, "NRM002", args=args)


def test_a_mean_over_channels_is_that_of_a_norm() -> None:
    names = ("pow", "mean", "add", "rsqrt", "mul", "mul.weight")
    drawing = ops_in_a_row(*(f"aten::{name}" for name in names))
    args = {
        **{f"aten::{name}": inputs([IMAGES], [FLOAT]) for name in ("pow", "mean")},
        **{f"aten::{name}": inputs([LENGTH], [FLOAT]) for name in ("add", "rsqrt")},
        "aten::mul": inputs([IMAGES, LENGTH], [FLOAT] * 2),
        "aten::mul.weight": inputs([IMAGES, SCALES], [FLOAT] * 2),
    }

    (finding,) = drawn_findings(drawing, "NRM002", args=args)

    assert "RMSNorm over the 64 of dim 1 is hand-written as 6 ops" in finding.message


def test_a_norm_in_a_function_of_autograd_is_a_norm() -> None:
    names = ("pow", "mean", "rsqrt", "mul")
    lines = ops_in_a_row(*(f"aten::{name}" for name in names)).splitlines()
    around = "    host   [MyNorm".ljust(len(lines[3]) - 1) + "]"
    drawing = "\n".join([*lines[:3], around, *lines[3:]])

    (finding,) = drawn_findings(drawing, "NRM002", args=NORM)

    assert finding.data["steps"] == list(names)
