"""Typer group of stub commands: only the command that is called is imported."""

from __future__ import annotations

import inspect
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from traceq.cli.registry import COMMANDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from typer.core import MarkupMode

SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


class LazyGroup(TyperGroup):
    """A group that lists stubs, and replaces the one that is called by its command."""

    # Typer's contexts and formatters are of private types.
    def get_params(self, ctx: Any) -> list[Any]:  # noqa: ANN401
        """Return the flags, each with a default.

        Typer 0.29 imports pydantic (0.1 s) to validate a flag without one, as --help.
        """
        flags: list[Any] = super().get_params(ctx)
        for flag in flags:
            flag.default = flag.default or False
        return flags

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:  # noqa: ANN401
        """Return the name of the called command, the command, and its arguments."""
        name, command, rest = super().resolve_command(ctx, args)
        if name is not None:
            command = load_command(name, self.rich_markup_mode)
        return name, command, rest

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401
        """Write a section per panel, as Typer does only where there is colour."""
        names = self.list_commands(ctx)
        widest = max(map(len, names))
        panels: dict[str, list[tuple[str, str]]] = {}
        for name in names:
            entry = COMMANDS[name]
            row = (name.ljust(widest), entry.help)
            panels.setdefault(entry.panel, []).append(row)
        for panel, rows in panels.items():
            with formatter.section(panel):
                formatter.write_dl(rows)


@cache
def load_command(name: str, markup: MarkupMode) -> Any:  # noqa: ANN401 - a private type
    """Return the command of this name with its options, imported now."""
    entry = COMMANDS[name]
    place, _, attribute = entry.place.partition(":")
    module = import_module(f"traceq.cli.{place}")
    target = getattr(module, attribute)
    app = typer.Typer(
        name=name,
        help=entry.help,
        epilog=example(entry.example),
        no_args_is_help=True,
        add_completion=False,
        context_settings=SETTINGS,
        rich_markup_mode=markup,
    )
    if callable(target):
        app.command(
            name,
            help=_unwrap(target),
            cls=getattr(module, "COMMAND_CLASS", None),
            epilog=example(entry.example),
            context_settings=SETTINGS,
        )(target)
    else:
        for sub_name, function in target.items():
            epilog = example(f"traceq {name} {sub_name}")
            app.command(sub_name, help=_unwrap(function), epilog=epilog)(function)
    return get_command(app)


def _unwrap(function: Callable[..., None]) -> str:
    """Return the docstring with one line per paragraph, as rich keeps line breaks."""
    paragraphs = (inspect.getdoc(function) or "").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def example(call: str) -> str:
    """Return the end of a help: an example on a line of its own, to be copied."""
    # Typer leaves the line breaks of a paragraph as they are after \b.
    return f"\b\nExample:\n  {call}"
