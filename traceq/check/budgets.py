"""Budgets: limits of the numbers of a fixture, or of a new run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from traceq.check.numbers import EXACT, KINDS, NOISY, OF_JOBS, Backends, Numbers
from traceq.check.spread import Spread, tidy
from traceq.common import toml
from traceq.common.units import size
from traceq.errors import ConfigError
from traceq.linter.config import number, read_config, refuse_unknown

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
_HOW_FAR = ("tolerance", "min", "max")
_NAMES = ("backends", "sometimes")
_BYTES = "peak-bytes"
_HEAD = "# What a step of this fixture takes; traceq check holds it to that."
_CPU_HEAD = "# What its program asks for without a GPU; traceq check --run compares."


@dataclass(frozen=True)
class Budget:
    """One number, and how far off it may be: by a share of it, or within limits."""

    value: float
    tolerance: float = 0.0
    min: float | None = None
    max: float | None = None

    @property
    def limits(self) -> tuple[float, float]:
        """The smallest and the largest number that is within the budget."""
        off = self.tolerance * self.value
        least, most = self.value - off, self.value + off
        return (
            least if self.min is None else min(self.min, least),
            most if self.max is None else max(self.max, most),
        )

    def holds(self, value: float) -> bool:
        """Return whether a number is within the budget."""
        least, most = self.limits
        return least <= value <= most


@dataclass(frozen=True)
class LayerBudget:
    """Limits of what one layer makes the GPU do in a step."""

    kernels: Budget
    backends: Backends


@dataclass(frozen=True)
class Budgets:
    """The content of ``[budgets]``."""

    limits: Mapping[str, Budget] = field(default_factory=dict)
    layers: Mapping[str, LayerBudget] = field(default_factory=dict)
    backends: Mapping[str, Backends] = field(default_factory=dict)
    """Libraries that the kernels of a kind come from."""
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
    entries = dict(table)
    layers, backends, cpu = (
        _table(entries.pop(key, {}), f"{where}.{key}")
        for key in (_LAYERS, _BACKENDS, _CPU)
    )
    keys = (*EXACT, *NOISY, *OF_JOBS, *more, _LAYERS, _BACKENDS, _CPU)
    refuse_unknown(entries, keys, where)
    refuse_unknown(backends, KINDS, f"{where}.{_BACKENDS}")
    refuse_unknown(cpu, CPU_NAMES, f"{where}.{_CPU}")
    return Budgets(
        {name: _limit(entry, f"{where}.{name}") for name, entry in entries.items()},
        {
            name: _layer(entry, f"{where}.{_LAYERS}.{name}")
            for name, entry in layers.items()
        },
        {
            name: _kind(entry, f"{where}.{_BACKENDS}.{name}")
            for name, entry in backends.items()
        },
        {name: _limit(entry, f"{where}.{_CPU}.{name}") for name, entry in cpu.items()},
    )


def _table(value: Any, where: str) -> dict[str, Any]:  # noqa: ANN401 - it is checked
    if not isinstance(value, dict):
        msg = f"{where} must be a table"
        raise ConfigError(msg)
    return value


def budgets_for(
    numbers: Numbers, before: Budgets | None = None, run: Numbers | None = None
) -> Budgets:
    """Return budgets that hold these numbers, as many and as strict as before.

    Where the steps of the recording differ, or those of the ``run`` that it was made
    from, budgets have limits that hold all of them.
    """
    run = run or Numbers({})
    all_limits, all_layers = _all_limits(numbers, run, before), _layers(numbers, run)
    kinds = {
        kind: used.joined(run.backends.get(kind))
        for kind, used in {**run.backends, **numbers.backends}.items()
    }
    if not before:
        cpu = before.cpu if before is not None else {}
        return Budgets(all_limits, all_layers, kinds, cpu)
    return Budgets(
        {name: all_limits[name] for name in before.limits if name in all_limits},
        {name: all_layers[name] for name in before.layers if name in all_layers},
        {name: kinds[name] for name in before.backends if name in kinds},
        before.cpu,
    )


def _all_limits(
    numbers: Numbers, run: Numbers, before: Budgets | None
) -> dict[str, Budget]:
    before_limits = before.limits if before else {}
    limits = {}
    for name, value in numbers.values.items():
        was = before_limits.get(name)
        if was is not None:
            tolerance = was.tolerance
        else:
            tolerance = _TOLERANCE if name in (*NOISY, *OF_JOBS) else 0.0
        spread = _joined(numbers.spreads.get(name), run.spreads.get(name))
        limits[name] = budget_of(run.values.get(name, value), tolerance, spread, value)
    return limits


def budget_of(
    value: float, tolerance: float, spread: Spread | None, *values: float
) -> Budget:
    """Return a budget that holds a number, its spread, and other values of it."""
    plain = Budget(value, tolerance)
    seen = (*values, *((spread.min, spread.max) if spread else ()))
    if all(plain.holds(entry) for entry in seen):
        return plain
    least, most = (spread or Spread(1, value, value)).limits(value, *values)
    return Budget(value, tolerance, least, most)


def _layers(numbers: Numbers, run: Numbers) -> dict[str, LayerBudget]:
    by_layer = {}
    for name in sorted({*numbers.layers, *run.layers}):
        here, whole = numbers.layers.get(name), run.layers.get(name)
        layers = [layer for layer in (whole, here) if layer]
        spread = _joined(*(layer.spread for layer in layers))
        # A layer that the steps of the fixture do not have has no kernels there.
        kernels = here.kernels if here else 0
        backends = layers[0].backends.joined(layers[-1].backends)
        by_layer[name] = LayerBudget(
            budget_of(layers[0].kernels, 0.0, spread, kernels), backends
        )
    return by_layer


def _joined(*spreads: Spread | None) -> Spread | None:
    present = [spread for spread in spreads if spread]
    return present[0].joined(present[-1]) if present else None


def write_budgets(budgets: Budgets) -> str:
    """Return the content of a fixture's traceq.toml."""
    lines = [_HEAD, "[budgets]", *toml.lines(_limits(budgets.limits))]
    if budgets.backends:
        kinds = {
            name: _names_of(used) if used.sometimes else list(used.always)
            for name, used in budgets.backends.items()
        }
        lines += ["", "[budgets.backends]", *toml.lines(kinds)]
    if budgets.layers:
        layers = {
            name: _named(layer.kernels, "kernels") | _names_of(layer.backends)
            for name, layer in budgets.layers.items()
        }
        lines += ["", "[budgets.layers]", *toml.lines(layers)]
    if budgets.cpu:
        lines += ["", _CPU_HEAD, "[budgets.cpu]", *toml.lines(_limits(budgets.cpu))]
    return "\n".join(lines) + "\n"


def _limits(limits: Mapping[str, Budget]) -> dict[str, Any]:
    return {
        name: entry if len(entry := _named(limit, "value")) > 1 else limit.value
        for name, limit in limits.items()
    }


def _named(limit: Budget, key: str) -> dict[str, Any]:
    """Return the entries of a limit, with its value under ``key``."""
    entry: dict[str, Any] = {key: limit.value}
    if limit.tolerance:
        entry["tolerance"] = limit.tolerance
    if limit.min is not None:
        entry["min"] = limit.min
    if limit.max is not None:
        entry["max"] = limit.max
    return entry


def _names_of(used: Backends) -> dict[str, Any]:
    entry: dict[str, Any] = {"backends": list(used.always)}
    return entry | ({"sometimes": list(used.sometimes)} if used.sometimes else {})


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
        elif not limit.holds(value):
            limits = budget_text(name, limit)
            text = f"{name} {written(name, value)}, the budget is {limits}"
            yield Breach(name, text, worse=value > limit.value)
    for name, wanted in budgets.backends.items():
        yield from _backends(name, numbers.backends.get(name, Backends()), wanted)
    for name, budget in budgets.layers.items():
        layer = numbers.layers.get(name)
        if layer is None:
            # A layer that only some steps have may be in none of the new ones.
            if not budget.kernels.holds(0):
                text = f"{name} is not a layer of it any more"
                yield Breach(name, text, worse=True)
            continue
        if not budget.kernels.holds(layer.kernels):
            text = f"{name}: {_written(layer.kernels)} kernels, the budget is"
            more = layer.kernels > budget.kernels.value
            yield Breach(name, f"{text} {budget_text('', budget.kernels)}", worse=more)
        yield from _backends(name, layer.backends, budget.backends)


def _backends(name: str, used: Backends, wanted: Backends) -> Iterator[Breach]:
    new = used.all - wanted.all
    if new or set(wanted.always) - used.all:
        text = f"{name}: kernels of {_listed(used)} instead of {_listed(wanted)}"
        yield Breach(name, text, worse=bool(new))


def _listed(used: Backends) -> str:
    return ", ".join(sorted(used.all)) or "none"


def budget_text(name: str, limit: Budget) -> str:
    """Return a budget as it is printed: the number, or its limits."""
    if limit.min is None and limit.max is None:
        return f"{written(name, limit.value)}{by(limit)}"
    least, most = map(tidy, limit.limits)
    return f"{written(name, least)} to {written(name, most)}"


def written(name: str, value: float) -> str:
    """Return a number with all its digits, and bytes in a unit, too.

    >>> written("peak-bytes", 1418877952), written("launches", 56.5)
    ('1,418,877,952 (1.32 GiB)', '56.5')
    """
    return f"{_written(value)} ({size(value)})" if name == _BYTES else _written(value)


def _written(value: float) -> str:
    return f"{value:,.12g}"


def by(limit: Budget) -> str:
    """Return the tolerance of a number, to stand behind it."""
    return f" ± {limit.tolerance:.0%}" if limit.tolerance else ""


def _limit(entry: Any, where: str) -> Budget:  # noqa: ANN401 - it is checked
    if isinstance(entry, dict):
        refuse_unknown(entry, ("value", *_HOW_FAR), where)
        return _budget(entry, "value", where, where)
    return Budget(number(entry, where))


def _budget(entry: Mapping[str, Any], key: str, where: str, at: str) -> Budget:
    least, most = (
        number(entry[limit], f"{where}: {limit}") if limit in entry else None
        for limit in ("min", "max")
    )
    tolerance = number(entry.get("tolerance", 0.0), f"{where}: tolerance")
    return Budget(number(entry.get(key), at), tolerance, least, most)


def _layer(entry: Any, where: str) -> LayerBudget:  # noqa: ANN401 - it is checked
    if not isinstance(entry, dict):
        msg = f"{where} must be a table with kernels and backends, not {entry!r}"
        raise ConfigError(msg)
    refuse_unknown(entry, ("kernels", *_HOW_FAR, *_NAMES), where)
    kernels = _budget(entry, "kernels", where, f"{where}: kernels")
    return LayerBudget(kernels, _both(entry, where))


def _kind(entry: Any, where: str) -> Backends:  # noqa: ANN401 - it is checked
    if not isinstance(entry, dict):
        return Backends(_names(entry, where))
    refuse_unknown(entry, _NAMES, where)
    return _both(entry, where)


def _both(entry: Mapping[str, Any], where: str) -> Backends:
    return Backends(
        *(_names(entry.get(name, []), f"{where}: {name}") for name in _NAMES)
    )


def _names(value: Any, where: str) -> tuple[str, ...]:  # noqa: ANN401 - it is checked
    if not isinstance(value, list) or not all(isinstance(x, str) for x in value):
        msg = f"{where} must be a list of names, not {value!r}"
        raise ConfigError(msg)
    return tuple(value)
