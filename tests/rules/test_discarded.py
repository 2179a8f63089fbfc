"""KRN011: gradients that are cleared before an optimizer reads them, under torch."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest
from linting import (
    bundled_rules,
    drawn_findings,
    example_findings,
    findings_of,
    mentions,
)

from traceq.inputs.load_trace import load
from traceq.model.recording import Recording

if TYPE_CHECKING:
    from traceq.linter import Finding

# A step of each program; G makes a fake of noise z, D judges it.
PROGRAMS = {
    "zero before each backward": """
        oD.zero_grad(); judged().backward(); oD.step()
        oG.zero_grad(); fooled().backward(); oG.step()
    """,
    "zero after each step": """
        judged().backward(); oD.step(); oD.zero_grad()
        fooled().backward(); oG.step(); oG.zero_grad(); oD.zero_grad()
    """,
    "zero by the modules": """
        D.zero_grad(); real().backward(); fakes().backward(); oD.step()
        G.zero_grad(); fooled().backward(); oG.step()
    """,
    "zero fills": """
        oD.zero_grad(set_to_none=False); judged().backward(); oD.step()
        oG.zero_grad(set_to_none=False); fooled().backward(); oG.step()
    """,
    "penalty": """
        oD.zero_grad(); judged().backward()
        x = data.clone().requires_grad_()
        (g,) = torch.autograd.grad(D(x).sum(), x, create_graph=True)
        g.square().sum().backward(); oD.step()
        oG.zero_grad(); fooled().backward(); oG.step()
    """,
    "frozen": """
        oD.zero_grad(); judged().backward(); oD.step()
        D.requires_grad_(False)
        oG.zero_grad(); fooled().backward(); oG.step()
        D.requires_grad_(True)
    """,
    "inputs of the backward": """
        oD.zero_grad(); judged().backward(); oD.step()
        oG.zero_grad(); fooled().backward(inputs=[*G.parameters()]); oG.step()
    """,
    "accumulation": """
        judged().backward(); judged().backward(); oD.step(); oD.zero_grad()
        D.requires_grad_(False)
        fooled().backward(); fooled().backward(); oG.step(); oG.zero_grad()
        D.requires_grad_(True)
    """,
    "both are read": """
        oD.zero_grad(); oG.zero_grad()
        judged().backward(); fooled().backward(); oG.step(); oD.step()
    """,
    "two losses": """
        oA.zero_grad(); judged().backward(); fooled().backward(); oA.step()
    """,
    "shared": """
        oS.zero_grad(); judged().backward(); oS.step()
        oG.zero_grad(); fooled().backward(); oG.step(); oU.step()
    """,
    "read by the program": """
        oD.zero_grad(); judged().backward(); oD.step()
        oG.zero_grad(); fooled().backward(); oG.step()
        norms = [p.grad.norm() for p in D.parameters()]
    """,
    "one model": """
        oG.zero_grad(); G(z()).square().mean().backward(); oG.step()
    """,
}
SET_UP = """
import sys, torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule
torch.manual_seed(0); torch.set_num_threads(1)
class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(8, 32), nn.Linear(32, 256)
    def forward(self, z):
        return self.two(self.one(z).relu()).view(-1, 1, 16, 16)
class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.line = nn.Conv2d(1, 8, 3), nn.Linear(8 * 14 * 14, 3)
    def forward(self, x):
        return self.line(self.conv(x).relu().flatten(1))
G, D = Generator(), Discriminator()
SGD, Adam = torch.optim.SGD, torch.optim.Adam
optimizers = {
    "foreach": lambda p: Adam(p, foreach=True),
    "loop": lambda p: Adam(p, foreach=False),
    "fused": lambda p: Adam(p, fused=True),
    "sgd": lambda p: SGD(p, lr=0.1, foreach=True),
}
make = optimizers[sys.argv[1]]
oG, oD = make(G.parameters()), make(D.parameters())
oA = make([*G.parameters(), *D.parameters()])
oS = make([*D.conv.parameters(), *D.line.parameters()])
oU = make([*D.parameters(), *G.one.parameters()])
data = torch.randn(4, 1, 16, 16)
z = lambda: torch.randn(4, 8)
real = lambda: D(data).mean()
fakes = lambda: -D(G(z()).detach()).mean()
judged = lambda: real() + fakes()
fooled = lambda: D(G(z())).mean()
"""
RUN = """
step()
with profile(
    activities=[ProfilerActivity.CPU],
    record_shapes=True,
    with_stack=sys.argv[3] == "stacks",
    schedule=schedule(wait=0, warmup=1, active=3, repeat=1),
) as prof:
    for _ in range(4):
        step()
        prof.step()
prof.export_chrome_trace(sys.argv[2])
"""


@cache
def findings(
    program: str, optimizer: str = "foreach", stacks: str = "stacks"
) -> tuple[Finding, ...]:
    """Return what KRN011 finds in a program that torch ran on the CPU."""
    pytest.importorskip("torch")
    body = "\n".join(f"    {line.strip()}" for line in PROGRAMS[program].splitlines())
    with TemporaryDirectory() as folder:
        script, trace = Path(folder, "gan.py"), Path(folder, "trace.json")
        script.write_text(f"{SET_UP}\ndef step():\n{body}\n{RUN}", encoding="utf-8")
        command = [sys.executable, str(script), optimizer, str(trace), stacks]
        subprocess.run(command, check=True, capture_output=True, cwd=folder)
        json.loads(trace.read_text(encoding="utf-8"))
        recorded = load(trace, cache=False)
    return findings_of(Recording("gan", recorded), "KRN011")


WASTEFUL = [
    "zero before each backward",
    "zero after each step",
    "zero by the modules",
    "zero fills",
    "penalty",
]
RIGHT = [
    "frozen",
    "inputs of the backward",
    "accumulation",
    "both are read",
    "two losses",
    "shared",
    "one model",
]


@pytest.mark.slow
@pytest.mark.parametrize("program", WASTEFUL)
def test_gradients_of_a_discriminator_in_the_generators_backward_are_discarded(
    program: str,
) -> None:
    (finding,) = findings(program)

    assert mentions(finding, "Discriminator", "2 weights")
    assert "those of Generator" in finding.advice
    assert "requires_grad_(False)" in finding.advice
    assert "inputs=" in finding.advice
    assert "first check" not in finding.advice
    assert finding.effort == "edit"


@pytest.mark.slow
@pytest.mark.parametrize("program", RIGHT)
def test_gradients_that_are_read_are_not(program: str) -> None:
    assert not findings(program)


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["loop", "fused", "sgd"])
def test_whichever_optimizer_reads_them(optimizer: str) -> None:
    assert findings("zero before each backward", optimizer)
    assert not findings("both are read", optimizer)


@pytest.mark.slow
def test_without_stacks_they_are_told_by_their_shapes() -> None:
    (finding,) = findings("zero before each backward", stacks="none")

    assert mentions(finding, "2 weights")
    assert not findings("frozen", stacks="none")


@pytest.mark.slow
def test_what_else_may_read_them_is_to_be_checked() -> None:
    (finding,) = findings("read by the program")

    assert "first check" in finding.advice
    assert "linalg_vector_norm" in finding.advice


def test_the_rule_is_on_trial() -> None:
    assert bundled_rules()["KRN011"].preview


def test_the_kernels_of_weight_gradients_alone_are_removed() -> None:
    (finding,) = example_findings("KRN011", 0)

    removed = [(fix.kernel_share, len(fix.kernels)) for fix in finding.fixes]
    assert removed == [(1.0, 0), (1.0, 2)]


@pytest.mark.parametrize(
    ("kernel", "shares"),
    [("wgrad", [1.0, 1.0]), ("dgrad", [1.0]), ("scudnn", [1.0, 0.5])],
)
def test_of_a_convolution_the_part_of_the_weights_is_removed(
    kernel: str, shares: list[float]
) -> None:
    example = bundled_rules()["KRN011"].examples[0]
    name = "aten::convolution_backward"
    drawing = example.drawing.replace("MmBackward0         ", "ConvolutionBackward0")
    drawing = drawing.replace("[aten::mm d        ]        ", f"[{name}]")
    for number in range(1, 7):
        drawing = drawing.replace(
            f"[gemm<{number}]    ", f"[{kernel}<{number}]".ljust(12)
        )

    (finding,) = drawn_findings(drawing, "KRN011", args=example.args)

    assert [fix.kernel_share for fix in finding.fixes] == shares
