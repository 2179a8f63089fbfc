"""Diff on drawn traces: what lines up with what, and what a change is called."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import polars as pl
import pytest
from diffing import causes, diff_of, drawn_diff, half, shared_diff

from traceq.analysis.base.assumptions import MAX_HOST_TIME_PER_LAUNCH_NS
from traceq.differ.compare import compare
from traceq.differ.kinds import ALL_OVER
from traceq.differ.same_program import in_common
from traceq.differ.steps import Step, significant, typical
from traceq.inputs.load_trace import load
from traceq.linter import inputs
from traceq.report.diff.causes import cause_text
from traceq.report.diff.content import headline, reasons
from traceq.testing import load_drawn

if TYPE_CHECKING:
    from pathlib import Path

    from traceq.model.trace import Trace

pytestmark = pytest.mark.real

MM = """
    host   [ProfilerStep#1                                              ]
    host    [model.py(3): forward      ]
    host     [aten::linear            ]
    host      [cudaLaunchKernel>1]
    gpu 7                     [sgemm<1                     ]
"""
FASTER_MM = """
    host   [ProfilerStep#1                                              ]
    host    [model.py(3): forward      ]
    host     [aten::linear            ]
    host      [cudaLaunchKernel>1]
    gpu 7                     [nvjet_tst<1]
"""
FLOATS = {"aten::linear": {"Input Dims": [[8, 8]], "Input type": ["float"]}}


def kinds(before: str, after: str, **options: object) -> list[str]:
    """Return the kinds of causes that change the step, biggest first."""
    diff = drawn_diff(before, after, **options)  # type: ignore[arg-type]
    return [cause.kind for cause in diff.causes if cause.ns]


def test_an_op_lines_up_with_itself_on_another_kernel() -> None:
    diff = drawn_diff(MM, FASTER_MM)
    (cause,) = [cause for cause in diff.causes if cause.affects == "gpu"]

    assert cause.kind == "kernel"
    assert cause.ns == -17_000
    assert [cause.before.names, cause.after.names] == [
        (("sgemm", 1),),
        (("nvjet_tst", 1),),
    ]
    assert cause.before.place.file == "model.py"


def test_an_op_lines_up_with_itself_in_another_dtype() -> None:
    after = load_drawn(
        FASTER_MM,
        {"aten::linear": {"Input Dims": [[8, 8]], "Input type": ["c10::BFloat16"]}},
    )
    diff = diff_of(load_drawn(MM, FLOATS), after)

    (text,) = [text for text in causes(diff) if "bf16" in text]
    assert text == "matmuls in bf16 instead of fp32, sgemm -> nvjet_tst"


def test_float32_matmuls_that_compute_in_tf32_are_no_longer_in_fp32() -> None:
    diff = drawn_diff(MM, FASTER_MM.replace("nvjet_tst", "tf32_gemm"), FLOATS)

    (text,) = [text for text in causes(diff) if "matmuls" in text]
    assert text == "matmuls in tf32 instead of fp32, sgemm -> tf32_gemm"


def test_kernels_of_other_names_are_not_called_the_same() -> None:
    slower = FASTER_MM.replace("[nvjet_tst<1]", "[other_tst<1        ]")
    same = FASTER_MM.replace("[nvjet_tst<1]", "[nvjet_tst<1        ]")

    assert "the same kernels take" in " ".join(causes(drawn_diff(FASTER_MM, same)))
    assert "the same kernels" not in " ".join(causes(drawn_diff(FASTER_MM, slower)))


def test_a_function_that_moved_within_its_file_is_the_same() -> None:
    moved = MM.replace("(3)", "(9)")

    assert drawn_diff(MM, moved).verdict == "no change"
    assert kinds(MM, moved) == []


def test_a_renamed_function_lines_up_by_op_and_shapes() -> None:
    assert kinds(MM, MM.replace("forward ", "run     "), args=FLOATS) == []


def test_the_backward_lines_up_with_that_of_its_forward() -> None:
    before = """
    host   [ProfilerStep#1                                                         ]
    host    [aten::sdpa         ] [FlashBackward0     ]
    host     [cudaLaunchKernel>1]  [cudaLaunchKernel>2]
    gpu 7                        [f<1]                  [flash_bwd<2]
    """
    after = before.replace("FlashBackward0     ", "EfficientBackward0 ").replace(
        "[flash_bwd<2]", "[fmha_cutlassB<2    ]"
    )
    args = {
        "aten::sdpa": {"Sequence number": 1, "Fwd thread id": 0},
        "FlashBackward0": {"Sequence number": 1, "Fwd thread id": 1},
        "EfficientBackward0": {"Sequence number": 1, "Fwd thread id": 1},
    }

    diff = drawn_diff(before, after, args)

    (cause,) = [cause for cause in diff.causes if cause.affects == "gpu" and cause.ns]
    assert cause.kind == "kernel"
    assert cause.before.ops == cause.after.ops == ("aten::sdpa",)


def test_an_op_without_a_partner_is_new_or_gone() -> None:
    after = """
    host   [ProfilerStep#1                                              ]
    host    [model.py(3): forward                           ]
    host     [aten::linear            ][aten::clone        ]
    host      [cudaLaunchKernel>1]      [cudaMemcpyAsync>2]
    gpu 7                     [sgemm<1                     ][Memcpy DtoD<2  ]
    """
    there, back = drawn_diff(MM, after), drawn_diff(after, MM)

    assert "new: aten::clone, 1 kernel" in causes(there)
    assert "gone: aten::clone, 1 kernel" in causes(back)
    assert there.calls.after == back.calls.before == (("aten::clone", 1),)


def test_ops_in_place_of_others_in_one_module_replace_them() -> None:
    before = """
    host   [ProfilerStep#1                                                        ]
    host    [nn.Module: Attention_0                                ]
    host     [aten::bmm            ][aten::softmax        ]
    host      [cudaLaunchKernel>1]   [cudaLaunchKernel>2]
    gpu 7                     [gemm<1            ][softmax<2                   ]
    """
    after = """
    host   [ProfilerStep#1                                                        ]
    host    [nn.Module: Attention_0                                ]
    host     [aten::sdpa           ]
    host      [cudaLaunchKernel>1]
    gpu 7                     [flash<1]
    """
    (text,) = [text for text in causes(drawn_diff(before, after)) if "became" in text]

    assert text == "aten::softmax, aten::bmm became aten::sdpa (2 kernels became 1)"


def test_an_op_that_is_called_more_often_is_no_other_kernel() -> None:
    twice = """
    host   [ProfilerStep#1                                              ]
    host    [model.py(3): forward                          ]
    host     [aten::linear         ][aten::linear         ]
    host      [cudaLaunchKernel>1]   [cudaLaunchKernel>2]
    gpu 7                     [sgemm<1                     ][sgemm<2  ]
    """
    (text,) = [text for text in causes(drawn_diff(MM, twice)) if "call" in text]

    assert text == "matmuls: 1 more call of aten::linear"


def test_shapes_that_depend_on_data_are_no_other_ops() -> None:
    rows = "[aten::index_add      ][aten::index_add      ]"
    drawing = f"""
    host   [ProfilerStep#1                                                  ]
    host     {rows}
    host      [cudaLaunchKernel>1]   [cudaLaunchKernel>2]
    gpu 7                     [add<1                     ][add<2       ]
    """

    def of(dims: int) -> Trace:
        return load_drawn(drawing, {"aten::index_add": {"Input Dims": [[dims, 8]]}})

    diff = diff_of(of(3), of(5))

    assert [cause.kind for cause in diff.causes if cause.affects == "gpu"] == ["shapes"]
    assert not any(cause.ns for cause in diff.causes)


def test_layers_are_counted_as_one() -> None:
    before = """
    host   [ProfilerStep#1                                                        ]
    host    [nn.Module: Block_0        ][nn.Module: Block_1      ]
    host     [aten::linear          ]    [aten::linear          ]
    host      [cudaLaunchKernel>1]        [cudaLaunchKernel>2]
    gpu 7                     [sgemm<1            ][sgemm<2                   ]
    """
    after = before.replace("sgemm<1            ", "nvjet<1            ").replace(
        "sgemm<2                   ]", "nvjet<2 ]"
    )
    diff = drawn_diff(before, after)

    (cause,) = [cause for cause in diff.causes if cause.kind == "kernel"]
    assert cause.before.kernels == cause.after.kernels == 2
    assert cause.before.place.module == "Block"


CAST = {
    "aten::copy_": {
        "Input Dims": [[8], [8]],
        "Input type": ["c10::BFloat16", "float"],
    }
}
CASTING = """
    host   [ProfilerStep#1                                              ]
    host    [model.py(3): forward                           ]
    host     [aten::linear                            ]
    host      [aten::copy_          ][cudaLaunchKernel>1]
    host       [cudaLaunchKernel>2 ]
    gpu 7                          [direct_copy_kernel<2  ]   [sgemm<1  ]
"""


def test_casts_that_an_op_asks_for_are_told_from_the_op() -> None:
    diff = drawn_diff(MM, CASTING, CAST)

    (cast,) = [cause for cause in diff.causes if cause.kind == "casts"]
    assert cast.after.kernels == 1
    assert cast.details[0].op == "aten::linear"
    assert "1 more cast" in causes(diff)


def test_as_many_casts_as_before_are_no_cause() -> None:
    longer = CASTING.replace("<2  ]   [", "<2     ][")

    assert "casts" not in kinds(CASTING, longer, args=CAST)


def test_compiled_code_is_compared_with_the_ops_it_stands_for() -> None:
    eager = """
    host   [ProfilerStep#1                                                        ]
    host    [aten::add            ][aten::mul            ]
    host     [cudaLaunchKernel>1]   [cudaLaunchKernel>2]
    gpu 7                     [add<1            ][mul<2                   ]
    """
    compiled = """
    host   [ProfilerStep#1                                                        ]
    host    [Torch-Compiled Region: 0/0  ]
    host     [cudaLaunchKernel>1]
    gpu 7                     [triton_poi_fused_add_mul_0<1]
    """
    diff = drawn_diff(eager, compiled)

    assert "compiled (2 kernels became 1)" in causes(diff)
    assert any("torch.compile is used after only" in caveat for caveat in diff.caveats)
    back = causes(drawn_diff(compiled, eager))
    assert "torch.compile no longer used (1 kernel became 2)" in back


LATE = """
    host   [ProfilerStep#1                                                        ]
    host    [aten::add             ]
    host     [cudaLaunchKernel>1]
    gpu 7                      [add<1]
"""


def test_idle_time_belongs_to_the_launch_that_the_gpu_waits_for() -> None:
    more = """
    host   [ProfilerStep#1                                                        ]
    host    [aten::add             ]                 [aten::mul             ]
    host     [cudaLaunchKernel>1]                     [cudaLaunchKernel>2]
    gpu 7                      [add<1]                                     [mul<2]
    """
    diff = drawn_diff(LATE, more)

    (cause,) = [cause for cause in diff.causes if cause.kind == "launches"]
    assert cause.after.launches == 1
    assert cause.ns == 37_000
    assert cause.details[0].op == "aten::mul"


def _two_launches(python_us: int, op_us: int) -> str:
    """Draw a step in which Python, then a matmul, is between two kernels."""
    between, inside = " " * python_us, " " * op_us
    return f"""
    host   [ProfilerStep#1               {between}                {inside}             ]
    host    [aten::add             ]{between}[aten::mm             {inside}     ]
    host     [cudaLaunchKernel>1]   {between}             {inside} [cuLaunchKernel>2]
    gpu 7                      [add<1]{between}                    {inside}       [mm<2]
    """


SIZES = {
    "aten::mm": inputs([[64, 64], [64, 64]], ["float", "float"]),
    "aten::add": inputs([[64, 64]], ["float"]),
}


def test_a_launch_more_costs_no_more_than_a_launch_can() -> None:
    diff = drawn_diff(LATE, _two_launches(300, 0))

    (launches,) = [cause for cause in diff.causes if cause.kind == "launches"]
    (same,) = [cause for cause in diff.causes if cause.kind == "same launches"]
    assert launches.after.launches == 1
    assert launches.ns == MAX_HOST_TIME_PER_LAUNCH_NS
    assert same.ns > 200_000
    assert sum(cause.ns for cause in diff.causes) == pytest.approx(diff.change_ns)


def test_idle_time_of_an_op_on_a_new_shape_is_that_ops() -> None:
    diff = drawn_diff(_two_launches(0, 0), _two_launches(0, 400), SIZES)

    (cause,) = [cause for cause in diff.causes if cause.kind == "host"]
    assert cause.host_kind == "operators on new shapes"
    assert cause.after.ops == ("aten::mm",)
    assert (cause.before.calls, cause.after.calls) == (0, 1)
    assert cause.ns > 300_000
    assert sum(cause.ns for cause in diff.causes) == pytest.approx(diff.change_ns)
    assert headline(diff).endswith("aten::mm: 0 -> 1 call a step")


def test_the_same_launches_are_divided_by_what_the_host_does() -> None:
    diff = drawn_diff(_two_launches(0, 0), _two_launches(60, 0))

    (cause,) = [cause for cause in diff.causes if cause.kind == "same launches"]
    assert cause.details[0].op.startswith("Python between operators")
    assert cause.details[0].ns == pytest.approx(cause.ns, rel=0.1)


def test_what_no_change_explains_is_called_a_residual() -> None:
    text = " ".join(causes(drawn_diff(_two_launches(0, 0), _two_launches(60, 0))))

    assert "idle: residual, which no change of ops, launches or syncs explains" in text
    assert "for the same launches" not in text


def test_idle_time_after_a_wait_belongs_to_the_wait() -> None:
    before = """
    host   [ProfilerStep#1                                                           ]
    host    [aten::add             ]                        [aten::mul           ]
    host     [cudaLaunchKernel>1]                            [cudaLaunchKernel>2]
    gpu 7                      [add<1      ]                                    [m<2]
    """
    after = """
    host   [ProfilerStep#1                                                           ]
    host    [aten::add             ][aten::item           ] [aten::mul           ]
    host     [cudaLaunchKernel>1]   [cudaStreamSynchronize]  [cudaLaunchKernel>2]
    gpu 7                      [add<1             ]                             [m<2]
    """
    diff = drawn_diff(before, after)

    (cause,) = [cause for cause in diff.causes if cause.kind == "launches"]
    assert (cause.before.syncs, cause.after.syncs) == (0, 1)
    assert cause.after.ops == ("aten::item",)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("enumerate(DataLoader)#_Iter.__next__", "loading data"),
        ("entire_frame_compile", "compiling"),
        ("cudaStreamBeginCapture_ptsz_____", "capturing CUDA graphs"),
        ("cudaMalloc______________________", "allocating memory"),
    ],
)
def test_idle_time_in_which_the_host_did_something_else_is_that(
    name: str, kind: str
) -> None:
    before = f"""
    host   [ProfilerStep#1                                                        ]
    host    [{name:36}][aten::add ]
    host                                          [cudaLaunchKernel>1]
    gpu 7                                                             [add<1]
    """.replace("____", "")
    quiet = before.replace(f"[{name}".replace("____", ""), " ", 1)
    diff = drawn_diff(before, quiet.replace(" ][aten", "  [aten"))

    (cause,) = [cause for cause in diff.causes if cause.kind == kind]
    assert cause.before.ns > 0
    assert cause.after.ns == 0


def test_kernels_that_run_at_the_same_time_count_once() -> None:
    beside = """
    host   [ProfilerStep#1                                              ]
    host    [model.py(3): forward      ]
    host     [aten::linear            ]
    host      [cudaLaunchKernel>1]
    gpu 7                     [sgemm<1                     ]
    gpu 9                        [other            ]
    """
    diff = drawn_diff(MM, beside)

    busy = {metric.name: metric for metric in diff.metrics}["gpu busy"]
    assert busy.change == 0


def test_a_step_measured_without_the_profiler_is_what_causes_add_up_to() -> None:
    diff = drawn_diff(MM, FASTER_MM, step_ms=(0.050, 0.030))

    assert diff.verdict == "faster"
    assert diff.change_ns == -20_000
    assert sum(cause.ns for cause in diff.causes) == pytest.approx(-20_000)


def test_a_step_shorter_than_its_kernels_takes_all_of_them_as_shorter() -> None:
    diff = drawn_diff(MM, MM, step_ms=(0.020, 0.020))

    assert sum(cause.after.ns for cause in diff.causes) == pytest.approx(20_000)


def test_one_measured_step_alone_is_not_compared_with_a_recorded_one() -> None:
    first, second = load_drawn(MM), load_drawn(FASTER_MM)
    recorded = diff_of(first, second)
    diff = compare(half(first, step_ms=0.05), half(second))

    assert diff.change_ns == recorded.change_ns
    assert "the step of after was not measured" in diff.caveats[0]


def step(ns: float, least: float, most: float, count: int = 6) -> Step:
    return Step(ns, least, most, count, measured=False)


def test_steps_that_differ_less_than_among_themselves_are_no_change() -> None:
    assert not significant(step(100, 90, 140), step(120, 100, 130))
    assert significant(step(100, 98, 102), step(120, 118, 122))


def test_a_single_step_has_to_differ_by_more() -> None:
    assert not significant(step(100, 100, 100, 1), step(108, 108, 108, 1))
    assert significant(step(100, 99, 101), step(108, 107, 109))


def test_measured_steps_differ_if_their_fastest_do() -> None:
    before = Step(100, 98, 130, 20, measured=True)

    assert significant(before, Step(104, 102, 110, 20, measured=True))
    assert not significant(before, Step(104, 98, 190, 20, measured=True))
    assert not significant(before, Step(101, 99, 110, 20, measured=True))


def test_a_step_that_was_held_up_says_nothing_about_the_others() -> None:
    trace = load_drawn(
        """
        host   [ProfilerStep#1][ProfilerStep#2                 ][ProfilerStep#3]
        host    [aten::add ]    [aten::add ]                     [aten::add ]
        """
    )
    steady = trace.steps.with_columns(warmup=pl.lit(value=False))
    trace = replace(trace, steps=steady)

    assert typical(trace).windows["step"].to_list() in ([1], [3])


def test_without_a_gpu_ops_are_compared_by_the_hosts_time() -> None:
    before = """
    host   [ProfilerStep#1                        ]
    host    [aten::mm ]
    """
    after = """
    host   [ProfilerStep#1                        ]
    host    [aten::mm ] [aten::clone            ]
    """
    diff = drawn_diff(before, after)

    assert [metric.name for metric in diff.metrics] == ["step"]
    assert causes(diff)[0] == "new: aten::clone, 1 call"


@pytest.mark.collect
def test_two_captures_of_one_program_do_the_same(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from torch.profiler import profile, schedule  # noqa: PLC0415 - may be missing

    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.LayerNorm(64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(32, 64)
    traces = []
    for name in ("one", "two"):
        plan = schedule(wait=1, warmup=1, active=4)
        with profile(record_shapes=True, with_stack=True, schedule=plan) as recorded:
            for _ in range(6):
                optimizer.zero_grad()
                model(x).square().mean().backward()
                optimizer.step()
                recorded.step()
        path = tmp_path / f"{name}.json"
        recorded.export_chrome_trace(str(path))
        traces.append(load(path, cache=False))

    diff = diff_of(traces[0], traces[1])

    assert {cause.kind for cause in diff.causes} <= set(ALL_OVER)
    assert diff.calls.before == diff.calls.after == ()
    assert not diff.findings.changes


def test_the_first_line_says_when_there_is_no_change() -> None:
    diff = drawn_diff(MM, MM)

    assert headline(diff) == "62.0 µs a step, before and after: no change"


def _net(module: str, function: str) -> str:
    return f"""
    host   [ProfilerStep#1                                              ]
    host    [nn.Module: {module}_0                                     ]
    host     [model.py(3): {function}                                 ]
    host      [aten::linear            ]
    host       [cudaLaunchKernel>1]
    gpu 7                     [sgemm<1                     ]
    """


@pytest.mark.parametrize(
    ("other", "shared"),
    [
        (_net("Small", "project"), True),
        (_net("Tiny", "mix"), True),
        (_net("Tiny", "project"), False),
        (_net("Linear", "forward"), None),
    ],
    ids=["module", "function", "nothing", "unknown"],
)
def test_programs_are_told_apart_by_modules_and_functions(
    other: str, *, shared: bool | None
) -> None:
    program = load_drawn(_net("Small", "mix"))

    assert in_common(program, load_drawn(other)) is shared


WEIGHT = {"aten::linear": inputs([[8, 64], [128, 64]], ["float", "float"])}


def test_a_program_with_other_names_and_the_same_weights_is_the_same() -> None:
    first, second = _net("Small", "mix"), _net("Tiny", "project")

    assert in_common(load_drawn(first, WEIGHT), load_drawn(second, WEIGHT))


BESIDE = """
    host   [ProfilerStep#1                                                                       ]
    host    [aten::copy_            ][aten::mm               ]
    host      [cudaMemcpyAsync>1]      [cudaLaunchKernel>2]
    gpu 7                                                  [sgemm<2                               ]
    gpu 9   {before}[Memcpy HtoD (Pinned -> Device)<1]
"""  # noqa: E501 - a step in which the copy runs beside the matmul


def test_a_copy_that_runs_beside_kernels_is_hidden_and_not_faster() -> None:
    shown = BESIDE.format(before=" " * 6)
    hidden = BESIDE.format(before=" " * 50)
    diff = drawn_diff(shown, hidden)

    (cause,) = [cause for cause in diff.causes if cause.kind == "overlap"]
    assert cause.ns < 0
    assert cause_text(cause, diff) == "copies now run beside other work of the GPU"


@pytest.mark.slow
def test_reasons_are_sorted_by_their_size() -> None:
    for before, after in (("attn_manual", "attn_flash"), ("moe_loop", "moe_batched")):
        diff = shared_diff(before, after)
        sizes = [
            abs(cause.ns)
            for cause in diff.causes
            if cause.kind not in ("same launches", "not in the trace")
            and abs(cause.sure_ns) > abs(cause.ns) / 2
        ]
        shown = [abs(reason.ns) for reason in reasons(diff)]
        named = [value for value in shown if value in sizes]
        assert named == sorted(named, reverse=True)


def _searching(wait: int, dtype: str) -> Trace:
    between = " " * wait
    drawing = f"""
    host   [ProfilerStep#1                                    {between}             ]
    host    [aten::add             ][aten::mm                 {between}    ]
    host     [cudaLaunchKernel>1]      {between}[cudaLaunchKernel>2]
    gpu 7                      [add<1 ]{between}                    [gemm<2        ]
    """
    shapes = {"aten::mm": inputs([[64, 64], [64, 64]], [dtype, dtype])}
    return load_drawn(drawing, SIZES | shapes)


def test_new_shapes_that_cost_time_in_16_bits_alone_are_searched() -> None:
    diff = diff_of(_searching(0, "float"), _searching(400, "c10::BFloat16"))

    (cause,) = [cause for cause in diff.causes if cause.kind == "host"]
    assert cause_text(cause, diff).endswith(
        "cuBLASLt searches an algorithm for each new shape in bf16, and not in fp32"
    )


def test_new_shapes_that_cost_time_in_the_same_dtype_have_no_reason_of_it() -> None:
    diff = diff_of(_searching(0, "float"), _searching(400, "float"))

    (cause,) = [cause for cause in diff.causes if cause.kind == "host"]
    assert "cuBLASLt" not in cause_text(cause, diff)
