"""Budgets: limits of the numbers of a fixture, or of a new run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from traceq import toml_text as toml
from traceq.check.numbers import EXACT, NOISY, Layer, Numbers
from traceq.errors import ConfigError
from traceq.lint.config import number, read_config, refuse_unknown

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

_LAYERS = "layers"
_TOLERANCE = 0.1
_HEAD = "# What a step of this fixture takes; traceq check holds it to that."


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

    def __len__(self) -> int:
        return len(self.limits) + len(self.layers)


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
    found = read_config(file).budgets
    layers = found.get(_LAYERS, {})
    limits = {key: entry for key, entry in found.items() if key != _LAYERS}
    refuse_unknown(limits, (*EXACT, *NOISY, _LAYERS), f"{file}: budgets")
    if not isinstance(layers, dict):
        msg = f"{file}: budgets.layers must be a table"
        raise ConfigError(msg)
    return Budgets(
        {name: _limit(file, name, entry) for name, entry in limits.items()},
        {name: _layer(file, name, entry) for name, entry in layers.items()},
    )


def budgets_for(numbers: Numbers, before: Budgets | None = None) -> Budgets:
    """Return budgets that hold these numbers, as many and as strict as before."""
    if before is None:
        limits = {
            name: Budget(value, _TOLERANCE if name in NOISY else 0.0)
            for name, value in numbers.values.items()
        }
        return Budgets(limits, numbers.layers)
    limits = {
        name: Budget(numbers.values[name], limit.tolerance)
        for name, limit in before.limits.items()
        if name in numbers.values
    }
    kept = [name for name in before.layers if name in numbers.layers]
    return Budgets(limits, {name: numbers.layers[name] for name in kept})


def write_budgets(budgets: Budgets) -> str:
    """Return the content of a fixture's traceq.toml."""
    limits = {
        name: {"value": limit.value, "tolerance": limit.tolerance}
        if limit.tolerance
        else limit.value
        for name, limit in budgets.limits.items()
    }
    lines = [_HEAD, "[budgets]", *toml.lines(limits)]
    if budgets.layers:
        layers = {
            name: {"kernels": layer.kernels, "backends": list(layer.backends)}
            for name, layer in budgets.layers.items()
        }
        lines += ["", "[budgets.layers]", *toml.lines(layers)]
    return "\n".join(lines) + "\n"


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
            text = f"{name} {_written(value)}, the budget is {_written(limit.value)}"
            yield Breach(name, text + _by(limit), worse=value > limit.value)
    for name, budget in budgets.layers.items():
        layer = numbers.layers.get(name)
        if layer is None:
            yield Breach(name, f"{name} is not a layer of it any more", worse=True)
            continue
        if layer.kernels != budget.kernels:
            text = f"{name}: {_written(layer.kernels)} kernels, the budget is"
            more = layer.kernels > budget.kernels
            yield Breach(name, f"{text} {_written(budget.kernels)}", worse=more)
        new = sorted(set(layer.backends) - set(budget.backends))
        gone = sorted(set(budget.backends) - set(layer.backends))
        if new or gone:
            text = f"{name}: kernels of {', '.join(layer.backends) or 'none'}"
            text += f" instead of {', '.join(budget.backends) or 'none'}"
            yield Breach(name, text, worse=bool(new))


def _written(value: float) -> str:
    return f"{value:,.12g}"


def _by(limit: Budget) -> str:
    return f" ± {limit.tolerance:.0%}" if limit.tolerance else ""


def _limit(file: Path, name: str, entry: Any) -> Budget:  # noqa: ANN401 - it is checked
    if isinstance(entry, dict):
        refuse_unknown(entry, ("value", "tolerance"), f"{file}: budgets.{name}")
        value, tolerance = entry.get("value"), entry.get("tolerance", 0.0)
    else:
        value, tolerance = entry, 0.0
    return Budget(
        number(value, f"{file}: budgets.{name}"),
        number(tolerance, f"{file}: budgets.{name}: tolerance"),
    )


def _layer(file: Path, name: str, entry: Any) -> Layer:  # noqa: ANN401 - it is checked
    where = f"{file}: budgets.layers.{name}"
    if not isinstance(entry, dict):
        msg = f"{where} must be a table with kernels and backends, not {entry!r}"
        raise ConfigError(msg)
    refuse_unknown(entry, ("kernels", "backends"), where)
    backends = entry.get("backends", [])
    if not isinstance(backends, list) or not all(isinstance(x, str) for x in backends):
        msg = f"{where}: backends must be a list of names, not {backends!r}"
        raise ConfigError(msg)
    kernels = number(entry.get("kernels"), f"{where}: kernels")
    return Layer(kernels, tuple(backends))
