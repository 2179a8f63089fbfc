"""LCH001: advice by what an iteration of the loop leaves for the next one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from linting import drawn_findings, sourced_findings

if TYPE_CHECKING:
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


def test_a_loop_whose_iterations_cannot_be_one_keeps_a_launch_of_each() -> None:
    alone, state = "out.append(x[t].tanh().abs())", "h = h.tanh().abs() + x[t]"
    (independent, *_), (dependent, *_) = (
        looped(f"    for t in range(9):\n        {body}", "tanh", "abs").fixes
        for body in (alone, state)
    )

    assert independent.host_share == 1
    assert dependent.host_share == pytest.approx(0.5)


def updated(file: str, op: str) -> str:
    """Draw two steps of AdamW that call an op many times, in a function of a file."""
    calls = "".join(f"[{op}".ljust(25) + "]" for _ in range(24))
    launches = "".join(f"[cuLaunchKernel>{n}]".ljust(26) for n in range(1, 25))
    kernels = "".join(f"[k<{n}]".ljust(26) for n in range(1, 25))
    wide = len(calls) + 40
    frames = (
        ("torch/optim/optimizer.py(9): wrapper", wide - 1),
        ("Optimizer.step#AdamW.step", wide - 3),
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
