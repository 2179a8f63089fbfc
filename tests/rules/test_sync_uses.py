"""SYN: advice on a value that the host reads, by what the program does with it."""

from __future__ import annotations

import pytest
from linting import (
    drawn_findings,
    placed,
    priced_findings,
    says,
    sourced_findings,
)

READ = """
host  [ProfilerStep#1                                                               ]
host   [train.py(1): main                                                          ]
host    [<built-in method item> by train.py(4): main                              ]
host     [aten::item                                                             ]
host      [aten::_local_scalar_dense                                            ]
host       [cudaMemcpyAsync>2] [cudaStreamSynchronize                          ]
gpu 7  [gemm                               ][Memcpy DtoH (Device -> Pageable)<2]
"""

TOLIST = "tolist> by train.py(4): main"


def program(line: str, after: str = "done()") -> dict[str, str]:
    """Return the source of a loop whose fourth line is this one."""
    return {
        "train.py": "def main(loader):\n    for step, x in enumerate(loader):\n"
        f"        loss = model(x)\n        {line}\n        {after}\n"
    }


@pytest.mark.parametrize(
    ("line", "after", "advice"),
    [
        ("log(loss.item())", "", "it is only logged"),
        ("n = loss.item()", "x = torch.arange(n)", "it is a size"),
        ("y = x[loss.item()]", "", "it is an index"),
        ("if loss.isnan().item():", "    raise E", "it asks whether values are finite"),
        ("while loss.item() > 3:", "    f()", "it ends a loop"),
        ("if mask.any().item():", "    f()", "it asks whether there is anything to do"),
        ("losses.append(loss.item())", "", "it is only collected"),
        ("for i in loss.tolist():", "    f(i)", "a Python loop goes over the values"),
        ("y.mul_(loss.item())", "", "it goes back into operators"),
        # Not even all uses that are seen say what else is done with it.
        ("n = loss.item()", "log(n); f(n)", "what is only logged"),
        ("f(loss.item())", "", "what is only logged"),
        ("seen = 0; seen += loss.item()", "log(seen)", "it is only added up: add the"),
        ("total += loss.item()", "log(total)", "it is only added up: make what it is"),
    ],
)
def test_the_advice_fits_what_a_value_is_read_for(
    line: str, after: str, advice: str
) -> None:
    drawing = (
        READ.replace("item> by train.py(4): main  ", TOLIST)
        if "tolist" in line
        else READ
    )
    (finding,) = sourced_findings(drawing, program(line, after), "SYN001")

    assert finding.advice.startswith(advice)


def test_an_action_in_the_source_is_no_needless_wait() -> None:
    assert not sourced_findings(READ, program("env.step(a.item())"), "SYN001")


def test_what_is_logged_seldom_is_not_advised_to_be_logged_seldom() -> None:
    source = {
        "train.py": "def main(loader):\n    for step, x in enumerate(loader):\n"
        "        if step % 10 == 0:\n            log(x.item())\n"
    }
    (finding,) = sourced_findings(READ, source, "SYN001")

    assert "raise the number of steps between" in finding.advice


def test_reads_of_one_function_for_two_uses_are_two_findings() -> None:
    read = "<built-in method item> by train.py({}): main"
    lanes: dict[str, list[tuple[int, int, str]]] = {
        "host ": [(0, 400, "ProfilerStep#1")],
        "host  ": [(1, 398, "train.py(1): main")],
        "gpu 7": [],
    }
    for at, line in ((0, 4), (200, 5)):
        lanes["gpu 7"] += [(at + 30, 100, f"gemm<{line}")]
        calls = [(at + 4, 20, f"cudaLaunch>{line}"), (at + 30, 150, read.format(line))]
        lanes.setdefault("host   ", []).extend(calls)
        lanes.setdefault("host    ", []).append((at + 32, 140, "aten::item"))
        lanes.setdefault("host     ", []).append((at + 40, 90, "cudaStreamSynchronize"))
    source = program("log(loss.item())", "y = x[loss.item()]")

    findings = sourced_findings(placed(lanes, 400), source, "SYN001")

    assert len(findings) == 2
    assert {finding.place.line for finding in findings} == {4, 5}


def test_a_value_that_a_model_reads_may_be_a_size_or_a_condition() -> None:
    drawing = READ.replace("train.py(1): main", "nn.Module: Net_0 ").replace(
        " by train.py(4): main", ""
    )
    (finding,) = drawn_findings(drawing, "SYN001")

    assert "a size, an index or a condition" in finding.advice


def asks(second: str, *, launches: bool = False) -> str:
    """Draw two steps in which one wait follows another, of this function."""
    later = 26 if launches else 0
    calls = [(232, 23, "cudaLaunchKernel>{}4")] if launches else []
    lanes: dict[str, list[tuple[int, int, str]]] = {
        "host ": [(0, 330, "ProfilerStep#{}")],
        "host  ": [(60, 169, "a.py(3): f"), (235 + later, 53, second)],
        "host   ": [(65, 160, "aten::item"), (238 + later, 48, "aten::item")],
        "host    ": [
            (20, 15, "cudaLaunch>{}1"),
            (42, 15, "cudaLaunch>{}2"),
            (67, 153, "cudaStreamSynchronize"),
            *calls,
            (239 + later, 21, "cudaMemcpyAsync>{}3"),
            (262 + later, 23, "cudaStreamSynchronize"),
        ],
        "gpu 7": [
            (32, 97, "gemm<{}1"),
            (135, 83, "gemm<{}2"),
            *([(262, 6, "k<{}4")] if launches else []),
            (255 + later + 5, 8, "Mem<{}3"),
        ],
    }
    return placed(lanes, 340, steps=2)


def test_advice_on_a_chain_is_of_all_its_waits() -> None:
    findings = priced_findings(asks("b.py(8): g"), "SYN001")

    first = next(finding for finding in findings if finding.place.file == "a.py")
    assert first.advice.endswith(
        "; do the same at g (b.py:8), which waits instead otherwise"
    )
    other = next(finding for finding in findings if finding.place.file == "b.py")
    assert "otherwise" not in other.advice
    assert sum(len(fix.syncs) for fix in other.fixes) < sum(
        len(fix.syncs) for fix in first.fixes
    )


def test_a_wait_that_an_action_takes_over_is_priced_alone() -> None:
    """The program has to wait for the action, so that removing the first moves it."""
    drawing = asks("b.py(8): g", launches=True).splitlines()
    act = (" " * 315 + "[gym/envs/a.py(9): step]").ljust(340)
    drawing.insert(1, f"host  {act}{act}")
    findings = priced_findings("\n".join(drawing), "SYN001")
    alone = next(finding for finding in findings if finding.place.file == "a.py")

    assert sum(len(fix.syncs) for fix in alone.fixes) == 2
    assert "otherwise" not in alone.advice
    assert says(alone, "`.item()`", "once a step")


WITHOUT_GPU = """
host  [ProfilerStep#1                                                               ]
host   [train.py(1): main                                                          ]
host    [aten::mm ] [<built-in method item> by train.py(4): main                  ]
host                 [aten::item              ]
host                  [aten::_local_scalar_dense]
"""


def test_without_a_gpu_the_advice_fits_the_use_too() -> None:
    drawing = WITHOUT_GPU.replace("item              ]", "item                ]")
    source = program("n = loss.item()", "x = torch.arange(n)")
    (finding,) = sourced_findings(drawing, source, "SYN003")

    assert finding.advice.startswith("it is a size")
    assert not sourced_findings(drawing, program("env.step(x.item())"), "SYN003")


@pytest.mark.parametrize(
    ("call", "advice"),
    [
        ("cudaDeviceSynchronize", "take it out of the loop"),
        ("cudaStreamSynchronize", "wait_stream"),
        ("cudaEventSynchronize ", "wait_event"),
    ],
)
def test_a_stream_or_an_event_is_waited_for_on_the_gpu(call: str, advice: str) -> None:
    (finding,) = drawn_findings(
        f"""
        host   [ProfilerStep#1                                                ]
        host    [aten::mm          ]                        [aten::add         ]
        host    [cudaLaunchKernel>1]                        [cudaLaunchKernel>2]
        host                        [{call}]
        gpu 7               [gemm<1             ]                           [a<2]
        """,
        "SYN002",
    )

    assert advice in finding.advice


def _asked(*tests: str, read: str = "is_nonzero") -> str:
    """Draw a step in which ops compare, and the host reads what comes out."""
    long = 160 + 40 * len(tests)
    spans: dict[str, list[tuple[int, int, str]]] = {
        "host ": [(0, long, "ProfilerStep#1")],
        "host  ": [(2, 18, "aten::mm")],
        "host   ": [(3, 14, "cudaLaunch>1")],
        "gpu 7": [(18, 22, "gemm<1")],
    }
    for number, test in enumerate(tests):
        at = 30 + 40 * number
        spans["host  "].append((at, 30, f"aten::{test}"))
        spans["host   "].append((at + 5, 15, f"cudaLaunch>{number + 10}"))
        spans["gpu 7"].append((at + 15, 30, f"k<{number + 10}"))
    at = 30 + 40 * len(tests)
    spans["host  "] += [(at, 60, f"aten::{read}"), (at + 80, 20, "aten::mm")]
    spans["host   "].append((at + 5, 50, "cudaStreamSynchronize"))
    spans["host   "].append((at + 82, 14, "cudaLaunch>2"))
    spans["gpu 7"].append((at + 97, 20, "gemm<2"))
    return placed(spans, long)


@pytest.mark.parametrize("read", ["item", "is_nonzero"])
def test_the_result_of_a_comparison_decides_a_branch_without_stacks(read: str) -> None:
    (finding,) = drawn_findings(_asked("any", read=read), "SYN001")

    assert " of the result of `any` makes the host wait" in finding.message
    assert finding.advice.startswith("it most likely decides a branch")
    assert "log" not in finding.advice


def test_a_value_that_nothing_compares_has_advice_by_cases() -> None:
    (finding,) = drawn_findings(_asked("sum", read="item"), "SYN001")

    assert finding.advice.startswith("what is only logged can stay on the GPU")
    assert "what decides" in finding.advice


def test_a_check_for_nan_goes_with_the_operators_that_compute_it() -> None:
    (finding,) = priced_findings(_asked("isnan", "any"), "SYN001")

    assert finding.advice.startswith("it asks whether values are finite")
    assert (finding.host_ns, finding.kernel_ns) == (120_000, 60_000)


def test_a_mask_that_may_be_used_again_stays_without_its_condition() -> None:
    (finding,) = priced_findings(_asked("gt", "any"), "SYN001")

    assert finding.kernel_ns == 0


def test_a_synchronize_that_would_wait_instead_is_named_without_stacks() -> None:
    lanes: dict[str, list[tuple[int, int, str]]] = {
        "host ": [(0, 300, "ProfilerStep#{}")],
        "host  ": [(65, 160, "aten::item"), (280, 15, "aten::mm")],
        "host   ": [
            (20, 15, "cudaLaunch>{}1"),
            (67, 153, "cudaStreamSynchronize"),
            (230, 40, "cudaDeviceSynchronize"),
            (282, 10, "cudaLaunch>{}2"),
        ],
        "gpu 7": [(32, 180, "gemm<{}1"), (290, 8, "gemm<{}2")],
    }
    findings = drawn_findings(placed(lanes, 300, steps=2), "SYN001")

    (also,) = (line for line in findings[0].evidence if line.label == "also")
    assert also.name == "`torch.cuda.synchronize()`"
    assert (
        "which waits instead otherwise: take it out of the loop" in findings[0].advice
    )


@pytest.mark.parametrize("before", ["eq", "mul"])
def test_a_mask_that_each_step_computes_is_not_the_same_in_each(before: str) -> None:
    (finding,) = drawn_findings(_asked(before, read="nonzero"), "SYN001")

    assert ("once before the loop" in finding.advice) == (before == "mul")
