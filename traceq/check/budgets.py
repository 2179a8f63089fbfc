"""Budgets: limits of the numbers of a fixture, or of a new run."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any

from traceq import toml_text as toml
from traceq.check.numbers import EXACT, KINDS, NOISY, OF_JOBS, Layer, Numbers
from traceq.errors import ConfigError
from traceq.linter.config import number, read_config, refuse_unknown
from traceq.records import dataclass
from traceq.units import size

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

_LAYERS = "layers"
_BACKENDS = "backends"
_CPU = "cpu"
CPU_NAMES = (
    "ops",
    "optimizer-ops",
    "compiled-ops",
    "casts",
    "copies",
    "syncs",
    "graph-breaks",
    "recompiles",
)
"""Numbers of a run without a GPU."""
_TOLERANCE = 0.1
_BYTES = "peak-bytes"
_HEAD = "# What a step of this fixture takes; traceq check holds it to that."
_CPU_HEAD = "# What its program asks for without a GPU; traceq check --run compares."


@dataclass(frozen=True)
class Budget:
    """One number, and how far off it may be, as a share of it."""

    value: float
    tolerance: float = 0.0


@dataclass(frozen=True)
class Budgets:
    """What ``[budgets]`` holds."""

    limits: Mapping[str, Budget] = field(default_factory=dict)
    layers: Mapping[str, Layer] = field(default_factory=dict)
    backends: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Where kernels of a kind come from."""
    cpu: Mapping[str, Budget] = field(default_factory=dict)
    """Of a run without a GPU; the others are of one with."""

    def __len__(self) -> int:
        return len(self.limits) + len(self.layers) + len(self.backends)


@dataclass(frozen=True)
class Breach:
    """A number that differs from its budget."""

    what: str
    """The number's name, or the layer's."""
    text: str
    worse: bool
    """It is higher than allowed."""


def read_budgets(file: Path) -> Budgets:
    """Return the budgets in a fixture's traceq.toml."""
    return budgets_in(read_config(file).budgets, f"{file}: budgets")


def budgets_in(
    table: Mapping[str, Any], where: str, more: Sequence[str] = ()
) -> Budgets:
    """Return the budgets that a table holds; ``more`` are names it may hold beside."""
    found = dict(table)
    layers, backends, cpu = (
        _table(found.pop(key, {}), f"{where}.{key}")
        for key in (_LAYERS, _BACKENDS, _CPU)
    )
    known = (*EXACT, *NOISY, *OF_JOBS, *more, _LAYERS, _BACKENDS, _CPU)
    refuse_unknown(found, known, where)
    refuse_unknown(backends, KINDS, f"{where}.{_BACKENDS}")
    refuse_unknown(cpu, CPU_NAMES, f"{where}.{_CPU}")
    return Budgets(
        {name: _limit(entry, f"{where}.{name}") for name, entry in found.items()},
        {
            name: _layer(entry, f"{where}.{_LAYERS}.{name}")
            for name, entry in layers.items()
        },
        {
            name: _names(entry, f"{where}.{_BACKENDS}.{name}")
            for name, entry in backends.items()
        },
        {name: _limit(entry, f"{where}.{_CPU}.{name}") for name, entry in cpu.items()},
    )


def _table(found: Any, where: str) -> dict[str, Any]:  # noqa: ANN401 - it is checked
    if not isinstance(found, dict):
        msg = f"{where} must be a table"
        raise ConfigError(msg)
    return found


def budgets_for(numbers: Numbers, before: Budgets | None = None) -> Budgets:
    """Return budgets that hold these numbers, as many and as strict as before."""
    if not before:
        limits = {
            name: Budget(value, _TOLERANCE if name in (*NOISY, *OF_JOBS) else 0.0)
            for name, value in numbers.values.items()
        }
        cpu = before.cpu if before is not None else {}
        return Budgets(limits, numbers.layers, numbers.backends, cpu)
    limits = {
        name: Budget(numbers.values[name], limit.tolerance)
        for name, limit in before.limits.items()
        if name in numbers.values
    }
    kept = [name for name in before.layers if name in numbers.layers]
    kinds = [name for name in before.backends if name in numbers.backends]
    return Budgets(
        limits,
        {name: numbers.layers[name] for name in kept},
        {name: numbers.backends[name] for name in kinds},
        before.cpu,
    )


def write_budgets(budgets: Budgets) -> str:
    """Return the content of a fixture's traceq.toml."""
    lines = [_HEAD, "[budgets]", *toml.lines(_limits(budgets.limits))]
    if budgets.backends:
        lines += ["", "[budgets.backends]", *toml.lines(budgets.backends)]
    if budgets.layers:
        layers = {
            name: {"kernels": layer.kernels, "backends": list(layer.backends)}
            for name, layer in budgets.layers.items()
        }
        lines += ["", "[budgets.layers]", *toml.lines(layers)]
    if budgets.cpu:
        lines += ["", _CPU_HEAD, "[budgets.cpu]", *toml.lines(_limits(budgets.cpu))]
    return "\n".join(lines) + "\n"


def _limits(limits: Mapping[str, Budget]) -> dict[str, Any]:
    return {
        name: {"value": limit.value, "tolerance": limit.tolerance}
        if limit.tolerance
        else limit.value
        for name, limit in limits.items()
    }


def breaches(
    budgets: Budgets, numbers: Numbers, ignored: Iterable[str] = ()
) -> Iterator[Breach]:
    """Yield the numbers that differ from their budgets, higher or lower."""
    for name, limit in budgets.limits.items():
        if name in ignored:
            continue
        value = numbers.values.get(name)
        if value is None:
            yield Breach(name, f"{name} was not recorded", worse=True)
        elif abs(value - limit.value) > limit.tolerance * limit.value:
            of, most = written(name, value), written(name, limit.value)
            text = f"{name} {of}, the budget is {most}{by(limit)}"
            yield Breach(name, text, worse=value > limit.value)
    for name, wanted in budgets.backends.items():
        yield from _backends(name, numbers.backends.get(name, ()), wanted)
    for name, budget in budgets.layers.items():
        layer = numbers.layers.get(name)
        if layer is None:
            yield Breach(name, f"{name} is not a layer of it any more", worse=True)
            continue
        if layer.kernels != budget.kernels:
            text = f"{name}: {_written(layer.kernels)} kernels, the budget is"
            more = layer.kernels > budget.kernels
            yield Breach(name, f"{text} {_written(budget.kernels)}", worse=more)
        yield from _backends(name, layer.backends, budget.backends)


def _backends(
    name: str, used: Sequence[str], wanted: Sequence[str]
) -> Iterator[Breach]:
    if set(used) != set(wanted):
        text = f"{name}: kernels of {', '.join(used) or 'none'}"
        text += f" instead of {', '.join(wanted) or 'none'}"
        yield Breach(name, text, worse=bool(set(used) - set(wanted)))


def written(name: str, value: float) -> str:
    """Return a number with all its digits, and bytes in a unit, too.

    >>> written("peak-bytes", 1418877952), written("launches", 56.5)
    ('1,418,877,952 (1.32 GiB)', '56.5')
    """
    return f"{_written(value)} ({size(value)})" if name == _BYTES else _written(value)


def _written(value: float) -> str:
    return f"{value:,.12g}"


def by(limit: Budget) -> str:
    """Return how far off a number may be, to stand behind it."""
    return f" ± {limit.tolerance:.0%}" if limit.tolerance else ""


def _limit(entry: Any, where: str) -> Budget:  # noqa: ANN401 - it is checked
    if isinstance(entry, dict):
        refuse_unknown(entry, ("value", "tolerance"), where)
        value, tolerance = entry.get("value"), entry.get("tolerance", 0.0)
    else:
        value, tolerance = entry, 0.0
    return Budget(number(value, where), number(tolerance, f"{where}: tolerance"))


def _layer(entry: Any, where: str) -> Layer:  # noqa: ANN401 - it is checked
    if not isinstance(entry, dict):
        msg = f"{where} must be a table with kernels and backends, not {entry!r}"
        raise ConfigError(msg)
    refuse_unknown(entry, ("kernels", "backends"), where)
    backends = _names(entry.get("backends", []), f"{where}: backends")
    return Layer(number(entry.get("kernels"), f"{where}: kernels"), backends)


def _names(found: Any, where: str) -> tuple[str, ...]:  # noqa: ANN401 - it is checked
    if not isinstance(found, list) or not all(isinstance(x, str) for x in found):
        msg = f"{where} must be a list of names, not {found!r}"
        raise ConfigError(msg)
    return tuple(found)
