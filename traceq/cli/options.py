"""Options that several commands share: declared, described and read in one place."""

from __future__ import annotations

from contextvars import ContextVar
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from traceq.cli import output
from traceq.cli.trust import with_trusted_packs
from traceq.linter.config import find_config, own_names, read_config
from traceq.shown import typed
from traceq.units import NS_PER_MS

if TYPE_CHECKING:
    from typer.models import ArgumentInfo

    from traceq.linter.config import Config


def paths_argument(help_text: str, metavar: str = "PATH") -> ArgumentInfo:
    """Return the argument for what is read: files, folders, ``-`` or URLs."""
    return typer.Argument(help=help_text, metavar=metavar, parser=typed)


class TableFormat(str, Enum):
    """How to write what is a table first of all."""

    text = "text"
    json = "json"
    csv = "csv"
    markdown = "markdown"


FORMAT = typer.Option("--format", help="Output format.")
"""For ``Annotated[Format, FORMAT]``: each command has formats of its own."""

OutputFile = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        help="Write the report to this file, not to standard output.",
        metavar="FILE",
    ),
]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Overwrite the file if it exists.")
]


def renamed(old: str, new: str) -> None:
    """Say how an option is called now that is kept for those who know it."""
    output.say(f"{old} is now {new}")


ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        help="Configuration to use instead of the nearest traceq.toml.",
        metavar="FILE",
    ),
]
FailOn = Annotated[
    str | None,
    typer.Option(
        help="Lowest severity that exits 1: info, warning or error.", metavar="LEVEL"
    ),
]
Packs = Annotated[
    list[Path] | None,
    typer.Option("--rules", help="A folder of your own rules.", metavar="FOLDER"),
]
Log = Annotated[
    Path | None,
    typer.Option(
        "--log",
        help="The program's log (stdout, stderr).",
        metavar="FILE",
        parser=typed,
    ),
]
StepMs = Annotated[
    float | None,
    typer.Option(
        "--step-ms",
        help="Step time measured without the profiler, in ms; a run folder has it.",
        metavar="MS",
        min=0.000001,
    ),
]
NoCache = Annotated[
    bool,
    typer.Option("--no-cache", help="Neither read nor write the table cache."),
]
Own = Annotated[
    list[str] | None,
    typer.Option(
        "--own",
        help="A package, or a folder of them, that is your own code, not a library.",
        metavar="NAME",
    ),
]
StepsBy = Annotated[
    str | None,
    typer.Option(
        "--steps-by",
        help="What steps are taken from: profiler, annotation, optimizer, repeats,"
        " graph or none; unless given, the first that tells any.",
        metavar="SOURCE",
    ),
]
Root = Annotated[
    Path | None,
    typer.Option(
        "--root",
        help="Where the source is; the git repository around here, unless given.",
        metavar="DIR",
        exists=True,
        file_okay=False,
    ),
]
Captures = Annotated[
    list[Path] | None,
    typer.Option(
        "--capture",
        help=(
            "A trace in which CUDA graphs were captured that the traces replay; a run"
            " folder has its own."
        ),
        metavar="FILE",
        parser=typed,
    ),
]
Kernels = Annotated[
    Path | None,
    typer.Option(
        "--kernels",
        help=(
            "Folder with the code that inductor generated (TORCHINDUCTOR_CACHE_DIR or"
            " torch_compile_debug), for traces without a run folder."
        ),
        metavar="DIR",
        exists=True,
        file_okay=False,
    ),
]
_kernels: ContextVar[Path | None] = ContextVar("kernels", default=None)


def use_kernels(folder: Path | None) -> None:
    """Take what kernels of compiled code compute from this folder."""
    _kernels.set(folder)


def given_kernels() -> Path | None:
    """Return the folder of generated code, as ``use_kernels`` was told."""
    return _kernels.get()


_captures: ContextVar[tuple[Path, ...]] = ContextVar("captures", default=())


def use_captures(files: list[Path] | None) -> None:
    """Take the ops of replayed CUDA graphs from these traces of captures."""
    _captures.set(tuple(files or ()))


def given_captures() -> tuple[Path, ...]:
    """Return the traces of captures, as ``use_captures`` was told."""
    return _captures.get()


_own: ContextVar[frozenset[str]] = ContextVar("own", default=frozenset())
_steps_by: ContextVar[str] = ContextVar("steps_by", default="")


def use_own(
    names: list[str] | None, config: Config | None = None, steps_by: str | None = None
) -> None:
    """Take these, and what the configuration names, for the user's own code.

    Take steps from what the command line says, else from what the configuration says.
    """
    here = Path.cwd()
    config = config or find_config(here)
    _own.set(own_names(names or (), here) | config.own_code)
    _steps_by.set(steps_by or config.steps_by)


def own_code() -> frozenset[str]:
    """Return the packages that are the user's own, as ``use_own`` was told."""
    return _own.get()


def steps_source() -> str:
    """Return what steps are taken from, as ``use_own`` was told; empty for any."""
    return _steps_by.get()


def configuration(file: Path | None) -> Config:
    """Return the configuration in a file, else the nearest one with packs to trust."""
    if file:
        return read_config(file)
    here = Path.cwd()
    return with_trusted_packs(find_config(here), here)


def nanoseconds(step_ms: float | None) -> int | None:
    """Return a step time that was given in milliseconds."""
    return round(step_ms * NS_PER_MS) if step_ms else None
