"""HST: what the host takes long for, on programs with measured twins."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import polars as pl
import pytest
from linting import (
    bundled_rules,
    case_findings,
    drawn_findings,
    findings_of,
    mentions,
    outcome,
    priced_findings,
    sourced_findings,
)
from recordings import FIXTURE_TRACES, ROOT, loaded

from traceq.analysis.replay.bound import replay_of, waits_after
from traceq.analysis.replay.host_account import NEW_SHAPE, SLOW
from traceq.analysis.time.host_activity import HOOKS, PYTHON, SYNC
from traceq.check.fixture import read_fixture
from traceq.inputs.load_trace import load
from traceq.linter import View, inputs
from traceq.model.recording import Recording
from traceq.model.run import Rank, StepTime
from traceq.testing import load_drawn
from traceq.testing.timeline import draw

if TYPE_CHECKING:
    from pathlib import Path

    from traceq.linter import Finding
    from traceq.model.lint_report import RecordingReport
    from traceq.model.trace import Trace

HST = ("HST001", "HST002", "HST003")
SICK = ("moe_dropless", "varying_length", "python_in_step", "forward_hooks")


def step_ns(name: str) -> int:
    """Return what a step of a fixture takes, as was measured without the profiler."""
    return read_fixture(ROOT / "fixtures" / name).step_ns or 0


def checked(name: str, *codes: str) -> RecordingReport:
    trace = loaded(FIXTURE_TRACES[name])
    return outcome(Recording(name, trace=trace, step_ns=step_ns(name)), *codes)


def found_in(name: str, *codes: str) -> tuple[Finding, ...]:
    return checked(name, *codes).findings


def labels(finding: Finding) -> set[str]:
    return {evidence.label for evidence in finding.evidence}


@pytest.mark.parametrize("name", SICK)
def test_the_repaired_twin_has_none_of_it(name: str) -> None:
    assert found_in(f"twins/{name}_fixed", *HST) == ()


@pytest.mark.parametrize(
    "name", ["attn_flash", "norm_fused", "layernorm_autocast", "optimizer_fused"]
)
def test_a_plain_transformer_has_none_of_it(name: str) -> None:
    assert case_findings(f"{name}.trace.json.gz", *HST) == ()


def test_experts_with_new_shapes_are_found_with_line_dimension_and_count() -> None:
    (finding,) = found_in("moe_dropless", "HST001")

    assert (finding.place.file, finding.place.line) == ("moe_dropless.py", 21)
    assert "dimension 0 of input 0 of aten::mm varies" in finding.message
    # The library searched for 45 of the 552 products in these three steps.
    assert finding.count == 15
    assert "multiples of 256" in finding.advice
    assert "grouped_mm" in finding.advice


def test_padding_the_experts_saves_what_was_measured() -> None:
    (finding,) = found_in("moe_dropless", "HST001")

    # 36.0 ms a step, 25.6 ms with tokens padded to multiples of 256, no profiler.
    assert finding.saves_ns == pytest.approx(36.0e6 - 25.6e6, rel=0.3)


def test_loading_of_kernels_is_told_from_the_search() -> None:
    (finding,) = found_in("moe_dropless", "HST001")

    (loading,) = (
        evidence for evidence in finding.evidence if evidence.label == "loading"
    )
    # Four kernels were loaded in three steps, 3 to 5 ms each, in 45 searches.
    assert loading.value == pytest.approx(5e6, rel=0.2)
    assert "ends once all were used" in loading.note


def test_cudnn_attention_on_new_lengths_names_the_switch() -> None:
    attention, matmuls = found_in("varying_length", "HST001")

    assert (attention.place.file, attention.place.line) == ("varying_length.py", 25)
    assert "dimension 2 of input 0 of aten::_cudnn_attention_forward" in (
        attention.message
    )
    assert attention.count == 2
    assert "enable_cudnn_sdp(False)" in attention.advice
    assert "grouped_mm" not in matmuls.advice


def test_lengths_that_repeat_save_what_was_measured() -> None:
    findings = found_in("varying_length", "HST001")

    # 133 ms a step, 7.2 ms with lengths rounded up to 128, no profiler.
    assert sum(finding.saves_ns for finding in findings) == pytest.approx(
        126e6, rel=0.3
    )


def test_image_sizes_that_vary_are_two_dimensions() -> None:
    (finding,) = case_findings("pairs/conv_sizes_free.trace.json.gz", "HST001")

    assert "dimensions 2 and 3 of input 0 of aten::cudnn_convolution" in finding.message
    # 83.5 ms a step, 20.9 ms with sizes rounded up to 32, no profiler.
    assert finding.saves_ns == pytest.approx(83.5e6 - 20.9e6, rel=0.3)


@pytest.mark.parametrize(
    ("rows", "expected"), [((101, 115, 127, 90), 1), ((101, 115, 101, 101), 0)]
)
def test_one_step_with_a_new_shape_counts_where_sizes_vary(
    rows: tuple[int, ...], expected: int, tmp_path: Path
) -> None:
    steps, calls, launches, kernels = "", "", "", ""
    for number in range(1, 5):
        first, second = 2 * number - 1, 2 * number
        long = " " * (300 if number == 2 else 0)
        steps += f"[ProfilerStep#{number}{long}                            ]"
        calls += f" [aten::mm          {long}][aten::mm           ]"
        launches += f"  [cuLaunchKernel>{first}]{long}   [cuLaunchKernel>{second}] "
        kernels += f"              [k<{first}] {long}              [k<{second}]  "
    drawn = draw(f"host  {steps}\nhost  {calls}\nhost  {launches}\ngpu 7 {kernels}")
    mm = [event for event in drawn["traceEvents"] if event["name"] == "aten::mm"]
    for event, size in zip(mm, [row for row in rows for _ in range(2)], strict=True):
        event["args"] = inputs([[size, 64], [64, 64]], ["float"] * 2)
    path = tmp_path / "drawn.json"
    path.write_text(json.dumps(drawn), encoding="utf-8")

    trace = load(path, cache=False)
    findings = findings_of(Recording("drawn", trace), "HST001")

    assert len(findings) == expected
    assert all("once in 4 steps" in finding.message for finding in findings)


def test_sizes_that_repeat_have_no_finding() -> None:
    assert case_findings("pairs/conv_sizes_32.trace.json.gz", *HST) == ()


@pytest.mark.parametrize("name", ["graph_rerecord", "recompile"])
def test_new_shapes_of_graphs_and_compilation_are_left_to_their_rules(
    name: str,
) -> None:
    assert case_findings(f"{name}.trace.json.gz", "HST001") == ()


def test_shapes_that_are_new_in_one_step_only_are_warm_up() -> None:
    long = " " * 300
    shape = inputs([[317, 64], [64, 64]], ["c10::BFloat16"] * 2)
    drawing = f"""
        host   [ProfilerStep#1              ] [ProfilerStep#2 {long}]
        host    [aten::mm           ]          [aten::bmm {long}]
        host     [cudaLaunchKernel>1]           [cudaLaunchKernel>2]
        gpu 7                 [gemm<1]                        [gemm<2]
    """

    args = {"aten::mm": shape, "aten::bmm": shape}
    assert drawn_findings(drawing, "HST001", args=args) == ()


def test_python_in_the_step_is_found_by_function() -> None:
    text, mask = found_in("python_in_step", "HST003")

    assert (text.place.file, text.place.function) == ("python_in_step.py", "described")
    assert mentions(text, "described", "text", "once")
    assert mentions(mask, "mask_of", "tensors", "once")
    assert "torch.arange" in mask.advice


def test_a_step_without_that_python_is_predicted() -> None:
    report = checked("python_in_step", "HST003")

    assert report.together[-1].step_ns == pytest.approx(
        step_ns("twins/python_in_step_fixed"), rel=0.2
    )


def test_hooks_are_found_with_what_they_launch() -> None:
    (hook,) = found_in("forward_hooks", "HST003")

    assert (hook.place.file, hook.place.line) == ("forward_hooks.py", 30)
    assert mentions(hook, "keep", "hook", 97)
    assert len(hook.kernels) == 2 * 97 * 11


def test_removing_hooks_saves_what_was_measured() -> None:
    (hook,) = found_in("forward_hooks", "HST003")

    assert hook.saves_ns == pytest.approx(
        step_ns("forward_hooks") - step_ns("twins/forward_hooks_fixed"), rel=0.3
    )


def test_without_calls_of_libraries_python_is_not_reported() -> None:
    drawing = """
        host   [ProfilerStep#1                                                  ]
        host                            [train.py(30): tokenise                ]
        host     [aten::mm           ]   [<built-in method split of str object>]
        host      [cudaLaunchKernel>1]
        gpu 7                   [gemm<1]
    """

    assert drawn_findings(drawing, "HST003") == ()


@pytest.mark.parametrize(
    ("called", "looks"),
    [
        ("<built-in method tolist of Tensor object>", "calls `.tolist()`"),
        ("logging/__init__.py(1500): info", "writes logs"),
        ("torch/_tensor_str.py(700): _str", "formats tensors"),
        ("transformers/tokenization.py(3): encode", "works on text"),
        ("json/encoder.py(200): iterencode", "reads or writes JSON"),
        ("multiprocessing/queues.py(98): get", "receives what other processes send"),
        ("<built-in function sum>", "works in Python"),
    ],
)
def test_what_a_function_calls_says_what_it_does(called: str, looks: str) -> None:
    drawing = f"""
        host   [ProfilerStep#1                     {" " * 50}]
        host    [torch/nn.py(5): f    ] [train.py(30): note {" " * 30}]
        host     [aten::mm           ]   [{called:<42}]
        host      [cudaLaunchKernel>1]
        gpu 7                   [gemm<1]
    """

    (finding,) = drawn_findings(drawing, "HST003")

    assert mentions(finding, "note", looks, "once")


@pytest.mark.parametrize(
    "called",
    ["multiprocessing/queues.py(98): get", "multiprocessing/connection.py(2): r"],
)
def test_what_other_processes_make_is_not_to_be_made_in_a_process(called: str) -> None:
    drawing = f"""
        host   [ProfilerStep#1                     {" " * 50}]
        host    [torch/nn.py(5): f    ] [train.py(30): next_batch {" " * 24}]
        host     [aten::mm           ]   [{called:<42}]
        host      [cudaLaunchKernel>1]
        gpu 7                   [gemm<1]
    """

    (finding,) = drawn_findings(drawing, "HST003")

    assert "start more of them" in finding.advice
    assert "smaller messages" in finding.advice
    assert "in a process of its own" not in finding.advice
    assert not finding.example


@pytest.mark.parametrize(
    ("file", "own_process"), [("my_envs/wrappers.py", True), ("train.py", False)]
)
def test_python_of_an_environment_is_to_run_in_a_process_of_its_own(
    file: str, *, own_process: bool
) -> None:
    drawing = f"""
        host   [ProfilerStep#1                     {" " * 50}]
        host    [torch/nn.py(5): f    ] [{file}(30): step {" " * 30}]
        host     [aten::mm           ]   [<built-in function sum>                   ]
        host      [cudaLaunchKernel>1]
        gpu 7                   [gemm<1]
    """

    (finding,) = drawn_findings(drawing, "HST003")

    assert ("AsyncVectorEnv" in finding.advice) == own_process
    assert ("NumPy" in finding.advice) != own_process
    assert not finding.example


@pytest.mark.parametrize(
    ("called", "looks"),
    [
        ("triton/runtime/jit.py(419): run", "launches Triton kernels"),
        ("<built-in function sum>", "works in Python"),
        ("json/encoder.py(200): iterencode", "reads or writes JSON"),
    ],
)
@pytest.mark.parametrize("module", ["nn.Module: Norm_0", ""])
def test_python_of_a_forward_is_not_to_run_in_a_worker_or_once_in_many_steps(
    called: str, looks: str, module: str
) -> None:
    around = f"[{module:<62}]" if module else ""
    drawing = f"""
        host   [ProfilerStep#1                     {" " * 50}]
        host    [torch/nn.py(5): f    ] {around}
        host     [aten::mm           ]   [train.py(30): forward {" " * 30}]
        host      [cudaLaunchKernel>1]    [{called:<42}]
        gpu 7                   [gemm<1]
    """

    (finding,) = drawn_findings(drawing, "HST003")

    away = not module and "Triton" not in looks
    assert mentions(finding, "forward", looks, "once")
    assert ("NumPy" in finding.advice) == away
    assert "once in many steps" not in finding.advice
    assert "workers" not in finding.advice
    assert not finding.example


@pytest.mark.parametrize(
    ("inside", "looks"),
    [
        ("", "takes long without calling anything"),
        ("[<built-in function sum>]" * 59, "works in Python"),
    ],
)
def test_what_a_function_does_without_a_call_is_not_known(
    inside: str, looks: str
) -> None:
    # As where the memory of a large result is freed.
    step = f"[ProfilerStep#{{}} {' ' * 1600}]"
    drawing = f"""
        host   {step.format(1)}{step.format(2)}
        host    [train.py(30): main {" " * 3180}]
        host     [torch/nn.py(5): f    ] {inside:1590} [torch/nn.py(5): f    ] {inside}
        host      [aten::mm           ]{" " * 1594}[aten::mm           ]
        host       [cudaLaunchKernel>1]{" " * 1594}[cudaLaunchKernel>2]
        gpu 7                    [gemm<1]{" " * 1594}[gemm<2]
    """

    (finding,) = drawn_findings(drawing, "HST003")

    assert finding.message.startswith(f"main {looks}")
    assert ("does not show what" in finding.advice) == (not inside)


@pytest.mark.parametrize(
    ("inside", "expected"),
    [("[aten::add]", 0), ("", 1)],
)
def test_a_library_around_its_own_operators_is_not_python_of_the_program(
    inside: str, expected: int
) -> None:
    space = " " * 400
    drawing = f"""
        host   [ProfilerStep#1 {space}]
        host    [train.py(30): fit {space[:390]}]
        host     [torch/nn.py(5): f    ] [gpytorch/mlls.py(4): forward {space[:340]}]
        host      [aten::mm           ]     {inside}
        host       [cudaLaunchKernel>1]
        gpu 7                    [gemm<1]
    """

    assert len(drawn_findings(drawing, "HST003")) == expected


def test_python_that_calls_operators_is_needed() -> None:
    drawing = """
        host   [ProfilerStep#1                                                ]
        host    [train.py(30): forward                                       ]
        host     [torch/nn.py(5): f    ][aten::a][aten::a][aten::a][aten::a]
        host      [aten::mm           ]
        host       [cudaLaunchKernel>1]
        gpu 7                    [gemm<1]
    """

    assert drawn_findings(drawing, "HST003") == ()


@pytest.mark.parametrize(("calls", "expected"), [(1, 1), (16, 0)])
def test_python_that_mostly_calls_operators_is_not_reported(
    calls: int, expected: int
) -> None:
    # Calling an operator takes Python up to 10 µs, of the 200 that this takes.
    ops = "[aten::a]" * calls
    drawing = f"""
        host   [ProfilerStep#1 {" " * 400}]
        host    [train.py(30): forward {" " * 370}]
        host     [torch/nn.py(5): f    ]{ops}
        host      [aten::mm           ]
        host       [cudaLaunchKernel>1]
        gpu 7                    [gemm<1]
    """

    assert len(drawn_findings(drawing, "HST003")) == expected


def test_a_stall_in_an_operator_and_the_one_around_it_is_one_finding() -> None:
    usual, within = "[aten::matmul]" * 3, " [aten::mm]   " * 3
    step = f"[ProfilerStep#{{}} {' ' * 400}]"
    slow, calls = f"[aten::matmul {' ' * 340}]", "   [cuCall]   " * 4
    drawing = f"""
        host   {step.format(1)}{step.format(2)}
        host    {f"{usual}{slow}":417}{usual}{slow}
        host    {f"{within} [aten::mm {' ' * 150}]":417}{within} [aten::mm {" " * 150}]
        host    {calls:417}{calls}
        gpu 7   [gemm]
    """

    (finding,) = drawn_findings(drawing, "HST002")

    assert mentions(finding, "aten::matmul", "once")
    slow_for, usual_for = finding.evidence
    # Of both: 194 and 161 µs, 4 and 10 where it is usual.
    assert (slow_for.value, usual_for.value) == (355_000, 14_000)
    assert len(finding.ops) == 4


def stalled(*stalls: int) -> str:
    """Draw a step for each stall, in µs: each time another operator has it."""
    steps = ops = calls = ""
    for number, stall in enumerate(stalls, 1):
        inside = ""
        for at, name in enumerate(("sum", "mul", "add")):
            usual = f"[aten::{name}      ]"
            slow = " " * stall if at == number % 3 else ""
            inside += f"{usual * 3}[aten::{name}      {slow}]"
        ops += f" {inside} "
        # They are of the GPU, whose work takes as long as it takes.
        calls += "".join(
            f" {'[cudaCall]':{len(call)}}" for call in f" {inside} ".split("]")[:-1]
        ).ljust(len(inside) + 2)
        steps += f"[ProfilerStep#{number}".ljust(len(inside) + 1) + "]"
    return f"""
        host   {steps}
        host   {ops}
        host   {calls}
        gpu 7   [sum]
    """


@pytest.mark.parametrize(
    ("mean", "stalls", "expected"),
    [
        # One step in four stops: the timed ones, as long as their median, do not.
        (300, (900, 900, 900, *[0] * 5), 0),
        (700, (900, 900, 900, *[0] * 5), 1),
        # What all steps have is in their median too.
        (300, (300, 300, 300), 1),
    ],
)
def test_stalls_count_as_far_as_steps_without_the_profiler_have_them(
    mean: int, stalls: tuple[int, ...], expected: int
) -> None:
    timed = StepTime(mean * 1000, 300_000, 290_000, 3_000_000, steps=20)
    rank = Rank("rank-0", 0, "done", None, None, timed, ())
    trace = replace(load_drawn(stalled(*stalls)), rank=rank)

    findings = outcome(Recording("drawn", trace=trace), "HST002").findings

    assert len(findings) == expected


def test_a_stall_that_timed_steps_do_not_have_is_not_what_the_gpu_waits_for() -> None:
    timed = StepTime(300_000, 300_000, 290_000, 310_000, steps=20)
    rank = Rank("rank-0", 0, "done", None, None, timed, ())
    drawn = load_drawn(stalled(900, 0))

    before, after = (
        dict(waits_after(trace, 300_000).kind_rows).get(SLOW, 0)
        for trace in (drawn, replace(drawn, rank=rank))
    )

    assert before > 150_000
    assert after < 60_000


PAUSED = """
    host   [ProfilerStep#1 {long}          ][ProfilerStep#2          ]
    host    [aten::sum]{long}[aten::mul   ]  [aten::sum][aten::mul   ]
    gpu 7   [sum]      {long}[mul         ]  [sum]      [mul         ]
"""


@pytest.mark.parametrize(("longest", "is_work"), [(8_100_000, True), (40_000, False)])
def test_a_pause_that_timed_steps_do_not_have_is_no_work_of_the_step(
    longest: int, *, is_work: bool
) -> None:
    """One of two recorded steps has it: alone that is no reason to leave it out."""
    timed = StepTime(4_040_000, 35_000, 30_000, longest, steps=20)
    rank = Rank("rank-0", 0, "done", None, None, timed, ())
    drawn = load_drawn(PAUSED.format(long=" " * 8_000))

    host = replay_of(replace(drawn, rank=rank)).model.host

    assert (host["own"].sum() > 2_000_000) is is_work


def test_workers_take_the_processor_only_where_there_are_any() -> None:
    (finding,) = drawn_findings(stalled(300, 300, 300), "HST002")

    assert "DataLoader" not in finding.advice
    assert "OMP_NUM_THREADS" in finding.advice


@pytest.mark.parametrize(("elements", "expected"), [(8, 1), (2048 * 2048, 0)])
def test_fresh_memory_of_a_large_tensor_on_the_cpu_takes_nobody_the_processor(
    elements: int, expected: int
) -> None:
    usual, slow = "[aten::fill_         ]" * 3, f"[aten::fill_ {' ' * 130}]"
    step = f"[ProfilerStep#{{}} {' ' * 195}]"
    drawing = f"""
        host   {step.format(1)} {step.format(2)}
        host    {usual}{slow}          {usual}{slow}
        gpu 7   [sum]
    """
    args = {"aten::fill_": inputs([[elements], []], ["float", "Scalar"])}

    assert len(drawn_findings(drawing, "HST002", args=args)) == expected


def test_slow_operators_all_over_the_program_are_contention() -> None:
    (finding,) = case_findings("public/t4_fp32.json.gz", "HST002")

    assert finding.subject == "operators at random places"
    assert "DataLoader workers" in finding.advice
    assert {"ops", "slow", "usual"} <= {*labels(finding)}
    assert "alike" not in labels(finding)


def test_stalls_of_one_length_are_turns_of_another_process() -> None:
    (finding,) = case_findings("public/t4_amp.json.gz", "HST002")

    (alike,) = (line for line in finding.evidence if line.label == "alike")
    assert alike.name == "4 of 5 take"
    assert alike.value == pytest.approx(2.02e6, rel=0.01)


@pytest.mark.parametrize(
    ("name", "kind", "entry"),
    [
        ("moe_dropless", NEW_SHAPE, "aten::mm"),
        ("varying_length", NEW_SHAPE, "aten::_cudnn_attention_backward"),
        ("python_in_step", PYTHON, "described"),
        ("forward_hooks", HOOKS, "keep"),
    ],
)
def test_what_was_planted_is_the_largest_entry(
    name: str, kind: str, entry: str
) -> None:
    account = View(loaded(FIXTURE_TRACES[name]), step_ns(name)).host_account

    largest = account.lines.row(0, named=True)
    assert (largest["kind"], largest["name"]) == (kind, entry)


def test_waiting_for_the_gpu_is_no_work_of_the_host() -> None:
    name = "moe_dropless"
    account = View(loaded(FIXTURE_TRACES[name]), step_ns(name)).host_account

    waits = account.kinds.filter(pl.col("kind") == SYNC)
    ((recorded, estimated),) = waits.select("recorded", "estimated").rows()
    assert recorded > 0
    assert 10 * estimated <= recorded


ROWS = {
    "aten::mm": inputs([[317, 64], [64, 64]], ["c10::BFloat16"] * 2),
    "aten::addmm": inputs([[64], [411, 64], [64, 64]], ["c10::BFloat16"] * 3),
}


def searches(around: str) -> str:
    """Draw two steps with a long matmul in each, inside of another op."""
    long = " " * 300
    return f"""
        host   [ProfilerStep#1 {long}         ] [ProfilerStep#2 {long}            ]
        host    [{around:<40}{long[33:]}     ]   [{around:<40}{long[33:]}         ]
        host     [aten::mm {long}]               [aten::addmm {long}]
        host      [cudaLaunchKernel>1]             [cudaLaunchKernel>2]
        gpu 7                  [gemm<1]                         [gemm<2]
    """


def test_compiled_code_is_told_how_to_keep_one_graph() -> None:
    (finding,) = drawn_findings(
        searches("Torch-Compiled Region: 0/0"), "HST001", args=ROWS
    )

    assert "torch._dynamo.mark_dynamic" in finding.advice


def test_code_that_is_not_compiled_is_not() -> None:
    (finding,) = drawn_findings(searches("aten::linear"), "HST001", args=ROWS)

    assert "mark_dynamic" not in finding.advice


def paused(
    *pauses: int, frames: str = "", first: bool = False, call: str = "", times: int = 1
) -> str:
    """Draw a step for each pause, given in µs: between its two ops, or first of all.

    The pause may be in a call, and be there some times.
    """
    steps = ops = ""
    for number, pause in enumerate(pauses, 1):
        space = " " * pause
        if call:
            space = f"[{call}".ljust(pause) + "]"
        two = "[aten::sum]" + f" {'' if first else space}[aten::mul]" * times
        inside = space + two if first else two
        ops += f"   {inside}  "
        steps += f"[ProfilerStep#{number}".ljust(len(inside) + 3) + "] "
    around = f"host  [{frames}".ljust(len(steps) + 8) + "]" if frames else ""
    return f"""
        {around}
        host   {steps.rstrip()}
        host   {ops.rstrip()}
        gpu 7   [sum]
    """


def test_a_pause_in_one_step_of_several_is_found() -> None:
    (finding,) = priced_findings(paused(10, 20_000, 10), "HST004")

    assert mentions(finding, "20.0 ms", "1 of 3")
    assert finding.saves_ns == pytest.approx(20e6 / 3, rel=0.01)


def test_a_pause_at_the_start_of_a_step_is_found() -> None:
    (finding,) = drawn_findings(paused(20, 20_000, 20, 20, first=True), "HST004")

    assert mentions(finding, "20.0 ms", "1 of 4")


def test_the_profilers_own_start_is_no_pause() -> None:
    assert not drawn_findings(paused(20_000, 20, 20, 20, first=True), "HST004")


@pytest.mark.parametrize(
    "pauses",
    [(20_000, 20_000, 10), (20_000, 10), (6_000, 20_000, 6_000), (4_000, 9, 9)],
)
def test_what_half_of_the_steps_do_or_is_short_is_no_pause(
    pauses: tuple[int, ...],
) -> None:
    assert not drawn_findings(paused(*pauses), "HST004")


@pytest.mark.parametrize(
    ("mean", "most", "shares"),
    [(1.0, 1.2, []), (1.0, 21.0, []), (1.5, 12.0, [0.075]), (9.0, 21.0, [1.0])],
)
def test_a_pause_counts_as_far_as_steps_without_the_profiler_have_it(
    mean: float, most: float, shares: list[float]
) -> None:
    mean_ns, most_ns = round(mean * 1e6), round(most * 1e6)
    timed = StepTime(mean_ns, 1_000_000, 900_000, most_ns, steps=20)
    rank = Rank("rank-0", 0, "done", None, None, timed, ())
    trace = replace(load_drawn(paused(10, 20_000, 10)), rank=rank)
    recording = Recording("drawn", trace=trace, step_ns=mean_ns)

    findings = outcome(recording, "HST004").findings

    assert [finding.fixes[0].host_share for finding in findings] == pytest.approx(
        shares, rel=0.01
    )


def test_stacks_are_asked_for_only_where_there_are_none() -> None:
    without = drawn_findings(paused(10, 20_000, 10), "HST004")
    frames = drawn_findings(
        paused(10, 20_000, 10, frames="train.py(3): main"), "HST004"
    )

    assert ["with_stack" in finding.advice for finding in (*without, *frames)] == [
        True,
        False,
    ]


def silent(source: str, between: int, *, before: int = 2, after: int = 3) -> Finding:
    """Return what HST003 finds of a function that calls nothing for some ms."""
    first = f"[<built-in function len> by train.py({before}): f]"
    last = f"[<built-in method float of Tensor object> by train.py({after}): f]"
    inside = f"{first}{' ' * between}{last}"
    (finding,) = sourced_findings(
        f"""
        host   [ProfilerStep#1                          {" " * len(inside)}]
        host    [torch/nn.py(5): g    ] [train.py(1): f {" " * len(inside)}]
        host     [aten::mm           ]    {inside}
        host      [cudaLaunchKernel>1]
        gpu 7                   [gemm<1]
        """,
        {"train.py": source},
        "HST003",
    )
    return finding


@pytest.mark.parametrize(
    ("written", "line", "mentioned"),
    [
        ("torch.Tensor(rows).float()", 3, ["torch.Tensor(rows)", "np.float32"]),
        ("torch.LongTensor([*rows]).float()", 3, ["LongTensor", "np.int64"]),
        # What is not seen to be slow is not named, but the lines around it are.
        ("torch.Tensor(7, 8).float()", 1, ["between lines 2 and 3"]),
        ("(rows * 2).float()", 1, ["between lines 2 and 3"]),
    ],
)
def test_a_tensor_that_is_made_of_a_list_between_two_calls_is_named(
    written: str, line: int, mentioned: list[str]
) -> None:
    finding = silent(f"def f(rows):\n    len(rows)\n    return {written}\n", 2000)

    assert finding.place.line == line
    assert all(part in finding.advice for part in mentioned)
    assert "free" not in finding.advice


def test_a_loop_between_two_calls_is_named_with_the_lines_around_it() -> None:
    source = """
        def f(rows):
            n = len(rows)
            for at in range(n):
                rows[at] += 1
            return rows.float()
    """

    finding = silent(source, 2000, after=5)

    assert mentions(finding, "without calling anything")
    assert "between lines 2 and 5; there is a loop at line 3" in finding.advice


def test_the_line_that_takes_most_of_a_function_is_its_place() -> None:
    calls = "[<built-in function sum> by train.py(33): f]" * 9
    source = "\n" * 29 + "def f(rows):\n" + "    rows = sum(rows)\n" * 5
    (finding,) = sourced_findings(
        f"""
        host   [ProfilerStep#1                           {" " * 400}]
        host    [torch/nn.py(5): g    ] [train.py(30): f {" " * 400}]
        host     [aten::mm           ]   {calls}
        host      [cudaLaunchKernel>1]
        gpu 7                   [gemm<1]
        """,
        {"train.py": source},
        "HST003",
    )

    assert (finding.place.line, finding.place.begins) == (33, 30)
    assert "33: sum" in {line.name for line in finding.evidence}


def in_function(name: str) -> Finding:
    """Return what HST003 finds of a function of the program's that loops in Python."""
    (finding,) = drawn_findings(
        f"""
        host   [ProfilerStep#1                     {" " * 50}]
        host    [torch/nn.py(5): f    ] [train.py(30): {name:<35}]
        host     [aten::mm           ]   [<built-in function sum>                   ]
        host      [cudaLaunchKernel>1]
        gpu 7                   [gemm<1]
        """,
        "HST003",
    )
    return finding


def test_a_loop_that_neither_logs_nor_makes_a_batch_is_not_to_run_in_a_worker() -> None:
    finding = in_function("discount_cumsum")

    assert "NumPy" in finding.advice
    assert "DataLoader" not in finding.advice
    assert not finding.example


def test_what_makes_the_batch_is_to_run_ahead_but_not_once_in_many_steps() -> None:
    finding = in_function("get_batch")

    assert "DataLoader's workers" in finding.advice
    assert "many steps" not in finding.advice + finding.example


def test_what_logs_is_to_run_once_in_many_steps() -> None:
    finding = in_function("log_metrics")

    assert "once in many steps" in finding.advice
    assert "step % 100" in finding.example


FORK = "<built-in function fork>"


def stopped(*pauses: int, call: str) -> Finding:
    """Return what HST004 finds where a call of the program's takes long."""
    drawing = paused(*pauses, frames="train.py(3): main", call=call)
    (finding,) = drawn_findings(drawing, "HST004")
    return finding


def test_the_call_that_fills_a_pause_is_named_and_the_collector_is_not_blamed() -> None:
    finding = stopped(40, 20_000, 40, call=FORK)

    assert mentions(finding, "`fork`", "20.0 ms", "1 of 3")
    assert "starts a process" in finding.advice
    assert "gc." not in finding.advice + finding.example


@pytest.mark.parametrize(
    ("call", "advice"),
    [
        ("<built-in method read of _io.BufferedReader object>", "reads or writes"),
        ("<built-in method write of _io.BufferedWriter object>", "reads or writes"),
        ("<built-in function sleep>", "sleep"),
        ("<built-in method acquire of _thread.lock object>", "waits for"),
    ],
)
def test_a_call_that_waits_fills_its_pause_however_short_it_mostly_is(
    call: str, advice: str
) -> None:
    finding = stopped(60, 20_000, 60, call=call)

    assert advice in finding.advice
    assert "gc." not in finding.advice + finding.example


@pytest.mark.parametrize("name", ["append of list", "join of str", "select of type"])
def test_a_call_that_is_mostly_short_and_waits_for_nothing_may_be_interrupted(
    name: str,
) -> None:
    finding = stopped(60, 20_000, 60, call=f"<built-in method {name} object>")

    assert "gc.disable()" in finding.advice
    assert name.split(maxsplit=1)[0] not in finding.message


def test_what_workers_of_a_data_loader_take_to_start_is_left_to_its_rule() -> None:
    loader = "torch/utils/data/dataloader.py(487): __iter__"
    drawing = paused(90, 20_000, 90, frames="train.py(3): main", call=loader)

    assert not drawn_findings(drawing, "HST004")


def test_pauses_of_one_place_are_counted_and_summed() -> None:
    (finding,) = drawn_findings(paused(40, 20_000, 40, times=3), "HST004")
    (total,) = (
        evidence.value for evidence in finding.evidence if evidence.label == "total"
    )

    assert mentions(finding, "3 times", "60.0 ms", "1 of 3")
    assert total == pytest.approx(20e6, rel=0.01)


def on_cpu(
    op: str, dims: list[int], inner: str = "", source: str = ""
) -> tuple[Finding, ...]:
    """Return what HST005 finds where an operator takes 170 µs of every step."""
    step = "[ProfilerStep#{0}".ljust(200) + "] "
    call = f" [{op}".ljust(170) + "] [cudaLaunchKernel>{0}]"
    inside, kernel = f"  {inner}", " " * 185 + "[gemm<{0}]"
    rows = [
        "".join(row.format(number).ljust(len(step) - 2) for number in (1, 2))
        for row in (step, call, inside, kernel)
    ]
    return drawn_findings(
        f"""
        host   {rows[0]}
        host   {rows[1]}
        host   {rows[2]}
        gpu 7  {rows[3]}
        """,
        "HST005",
        args={op: inputs([dims, dims[-2:] if source else []], ["float", source])},
    )


def chained(first: str, then: str, *, between: str = "") -> tuple[Finding, ...]:
    """Return what HST005 finds where two operators take 110 µs of every step."""
    width = 300
    call = f"[{first}".ljust(108) + "]" + f"[{between}]".ljust(20) * bool(between)
    call += f"[{then}".ljust(108) + "] [cudaLaunchKernel>{0}]"
    rows = ["[ProfilerStep#{0}".ljust(width - 2) + "]", call, " " * 270 + "[gemm<{0}]"]
    lanes = [
        "".join(row.format(number).ljust(width) for number in (1, 2)) for row in rows
    ]
    return drawn_findings(
        f"""
        host   {lanes[0]}
        host    {lanes[1]}
        gpu 7   {lanes[2]}
        """,
        "HST005",
        args=dict.fromkeys(
            (first, then), inputs([[3, 600, 400], []], ["float", "float"])
        ),
    )


def test_operators_on_the_cpu_one_after_another_are_one_finding() -> None:
    (finding,) = chained("aten::upsample_bilinear2d", "aten::round")

    assert finding.count == 2
    assert mentions(finding, "2 operators", "aten::upsample_bilinear2d")
    assert "all of them run there" in finding.advice
    assert finding.fixes[0].spans is not None
    assert finding.fixes[0].spans.height == 4


def test_numbers_drawn_before_other_work_on_the_cpu_are_advised_to_be_drawn_there() -> (
    None
):
    (finding,) = chained("aten::randperm", "aten::round")

    assert "draw the numbers on the GPU" in finding.advice


def test_a_tensor_made_on_the_cpu_is_made_on_the_gpu_or_before_the_loop() -> None:
    (alone,) = on_cpu("aten::hann_window", [100_000])
    (chain,) = chained("aten::full", "aten::triu")

    assert 'device="cuda" to torch.hann_window, ' in alone.advice
    assert 'device="cuda" to torch.full, ' in chain.advice
    for finding in (alone, chain):
        assert "once before the loop" in finding.advice
        assert "send" not in finding.advice


def test_operators_on_the_cpu_with_a_launch_between_them_are_apart() -> None:
    findings = chained("aten::sort", "aten::round", between="cudaLaunchKernel")

    assert {finding.subject for finding in findings} == {"aten::sort", "aten::round"}


def test_rows_picked_on_the_cpu_are_advised_to_be_picked_on_the_gpu() -> None:
    (finding,) = on_cpu("aten::index", [256, 3, 224, 224])

    assert mentions(finding, "aten::index", "float32", "[256,3,224,224]", "once")
    assert "on the GPU" in finding.advice
    assert "images[index" in finding.example


def test_a_tensor_too_large_for_the_gpu_is_not_advised_to_be_kept_there() -> None:
    (finding,) = on_cpu("aten::index", [100_000, 3, 224, 224])

    assert "keep the tensor" not in finding.advice
    assert finding.example == ""


@pytest.mark.parametrize(
    ("source", "does", "advice"),
    [
        ("unsigned char", "casts a uint8 [600,400]", "send the tensor as it is"),
        ("float", "copies a float32 [600,400]", "torch.tensor() copies an array"),
    ],
)
def test_a_copy_in_host_memory_is_told_from_a_cast(
    source: str, does: str, advice: str
) -> None:
    (finding,) = on_cpu("aten::copy_", [3, 600, 400], source=source)

    assert mentions(finding, "aten::copy_", does, "once")
    assert finding.advice.startswith(advice)


def test_work_on_the_cpu_is_named_without_shapes_too() -> None:
    (finding,) = on_cpu("aten::randperm", [])

    assert mentions(finding, "aten::randperm", "once")


def test_other_work_on_the_cpu_has_no_example_of_random_numbers() -> None:
    (finding,) = on_cpu("aten::sort", [100_000])

    assert mentions(finding, "aten::sort", "float32", "[100000]")
    assert finding.example == ""


@pytest.mark.parametrize(
    ("op", "dims", "inner"),
    [
        ("aten::as_strided", [256, 3, 224, 224], ""),
        ("aten::sort", [8], ""),
        ("custom::all_reduce", [100_000], ""),
        ("aten::sort", [100_000], "[cudaFuncGetAttributes]"),
        ("aten::sort", [100_000], "[aten::sort]"),
    ],
    ids=["view", "few elements", "another library", "asks the GPU", "subclass"],
)
def test_what_is_not_known_to_compute_on_the_cpu_is_left_alone(
    op: str, dims: list[int], inner: str
) -> None:
    assert on_cpu(op, dims, inner) == ()


def test_what_a_data_loader_does_on_the_cpu_is_left_to_its_own_rule() -> None:
    step = "[ProfilerStep#{0}".ljust(200) + "] "
    region = "[enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__".ljust(180)
    op = " [aten::index".ljust(175) + "]"
    findings = drawn_findings(
        f"""
        host   {step.format(1)}{step.format(2)}
        host    {region}] [cudaLaunchKernel>1] {region}] [cudaLaunchKernel>2]
        host    {op}                           {op}
        gpu 7   {" " * 195} [gemm<1]
        """,
        "HST005",
        args={"aten::index": inputs([[256, 3, 224, 224], []], ["float", ""])},
    )

    assert findings == ()


def decoded(searches: int, *, sizes: tuple[int, ...], tmp_path: Path) -> Trace:
    """Draw one step that calls a layer on these sizes; the first calls search long."""
    lanes: dict[str, str] = dict.fromkeys(("module", "mm", "launch", "kernel"), "")
    for number in range(1, len(sizes) + 1):
        width = 330 if number <= searches else 30
        lanes["module"] += "[nn.Module: Attention_0".ljust(width - 2) + "] "
        lanes["mm"] += " [aten::mm".ljust(width - 3) + "]  "
        lanes["launch"] += f"  [cuLaunchKernel>{number}]".ljust(width)
        lanes["kernel"] += f"                    [k<{number}]".ljust(width)
    step = "[ProfilerStep#1".ljust(len(lanes["mm"]) - 1) + "]"
    drawn_at = ("host  ", "host  ", "host  ", "gpu 7 ")
    lines = [at + lane for at, lane in zip(drawn_at, lanes.values(), strict=True)]
    lines.insert(0, f"host  {step}")
    drawn = draw("\n".join(lines))
    mm = [event for event in drawn["traceEvents"] if event["name"] == "aten::mm"]
    for event, size in zip(mm, sizes, strict=True):
        event["args"] = inputs([[size, 64], [64, 64]], ["float"] * 2)
    path = tmp_path / "drawn.json"
    path.write_text(json.dumps(drawn), encoding="utf-8")
    return load(path, cache=False)


def test_iterations_of_one_step_that_bring_new_shapes_count_as_steps(
    tmp_path: Path,
) -> None:
    trace = decoded(4, sizes=(101, 102, 103, 104), tmp_path=tmp_path)

    (finding,) = findings_of(Recording("drawn", trace), "HST001")

    assert "4 times a step: dimension 0 of input 0" in finding.message
    assert finding.data["sizes"] == [101, 102, 103, 104]
    (seen,) = (
        evidence.name for evidence in finding.evidence if evidence.label == "seen"
    )
    assert seen == "in 4 of 4 iterations; each size costs this once"


@pytest.mark.parametrize(
    ("searches", "sizes"), [(1, (101, 102, 103, 104)), (1, (101, 101, 101, 101))]
)
def test_iterations_that_search_once_are_warm_up(
    searches: int, sizes: tuple[int, ...], tmp_path: Path
) -> None:
    trace = decoded(searches, sizes=sizes, tmp_path=tmp_path)

    assert findings_of(Recording("drawn", trace), "HST001") == ()


def test_a_generation_with_new_lengths_saves_what_the_switch_was_measured_to() -> None:
    (finding,) = case_findings("pairs/gen_cudnn.trace.json.gz", "HST001")

    assert "enable_cudnn_sdp(False)" in finding.advice
    assert "dimension 2 of input 1" in finding.message
    # 589.5 ms a step, 113.2 ms with the switch, no profiler.
    assert finding.saves_ns == pytest.approx(589.5e6 - 113.2e6, rel=0.3)


def first_uses(loading: str, *, rows: tuple[int, ...], tmp_path: Path) -> Trace:
    """Draw steps with a slow matmul each, of other rows, which may load a kernel."""
    lanes: dict[str, str] = dict.fromkeys(("step", "mm", "load", "launch", "k"), "")
    for number in range(1, len(rows) + 1):
        lanes["step"] += f"[ProfilerStep#{number}".ljust(358) + "] "
        lanes["mm"] += " [aten::mm".ljust(356) + "]   "
        lanes["load"] += f"  {loading}".ljust(360)
        lanes["launch"] += (" " * 320 + f"[cuLaunchKernel>{number}]").ljust(360)
        lanes["k"] += (" " * 340 + f"[k{number}<{number}]").ljust(360)
    drawn_at = ("host  ", "host  ", "host  ", "host  ", "gpu 7 ")
    lines = [at + lane for at, lane in zip(drawn_at, lanes.values(), strict=True)]
    drawn = draw("\n".join(lines))
    mm = [event for event in drawn["traceEvents"] if event["name"] == "aten::mm"]
    for event, size in zip(mm, rows, strict=True):
        event["args"] = inputs([[size, 64], [64, 64]], ["float"] * 2)
    path = tmp_path / "drawn.json"
    path.write_text(json.dumps(drawn), encoding="utf-8")
    return load(path, cache=False)


@pytest.mark.parametrize(
    ("loading", "expected"), [("[cuLibraryLoadData" + " " * 280 + "]", 0), ("", 1)]
)
def test_shapes_that_only_load_kernels_have_no_finding(
    loading: str, expected: int, tmp_path: Path
) -> None:
    trace = first_uses(loading, rows=(101, 115, 127, 90), tmp_path=tmp_path)

    assert len(findings_of(Recording("drawn", trace), "HST001")) == expected


def test_sizes_that_padding_would_not_change_are_not_advised_to_be_padded_to(
    tmp_path: Path,
) -> None:
    trace = first_uses("", rows=(2048, 4096, 8192, 6144), tmp_path=tmp_path)

    (finding,) = findings_of(Recording("drawn", trace), "HST001")

    assert "are left" not in finding.advice
    assert "pad the inputs to fewer sizes" in finding.advice


def test_the_sizes_to_pad_are_those_of_the_images() -> None:
    # Later layers have sizes of their own, as 1, 6, 8 and 11, that nobody can pad.
    trace = load(ROOT / "benchmarks" / "models" / "mobilenet_sizes.trace.json.gz")
    (finding,) = findings_of(Recording("mobilenet_sizes", trace), "HST001")

    assert finding.data["sizes"] == [167, 237]
    assert "multiples of 16 (176, 240 are left)" in finding.advice


def test_the_example_of_a_hook_is_a_hook() -> None:
    (hook,) = found_in("forward_hooks", "HST003")

    assert "def watch(module, inputs, output):" in hook.example


def test_sizes_that_values_make_in_a_library_have_no_dimension_to_pad() -> None:
    trace = loaded(FIXTURE_TRACES["moe_dropless"])
    via = pl.lit("forward (library/experts.py:3)", trace.ops["via"].dtype)
    inside = replace(trace, ops=trace.ops.with_columns(via=via))

    (own,) = findings_of(Recording("own", trace), "HST001")
    (of_library,) = findings_of(Recording("library", inside), "HST001")

    assert "in forward: pad that dimension" in own.advice
    assert of_library.advice.startswith("values make these sizes in library: look for")
    assert "pad" not in of_library.advice


def sent(op: str, *, between: str = "") -> dict[str, Finding]:
    """Return findings where an operator makes a tensor that is sent, or another is."""
    width, call = 400, f"[{op}".ljust(170) + "]"
    call += f"[{between}       ]".ljust(30) if between else " "
    call = f"{call}[aten::to".ljust(220) + " " * 30 + "]"
    inner = " " * 221 + "[aten::copy_                ]"
    copies = " " * 222 + "[cudaMemcpyAsync>{0}     ]"
    sends = " " * 250 + "[Memcpy HtoD (Pageable -> Device)<{0}]" + " " * 60
    rows = ["[ProfilerStep#{0}".ljust(width - 2) + "]", call, inner, copies, sends]
    host, *inside, gpu = (
        "".join(row.format(number).ljust(width) for number in range(1, 4))
        for row in rows
    )
    drawing = "\n".join(
        [f"host   {host}", *(f"host   {row}" for row in inside), f"gpu 7  {gpu}"]
    )
    args = {
        op: inputs([[3, 600, 400], []], ["float", ""]),
        "aten::copy_": inputs([[3, 600, 400], [3, 600, 400]], ["float", "float"]),
        "Memcpy HtoD (Pageable -> Device)": {"bytes": 2_880_000},
    }
    trace = load_drawn(drawing, args)
    findings = outcome(Recording("drawn", trace), "HST005", "CPY003").findings
    return {finding.code: finding for finding in findings}


def test_a_tensor_made_on_the_host_leads_over_the_copy_that_sends_it() -> None:
    findings = sent("aten::normal_")

    assert not findings["HST005"].minor
    assert findings["CPY003"].minor == "saves next to nothing once HST005 is fixed"


def test_a_copy_of_another_tensor_is_not_led_by_one_made_on_the_host() -> None:
    findings = sent("aten::normal_", between="aten::cat")

    assert not findings["CPY003"].minor


def test_a_call_that_asks_the_driver_for_memory_is_not_slow_for_no_reason() -> None:
    drawing = bundled_rules()["HST002"].examples[0].drawing
    launch = "[cudaLaunchKernel]  "
    asking = drawing.replace(launch + " " * 127, launch + "[cudaMalloc]".ljust(127))

    assert asking != drawing
    assert [finding.code for finding in drawn_findings(drawing, "HST002")] == ["HST002"]
    assert not drawn_findings(asking, "HST002")
