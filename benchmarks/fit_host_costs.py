"""Fit of the host's event costs to steps measured without the profiler.

    python benchmarks/fit_host_costs.py [PAIRS...]

Without files these are pairs.json and pairs_held_out.json beside this script.

The replay estimates the host's time without the profiler from the events that were
recorded: nanoseconds for a Python frame, an operator, a runtime call, and what
recording adds to each (traceq/analysis/base/assumptions.py). This looks for the costs
with which the replayed steps of all captures of the first file come closest to the
measured ones: the mean square of the logarithms of their ratios, by changing one cost
at a time by ever smaller factors. The other files are not fitted on, only compared.

It prints the fitted and the assumed costs, and the error with each over the captures
whose step depends on the host. It changes nothing: whoever copies the fit into
assumptions.py runs savings.py before and after. Operators and calls mostly come
together, so the captures tell what both take better than what each does. All captures
have stacks, so what an operator costs without them cannot be fitted here.
"""

from __future__ import annotations

import statistics
import sys
from dataclasses import dataclass
from functools import cached_property
from math import exp, log
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from captures import read_pairs

from traceq.analysis.base.assumptions import GPU_BOUND
from traceq.analysis.base.steady import steady_steps
from traceq.analysis.replay.host_costs import ASSUMED_COSTS, HostCosts
from traceq.analysis.replay.model import StepModel, build_model, with_costs
from traceq.analysis.replay.simulation import Replay, TimeScale
from traceq.inputs.load_trace import load
from traceq.model.run import HostCost

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceq.model.trace import Trace

_MS = 1_000_000
_FACTORS = (1.6, 1.25, 1.1, 1.04)
_EVENTS = ("frame", "op", "call")


@dataclass(frozen=True)
class Capture:
    """A recorded program, and what a step of it takes without the profiler."""

    name: str
    trace: Trace
    model: StepModel
    step_ns: int

    def estimate_ns(self, costs: HostCosts) -> float:
        """Return what the replay takes for a step with these costs."""
        replay = Replay(with_costs(self.model, self.trace, costs))
        return replay.run(scale=TimeScale()).step_ns

    @cached_property
    def host_bound(self) -> bool:
        """Whether the step depends on the host: the GPU alone would be faster."""
        gpu_alone = Replay(self.model).run(scale=TimeScale(host=0)).step_ns
        return gpu_alone < GPU_BOUND * self.step_ns

    def error(self, costs: HostCosts) -> float:
        """Return the logarithm of the estimate over the measured step."""
        return log(self.estimate_ns(costs) / self.step_ns)


class Cost(NamedTuple):
    """One number of the costs."""

    event: str
    part: str

    def of(self, costs: HostCosts) -> int:
        """Return the number."""
        result: int = getattr(getattr(costs, self.event), self.part)
        return result

    def scaled(self, costs: HostCosts, factor: float) -> HostCosts:
        """Return the costs with this number scaled."""
        old: HostCost = getattr(costs, self.event)
        new = old._replace(**{self.part: max(1, round(self.of(costs) * factor))})
        return HostCosts(**{**vars(costs), self.event: new})


COSTS = [Cost(event, part) for event in _EVENTS for part in HostCost._fields]


def read(file: Path) -> list[Capture]:
    """Return the captures that a file of pairs names and that have a trace."""
    pairs = read_pairs(file)
    known = {name: pair.captures for pair in pairs for name in (pair.sick, pair.twin)}
    results = []
    for name, captures in known.items():
        if captures.trace(name).is_file():
            trace = load(captures.trace(name))
            model = build_model(trace, steady_steps(trace))
            results.append(Capture(name, trace, model, captures.step_ns(name)))
    return results


def loss(captures: Sequence[Capture], costs: HostCosts) -> float:
    """Return the mean square of the errors."""
    return statistics.fmean(capture.error(costs) ** 2 for capture in captures)


def fitted(captures: Sequence[Capture], costs: HostCosts) -> HostCosts:
    """Return the costs with the least loss that changing one at a time finds."""
    least = loss(captures, costs)
    for factor in _FACTORS:
        improved = True
        while improved:
            improved = False
            for cost in COSTS:
                for change in (factor, 1 / factor):
                    tried = cost.scaled(costs, change)
                    result = loss(captures, tried)
                    if result < least * (1 - 1e-4):
                        costs, least, improved = tried, result, True
        print(f"factor {factor}: loss {least:.5f}", file=sys.stderr)
    return costs


def _errors(captures: Sequence[Capture], costs: HostCosts) -> str:
    off = [abs(exp(capture.error(costs)) - 1) for capture in captures]
    return f"{statistics.median(off):6.1%} {max(off):8.1%}"


def _report(files: Sequence[Path], sets: Sequence[list[Capture]]) -> None:
    fit = fitted(sets[0], ASSUMED_COSTS)
    print(f"{'cost, ns':<30} {'assumed':>8} {'fitted':>8}")
    for cost in COSTS:
        name = f"{cost.event} {cost.part.removesuffix('_ns')}"
        print(f"{name:<30} {cost.of(ASSUMED_COSTS):>8,} {cost.of(fit):>8,}")
    print(f"\n{'error, host-bound captures':<30} {'assumed':>15} {'fitted':>15}")
    print(f"{'':<30} {'median':>6} {'largest':>8} {'median':>6} {'largest':>8}")
    for file, captures in zip(files, sets, strict=True):
        host_bound = [capture for capture in captures if capture.host_bound]
        errors = f"{_errors(host_bound, ASSUMED_COSTS)} {_errors(host_bound, fit)}"
        print(f"{f'{file.stem}, {len(host_bound)} captures':<30} {errors}")
    print(f"\n{'ms a step':<30} {'measured':>8} {'assumed':>8} {'fitted':>8}")
    for captures in sets:
        for item in captures:
            times = (item.step_ns, *map(item.estimate_ns, (ASSUMED_COSTS, fit)))
            print(f"{item.name:<30} " + " ".join(f"{ns / _MS:8.2f}" for ns in times))


if __name__ == "__main__":
    here = Path(__file__).parent
    given = [Path(argument) for argument in sys.argv[1:]]
    given = given or [here / "pairs.json", here / "pairs_held_out.json"]
    _report(given, [read(file) for file in given])
