"""Options that several commands share: declared and described in one place."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

from traceq.cli import output
from traceq.cli.parameters import Argument, Option
from traceq.inputs.display_path import typed


def paths_argument(help_text: str, metavar: str = "PATH") -> Argument:
    """Return the argument for what is read: files, folders, ``-`` or URLs."""
    return Argument(help=help_text, metavar=metavar, parser=typed)


class TableFormat(str, Enum):
    """How to write what is a table first of all."""

    text = "text"
    json = "json"
    csv = "csv"
    markdown = "markdown"


FORMAT = Option("--format", help="Output format.")
"""For ``Annotated[Format, FORMAT]``: each command has formats of its own."""

OutputFile = Annotated[
    Path | None,
    Option(
        "--output",
        "-o",
        help="Write the report to this file, not to standard output.",
        metavar="FILE",
    ),
]
Overwrite = Annotated[
    bool, Option("--overwrite", help="Overwrite the file if it exists.")
]


def renamed(old: str, new: str) -> None:
    """Say how an option is called now that is kept for those who know it."""
    output.say(f"{old} is now {new}")


ConfigFile = Annotated[
    Path | None,
    Option(
        "--config",
        help="Configuration to use instead of the nearest traceq.toml.",
        metavar="FILE",
    ),
]
FailOn = Annotated[
    str | None,
    Option(
        help="Lowest severity that exits 1: info, warning or error.", metavar="LEVEL"
    ),
]
Packs = Annotated[
    list[Path] | None,
    Option("--rules", help="A folder of your own rules.", metavar="FOLDER"),
]
NoPacks = Annotated[
    bool,
    Option("--no-packs", help="Run no rules of packs that a configuration names."),
]
Log = Annotated[
    Path | None,
    Option(
        "--log",
        help="The program's log (stdout, stderr).",
        metavar="FILE",
        parser=typed,
    ),
]
StepMs = Annotated[
    float | None,
    Option(
        "--step-ms",
        help="Step time measured without the profiler, in ms; a run folder has it.",
        metavar="MS",
        at_least=0.000001,
    ),
]
NoCache = Annotated[
    bool,
    Option("--no-cache", help="Neither read nor write the table cache."),
]
Own = Annotated[
    list[str] | None,
    Option(
        "--own",
        help="A package, or a folder of them, that is your own code, not a library.",
        metavar="NAME",
    ),
]
GivenLabels = Annotated[
    list[str] | None,
    Option(
        "--label",
        help="A label of a recording, as trace.json:seq_len=512; run folders have"
        " their own.",
        metavar="FILE:KEY=VALUE",
    ),
]
Runs = Annotated[
    Path | None,
    Option(
        "--runs",
        help="A TOML file of recordings: a table of labels for each path, and step_ms"
        " where it was measured.",
        metavar="FILE",
        exists=True,
        dir_okay=False,
    ),
]
StepsBy = Annotated[
    str | None,
    Option(
        "--steps-by",
        help="What steps are taken from: profiler, annotation, optimizer, repeats,"
        " graph or none; unless given, the first that tells any.",
        metavar="SOURCE",
    ),
]
Root = Annotated[
    Path | None,
    Option(
        "--root",
        help="Where the source is; the git repository around here, unless given.",
        metavar="DIR",
        exists=True,
        file_okay=False,
    ),
]
Captures = Annotated[
    list[Path] | None,
    Option(
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
    Option(
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
