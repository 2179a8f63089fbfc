"""The application: its commands, its errors, its exit statuses."""

from __future__ import annotations

import errno
import os
import sys
from contextlib import nullcontext
from contextvars import copy_context
from typing import Annotated, Any

import typer

from traceq import __version__
from traceq.cli import interruption, output, streams
from traceq.cli.commands import COMMANDS, Commands
from traceq.errors import TraceqError

CANNOT_WORK = 2
# The base of what typer raises for a wrong command line, whichever click it uses.
_WRONG_CALL: Any = typer.BadParameter.__mro__[1]
# The disk, the user's share of it, or what a file may take is used up.
_FULL = (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC), errno.EFBIG)

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    help=(
        "The linter for GPU traces: what is wrong, where in your code, what it costs"
        " per step and how to fix it.\n\n"
        "Reads saved traces of the PyTorch profiler, without a GPU and without torch:"
        " plain or gzipped, of every torch version, from kilobytes to gigabytes."
    ),
    epilog="Example:  [bold]traceq lint trace.json.gz[/bold]",
)


def _print_version(value: bool) -> None:  # noqa: FBT001 - typer calls it so
    if value:
        output.write(f"traceq {__version__}\n")
        raise typer.Exit


@app.callback()
def _traceq(
    *,
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_print_version,
            is_eager=True,
            help="Print the version.",
        ),
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", help="Show no progress on a terminal.")
    ] = False,
) -> None:
    """Lint GPU traces."""


def run() -> None:
    """Run the command line; exit 2 if traceq could not do its work."""
    try:
        # What options set for a command ends with it.
        copy_context().run(_run)
    except TraceqError as error:
        output.say(str(error))
        sys.exit(CANNOT_WORK)
    except Exception as error:
        if interruption.came() or os.environ.get("TRACEQ_TRACEBACK"):
            raise
        output.say(_sentence(error))
        sys.exit(CANNOT_WORK)


def _run() -> None:
    try:
        with output.working(sys.argv[1:]):
            status = app(standalone_mode=False)
    except _WRONG_CALL as error:
        _refuse(error)
        status = CANNOT_WORK
    except SystemExit as end:
        # What prints the help ends with 1 where nobody reads all of it.
        if not isinstance(end.__context__, BrokenPipeError):
            raise
        streams.discard(sys.stdout)
        sys.exit(0)
    finally:
        # Here, where an interruption is caught, and not when Python ends.
        _finish()
    if isinstance(status, int):
        sys.exit(status)


def _finish() -> None:
    """Write what is to be kept, and remove what is not; nothing if nothing was read."""
    if cache := sys.modules.get("traceq.cache"):
        busy = cache.busy()
        with output.finishing("writing the cache") if busy else nullcontext():
            cache.finish()
    if given := sys.modules.get("traceq.given"):
        given.clean()


def _refuse(error: Any) -> None:  # noqa: ANN401 - typer has no name for it
    """Say in one line what is wrong with the command line."""
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
        return
    text = error.format_message().replace("Value error, ", "").rstrip(". ")
    text = " ".join(text.split())
    command = error.ctx.command_path if error.ctx else _called()
    output.say(f"{text[:1].lower()}{text[1:]}; {command} --help lists what there is")


def _called() -> str:
    """Return the command that was called, where click does not say it."""
    names = [word for word in sys.argv[1:2] if word in COMMANDS]
    return " ".join(["traceq", *names])


def _sentence(error: Exception) -> str:
    if isinstance(error, OSError) and error.errno in _FULL:
        streams.discard(sys.stdout)
        return f"{error.filename or 'the output'} cannot be written: {error.strerror}"
    return (
        f"internal error, {type(error).__name__}: {error}; set TRACEQ_TRACEBACK=1"
        " for the traceback, and report it with the file if you can"
    )
