"""Configurations of a sweep: the numbers of each, over its runs."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Literal, TypeAlias

from msgspec import Struct

from traceq.analysis.base.scaling_laws import label_number
from traceq.common.units import NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from traceq.model.sweep_run import SweepRun

Of: TypeAlias = Literal["steps", "runs"]
NumberUnit: TypeAlias = Literal["ns", "bytes", "share", "per second", ""]
_TERA = 1e12
STEP, MEMORY, RATE, MFU = "step", "peak_memory", "tokens_per_s", "mfu"
_UNITS: dict[str, NumberUnit] = {
    STEP: "ns",
    MEMORY: "bytes",
    RATE: "per second",
    MFU: "share",
    "tflops_per_s": "",
    "tokens": "",
    "flops": "",
    "parameters": "",
}
_STATED = ("tokens", "flops", "params")
"""Own numbers that have a meaning here."""


class Value(Struct, frozen=True):
    """A number of a configuration."""

    mean: float
    std: float | None
    """Standard deviation between the runs; of a single run, over its steps."""
    n: int
    of: Of
    """Things that ``n`` counts, between which the deviation is: steps or runs."""


class Number(Struct, frozen=True):
    """A column: a figure of a run, or a number of the program's own."""

    name: str
    unit: NumberUnit
    own: bool = False


class Configuration(Struct, frozen=True):
    """Runs with the same labels."""

    labels: Mapping[str, str]
    runs: int
    measured: int
    status: str
    """``ok`` if a run was measured, else what happened to the first."""
    reason: str
    values: Mapping[str, Value]


class SweepTable(Struct, frozen=True):
    """A sweep as a table: labels and numbers of each configuration."""

    keys: tuple[str, ...]
    """Labels, those that differ first."""
    numbers: tuple[Number, ...]
    configurations: tuple[Configuration, ...]
    """By their labels, numbers by size, texts as in the grid."""
    grid: Mapping[str, Sequence[str]]
    """Values of labels in the order that the user wrote."""

    def number(self, name: str) -> Number | None:
        """Return the column of this name."""
        return next((number for number in self.numbers if number.name == name), None)

    def different(self) -> list[str]:
        """Return the labels with several values."""
        return [key for key in self.keys if len(self.values_of(key)) > 1]

    def values_of(self, key: str) -> list[str]:
        """Return the values of a label, in order."""
        values = {
            configuration.labels.get(key, "") for configuration in self.configurations
        }
        return sorted(values, key=_order(self.grid.get(key, ())))


def sweep_table(
    runs: Sequence[SweepRun], grid: Mapping[str, Sequence[str]] | None = None
) -> SweepTable:
    """Return the configurations of runs, in the order of their labels."""
    grid = grid or {}
    keys = list(dict.fromkeys(key for run in runs for key in run.labels))
    groups: dict[tuple[str, ...], list[SweepRun]] = {}
    for run in sorted(runs, key=lambda sweep_run: sweep_run.repeat):
        labels = tuple(run.labels.get(key, "") for key in keys)
        groups.setdefault(labels, []).append(run)
    own = dict.fromkeys(
        name for run in runs for name in run.numbers if name not in _STATED
    )
    orders = [_order(grid.get(key, ())) for key in keys]
    ordered = sorted(
        groups.items(),
        key=lambda pair: [
            order(value) for order, value in zip(orders, pair[0], strict=True)
        ],
    )
    configurations = [_configuration(keys, members, own) for _, members in ordered]
    names = [
        *(Number(name, unit) for name, unit in _UNITS.items()),
        *(Number(_own_name(name), "", own=True) for name in own),
    ]
    known = {name for configuration in configurations for name in configuration.values}
    return SweepTable(
        keys=tuple(keys),
        numbers=tuple(name for name in names if name.name in known),
        configurations=tuple(configurations),
        grid=grid,
    )


def _order(grid: Sequence[str]) -> Callable[[str], tuple[bool, float, int, str]]:
    """Return the key that sorts a label's values: numbers first, texts by the grid."""
    places = {value: place for place, value in enumerate(grid)}

    def key(value: str) -> tuple[bool, float, int, str]:
        number = label_number(value)
        place = 0 if number is not None else places.get(value, len(places))
        return (number is None, number or 0.0, place, value)

    return key


def _own_name(name: str) -> str:
    return f"{name} (own)" if name in _UNITS else name


def _configuration(
    keys: Sequence[str], runs: Sequence[SweepRun], own: Iterable[str]
) -> Configuration:
    measured = [run for run in runs if run.ok]
    first = measured[0] if measured else runs[0]
    failed = next((run for run in runs if not run.ok), None)
    values = {}
    for name in _UNITS:
        if value := _value([_figure(run, name) for run in measured]):
            values[name] = value
    for name in own:
        if value := _value([_own_value(run, name) for run in measured]):
            values[_own_name(name)] = value
    return Configuration(
        labels={key: first.labels.get(key, "") for key in keys},
        runs=len(runs),
        measured=len(measured),
        status=first.status,
        reason=failed.reason if failed else "",
        values=values,
    )


def _value(values: Sequence[Value | None]) -> Value | None:
    """Return the number of several runs: their mean, and how far they differ."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    if len(known) == 1:
        return known[0]
    means = [value.mean for value in known]
    return Value(statistics.fmean(means), statistics.stdev(means), len(means), "runs")


def _figure(run: SweepRun, name: str) -> Value | None:
    """Return a figure of one run; a rate has the relative deviation of the step."""
    step = run.step_ns or 0.0
    if name == STEP:
        return Value(step, run.step_std_ns, run.steps, "steps")
    rates = {
        RATE: run.tokens and run.tokens / step * NS_PER_S,
        "tflops_per_s": run.flops and run.flops / step * NS_PER_S / _TERA,
        MFU: run.flops
        and run.peak_tflops
        and run.flops / step * NS_PER_S / (run.peak_tflops * _TERA),
    }
    if name in rates:
        rate = rates[name]
        spread = run.step_std_ns
        std = rate * spread / step if rate and spread is not None else None
        return Value(rate, std, run.steps, "steps") if rate else None
    stated = {
        MEMORY: run.peak_bytes,
        "tokens": run.tokens,
        "flops": run.flops,
        "parameters": run.parameters,
    }[name]
    return None if stated is None else Value(float(stated), None, 1, "runs")


def _own_value(run: SweepRun, name: str) -> Value | None:
    """Return a number of the program's own: the last that a run recorded."""
    number = run.numbers.get(name)
    if number is None or number.last is None:
        return None
    return Value(number.last, None, 1, "runs")
