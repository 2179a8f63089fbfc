"""Full run that a fixture was made from: numbers and findings of all its steps.

A fixture keeps a few steps. Where the others differ from them, ``[run]`` in its
origin.toml records how, so that budgets apply to the run, too.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil
from typing import TYPE_CHECKING, Any

from traceq.check.numbers import KINDS, Backends, Layer, Numbers
from traceq.check.spread import Spread
from traceq.common import toml
from traceq.errors import ConfigError, InputError
from traceq.linter.config import number
from traceq.linter.same_finding import Extent, extent

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from traceq.check.expected import Expected

RUN = "run"
_LAYERS, _BACKENDS, _FINDINGS = "layers", "backends", "findings"
# A key of its own, graph_breaks, has it.
_SAID = "graph-breaks"
_HEAD = (
    "# The run: numbers and findings that are not the same in all its steps, or here."
)


@dataclass(frozen=True)
class Whole:
    """Numbers and findings of a run that vary by step, or that its fixture lacks."""

    numbers: Numbers = field(default_factory=lambda: Numbers({}))
    findings: Mapping[str, Extent] = field(default_factory=dict)
    """Extent of findings in some of its steps, by fingerprint."""
    codes: Mapping[str, str] = field(default_factory=dict)
    """Codes of the rules that find them, for people."""


def extents(groups: Iterable[Sequence[Expected]]) -> dict[str, Extent]:
    """Return the possible extent of each finding, over several parts of a run.

    As of the numbers of steps, that is more than any of the parts has.
    """
    by_name: dict[str, list[Extent]] = {}
    for findings in groups:
        by_mark: dict[str, list[Expected]] = {}
        for finding in findings:
            by_mark.setdefault(finding.fingerprint, []).append(finding)
        for mark, same in by_mark.items():
            by_name.setdefault(mark, []).append(extent(same))
    return {
        mark: Extent(
            _most([finding.count for finding in seen]),
            _most([finding.cost_bytes for finding in seen]),
        )
        for mark, seen in by_name.items()
    }


def _most(values: Sequence[int]) -> int:
    _, most = Spread(len(values), min(values), max(values)).limits()
    return ceil(most)


def beyond(run: Whole, numbers: Numbers, findings: Sequence[Expected]) -> Whole:
    """Return the numbers and findings of a run that its fixture does not show."""
    whole = run.numbers
    here = extents([findings])
    return Whole(
        Numbers(
            {
                name: value
                for name, value in whole.values.items()
                if name != _SAID
                and (name in whole.spreads or numbers.values.get(name) != value)
            },
            {
                name: layer
                for name, layer in whole.layers.items()
                if layer.spread or numbers.layers.get(name) != layer
            },
            {
                kind: used
                for kind, used in whole.backends.items()
                if numbers.backends.get(kind) != used
            },
            whole.spreads,
        ),
        {
            mark: extent
            for mark, extent in run.findings.items()
            if here.get(mark) != extent
        },
        run.codes,
    )


def written_whole(run: Whole) -> list[str]:
    """Return the lines of ``[run]``; none where the fixture shows all there is."""
    numbers = run.numbers
    parts: dict[str, dict[str, Any]] = {
        RUN: {
            name: _entry("mean", value, numbers.spreads.get(name))
            for name, value in numbers.values.items()
        },
        f"{RUN}.{_BACKENDS}": {
            kind: _libraries(used) for kind, used in numbers.backends.items()
        },
        f"{RUN}.{_LAYERS}": {
            name: _entry("mean", layer.kernels, layer.spread)
            | _libraries(layer.backends)
            for name, layer in numbers.layers.items()
        },
        f"{RUN}.{_FINDINGS}": {
            mark: {"code": run.codes.get(mark, ""), **_extent(extent)}
            for mark, extent in run.findings.items()
        },
    }
    entries = [
        line
        for name, table in parts.items()
        if table
        for line in ("", f"[{name}]", *toml.lines(table))
    ]
    return ["", _HEAD, *entries[1:]] if entries else []


def _entry(key: str, value: float, spread: Spread | None) -> dict[str, Any]:
    entry: dict[str, Any] = {key: value}
    if spread:
        entry |= {"min": spread.min, "max": spread.max, "steps": spread.steps}
    return entry


def _extent(extent: Extent) -> dict[str, int]:
    return {"count": extent.count, "bytes": extent.cost_bytes}


def _libraries(used: Backends) -> dict[str, Any]:
    entry: dict[str, Any] = {"always": list(used.always)}
    return entry | ({"sometimes": list(used.sometimes)} if used.sometimes else {})


def read_whole(origin: Mapping[str, Any], where: str) -> Whole:
    """Return the run in an origin.toml; raise ``InputError`` if it is malformed."""
    try:
        return _read(origin.get(RUN, {}), where)
    except (ConfigError, LookupError, TypeError, ValueError, AttributeError):
        msg = f"{where}: [{RUN}] is not what traceq shrink writes: shrink the run again"
        raise InputError(msg) from None


def _read(table: Mapping[str, Any], where: str) -> Whole:
    rest = dict(table)
    layers, backends, findings = (
        rest.pop(key, {}) for key in (_LAYERS, _BACKENDS, _FINDINGS)
    )
    entries = {name: _number(entry, where) for name, entry in rest.items()}
    counted = {name: _number(entry, where) for name, entry in layers.items()}
    return Whole(
        Numbers(
            {name: value for name, (value, _) in entries.items()},
            {
                name: Layer(*_with_backends(counted[name], layers[name]))
                for name in layers
            },
            {kind: _names(backends[kind]) for kind in KINDS if kind in backends},
            {name: spread for name, (_, spread) in entries.items() if spread},
        ),
        {
            mark: Extent(int(entry["count"]), int(entry["bytes"]))
            for mark, entry in findings.items()
        },
    )


def _with_backends(
    value: tuple[float, Spread | None], entry: Mapping[str, Any]
) -> tuple[float, Backends, Spread | None]:
    kernels, spread = value
    return kernels, _names(entry), spread


def _number(entry: Mapping[str, Any], where: str) -> tuple[float, Spread | None]:
    value = number(entry["mean"], where)
    if "steps" not in entry:
        return value, None
    least, most = (number(entry[key], where) for key in ("min", "max"))
    return value, Spread(int(entry["steps"]), least, most)


def _names(entry: Mapping[str, Any]) -> Backends:
    return Backends(
        *(tuple(map(str, entry.get(key, ()))) for key in ("always", "sometimes"))
    )
