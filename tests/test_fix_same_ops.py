"""An edit of `traceq fix` runs the same ops as the remedy of `traceq try`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from collecting import WITH_TORCH, Late, module
from fixing import Case, proposal, source

if TYPE_CHECKING:
    from pathlib import Path

torch = Late("torch")
programs = Late("trial.program")
remedies = module("remedies")
pytestmark = WITH_TORCH

OPTIMIZER = """
    import torch
    model = torch.nn.Linear(4, 4)
    opt = torch.optim.AdamW(model.parameters())
    def step():
        opt.zero_grad(set_to_none=False)
        model(torch.ones(2, 4)).sum().backward()
        opt.step()
    """
DISTRIBUTION = """
    import torch
    from torch.distributions import Normal
    def step():
        torch.no_grad()
        return Normal(torch.zeros(3), torch.ones(3)).log_prob(torch.ones(3))
    """


def ops_of(namespace: dict[str, Any]) -> dict[str, int]:
    """Return the ops of a step, with their counts."""
    namespace["step"]()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as p:
        namespace["step"]()
    return {
        key_average.key: key_average.count
        for key_average in p.key_averages()
        if "::" in key_average.key
    }


def program(text: str) -> dict[str, Any]:
    namespace: dict[str, Any] = {}
    exec(compile(text, "train.py", "exec"), namespace)  # noqa: S102 - of this file
    return namespace


@pytest.mark.parametrize(
    ("remedy", "case"),
    [
        (
            "fused_optimizer",
            Case("", "LCH004", "opt.step()", OPTIMIZER, function="step"),
        ),
        ("set_to_none", Case("", "LCH002", "zero_grad", OPTIMIZER, function="step")),
        (
            "validate_args",
            Case("", "SYN001", "Normal(t", DISTRIBUTION, function="step"),
        ),
    ],
)
@pytest.mark.slow
def test_an_edit_runs_the_ops_of_its_remedy(
    remedy: str, case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Another test of this process may have left the checks off.
    distribution = torch.distributions.Distribution
    monkeypatch.setattr(distribution, "_validate_args", True)
    _, edited = proposal(case, tmp_path)
    plain = ops_of(program(source(case.before)))
    namespace = program(source(case.before))
    switch = remedies.load(remedy)
    switch.apply(programs.Program())
    try:
        remedied = ops_of(namespace)
    finally:
        switch.undo(programs.Program())

    assert ops_of(program(edited)) == remedied
    assert remedied != plain
