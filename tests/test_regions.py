"""Cost of regions and modules, and the significance of their differences."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import polars as pl
import pytest
from command import traceq
from recordings import FIXTURE_TRACES, loaded

from traceq.analysis.base.significance import difference
from traceq.analysis.time.regions import BY_MODULE, by_path, regions
from traceq.testing.timeline import load_drawn

if TYPE_CHECKING:
    from traceq.model.trace import Trace

WITH_REGIONS = "attn_mask_fmha"
TWINS = ("copies", "twins/copies_fixed")

TWO_KINDS = """
host   [ProfilerStep#1                                                                 ]
host    [@outer                               ] [@slow                          ]
host     [@fast           ] [aten::add       ]   [aten::mul       ][aten::mul  ]
host      [aten::mul     ]   [cudaLaunchKernel>2] [cudaLaunchKernel>3][cudaLaunch>4]
host       [cudaLaunch>1]
gpu 7                    [a<1]         [b<2  ]             [c<3          ] [d<4     ]
"""


def drawn() -> pl.DataFrame:
    return by_path(regions(load_drawn(TWO_KINDS)))


def figure(table: pl.DataFrame, path: str, column: str) -> int:
    result: int = table.filter(pl.col("path") == path)[column].item()
    return result


def test_a_region_has_the_gpu_time_of_what_it_launched_whenever_that_ran() -> None:
    assert figure(drawn(), "outer/fast", "gpu") == 5_000
    assert figure(drawn(), "slow", "gpu") == 15_000 + 10_000


def test_a_region_contains_what_the_regions_inside_it_launched() -> None:
    assert figure(drawn(), "outer", "gpu") == 5_000 + 7_000
    assert figure(drawn(), "outer", "kernels") == 2


def test_marks_of_steps_are_no_regions() -> None:
    assert "ProfilerStep#1" not in drawn()["path"].to_list()


def launched_under(of: Trace, path: str) -> int:
    """Return the GPU time of a region the slow way: call by call, kernel by kernel."""
    steps = set(of.steps.filter(~pl.col("warmup"))["step"])
    calls = of.annotations.filter(
        ~pl.col("on_gpu"), pl.col("name").cast(pl.String) == path
    ).rows(named=True)
    launches = {row["id"]: row for row in of.runtime.rows(named=True)}
    total = 0
    for kernel in of.kernels.rows(named=True):
        call = launches.get(kernel["launch"])
        if call is not None and kernel["step"] in steps:
            total += kernel["dur"] * any(
                item["thread"] == call["thread"]
                and item["ts"] <= call["ts"] < item["ts"] + item["dur"]
                for item in calls
            )
    return total


@pytest.mark.parametrize("path", ["FORWARD", "OPTIMIZER"])
def test_gpu_time_of_a_real_region_is_that_of_the_kernels_launched_under_it(
    path: str,
) -> None:
    of = loaded(FIXTURE_TRACES[WITH_REGIONS])
    slowly = launched_under(of, path)

    assert slowly > 0
    assert figure(by_path(regions(of)), path, "gpu") == slowly


def test_the_backward_of_a_real_forward_is_what_the_backward_pass_launched() -> None:
    table = by_path(regions(loaded(FIXTURE_TRACES[WITH_REGIONS])))

    launched = figure(table, "BACKWARD", "gpu")
    assert figure(table, "FORWARD", "backward") == pytest.approx(launched, rel=0.02)
    assert figure(table, "BACKWARD", "backward") == 0


def test_modules_of_all_layers_are_one_row_unless_asked_apart() -> None:
    result = regions(loaded(FIXTURE_TRACES[WITH_REGIONS]), BY_MODULE)
    together, apart = by_path(result, instances=False), by_path(result)

    block = figure(together, "LM/Block", "gpu_all")
    each = apart.filter(pl.col("path").str.contains(r"^LM_0/Block_\d+$"))
    assert each.height > 1
    assert each["gpu_all"].sum() == block


def test_equal_regions_are_no_difference_in_95_of_100_resamples() -> None:
    result = regions(loaded(FIXTURE_TRACES["moe_dropless"]), BY_MODULE)
    calls = result.calls.filter(pl.col("gpu") > 0)["host"].to_list()
    chance = random.Random(1)  # noqa: S311 - the same in every run

    verdicts = [
        difference(chance.choices(calls, k=20), chance.choices(calls, k=20)).verdict
        for _ in range(200)
    ]

    assert verdicts.count("none") >= 190


def test_a_region_that_takes_a_tenth_longer_is_a_real_difference() -> None:
    chance = random.Random(2)  # noqa: S311 - the same in every run
    first = [100 + chance.random() * 5 for _ in range(20)]
    second = [110 + chance.random() * 5 for _ in range(20)]

    assert difference(first, second).verdict == "real"
    assert difference(first, second).ratio == pytest.approx(1.1, rel=0.02)


def test_two_calls_are_too_few_to_tell() -> None:
    assert difference([1, 2], [3, 4]).verdict == "too few"


def test_two_regions_are_compared_in_sentences_with_the_ops_that_make_it() -> None:
    answer = traceq(
        "regions", FIXTURE_TRACES[WITH_REGIONS], "--compare", "FORWARD", "OPTIMIZER"
    )

    assert answer.status == 0
    assert "OPTIMIZER against FORWARD, a call with its backward" in answer.out
    assert "aten::_efficient_attention_backward" in answer.out


def test_regions_of_two_traces_are_compared_by_name() -> None:
    answer = traceq("regions", *(FIXTURE_TRACES[name] for name in TWINS))

    assert answer.status == 0
    assert "From the first to the second" in answer.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--compare", "FORWARD", "nothing"], "there is no region nothing"),
        (["nowhere.json"], "nowhere.json"),
    ],
)
def test_what_cannot_be_shown_is_said_in_one_line(
    arguments: list[str], message: str
) -> None:
    answer = traceq("regions", FIXTURE_TRACES[WITH_REGIONS], *arguments)

    assert answer.status == 2
    assert message in answer.err
    assert answer.err.count("\n") <= 2


def test_every_format_has_the_regions() -> None:
    for form in ("text", "json", "csv", "markdown"):
        answer = traceq("regions", FIXTURE_TRACES[WITH_REGIONS], "--format", form)
        assert answer.status == 0
        assert "FORWARD" in answer.out
