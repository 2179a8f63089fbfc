"""Cost of a program's step, checked against a budget: the fixture ``traceq``."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

from traceq.api.lint import lint
from traceq.api.profile import collected
from traceq.check.budgets import (
    CPU_NAMES,
    Budget,
    Budgets,
    breaches,
    budget_text,
    budgets_in,
    written,
)
from traceq.check.cpu import cpu_part
from traceq.check.cpu_changes import spent_on
from traceq.check.numbers import numbers
from traceq.common.safe_text import printable
from traceq.common.words import counted, listed
from traceq.errors import ConfigError, UsageError
from traceq.inputs.load_recording import load_recording
from traceq.inputs.options import UNCACHED
from traceq.linter.config import find_config
from traceq.report.base.text import where

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from traceq.api.lint import LintResult
    from traceq.check.cpu import CpuPart
    from traceq.model.recording import Recording

_MOST_CALLS = 300
_TIMED = 3
_PEAK = "peak-bytes"
_MIB = "peak-mib"
# Of the host, so counted on any machine.
_HOST = ("ops", "optimizer-ops", "compiled-ops", "casts")
_MOST_FINDINGS = 3


@dataclass(frozen=True)
class _Advice:
    """Advice on a number that is too high."""

    text: str
    rule: str
    """The rule whose page says more, if one does."""
    codes: tuple[str, ...]
    """Codes of the findings about it."""


_FEWER = _Advice(
    "stack what a Python loop handles one by one, or compile it",
    "LCH001",
    ("LCH", "NRM", "ATT003"),
)
_ADVICE = {
    "syncs": _Advice(
        "keep values on the device, and read them rarely: total += loss.detach()"
        " instead of loss.item()",
        "SYN001",
        ("SYN", "LOG009"),
    ),
    "copies": _Advice(
        "do not copy what can be viewed, and keep tensors where they are used",
        "CPY005",
        ("CPY",),
    ),
    "casts": _Advice("keep tensors in one dtype between ops", "CPY002", ("CPY", "NRM")),
    "ops": _FEWER,
    "launches": _FEWER,
    "optimizer-ops": _Advice("pass foreach=True or fused=True", "LCH003", ("LCH003",)),
    "recompiles": _Advice(
        "keep shapes, dtypes and Python numbers the same, or mark them dynamic",
        "JIT002",
        ("JIT002", "LOG001"),
    ),
    "graph-breaks": _Advice(
        "move what cannot be compiled out of the compiled function",
        "JIT003",
        ("JIT003", "LOG001"),
    ),
    "captures": _Advice(
        "capture once, and replay with static inputs", "JIT001", ("JIT001",)
    ),
    _PEAK: _Advice(
        "free what is not needed any more, or compute it again (checkpointing)",
        "",
        ("MEM",),
    ),
}


class OverBudgetError(AssertionError):
    """A step that costs more than it may."""


@dataclass(frozen=True)
class Checked:
    """A step that was recorded, and kept to its budget."""

    numbers: Mapping[str, float]
    """Cost of the step, by the names of budgets."""
    on: str
    """``"cpu"`` or ``"gpu"``."""
    folder: Path
    """The run folder."""

    def lint(self, **options: Any) -> LintResult:  # noqa: ANN401 - those of lint
        """Return the lint result of the step; options as of ``traceq.lint``."""
        return lint(self.folder, **options)


class StepChecker:
    """Holds what a step costs against a budget; ``folder`` is for what is recorded."""

    def __init__(self, folder: Path, project: Path) -> None:
        self._folder = folder
        self._project = project
        self._names = count(1)

    def check(
        self,
        step: Callable[[], object],
        budget: Mapping[str, Any] | str,
        *,
        steps: int = 3,
        warmup: int = 3,
    ) -> Checked:
        """Call a step a few times, and raise if it costs more than its budget.

        ``budget`` has limits a step by name (``launches``, ``syncs``, ``copies``,
        ``recompiles``, ``graph_breaks``, ``peak_mib``, ``ops``, ``casts`` and so on),
        or is the name of a table ``[tool.traceq.budget.NAME]``. A table ``cpu`` in it
        holds, instead of the rest, where the step runs without a GPU. After ``warmup``
        calls, and once nothing is compiled any more, ``steps`` are recorded.
        """
        __tracebackhide__ = True
        limits = budgets_of(budget, self._project)
        folder = self._folder / f"step-{next(self._names)}"
        _record(step, folder, steps=steps, warmup=warmup)
        return held(folder, limits, steps, lambda: _cpu_peak(step))


def held(
    folder: Path, budgets: Budgets, steps: int, cpu_peak: Callable[[], int]
) -> Checked:
    """Hold what was recorded of a step against its budget; raise if it is over."""
    __tracebackhide__ = True
    recording = load_recording(folder, UNCACHED)
    if recording.trace is None:
        msg = f"nothing was recorded of the step: {folder} has no trace"
        raise UsageError(msg)
    on = "gpu" if recording.trace.facts.gpu else "cpu"
    part = cpu_part(recording.trace)
    values = dict(part.numbers)
    if on == "gpu":
        values |= numbers(recording).values
        over = _over_on_gpu(budgets, recording, values)
    else:
        limits = _held_on_cpu(budgets)
        if _PEAK in limits:
            values[_PEAK] = cpu_peak()
        over = _over(limits, values)
    if over:
        raise OverBudgetError(_message(over, on, steps, part, folder))
    return Checked(values, on, folder)


def _cpu_peak(step: Callable[[], object]) -> int:
    return int(collected("inline.peak").cpu_peak(step))


def budgets_of(budget: Mapping[str, Any] | str, project: Path) -> Budgets:
    """Return the limits that are given, or those of a name in the configuration."""
    place = "budget"
    if isinstance(budget, str):
        config = find_config(project)
        if budget not in config.budget:
            there = listed(sorted(config.budget)) or "none"
            file = config.file or project / "pyproject.toml"
            msg = (
                f"there is no budget {budget!r}: write [tool.traceq.budget.{budget}]"
                f" into {file}, which has {there}"
            )
            raise ConfigError(msg)
        place, budget = f"{config.file}: budget.{budget}", config.budget[budget]
    table = {key.replace("_", "-"): value for key, value in budget.items()}
    if _MIB in table:
        table[_PEAK] = _bytes(table.pop(_MIB))
    budgets = budgets_in(table, place, _HOST)
    if (
        not budgets.limits
        and not budgets.layers
        and not budgets.backends
        and not budgets.cpu
    ):
        msg = f'{place} limits nothing: write {{"syncs": 0}}, for example'
        raise ConfigError(msg)
    return budgets


def _bytes(entry: Any) -> Any:  # noqa: ANN401 - it is checked where budgets are
    if isinstance(entry, dict) and isinstance(entry.get("value"), (int, float)):
        return entry | {"value": entry["value"] * 2**20}
    return entry * 2**20 if isinstance(entry, (int, float)) else entry


def _record(
    step: Callable[[], object], folder: Path, *, steps: int, warmup: int
) -> None:
    """Record a few calls; what was compiled before is compiled again, and seen."""
    __tracebackhide__ = True
    inline = collected("inline.recording")
    collected("inline.peak").forget_compiled()
    try:
        recording = inline.Recording(
            out=folder.parent,
            name=folder.name,
            warmup=warmup,
            timed=_TIMED,
            active=steps,
            memory_steps=1,
            overhead=False,
        )
        recording.start()
    except inline.RefusedError as error:
        raise UsageError(str(error)) from None
    try:
        for _ in range(_MOST_CALLS):
            step()
            recording.step()
            if recording.done:
                break
    finally:
        recording.stop("the test ended")
    if not (folder / "rank-0.trace.json.gz").is_file():
        msg = f"nothing was recorded of the step: {'; '.join(recording.missing)}"
        raise UsageError(msg)


def _held_on_cpu(budgets: Budgets) -> Mapping[str, Budget]:
    """Return the limits that hold without a GPU; refuse those that cannot."""
    if budgets.cpu:
        return budgets.cpu
    needing = [name for name in budgets.limits if name not in (*CPU_NAMES, _PEAK)]
    needing += [*budgets.layers, *budgets.backends]
    if needing:
        msg = (
            f"{listed(needing)} can be counted on a GPU only, and this step ran without"
            ' one: give what holds here in a table, as {"cpu": {"ops": 150}}'
        )
        raise UsageError(msg)
    return budgets.limits


def _over_on_gpu(
    budgets: Budgets, recording: Recording, values: Mapping[str, float]
) -> list[tuple[str, str]]:
    """Return the limits that a step on a GPU breaks."""
    if not len(budgets):
        msg = "the budget has limits for steps without a GPU only, and this one used it"
        raise UsageError(msg)
    host = {name: budget for name, budget in budgets.limits.items() if name in _HOST}
    results = [
        (breach.what, breach.text)
        for breach in breaches(budgets, numbers(recording), ignored=host)
        if breach.worse
    ]
    return results + _over(host, values)


def _over(
    limits: Mapping[str, Budget], values: Mapping[str, float]
) -> list[tuple[str, str]]:
    """Return the numbers that are higher than allowed, and that in words."""
    results = []
    for name, limit in limits.items():
        value = values[name]
        if value > limit.limits[1]:
            is_now = f"{name} {written(name, value)}"
            text = f"{is_now}, the budget is {budget_text(name, limit)}"
            results.append((name, text))
    return results


def _message(
    over: list[tuple[str, str]], on: str, steps: int, part: CpuPart, folder: Path
) -> str:
    result = lint(folder, cache=False) if on == "gpu" else None
    device = "a GPU" if on == "gpu" else "the CPU"
    lines = [f"the step is over its budget ({counted(steps, 'step')} on {device})"]
    for name, text in over:
        lines.append(f"  {text}")
        if name in CPU_NAMES:
            lines += [f"    {printable(line)}" for line in spent_on(part, name)]
        lines += [f"    {line}" for line in _instead(name, result)]
    lines.append(f"recorded in {folder}: traceq lint {folder}")
    return "\n".join(lines)


def _instead(name: str, result: LintResult | None) -> Iterator[str]:
    """Yield advice: that of the findings, else what usually helps."""
    advice = _ADVICE.get(name)
    if advice is None:
        return
    findings = result.findings if result else ()
    advised = [finding for finding in findings if finding.code.startswith(advice.codes)]
    for finding in advised[:_MOST_FINDINGS]:
        place = where(finding.place)
        yield printable(
            f"{finding.code} {finding.message}" + (f" ({place})" if place else "")
        )
        if finding.advice:
            yield printable(f"fix: {finding.advice}")
    if not advised:
        page = f" (traceq rule {advice.rule})" if advice.rule else ""
        yield f"fix: {advice.text}{page}"
