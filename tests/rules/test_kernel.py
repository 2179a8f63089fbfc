"""KRN: kernels that are slow for what they do, on traces of an H200."""

from __future__ import annotations

from pathlib import Path

import pytest
from linting import (
    case_findings,
    linted,
    mentions,
    outcome,
)

from traceq.linter import inputs
from traceq.model.recording import Recording
from traceq.testing import load_drawn
from traceq.testing.examples import DEVICE

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

    found = linted(DATA / f"{name}.trace.json.gz").findings

    # Nothing else but what a compiler would fuse, and in one that a step is left out.
    (one,) = (one for one in found if one.code not in ("FUS001", "TRC003"))
    assert one.code == code
    assert mentions(one, *facts)
    assert one.place.file in ("kernels.py", "kernels2.py")
    # Cautious, but no less than two thirds of what was measured.
    assert 2 / 3 * saved_ns < one.saves_ns < 1.1 * saved_ns


def test_rows_that_are_picked_often_are_found_by_the_time_of_their_gradient() -> None:
    (one,) = case_findings("moe_batched.trace.json.gz", "KRN002")

    assert mentions(one, "[8192,512]", 3)
    assert one.place.function == "forward"
    # One of the three calls takes 1.13 ms: all of its rows go to one place.
    assert 1_100_000 > one.kernel_ns > 700_000
    assert "F.embedding(index, x)" in one.advice


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

    (found,) = outcome(Recording("drawn", trace), "KRN010").findings

    assert ("torch.compile" in found.advice) is advised
