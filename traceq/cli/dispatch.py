"""Command dispatch: the group of all commands, and usage errors."""

from __future__ import annotations

import os
import sys
from glob import glob
from typing import TYPE_CHECKING

import click

from traceq import __version__
from traceq.cli import completion, output, streams
from traceq.cli.commands import COMMANDS, Commands

if TYPE_CHECKING:
    from collections.abc import Callable

_WRONG = 2


def _flag(name: str, text: str, does: Callable[[], str] | None = None) -> click.Option:
    """Return a flag before the command; with ``does`` it prints that, and ends."""

    def told(context: click.Context, _: click.Parameter, value: bool) -> None:  # noqa: FBT001
        if value and does:
            output.write(does())
            context.exit()

    return click.Option(
        [name],
        is_flag=True,
        expose_value=False,
        is_eager=True,
        callback=told,
        help=text,
    )


app: Commands = Commands(
    no_args_is_help=True,
    help=(
        "The linter for GPU traces: what is wrong, where in your code, what it costs"
        " per step and how to fix it.\n\n"
        "Reads saved traces of the PyTorch profiler, without a GPU and without torch:"
        " plain or gzipped, of every torch version, from kilobytes to gigabytes."
    ),
    epilog="traceq lint trace.json.gz",
    params=[
        _flag("--version", "Print the version.", lambda: f"traceq {__version__}\n"),
        # output.working reads it, before any other word is.
        _flag("--quiet", "Show no progress on a terminal."),
        _flag(
            "--install-completion",
            "Make your shell complete commands, options and codes of rules.",
            lambda: f"{completion.install(app)}: open a new shell to use it\n",
        ),
        _flag(
            "--show-completion",
            "Print the script that does, to install it yourself.",
            lambda: completion.script(app),
        ),
    ],
)


def call(words: list[str]) -> int:
    """Call what the words of a command line say, and return the exit status."""
    if asked := os.environ.get(completion.ASKED):
        return completion.answer(app, asked)
    try:
        given = _expanded(words)
        with app.make_context("traceq", given, color=output.color()) as context:
            app.invoke(context)
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.UsageError as error:
        _refuse(error)
        return _WRONG
    except BrokenPipeError:
        # Nobody reads the rest of the help.
        streams.discard(sys.stdout)
    return 0


def _expanded(words: list[str]) -> list[str]:
    """Return the words with the files of patterns, where no shell does that."""
    if os.name != "nt":
        return words
    return [file for word in words for file in sorted(glob(word)) or [word]]  # noqa: PTH207 - texts in, texts out


def _refuse(error: click.UsageError) -> None:
    """Say in one line what is wrong with the command line."""
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
        return
    text = " ".join(error.format_message().split()).rstrip(". ")
    command = error.ctx.command_path if error.ctx else _called()
    output.say(f"{text[:1].lower()}{text[1:]}; {command} --help lists what there is")


def _called() -> str:
    """Return the command that was called, where click does not say it."""
    names = [word for word in sys.argv[1:2] if word in COMMANDS]
    return " ".join(["traceq", *names])
