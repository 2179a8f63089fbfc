"""The summary table of a sweep: for a screen, Markdown, LaTeX and CSV."""

from __future__ import annotations

import csv as csv_writer
import io
from typing import TYPE_CHECKING

from traceq.analysis.sweep_series import ratio
from traceq.common.safe_text import plain_csv, printable
from traceq.common.units import NS_PER_MS
from traceq.report.base.columns import Column
from traceq.report.base.content import Content, TextTable
from traceq.report.base.markdown import section
from traceq.report.base.screen import line_width, screen
from traceq.report.base.text import rendered
from traceq.report.sweeps import words

if TYPE_CHECKING:
    from traceq.analysis.configurations import Configuration, Number
    from traceq.report.sweeps.shown import ShownSweep

_LATEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "_": r"\_",
    "%": r"\%",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "µ": r"$\mu$",
    "×": r"$\times$",
}


def text(shown: ShownSweep, *, width: int | None, color: bool) -> str:
    """Return a screen: what the sweep says, and its table."""
    room = line_width(width)
    return rendered(list(screen(content(shown), room)), width=room, color=color)


def markdown(shown: ShownSweep) -> str:
    """Return a section with the same table."""
    return section(content(shown))


def content(shown: ShownSweep) -> Content:
    """Return what the sweep says, and its table."""
    sentences = words.sentences(shown)
    return Content(
        title=printable(f"Sweep {shown.sweep.folder.name}"),
        warnings=(),
        facts=(
            ("command", printable(" ".join(shown.sweep.command))),
            ("in short", " ".join(sentences)),
        ),
        tables=(text_table(shown),),
    )


def text_table(shown: ShownSweep) -> TextTable:
    """Return a row for each configuration: labels, numbers, ratios, what happened."""
    table = shown.table
    columns = [Column(printable(key)) for key in table.keys]
    columns.append(Column("outcome", short=True))
    for number in table.numbers:
        columns.append(Column(words.title(number), number=True))
        if shown.baseline and number.name == "step":
            columns.append(Column(f"step / {shown.baseline[1]}", number=True))
    columns.append(Column("measured over", number=True))
    rows = tuple(_row(shown, configuration) for configuration in table.configurations)
    return TextTable(tuple(columns), rows)


def latex(shown: ShownSweep) -> str:
    """Return the table for LaTeX, with the rules of booktabs."""
    table = text_table(shown)
    kinds = "".join("r" if column.number else "l" for column in table.columns)
    lines = [
        r"% \usepackage{booktabs}",
        rf"\begin{{tabular}}{{{kinds}}}",
        r"\toprule",
        _latex_line(column.title for column in table.columns),
        r"\midrule",
        *(_latex_line(row) for row in table.rows),
        r"\bottomrule",
        r"\end{tabular}",
    ]
    return "\n".join(lines) + "\n"


def csv(shown: ShownSweep) -> str:
    """Return a row for each configuration in plain numbers; empty is unknown."""
    out = io.StringIO()
    rows = [
        _csv_row(shown, configuration) for configuration in shown.table.configurations
    ]
    writer = csv_writer.DictWriter(out, rows[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def _row(shown: ShownSweep, configuration: Configuration) -> tuple[str, ...]:
    cells = [printable(configuration.labels.get(key, "")) for key in shown.table.keys]
    outcome = configuration.status
    if configuration.status == "ok" and configuration.measured < configuration.runs:
        outcome = f"{configuration.measured} of {configuration.runs} runs"
    cells.append(printable(outcome))
    for number in shown.table.numbers:
        cells.append(
            words.value_text(configuration.values.get(number.name), number.unit)
        )
        if shown.baseline and number.name == "step":
            relative = ratio(shown.table, configuration, number, shown.baseline)
            cells.append(words.ratio_text(relative))
    step = configuration.values.get("step")
    return (*cells, f"{step.n} {step.of}" if step else "-")


def _csv_row(shown: ShownSweep, configuration: Configuration) -> dict[str, str]:
    row = {
        plain_csv(key): plain_csv(configuration.labels.get(key, ""))
        for key in shown.table.keys
    }
    row |= {
        "status": plain_csv(configuration.status),
        "reason": plain_csv(configuration.reason),
        "runs": str(configuration.runs),
        "measured": str(configuration.measured),
    }
    for number in shown.table.numbers:
        value = configuration.values.get(number.name)
        name, scale = _csv_name(number)
        row[name] = repr(value.mean / scale) if value else ""
        spread = value.std if value else None
        row[f"{name}_std"] = "" if spread is None else repr(spread / scale)
        row[f"{name}_n"] = str(value.n) if value else ""
        if shown.baseline:
            relative = ratio(shown.table, configuration, number, shown.baseline)
            row[f"{name}_ratio"] = repr(relative.mean) if relative else ""
    return row


def _csv_name(number: Number) -> tuple[str, float]:
    """Return a column's name with its unit, and the unit in those of the table."""
    if number.unit == "ns":
        return f"{number.name}_ms", NS_PER_MS
    if number.unit == "bytes":
        return f"{number.name}_bytes", 1.0
    return plain_csv(number.name), 1.0


def _latex_line(cells: object) -> str:
    texts = [
        "".join(_LATEX.get(character, character) for character in str(cell))
        for cell in cells  # type: ignore[attr-defined]
    ]
    return " & ".join(texts) + r" \\"
