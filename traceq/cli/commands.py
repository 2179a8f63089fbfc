"""The commands: each is imported when it is called, since that takes longest."""

from __future__ import annotations

from importlib import import_module
from typing import Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_group


class Entry(NamedTuple):
    """A command before it is imported: where it is, and what --help lists of it."""

    place: str
    """Module and function, or Typer application of several commands."""
    help: str
    """The first sentence of the function's docstring; a test holds them together."""
    example: str


COMMANDS = {
    "lint": Entry(
        "lint:command",
        "Report what is wrong in a trace or a memory snapshot, worst first, with a"
        " fix.",
        "traceq lint trace.json.gz --log train.log",
    ),
    "report": Entry(
        "report:command",
        "Write one page to look at: verdict, findings, a step as a picture, flame"
        " graph.",
        "traceq report trace.json.gz -o report.html",
    ),
    "annotate": Entry(
        "annotate:command",
        "Write the trace with its findings as tracks, to open in Perfetto.",
        "traceq annotate trace.json.gz -o annotated.json.gz",
    ),
    "open": Entry(
        "open:command",
        "Show a trace with its findings in Perfetto, in this machine's browser.",
        "traceq open trace.json.gz",
    ),
    "check": Entry(
        "check:command",
        "Lint the fixtures and compare: findings with findings.json, numbers with"
        " budgets.",
        "traceq check fixtures",
    ),
    "shrink": Entry(
        "shrink:command",
        "Make a small trace of a large one, with the same findings and no private"
        " data.",
        "traceq shrink trace.json.gz -o fixtures/attention",
    ),
    "diff": Entry(
        "diff:command",
        "Show what changed in a step from one recording to another, and why.",
        "traceq diff before.json.gz after.json.gz",
    ),
    "rules": Entry(
        "rules:list_command",
        "List the rules: code, name, and what each one finds. Or start a new one.",
        "traceq rules",
    ),
    "rule": Entry(
        "rules:page_command",
        "Print a rule's page: what it finds, why that is bad, how to fix it.",
        "traceq rule SYN001",
    ),
    "test": Entry(
        "test_pack:command",
        "Run the examples of a rule pack: Bad must find its sentences, Good nothing.",
        "traceq test ci/my_rules",
    ),
    "summary": Entry(
        "summary:command",
        "Show where the time of a step goes: what bounds it, phases, ops, kernels,"
        " memory.",
        "traceq summary before.json.gz after.json.gz",
    ),
    "regions": Entry(
        "regions:command",
        "Show what each region or module costs: host, GPU, its backward, idle time.",
        "traceq regions trace.json.gz --compare EMA_FFT EMA_SEQ",
    ),
    "roofline": Entry(
        "roofline:command",
        "Show how far each op is from what the GPU can do, and what that costs a step.",
        "traceq roofline trace.json.gz",
    ),
    "ranks": Entry(
        "ranks:command",
        "Show which ranks of a job hold the others up, by how much, and why.",
        "traceq ranks traces/",
    ),
    "memory": Entry(
        "memory:command",
        "Show what holds the GPU's memory at its peak: by category, module and your"
        " line.",
        "traceq memory snapshot.pickle",
    ),
    "query": Entry(
        "query:command",
        "Query the tables of a trace in SQL; `traceq schema` describes them.",
        'traceq query trace.json "SELECT name, sum(dur) AS ns FROM kernels GROUP BY'
        ' name ORDER BY ns DESC LIMIT 5"',
    ),
    "schema": Entry(
        "schema:command",
        "Describe the columns of each table: type, unit and meaning.",
        "traceq schema kernels",
    ),
    "collect": Entry(
        "collect:command",
        "Run an unmodified PyTorch program and record a few of its steps.",
        "traceq collect -- python train.py",
    ),
    "cache": Entry(
        "cache:app",
        "Show or clear the cache of tables of traces that were read before.",
        "traceq cache clear",
    ),
}


class Commands(TyperGroup):
    """The group of all commands; the one that is called is imported, no other."""

    def __init__(self, **settings: Any) -> None:  # noqa: ANN401 - as typer's own
        """Take what typer gives, and list every command by its entry."""
        super().__init__(**settings)
        self.commands = {
            name: TyperCommand(name, help=entry.help)
            for name, entry in COMMANDS.items()
        }

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:  # noqa: ANN401
        """Return the command that is called, imported, and the rest of the line."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, imported(name) if name else command, rest


def imported(name: str) -> Any:  # noqa: ANN401 - a command of whichever click typer has
    """Return a command with its options."""
    entry = COMMANDS[name]
    module, _, attribute = entry.place.partition(":")
    called = getattr(import_module(f"traceq.cli.{module}"), attribute)
    app = typer.Typer(
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    if isinstance(called, typer.Typer):
        app.add_typer(called, name=name)
    else:
        example = f"Example:  [bold]{entry.example}[/bold]"
        app.command(name, epilog=example, cls=getattr(called, "parser", None))(called)
    return get_group(app).commands[name]
