"""JIT: what torch.compile does in the steps, on real traces and drawn ones."""

from __future__ import annotations

from dataclasses import replace

import pytest
from linting import (
    case_findings,
    drawn_findings,
    findings_of,
    mentions,
    priced_findings,
)
from recordings import CAPTURES, saved_ns

from traceq.linter.rule import inputs
from traceq.model.finding import Severity
from traceq.model.recording import Recording
from traceq.model.run import Rank
from traceq.testing import load_drawn


@pytest.mark.parametrize("case", ["graph_rerecord", "graph_record"])
def test_capturing_graphs_costs_as_much_as_the_run_that_replays_is_faster(
    case: str,
) -> None:
    (finding,) = case_findings(f"{case}.trace.json.gz", "JIT", measured=True)

    assert finding.code == "JIT001"
    assert (finding.place.file, finding.place.function) == ("dev_cases.py", "step")
    difference = saved_ns(case, "graph_replay")
    assert 0.85 * difference < finding.saves_ns <= difference


def test_the_shapes_that_graphs_are_set_up_for_are_named() -> None:
    (finding,) = case_findings("graph_rerecord.trace.json.gz", "JIT001")

    assert finding.data["shapes"] == [[2, 520], [2, 576]]
    assert "[2,520], [2,576]" in finding.advice


def test_a_shape_that_stays_is_found_by_its_sizes_given_as_numbers() -> None:
    (finding,) = case_findings("graph_record.trace.json.gz", "JIT001")

    assert finding.data["shapes"] == [[2, 352]]
    assert (finding.data["set_up"], finding.data["captured"]) == (2, 2)


def test_replayed_graphs_have_no_finding() -> None:
    assert not case_findings("graph_replay.trace.json.gz", "JIT")


def test_recompilation_names_versions_and_the_dimension_that_changes() -> None:
    (finding,) = case_findings("recompile.trace.json.gz", "JIT", measured=True)

    assert finding.code == "JIT002"
    assert finding.data["ids"] == ["0/3", "0/4"]
    assert finding.data["shapes"] == [[[1, 320], [1, 384]]]
    assert "mark_dynamic(x, 1)" in finding.advice
    # Without a twin: less than the step, and most of it.
    step_ns = CAPTURES.step_ns("recompile")
    assert 0.75 * step_ns < finding.saves_ns < step_ns


def test_code_compiled_again_in_the_first_step_only_is_warm_up() -> None:
    assert not drawn_findings(
        """
        host   [ProfilerStep#1                ][ProfilerStep#2                ]
        host    [entire_frame_compile     ]     [Torch-Compiled Region: 0/1]
        host      [@x_data: compile_id=0/1]
        """,
        "JIT002",
    )


def test_the_region_that_runs_next_has_the_id_of_what_was_compiled() -> None:
    (finding,) = drawn_findings(
        """
        host  [ProfilerStep#1][ProfilerStep#2                                  ]
        host   [aten::mm]      [entire_frame_compile][Torch-Compiled Region: 7/2]
        """,
        "JIT002",
    )

    assert finding.data["ids"] == ["7/2"]


def test_a_capture_in_the_only_step_is_only_info() -> None:
    (finding,) = priced_findings(
        """
        host   [ProfilerStep#1                            ]
        host    [Torch-Compiled Region: 0/0              ]
        host     [CUDAGraphNode.record                  ]
        host      [cudaLaunchKernel>1]
        gpu 7                [a<1]
        """,
        "JIT001",
    )

    assert finding.severity is Severity.info


def test_a_capture_in_a_step_that_compiles_is_warm_up() -> None:
    assert not drawn_findings(
        """
        host   [ProfilerStep#1                 ][ProfilerStep#2                 ]
        host    [Torch-Compiled Region: 0/0   ]  [Torch-Compiled Region: 0/0   ]
        host     [cudagraphify.get_container]     [cudagraphify.get_container]
        host 2  [dynamo                      ]   [dynamo                      ]
        gpu 7  [a]
        """,
        "JIT001",
    )


def test_a_graph_break_is_at_the_line_at_which_the_function_resumes() -> None:
    wide = " " * 24
    (finding,) = drawn_findings(
        f"""
        host  [ProfilerStep#1           {wide}                                      ]
        host   [Torch-Compiled Region: 0/0{wide}                                   ]
        host    [net.py(6): forward     {wide}                                    ]
        host     [CompiledFunction][Torch-Compiled Region: 1/0 {wide}            ]
        host                        [net.py(9): torch_dynamo_resume_in_forward_at_9]
        host                         [CompiledFunction]
        """,
        "JIT003",
    )

    place = (finding.place.file, finding.place.line, finding.place.function)
    assert place == ("net.py", 9, "forward")


def test_the_fix_of_a_graph_break_removes_what_runs_around_the_ops_after_it() -> None:
    wide = " " * 60
    (finding,) = priced_findings(
        f"""
        host  [ProfilerStep#1                   {wide}                               ]
        host   [Torch-Compiled Region: 0/0      {wide}                              ]
        host    [CompiledFunction][TorchDynamo Cache Lookup][Torch-Compiled Region: 1/0]
        host                                                 [Pregraph bytecode]
        host                                                                    [aa::mm]
        """,
        "JIT003",
    )

    around = "[TorchDynamo Cache Lookup][Torch-Compiled Region: 1/0]"
    assert finding.host_ns == 1000 * (len(around) - len("[aa::mm]"))


BROKEN = """
host  [ProfilerStep#1                                                    ]
host   [Torch-Compiled Region: 0/0                                      ]
host    [CompiledFunction][Torch-Compiled Region: 1/0 ]
"""
LOGGED = (
    "V1115 23:34:47.12 464 torch/_dynamo/symbolic_convert.py:5127] [{}/0]"
    " [__graph_breaks] "
)


def test_without_stacks_the_log_says_where_the_graph_breaks_and_why() -> None:
    lines = (
        "Graph break in user code at /src/net.py:9",
        "Graph Break Reason: Encountered graph break when attempting to trace CALL:",
        "",
        "Unsupported Tensor.item() call with capture_scalar_outputs=False",
        "  Explanation: Dynamo does not support tracing `Tensor.item()`.",
        "User code traceback:",
        '  File "/src/train.py", line 40, in <module>',
        '  File "/src/net.py", line 9, in torch_dynamo_resume_in_forward_at_7',
    )
    log = "".join(f"{LOGGED.format(0)}{line}\n" for line in lines)

    (finding,) = drawn_findings(BROKEN, "JIT003", "LOG001", log=log)

    place = (finding.place.file, finding.place.line, finding.place.function)
    assert (finding.code, place) == ("JIT003", ("/src/net.py", 9, "forward"))
    assert "capture_scalar_outputs" in finding.advice
    assert ("reason", lines[3]) in [
        (evidence.label, evidence.name) for evidence in finding.evidence
    ]


def test_the_break_of_another_function_stays_a_finding_of_its_own() -> None:
    log = (
        f"{LOGGED.format(7)}Graph break in user code at /src/other.py:3\n"
        f"{LOGGED.format(7)}Graph Break Reason: Dynamic shape operator\n"
    )

    findings = drawn_findings(BROKEN, "JIT003", "LOG001", log=log)

    assert sorted(finding.code for finding in findings) == ["JIT003", "LOG001"]


def test_the_fix_of_a_pass_without_graph_removes_its_launches() -> None:
    (finding,) = priced_findings(
        """
        host   [ProfilerStep#1                                               ]
        host    [CompiledFunction   ]
        host     [cudaGraphLaunch>1]
        host 2                        [CompiledFunctionBackward             ]
        host 2                         [cuLaunchKernel>2] [cuLaunchKernel>3]
        gpu 7                    [a<1]                [b<2]              [c<3]
        """,
        "JIT004",
        args={
            "CompiledFunction": {"Sequence number": 5, "Fwd thread id": 0},
            "CompiledFunctionBackward": {"Sequence number": 5, "Fwd thread id": 1},
        },
    )

    assert finding.host_ns == 2000 * len("[cuLaunchKernel>2]")


def test_the_gpu_idles_in_a_recompilation_only_where_it_has_no_work() -> None:
    (finding,) = priced_findings(
        """
        host   [ProfilerStep#1          ][ProfilerStep#2                ]
        host    [aten::mm]                [entire_frame_compile     ]
        host                                [@x_data: compile_id=0/4]
        gpu 7        [a                             ]            [b]
        """,
        "JIT002",
    )

    assert finding.gpu_idle_ns == 1000 * len("            ") / 2


def test_a_value_read_before_the_break_is_what_the_advice_is_about() -> None:
    (finding,) = drawn_findings(
        """
        host   [ProfilerStep#1                                               ]
        host    [Torch-Compiled Region: 0/0                                 ]
        host     [CompiledFunction][aten::item][Torch-Compiled Region: 1/0 ]
        """,
        "JIT003",
    )

    assert finding.data["before"] == ["aten::item"]
    assert "`.item()`" in finding.advice


def test_graphs_that_were_requested_and_skipped_for_both_passes_have_a_reason() -> None:
    trace = load_drawn(
        """
        host   [ProfilerStep#1                                  ]
        host    [CompiledFunction                              ]
        host     [cuLaunchKernel>1]  [cuLaunchKernel>2]
        gpu 7                   [a<1]              [b<2]
        """
    )
    why = "skipping cudagraphs due to cpu device (arg3_1)"
    rank = Rank("rank-0", 0, "done", None, None, None, (), graphs_disabled=(why,))

    (finding,) = findings_of(Recording("drawn", replace(trace, rank=rank)), "JIT004")

    assert mentions(finding, 2, "cpu device (arg3_1)")
    assert "on the CPU" in finding.advice


APART = """
host  [ProfilerStep#1                                                                ]
host   [Torch-Compiled Region: 0/0                                                  ]
host    [triton_poi_fused_add_1][Torch-Compiled Region: 1/0                        ]
host     [cuLaunchKernel>1]      [triton_per_fused_mean_0]
host                              [cuLaunchKernel>2]
gpu 7                     [a<1]                        [b<2]
"""


@pytest.mark.parametrize(("width", "kept_apart"), [(768, True), (64, False)])
def test_kernels_that_share_a_tensor_across_a_break_are_kept_apart_by_it(
    width: int, *, kept_apart: bool
) -> None:
    written = [[4096, 768], [4096, 768]]
    (finding,) = priced_findings(
        APART,
        "JIT003",
        args={
            "triton_poi_fused_add_1": inputs(written, ["float"] * 2),
            "triton_per_fused_mean_0": inputs(
                [[4096, width], [4096, 1]], ["float"] * 2
            ),
        },
    )

    apart = [
        evidence.name for evidence in finding.evidence if evidence.label == "unfused"
    ]
    assert apart == ["triton_poi_fused_add_1 and triton_per_fused_mean_0"] * kept_apart
    # All that it reads but one number for each row of 768.
    assert finding.kernel_ns == (round(5000 * 768 / 769) if kept_apart else 0)


@pytest.mark.parametrize(
    ("modules", "message", "advice"),
    [
        # A decode loop calls one model, once per token.
        (("LM_0", "LM_0"), "guards of one compiled part", "if nothing"),
        # Layers of one class share their code.
        (("Layer_0", "Layer_1"), "guards of compiled code", "instead of 2 parts"),
        ((), "guards of compiled code", "if these are calls of its layers"),
    ],
)
def test_compiled_parts_are_told_from_calls_of_one(
    modules: tuple[str, ...], message: str, advice: str
) -> None:
    call = "[TorchDynamo Cache Lookup][Torch-Compiled Region: 0/0]"
    around = "".join(
        f"[nn.Module: {name}".ljust(len(call) - 1) + "]" for name in modules
    )
    (finding,) = drawn_findings(
        f"""
        host [ProfilerStep#1{" " * 2 * len(call)}]
        host  {around}
        host  {call}{call}
        host  {" " * len(call)}{" " * 30}[cuLaunch>1]
        gpu 7 {" " * len(call)}{" " * 40}[triton_poi_0<1]
        """,
        "JIT005",
    )

    assert finding.message == f"{message} are checked twice a step"
    assert advice in finding.advice


def test_a_late_version_that_runs_was_recompiled_before() -> None:
    drawing = """
        host   [ProfilerStep#1             ][ProfilerStep#2             ]
        host    [Torch-Compiled Region: 8/4] [Torch-Compiled Region: 8/4]
        host     [CompiledFunction]           [CompiledFunction]
        gpu 7     [triton_poi_fused_add_0]     [triton_poi_fused_add_0]
        """

    (finding,) = priced_findings(drawing, "JIT002")

    assert mentions(finding, "frame 8", "version 4")
    assert (finding.severity, finding.saves_ns) == (Severity.info, 0)
    # Sizes that become variables make a second version, and that is all.
    assert not priced_findings(drawing.replace("8/4", "8/1"), "JIT002")


def broken_and_captured(captures: str) -> str:
    """Draw two steps of a function that breaks; the part after it may capture."""
    lanes = [
        "[ProfilerStep#{n}" + " " * 60 + "]",
        " [Torch-Compiled Region: 0/0                                               ] ",
        "  [CompiledFunction    ][aten::item][Torch-Compiled Region: 1/0           ]  ",
        "   [cudaLaunchKernel>{a}]              [CompiledFunction                 ]   ",
        f"                                      [{captures}]",
        "                                       [cuLaunch>{b}]",
    ]
    kernels = "                   [a<{a}]                            [b<{b}]       "
    lines = []
    for lane in (*lanes, kernels):
        steps = (lane.format(n=n, a=2 * n - 1, b=2 * n).ljust(82) for n in (1, 2))
        lines.append("".join(steps))
    names = [*["host  "] * len(lanes), "gpu 7 "]
    return "\n".join(name + line for name, line in zip(names, lines, strict=True))


def test_a_graph_break_is_not_priced_with_the_capture_after_it() -> None:
    captured, plain = (
        priced_findings(broken_and_captured(name), "JIT003")[0]
        for name in ("CUDAGraphNode.record", f"{'aten::mm':<32}")
    )

    # Of the part that captures, what follows its last op is not the break's.
    assert captured.host_ns <= plain.host_ns


def test_a_capture_is_priced_without_the_rest_of_a_function_that_breaks() -> None:
    (finding,) = priced_findings(broken_and_captured("CUDAGraphNode.record"), "JIT001")

    # The part that captures, of 35 µs, not all of the region, of 75 µs.
    assert finding.host_ns == pytest.approx(35_000, abs=2_000)
