"""One change of a program, switched on and off in alternating blocks of its steps.

    python .../fresh/alternate.py CHANGES.py [--only A,B] -- train.py --epochs 9

runs in the program's folder. CHANGES.py has ``CHANGES``, a dict of (on, off) functions
by name, which are called between steps of the running program, and, where the step is
not one step of the optimizer, ``EVERY`` (optimizer steps of one step) or
``install(step)``, which makes the program call ``step`` at the end of each step. The
program warms up; then blocks of a change go off, on, on, off. The GPU is waited for at
the ends of blocks alone. A line of JSON comes last, and the program ends.

With ``--turns FILE``, programs that were started together wait for their turn at their
first step, so that one starts while another is measured. With ``--after N`` the warm-up
begins after N steps, so that ``collect`` can record them first. Needs torch alone.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import runpy
import statistics
import sys
import time
from importlib.util import module_from_spec, spec_from_file_location
from itertools import pairwise
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    Change = tuple[Callable[[], None], Callable[[], None]]

WARM_S, BLOCK_S, LEAST, SETTLE = 4.0, 0.5, 8, 4


class Alternation:
    """Switches changes, and times the blocks."""

    def __init__(
        self,
        changes: dict[str, Change],
        names: list[str],
        chosen: argparse.Namespace,
    ) -> None:
        """``names`` of the changes are tried in this order, ``--rounds`` times each."""
        self.changes = changes
        self.name = Path.cwd().name
        order = (False, True, True, False) * chosen.rounds
        self.plan = [(name, on) for name in names for on in order]
        self.blocks: list[dict[str, Any]] = []
        self.errors: list[str] = []
        self.began = time.perf_counter()
        self.steps = 0
        self.length = 0
        self.settle = 0
        self.laps: list[float] = []
        self.first: float | None = None
        self.after: int = chosen.after
        self.warm_s = WARM_S / 4 if self.after else WARM_S
        self.turns: Path | None = chosen.turns
        self.turn: IO[str] | None = None

    def step(self) -> None:
        """End a step of the program."""
        if self.turns is not None and self.turn is None:
            self.turn = self.turns.open("a")
            fcntl.flock(self.turn, fcntl.LOCK_EX)  # until the process ends
        if self.after:
            self.after -= 1
            if self.after == 0:
                self.wait()
            return
        if self.first is None:
            self.first = time.perf_counter()
        now = time.perf_counter()
        self.steps += 1
        if not self.length:
            if now - self.first > self.warm_s:
                each = (now - self.first) / self.steps
                self.length = max(LEAST, round(BLOCK_S / each))
                self.switch(first=True)
            return
        if self.settle:
            self.settle -= 1
            if not self.settle:
                self.laps = [self.wait()]
            return
        self.laps.append(now)
        if len(self.laps) > self.length:
            self.laps[-1] = self.wait()
            self.end()

    def wait(self) -> float:
        """Wait for the GPU; return when that is."""
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return time.perf_counter()

    def end(self) -> None:
        """Note the block and begin the next, or end."""
        name, on = self.plan.pop(0)
        laps = [b - a for a, b in pairwise(self.laps)]
        mean = (self.laps[-1] - self.laps[0]) / len(laps)
        self.blocks.append(
            {
                "variant": name,
                "on": on,
                "steps": len(laps),
                "mean_ms": round(1000 * mean, 4),
                "median_ms": round(1000 * statistics.median(laps), 4),
            }
        )
        if on and (not self.plan or self.plan[0] != (name, on)):
            self.call(name, on=False)
        if not self.plan:
            print(json.dumps(self.report()), flush=True)
            os._exit(0)
        self.switch(first=False)

    def switch(self, *, first: bool) -> None:
        """Begin the block that is next."""
        name, on = self.plan[0]
        if on and not (
            self.blocks and self.blocks[-1]["variant"] == name and self.blocks[-1]["on"]
        ):
            self.call(name, on=True)
        new = on and not any(
            block["variant"] == name and block["on"] for block in self.blocks
        )
        self.settle = SETTLE * (5 if first or new else 1)

    def call(self, name: str, *, on: bool) -> None:
        """Switch a change; one that fails is left out."""
        try:
            self.changes[name][0 if on else 1]()
        except Exception as error:  # noqa: BLE001 - of the change
            self.errors.append(f"{name}: {type(error).__name__}: {error}"[:300])
            self.plan = [row for row in self.plan if row[0] != name] or [(name, False)]

    def report(self) -> dict[str, Any]:
        """Return what was measured, and all blocks."""
        device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
        return {
            "program": self.name,
            "seconds": round(time.perf_counter() - self.began, 1),
            "device": device,
            "torch": torch.__version__,
            "steps": self.steps,
            "variants": {
                name: {
                    kind: self.compared(name, kind) for kind in ("mean_ms", "median_ms")
                }
                for name in dict.fromkeys(block["variant"] for block in self.blocks)
            },
            "errors": self.errors,
            "blocks": self.blocks,
        }

    def compared(self, name: str, kind: str) -> dict[str, Any] | None:
        """Return the median block without and with a change."""
        off, on = (
            [b[kind] for b in self.blocks if b["variant"] == name and b["on"] is state]
            for state in (False, True)
        )
        if not off or not on:
            return None
        a, b = statistics.median(off), statistics.median(on)
        return {
            "a": a,
            "b": b,
            "saves": round(a - b, 4),
            "a_range": [min(off), max(off)],
            "b_range": [min(on), max(on)],
            "overlap": max(min(off), min(on)) <= min(max(off), max(on)),
        }


def main() -> None:
    """Run the program with the changes."""
    split = sys.argv.index("--")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("changes", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--turns", type=Path)
    parser.add_argument("--after", type=int, default=0)
    chosen = parser.parse_args(sys.argv[1:split])
    spec = spec_from_file_location("changes", chosen.changes)
    if spec is None or spec.loader is None:
        sys.exit(f"{chosen.changes} is no Python file")
    changes: Any = module_from_spec(spec)
    sys.path.insert(0, str(Path.cwd()))
    spec.loader.exec_module(changes)
    names = [part for part in chosen.only.split(",") if part] or [*changes.CHANGES]
    alternation = Alternation(changes.CHANGES, names, chosen)
    if hasattr(changes, "install"):
        changes.install(alternation.step)
    else:
        from torch.optim.optimizer import register_optimizer_step_post_hook  # noqa: PLC0415

        count = 0

        def stepped(*_: object) -> None:
            nonlocal count
            count += 1
            if count % getattr(changes, "EVERY", 1) == 0:
                alternation.step()

        register_optimizer_step_post_hook(stepped)
    sys.argv = sys.argv[split + 1 :]
    sys.path.insert(0, str(Path(sys.argv[0]).resolve().parent))
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
