"""Pages on rules, from their docstrings and examples."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Protocol

from traceq.linter.need import Need
from traceq.report.base.text import rendered
from traceq.report.base.torch_docs import TORCH_PAGES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from traceq.linter.measured import Measurement, Quantity
    from traceq.linter.rule import Bad, Good, Rule

# Longer lines are hard to read.
_WIDEST = 100
_TIMELINE = """\
Drawn, with time from left to right: the host's threads, and the GPU's streams. `>1`
launches what has `<1`."""
_HISTORY = """\
Drawn, with time from left to right: places in the program, and the memory they hold."""
_LOG = "Lines of a log."
_PER_STEP = "Times are of a step where the row does not say of what."
# Stated once above the table of measurements where all rows have the same.
_CIRCUMSTANCES = ("GPU", "torch", "date", "script", "note")


class Listed(Protocol):
    """A rule, or what stands for one."""

    def name(self) -> str:
        """Return the rule's name."""

    def summary(self) -> str:
        """Return the rule's summary, in a sentence."""


def listing(rules: Mapping[str, Listed]) -> str:
    """Return the rules, a line each."""
    widest = max((len(rule.name()) for rule in rules.values()), default=0)
    return "".join(
        f"{code}  {rule.name():<{widest}}  {rule.summary()}\n"
        for code, rule in rules.items()
    )


def table(rules: Mapping[str, Listed]) -> str:
    """Return the rules as a table in Markdown."""
    lines = ["| code | rule | finds |", "| --- | --- | --- |"]
    lines += [
        f"| {code} | {rule.name()} | {rule.summary()} |" for code, rule in rules.items()
    ]
    return "\n".join(lines) + "\n"


def page(rule: type[Rule]) -> str:
    """Return the page of a rule."""
    parts = [f"# {rule.name()} ({rule.code})", *_status(rule), rule.page()]
    parts += [*_measured(rule), *_seen(rule), *_needs(rule), *_options(rule)]
    parts += [*_examples(rule), *_see(rule)]
    return "\n\n".join(parts) + "\n"


def rendered_page(page: str, *, width: int, color: bool) -> str:
    """Return a page for a terminal: headings, lists and code instead of their marks."""
    from rich.markdown import Markdown  # noqa: PLC0415 - only where it is shown

    return rendered([Markdown(page)], width=min(width, _WIDEST), color=color)


def _status(rule: type[Rule]) -> list[str]:
    """Say since when a rule exists, and whether it is on trial."""
    since = f"Since {rule.since}." if rule.since else ""
    trial = "Preview: its findings never fail a run." if rule.preview else ""
    return [" ".join(filter(None, (since, trial)))] if since or trial else []


def _seen(rule: type[Rule]) -> list[str]:
    """Show a finding as lint prints it."""
    if rule.seen is None or not rule.seen.text.strip():
        return []
    command = f"traceq {'ranks' if Need.JOB in rule.needs else 'lint'}"
    if rule.seen.of:
        of = f"`{command} {rule.seen.of}`, in traceq's repository, prints:"
    else:
        of = (
            "No recording in traceq's repository has it: this is what"
            f" `{command}` prints\nof the first example below:"
        )
    text = textwrap.dedent(rule.seen.text).strip("\n")
    return [f"## A finding\n\n{of}\n\n```text\n{text}\n```"]


def _measured(rule: type[Rule]) -> list[str]:
    """Show what following the advice gave on a GPU: a table, then remarks."""
    from traceq.linter.measured import measurements  # noqa: PLC0415 - pages alone

    rows = measurements(rule)
    if not rows:
        return []
    timed = [_cells(row) for row in rows if row.program]
    remarks = [
        f"{row.note.rstrip('.')} (`{row.script}`)." if row.script else row.note
        for row in rows
        if not row.program
    ]
    return ["\n\n".join(["## Measured", *_measured_table(timed), *remarks])]


def _cells(row: Measurement) -> dict[str, str]:
    """Return a measurement as cells of a table, by the titles of their columns."""
    before, after, unit = row.quantities
    cells = {
        "program": row.program,
        "change": row.change,
        "before": _quantity(before, unit),
        "after": _quantity(after, unit),
        "saved": row.saved,
        "predicted": row.predicted,
        "GPU": row.gpu,
        "torch": row.torch,
        "date": row.date.isoformat() if row.date else "",
        "script": f"`{row.script}`" if row.script else "",
        "note": row.note,
    }
    return {title: text.replace("|", r"\|") for title, text in cells.items()}


def _quantity(value: Quantity | None, unit: str) -> str:
    if value is None:
        return ""
    figures = value if isinstance(value, tuple) else (value,)
    return f"{' to '.join(f'{figure:,}' for figure in figures)} {unit}"


def _measured_table(rows: Sequence[Mapping[str, str]]) -> list[str]:
    """Return what all rows have in common, and a table of the rest."""
    if not rows:
        return []
    columns = {title: {row[title] for row in rows} for title in rows[0]}
    # The note of a single measurement is about that one.
    common = [
        title
        for title in _CIRCUMSTANCES
        if len(columns[title]) == 1 and any(columns[title])
        if title != "note" or len(rows) > 1
    ]
    titles = [
        title for title, texts in columns.items() if any(texts) and title not in common
    ]
    facts = [f"{title}: {rows[0][title]}" for title in common]
    lines = [titles, ["---"] * len(titles)]
    lines += [[row[title] for title in titles] for row in rows]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    stated = [f"{'; '.join(facts)}."] if facts else []
    if any(cell.endswith(" ms") for cell in columns["before"]):
        stated.append(_PER_STEP)
    return [*([" ".join(stated)] if stated else []), table]


def _needs(rule: type[Rule]) -> list[str]:
    """Say when a rule is skipped, in the words of the report."""
    lines = [f"- {need.value}" for need in Need if need in rule.needs]
    return ["\n".join(["## When it is skipped", "", *lines])] if lines else []


def _options(rule: type[Rule]) -> list[str]:
    lines = [
        f"- `{option.name} = {_toml(option.default)}` {option.meaning}"
        for option in rule.options()
    ]
    return ["\n".join(["## Options", "", *lines])] if lines else []


def _examples(rule: type[Rule]) -> list[str]:
    """Show what a rule is tested with, and how to read it."""
    legends = dict.fromkeys(_legend(example) for example in rule.examples)
    shown = [_example(example) for example in rule.examples]
    return ["\n\n".join(["## Examples", *legends, *shown])] if shown else []


def _legend(example: Bad | Good) -> str:
    if example.history:
        return _HISTORY
    return _TIMELINE if example.drawing or example.ranks else _LOG


def _example(example: Bad | Good) -> str:
    shown = example.ranks or (example.drawing or example.history or example.log,)
    names = [f"Rank {number}:\n\n" for number in range(len(example.ranks))] or [""]
    texts = [
        name + textwrap.indent(textwrap.dedent(text).strip("\n"), "    ")
        for name, text in zip(names, shown, strict=True)
    ]
    sentences = [f"> {entry}" for entry in getattr(example, "sentences", ())]
    return "\n\n".join([f"### {type(example).__name__}", *texts, *sentences])


def _see(rule: type[Rule]) -> list[str]:
    """Link what the page names of torch; a pack may name more than we have pages of."""
    lines = [
        f"- [{name}]({TORCH_PAGES[name]})" if name in TORCH_PAGES else f"- {name}"
        for name in rule.see
    ]
    return ["\n".join(["## In torch's documentation", "", *lines])] if lines else []


def _toml(value: bool | float | str) -> str:  # noqa: FBT001 - a value of any type
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)
