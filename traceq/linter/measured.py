"""Measurements of rules' advice on a GPU.

They are rows of ``measured.toml`` in the folder of a pack, or in one of the folders
between it and the rule. Rules' pages show them; lint does not read them.
"""

from __future__ import annotations

import datetime as dt
import re
import sys
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from traceq.common import toml
from traceq.common.locations import MEASURED
from traceq.errors import PackError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.linter.rule import Rule

NOT_TRIED = "Not tried on a GPU."
"""The note of a rule whose advice nobody has followed on a GPU yet."""

Quantity = float | tuple[float, float]
"""A figure, or the range of several."""

_NUMBER = r"\d+(\.\d+)?"
_RANGE = rf"{_NUMBER}( to {_NUMBER})?"
_SAVED = re.compile(rf"{_RANGE}(%| ms)")
_PREDICTED = re.compile(rf"(saves )?{_RANGE}(%| ms)( \({_NUMBER} to {_NUMBER}\))?")


@dataclass(frozen=True)
class Measurement:
    """One program before and after a change; without a program, a remark."""

    rule: str
    """The rule's code."""
    program: str = ""
    """The capture that was timed, or the program in words."""
    change: str = ""
    before_ms: Quantity | None = None
    after_ms: Quantity | None = None
    """Milliseconds a step, without the profiler, if ``note`` says nothing else."""
    before_mib: Quantity | None = None
    after_mib: Quantity | None = None
    before_gib: Quantity | None = None
    after_gib: Quantity | None = None
    saved: str = ""
    """Measured saving, such as ``27%``, if it is not the difference of the times."""
    predicted: str = ""
    """Prediction: the step after the change, or what the change ``saves``."""
    gpu: str = ""
    torch: str = ""
    date: dt.date | None = None
    script: str = ""
    """The file of traceq's repository that measures it again."""
    note: str = ""
    """A fact that fits no other field."""

    @property
    def quantities(self) -> tuple[Quantity | None, Quantity | None, str]:
        """Measurements before and after the change, and their unit."""
        if self.before_mib is not None:
            return self.before_mib, self.after_mib, "MiB"
        if self.before_gib is not None:
            return self.before_gib, self.after_gib, "GiB"
        return self.before_ms, self.after_ms, "ms"


_TEXTS = {"rule", "program", "change", "saved", "predicted", "gpu", "torch"}
_TEXTS |= {"script", "note"}
_QUANTITIES = {item.name for item in fields(Measurement)} - _TEXTS - {"date"}


def measurements(rule: type[Rule]) -> list[Measurement]:
    """Return the measurements of a rule, by date and program, then its remarks."""
    rows = [row for file in _files(rule) for row in read(file) if row.rule == rule.code]
    return sorted(rows, key=_order)


def read(file: Path) -> tuple[Measurement, ...]:
    """Return the rows of a file; raise PackError for one that cannot be used."""
    status = file.stat()
    return _read(file, status.st_size, status.st_mtime_ns)


def _order(row: Measurement) -> tuple[bool, dt.date, str]:
    return not row.program, row.date or dt.date.min, row.program.strip("`").casefold()


@lru_cache(maxsize=8)
def _read(file: Path, *_: int) -> tuple[Measurement, ...]:
    rows = toml.read(file, PackError).get("rows", [])
    if not isinstance(rows, list):
        msg = f"{file}: rows must be a list of tables"
        raise PackError(msg)
    return tuple(_row(file, number, row) for number, row in enumerate(rows, 1))


def _files(rule: type[Rule]) -> Iterator[Path]:
    """Yield the files of a rule's folder and of those above it in its pack."""
    module = sys.modules.get(rule.__module__)
    source = getattr(module, "__file__", None)
    if source is None:
        return
    # Of _traceq_pack0.sync.implicit_device_sync two folders belong to the pack.
    depth = rule.__module__.count(".")
    for folder in list(Path(source).parents)[:depth]:
        if (folder / MEASURED).is_file():
            yield folder / MEASURED


def _row(file: Path, number: int, row: Any) -> Measurement:  # noqa: ANN401 - of TOML
    fault = _fault(row) if isinstance(row, dict) else "is not a table"
    if fault:
        msg = f"{file}: row {number} {fault}"
        raise PackError(msg)
    fields_of: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in row.items()
    }
    return Measurement(**fields_of)


def _fault(row: dict[str, Any]) -> str:
    """Return what is wrong with a row; empty if nothing is."""
    names = {item.name for item in fields(Measurement)}
    for name, value in row.items():
        if name not in names:
            return (
                f"has the unknown field {name}: fields are {', '.join(sorted(names))}"
            )
        if not _fits(name, value):
            return f"has {name} = {value!r}: it must be {_expected(name)}"
    if not row.get("rule"):
        return "names no rule: add rule = CODE"
    if not row.get("program") and not row.get("note"):
        return "has neither a program nor a note"
    return ""


def _fits(name: str, value: object) -> bool:
    if name in _QUANTITIES:
        figures = value if isinstance(value, list) and len(value) == 2 else [value]  # noqa: PLR2004 - from, to
        return all(_is_figure(figure) for figure in figures) and figures == sorted(
            figures
        )
    if name == "date":
        return isinstance(value, dt.date) and not isinstance(value, dt.datetime)
    if not isinstance(value, str) or not value:
        return False
    pattern = {"saved": _SAVED, "predicted": _PREDICTED}.get(name)
    return pattern is None or pattern.fullmatch(value) is not None


def _is_figure(value: object) -> bool:
    return (
        isinstance(value, (int, float))
        and not isinstance(value, bool)
        and 0 <= value < float("inf")
    )


def _expected(name: str) -> str:
    if name in _QUANTITIES:
        return "a number that is not negative, or [from, to]"
    examples = {"saved": "as '27%' or '0.14 to 0.20 ms'", "date": "a date"}
    examples["predicted"] = "as 'saves 26%', 'saves 11 ms' or '5.9 ms (4.1 to 6.2)'"
    return examples.get(name, "text")
