"""The steps of a trace: which work is of which, how long they took, which count."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from traceq import load
from traceq.analysis.base.steady import steady_steps
from traceq.analysis.summary import summarise
from traceq.testing import draw, load_drawn

if TYPE_CHECKING:
    from pathlib import Path

BEHIND = """
host   [ProfilerStep#4        ][ProfilerStep#5       ]
host     [aten::mm          ]    [aten::mm          ]
host     [cudaLaunchKernel>1]    [cudaLaunchKernel>2]
gpu 7                [gemm<1                         ][gemm<2       ]
"""


def test_a_step_is_a_region_of_the_profiler_with_its_number() -> None:
    trace = load_drawn(BEHIND)

    assert trace.facts.steps_from == "ProfilerStep"
    assert trace.steps.select("step", "ts", "dur").rows() == [
        (4, 0, 24_000),
        (5, 24_000, 23_000),
    ]


def test_of_two_series_of_steps_one_is_counted() -> None:
    trace = load_drawn(
        """
        host   [ProfilerStep#1        ][ProfilerStep#2        ][ProfilerStep#3        ]
        host      [ProfilerStep#31       ][ProfilerStep#32       ][ProfilerStep#33    ]
        host          [aten::mm]              [aten::mm]             [aten::mm]
        """
    )

    assert trace.steps["step"].to_list() == [1, 2, 3]
    assert trace.steps["ts"].to_list() == [0, 24_000, 48_000]
    assert trace.ops["step"].to_list() == [1, 2, 3]


def test_a_series_is_followed_by_its_numbers() -> None:
    trace = load_drawn(
        """
        host   [ProfilerStep#1             ][ProfilerStep#2              ]
        host     [ProfilerStep#31     ]       [ProfilerStep#32     ]
        """
    )

    assert trace.steps["step"].to_list() == [1, 2]


def test_steps_that_overlap_by_the_clock_alone_are_one_series(tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    step = {"ph": "X", "cat": "user_annotation", "pid": 1, "tid": 1}
    events = [
        step | {"name": f"ProfilerStep#{number}", "ts": 100 * number, "dur": 100.5}
        for number in (4, 5, 6)
    ]
    file.write_text(json.dumps({"traceEvents": events}))

    assert load(file, cache=False).steps["step"].to_list() == [4, 5, 6]


def test_the_steps_of_collect_go_before_those_of_the_program() -> None:
    trace = load_drawn(
        """
        host      [@traceq: step#1     ][@traceq: step#2      ]
        host   [ProfilerStep#31     ][ProfilerStep#32         ][ProfilerStep#33     ]
        """
    )

    assert trace.facts.steps_from == "ProfilerStep"
    assert trace.steps.select("step", "ts").rows() == [(1, 3_000), (2, 25_000)]


def test_gpu_work_belongs_to_the_step_that_launched_it_whenever_it_ran() -> None:
    trace = load_drawn(BEHIND)

    assert trace.kernels["step"].to_list() == [4, 5]
    # The first one runs into the second step, the second one after all steps.
    assert trace.kernels["ts"][1] >= trace.steps["ts"][1] + trace.steps["dur"][1]


def test_a_step_lasts_until_host_and_gpu_are_done_and_the_next_begins_then() -> None:
    steps = load_drawn(BEHIND).steps

    assert steps.select("start", "end", "time", "gpu_busy", "gpu_idle").rows() == [
        (0, 47_000, 47_000, 33_000, 14_000),
        (47_000, 62_000, 15_000, 15_000, 0),
    ]


def test_work_from_before_the_recording_belongs_to_no_step() -> None:
    trace = load_drawn(
        """
        host          [ProfilerStep#4                ]
        host            [cudaLaunchKernel>1]
        gpu 7   [gemm         ][gemm        ][gemm<1 ]
        """
    )

    assert trace.kernels["step"].to_list() == [None, None, 4]
    assert trace.steps.select("start", "time").rows() == [(29_000, 9_000)]


def test_without_a_backlog_work_without_launch_is_of_the_step_it_ran_in() -> None:
    trace = load_drawn(
        """
        host    [ProfilerStep#4                ][ProfilerStep#5                ]
        gpu 7              [gemm ]                         [gemm ]
        """
    )

    assert trace.kernels["step"].to_list() == [4, 5]


def test_work_launched_between_two_steps_belongs_to_none() -> None:
    trace = load_drawn(
        """
        host   [ProfilerStep#4 ]                     [ProfilerStep#5 ]
        host                    [cudaLaunchKernel>1]
        gpu 7                                    [gemm<1  ]
        """
    )

    assert trace.kernels["step"].to_list() == [None]


def test_overlapping_streams_are_busy_once() -> None:
    trace = load_drawn(
        """
        host   [ProfilerStep#4                                     ]
        host     [cudaLaunchKernel>1][cudaLaunchKernel>2]
        gpu 7                   [gemm<1              ]
        gpu 20                              [gemm<2            ]
        """
    )

    assert trace.steps["gpu_busy"].to_list() == [32_000]
    assert trace.kernels["dur"].sum() == 22_000 + 20_000


def test_a_first_step_far_longer_than_the_rest_is_warm_up() -> None:
    trace = load_drawn(
        """
        host   [ProfilerStep#0                     ][ProfilerStep#1][ProfilerStep#2]
        host     [aten::mm]                          [aten::mm]      [aten::mm]
        """
    )

    assert trace.steps["warmup"].to_list() == [True, False, False]


def test_warm_up_is_left_out_of_averages() -> None:
    summary = summarise(
        load_drawn(
            """
            host   [ProfilerStep#0                 ][ProfilerStep#1][ProfilerStep#2]
            host    [cudaLaunchKernel>1]
            host                                        [cudaLaunchKernel>2]
            gpu 7               [big<1         ]            [small<2]
            """
        )
    )

    assert summary.steps.height == 3
    assert summary.steady.windows["step"].to_list() == [1, 2]
    assert summary.step_time == 16_000
    assert summary.kernels["name"].to_list() == ["small"]


def test_one_step_of_two_is_no_warm_up() -> None:
    trace = load_drawn(
        """
        host   [ProfilerStep#0                                ][ProfilerStep#1]
        host     [aten::mm]                                     [aten::mm]
        """
    )

    assert trace.steps["warmup"].to_list() == [False, False]


def test_a_slow_step_in_the_middle_is_no_warm_up() -> None:
    trace = load_drawn(
        """
        host   [ProfilerStep#0][ProfilerStep#1                    ][ProfilerStep#2]
        """
    )

    assert not trace.steps["warmup"].any()


def test_a_first_step_as_long_as_a_later_one_is_no_warm_up() -> None:
    first, later = (
        "[ProfilerStep#0" + " " * 30 + "]",
        "[ProfilerStep#3" + " " * 28 + "]",
    )

    trace = load_drawn(f"host {first}[ProfilerStep#1][ProfilerStep#2]{later}")

    assert not trace.steps["warmup"].any()


def test_first_steps_that_get_shorter_are_all_warm_up() -> None:
    first, second = (
        "[ProfilerStep#0" + " " * 60 + "]",
        "[ProfilerStep#1" + " " * 28 + "]",
    )

    trace = load_drawn(f"host {first}{second}[ProfilerStep#2][ProfilerStep#3]")

    assert trace.steps["warmup"].to_list() == [True, True, False, False]


def test_without_the_profilers_marks_a_step_ends_with_the_optimizers() -> None:
    trace = load_drawn(
        """
        host   [aten::mm][Optimizer.step#SGD.step][aten::mm][Optimizer.step#SGD.step]
        """
    )

    assert trace.facts.steps_from == "Optimizer.step"
    assert trace.ops["step"].to_list() == [0, 1]


def test_a_step_that_the_start_of_the_recording_cuts_is_none() -> None:
    end = "[aten::add_][Optimizer.step#SGD.step]"

    trace = load_drawn(f"host {end}" + f"[aten::to][aten::mm]{end}" * 3)

    assert trace.steps.height == 3
    assert trace.ops["step"].to_list() == [None, *[0] * 3, *[1] * 3, *[2] * 3]


def test_two_optimizers_that_take_turns_are_one_step() -> None:
    turn = "[aten::mm][Optimizer.step#D.step][aten::mm][Optimizer.step#G.step]"

    assert load_drawn(f"host {turn}").steps.height == 1
    trace = load_drawn(f"host {turn}{turn}")

    assert trace.facts.steps_from == "Optimizer.step"
    assert trace.facts.steps_sure == "likely"
    assert trace.ops["step"].to_list() == [0, 0, 1, 1]


def test_optimizers_that_follow_each_other_end_one_step() -> None:
    turn = "[aten::mm][Optimizer.step#Muon.step][Optimizer.step#AdamW.step]"

    trace = load_drawn(f"host {turn}{turn}{turn}")

    assert trace.facts.steps_sure == "certain"
    assert trace.ops["step"].to_list() == [0, 1, 2]


def test_an_optimizer_around_another_one_is_one() -> None:
    trace = load_drawn(
        """
        host   [aten::mm][Optimizer.step#EMA.step      ][aten::mm][Optimizer.step#EMA.step      ]
        host              [Optimizer.step#SGD.step ]               [Optimizer.step#SGD.step ]
        """  # noqa: E501 - a drawing
    )

    assert trace.ops["step"].to_list() == [0, 1]


def test_optimizers_in_no_order_leave_no_telling() -> None:
    calls = "".join(f"[aten::mm][Optimizer.step#{name}.step]" for name in "AABAB")

    assert not load_drawn(f"host {calls}").steps.height


def test_a_trace_without_steps_counts_as_one() -> None:
    trace = load_drawn(
        """
        host   [aten::mm            ]
        host    [cudaLaunchKernel>1]
        gpu 7              [gemm<1       ]
        """
    )

    steady = steady_steps(trace)

    assert trace.steps.height == 0
    assert trace.ops["step"].to_list() == [None]
    assert (steady.count, steady.time, steady.gpu_busy) == (1, 27_000, 15_000)
    assert steady.kernels.height == 1


def test_an_op_is_of_the_step_it_began_in() -> None:
    trace = load_drawn(
        """
        host     [ProfilerStep#1       ][ProfilerStep#2       ]
        host 2        [aten::mul][aten::add      ]  [aten::div       ]
        """
    )

    assert trace.ops["step"].to_list() == [1, 1, 2]
    assert trace.annotations["step"].to_list() == [1, 2]


def test_what_is_outside_of_all_steps_is_of_none() -> None:
    trace = load_drawn(
        """
        host   [aten::a]    [ProfilerStep#1 ]   [aten::b]
        """
    )

    assert trace.ops["step"].to_list() == [None, None]


def test_on_several_gpus_the_busiest_one_is_measured(tmp_path: Path) -> None:
    document = draw(
        """
        host   [ProfilerStep#1                                        ]
        host    [cudaLaunchKernel>1][cudaLaunchKernel>2]
        gpu 7                  [near<1              ]
        gpu 8                                    [far<2 ]
        """
    )
    far = next(event for event in document["traceEvents"] if event["name"] == "far")
    far["args"]["device"] = 1
    path = tmp_path / "two.json"
    path.write_text(json.dumps(document), encoding="utf-8")

    trace = load(path, cache=False)

    assert trace.kernels["device"].to_list() == [0, 1]
    assert trace.steps["gpu_busy"].to_list() == [22_000]


def test_a_first_step_begins_when_the_gpu_is_done_with_what_came_before() -> None:
    trace = load_drawn("""
    host   [cudaLaunchKernel>1] [ProfilerStep#1                                   ]
    host                         [aten::mm           ]
    host                          [cudaLaunchKernel>2]
    gpu 7                               [before<1               ][inside<2   ]
    """)

    before = trace.kernels.row(0, named=True)
    assert trace.steps["start"].to_list() == [before["ts"] + before["dur"]]
