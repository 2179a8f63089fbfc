"""Reference page of the commands and their options, generated from the command line.

python docs/command_reference.py    writes docs/cli.md; so does `make goldens`, and a
                                    test holds the page to it
"""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import TYPE_CHECKING, Any

from traceq.cli.collect import COMPLETIONS
from traceq.cli.lazy_group import load_command
from traceq.cli.registry import COMMANDS
from traceq.common.locations import bundled

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = Path(__file__).parent / "cli.md"
_INTRODUCTION = """\
# Command reference

Every command with its arguments and options, as `traceq COMMAND --help` prints them;
[Commands](commands.md) is the short list. `-h` and `--help` work everywhere, `--quiet`
before the command hides progress. This page is generated from the command line's own
definitions.
"""


def page() -> str:
    """Return the text of the page."""
    parts = [_INTRODUCTION]
    panels: dict[str, list[str]] = {}
    for name, entry in COMMANDS.items():
        panels.setdefault(entry.panel, []).append(name)
    links = [
        f"- **{panel}**: {', '.join(f'[{name}](#{name})' for name in names)}"
        for panel, names in panels.items()
    ]
    parts.append("\n".join(links) + "\n")
    for name, entry in COMMANDS.items():
        command = load_command(name, None)
        parts += [f"## {name}\n", *_sections(command, f"traceq {name}")]
        parts.append(f"Example: `{entry.example}`\n")
    return "\n".join(parts)


def _sections(command: Any, call: str) -> Iterator[str]:  # noqa: ANN401 - a private type
    """Yield the help and the table of a command, and those of its subcommands."""
    if command.help:
        yield _markdown(command.help) + "\n"
    subcommands = getattr(command, "commands", {})
    rows = [_row(one) for one in command.params if not _is_help(one)]
    unparsed = COMPLETIONS.get(command.name)
    if unparsed:
        rows = list(_collect_rows(unparsed))
    if rows and (unparsed or not subcommands):
        lines = ["| argument or option | default | meaning |", "| --- | --- | --- |"]
        yield "\n".join([*lines, *rows]) + "\n"
    for name, subcommand in subcommands.items():
        yield f"### {call.removeprefix('traceq ')} {name}\n"
        yield from _sections(subcommand, f"{call} {name}")


def _collect_rows(completions: str) -> Iterator[str]:
    """Yield the rows of collect, which parses its own words and runs without traceq."""
    yield "| `COMMAND` | required | The program and its arguments, after `--`. |"
    main = runpy.run_path(str(bundled("collect")), run_name="collect")
    for option, meaning in main[completions]([], "--"):
        if option in ("--", "--help"):
            continue
        yield f"| `{option}` |  | {_markdown(meaning)[:1].upper()}{meaning[1:]}. |"


def _is_help(parameter: Any) -> bool:  # noqa: ANN401 - a private type
    return "--help" in parameter.opts or getattr(parameter, "hidden", False)


def _row(parameter: Any) -> str:  # noqa: ANN401 - a private type
    """Return the table row of an argument or option."""
    if parameter.param_type_name == "argument":
        names = f"`{parameter.metavar or parameter.name.upper()}`"
    else:
        value = "" if parameter.is_flag else f" {parameter.metavar or 'VALUE'}"
        every = [*parameter.opts, *parameter.secondary_opts]
        names = ", ".join(f"`{one}{value}`" for one in every)
    meaning = _markdown(parameter.help or "").replace("|", r"\|")
    return f"| {names} | {_default(parameter)} | {meaning} |"


def _default(parameter: Any) -> str:  # noqa: ANN401 - a private type
    default = parameter.default
    if default in (None, "") or default is False or default == () or callable(default):
        return "required" if parameter.required else ""
    return f"`{getattr(default, 'value', default)}`"


def _markdown(text: str) -> str:
    """Return a help text on one line per paragraph, without Typer's marks."""
    paragraphs = text.replace("\b", "").split("\n\n")
    lines = (re.sub(r"\s+", " ", one).strip() for one in paragraphs)
    return "\n\n".join(one.replace("<", "&lt;") for one in lines if one)


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
