"""Trials whose result is known: no effect, planted effects, restarts; torch is enough.

    python benchmarks/ledger/planted.py trials [--seconds 280] [--cpu]
    python benchmarks/ledger/planted.py restarts [--cpu]

``trials`` makes trials of collect in one process, of a step of 100 equal parts. Of
every seven trials four have no effect, and one each has a remedy that leaves 2, 5 or 20
parts out; 40 without effect are about 70 trials. Prints, as JSON, how many controls and
remedies without effect were called different, and how many planted effects have their
sign, and their size within 20% or twice the noise. It ends when the time is over.

``restarts`` tries two remedies in each of two programs, in one process, and measures
the same changes in processes that are started with them; prints both savings, as
shares of the step.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from collect.launcher import outcomes  # noqa: E402
from collect.shared import differences  # noqa: E402
from collect.trial.trial import Trial  # noqa: E402

PARTS = 100
EFFECTS = (0, 2, 0, 5, 0, 20, 0)  # parts that the remedy leaves out, in turns
WITHOUT = 40  # trials without effect, after which it ends
TRIAL_S = 3.5  # of a trial, at most
REMEDY = "set_to_none"  # the program can tell that it is on, and it costs nothing
RESTARTS = 3
WARM, TIMED = 20, 60  # steps of a started process


class Planted:
    """A step whose remedy leaves some parts of its work out."""

    def __init__(self, device: str) -> None:
        size = 1024 if device == "cuda" else 48
        self.weight = torch.nn.Parameter(torch.ones(1, device=device))
        self.optimizer = torch.optim.SGD([self.weight], lr=1e-6)
        self.matrix = torch.randn(size, size, device=device)
        self.out = torch.empty_like(self.matrix)
        self.parts = 0

    def step(self) -> None:
        """Do all parts; without some if gradients are set to None."""
        self.optimizer.zero_grad(set_to_none=False)
        less = self.parts if self.weight.grad is None else 0
        loss: Any = (self.weight * 2).sum()
        loss.backward()
        self.optimizer.step()
        for _ in range(PARTS - less):
            torch.mm(self.matrix, self.matrix, out=self.out)


def tried(program: Planted, place: Path) -> dict[str, Any]:
    """Return the outcomes of one trial of collect in this process."""
    session = SimpleNamespace(
        agreement=None,
        schedule=SimpleNamespace(seen=0),
        rank=SimpleNamespace(folder=place),
        source=SimpleNamespace(of="SGD"),
        steps_by=lambda: "optimizer",
        report=lambda _: None,
    )
    settings = {
        "deadline": time.time() + TRIAL_S,
        "remedies": [REMEDY],
        "only": [REMEDY],
        "run": 1,
        "previous": "",
        "restart": None,
        "awaits_findings": False,
        "allow": False,
        "record": False,
    }
    program.weight.grad = torch.zeros_like(program.weight)
    trial = Trial(session, settings, place / "rank-0.json")
    for _ in trial.run():
        program.step()
        session.schedule.seen += 1
    return outcomes.outcomes(trial.state, {})


def trials(seconds: float, device: str) -> dict[str, Any]:
    """Make trials until there are enough, or the time is over."""
    program = Planted(device)
    until = time.monotonic() + seconds
    result: dict[int, list[dict[str, Any]]] = {
        parts: [] for parts in sorted({*EFFECTS})
    }
    controls: list[dict[str, Any] | None] = []
    longest = 0.0
    with tempfile.TemporaryDirectory() as place:
        while len(result[0]) < WITHOUT and time.monotonic() + longest < until:
            began = time.monotonic()
            program.parts = EFFECTS[len(controls) % len(EFFECTS)]
            report = tried(program, Path(place))
            (entry,) = report["remedies"]
            entry["step_ms"] = report["as_it_is"]["ms"]
            result[program.parts].append(entry)
            controls.append(report["control"])
            longest = max(longest, time.monotonic() - began)
    known = [control for control in controls if control is not None]
    same = [item for item in known if item["outcome"] == differences.NO_DIFFERENCE]
    return {
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "torch": torch.__version__,
        "trials": len(controls),
        "controls_measured": len(known),
        "controls_without_difference": len(same),
        "effects": {f"{parts}%": counted(result[parts], parts) for parts in result},
    }


def counted(entries: list[dict[str, Any]], parts: int) -> dict[str, Any]:
    """Return how many trials of an effect were right."""
    names = [entry["outcome"] for entry in entries]
    signs = [entry for entry in entries if entry["ms"] is not None and entry["ms"] < 0]
    return {
        "trials": len(entries),
        "outcomes": {name: names.count(name) for name in sorted({*names})},
        "right_sign": len(signs) if parts else None,
        "right_size": sum(_has_size(entry, parts) for entry in entries)
        if parts
        else None,
        "shares": [entry["share"] for entry in entries],
        "noises": [_share(entry["smallest_ms"], entry["step_ms"]) for entry in entries],
    }


def _share(ms: float | None, step_ms: float) -> float | None:
    return None if ms is None else round(ms / step_ms, 4)


def _has_size(entry: dict[str, Any], parts: int) -> bool:
    if entry["ms"] is None or entry["smallest_ms"] is None:
        return False
    saved = entry["step_ms"] * parts / PARTS
    allowed = max(0.2 * saved, 2 * entry["smallest_ms"])
    return bool(abs(-entry["ms"] - saved) <= allowed)


# Restarts.


def train(name: str, changes: list[str], device: str, steps: int) -> None:
    """Train a program of this name; print the median step if its steps are limited."""
    wide, layers = (2048, 8) if name == "wide" else (64, 100)
    if device == "cpu":
        wide //= 8
    if "tf32" in changes:
        torch.set_float32_matmul_precision("high")
    model = torch.nn.Sequential(
        *(torch.nn.Linear(wide, wide, device=device) for _ in range(layers))
    )
    flags = {"foreach": "foreach_optimizer" in changes}
    if "fused_optimizer" in changes:
        flags = {"fused": True}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, **flags)
    data = torch.randn(1024 if name == "wide" else 64, wide, device=device)
    times = []
    for number in range(steps or 10**9):
        optimizer.zero_grad()
        model(data).square().mean().backward()
        optimizer.step()
        if not steps:
            continue
        if device == "cuda":
            torch.cuda.synchronize()
        if number >= WARM - 1:
            times.append(time.perf_counter())
    print(statistics.median(b - a for a, b in itertools.pairwise(times)))


def restarts(device: str) -> list[dict[str, Any]]:
    """Return each remedy's saving within one process, and between processes."""
    names = ["tf32" if device == "cuda" else "foreach_optimizer", "fused_optimizer"]
    rows = []
    for program in ("wide", "deep"):
        command = [sys.executable, __file__, "run", program]
        command += ["--cpu"] if device == "cpu" else []
        inside = _inside(command, names)
        times: dict[str, list[float]] = {"": [], **{name: [] for name in names}}
        for number in range(RESTARTS):
            order = list(times) if number % 2 == 0 else list(reversed(times))
            for name in order:
                words = [*command, "--steps", str(WARM + TIMED), "--with", name]
                done = subprocess.run(words, capture_output=True, text=True, check=True)
                times[name].append(float(done.stdout))
        plain = statistics.median(times[""])
        for name in names:
            share = statistics.median(times[name]) / plain - 1
            entry = inside[name]
            figures = ("outcome", "why", "share", "n", "half_width_ms")
            rows.append(
                {
                    "program": program,
                    "remedy": name,
                    "step_ms": plain * 1000,
                    "between_processes": share,
                    "within": {key: entry[key] for key in figures},
                }
            )
    return rows


def _inside(command: list[str], names: list[str]) -> dict[str, Any]:
    """Return the outcomes of remedies in one process, by name."""
    with tempfile.TemporaryDirectory() as place:
        words = ["--out", place, "--name", "run", "--minutes", "1.5", "--no-restart"]
        words += ["--no-record", "--only", ",".join(names), "--quiet"]
        start = [sys.executable, str(ROOT / "collect"), "try"]
        done = subprocess.run(
            [*start, *words, "--", *command],
            capture_output=True,
            text=True,
            check=False,
        )
        file = Path(place, "run", "try.json")
        if done.returncode or not file.is_file():
            sys.exit(done.stderr[-2000:])
        report = json.loads(file.read_text(encoding="utf-8"))
    return {remedy["remedy"]: remedy for remedy in report["remedies"]}


def main() -> None:
    """Run what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("trials", "restarts", "run"))
    parser.add_argument("program", nargs="?", default="wide")
    parser.add_argument("--seconds", type=float, default=280.0)
    parser.add_argument("--steps", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--with", dest="changes", default="", help=argparse.SUPPRESS)
    parser.add_argument("--cpu", action="store_true", help="without a GPU")
    words = parser.parse_args()
    device = "cpu" if words.cpu else "cuda"
    if words.what == "run":
        changes = words.changes.split(",")
        train(words.program, changes, device, words.steps)
        return
    done = trials(words.seconds, device) if words.what == "trials" else restarts(device)
    print(json.dumps(done, indent=1))


if __name__ == "__main__":
    main()
