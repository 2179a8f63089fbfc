"""Programs in many styles, recorded by the real profiler with a GPU drawn to them.

A program defines ``loss`` of what its models return, and has the styles of ``WAYS``.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

from collecting import environment
from on_gpu import on_gpu

import traceq

if TYPE_CHECKING:
    from pathlib import Path

RECORD = """
import sys
import warnings

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function, schedule

warnings.simplefilter("ignore")
torch.manual_seed(0)


def record(name, step, *, stacks=False, memory=False):
    profiler = profile(
        activities=[ProfilerActivity.CPU],
        record_shapes=True,
        with_stack=stacks,
        profile_memory=memory,
        schedule=schedule(wait=0, warmup=1, active=1),
    )
    profiler.start()
    for number in range(2):
        step()
        if not number:
            profiler.step()
    profiler.stop()
    profiler.export_chrome_trace(f"{sys.argv[1]}/{name}.json")
"""

WAYS = """
class Saved(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, module):
        with torch.enable_grad():
            ctx.x = x.detach().requires_grad_()
            ctx.y = module(ctx.x)
        return ctx.y.detach()

    @staticmethod
    def backward(ctx, gradient):
        (result,) = torch.autograd.grad(ctx.y, ctx.x, gradient)
        return result, None


def eager(model, x):
    loss(model(x)).backward()


def inference(model, x):
    with torch.no_grad():
        model(x)


def hooks(model, x):
    def returned(module, inputs, result):
        with record_function("hook"):
            result.register_hook(lambda gradient: gradient * 1)
            return result.view_as(result)

    handles = [module.register_forward_hook(returned) for module in model.modules()]
    eager(model, x)
    for handle in handles:
        handle.remove()


def functional(model, x):
    def loss_of(weights):
        return loss(torch.func.functional_call(model, weights, (x,)))

    torch.func.grad(loss_of)(dict(model.named_parameters()))


def checkpointed(model, x):
    loss(torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False)).backward()


def regions(model, x):
    with record_function("model"):
        eager(model, x)
"""


def ran(folder: Path, program: str) -> str:
    """Run a program that records traces into a folder; return what it prints."""
    file = folder / "program.py"
    file.write_text(RECORD + program)
    done = subprocess.run(
        [sys.executable, str(file), str(folder)],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def loaded(folder: Path, name: str) -> traceq.Trace:
    """Return a recorded trace, with a GPU drawn to it."""
    trace = json.loads((folder / f"{name}.json").read_text())
    file = folder / f"{name}.gpu.json"
    file.write_text(json.dumps(on_gpu(trace)))
    return traceq.load(file, cache=False)
