"""KRN: kernels that are slow for what they do, on traces of an H200."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from linting import (
    case_findings,
    linted,
    mentions,
    outcome,
)

from traceq.inputs.load_trace import load
from traceq.linter import View, inputs
from traceq.model.recording import Recording
from traceq.model.run import Rank
from traceq.testing import load_drawn
from traceq.testing.examples import DEVICE
from traceq.testing.timeline import draw

if TYPE_CHECKING:
    from traceq.linter import Finding

DATA = Path(__file__).parents[1] / "data" / "kernels"
# What a step takes as recorded here and with the advice followed, measured without the
# profiler, in ns; and the sentence.
MEASURED = {
    "index": (
        "KRN002",
        13_429_000 - 4_373_000,
        ("[20000,256]", "once"),
    ),
    "gather": (
        "KRN003",
        6_670_000 - 3_840_000,
        ("aten::scatter_add_", "float16", "[16,256]", "once"),
    ),
    "depthwise": (
        "KRN005",
        4_400_000 - 3_950_000,
        (1, "depthwise", "NCHW"),
    ),
    "tiny_matmuls": (
        "KRN006",
        5_330_000 - 4_050_000,
        ("262,144", "[3,3] × [3,3]", "once"),
    ),
    "few_channels": (
        "KRN007",
        11_500_000 - 4_220_000,
        ("batch norm", "NCHW", 3, "once"),
    ),
}


@pytest.mark.parametrize("name", MEASURED)
def test_a_slow_kernel_is_named_once_with_what_following_the_advice_saved(
    name: str,
) -> None:
    code, saved_ns, facts = MEASURED[name]

    findings = linted(DATA / f"{name}.trace.json.gz").findings

    # Nothing else but what a compiler would fuse, and in one that a step is left out.
    (finding,) = (item for item in findings if item.code not in ("FUS001", "TRC003"))
    assert finding.code == code
    assert mentions(finding, *facts)
    assert finding.place.file in ("kernels.py", "kernels2.py")
    # Cautious, but no less than two thirds of what was measured.
    assert 2 / 3 * saved_ns < finding.saves_ns < 1.1 * saved_ns


def test_rows_that_are_picked_often_are_found_by_the_time_of_their_gradient() -> None:
    (finding,) = case_findings("moe_batched.trace.json.gz", "KRN002")

    assert mentions(finding, "[8192,512]", 3)
    assert finding.place.function == "forward"
    # One of the three calls takes 1.13 ms: all of its rows go to one place.
    assert 1_100_000 > finding.kernel_ns > 700_000
    assert "F.embedding(index, x)" in finding.advice


def _index(
    table: list[int], rows: list[int], *wrapped: tuple[list[int], int, int]
) -> Finding:
    """Return the finding on the gradient of an index.

    ``wrapped`` has the shape, the size and the stride of each dimension's index.
    """
    types, values = ["float", "", "float", "Scalar", "Scalar"], ["", "", "", "True", ""]
    args = {
        "aten::_index_put_impl_": inputs(
            [table, [], rows, [], []], types, values=values
        )
    }
    inside = ""
    for at, (shape, *numbers) in enumerate(wrapped):
        for op, number in zip(("remainder", "mul"), numbers, strict=True):
            name = f"aten::{op}.{at}"
            inside += f"[{name}]"
            args[name] = inputs(
                [shape, []], ["long int", "Scalar"], values=["", str(number)]
            )
    trace = load_drawn(
        f"""
        host    [ProfilerStep#1                                                        ]
        host 2   [IndexBackward0                                                     ]
        host 2    [aten::_index_put_impl_                                           ]
        host 2     {inside}
        host 2                                                   [cudaLaunchKernel>1]
        gpu 7                                                                  [k<1   ]
        """,
        args,
        DEVICE,
    )
    (finding,) = outcome(Recording("drawn", trace), "KRN002").findings
    return finding


@pytest.mark.parametrize(
    ("table", "rows", "index", "call"),
    [
        ([4, 8, 16], [4, 300, 16], ([300], 8, 16), "x.index_select(1, index)"),
        ([4, 8, 8], [4, 8, 300], ([300], 8, 1), "x.index_select(2, index)"),
        (
            *([16, 64], [4, 9, 64], ([4, 9], 16, 64)),
            "x.index_select(0, index.flatten()).unflatten(0, index.shape)",
        ),
    ],
)
def test_the_dimension_of_an_index_is_that_of_its_size_and_stride(
    table: list[int], rows: list[int], index: tuple[list[int], int, int], call: str
) -> None:
    assert f"pick rows with {call}, " in _index(table, rows, index).advice


def test_an_index_that_nothing_is_known_of_has_no_dimension() -> None:
    finding = _index([4, 8, 16], [4, 8, 16])

    assert "x.index_select(dim, index), dim being" in finding.advice


def test_several_dimensions_that_are_indexed_at_once_need_one_index() -> None:
    finding = _index([4, 8, 16], [4, 3, 16], ([4, 3], 4, 128), ([4, 3], 8, 16))

    assert "one index, of x with the 2 dimensions" in finding.advice


def test_an_index_as_long_as_its_dimension_may_only_reverse_it() -> None:
    finding = _index([1, 80, 96, 3], [1, 80, 96, 3], ([3], 3, 1))

    assert "x.flip(3)" in finding.advice
    assert "x.index_select(3, index)" in finding.advice
    assert not finding.example


@pytest.mark.parametrize(
    ("mask", "call"),
    [
        ([4], "x.index_select(0, mask.nonzero().squeeze(1))"),
        ([8], "x.index_select(1, mask.nonzero().squeeze(1))"),
        (
            [4, 8],
            "x.flatten(0, 1).index_select(0, mask.flatten().nonzero().squeeze(1))",
        ),
        ([4, 8, 16], "x.masked_select(mask)"),
    ],
)
def test_a_mask_picks_nothing_twice_and_has_its_own_advice(
    mask: list[int], call: str
) -> None:
    """``x[mask]``, which calls ``nonzero`` in the backward again."""
    values = ["", "", "", "True", ""]
    types = ["float", "", "float", "Scalar", "Scalar"]
    args = {
        "aten::_index_put_impl_": inputs(
            [[4, 8, 16], [], [9, 16], [], []], types, values=values
        ),
        "aten::nonzero": inputs([mask], ["bool"]),
    }
    trace = load_drawn(
        """
        host    [ProfilerStep#1                                                        ]
        host 2   [IndexBackward0                                                     ]
        host 2    [aten::_index_put_impl_                                           ]
        host 2     [aten::nonzero ]                              [cudaLaunchKernel>1]
        gpu 7                                                                  [k<1   ]
        """,
        args,
        DEVICE,
    )

    (finding,) = outcome(Recording("drawn", trace), "KRN002").findings

    assert "a mask over [4,8,16]" in finding.message
    assert f"pick with {call}: " in finding.advice
    assert "masked_select(mask)" in finding.example


def test_gradients_of_two_shapes_at_a_line_are_of_one_index() -> None:
    tables = {"aten::_index_put_impl_.0": 80, "aten::_index_put_impl_.1": 160}
    args = {
        name: inputs(
            [[1, size, 96, 3], [], [1, size, 96, 3], [], []],
            ["float", "", "float", "Scalar", "Scalar"],
            values=["", "", "", "True", ""],
        )
        for name, size in tables.items()
    }
    trace = load_drawn(
        """
        host    [ProfilerStep#1                                                        ]
        host     [model.py(46): forward                                               ]
        host      [aten::_index_put_impl_.0]           [aten::_index_put_impl_.1]
        host       [cudaLaunchKernel>1]                 [cudaLaunchKernel>2]
        gpu 7                    [k<1                ]            [k<2                 ]
        """,
        args,
        DEVICE,
    )

    (finding,) = outcome(Recording("drawn", trace), "KRN002").findings

    assert mentions(finding, "[1,160,96,3]", "twice")


@pytest.mark.parametrize(
    ("op", "advised"), [("aten::mm", False), ("aten::_softmax", True)]
)
def test_a_compiler_is_advised_for_what_it_computes_itself(
    op: str, *, advised: bool
) -> None:
    shapes = [[64, 64], [64, 64]] if op == "aten::mm" else [[64, 1024]]
    trace = load_drawn(
        f"""
        host   [ProfilerStep#1                                                       ]
        host    [{op:<22}]
        host      [cudaLaunchKernel>1]
        gpu 7                  [k<1                                                 ]
        """,
        {op: inputs(shapes, ["c10::BFloat16"] * len(shapes))},
        DEVICE,
    )

    (finding,) = outcome(Recording("drawn", trace), "KRN010").findings

    assert ("torch.compile" in finding.advice) is advised


def lost_in_a_convolution(dtype: str, kernel: str, **facts: bool) -> str:
    """Return what KRN010 advises for a convolution of images that takes 50 µs."""
    values = ["", "", "", "[1, 1]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1"]
    drawn = load_drawn(
        f"""
        host   [ProfilerStep#1                                                       ]
        host    [aten::convolution     ]
        host     [cudaLaunchKernel>1]
        gpu 7                  [{kernel + "<1":<52}]
        """,
        {
            "aten::convolution": inputs(
                [[8, 64, 28, 28], [64, 64, 3, 3], *[[]] * 7],
                [dtype, dtype, *[""] * 7],
                None,
                values,
            )
        },
        DEVICE,
    )
    rank = Rank("", 0, "", None, None, None, (), **facts)  # type: ignore[arg-type]
    trace = replace(drawn, rank=rank)
    losses = outcome(Recording("drawn", trace), "KRN010").findings
    return "".join(loss.advice for loss in losses)


def test_a_convolution_on_a_slow_algorithm_may_let_cudnn_measure_others() -> None:
    slow = ("c10::BFloat16", "sm90_xmma_fprop")

    assert "cudnn.benchmark = True" in lost_in_a_convolution(*slow)
    assert "benchmark" not in lost_in_a_convolution(*slow, cudnn_benchmark=True)


LOST = """
    host   [ProfilerStep#1                                                            ]
    host    [{first:<33}][{then:<31}]
    host     [cudaLaunchKernel>1]               [cudaLaunchKernel>2]
    gpu 7                  [k<1                           ][k<2                      ]
"""


def lost_in(
    first: str, then: str, args: dict[str, dict[str, Any]]
) -> tuple[Finding, ...]:
    """Return what KRN010 says of two slow ops, the first of which loses more."""
    trace = load_drawn(LOST.format(first=first, then=then), args, DEVICE)
    return outcome(Recording("drawn", trace), "KRN010").findings


DEPTHWISE = inputs(
    [[8, 64, 28, 28], [64, 1, 7, 7], *[[]] * 7],
    ["float", "float", *[""] * 7],
    None,
    ["", "", "", "[1, 1]", "[3, 3]", "[1, 1]", "False", "[0, 0]", "64"],
)
TOPK = inputs([[64, 128]], ["float"], [[128, 1]], ["", "20", "-1", "True", "True"])
SOFTMAX = inputs([[64, 1024]], ["float"])


@pytest.mark.parametrize(
    ("op", "args"), [("aten::topk", TOPK), ("aten::convolution", DEPTHWISE)]
)
def test_losses_are_not_led_by_an_op_that_nothing_makes_faster(
    op: str, args: dict[str, Any]
) -> None:
    ops = {op: args, "aten::_softmax": SOFTMAX}
    (finding,) = lost_in(op, "aten::_softmax", ops)

    assert finding.message.endswith("most in aten::_softmax")
    assert not [line for line in finding.evidence if op in line.name]


def test_losses_without_a_remedy_for_the_largest_are_minor() -> None:
    values = ["", "", "", "[1, 1]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1"]
    images = inputs(
        [[2, 64, 28, 28], [64, 64, 3, 3], *[[]] * 7],
        ["c10::BFloat16"] * 2 + [""] * 7,
        None,
        values,
    )
    minor = [
        lost_in(op, op, {op: args})[0].minor
        for op, args in (("aten::convolution", images), ("aten::_softmax", SOFTMAX))
    ]

    assert minor == ["", "no remedy is known of what takes most"]


def test_losses_that_nothing_makes_smaller_are_not_reported() -> None:
    assert not lost_in("aten::topk", "aten::topk", {"aten::topk": TOPK})


@pytest.mark.parametrize(
    ("weight", "dilation", "groups", "words"),
    [
        ([64, 64, 3, 3], "[1, 1]", "1", "for these shapes"),
        ([64, 16, 3, 3], "[1, 1]", "4", "for these convolutions of 4 groups"),
        ([64, 64, 3, 3], "[2, 2]", "1", "for these dilated convolutions"),
        ([64, 1, 7, 7], "[1, 1]", "64", ""),
        ([64, 64, 1, 1], "[1, 1]", "1", ""),
    ],
    ids=["plain", "grouped", "dilated", "depthwise", "1x1"],
)
def test_cudnn_is_asked_to_search_where_it_has_algorithms_to_choose_from(
    weight: list[int], dilation: str, groups: str, words: str
) -> None:
    half = "c10::BFloat16"
    values = ["", "", "", "[1, 1]", "[1, 1]", dilation, "False", "[0, 0]", groups]
    args = inputs(
        [[2, 64, 28, 28], weight, *[[]] * 7], [half, half, *[""] * 7], None, values
    )
    ops = {"aten::convolution": args}

    advice = [
        loss.advice for loss in lost_in("aten::convolution", "aten::convolution", ops)
    ]

    assert [words in text for text in advice] == [True] * bool(words)


def test_deterministic_convolutions_exclude_algorithms() -> None:
    advice = lost_in_a_convolution(
        "c10::BFloat16", "sm90_xmma_fprop", cudnn_deterministic=True
    )

    assert "cudnn.deterministic = False" in advice


def test_a_convolution_in_float32_takes_less_under_autocast() -> None:
    assert "autocast" in lost_in_a_convolution("float", "implicit_convolve_sgemm")


@pytest.mark.parametrize(("after", "advised"), [("sum", True), ("AddBackward0", False)])
def test_a_tensor_that_autograd_needs_is_not_to_be_written_in_parts(
    after: str, *, advised: bool
) -> None:
    name = after if after == "sum" else f"autograd::engine::evaluate_function: {after}"
    trace = load_drawn(
        """
        host   [ProfilerStep#1                                                       ]
        host    [aten::cat             ]                               [after       ]
        host     [cudaLaunchKernel>1]
        gpu 7                  [CatArrayBatchedCopy<1                          ]
        """.replace("after       ", name),
        {"aten::cat": inputs([[], []], ["TensorList", "Scalar"])},
        DEVICE,
    )
    losses = outcome(Recording("drawn", trace), "KRN010").findings

    # In training nothing is known to help.
    assert ["write the parts" in loss.advice for loss in losses] == [True] * advised


@pytest.mark.parametrize(("spaces", "reported"), [(16, False), (50, True)])
def test_losses_are_named_in_host_bound_steps_that_keep_the_gpu_busy(
    spaces: int, *, reported: bool
) -> None:
    trace = load_drawn(
        f"""
        host   [ProfilerStep#1                                                       ]
        host    [aten::_softmax      ]
        host     [cudaLaunchKernel>1]
        host                         [cudaDeviceSynchronize{" " * (spaces - 24)}]
        gpu 7       [k<1{" " * spaces}]
        """,
        {"aten::_softmax": inputs([[64, 1024]], ["float"])},
        DEVICE,
    )

    assert View(trace).bound.by == "host"
    assert bool(outcome(Recording("drawn", trace), "KRN010").findings) is reported


def slow_op(
    op: str,
    dims: list[int],
    strides: list[int],
    values: list[str],
) -> Finding:
    """Return what KRN008 says of an op on one tensor that takes 50 µs."""
    arguments = inputs([dims], ["float"], [strides], values)
    trace = load_drawn(
        f"""
        host   [ProfilerStep#1                                                       ]
        host    [{op:<34}]
        host      [cudaLaunchKernel>1]
        gpu 7                              [k<1                                     ]
        """,
        {op: arguments},
        DEVICE,
    )
    (finding,) = outcome(Recording("drawn", trace), "KRN008").findings
    return finding


def test_a_topk_along_the_last_dimension_of_a_contiguous_tensor_promises_nothing() -> (
    None
):
    finding = slow_op(
        "aten::topk", [64, 128], [128, 1], ["", "20", "-1", "True", "True"]
    )

    assert not finding.fixes
    assert finding.minor


@pytest.mark.parametrize(
    ("strides", "dimension"), [([1, 64], "-1"), ([128, 1], "0")], ids=["view", "outer"]
)
def test_a_topk_along_other_dimensions_may_get_faster(
    strides: list[int], dimension: str
) -> None:
    values = ["", "20", dimension, "True", "True"]

    assert slow_op("aten::topk", [64, 128], strides, values).fixes


def test_a_stable_sort_has_its_dimension_after_that() -> None:
    values = ["", "True", "0", "False"]

    assert slow_op("aten::sort", [64, 128], [128, 1], values).fixes


def test_the_gradient_of_an_enlarged_image_has_matmuls_as_a_remedy() -> None:
    dims, strides = [1, 3, 64, 64], [12288, 4096, 64, 1]
    values = ["", "[64, 64]", "[1, 3, 4, 4]", "False", "16.", "16."]

    finding = slow_op("aten::upsample_bilinear2d_backward", dims, strides, values)

    assert "rows.T @ x @ columns" in finding.advice
    assert "F.interpolate(eye" in finding.example
    assert "[1, 3, 4, 4]" in [evidence.name for evidence in finding.evidence]


@pytest.mark.parametrize(
    ("op", "dims", "strides", "words"),
    [
        ("aten::mul", [64, 128], [1, 64], "a contiguous input 1, whose strides are"),
        ("aten::mul", [64, 128], [128, 1], "torch.compile around the function"),
        ("aten::mul", [64, 128], [0, 1], "torch.compile around the function"),
        ("aten::topk", [64, 128], [128, 1], "the dimension that it runs along"),
    ],
)
def test_a_slow_op_has_the_advice_of_its_cause(
    op: str, dims: list[int], strides: list[int], words: str
) -> None:
    values = ["", "20", "0", "True", "True"]

    advice = slow_op(op, dims, strides, values).advice

    assert words in advice
    # What is broadcast, with a stride of 0, is not to be made contiguous.
    assert ("contiguous" in advice) == (strides[-1] != 1)


@pytest.mark.parametrize(("size", "padded"), [(64, False), (60, True)])
def test_a_slow_matmul_is_timed_alone_before_it_is_padded(
    size: int, *, padded: bool
) -> None:
    trace = load_drawn(
        """
        host   [ProfilerStep#1                                                       ]
        host    [aten::mm                          ]
        host      [cudaLaunchKernel>1]
        gpu 7                              [k<1                                     ]
        """,
        {"aten::mm": inputs([[size, 64], [64, 64]], ["float"] * 2, [[64, 1]] * 2)},
        DEVICE,
    )

    (finding,) = outcome(Recording("drawn", trace), "KRN008").findings

    assert "time it alone first" in finding.advice
    assert ("else try sizes that are multiples of 64" in finding.advice) is padded
    assert "torch.compile" not in finding.advice
    assert bool(finding.fixes) is padded


def test_gradients_of_images_of_other_sizes_are_other_groups(tmp_path: Path) -> None:
    op = "aten::upsample_bilinear2d_backward"
    values = ["", "[64, 64]", "[1, 3, 4, 4]", "False", "16.", "16."]
    drawing = f"""
        host   [ProfilerStep#1                                                       ]
        host    [{op:<34}]
        host      [cudaLaunchKernel>1]
        host                                        [{op:<34}]
        host                                         [cudaLaunchKernel>2]
        gpu 7                              [k<1                              ]
        gpu 7                                                            [k<2        ]
        """
    written = draw(drawing, {op: inputs([[1, 3, 64, 64]], ["float"])}, DEVICE)
    sizes = iter(("[1, 3, 4, 4]", "[1, 3, 32, 32]"))
    for event in written["traceEvents"]:
        if event["name"] == op:
            event["args"]["Concrete Inputs"] = [*values[:2], next(sizes), *values[3:]]
    path = tmp_path / "two.json"
    path.write_text(json.dumps(written))

    (finding,) = outcome(Recording("two", load(path)), "KRN008").findings

    assert finding.count == 1


def slow_convolution(kernel: str, window: int, half: str = "c10::Half") -> Finding:
    """Return what KRN005 says of a depthwise convolution that takes 50 µs."""
    dims = [[8, 64, 28, 28], [64, 1, window, window], *[[]] * 7]
    values = ["", "", "", "[1, 1]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "64"]
    trace = load_drawn(
        f"""
        host   [ProfilerStep#1                                                       ]
        host    [aten::convolution                 ]
        host      [cudaLaunchKernel>1]
        gpu 7                              [{kernel}<1                              ]
        """,
        {"aten::convolution": inputs(dims, [half, half, *[""] * 7], None, values)},
        DEVICE,
    )
    (finding,) = outcome(Recording("drawn", trace), "KRN005").findings
    return finding


@pytest.mark.parametrize(
    "kernel", ["conv2d_c1_k1_nchw_x", "dgrad2d_c1_k1_nchw_x", "wgrad2d_shmem_tiling"]
)
def test_cudnn_has_slow_kernels_for_depthwise_images_in_nchw(kernel: str) -> None:
    finding = slow_convolution(kernel, 5)

    assert mentions(finding, 1, "depthwise", "NCHW")
    assert "channels_last" in finding.advice
    assert "cudnn.benchmark" in finding.advice


def test_a_convolution_by_fourier_transforms_asks_for_a_search() -> None:
    finding = slow_convolution("fft2d_r2c_32x32", 7, "float")

    assert finding.advice.startswith("set torch.backends.cudnn.benchmark = True")


def test_a_search_for_algorithms_that_is_on_is_not_advised() -> None:
    trace = load_drawn(
        """
        host   [ProfilerStep#1                                                       ]
        host    [aten::convolution                 ]
        host      [cudaLaunchKernel>1]
        gpu 7                              [fft2d_r2c_32x32<1                       ]
        """,
        {
            "aten::convolution": inputs(
                [[8, 64, 28, 28], [64, 64, 7, 7], *[[]] * 7],
                ["float", "float", *[""] * 7],
                None,
                ["", "", "", "[1, 1]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1"],
            )
        },
        DEVICE,
    )
    searching = replace(
        trace, rank=Rank("", 0, "", None, None, None, (), cudnn_benchmark=True)
    )

    assert not outcome(Recording("drawn", searching), "KRN005").findings
