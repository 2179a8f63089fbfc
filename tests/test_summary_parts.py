"""The parts of a summary: phases by the clock, modules, tokens, attention, roofline."""

from __future__ import annotations

from dataclasses import replace

import polars as pl
import pytest
from recordings import CAPTURES, FIXTURE_TRACES, ROOT, TRACES, loaded

from traceq.analysis.base.steady import steady_steps
from traceq.analysis.patterns.attention_kernels import softmax_and_matmuls
from traceq.analysis.replay.roofline_savings import by_op, recoverable_ns
from traceq.analysis.summary import summarise
from traceq.analysis.time.modules import COLLECTIVES, by_module
from traceq.analysis.time.phases import by_phase, phase_times
from traceq.analysis.time.roofline import roofline
from traceq.analysis.time.tokens_per_step import Tokens, tokens_of
from traceq.inputs.load_trace import load
from traceq.linter.rule import inputs
from traceq.report.summary.content import content
from traceq.testing import load_drawn

STEP = """
host   [ProfilerStep#1                                                          ]
host    [enumerate(DataLoader)#_Iter.__next__]
host                                          [aten::mm             ]
host                                           [cudaLaunchKernel>1 ]
host 2                                                                 [autograd::engine::evaluate_function: MmBackward0]
host 2                                                                  [cudaLaunchKernel>2]
gpu 7                                                       [gemm<1 ]                       [gemm<2 ]
"""  # noqa: E501 - a picture


def test_each_instant_of_a_step_is_of_the_phase_that_the_gpu_works_or_waits_for() -> (
    None
):
    forward, backward, data, step = by_phase(load_drawn(STEP))

    assert [phase_time.phase for phase_time in (forward, backward, data)] == [
        "forward",
        "backward",
        "data",
    ]
    # Until the first kernel the GPU waits: for data, then for the forward.
    assert data.wall_ns == 38_000
    assert data.busy_ns == 0
    assert forward.busy_ns == backward.busy_ns == 9_000
    # The end of the first kernel to the start of the second is the backward's.
    assert backward.wall_ns == 23_000 + 9_000
    assert forward.wall_ns + backward.wall_ns + data.wall_ns == step.wall_ns


def test_what_is_left_of_a_step_after_its_last_work_is_other() -> None:
    trace = load_drawn(
        """
        host   [ProfilerStep#1                          ][ProfilerStep#2             ]
        host    [aten::mm             ]                   [aten::mm             ]
        host     [cudaLaunchKernel>1 ]                     [cudaLaunchKernel>2 ]
        gpu 7            [gemm<1       ]                            [gemm<2         ]
        """
    )
    first = phase_times(trace).filter(pl.col("step") == 1)

    # The forward of the next step is not what this one waits for.
    assert dict(first.select("phase", "wall").iter_rows())["other"] == 17_000


@pytest.mark.parametrize("name", ["attn_mask_fmha", "copies", "moe_dropless"])
def test_phases_add_up_to_each_step(name: str) -> None:
    trace = loaded(TRACES[name])
    table = phase_times(trace).group_by("step").agg(pl.col("wall").sum()).sort("step")

    assert table["wall"].to_list() == trace.steps.sort("step")["time"].to_list()


def test_a_warm_up_step_is_beside_the_steady_ones_not_among_them() -> None:
    trace = loaded(TRACES["attn_flash"])
    early = trace.steps["step"] == trace.steps["step"].min()
    warm = replace(trace, steps=trace.steps.with_columns(warmup=early, averaged=~early))
    *_, step = by_phase(warm)
    (first, second) = trace.steps["time"]

    assert (step.warmup_ns, step.wall_ns) == (first, second)
    (table, *_) = content(summarise(warm)).tables
    assert [column.title for column in table.columns][-2:] == [
        "warm-up",
        "longest kernel",
    ]


def test_a_trace_of_one_phase_has_no_table_of_phases() -> None:
    trace = load_drawn(
        """
        host   [aten::mm             ]
        host    [cudaLaunchKernel>1 ]
        gpu 7            [gemm<1       ]
        """
    )

    assert all(
        not table.columns[0].title.startswith("Phase")
        for table in content(summarise(trace)).tables
    )


@pytest.mark.parametrize("name", ["attn_manual", "moe_dropless", "copies"])
def test_modules_add_up_to_the_gpus_time(name: str) -> None:
    trace = loaded(TRACES[name])
    steady = steady_steps(trace)
    table = by_module(trace, steady)

    assert table["inside"].any()
    assert table["ns"].sum() == pytest.approx(steady.gpu_busy / steady.count)


def test_layers_of_one_class_are_one_module() -> None:
    trace = loaded(TRACES["attn_manual"])
    table = by_module(trace, steady_steps(trace))

    assert "LM/Block/Linear" in table["module"].to_list()
    assert not table["module"].str.contains(r"_\d").any()


def test_collectives_of_no_module_are_named() -> None:
    path = TRACES.get("public/mi300_resnet_checkpoint")
    if path is None:
        pytest.skip("the trace is not ours to give away")
    trace = loaded(path)
    table = by_module(trace, steady_steps(trace))

    assert table["module"][0] == COLLECTIVES
    assert table["ns"][0] / table["ns"].sum() == pytest.approx(0.84, abs=0.01)


MODELS = ROOT / "benchmarks" / "models"


def test_tokens_are_the_rows_looked_up_in_the_largest_table() -> None:
    # Its encoder reads 16 × 512, its decoder 16 × 128; distances are in a small table.
    t5 = loaded(MODELS / "t5_norms.trace.json.gz")

    assert tokens_of(t5) == Tokens(16 * 512 + 16 * 128, "embedding")


def test_without_a_lookup_the_targets_of_the_loss_are_counted() -> None:
    replayed = loaded(FIXTURE_TRACES["graph_replay"])

    assert tokens_of(replayed) == Tokens(1024, "cross-entropy")
    facts = dict(content(summarise(replayed)).facts)
    assert facts["Targets"].startswith("1,024 of the cross-entropy a step: ")


def test_tokens_per_second_are_of_the_measured_step_where_it_is_known() -> None:
    trace = loaded(TRACES["attn_flash"])
    recorded, measured = summarise(trace), summarise(trace, step_ns=8_192_000)

    assert measured.tokens_per_second == pytest.approx(1_000_000)
    assert dict(content(measured).facts)["Tokens"] == (
        "8,192 a step, looked up in the embedding: 1,000,000 tokens/s measured without"
        " the profiler"
    )
    assert dict(content(recorded).facts)["Tokens"].endswith(" tokens/s as recorded")


def test_a_trace_that_does_not_train_has_no_tokens() -> None:
    path = TRACES.get("serving/sglang_prefilldecode")
    if path is None:
        pytest.skip("the trace is not ours to give away")

    assert summarise(loaded(path)).tokens is None


def test_softmax_is_compared_with_the_matmuls_of_attention_alone() -> None:
    trace = loaded(TRACES["attn_manual"])
    kernels = steady_steps(trace).kernels
    attention_parts = softmax_and_matmuls(trace, kernels)
    gemms = int(kernels.filter(pl.col("kind") == "gemm")["dur"].sum())
    softmaxes = int(kernels.filter(pl.col("kind") == "softmax")["dur"].sum())

    assert attention_parts is not None
    assert attention_parts.ratio == pytest.approx(1.12, abs=0.01)
    # Those of linear layers and of the loss are left out.
    assert attention_parts.matmul_ns < 0.4 * gemms
    assert attention_parts.softmax_ns < 0.7 * softmaxes


def test_fused_attention_has_no_softmax_to_compare() -> None:
    trace = loaded(TRACES["attn_flash"])

    assert softmax_and_matmuls(trace, steady_steps(trace).kernels) is None


def test_a_softmax_by_hand_is_compared_from_its_largest_scores_to_its_division() -> (
    None
):
    scores, sums, half = [8, 12, 64, 64], [8, 12, 64, 1], ["c10::BFloat16"] * 2
    trace = load_drawn(
        """
        host  [ProfilerStep#1                                                             ]
        host   [aten::bmm][aten::mul][aten::max][aten::exp][aten::sum][aten::div][aten::bmm]
        host   [cuLaun>1 ][cuLaun>2 ][cuLaun>3 ][cuLaun>4 ][cuLaun>5 ][cuLaun>6 ][cuLaun>7 ]
        gpu 7  [gemm<1   ][mul<2    ][max<3    ][exp<4    ][sum<5    ][div<6    ][gemm<7   ]
        """,  # noqa: E501 - as wide as a softmax is long
        {
            "aten::bmm": inputs([[96, 64, 64], [96, 64, 64]], half),
            "aten::mul": inputs([scores, []], half),
            **{f"aten::{name}": inputs([scores], half) for name in ("max", "exp")},
            "aten::sum": inputs([scores], half),
            "aten::div": inputs([scores, sums], half),
        },
    )

    attention_parts = softmax_and_matmuls(trace, trace.kernels)

    assert attention_parts is not None
    assert (attention_parts.softmax_ns, attention_parts.matmul_ns) == (
        4 * 11_000,
        2 * 11_000,
    )


@pytest.mark.parametrize("name", ["attn_manual", "copies"])
def test_what_all_slow_ops_could_save_is_more_than_one_and_less_than_their_sum(
    name: str,
) -> None:
    trace = loaded(TRACES[name])
    result = roofline(trace)
    each = by_op(trace, result)["recoverable"].to_list()

    assert max(each) <= recoverable_ns(trace, result) <= sum(each) * 1.001


def test_nothing_is_recoverable_of_a_gpu_whose_peaks_are_not_known() -> None:
    trace = loaded(TRACES["attn_manual"])
    unknown = replace(
        trace, devices=trace.devices.with_columns(name=pl.lit("GPU 9000"))
    )
    result = roofline(unknown)

    assert result.gpu.peak is None
    assert recoverable_ns(unknown, result) == 0.0
    assert summarise(unknown).roofline is None


def test_the_roofline_of_a_host_bound_step_says_that_faster_kernels_save_nothing() -> (
    None
):
    trace = loaded(CAPTURES.path("moe_loop.trace.json.gz"))
    line = dict(content(summarise(trace)).facts)["Roofline"]

    assert line.endswith("faster ones would not shorten a step")


def test_of_a_trace_without_steps_nothing_is_said_of_a_step() -> None:
    shown = content(summarise(load(TRACES["moe_loop"], steps_by="none")))
    phases, *_ = shown.tables
    facts = dict(shown.facts)

    assert [row[0] for row in phases.rows][-1] == "all"
    assert facts["Roofline"].endswith("faster ones would not shorten the trace")
    assert "a step" not in facts["Launches"]


def test_shares_of_what_bounds_kernels_add_up_to_one() -> None:
    reached = summarise(loaded(TRACES["attn_manual"])).roofline

    assert reached is not None
    assert sum(reached.bounds.values()) == pytest.approx(1)
    assert 0 < reached.efficiency < 1
