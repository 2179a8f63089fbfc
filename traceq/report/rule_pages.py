"""Pages on rules, made of what is in their files."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from rich.markdown import Markdown

from traceq.report.base.text import rendered

if TYPE_CHECKING:
    from traceq.linter.pack import Rules
    from traceq.linter.rule import Bad, Good, Rule

# Longer lines are hard to read.
_WIDEST = 100


def listing(rules: Rules) -> str:
    """Return the rules, a line each."""
    widest = max((len(rule.name()) for rule in rules.values()), default=0)
    return "".join(
        f"{code}  {rule.name():<{widest}}  {rule.summary()}\n"
        for code, rule in rules.items()
    )


def table(rules: Rules) -> str:
    """Return the rules as a table in Markdown."""
    lines = ["| code | rule | finds |", "| --- | --- | --- |"]
    lines += [
        f"| {code} | {rule.name()} | {rule.summary()} |" for code, rule in rules.items()
    ]
    return "\n".join(lines) + "\n"


def page(rule: type[Rule]) -> str:
    """Return the page of a rule."""
    parts = [f"# {rule.name()} ({rule.code})", *_status(rule), rule.page()]
    if rule.needs:
        names = sorted(need.name.lower().replace("_", " ") for need in rule.needs)
        needs = ", ".join(names)
        parts.append(f"## Needs\n\n{needs}")
    if rule.options():
        lines = [
            f"- `{option.name} = {_toml(option.default)}` {option.meaning}"
            for option in rule.options()
        ]
        parts.append("\n".join(["## Options", "", *lines]))
    parts += [_example(example) for example in rule.examples]
    return "\n\n".join(parts) + "\n"


def rendered_page(page: str, *, width: int, color: bool) -> str:
    """Return a page for a terminal: headings, lists and code instead of their marks."""
    return rendered([Markdown(page)], width=min(width, _WIDEST), color=color)


def _status(rule: type[Rule]) -> list[str]:
    """Say since when a rule exists, and whether it is on trial."""
    since = f"Since {rule.since}." if rule.since else ""
    trial = "Preview: its findings never fail a run." if rule.preview else ""
    return [" ".join(filter(None, (since, trial)))] if since or trial else []


def _example(example: Bad | Good) -> str:
    drawing = textwrap.dedent(example.drawing or example.history).strip("\n")
    text = drawing or example.log.strip("\n")
    sentences = getattr(example, "sentences", ())
    found = "".join(f"\n\n> {sentence}" for sentence in sentences)
    return f"## {type(example).__name__}\n\n{textwrap.indent(text, '    ')}{found}"


def _toml(value: bool | float | str) -> str:  # noqa: FBT001 - a value of any type
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)
