"""Run the program of a fixture, and compare the run with the fixture."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from traceq.check.budgets import Budgets, read_budgets, write_budgets
from traceq.check.check import FixtureResult, check_against, write_changed
from traceq.check.cpu import (
    CpuPart,
    cpu_budgets,
    cpu_part,
    read_cpu_part,
    write_cpu_part,
)
from traceq.check.cpu_changes import cpu_differences
from traceq.check.difference import Difference
from traceq.check.fixture import BUDGETS, CPU, FINDINGS
from traceq.check.program import has_gpu
from traceq.common.words import counted
from traceq.errors import TraceqError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from traceq.linter.config import Config
    from traceq.linter.pack import Rules
    from traceq.model.recording import Recording

_REPLACE = (
    "--run --update writes what is expected without a GPU, and the program used one:"
    " add --cpu; to replace the fixture itself, run traceq collect, then traceq shrink"
    " --replace"
)
_NO_CPU_PART = (
    f"it has no {CPU} to compare a run without a GPU with: write it with traceq check"
    " --run --update, and commit it"
)


def check_run(
    folder: Path, new: Recording, rules: Rules, config: Config, *, update: bool = False
) -> FixtureResult:
    """Compare a run of a fixture's program on this machine with the fixture.

    With a GPU that is what :func:`check_against` does. Without one, what the program
    asks of torch is compared with the fixture's CPU part; ``update`` writes that.
    """
    if new.trace is not None and new.trace.facts.gpu:
        if update:
            return unable(folder, _REPLACE, "cuda")
        return _checked_on_gpu(folder, new, rules, config)
    if new.trace is None:
        return unable(folder, "the run has no trace")
    now = cpu_part(new.trace)
    try:
        expectation, budgets = _cpu_expected(folder, update=update)
    except TraceqError as error:
        return unable(folder, str(error), "cpu")
    if expectation is None:
        if not update:
            return unable(folder, _NO_CPU_PART, "cpu")
        expectation = now
    written = _update_cpu(folder, now, budgets) if update else ()
    limits = budgets.cpu or cpu_budgets(expectation, None)
    differences = (
        *cpu_differences(expectation, limits, now),
        *_other_torch(expectation, now),
        *_not_on_cpu(folder, budgets),
    )
    return FixtureResult(
        folder,
        differences,
        budgets=len(limits),
        written=written,
        ran_on="cpu",
        linted=False,
    )


def why_not_to_run(folder: Path, *, cpu: bool, update: bool) -> str:
    """Return why there is nothing to compare a run with; empty if there is."""
    lacks = not update and not (folder / CPU).is_file()
    return _NO_CPU_PART if lacks and (cpu or not has_gpu()) else ""


def unable(folder: Path, why: str, ran_on: str | None = None) -> FixtureResult:
    """Return that a fixture could not be compared with anything."""
    differences = (Difference("error", why),)
    return FixtureResult(
        folder, differences, ran_on=ran_on, compared=False, unable=True, linted=False
    )


def both(linted: FixtureResult, ran: FixtureResult) -> FixtureResult:
    """Return what differs in the committed trace, and in a new run."""
    return replace(
        ran,
        differences=(*dict.fromkeys((*linted.differences, *ran.differences)),),
        findings=linted.findings,
        budgets=linted.budgets + (ran.budgets if ran.ran_on == "cpu" else 0),
        compared=linted.compared or ran.compared,
        linted=True,
    )


def _checked_on_gpu(
    folder: Path, new: Recording, rules: Rules, config: Config
) -> FixtureResult:
    result = check_against(folder, new, rules, config)
    differences = result.differences
    if (folder / CPU).is_file():
        text = f"{CPU} is not compared: the program used the GPU"
        differences += (Difference("skipped", text, fails=False),)
    lacks = any(difference.kind in ("missing", "error") for difference in differences)
    return replace(
        result, differences=differences, ran_on="cuda", unable=lacks, linted=False
    )


def _cpu_expected(folder: Path, *, update: bool) -> tuple[CpuPart | None, Budgets]:
    """Return the expected CPU part and the budgets; None for a part to replace."""
    file = folder / BUDGETS
    budgets = read_budgets(file) if file.is_file() else Budgets()
    try:
        path = folder / CPU
        return read_cpu_part(path) if path.is_file() else None, budgets
    except TraceqError:
        if not update:
            raise
        return None, budgets


def _update_cpu(folder: Path, now: CpuPart, budgets: Budgets) -> tuple[str, ...]:
    updated = replace(budgets, cpu=cpu_budgets(now, budgets.cpu))
    return write_changed(
        folder, {CPU: write_cpu_part(now), BUDGETS: write_budgets(updated).encode()}
    )


def _other_torch(before: CpuPart, now: CpuPart) -> Iterator[Difference]:
    if before.torch != now.torch:
        text = f"{CPU} was written with torch {before.torch}, this is torch {now.torch}"
        yield Difference("skipped", f"{text}: ops may differ for that", fails=False)


def _not_on_cpu(folder: Path, budgets: Budgets) -> Iterator[Difference]:
    """Yield the parts of a fixture that are not compared without a GPU."""
    parts = [counted(len(budgets), "GPU budget")] if len(budgets) else []
    if (folder / FINDINGS).is_file():
        parts.append("the findings")
    if parts:
        text = f"{' and '.join(parts)} not compared: this run had no GPU"
        yield Difference("skipped", text, fails=False)
