"""LCH001: advice by what an iteration of the loop leaves for the next one."""

from __future__ import annotations

import json
from itertools import cycle, islice
from typing import TYPE_CHECKING, Any

import pytest
from linting import drawn_findings, outcome, placed, sourced_findings

from traceq.inputs.load_trace import load
from traceq.model.recording import Recording
from traceq.testing import draw

if TYPE_CHECKING:
    from pathlib import Path

    from traceq.linter import Finding


def looped(body: str, *ops: str, iterations: int = 16) -> Finding:
    """Return what LCH001 finds of a loop with this source that calls these ops."""
    width, names = 20, ops * iterations
    calls = "".join(f"[aten::{name}".ljust(width - 1) + "]" for name in names)
    numbers = range(1, len(names) + 1)
    launches = "".join(f"[cuLaunch>{n}]".ljust(width) for n in numbers)
    kernels = "".join(f"[k<{n}]".ljust(width) for n in numbers)
    drawing = f"""
        host  [ProfilerStep#1{" " * len(calls)}]
        host   [net.py(1): forward{" " * (len(calls) - 8)}]
        host    {calls}
        host     {launches.rstrip()}
        gpu 7         {kernels.rstrip()}
        """
    source = f"def forward(self, x):\n{body}\n"
    (finding,) = sourced_findings(drawing, {"net.py": source}, "LCH001")
    return finding


@pytest.mark.parametrize(
    ("body", "advice"),
    [
        (
            "    for t in range(9):\n        h = x[t].tanh() + h.abs() * h",
            "each iteration needs h of the one before",
        ),
        (
            "    for t in timesteps:\n        x = x.tanh() - x.abs()",
            "more samples at once",
        ),
        (
            "    for t in range(9):\n        out.append(x[t].tanh().abs())",
            "no iteration needs the one before: stack",
        ),
        (
            "    for t in range(9):\n        out.append(self.f(x[t]).tanh().abs())",
            "unless something that it calls keeps a state: stack",
        ),
        (
            "    for head in self.heads:\n        out.append(head(x).tanh().abs())",
            "stack_module_state",
        ),
        (
            "    for k, v in losses.items():\n        log[k] = v.tanh().abs()",
            "torch.stack(list(losses.values()))",
        ),
        (
            "    for x in y:\n        x.tanh().abs().backward()\n        opt.step()",
            "updates weights",
        ),
        (
            "    for x in y:\n        if x.tanh().abs():\n            break",
            "if an iteration needs the one before",
        ),
    ],
)
def test_the_advice_fits_what_the_next_iteration_needs(body: str, advice: str) -> None:
    finding = looped(body, "tanh", "abs")

    assert advice in finding.advice
    assert (finding.place.line, finding.place.begins) == (2, 1)


_CALLS = ("aten::index", "aten::mean")


def drawn_loop(*called: str, iterations: int = 16) -> str:
    """Draw a loop that calls these ops in each iteration."""
    names, width = called * iterations, 26
    calls = "".join(f"[{name}".ljust(width - 1) + "]" for name in names)
    numbers = range(1, len(names) + 1)
    return f"""
        host  [ProfilerStep#1{" " * len(calls)}]
        host   [net.py(1): forward{" " * (len(calls) - 8)}]
        host    {calls}
        host     {"".join(f"[cuLaunch>{n}]".ljust(width) for n in numbers).rstrip()}
        gpu 7         {"".join(f"[k<{n}]".ljust(width) for n in numbers).rstrip()}
        """


def with_args(
    drawing: str, args: dict[str, list[dict[str, Any]]], folder: Path
) -> Finding:
    """Return what LCH001 finds if the calls of an op take these arguments in turn."""
    trace = draw(drawing)
    turns = {name: cycle(several) for name, several in args.items()}
    for event in trace["traceEvents"]:
        if event["name"] in turns:
            event["args"] |= next(turns[event["name"]])
    file = folder / "trace.json"
    file.write_text(json.dumps(trace), encoding="utf-8")
    recording = Recording("drawn", load(file, cache=False))
    (finding,) = outcome(recording, "LCH001", brief=True).findings
    return finding


@pytest.mark.parametrize("sizes", [[9, 13, 7, 9], [*([8] * 15), 5]])
def test_tensors_of_several_sizes_are_joined_and_never_stacked(
    sizes: list[int], tmp_path: Path
) -> None:
    shapes = [{"Input Dims": [[size, 64], [], []]} for size in sizes]

    finding = with_args(drawn_loop(*_CALLS), {"aten::mean": shapes}, tmp_path)

    # A last chunk may be smaller than the others.
    differ = sizes.count(8) == 0
    assert ("segment_reduce" in finding.advice) == differ
    assert ("stack what the loop goes over" in finding.advice) != differ
    shown = [one.name for one in finding.evidence if one.label == "shapes"]
    assert shown == (["aten::mean of [[9,64]], [[13,64]], [[7,64]]"] if differ else [])


def test_an_iteration_that_lacks_a_call_shifts_no_shapes(tmp_path: Path) -> None:
    drawing = drawn_loop("aten::abs", "aten::mean", "aten::mean")
    # As where the first mark comes after some of the first iteration.
    first = drawing.index("aten::mean")
    drawing = drawing[:first] + "aten::tanh" + drawing[first + len("aten::tanh") :]
    shapes = [{"Input Dims": [[size, 64]]} for size in (1, 8)]
    shapes = [shapes[1], *shapes * 16]

    finding = with_args(drawing, {"aten::mean": shapes}, tmp_path)

    assert "stack what the loop goes over" in finding.advice


def test_an_op_that_an_iteration_calls_twice_is_compared_with_its_own(
    tmp_path: Path,
) -> None:
    shapes = [{"Input Dims": [[size, 64]]} for size in (8, 1)]

    finding = with_args(
        drawn_loop("aten::mean", "aten::abs", "aten::mean"),
        {"aten::mean": shapes},
        tmp_path,
    )

    assert "stack what the loop goes over" in finding.advice


@pytest.mark.parametrize(
    ("trains", "mean", "keeps"),
    [("True", [8], True), ("False", [8], False), ("True", [], False)],
)
def test_a_batch_norm_that_keeps_statistics_is_no_stack(
    trains: str, mean: list[int], tmp_path: Path, *, keeps: bool
) -> None:
    args = {
        "Input Dims": [[4, 8], [8], [8], mean, mean, [], [], [], []],
        "Concrete Inputs": ["", "", "", "", "", trains, "0.1", "1e-05", "True"],
    }

    finding = with_args(
        drawn_loop("aten::add_", "aten::batch_norm"),
        {"aten::batch_norm": [args]},
        tmp_path,
    )

    assert ("put the iterations into the channels" in finding.advice) == keeps
    assert ("which changes them slightly: check" in finding.advice) == keeps


def test_a_loop_whose_first_op_is_in_a_function_that_it_calls_is_at_its_own_line() -> (
    None
):
    width, iterations = 48, 16
    ops = "[aten::tanh          ][aten::abs           ]"
    numbers = range(1, 2 * iterations + 1)
    drawn = [
        f"host  [ProfilerStep#1{' ' * width * iterations}]",
        f"host   [net.py(1): forward{' ' * (width * iterations - 8)}]",
        "host    " + f"[look.py(1): look      ]{' ' * 24}" * iterations,
        "host     " + ops.ljust(width) * iterations,
        "host      "
        + "".join(
            f"[cuLaunch>{n}]".ljust(22 if n % 2 else width - 22) for n in numbers
        ),
        "gpu 7         "
        + "".join(f"[k<{n}]".ljust(22 if n % 2 else width - 22) for n in numbers),
    ]
    body = "    for t in range(9):\n        h = look(h, x[t]).abs() * h"
    sources = {
        "net.py": f"def forward(self, x, h):\n{body}\n",
        "look.py": "def look(h, x):\n    return (h + x).tanh()\n",
    }

    (finding,) = sourced_findings("\n".join(drawn), sources, "LCH001")

    assert (finding.place.file, finding.place.line) == ("net.py", 2)
    assert "needs h of the one before" in finding.advice


def test_one_line_that_two_kinds_of_modules_run_is_one_finding() -> None:
    width, count, modules = 40, 32, ("Wide_0", "Deep_0")
    starts = [10 + at * (count * width + 40) for at in range(2)]
    calls = [start + 4 + at * width for start in starts for at in range(count)]
    ops = ("aten::tanh", "aten::abs") * count
    lanes = {
        "host": [(0, starts[-1] + (count + 3) * width, "ProfilerStep#1")],
        "host ": [
            (start, (count + 1) * width, f"nn.Module: {name}")
            for start, name in zip(starts, modules, strict=True)
        ],
        "host  ": [
            (start + 2, (count + 1) * width - 4, "net.py(1): forward")
            for start in starts
        ],
        "host   ": [(at, width - 1, op) for at, op in zip(calls, ops, strict=True)],
        "host    ": [
            (at + 1, 14, f"cuLaunch>{n}") for n, at in enumerate(calls, start=1)
        ],
        "gpu 7": [(at + 8, 8, f"k<{n}") for n, at in enumerate(calls, start=1)],
    }

    (finding,) = drawn_findings(placed(lanes, starts[-1] + 1000), "LCH001")

    assert "a loop of 16 iterations" in finding.message
    assert finding.count == 64
    assert finding.data["modules"] in (["Deep_0", "Wide_0"], ["Wide_0", "Deep_0"])


def test_a_loop_whose_iterations_cannot_be_one_keeps_a_launch_of_each() -> None:
    alone, state = "out.append(x[t].tanh().abs())", "h = h.tanh().abs() + x[t]"
    (independent, *_), (dependent, *_) = (
        looped(f"    for t in range(9):\n        {body}", "tanh", "abs").fixes
        for body in (alone, state)
    )

    assert independent.host_share == 1
    assert dependent.host_share == pytest.approx(0.5)


def updated(file: str, *ops: str, name: str = "AdamW") -> str:
    """Draw a step of an optimizer that calls ops many times, in a function of a file.

    The program calls it in line 5.
    """
    called = islice(cycle(ops), 24)
    calls = "".join(f"[{op}".ljust(25) + "]" for op in called)
    launches = "".join(f"[cuLaunchKernel>{n}]".ljust(26) for n in range(1, 25))
    kernels = "".join(f"[k<{n}]".ljust(26) for n in range(1, 25))
    wide = len(calls) + 40
    frames = (
        ("torch/optim/optimizer.py(9): wrapper by main.py(5): train", wide - 1),
        (f"Optimizer.step#{name}.step", wide - 3),
        (f"{file}(7): step", wide - 5),
    )
    around = [
        f"        host  {' ' * (at + 1)}[{name.ljust(length - 2)}]"
        for at, (name, length) in enumerate(frames)
        if file or "Optimizer.step" in name
    ]
    return "\n".join(
        (
            f"        host  [ProfilerStep#1{' ' * wide}]",
            *around,
            f"        host      {calls}",
            f"        host       {launches}",
            f"        gpu 7             {kernels}",
        )
    )


@pytest.mark.parametrize(
    ("file", "fused", "only_named"),
    [
        ("torch/optim/adamw.py", True, False),
        ("lion/adamw.py", False, False),
        ("", True, True),
    ],
)
def test_an_optimizer_may_only_have_the_name_of_one_of_torchs(
    file: str, *, fused: bool, only_named: bool
) -> None:
    (finding,) = drawn_findings(updated(file, "aten::addcdiv_"), "LCH003")

    assert ("pass fused=True" in finding.advice) == fused
    assert ("check that it is of torch.optim" in finding.advice) == only_named


@pytest.mark.parametrize(
    ("file", "findings"), [("torch/optim/adam.py", 1), ("lion/adamw.py", 0), ("", 1)]
)
def test_a_foreach_optimizer_of_others_has_no_fused_one(
    file: str, findings: int
) -> None:
    drawing = updated(file, "aten::_foreach_add_")

    assert len(drawn_findings(drawing, "LCH004")) == findings


_ADAM = tuple(
    f"aten::_foreach_{op}" for op in ("lerp_", "addcmul_", "sqrt", "addcdiv_")
)


@pytest.mark.parametrize(
    ("file", "name", "advice"),
    [
        ("torch/optim/adam.py", "Adam", "pass fused=True to torch.optim.Adam,"),
        ("torch/optim/adam.py", "Mine", "Mine is a subclass of Adam: pass fused=True"),
        ("torch/optim/nadam.py", "Mine", None),
        ("mine/adam.py", "Mine", None),
        ("", "Mine", None),
    ],
)
def test_a_subclass_of_adam_is_known_by_its_operators_and_torchs_step(
    file: str, name: str, advice: str | None
) -> None:
    findings = drawn_findings(updated(file, *_ADAM, name=name), "LCH004")

    assert [finding.advice.startswith(advice or "-") for finding in findings] == (
        [True] if advice else []
    )


def test_a_subclass_of_adam_that_updates_one_by_one_is_told_of_the_fused_one() -> None:
    drawing = updated("torch/optim/adam.py", "aten::addcdiv_", name="Mine")

    (finding,) = drawn_findings(drawing, "LCH003")

    assert finding.advice.startswith("Mine is a subclass of Adam")
    assert "pass fused=True" in finding.advice


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("def main():\n    self.opt = torch.optim.AdamW(\n        p)\n", 2),
        ("def main():\n    a = AdamW(p)\n    b = AdamW(q)\n", None),
        ("def main():\n    opt = AdamW(p)\n    b = AdamW(q)\n    opt.step()\n", None),
        ("def main():\n    return SGD(p)\n", None),
    ],
)
def test_the_argument_of_an_optimizer_is_named_where_it_is_made(
    source: str, line: int | None
) -> None:
    drawing = with_caller(updated("torch/optim/adam.py", *_ADAM))
    step = "def train():\n    pass\n\n\n\n\n"

    (finding,) = sourced_findings(
        drawing, {"made.py": source, "main.py": step}, "LCH004"
    )

    place, label = finding.place, finding.evidence[0].label
    made = ("made.py", line, "main", "step")
    there = ("main.py", 5, "train", "ops")
    assert (place.file, place.line, place.function, label) == (made if line else there)


def test_of_several_optimizers_the_one_whose_step_is_called_is_named() -> None:
    source = """
        def train(self):
            self.b = AdamW(q)
            self.a = AdamW(p)

            self.a.step()
    """
    drawing = with_caller(updated("torch/optim/adam.py", *_ADAM))

    (finding,) = sourced_findings(drawing, {"main.py": source}, "LCH004")

    assert (finding.place.line, finding.place.begins) == (3, 1)
    assert finding.evidence[0].name == "train (main.py:5)"


def with_caller(drawing: str) -> str:
    """Draw the program's function that calls the optimizer, too."""
    step = drawing.splitlines()
    width = len(step[0]) - len("        host   [")
    step.insert(1, f"        host  [{'main.py(1): train'.ljust(width)}]")
    return "\n".join(step)
