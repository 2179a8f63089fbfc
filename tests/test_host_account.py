"""The account of the host: every nanosecond of a step belongs to one entry."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import polars as pl
import pytest
from command import traceq
from recordings import ROOT, loaded, path_of

from traceq import load
from traceq.analysis.base.steady import steady_steps
from traceq.analysis.replay.bound import bound_of
from traceq.analysis.replay.host_account import (
    NEW_SHAPE,
    SLOW,
    HostAccount,
    host_account,
)
from traceq.analysis.replay.model import build_model
from traceq.analysis.replay.profiler_free_searches import unslowed
from traceq.analysis.time.host_activity import (
    BLOCKING,
    COMPILED,
    DISPATCH,
    ENGINE,
    HOOKS,
    LIBRARY,
    LOADING,
    NO_STACKS,
    OPTIMIZER,
    PROFILER,
    SYNC,
    WITH_LIBRARIES,
)
from traceq.analysis.time.host_segments import host_segments
from traceq.analysis.time.op_calls import op_calls
from traceq.linter import View, inputs
from traceq.testing.timeline import draw, load_drawn

if TYPE_CHECKING:
    from pathlib import Path

    from traceq.model.trace import Trace

STEP = """
    host   [ProfilerStep#1                                                       ]
    host    [train.py(3): main                                                  ]
    host     [aten::mm           ]       [aten::item                 ]
    host      [cudaLaunchKernel>1]        [cudaStreamSynchronize     ]
    gpu 7                  [gemm<1                              ]
"""
BACKWARD = """
    host   [ProfilerStep#1                                                       ]
    host    [train.py(3): main                                                  ]
    host     [<built-in method run_backward                                    ]
    host 2      [MmBackward0        ]     [AddBackward0         ]
    host 2       [cudaLaunchKernel>1]      [cudaLaunchKernel>2  ]
    gpu 7                         [gemm<1   ]            [add<2    ]
"""


def account(trace: Trace) -> HostAccount:
    view = View(trace)
    return host_account(trace, view.replay, view.calibration.likely)


def kind(result: HostAccount, name: str) -> int:
    return round(result.kinds.filter(pl.col("kind") == name)["recorded"].sum())


def test_segments_of_a_drawn_step_add_up_to_it() -> None:
    trace = load_drawn(STEP)

    segments = host_segments(trace).segments

    assert (segments["end"] - segments["start"]).sum() == trace.steps["dur"].sum()


def test_an_instant_belongs_to_the_innermost_call() -> None:
    result = account(load_drawn(STEP))

    # A character is a microsecond: each op is one longer than the call inside it.
    assert kind(result, "launches") == 20_000
    assert kind(result, SYNC) == 28_000
    assert kind(result, DISPATCH) == 2_000


def test_the_module_of_a_segment_is_a_category_as_its_path_may_be_long() -> None:
    result = account(load_drawn(STEP))

    assert result.segments["module"].dtype == pl.Categorical


def test_what_is_asked_of_some_kinds_is_what_all_segments_say_of_them() -> None:
    result = account(load_drawn(STEP))
    wanted = pl.col("kind").is_in([DISPATCH, SYNC])

    assert result.of(wanted).equals(result.segments.filter(wanted))
    assert result.of(wanted, "start", "op").equals(
        result.segments.filter(wanted).select("start", "op")
    )


@pytest.mark.real
def test_a_closure_that_an_optimizer_calls_is_no_python_of_the_optimizer() -> None:
    drawing = """
        host   [ProfilerStep#1                                                  ]
        host    [Optimizer.step#AdamW.step                                     ]
        host        [aten::mm             ]                      [aten::add_  ]
        host         [cudaLaunchKernel>1]                         [cuLaunch>3]
        host 2                               [MmBackward0 ]
        host 2                                [cuLaunch>2]
        gpu 7                   [gemm<1]             [k<2]           [add<3]
    """
    counted = {"aten::mm": {"Sequence number": 1, "Fwd thread id": 0}}

    plain, closed = (account(load_drawn(drawing, entry)) for entry in ({}, counted))

    # Before, between and after the ops: 4, 2, 6 and 1 µs.
    assert kind(plain, OPTIMIZER) == 13_000
    # Until the backward is done, it is the model's.
    assert kind(closed, OPTIMIZER) == 7_000
    assert kind(closed, NO_STACKS) == kind(plain, NO_STACKS) + 6_000


def test_the_own_time_of_an_op_is_without_its_launch() -> None:
    trace = load_drawn(STEP)
    result = account(trace)

    own = result.own_time(trace.ops["id"].to_list())

    assert own["recorded"].sum() == kind(result, DISPATCH)


def test_a_main_thread_that_does_nothing_has_its_time_all_the_same() -> None:
    trace = load_drawn("""
        host    [ProfilerStep#1            ]
        host 2   [aten::mm            ]
    """)

    result = host_segments(trace)

    assert result.segments["at"].to_list() == [result.nothing]


def test_python_has_what_is_in_no_operator() -> None:
    result = account(load_drawn(STEP))

    (own,) = result.entries.filter(pl.col("kind") == WITH_LIBRARIES).iter_rows(
        named=True
    )
    assert (own["name"], own["file"], own["line"]) == ("main", "train.py", 3)
    assert own["recorded"] == result.entries["recorded"].sum() - sum(
        kind(result, name) for name in ("launches", SYNC, DISPATCH, "unknown")
    )


def test_while_backward_runs_in_its_thread_the_main_thread_only_waits() -> None:
    trace = load_drawn(BACKWARD)

    result = account(trace)

    assert result.entries["recorded"].sum() == trace.steps["dur"].sum()
    assert kind(result, "launches") == 20_000 + 22_000
    assert kind(result, "autograd engine") > 0


CHURN = f"""
    host   [ProfilerStep#1 {" " * 560}]
    host    [aten::mm           ]    [aten::bmm {" " * 480}]
    host     [cudaLaunchKernel>1]     [cudaLaunchKernel>2]
    gpu 7                 [gemm<1]                  [gemm<2]
"""


def test_a_first_call_far_beyond_the_usual_is_of_a_new_shape() -> None:
    shape = inputs([[317, 64], [64, 64]], ["c10::BFloat16"] * 2)
    result = account(load_drawn(CHURN, {"aten::mm": shape, "aten::bmm": shape}))

    slow = result.calls.filter(pl.col("excess") > 0)
    assert slow["name"].to_list() == ["aten::bmm"]
    assert kind(result, NEW_SHAPE) > 400_000


ONCE = f"""
    host   [ProfilerStep#1 {" " * 520}][ProfilerStep#2                                 ]
    host    [aten::mm {" " * 480}]{" " * 47}[aten::mm           ][aten::mm            ]
    host     [cudaLaunchKernel>1]{" " * 519}[cudaLaunchKernel>2] [cudaLaunchKernel>3]
    gpu 7                  [gemm<1]{" " * 530}[gemm<2]      [gemm<3]
"""


def test_a_slow_first_call_is_of_no_new_shape_if_later_steps_bring_none() -> None:
    shape = inputs([[317, 64], [64, 64]], ["c10::BFloat16"] * 2)
    result = account(load_drawn(ONCE, {"aten::mm": shape}))

    assert kind(result, NEW_SHAPE) == 0
    assert kind(result, SLOW) > 200_000  # in one of two steps


# Three copies to the GPU, and two on the host.
COPIES = f"""
    host   [ProfilerStep#1 {" " * 420}]
    host    [aten::copy_        ] [aten::copy_        ] [aten::copy_        ]\
 [aten::copy_ {" " * 160}] [aten::copy_ {" " * 160}]
    host     [cudaMemcpyAsync>1]   [cudaMemcpyAsync>2]   [cudaMemcpyAsync>3]
    gpu 7               [Memcpy<1]            [Memcpy<2]            [Memcpy<3]
"""


def test_a_copy_on_the_host_is_compared_with_copies_on_the_host() -> None:
    calls = op_calls(load_drawn(COPIES))

    assert calls["usual"].to_list() == [*[2_000] * 3, *[174_000] * 2]
    assert calls["excess"].sum() == 0


@pytest.mark.parametrize("sizes", [(64, 512), (512, 512)])
def test_an_op_is_slower_than_usual_only_if_others_of_its_size_are_not(
    tmp_path: Path, sizes: tuple[int, int]
) -> None:
    document = draw(f"""
        host   [ProfilerStep#1 {" " * 260}][ProfilerStep#2                           ]
        host    [aten::sum] [aten::sum] [aten::sum {" " * 200}]{" " * 45}\
[aten::sum] [aten::sum] [aten::sum]
        gpu 7   [sum]
    """)
    calls = [event for event in document["traceEvents"] if event["name"] == "aten::sum"]
    for at, call in enumerate(calls):
        call["args"] = inputs([[sizes[at == 2]]], ["float"])
    file = tmp_path / "trace.json"
    file.write_text(json.dumps(document))

    slow = op_calls(load(file, cache=False)).filter(pl.col("excess") > 0)

    # Of a size that no other call has, it is not known what is usual.
    assert slow.height == (sizes[0] == sizes[1])


@pytest.mark.parametrize(
    ("sizes", "slow"),
    [([8] * 3 + [700, 700], 0), ([8] * 3 + [700, 701], 0), ([8] * 5, 2), ([], 0)],
)
def test_what_computes_on_the_host_is_slow_only_among_calls_of_its_size(
    tmp_path: Path, sizes: list[int], slow: int
) -> None:
    """As sorts of 160 and 760 µs of a sampler of graphs, beside small ones."""
    document = draw(f"""
        host   [ProfilerStep#1 {" " * 300}][ProfilerStep#2 {" " * 260}]
        host    [aten::sort   ] [aten::sort   ] [aten::sort   ]\
 [aten::sort {" " * 200}]{" " * 60}[aten::sort {" " * 210}]
        host     [aten::copy_]   [aten::copy_]   [aten::copy_]   [aten::copy_]\
{" " * 262}[aten::copy_]
        gpu 7   [sum]
    """)
    calls = [
        event for event in document["traceEvents"] if event["name"] == "aten::sort"
    ]
    for call, size in zip(calls, sizes, strict=False):
        call["args"] = inputs([[size]], ["long int"])
    file = tmp_path / "trace.json"
    file.write_text(json.dumps(document))

    calls_of = op_calls(load(file, cache=False)).filter(pl.col("name") == "aten::sort")

    assert calls_of.height == 5
    assert (calls_of["excess"] > 0).sum() == slow


def test_an_op_that_runs_a_model_inside_is_no_slower_than_usual() -> None:
    # As with activation checkpointing, which runs the forward pass again.
    again = f"[MmBackward0 {' ' * 160}]"
    calls = op_calls(
        load_drawn(f"""
        host   [ProfilerStep#1 {" " * 400}]
        host   [MmBackward0] [MmBackward0] [MmBackward0] {again} {again}
        host   {" " * 70}[aten::linear]{" " * 160}[aten::linear]
        gpu 7  [gemm]
    """)
    )

    assert calls["excess"].sum() == 0


def test_the_account_of_a_real_trace_adds_up_to_each_step(real_trace: Path) -> None:
    trace = loaded(real_trace)

    result = account(trace)

    steps = trace.steps.filter(~pl.col("warmup"))
    sums = result.segments.group_by("step").agg(pl.col("recorded").sum())
    both = steps.join(sums, on="step")
    assert both["recorded"].to_list() == both["dur"].to_list()
    assert both.height == steps.height
    assert result.entries["recorded"].sum() * result.steps == pytest.approx(
        result.segments["recorded"].sum()
    )
    assert result.entries["idle"].sum() <= result.entries["recorded"].sum() + 1
    assert (result.entries["recorded"] >= 0).all()


def test_with_stacks_hardly_anything_is_unknown(fixture_trace: Path) -> None:
    result = account(loaded(fixture_trace))

    assert 100 * kind(result, "unknown") <= result.entries["recorded"].sum()


def test_a_trace_without_stacks_has_an_account_too() -> None:
    drawing = "\n".join(line for line in STEP.splitlines() if "train.py" not in line)

    result = account(load_drawn(drawing))

    assert kind(result, DISPATCH) == 2_000
    assert kind(result, NO_STACKS) > 0
    assert kind(result, "unknown") == 0


@pytest.mark.real
def test_the_waits_of_moe_loop_are_no_work_of_the_host() -> None:
    trace = load(ROOT / "fixtures/twins/moe_loop/trace.json.gz", cache=False)

    result = account(trace)

    assert 0 < kind(result, SYNC) < kind(result, DISPATCH)


@pytest.mark.real
def test_summary_prints_the_account_and_its_json_adds_up() -> None:
    path = ROOT / "fixtures/twins/moe_loop/trace.json.gz"

    text = traceq("summary", path, "--host").out
    document = json.loads(traceq("summary", path, "--host", "--format", "json").out)

    (one,) = document["traces"]
    kinds, entries = (
        sum(row["recorded"] for row in one["host"][key]) for key in ("kinds", "entries")
    )
    assert "Time of the host" in text
    assert "Largest entries" in text
    assert kinds == pytest.approx(entries) == pytest.approx(one["steps"][0]["dur"])


HOOK = """
    host   [ProfilerStep#1                                                       ]
    host    [train.py(3): main                                                  ]
    host     [nn.Module: Linear_0                                              ]
    host      [torch/nn/modules/module.py(9): _call_impl                      ]
    host       [torch/nn/modules/linear.py(5): forward]  [train.py(40): keep ]
    host        [aten::mm           ]                     [aten::mean       ]
"""


def test_what_a_hook_does_is_the_hooks_operators_included() -> None:
    result = account(load_drawn(HOOK))

    (hook,) = result.entries.filter(pl.col("kind") == HOOKS).iter_rows(named=True)
    assert (hook["name"], hook["file"], hook["line"]) == ("keep", "train.py", 40)
    assert hook["recorded"] == 21_000
    assert hook["calls"] == 1
    assert kind(result, DISPATCH) == 21_000


def test_a_forward_of_the_users_own_is_no_hook() -> None:
    result = account(
        load_drawn(HOOK.replace("train.py(40): keep", "train.py(9): forward"))
    )

    assert kind(result, HOOKS) == 0


def test_a_function_in_place_of_a_forward_is_no_hook() -> None:
    lines = [line for line in HOOK.splitlines() if "aten::mm" not in line]
    drawing = "\n".join(lines).replace("[torch/nn/modules/linear.py(5): forward]", "")

    assert kind(account(load_drawn(drawing)), HOOKS) == 0


def test_between_the_nodes_of_backward_is_the_engine_without_stacks_too() -> None:
    result = account(
        load_drawn("""
    host   [ProfilerStep#1                                                           ]
    host 2 [autograd::engine::evaluate_function]   [autograd::engine::evaluate_function]
    host 2  [cudaLaunchKernel>1]                    [cudaLaunchKernel>2  ]
    gpu 7                         [gemm<1   ]                             [add<2]
    """)
    )

    assert kind(result, ENGINE) == 3_000


def test_the_recorders_own_python_is_the_profilers() -> None:
    result = account(
        load_drawn("""
    host   [ProfilerStep#1                                                      ]
    host    [train.py(3): main                                                 ]
    host     [aten::mm    ]   [collect/agent/steps.py(97): after]
    host                       [collect/agent/session.py(5): do]
    """)
    )

    assert kind(result, PROFILER) == 35_000


def test_what_the_recorder_calls_of_python_is_the_profilers_too() -> None:
    result = account(
        load_drawn("""
    host   [ProfilerStep#1                                                       ]
    host    [train.py(3): main                                                  ]
    host     [aten::mm           ]  [collect/agent/steps.py(9): leave          ]
    host      [cudaLaunchKernel>1]    [pathlib.py(10): read_text          ]
    gpu 7                  [gemm<1                              ]
""")
    )

    assert kind(result, PROFILER) == 44_000


def test_a_large_copy_from_pageable_memory_is_no_work_of_the_host() -> None:
    result = account(
        load_drawn(
            """
    host   [ProfilerStep#1                                                      ]
    host    [aten::copy_                        ]
    host     [cudaMemcpyAsync>1                ]
    gpu 7             [Memcpy HtoD (Pageable -> Device)<1]
    """,
            {"Memcpy HtoD (Pageable -> Device)": {"bytes": 1 << 20}},
        )
    )

    assert kind(result, BLOCKING) == 35_000


def test_the_tree_of_modules_has_each_with_what_it_calls() -> None:
    table = account(load_drawn(HOOK)).modules

    (row,) = table.iter_rows(named=True)
    assert (row["module"], row["depth"]) == ("Linear", 0)
    assert row["recorded"] == 67_000


def test_a_search_is_as_long_without_the_profiler_as_with_it() -> None:
    shape = inputs([[317, 64], [64, 64]], ["c10::BFloat16"] * 2)
    trace = load_drawn(CHURN, {"aten::mm": shape, "aten::bmm": shape})
    model = build_model(trace, steady_steps(trace))

    (call,) = op_calls(trace).filter(pl.col("excess") > 0).iter_rows(named=True)
    before, after = (
        float(step_model.host["own"].sum())
        for step_model in (model, unslowed(model, trace))
    )
    # Beside the search, which takes most of the step, nothing changes.
    assert after > before
    assert call["excess"] <= after <= int(trace.steps["dur"].sum())


def test_without_searches_the_estimate_stays() -> None:
    trace = load_drawn(STEP)
    model = build_model(trace, steady_steps(trace))

    assert unslowed(model, trace) is model


def test_the_step_with_new_image_sizes_is_estimated_from_its_trace_alone() -> None:
    path = path_of("pairs/conv_sizes_free.trace.json.gz")

    # 83.5 ms a step were measured, 72 to 90 in three rounds.
    assert bound_of(loaded(path), None).step_ns == pytest.approx(83.5e6, rel=0.15)


WRAPPED = """
    host   [ProfilerStep#1                                                       ]
    host    [train.py(3): main                                                  ]
    host     [torch/_dynamo/eval_frame.py(9): _fn ] [{}]
    host      [aten::mm           ]
    host       [cudaLaunchKernel>1]
    gpu 7                  [gemm<1                              ]
"""


@pytest.mark.parametrize(
    ("beside", "wrappers"),
    [
        ("aten::relu", False),
        ("torch/_functorch/vmap.py(4): fn", False),
        ("TorchDynamo Cache Lookup", True),
        ("Torch-Compiled Region: 0/0", True),
    ],
)
def test_only_beside_compiled_code_are_dynamos_wrappers_those_of_compiled_code(
    beside: str, *, wrappers: bool
) -> None:
    result = account(load_drawn(WRAPPED.format(beside)))

    assert (kind(result, COMPILED) > 0) is wrappers
    assert (kind(result, LIBRARY) > 0) is not wrappers


def test_what_torch_func_does_beside_compiled_code_is_a_librarys() -> None:
    drawing = WRAPPED.format("TorchDynamo Cache Lookup").replace(
        "torch/_dynamo/eval_frame.py(9): _fn", "torch/_functorch/vmap.py(493): vmap"
    )

    assert kind(account(load_drawn(drawing)), LIBRARY) > 0


def test_what_the_host_takes_without_the_profiler_is_not_longer_than_recorded() -> None:
    trace = loaded(ROOT / "fixtures" / "varying_length" / "trace.json.gz")
    recorded = bound_of(trace, None).recorded_step_ns

    # A step that was measured to take longer than the recorded ones.
    entries = View(trace, step_ns=round(2 * recorded)).host_account.entries

    assert entries.filter(pl.col("estimated") > pl.col("recorded") + 1).is_empty()


def _launched_long(name: str) -> str:
    wide = " " * 1500
    return f"""
    host   [ProfilerStep#1 {wide}                                               ]
    host    [aten::mul            ] [aten::exp {wide}       ] [aten::mul           ]
    host     [cudaLaunchKernel>1]    [cudaLaunchKernel>2{wide}] [cudaLaunchKernel>3]
    gpu 7          [k<1]                              {wide}[{name}<2]       [k<3]
    """


def test_a_long_first_launch_of_a_kernel_loads_it() -> None:
    first, again = (
        View(load_drawn(_launched_long(name))).host_account.segments
        for name in ("exp", "k")
    )

    loading = first.filter(pl.col("kind") == LOADING)["recorded"].sum()
    assert loading > 1_500_000
    assert LOADING not in again["kind"]
