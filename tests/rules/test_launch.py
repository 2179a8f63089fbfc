"""LCH: a host that cannot feed the GPU, on real traces and drawn ones."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import polars as pl
import pytest
from captures import read_captures
from estimates import FOLDER
from linting import (
    case_findings,
    drawn_findings,
    example_findings,
    findings_of,
    mentions,
    outcome,
    priced_findings,
    rule_module,
)
from msgspec import structs
from recordings import CAPTURES, GPU_BOUND, ROOT, loaded, saved_ns

from traceq.analysis.base.steady import steady_steps
from traceq.analysis.replay.bound import bound_of
from traceq.inputs.load_trace import load
from traceq.linter import View, inputs
from traceq.model.finding import Severity
from traceq.model.recording import Recording
from traceq.model.run import Rank
from traceq.testing import draw, load_drawn

if TYPE_CHECKING:
    from pathlib import Path

    from traceq.linter import Finding

drawn_steps = rule_module("launch._host_bound_examples").drawn
host_bound_advice = rule_module("launch._host_bound_advice")
graph_obstacles = rule_module("launch._graph_obstacles").graph_obstacles
Obstacle = rule_module("launch._obstacle").Obstacle
# Those of steps that wait for the host; LCH004 is of the GPU's time as well.
WAITING = ("LCH001", "LCH002", "LCH003")
OTHER_SIZES = """
    host  [ProfilerStep#1                    ][ProfilerStep#2                    ]
    host    [aten::mm                   ]       [aten::bmm                  ]
    host             [cudaLaunchKernel>1]                [cudaLaunchKernel>2]
    gpu 7                           [k<1]                               [k<2]
"""
SIZES = {
    "aten::mm": inputs([[64, 64], [64, 64]], ["float", "float"]),
    "aten::bmm": inputs([[1, 64, 65], [1, 65, 64]], ["float", "float"]),
}
ACCUMULATION = """
    host  [ProfilerStep#1                                                           ]
    host  [<built-in method run_backward    ] [<built-in method run_backward      ]
    host    [aten::mm                   ]       [aten::mm                   ]
    host             [cudaLaunchKernel>1]                [cudaLaunchKernel>2]
    gpu 7                           [k<1]                               [k<2]
"""


def loop(finding: Finding) -> tuple[str, int, int]:
    """Return what a loop is over, how many there are, and the launches in each."""
    (what,) = {"experts", "parameters", "iterations"} & set(finding.message.split())
    data: dict[str, Any] = dict(finding.data)
    return what, round(data["iterations"]), round(data["launches"])


def test_the_loop_over_experts_costs_what_the_batched_run_is_faster() -> None:
    (finding,) = case_findings("moe_loop.trace.json.gz", *WAITING, measured=True)

    assert loop(finding) == ("experts", 32, 10 + 17)
    assert finding.data["backward_launches"] == pytest.approx(17, abs=0.5)
    assert "syncs" in finding.message
    assert (finding.place.file, finding.place.line) == ("dev_cases.py", 87)
    saved = saved_ns("moe_loop", "moe_batched")
    assert 0.8 * saved < finding.saves_ns <= saved


def test_a_loop_is_rewritten_but_what_picks_an_experts_tokens_goes_with_it() -> None:
    (experts,) = case_findings("moe_loop.trace.json.gz", "LCH001")
    (other,) = example_findings("LCH001", 0)

    assert (experts.effort, other.effort) == ("", "rewrite")


def test_all_layers_of_experts_are_one_finding() -> None:
    (finding,) = case_findings("moe_loop.trace.json.gz", "LCH001")

    assert finding.data["modules"] == [f"Sequential_0/LoopMoE_{n}" for n in range(3)]


# Most of these look host-bound in their trace.
@pytest.mark.parametrize("case", GPU_BOUND)
def test_no_gpu_bound_step_is_called_launch_bound(case: str) -> None:
    assert not case_findings(f"{case}.trace.json.gz", *WAITING)
    assert not case_findings(f"{case}.trace.json.gz", *WAITING, measured=True)


@pytest.mark.parametrize("case", ["graph_rerecord", "graph_record", "recompile"])
def test_steps_that_compile_or_capture_are_not_called_launch_bound(
    case: str,
) -> None:
    assert not case_findings(f"{case}.trace.json.gz", *WAITING)


def test_replayed_graphs_have_no_finding() -> None:
    assert not case_findings("graph_replay.trace.json.gz", *WAITING, measured=True)


def test_the_loop_of_an_optimizer_costs_what_the_fused_one_is_faster() -> None:
    findings = case_findings(
        "optimizer_loop_sync.trace.json.gz", "LCH003", measured=True
    )

    (finding,) = findings
    assert mentions(finding, "AdamW", 52, 8)
    assert "fused=True" in finding.advice
    saved = saved_ns("optimizer_loop_sync", "optimizer_fused")
    assert 0.8 * saved < finding.saves_ns <= saved


def test_the_rest_of_the_step_is_counted_apart_from_the_optimizer() -> None:
    by_code = {
        finding.code: finding
        for finding in case_findings(
            "optimizer_loop_sync.trace.json.gz", "LCH", measured=True
        )
    }

    assert by_code["LCH002"].count == 153
    assert by_code["LCH003"].count == 416


STEP_OF_ADAMW = "\n".join(
    (
        f"host  [ProfilerStep#1{' ' * 340}]",
        f"host   [Optimizer.step#AdamW.step{' ' * 320}]",
        "host    " + "[aten::tanh         ]" * 8 + "[aten::mul_         ]" * 8,
        "host     " + "".join(f"[cuLaunchKernel>{n}]".ljust(21) for n in range(1, 17)),
        "gpu 7          " + "".join(f"[k<{n}]".ljust(21) for n in range(1, 17)),
    )
)


def test_a_closure_is_no_part_of_the_optimizers_loop() -> None:
    counted = {"aten::tanh": {"Sequence number": 1, "Fwd thread id": 0}}

    (whole,) = priced_findings(STEP_OF_ADAMW, "LCH003")
    (without,) = priced_findings(STEP_OF_ADAMW, "LCH003", args=counted)

    assert mentions(whole, 2)
    assert mentions(without, 1)
    assert without.host_ns < 0.6 * whole.host_ns


def test_an_optimizer_that_multiplies_matrices_is_told_to_stack_them() -> None:
    muon = STEP_OF_ADAMW.replace("AdamW", "Muon ").replace("aten::tanh", "aten::mm  ")

    (finding,) = drawn_findings(muon, "LCH003")

    assert "batched matmuls" in finding.advice


def test_lbfgs_has_no_loop_over_parameters() -> None:
    assert not drawn_findings(STEP_OF_ADAMW.replace("AdamW", "LBFGS"), "LCH003")


def test_a_fused_optimizer_has_no_finding_of_its_own_in_a_launch_bound_step() -> None:
    (finding,) = case_findings("optimizer_fused.trace.json.gz", "LCH", measured=True)

    assert finding.code == "LCH002"
    assert mentions(finding, 153)


def test_it_is_only_likely_where_the_bound_is() -> None:
    (finding,) = case_findings("optimizer_fused.trace.json.gz", "LCH002")
    # Alone: what LCH004 finds leaves too little to report.
    replayed = Recording("replayed", loaded(CAPTURES.trace("graph_replay")))
    (unsure,) = outcome(replayed, "LCH002").findings

    assert not mentions(finding, "likely")
    assert finding.severity is Severity.warning
    assert mentions(unsure, "likely")
    assert unsure.severity is Severity.info


def test_what_a_graph_leaves_is_little_more_than_the_kernels() -> None:
    (finding,) = case_findings("optimizer_fused.trace.json.gz", "LCH002", measured=True)

    kernels = int(loaded(CAPTURES.trace("optimizer_fused")).kernels["dur"].sum()) / 2
    step = CAPTURES.step_ns("optimizer_fused")
    assert kernels < step - finding.saves_ns < 2.2 * kernels


def test_a_step_as_a_graph_is_in_the_range_of_what_is_left() -> None:
    """As measured, eager and compiled: the one figure for it is that of all fixes."""
    measured = json.loads((FOLDER / "compiled.json").read_text("utf-8"))
    trace = loaded(FOLDER / "resnet_infer.bare.json.gz")
    for eager_ms, graph_ms in measured["resnet_infer"]:
        recording = Recording("eager", trace, step_ns=round(eager_ms * 1e6))
        (left,) = outcome(recording, "LCH002").together

        assert left.step_low_ns < graph_ms * 1e6 < left.step_high_ns


def test_it_lists_what_the_gpu_waits_for_the_longest_first() -> None:
    (finding,) = case_findings("optimizer_fused.trace.json.gz", "LCH002", measured=True)

    waits = [evidence for evidence in finding.evidence if evidence.label == "waits"]
    assert " operators (most in aten::" in waits[0].note
    assert waits[1].note.startswith("in the autograd engine")
    times = [wait.value or 0 for wait in waits]
    assert times == sorted(times, reverse=True)


def test_no_graph_is_promised_where_every_step_has_other_sizes() -> None:
    (finding,) = priced_findings(OTHER_SIZES, "LCH002", args=SIZES)

    assert finding.saves_ns == 0
    assert finding.severity is Severity.warning
    (forbids,) = (
        evidence for evidence in finding.evidence if evidence.label == "forbids"
    )
    assert forbids.name.startswith("sizes that are new in every step")
    assert "aten::bmm" in forbids.name
    assert forbids.name.endswith("once a step)")
    assert "pad or bucket" in finding.advice
    # The largest entries are in the advice itself.
    assert "mostly in" in finding.advice
    assert "--explain" not in finding.advice


READ_SIZES = """
    host  [ProfilerStep#1                    ][ProfilerStep#2                          ]
    host    [aten::mm                   ]      [aten::item            ] [aten::bmm     ]
    host             [cudaLaunchKernel>1]       [cudaStreamSynchronize]  [cudaLaunch>2]
    gpu 7                           [k<1]                                     [k<2]
"""


def test_sizes_that_are_made_by_values_are_not_advised_to_be_padded() -> None:
    (finding,) = priced_findings(READ_SIZES, "LCH002", args=SIZES)

    assert finding.saves_ns == 0
    assert finding.data["forbids"] == ["values", "syncs"]
    assert "avoid data-dependent sizes" in finding.advice
    assert "pad" not in finding.advice


def test_an_input_of_a_new_size_after_a_value_is_advised_to_be_padded() -> None:
    sent = """
    host  [ProfilerStep#1             ][ProfilerStep#2                                ]
    host   [aten::mm            ]        [aten::item           ] [aten::bmm           ]
    host                                                          [aten::to           ]
    host    [cudaLaunchKernel>1]          [cudaStreamSynchronize] [cudaMemcpyAsync>2]
    gpu 7                  [k<1]                                     [Memcpy HtoD<2]
    """

    (finding,) = priced_findings(
        sent, "LCH002", args={**SIZES, "aten::to": SIZES["aten::bmm"]}
    )

    assert finding.data["forbids"] == ["shapes", "syncs", "copies"]
    assert "pad or bucket" in finding.advice


def _first_launch(kernel: str) -> str:
    wide = " " * 1500
    return f"""
    host   [ProfilerStep#1 {wide}                                               ]
    host    [aten::mul            ] [aten::exp {wide}       ] [aten::mul           ]
    host     [cudaLaunchKernel>1]    [cudaLaunchKernel>2{wide}] [cudaLaunchKernel>3]
    gpu 7          [k<1]                              {wide}[{kernel}<2]       [k<3]
    """


def test_loading_of_kernels_is_not_what_bounds_every_step() -> None:
    assert not priced_findings(_first_launch("exp"), "LCH002")
    assert priced_findings(_first_launch("k"), "LCH002")


def test_loading_of_kernels_in_a_public_trace_is_said_to_pass() -> None:
    (finding,) = case_findings("public/mi250_minitoy.json.gz", "LCH002")

    (loading,) = (
        evidence for evidence in finding.evidence if "passes by itself" in evidence.note
    )
    assert "kernel loading" in loading.note
    assert finding.gpu_idle_ns < 2_000_000


def test_a_module_that_one_step_alone_runs_has_no_other_size() -> None:
    module = "host    [nn.Module: {}                 ]"
    first, second = module.format("Decoder_0"), module.format("Encoder_0")
    lines = OTHER_SIZES.splitlines()
    lines.insert(2, f"    {first}       {second.removeprefix('host    ')}")

    findings = drawn_findings("\n".join(lines), "LCH002", args=SIZES)

    forbids = [line.name for finding in findings for line in finding.evidence]
    assert not any("new in every step" in (name or "") for name in forbids)


def test_what_is_around_replayed_graphs_is_no_saving_of_another_graph() -> None:
    """Compiled with reduce-overhead: guards, wrappers, gradients and the optimizer."""
    trace = loaded(FOLDER / "mobilenet.compiled.json.gz")
    (finding,) = outcome(Recording("compiled", trace), "LCH002").findings

    assert mentions(finding, "CUDA graphs")
    assert finding.saves_ns < 0.1 * bound_of(trace, None).step_ns
    assert not finding.example


PICKED = """
host  [ProfilerStep#1                                                                ]
host   [aten::{op}                                    ] [aten::mm             ]
host    [cudaLaunchKernel>1][cudaStreamSynchronize    ]  [cudaLaunchKernel>2]
gpu 7                 [pick<1                        ]                   [gemm<2]
"""


@pytest.mark.parametrize("op", ["nonzero", "masked_select", "_unique2"])
def test_no_graph_is_promised_for_data_dependent_sizes(op: str) -> None:
    (finding,) = priced_findings(PICKED.format(op=op), "LCH002")

    assert finding.saves_ns == 0
    (forbids,) = (
        evidence for evidence in finding.evidence if evidence.label == "forbids"
    )
    assert forbids.name.startswith("data-dependent sizes")
    assert not finding.example
    assert "torch.where" in finding.advice


def test_a_value_that_is_only_read_does_not_forbid_a_graph() -> None:
    (finding,) = drawn_findings(PICKED.format(op="item"), "LCH002")

    assert "forbids" not in [evidence.label for evidence in finding.evidence]
    assert "take the syncs out of the model" in finding.advice


def _branching(times: int) -> str:
    asked = "[aten::is_nonzero                  ]" * times
    waits = " [cudaStreamSynchronize           ]".ljust(36) * times
    return f"""
host  [ProfilerStep#1{" " * (36 * times + 30)}]
host   [aten::mm            ]{asked}
host    [cudaLaunchKernel>1]  {waits}
gpu 7                 [gemm<1]
"""


def test_a_model_that_branches_on_values_is_no_graph() -> None:
    (checks,) = drawn_findings(_branching(2), "LCH002")
    (solver,) = drawn_findings(_branching(12), "LCH002")

    assert checks.data["forbids"] == ["syncs"]
    assert solver.data["forbids"] == ["branches"]
    assert "forbids" not in [evidence.label for evidence in checks.evidence]
    assert "forbids" in [evidence.label for evidence in solver.evidence]


@pytest.mark.parametrize(
    ("op", "reason", "advice"),
    [
        ("_has_compatible_shallow_copy_type", "replaced", "lerp_"),
        ("embedding_sparse_backward", "sparse", "sparse=False"),
    ],
)
def test_neither_weights_elsewhere_nor_sparse_gradients_are_a_graph(
    op: str, reason: str, advice: str
) -> None:
    drawing = f"""
    host  [ProfilerStep#1                                                           ]
    host   {f"[aten::{op}".ljust(41)}] [aten::mm             ]
    host                                               [cudaLaunchKernel>2]
    gpu 7                                                            [gemm<2]
    """

    (finding,) = priced_findings(drawing, "LCH002")

    assert finding.saves_ns == 0
    assert finding.data["forbids"] == [reason]
    assert advice in finding.advice


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("transformers/trainer.py(9): train", "in TrainingArguments replay"),
        ("lightning/pytorch/trainer/trainer.py(9): fit", "in the LightningModule"),
        ("train.py(9): main", "model.compile(mode="),
    ],
)
def test_a_trainer_is_told_to_compile_in_its_own_way(
    function: str, message: str
) -> None:
    launches = range(1, 25)
    drawing = (
        f"host  [ProfilerStep#1{' ' * 500}]",
        f"host   [{function:<505}]",
        "host    " + "[aten::add          ]" * 24,
        "host     " + "".join(f"[cuLaunchKernel>{n}]".ljust(21) for n in launches),
        "gpu 7          " + "".join(f"[k<{n}]".ljust(21) for n in launches),
    )

    (finding,) = drawn_findings("\n".join(drawing), "LCH002")

    assert message in finding.advice
    assert ("LightningModule" in message) == ("self.net" in finding.example)
    assert ("TrainingArguments" in message) == ("torch_compile=True" in finding.example)


def _saved_with_a_gap(gap: int, *, closure: bool) -> float:
    """Return what a graph saves of ops with nothing between twenty and twenty."""
    numbers, width = range(1, 41), 50
    space = " " * gap
    args = {"aten::add": {"Sequence number": 1, "Fwd thread id": 0}}
    region = "Optimizer.step#Adam.step" if closure else "@train"
    inside = len(numbers) * width + gap + 8

    def drawn(cell: str) -> str:
        cells = (cell.format(n).ljust(width) + space * (n == 20) for n in numbers)
        return "".join(cells).rstrip()

    rows = (
        f"host  [ProfilerStep#1{' ' * inside}]",
        f"host   [{region.ljust(inside)}]",
        "host    " + drawn(f"[{'aten::add'.ljust(width - 2)}]"),
        "host     " + drawn("[cuLaunchKernel>{}]"),
        "gpu 7          " + drawn("[k<{}]"),
    )
    (finding,) = priced_findings("\n".join(rows), "LCH002", args=args)
    return finding.saves_ns


@pytest.mark.parametrize(
    ("gap", "closure", "goes"),
    [(150, False, True), (300, False, False), (40, True, True), (150, True, False)],
)
def test_only_short_gaps_between_ops_go_with_a_graph(
    gap: int,
    closure: bool,  # noqa: FBT001 - a parameter of the test
    goes: bool,  # noqa: FBT001 - as above
) -> None:
    more = _saved_with_a_gap(gap, closure=closure) - _saved_with_a_gap(
        1, closure=closure
    )

    assert (more > 500 * gap) == goes


@pytest.mark.parametrize(
    ("case", "reasons"),
    [
        ("graph_rerecord", ["shapes"]),
        ("moe_loop", ["values"]),
        ("optimizer_fused", []),
        ("memory_leak", []),
    ],
)
def test_what_forbids_a_graph_is_named(case: str, reasons: list[str]) -> None:
    trace = loaded(CAPTURES.trace(case))

    result = graph_obstacles(trace, steady_steps(trace))

    assert [entry.reason for entry in result] == reasons


def test_two_backward_passes_in_a_step_are_named() -> None:
    trace = load_drawn(ACCUMULATION)

    (result,) = graph_obstacles(trace, steady_steps(trace))

    assert (result.reason, result.count) == ("backwards", 2)


def passes(*modules: str) -> str:
    """Draw a step of backward passes, each after these modules."""
    width = 30
    calls = " ".join([*modules]).split()
    drawn = [
        "<built-in method run_backward" if call == "|" else f"nn.Module: {call}"
        for call in calls
    ]
    frames = "".join(f"[{name}".ljust(width - 1) + "]" for name in drawn)
    numbers = range(1, len(calls) + 1)
    ops = "".join("  [aten::mm            ]".ljust(width) for _ in numbers)
    launches = "".join(f"    [cuLaunchKernel>{n}]".ljust(width) for n in numbers)
    kernels = "".join(f"[k<{n}]".ljust(width) for n in numbers)
    return f"""
        host  [ProfilerStep#1{" " * len(frames)}]
        host   {frames}
        host   {ops.rstrip()}
        host   {launches.rstrip()}
        gpu 7             {kernels.rstrip()}
        """


@pytest.mark.parametrize(
    ("modules", "reason"),
    [
        ("Net_0 Loss_0 | Net_0 Loss_0 |", "backwards"),
        # A GAN: the generator's pass is after one of the discriminator's.
        ("G_0 D_0 D_0 | D_0 |", "passes"),
        ("D_0 | G_0 |", "passes"),
    ],
)
def test_backward_passes_of_one_kind_are_told_from_others(
    modules: str, reason: str
) -> None:
    trace = load_drawn(passes(modules))

    result = graph_obstacles(trace, steady_steps(trace))

    assert [entry.reason for entry in result] == [reason]


def read(second: str) -> str:
    """Draw a pass in which a value is read on the host before the second module."""
    columns = (
        ("nn.Module: A_0", "aten::mm", "cudaLaunchKernel>1", "gemm<1"),
        ("", "aten::item", "cudaStreamSynchronize", ""),
        (second, "aten::mm", "cudaLaunchKernel>2", "gemm<2"),
        ("<built-in method run_backward", "aten::mm", "cudaLaunchKernel>3", "gemm<3"),
    )
    width = 36

    def drawn(row: int, indent: int) -> str:
        names = [
            f"[{column[row]}".ljust(width - 2 * indent) + "]" if column[row] else ""
            for column in columns
        ]
        return "".join((" " * indent + name).ljust(width + 2) for name in names)

    return f"""
        host   {"[ProfilerStep#1".ljust(len(drawn(0, 0)))}]
        host   {drawn(0, 1).rstrip()}
        host   {drawn(1, 2).rstrip()}
        host   {drawn(2, 3).rstrip()}
        gpu 7  {drawn(3, 13).rstrip()}
        """


def test_a_value_that_is_read_between_two_modules_of_a_pass_forbids_a_graph() -> None:
    trace = load_drawn(read(second="nn.Module: B_0"))

    (result,) = graph_obstacles(trace, steady_steps(trace))

    assert (result.reason, result.count) == ("between", 1)


def test_a_module_that_a_backward_runs_again_is_of_no_other_pass() -> None:
    # As checkpointing does; the value is read between that and the next pass.
    passes = "[nn.Module: A_0 ][<built-in method run_backward ]"
    again = " " * 25 + "[nn.Module: A_0]"
    width = 90
    trace = load_drawn(
        f"""
        host    [ProfilerStep#1{" " * 73}][ProfilerStep#2{" " * 73}]
        host    {passes.ljust(width)}{passes}
        host    {" " * 55}[aten::item              ]
        host    {" " * 56}[cudaStreamSynchronize  ]
        host 2  {again.ljust(width)}{again}
        host    [aten::mm          ]{" " * (width - 20)}[aten::mm          ]
        host     [cuLaunchKernel>1]{" " * (width - 18)}[cuLaunchKernel>2]
        gpu 7          [gemm<1{" " * 60}]{" " * 20}[gemm<2]
        """
    )

    result = graph_obstacles(trace, steady_steps(trace))

    assert "between" not in [entry.reason for entry in result]


def test_a_value_that_is_read_after_all_modules_of_a_pass_forbids_nothing() -> None:
    trace = load_drawn(read(second=""))

    assert not graph_obstacles(trace, steady_steps(trace))


def test_two_forward_passes_before_one_backward_forbid_nothing() -> None:
    trace = load_drawn(passes("Net_0 Net_0 |"))

    assert not graph_obstacles(trace, steady_steps(trace))


def test_a_backward_within_a_backward_is_no_other_pass() -> None:
    # Checkpointing runs one for what it has computed again.
    rows = ACCUMULATION.splitlines()
    rows.insert(2, "    host  [<built-in method run_backward".ljust(83) + "]")

    trace = load_drawn("\n".join(rows))

    assert not graph_obstacles(trace, steady_steps(trace))


@pytest.mark.parametrize("op", ["aten::lstm", "aten::gru"])
def test_a_recurrent_layer_is_graphed_without_compiling_it(op: str) -> None:
    drawn = passes("Net_0 |").replace("aten::mm   ", op.ljust(11))

    (finding,) = drawn_findings(drawn, "LCH002")

    assert finding.advice.startswith(
        "torch.cuda.make_graphed_callables(model, (batch,))"
    )
    assert "for each forward and backward pass" in finding.advice
    assert finding.fixes
    assert not finding.example


@pytest.mark.parametrize("op", ["aten::lstm", "aten::gru"])
def test_a_graph_of_a_program_without_backward_is_of_its_forward_alone(op: str) -> None:
    drawn = passes("Net_0 Net_0").replace("aten::mm   ", op.ljust(11))

    (finding,) = drawn_findings(drawn, "LCH002")

    assert "a CUDA graph for each forward pass, for batches" in finding.advice


def test_nothing_is_promised_for_the_passes_of_a_gan() -> None:
    (finding,) = drawn_findings(passes("G_0 D_0 D_0 | D_0 |"), "LCH002")

    assert not finding.fixes
    assert finding.advice.startswith("replay one CUDA graph of the whole step")
    assert "would overwrite what several backward passes" in finding.advice


def test_with_an_old_torch_the_fix_is_a_newer_one() -> None:
    (finding,) = case_findings("public/v100_resnet50_workers4.json.gz", "LCH003")

    assert mentions(finding, 161)
    assert "upgrade torch" in finding.advice
    assert not finding.example


def an_optimizer(name: str, *ops: str) -> str:
    """Draw a step of an optimizer that calls these ops, each of which launches."""
    width = 27
    numbers = range(1, len(ops) + 1)
    calls = "".join(f"[aten::{op}".ljust(width - 1) + "]" for op in ops)
    launches = "".join(f"[cuLaunchKernel>{n}]".ljust(width) for n in numbers)
    kernels = "".join(f"[k<{n}]".ljust(width) for n in numbers)
    return f"""
        host  [ProfilerStep#1{" " * (len(calls) + 30)}]
        host   [Optimizer.step#{name}.step{" " * len(calls)}]
        host    {calls}
        host     {launches.rstrip()}
        gpu 7          {kernels.rstrip()}
        """


@pytest.mark.parametrize(
    ("name", "fixed"),
    [("SGD", ", fused=True"), ("RMSprop", "")],
)
def test_the_example_is_of_the_optimizer_that_was_found(name: str, fixed: str) -> None:
    (finding,) = drawn_findings(an_optimizer(name, *["add_"] * 8), "LCH003")

    assert finding.example.splitlines() == [
        f"- optimizer = torch.optim.{name}(parameters, lr=3e-4, foreach=False)",
        f"+ optimizer = torch.optim.{name}(parameters, lr=3e-4{fixed})",
    ]


@pytest.mark.parametrize(
    ("name", "ops", "kernels", "host"),
    [
        ("AdamW", ["mul_", "lerp_", "addcmul_", "addcdiv_"], 0.64, 0.75),
        ("Adam", ["lerp_", "addcmul_", "addcdiv_"], 0.64, 0.75),
        # The weights are written once in any case.
        ("SGD", ["add_"], 0, 0.75),
        ("SGD", ["mul_", "add_", "add_"], 3 / 8, 0.75),
        ("SGD", ["add", "mul_", "add_", "add_"], 6 / 11, 0.75),
        ("RMSprop", ["mul_", "addcmul_", "sqrt", "addcdiv_"], 0.15, 0.75),
        ("Mine", ["mul_", "add_"], 0.5, 0.5),
    ],
)
def test_an_optimizer_saves_what_its_own_steps_show(
    name: str, ops: list[str], kernels: float, host: float
) -> None:
    (finding,) = priced_findings(an_optimizer(name, *ops * 8), "LCH003")

    (fix,) = finding.fixes
    assert (fix.kernel_share, fix.host_share) == pytest.approx((kernels, host))


def test_an_upgrade_of_torch_brings_foreach_and_not_fused() -> None:
    trace = load_drawn(an_optimizer("AdamW", *["mul_", "addcdiv_"] * 8))
    old = replace(trace, facts=replace(trace.facts, torch_from="", torch_to="1.13"))

    (finding,) = findings_of(Recording("old", old), "LCH003")

    assert finding.advice.startswith("upgrade torch")
    assert finding.fixes[0].kernel_share == 0.15


def test_an_optimizer_of_ones_own_has_no_example() -> None:
    (finding,) = drawn_findings(an_optimizer("Mine", *["add_"] * 8), "LCH003")

    assert "torch._foreach_*" in finding.advice
    assert not finding.example


FOREACH = ["_foreach_mul_", "_foreach_lerp_", "_foreach_addcmul_", "_foreach_addcdiv_"]


def test_a_fused_optimizer_is_foretold_to_save_what_was_measured() -> None:
    trace = loaded(ROOT / "fixtures" / "twins" / "adam_foreach" / "trace.json.gz")
    captures = read_captures(ROOT / "benchmarks" / "models")
    recording = Recording("adam", trace, step_ns=captures.step_ns("adam_foreach"))

    (finding,) = outcome(recording, "LCH004").findings

    saved = captures.step_ns("adam_foreach") - captures.step_ns("adam_fused")
    assert finding.saves_ns == pytest.approx(saved, rel=0.3)
    assert finding.advice.startswith("pass fused=True to torch.optim.Adam,")
    assert "torch.optim.Adam(parameters, lr=3e-4, fused=True)" in finding.example


@pytest.mark.parametrize("twin", ["adam_fused", "optimizer_fused"])
def test_nothing_is_said_of_an_optimizer_that_is_fused(twin: str) -> None:
    trace = loaded(ROOT / "fixtures" / "twins" / twin / "trace.json.gz")

    assert not findings_of(Recording(twin, trace), "LCH004")


@pytest.mark.parametrize("name", ["Adam", "AdamW"])
def test_foreach_operators_of_adam_are_reported(name: str) -> None:
    (finding,) = drawn_findings(an_optimizer(name, *FOREACH), "LCH003", "LCH004")

    assert mentions(finding, name, 4)
    assert f"torch.optim.{name}(" in finding.example


@pytest.mark.parametrize("name", ["SGD", "NAdam", "Adagrad", "AdamW8bit"])
def test_optimizers_that_were_not_measured_to_gain_are_not_reported(name: str) -> None:
    assert not drawn_findings(an_optimizer(name, *FOREACH), "LCH004")


@pytest.mark.parametrize("other", ["_foreach_pow", "_fused_adamw_", "mul_"])
def test_an_optimizer_that_does_something_else_as_well_is_left_alone(
    other: str,
) -> None:
    assert not drawn_findings(an_optimizer("AdamW", *FOREACH, other), "LCH004")


def test_no_fused_optimizer_is_advised_where_lightning_would_refuse_it() -> None:
    step = an_optimizer("AdamW", *FOREACH)
    folder = "lightning/pytorch/plugins/precision"
    clipping = "        host 2  [{}/{}(100): clip_gradients]"

    refused, clipped = (
        drawn_findings(f"{step}\n{clipping.format(folder, file)}", "LCH004")
        for file in ("amp.py", "precision.py")
    )

    assert not refused
    assert clipped


def test_an_old_torch_has_no_fused_adamw() -> None:
    trace = load_drawn(an_optimizer("AdamW", *FOREACH))
    old = replace(trace, facts=replace(trace.facts, torch_from="", torch_to="1.13"))

    assert findings_of(Recording("new", trace), "LCH004")
    assert not findings_of(Recording("old", old), "LCH004")


def test_a_stall_between_foreach_operators_is_no_saving() -> None:
    rows = an_optimizer("AdamW", *FOREACH * 8).splitlines()
    stall = " " * 2_100
    # After two of the operators, and so inside of what is around them.
    at = rows[3].index("[aten::_foreach_addcmul_")
    stalled = [row[:at] + stall + row[at:] for row in rows]

    (finding,) = priced_findings("\n".join(rows), "LCH004")
    (late,) = priced_findings("\n".join(stalled), "LCH004")

    assert late.host_ns == finding.host_ns


def test_an_optimizer_that_is_little_of_the_step_is_not_reported() -> None:
    rows = an_optimizer("AdamW", *FOREACH).splitlines()
    rows[1] = rows[1].replace("]", f"{' ' * 9_000}]")
    rows[3] += f"[aten::mm{' ' * 8_000}]"
    rows[4] += f"{' ' * (len(rows[3]) - 8_000 - len(rows[4]))}[cuLaunchKernel>9]"
    rows[5] += f"{' ' * (len(rows[4]) - len(rows[5]))}[gemm<9{' ' * 8_000}]"

    assert not drawn_findings("\n".join(rows), "LCH004")


def a_loop(*iterations: str, width: int = 20) -> str:
    """Draw a loop in one call of a function; an iteration is names of ops."""
    names = [name for iteration in iterations for name in iteration.split()]
    ops = "".join(f"[aten::{name}".ljust(width - 1) + "]" for name in names)
    numbers = range(1, len(names) + 1)
    launches = "".join(f"[cuLaunch>{n}]".ljust(width) for n in numbers)
    kernels = "".join(f"[k<{n}]".ljust(width) for n in numbers)
    return f"""
        host  [ProfilerStep#1{" " * len(ops)}]
        host   [moe.py(8): forward{" " * (len(ops) - 8)}]
        host    {ops}
        host     {launches.rstrip()}
        gpu 7         {kernels.rstrip()}
        """


@pytest.mark.parametrize("add", ["index_add", "index_add_"])
def test_experts_are_recognised_whether_results_are_added_in_place_or_not(
    add: str,
) -> None:
    (finding,) = drawn_findings(a_loop(*[f"where linear {add}"] * 8), "LCH001")

    assert loop(finding) == ("experts", 8, 3)


def test_most_ops_of_an_iteration_may_be_called_twice_in_it() -> None:
    expert = "where index linear mul linear mul index index_add_"

    (finding,) = drawn_findings(a_loop(*[expert] * 16), "LCH001")

    assert loop(finding) == ("experts", 16, 8)


def test_ops_around_a_loop_do_not_count_as_iterations_of_it() -> None:
    expert = "where index linear index mul to mul index_add_"

    (finding,) = drawn_findings(a_loop("index mul", *[expert] * 8, "mul to"), "LCH001")

    assert loop(finding) == ("experts", 8, 8)


@pytest.mark.parametrize(
    ("file", "acts"), [("gymnasium/core.py", True), ("./model.py", False)]
)
def test_a_loop_that_steps_an_environment_cannot_be_stacked(
    file: str, *, acts: bool
) -> None:
    between = f"[{file}(9): step]".ljust(30)
    ops = f"[aten::linear     ][aten::tanh       ]{between}" * 16
    launches, kernels = (
        "".join(
            f"[{name}{2 * n - 1}]".ljust(19) + f"[{name}{2 * n}]".ljust(49)
            for n in range(1, 17)
        )
        for name in ("cuLaunch>", "k<")
    )
    drawing = f"""
        host  [ProfilerStep#1{" " * len(ops)}]
        host   [train.py(8): rollout{" " * (len(ops) - 8)}]
        host    {ops}
        host     {launches.rstrip()}
        gpu 7         {kernels.rstrip()}
        """

    (finding,) = drawn_findings(drawing, "LCH001")

    assert ("step several environments at once" in finding.advice) == acts
    assert ("stack what the loop" in finding.advice) != acts
    assert finding.severity is (Severity.info if acts else Severity.warning)
    assert bool(finding.fixes) != acts


def test_what_is_picked_after_the_weights_ran_makes_no_experts() -> None:
    environment = "tanh cat add linear pow index index_put_"

    (finding,) = drawn_findings(a_loop(*[environment] * 16), "LCH001")

    assert loop(finding)[:2] == ("iterations", 16)


def test_an_expert_without_tokens_is_an_expert() -> None:
    used, skipped = "where index linear index mul index_add_", "where"
    experts = [used, used, skipped, used, used, used, used, used]

    (finding,) = drawn_findings(a_loop(*experts), "LCH001")

    assert loop(finding)[:2] == ("experts", 8)


def test_a_loop_in_a_loop_is_counted_by_the_outer_one() -> None:
    (finding,) = drawn_findings(a_loop(*["add relu mul mul mul"] * 8), "LCH001")

    assert loop(finding) == ("iterations", 8, 5)


def test_a_module_that_is_called_again_and_again_is_what_its_caller_loops_over() -> (
    None
):
    width = 20
    cells = "".join("[nn.Module: Cell_0".ljust(2 * width - 1) + "]" for _ in range(8))
    rows = a_loop(*["addmm tanh"] * 8).splitlines()
    rows.insert(3, f"        host    {cells}")

    (finding,) = drawn_findings("\n".join(rows), "LCH001")

    assert loop(finding) == ("iterations", 8, 2)
    assert finding.place.function == "forward"


def test_ops_that_come_again_and_again_in_no_order_are_no_loop() -> None:
    # As a forward does that reads values in one place, and makes masks in another.
    parts = (
        *("item lt nonzero eq", "item index copy_", "item", "item bmm"),
        *("item index_put_ copy_", "item bmm copy_ add", "item eq index"),
        *("item masked_fill", "item softmax bmm add", "item copy_ lt", "item add"),
    )

    assert not drawn_findings(a_loop(*parts), "LCH001")


@pytest.mark.parametrize(
    "parts",
    [
        # An attention that is written with einsum: heads, scores, bias, output.
        (
            *("einsum", "einsum", "einsum", "einsum add", "einsum add"),
            *("einsum index_select add softmax", "einsum", "einsum dropout"),
        ),
        # Boxes from centers to corners, those of the model and those of the targets.
        ("mul sub", "mul sub", "mul add", "mul add stack") * 2,
    ],
)
def test_an_op_that_is_called_often_with_others_between_is_no_loop(
    parts: tuple[str, ...],
) -> None:
    assert not drawn_findings(a_loop(*parts), "LCH001")


def test_the_same_op_before_and_after_a_loop_is_no_iteration_of_it() -> None:
    before, after = ("mul exp", "mul", "mul zeros"), ("stack", "mul add silu", "mul")

    (finding,) = drawn_findings(a_loop(*before, *["mul add mm"] * 64, *after), "LCH001")

    assert loop(finding) == ("iterations", 64, 3)
    assert finding.data["ops"] == ["aten::mul", "aten::add", "aten::mm"]


def test_what_the_sum_of_a_loop_is_divided_by_is_no_iteration_of_it() -> None:
    """As a loss over 21 classes: the last division is right after the loop."""
    class_of = "eq to sum eq is_nonzero add mul sum mul add sum sum add add div sub"

    drawing = a_loop(*[class_of] * 21, "div add", width=40)

    (finding,) = drawn_findings(drawing, "LCH001")

    assert finding.data["iterations"] == 21


def test_the_last_two_iterations_may_both_be_left_early() -> None:
    expert = "eq where index linear silu linear mul index_add_"
    experts = [*[expert] * 14, "eq where", "eq where"]

    (finding,) = drawn_findings(a_loop(*experts, "to add relu mm tanh"), "LCH001")

    assert loop(finding)[:2] == ("experts", 16)


def test_a_loop_that_begins_again_has_only_its_own_iterations() -> None:
    # For each task two updates of six parameters, with others of the same ops around.
    data, update = "rand mul sub add sin mul", ("mse_loss ones_like", *["mul sub"] * 6)
    task = (data, *update, *update, data, "mse_loss add")

    (finding,) = drawn_findings(a_loop(*task * 8, width=40), "LCH001")

    assert loop(finding) == ("iterations", 96, 2)
    assert finding.data["ops"] == ["aten::mul", "aten::sub"]


def test_iterations_that_take_another_branch_are_of_the_loop() -> None:
    usual = "item sub add lt gt linear relu mul"
    other, more = usual.replace("sub", "rsub"), usual.replace("relu", "gelu neg")
    taken = [usual, other, usual, usual, more, usual, usual, usual, more, other, usual]

    (finding,) = drawn_findings(a_loop(*taken), "LCH001")

    assert loop(finding) == ("iterations", 11, 8)


def test_modules_that_take_turns_are_one_iteration() -> None:
    # Two convolutions for each of five feature maps: five are not reported, ten are.
    width = 20
    turns = "".join(
        f"[nn.Module: Conv_{n % 2}".ljust(2 * width - 1) + "]" for n in range(10)
    )
    rows = a_loop(*["conv2d relu_"] * 10).splitlines()
    rows.insert(3, f"        host    {turns}")

    assert not drawn_findings("\n".join(rows), "LCH001")

    twice = "\n".join(rows).replace("Conv_1", "Conv_0")
    (finding,) = drawn_findings(twice, "LCH001")

    assert loop(finding) == ("iterations", 10, 2)


@pytest.mark.parametrize(("iterations", "unrolled"), [(8, False), (40, True)])
def test_compiling_a_long_loop_is_said_to_unroll_it(
    iterations: int,
    *,
    unrolled: bool,
) -> None:
    (finding,) = drawn_findings(a_loop(*["addmm tanh"] * iterations), "LCH001")

    assert ("unrolls all 40 iterations" in finding.advice) == unrolled


@pytest.mark.parametrize(("iterations", "reasons"), [(8, []), (40, ["loop"])])
def test_a_long_loop_of_a_model_is_graphed_without_compiling_it(
    iterations: int, reasons: list[str]
) -> None:
    rows = a_loop(*["addmm tanh"] * iterations).splitlines()
    rows.insert(
        3, "        host    " + "[nn.Module: Rnn_0".ljust(len(rows[2]) - 20) + "]"
    )
    trace = load_drawn("\n".join(rows))

    result = graph_obstacles(trace, steady_steps(trace))

    assert [entry.reason for entry in result] == reasons
    assert [entry.count for entry in result] == [40 for _ in reasons]


def test_a_loop_over_the_layers_of_a_model_is_not_reported() -> None:
    width = 20
    layers = "".join(
        f"[nn.Module: Conv_{n}".ljust(2 * width - 1) + "]" + " " * width
        for n in range(8)
    )
    rows = a_loop(*["addmm relu add"] * 8).splitlines()
    rows.insert(3, f"        host    {layers.rstrip()}")

    assert not drawn_findings("\n".join(rows), "LCH001")


def _trained(
    folder: Path,
    launches: tuple[int, int],
    *,
    at_once: bool = False,
    node: str = "",
    op: str = "aten::linear",
) -> tuple[Finding, ...]:
    """Return LCH001 of eight iterations with these launches in each pass.

    The backward of an iteration runs right after it, or after the loop; in a node of
    the engine, if there is one.
    """
    lanes = dict.fromkeys(
        ("host", "host ", "host 2  ", "host 2", "host 2 ", "gpu 7"), ""
    )
    numbers = count(1)

    def run(lane: str, name: str, launches: int) -> None:
        kernels = [next(numbers) for _ in range(launches)]
        width = 32 * launches + 2
        drawn = {
            f"{lane}  ": f"[{node}".ljust(width - 1) + "]" if node else "",
            lane: f"[{name}".ljust(width - 1) + "]",
            f"{lane} ": " " + "".join(f"[cuLaunch>{n}]".ljust(32) for n in kernels),
            "gpu 7": "  " + "".join(f"[k<{n}]".ljust(32) for n in kernels),
        }
        for item in lanes:
            lanes[item] += drawn.get(item, "").ljust(width)[:width]

    forward, backward = launches
    passes = ("host", op, forward), ("host 2", "LinearBackward0", backward)
    order = passes * 8 if at_once else (*passes[:1] * 8, *passes[1:] * 8)
    for row in order:
        run(*row)
    width = len(lanes["host"])
    rows = [
        f"host    [ProfilerStep#1{' ' * width}]",
        f"host    [train.py(3): train{' ' * (width - 8)}]",
        *(f"{lane.strip():<8} {drawn}" for lane, drawn in lanes.items()),
    ]
    events = draw("\n".join(rows))
    for thread, name in ((0, op), (1, "LinearBackward0")):
        called = (event for event in events["traceEvents"] if event["name"] == name)
        for number, row in enumerate(called, 1):
            row["args"] |= {"Sequence number": number, "Fwd thread id": thread}
    path = folder / "drawn.json"
    path.write_text(json.dumps(events))
    return findings_of(Recording("drawn", load(path, cache=False)), "LCH001")


def test_the_backward_after_a_loop_does_not_make_its_iterations_large(
    tmp_path: Path,
) -> None:
    (finding,) = _trained(tmp_path, (40, 70))

    assert loop(finding) == ("iterations", 8, 40 + 70)


def test_a_loop_that_trains_in_each_iteration_is_one_over_batches(
    tmp_path: Path,
) -> None:
    assert not _trained(tmp_path, (40, 70), at_once=True)


def test_a_large_loop_that_is_most_of_a_host_bound_step_is_reported(
    tmp_path: Path,
) -> None:
    (finding,) = _trained(tmp_path, (110, 120))

    assert loop(finding) == ("iterations", 8, 110 + 120)


def test_the_backward_of_a_write_into_a_slice_is_of_the_loop(tmp_path: Path) -> None:
    node = "autograd::engine::evaluate_function: torch::autograd::CopySlices"

    (finding,) = _trained(tmp_path, (10, 12), node=node)

    assert finding.data["backward_launches"] == 12


@pytest.mark.parametrize(("op", "expected"), [("aten::copy_", 0), ("aten::mm", 1)])
def test_a_loop_of_one_copy_each_is_one_over_slices_whatever_its_backward(
    tmp_path: Path, op: str, expected: int
) -> None:
    assert len(_trained(tmp_path, (1, 12), op=op)) == expected


def test_a_large_loop_without_a_backward_goes_over_batches() -> None:
    assert not drawn_findings(a_loop(*["addmm relu " * 60] * 8), "LCH001")


@pytest.mark.parametrize(("length", "is_called"), [(1, True), (30, False)])
def test_a_recurrent_layer_that_a_loop_calls_for_one_moment_takes_all_of_them(
    length: int, *, is_called: bool
) -> None:
    rows = a_loop(*["lstm linear mul"] * 8)
    sizes = inputs([[length, 64, 8]], ["float"])

    (finding,) = drawn_findings(rows, "LCH001", args={"aten::lstm": sizes})

    called = "call nn.LSTM once on the whole sequence where its inputs are known"
    assert finding.advice.startswith(called) == is_called
    assert ("nn.LSTMCell" in finding.advice) == is_called


def test_a_cell_in_a_loop_has_a_layer_for_the_whole_sequence() -> None:
    (finding,) = drawn_findings(a_loop(*["lstm_cell mul"] * 8), "LCH001")

    assert finding.advice.startswith("call nn.LSTM on the whole sequence")


def test_without_stacks_experts_are_counted_in_each_layer() -> None:
    expert, router = ("where", "linear", "index_add_"), ("softmax", "topk")
    names = [*expert * 8, *router, *expert * 8, *router]
    lines = {"op": "", "call": "", "gpu": " "}
    for number, name in enumerate(names, 1):
        launch = f"[cuLaunch>{number}]"
        if name == "where":
            launch += "[cudaStreamSynchronize]"
        width = len(launch) + 12
        lines["op"] += f"[aten::{name}".ljust(width - 1) + "]"
        lines["call"] += f" {launch}".ljust(width)
        lines["gpu"] += f"[k<{number}]".ljust(width)
    (finding,) = drawn_findings(
        f"""
        host  [ProfilerStep#1{" " * len(lines["op"])}]
        host    {lines["op"]}
        host    {lines["call"].rstrip()}
        gpu 7         {lines["gpu"].rstrip()}
        """,
        "LCH001",
    )

    assert loop(finding) == ("experts", 8, 3)
    assert "syncs" in finding.message
    assert finding.count == 2 * 8 * len(expert)


def over_parameters(*iterations: str) -> str:
    """Draw a loop with an iteration for each weight that gets a gradient."""
    node = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"
    rows = a_loop(*iterations).splitlines()
    nodes = f"[{node}]" * len(iterations)
    rows[1] = rows[1].replace("]", f"{' ' * len(nodes)}]")
    rows[3] += " " * 8 + nodes
    return "\n".join(rows)


def test_a_loop_over_parameters_has_ops_that_take_all_of_them() -> None:
    (finding,) = drawn_findings(over_parameters(*["mul_ add_"] * 8), "LCH001")

    assert loop(finding) == ("parameters", 8, 2)
    assert finding.advice.endswith("lists to torch._foreach_mul_, torch._foreach_add_")


ONE_ITERATION = (
    "[aten::mul           ] [aten::add           ] [aten::LAST               ] ",
    " [cuLaunchKernel>_1  ]  [cuLaunchKernel>_2  ]  [cudaStreamSynchronize  ]  ",
    "                  [a<_1]                    [b<_2     ]                    ",
)


def _iterations(last: str, first: str = "mul", second: str = "add") -> str:
    """Draw a loop whose iterations launch two kernels and sync in an op."""
    ops, calls, gpu = (
        " ".join(
            line.replace("LAST", last)
            .replace("_", str(number))
            .replace("mul", first)
            .replace("add", second)
            for number in range(1, 10)
        )
        for line in ONE_ITERATION
    )
    rest = " " * len(ops)
    return f"""
    host  [ProfilerStep#1{rest}]
    host   [train.py(3): rollout{rest}]
    host    {ops}
    host    {calls}
    gpu 7   {gpu}
    """


@pytest.mark.parametrize(("last", "requested"), [("item", True), ("mean", False)])
def test_a_loop_that_reads_values_may_need_them(last: str, *, requested: bool) -> None:
    (finding,) = drawn_findings(_iterations(last), "LCH001")

    assert "syncs" in finding.message
    assert ("read on the host" in finding.advice) is requested


def test_a_loop_that_averages_weights_is_told_of_foreach() -> None:
    (averages,) = drawn_findings(a_loop(*["mul mul add copy_"] * 12), "LCH001")
    (recurrence,) = drawn_findings(a_loop(*["mul mul add"] * 12), "LCH001")

    assert "torch._foreach_lerp_" in averages.advice
    assert "needs the one before" in recurrence.advice


@pytest.mark.parametrize(
    ("ops", "averages"),
    [
        ("mul mul add copy_", True),
        ("mul rsub mul add copy_", True),
        ("lerp copy_", True),
        ("mul sub copy_", False),
        ("mul add copy_", False),
    ],
)
def test_weights_that_are_averaged_take_one_lerp(ops: str, *, averages: bool) -> None:
    for drawing in (a_loop(*[ops] * 12), over_parameters(*[ops] * 12)):
        (finding,) = drawn_findings(drawing, "LCH001")

        one_call = "torch._foreach_lerp_(targets, parameters, tau)"
        assert (one_call in finding.advice) == averages


def test_what_a_loop_over_parameters_copies_is_computed_for_all_as_well() -> None:
    (finding,) = drawn_findings(over_parameters(*["mul sub copy_"] * 12), "LCH001")

    assert finding.advice.endswith(
        "lists to torch._foreach_mul, torch._foreach_sub, torch._foreach_copy_"
    )


MANY = drawn_steps(200, "[k<{n}]")


def _with_obstacles(drawing: str, *obstacles: object) -> tuple[Finding, ...]:
    """Return LCH002 of a step with these obstacles to a CUDA graph."""
    rule = rule_module("launch.host_bound_step")
    with patch.object(rule, "graph_obstacles", lambda *_: [*obstacles]):
        return priced_findings(drawing, "LCH002")


def test_a_step_with_collectives_is_promised_no_graph_that_nobody_tried() -> None:
    (alone,) = priced_findings(MANY, "LCH002")
    (several,) = priced_findings(MANY.replace("[k<200]", "[nccl_reduce<200]"), "LCH002")

    assert "replays a CUDA graph" in alone.advice
    assert alone.saves_ns
    assert "were not tried" in several.advice
    assert not several.saves_ns
    assert not several.example


@pytest.mark.parametrize(("last", "is_of_model"), [("k", True), ("nccl_reduce", False)])
def test_a_sync_outside_of_ops_is_of_ddp_where_there_are_collectives(
    last: str, *, is_of_model: bool
) -> None:
    step, ops, launches, kernels = MANY.replace("[k<200]", f"[{last}<200]").splitlines()
    # In place of two ops in the middle of the step.
    at, width = 7 + 21 * 100, 2 * 21
    ops = ops[:at] + " " * width + ops[at + width :]
    sync = "[cudaEventSynchronize]".ljust(width)
    launches = launches[: at + 1] + sync + launches[at + 1 + width :]
    kernels = kernels.replace("[k<101]", " " * 7).replace("[k<102]", " " * 7)
    drawing = f"{step}\n{ops}\n{launches}\n{kernels}"

    (finding,) = drawn_findings(drawing, "LCH002")

    assert ("take the syncs out of the model" in finding.advice) is is_of_model


def test_a_step_that_no_graph_runs_names_the_functions_that_take_longest() -> None:
    frames = ("[net.py(8): forward", "[loss.py(3): loss"), (100, 40)
    around = "".join(
        name.ljust(21 * calls - 1) + "]" for name, calls in zip(*frames, strict=True)
    )
    step, *rest = drawn_steps(200, "[k<{n}]").splitlines()
    drawing = "\n".join([step, f"host    {around}", *rest])
    (finding,) = _with_obstacles(drawing, Obstacle("replaced", 2))

    assert finding.advice.startswith(
        "do less on the host while the GPU waits, which is mostly in forward (net.py:8)"
    )
    assert "a step) and in loss (loss.py:3)" in finding.advice


def test_passes_that_are_not_alike_are_one_graph_of_the_whole_step() -> None:
    step, *rest = drawn_steps(200, "[k<{n}]").splitlines()
    frame = f"host    {'[net.py(8): forward'.ljust(21 * 100 - 1)}]"
    drawing = "\n".join([step, frame, *rest])

    (finding,) = _with_obstacles(drawing, Obstacle("passes", 2))
    (sized,) = _with_obstacles(drawing, Obstacle("passes", 2), Obstacle("shapes", 1))

    assert finding.advice.startswith("replay one CUDA graph of the whole step")
    assert "torch.cuda.graph" in finding.advice
    assert "mostly in forward (net.py:8)" in finding.advice
    assert "torch.cuda.graph" not in sized.advice


@pytest.mark.parametrize(
    ("second", "is_update"), [("Critic_0", True), ("Actor_0", False)]
)
def test_a_function_that_calls_several_models_is_one_graph(
    second: str, *, is_update: bool
) -> None:
    models = "".join(
        f"[nn.Module: {name}".ljust(21 * 100 - 1) + "]" for name in ("Actor_0", second)
    )
    backward = "[<built-in method run_backward   ]"
    step, ops, *rest = drawn_steps(200, "[k<{n}]").splitlines()
    wide = step.replace("]", " " * (len(backward) + 8) + "]")
    around = f"host   [td3.py(8): train{' ' * (len(models) + len(backward) - 10)}]"
    frames = f"host    {models}{backward}"
    drawing = "\n".join([wide, around, frames, ops, *rest])
    (finding,) = _with_obstacles(drawing)
    (passes,) = _with_obstacles(drawing, Obstacle("passes", 2))

    graph = "one CUDA graph of all that train (td3.py:8) runs"
    assert (graph in finding.advice) == is_update
    assert any(line.label == "update" for line in finding.evidence) == is_update
    # Passes that overwrite each other do not in one graph, and have its price.
    assert passes.advice.startswith(f"replay {graph}") == is_update
    assert bool(passes.fixes) == is_update


def test_two_functions_that_call_models_are_a_graph_each() -> None:
    width, models = 21 * 50, ("Actor_0", "Critic_0")
    step, ops, *rest = drawn_steps(200, "[k<{n}]").splitlines()
    wide = step.replace("]", " " * 80 + "]")
    backward = "[<built-in method run_backward   ]"
    calls = [(0, "train"), (2, "act")]
    frames = [
        f"[td3.py({9 * at + 8}): {name}".ljust(2 * width - 2) + "]"
        for at, name in calls
    ]
    modules = "".join(
        f"[nn.Module: {models[at % 2]}".ljust(width - 1) + "]" for at in range(4)
    )
    drawing = "\n".join(
        [
            wide,
            f"host   {frames[0]} {frames[1]}",
            f"host    {modules}{backward}",
            ops,
            *rest,
        ]
    )

    (finding,) = _with_obstacles(
        drawing, Obstacle("passes", 2), Obstacle("between", 1, "cudaStreamSynchronize")
    )

    assert "one of all that" in finding.advice
    assert "train (td3.py:8)" in finding.advice
    assert "act (td3.py:26)" in finding.advice
    assert finding.fixes


@pytest.mark.parametrize(
    ("torch", "example"),
    [
        ("2.6", '+ model.compile(mode="reduce-overhead")  # once, before the loop'),
        (
            "2.1",
            '+ model = torch.compile(model, mode="reduce-overhead")  # once, before the'
            " loop",
        ),
    ],
)
def test_an_old_torch_compiles_no_module_in_place(torch: str, example: str) -> None:
    trace = load_drawn(drawn_steps(24, "[k<{n}]"))
    facts = replace(trace.facts, torch_from="", torch_to=torch)

    (finding,) = outcome(
        Recording("old", replace(trace, facts=facts)), "LCH002", brief=True
    ).findings

    assert finding.example.splitlines()[0] == example
    in_place = 'model.compile(mode="reduce-overhead")' in finding.advice
    assert in_place == (torch == "2.6")
    assert "compile(model, )" not in finding.advice + finding.example


def test_what_a_size_depends_on_is_computed_once_where_it_does_not_change() -> None:
    nonzero = Obstacle("values", 18, "aten::nonzero", "net.py", 8, "forward")

    (finding,) = _with_obstacles(drawn_steps(200, "[k<{n}]"), nonzero)

    assert "compute nonzero once before the loop" in finding.advice


def test_the_function_that_the_gpu_waits_for_is_named_by_its_hottest_line() -> None:
    step, *rest = drawn_steps(200, "[k<{n}]").splitlines()
    frame = f"host    {'[net.py(8): forward'.ljust(21 * 150 - 1)}]"
    rows = "\n".join([step, frame, *rest])
    trace = load_drawn(rows)
    ops = trace.ops.with_columns(
        call_line=pl.when(pl.col("id") % 3 > 0).then(12).otherwise(11).cast(pl.UInt32)
    )

    (finding,) = outcome(
        Recording("drawn", replace(trace, ops=ops)), "LCH002", brief=True
    ).findings

    shown = [line.note for line in finding.evidence if line.label == "waits"]
    assert "in forward (net.py:12)" in shown[0]


def test_a_program_that_is_compiled_is_not_told_to_compile() -> None:
    region = "Torch-Compiled Region: 0/0"
    first, *rest = MANY.splitlines()
    width = first.rindex("]") - 9
    around = f"host   [{region:<{width}}]"
    (finding,) = drawn_findings("\n".join([first, around, *rest]), "LCH002")

    assert finding.advice.startswith("the model is compiled already")
    assert not finding.example


SOURCE = """def forward(self):
    for p, t in zip(self.actor, self.targets):
        t.copy_(0.1 * p + 0.9 * t)
    for p, t in zip(self.critic, self.others):
        t.copy_(0.1 * p + 0.9 * t)
"""


def test_a_loop_is_at_the_lines_of_the_source_that_call_its_ops() -> None:
    trace = load_drawn(a_loop(*["mul mul add copy_"] * 12))
    (without,) = findings_of(Recording("drawn", trace), "LCH001")
    rank = Rank(
        *("rank-0", 0, "done", None, None, None, ()),
        sources={"moe.py": "\n" * 7 + SOURCE},
    )
    (finding,) = findings_of(Recording("drawn", replace(trace, rank=rank)), "LCH001")

    assert (without.place.line, without.place.exact) == (8, False)
    assert (finding.place.line, finding.place.exact, finding.place.begins) == (
        9,
        True,
        8,
    )
    (loops,) = (evidence for evidence in finding.evidence if evidence.label == "loops")
    assert loops.name == "lines 9 and 11"
    assert finding.fingerprint == without.fingerprint


@pytest.mark.parametrize("stacks", [True, False])
def test_stacks_that_were_not_recorded_are_no_caveat(*, stacks: bool) -> None:
    lines = MANY.splitlines()
    around = f"host   [train.py(3): main{' ' * 4000}]"
    drawing = "\n".join([lines[0], *([around] if stacks else []), *lines[1:]])
    view = View(load_drawn(drawing))
    unsure = structs.replace(view.bound, sure=False)
    with patch.object(View, "bound", unsure):
        evidence = [*host_bound_advice.evidence(view, [], [])]

    (caveat,) = (entry.name for entry in evidence if entry.label == "caveat")
    assert ("stacks" in caveat) == stacks


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py", 0),
        ("net.py", 1),
    ],
)
def test_copies_of_sharding_are_no_loop_of_the_program(
    file: str, expected: int
) -> None:
    mark = f"[aten::mul{' ' * 26}]"
    width = len(mark) * 8
    work = "".join(f"[a<{n}][b<{n}]".ljust(len(mark)) for n in range(1, 9))
    calls = "".join(f"[cuLaunchKernel>{n}]".ljust(len(mark)) for n in range(1, 9))
    copies = f"{file}(3): copy_out".ljust(width)
    drawing = f"""
        host   [ProfilerStep#1{" " * width}]
        host    [net.py(8): forward{" " * (width - 8)}]
        host     [{copies}]
        host      {mark * 8}
        host      {calls}
        gpu 7                    {work}
    """

    assert len(drawn_findings(drawing, "LCH001")) == expected


@pytest.mark.parametrize("alike", [True, False])
def test_a_loop_over_tensors_of_several_shapes_cannot_be_stacked(
    *, alike: bool
) -> None:
    given = {f"aten::{name}": inputs([[8, 64]], ["float"]) for name in ("sub", "abs")}
    trace = load_drawn(a_loop(*["sub abs"] * 16), given)
    shapes = [f"[[8,{64 if alike else 64 + at}]]" for at in range(trace.ops.height)]
    rows = pl.concat([trace.inputs[:1]] * len(shapes))
    rows = rows.with_columns(dims_text=pl.Series(shapes))
    ops = trace.ops.with_columns(inputs=pl.int_range(pl.len(), dtype=pl.UInt32))
    varied = replace(trace, ops=ops, inputs=rows)

    (finding,) = findings_of(Recording("drawn", varied), "LCH001")

    assert finding.advice.startswith("stack what the loop goes over") is alike


def test_a_loop_that_reads_a_value_of_each_parameter_reads_them_after_it() -> None:
    name = "gradient_norms_logged"
    trace = loaded(ROOT / "benchmarks" / "models" / f"{name}.trace.json.gz")
    (finding,) = findings_of(Recording(name, trace), "LCH001")

    assert loop(finding) == ("parameters", 76, 2)
    assert finding.message.endswith("syncs with the GPU")
    assert finding.advice.endswith("as with torch.stack(results).tolist()")
    assert "call torch.nn.utils.get_total_norm" in finding.advice


@pytest.mark.parametrize(
    ("ops", "norm"),
    [("pow sum", True), ("pow sum sqrt add", True), ("pow mul sum", False)],
)
def test_a_loop_that_reads_the_norm_of_each_tensor_computes_all_at_once(
    ops: str, *, norm: bool
) -> None:
    (finding,) = drawn_findings(a_loop(*[f"{ops} item"] * 9), "LCH001")

    assert ("torch.nn.utils.get_total_norm" in finding.advice) is norm
    assert ("stack what" in finding.advice) is not norm


@pytest.mark.parametrize(("power", "norm"), [("2", True), ("4", False)])
def test_only_squares_are_a_norm(power: str, *, norm: bool) -> None:
    args = {"aten::pow": {**inputs([[4], []], ["float", "Scalar"])}}
    args["aten::pow"]["Concrete Inputs"] = ["", power]

    (finding,) = drawn_findings(a_loop(*["pow sum item"] * 9), "LCH001", args=args)

    assert ("get_total_norm" in finding.advice) is norm


def test_a_wait_in_a_loop_that_reads_norms_is_of_its_finding() -> None:
    trace = load_drawn(_iterations("item", "pow", "sum"))
    findings = outcome(Recording("norms", trace), "LCH001", "SYN001").findings

    assert [finding.code for finding in findings if not finding.minor] == ["LCH001"]
    loop, *waits = findings
    assert len(loop.fixes[-1].syncs) == len(waits[0].fixes[0].syncs) == 9


@pytest.mark.parametrize(
    ("ops", "function", "count"),
    [
        ("detach_ zero_", "clear", 1),
        ("zero_", "zero_grad", 1),
        ("zero_", "clear", 0),
    ],
)
def test_a_loop_that_fills_gradients_with_zeros_sets_them_to_none(
    ops: str, function: str, count: int
) -> None:
    drawing = a_loop(*[ops] * 8).replace("moe.py(8): forward", f"t.py(8): {function}")
    # Nothing is launched to detach a gradient.
    for number in range(1, 17, 2) if " " in ops else ():
        for part in (f"[cuLaunch>{number}]", f"[k<{number}]"):
            drawing = drawing.replace(part, " " * len(part))

    findings = drawn_findings(drawing, "LCH001")

    assert len(findings) == count
    assert all("zero_grad(set_to_none=True)" in finding.advice for finding in findings)
    assert all(len(finding.fixes[-1].kernels) == 8 for finding in findings)


def _evaluating(*functions: str) -> str:
    """Draw steps of 24 launches in each function: one in the first, others later."""
    calls, width = 24, 20
    passes = [functions[:1], functions[1:]]
    lines: list[str] = []
    lanes = {"step": "", "function": "", "op": "", "call": "", "gpu": "    "}
    number = 0
    for step, names in enumerate(passes):
        long = len(names) * (calls * width + 20)
        lanes["step"] += f"[ProfilerStep#{step + 1}".ljust(long - 1) + "]"
        for name in names:
            inside = calls * width
            lanes["function"] += (f"[{name}".ljust(inside - 1) + "]").ljust(inside + 20)
            for _ in range(calls):
                number += 1
                lanes["op"] += "[aten::add".ljust(width - 1) + "]"
                lanes["call"] += f" [cuLaunch>{number}]".ljust(width)
                lanes["gpu"] += f"    [k<{number}]".ljust(width)
            for lane in ("op", "call", "gpu"):
                lanes[lane] += " " * 20
    for lane, drawn in lanes.items():
        lines.append(f"{'gpu 7' if lane == 'gpu' else 'host '} {drawn.rstrip()}")
    return "\n".join(lines)


def test_steps_with_more_passes_of_the_same_launches_forbid_no_graph() -> None:
    trace = load_drawn(_evaluating(*["nn.Module: Net_0"] * 3))

    assert [
        graph_obstacle.reason
        for graph_obstacle in graph_obstacles(trace, steady_steps(trace))
    ] == []


@pytest.mark.parametrize(
    ("others", "named"), [("graph.py(3): get_edges", True), ("nn.Module: Net_0", False)]
)
def test_what_compiling_the_model_leaves_is_named(others: str, *, named: bool) -> None:
    drawing = _evaluating("nn.Module: Net_0", others, others)

    (finding,) = priced_findings(drawing, "LCH002")

    assert ("outside of the model" in finding.advice) is named
    assert ("get_edges (graph.py:3)" in finding.advice) is named
