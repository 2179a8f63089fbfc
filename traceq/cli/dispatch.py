"""Typer application, and one-sentence errors for wrong calls."""

from __future__ import annotations

import os
import sys
from functools import cache
from glob import glob
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.main import get_command

from traceq.cli import output, streams
from traceq.cli.lazy_group import SETTINGS, LazyGroup, example
from traceq.cli.registry import COMMANDS
from traceq.cli.version import say_version

if TYPE_CHECKING:
    from typer.core import MarkupMode

_COMPLETION = "_TRACEQ_COMPLETE"
"""Variable that the completion scripts of shells set."""
_CANNOT_WORK = 2
_PYDANTIC = "Value error, "
"""Prefix of messages since Typer 0.29, which validates with pydantic."""
_HELP = (
    "The linter for GPU traces: what is wrong, where in your code, what it costs per"
    " step and how to fix it.\n\n"
    "Reads saved traces of the PyTorch profiler, without a GPU and without torch: plain"
    " or gzipped, of every torch version, from kilobytes to gigabytes."
)


def _print_version(value: bool) -> None:  # noqa: FBT001 - a callback of Typer
    if value:
        say_version()
        raise typer.Exit


def _root(
    *,
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            help="Print the version.",
            is_eager=True,
            callback=_print_version,
        ),
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", help="Show no progress on a terminal.")
    ] = False,
) -> None:
    """Parse the options before the command."""
    # output.working reads --quiet before any other word is parsed.
    del version, quiet


def _stub() -> None:
    """Stand for a command in the list of all commands."""


def build() -> Any:  # noqa: ANN401 - Typer's groups extend a private type
    """Return the group of all commands, with rich help where there is colour."""
    return _group("rich" if output.color() else None)


@cache
def _group(markup: MarkupMode) -> Any:  # noqa: ANN401 - as above
    app = typer.Typer(
        name="traceq",
        cls=LazyGroup,
        help=_HELP,
        epilog=example("traceq lint trace.json.gz"),
        no_args_is_help=True,
        context_settings=SETTINGS,
        rich_markup_mode=markup,
    )
    app.callback()(_root)
    for name, entry in COMMANDS.items():
        app.command(name, help=entry.help, rich_help_panel=entry.panel)(_stub)
    return get_command(app)


def call(words: list[str]) -> int:
    """Call the command that a command line names, and return the exit status."""
    commands = build()
    if os.environ.get(_COMPLETION):
        commands.main(prog_name="traceq")  # answers the shell, and exits
    try:
        words = _expand(words)
        with commands.make_context("traceq", words, color=output.color()) as context:
            commands.invoke(context)
    except typer.Exit as end:
        # 1 means findings; Typer exits 1 where it knows no completion for a shell.
        return _CANNOT_WORK if end.exit_code else 0
    except typer.TyperException as error:
        _refuse(error)
        return _CANNOT_WORK
    except BrokenPipeError:
        # Nobody reads the rest of the help.
        streams.discard(sys.stdout)
    return 0


def _expand(words: list[str]) -> list[str]:
    """Return the words with the files of patterns, where no shell does that."""
    if os.name != "nt":
        return words
    return [file for word in words for file in sorted(glob(word)) or [word]]  # noqa: PTH207 - texts in, texts out


def _refuse(error: typer.TyperException) -> None:
    """Print in one line what is wrong with the command line."""
    if type(error).__name__ == "NoArgsIsHelpError":
        # Its message is the help, or empty after rich has printed it.
        sys.stderr.write(error.format_message() + "\n")
        return
    text = " ".join(error.format_message().split()).rstrip(". ")
    text = text.replace(_PYDANTIC, "", 1)
    context = getattr(error, "ctx", None)
    command = context.command_path if context else _called()
    output.say(f"{text[:1].lower()}{text[1:]}; {command} --help lists what there is")


def _called() -> str:
    """Return the command that was called, for an error without a context."""
    names = [word for word in sys.argv[1:2] if word in COMMANDS]
    return " ".join(["traceq", *names])
