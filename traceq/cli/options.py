"""Options that several commands share: declared and described in one place."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from traceq.cli import output
from traceq.inputs.display_path import parse_path


def paths_argument(help_text: str, metavar: str = "PATH") -> Any:  # noqa: ANN401 - as Typer has it
    """Return the argument for what is read: files, folders, ``-`` or URLs."""
    return typer.Argument(help=help_text, metavar=metavar, parser=parse_path)


Level = Literal["info", "warning", "error"]
"""Severities of findings, as in ``model.finding.Severity``, which imports more."""
StepSource = Literal["profiler", "annotation", "optimizer", "repeats", "graph", "none"]
"""Origins of steps, as in ``graph.steps.SOURCES``, which imports Polars."""


class TableFormat(str, Enum):
    """Formats of a table."""

    text = "text"
    json = "json"
    csv = "csv"
    markdown = "markdown"


def format_option(formats: type[Enum]) -> Any:  # noqa: ANN401 - as Typer has it
    """Return ``--format`` of a command, with the formats of its own."""
    names = ", ".join(str(item.value) for item in formats)
    return typer.Option("--format", help=f"Output format: {names}.", metavar="FORMAT")


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
    Level | None,
    typer.Option(
        help="Lowest severity that exits 1: info, warning or error.", metavar="LEVEL"
    ),
]
Packs = Annotated[
    list[Path] | None,
    typer.Option("--rules", help="A folder of your own rules.", metavar="FOLDER"),
]
NoPacks = Annotated[
    bool,
    typer.Option(
        "--no-packs", help="Run no rules of packs that a configuration names."
    ),
]
Log = Annotated[
    Path | None,
    typer.Option(
        "--log",
        help="The program's log (stdout, stderr).",
        metavar="FILE",
        parser=parse_path,
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
RankNumber = Annotated[
    int | None,
    typer.Option(
        "--rank",
        help="Rank to read of a run folder or an Nsight Systems export; the lowest,"
        " unless given.",
        metavar="N",
        min=0,
    ),
]
GivenLabels = Annotated[
    list[str] | None,
    typer.Option(
        "--label",
        help="A label of a recording, as trace.json:seq_len=512; run folders have"
        " their own.",
        metavar="FILE:KEY=VALUE",
    ),
]
Runs = Annotated[
    Path | None,
    typer.Option(
        "--runs",
        help="A TOML file of recordings: a table of labels for each path, and step_ms"
        " where it was measured.",
        metavar="FILE",
        exists=True,
        dir_okay=False,
    ),
]
StepsBy = Annotated[
    StepSource | None,
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
        parser=parse_path,
    ),
]
Kernels = Annotated[
    Path | None,
    typer.Option(
        "--kernels",
        help=(
            "Code that inductor generated, for traces without a run folder: the folder"
            " TORCHINDUCTOR_CACHE_DIR or torch_compile_debug, or a log of TORCH_TRACE."
        ),
        metavar="PATH",
        exists=True,
    ),
]
