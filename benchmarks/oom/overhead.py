"""Overhead of watching for OOM per step, in alternating blocks of one process.

``python benchmarks/oom/overhead.py OUT.json [PROGRAM ...]`` on a machine with a GPU;
needs torch and the standard library only. Three programs: a GPU-bound transformer, a
host-bound MLP of many small layers, and a convolutional network. For each, blocks of
steps without anything, with the allocator's history as it is while it is on and as
``collect`` has it after its first steps, and with the watch for slow steps take turns.
What the resting history does in a step takes microseconds, less than the noise of such
blocks: it is measured alone, too, in a loop of an optimizer's empty steps.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Callable

COLLECT = Path(__file__).resolve().parents[2] / "collect"
ROUNDS, WARMUP = 8, 10
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
LIMITS = {"history": 0.01, "rested": 0.01, "watch": 0.02}
RESTS_AFTER = 64  # steps: collect looks at the memory after every 16 from 50 on


def collect(name: str) -> Any:  # noqa: ANN401 - a module of collect/
    """Import a module of collect/ as the launcher does."""
    package = "_traceq_collect"
    if package not in sys.modules:
        spec = ModuleSpec(package, loader=None, is_package=True)
        spec.submodule_search_locations = [str(COLLECT)]
        sys.modules[package] = module_from_spec(spec)
    return import_module(f"{package}.{name}")


def transformer() -> Callable[[], None]:
    """Return a step that the GPU bounds."""
    layer = nn.TransformerEncoderLayer(1024, 16, 4096, batch_first=True)
    return training(nn.TransformerEncoder(layer, 4), torch.randn(8, 512, 1024))


def small_layers() -> Callable[[], None]:
    """Return a step that the host bounds."""
    layers = [nn.Sequential(nn.Linear(128, 128), nn.ReLU()) for _ in range(64)]
    return training(nn.Sequential(*layers), torch.randn(64, 128))


def convolutions() -> Callable[[], None]:
    """Return a step of a convolutional network."""
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 3, padding=1)]
    for _ in range(12):
        layers += [nn.BatchNorm2d(64), nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1)]
    return training(nn.Sequential(*layers), torch.randn(32, 3, 112, 112))


def training(model: nn.Module, x: torch.Tensor) -> Callable[[], None]:
    """Return a step of a training."""
    model, x = model.to(DEVICE), x.to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def seconds(step: Callable[[], None], steps: int) -> float:
    """Return the seconds of a step, over a block of them."""
    wait()
    began = time.perf_counter()
    for _ in range(steps):
        step()
    wait()
    return (time.perf_counter() - began) / steps


def wait() -> None:
    """Wait for the GPU."""
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def watched(step: Callable[[], None], steps: int, what: str) -> float:
    """Return the seconds of a step while something watches."""
    if what == "history" and DEVICE == "cuda":
        memory = collect("agent.memory_history")
        history = memory.MemoryHistory(entries=100_000, context="alloc")
        try:
            return seconds(step, steps)
        finally:
            history.stop()
    if what == "rested" and DEVICE == "cuda":
        oom = collect("agent.out_of_memory")
        history = oom.OutOfMemory(None, lambda: False, lambda: 0)
        history.install()
        try:
            for _ in range(RESTS_AFTER):
                step()
            return seconds(step, steps)
        finally:
            history.remove()
    if what == "watch":
        watch = collect("agent.slow_steps").SlowSteps(1.5)
        watch.install()

        def ends() -> None:
            step()
            watch.boundary()

        try:
            return seconds(ends, steps)
        finally:
            watch.remove()
    return seconds(step, steps)


def resting_us() -> float:
    """Return what the resting history adds to an optimizer's step, in microseconds."""
    optimizer = torch.optim.SGD([torch.zeros(1, device=DEVICE)], lr=0.1)
    history = collect("agent.out_of_memory").OutOfMemory(None, lambda: False, lambda: 0)

    def block() -> float:
        return seconds(optimizer.step, 100 * RESTS_AFTER)

    plain = min(block() for _ in range(5))
    history.install()
    for _ in range(RESTS_AFTER):
        optimizer.step()
    try:
        return 1e6 * (min(block() for _ in range(5)) - plain)
    finally:
        history.remove()


def measure(make: Callable[[], Callable[[], None]]) -> dict[str, Any]:
    """Return the median of the overheads of each kind, against the blocks around."""
    step = make()
    for _ in range(WARMUP):
        step()
    steps = max(10, min(200, round(0.4 / seconds(step, 10))))
    shares: dict[str, list[float]] = {what: [] for what in ("plain", *LIMITS)}
    base = []
    for _ in range(ROUNDS):
        for what, values in shares.items():
            before = seconds(step, steps)
            during = watched(step, steps, what)
            after = seconds(step, steps)
            base += [before, after]
            values.append(2 * during / (before + after) - 1)
    return {
        "step_ms": round(1000 * statistics.median(base), 4),
        **{what: summary(values) for what, values in shares.items()},
    }


def summary(shares: list[float]) -> dict[str, float]:
    """Return the median share, and the standard error of the mean."""
    return {
        "share": round(statistics.median(shares), 5),
        "error": round(statistics.stdev(shares) / len(shares) ** 0.5, 5),
    }


def main(out: Path, names: list[str]) -> None:
    """Measure the programs and say which limits hold."""
    results: dict[str, Any] = {"resting_us": round(resting_us(), 2)}
    print("resting_us", results["resting_us"], flush=True)
    for program in (transformer, small_layers, convolutions):
        name = program.__name__
        if names and name not in names:
            continue
        row = results[name] = measure(program)
        out.write_text(json.dumps(results, indent=1) + "\n")
        print(name, json.dumps(row), flush=True)
        for what, limit in LIMITS.items():
            holds = "holds" if row[what]["share"] <= limit else "DOES NOT HOLD"
            print(f"  {what} <= {limit:.0%}: {holds} ({row[what]['share']:.2%})")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
