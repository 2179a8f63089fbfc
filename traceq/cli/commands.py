"""The commands: each is imported when it is called.

A command's module imports what it works with when it runs, so that its help and its
completion wait for nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from traceq.cli.parameters import parameters_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


class Entry(NamedTuple):
    """A command before it is imported: where it is, and what --help lists of it."""

    place: str
    """Module and function, or functions by the names of several commands."""
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
        "cache:COMMANDS",
        "Show or clear the cache of what was read and found before.",
        "traceq cache clear",
    ),
}


class Formatter(click.HelpFormatter):
    """Help with bold headings; where there is no colour, click leaves them plain."""

    def write_heading(self, heading: str) -> None:
        """Write what is above a section."""
        bold = click.style(f"{heading}:", bold=True)
        self.write(f"{'':>{self.current_indent}}{bold}\n")


class _Context(click.Context):
    formatter_class = Formatter


class Command(click.Command):
    """A command whose help explains its arguments, too, and ends in an example."""

    context_class = _Context

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write all that there is to know for a call."""
        self.format_usage(ctx, formatter)
        self.format_help_text(ctx, formatter)
        _write_parameters(self, ctx, formatter)
        _write_example(self, formatter)


class Several(click.Group):
    """A command of several commands."""

    context_class = _Context

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write all that there is to know for a call."""
        self.format_usage(ctx, formatter)
        self.format_help_text(ctx, formatter)
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, one.help or "") for name, one in self.commands.items()]
            )
        _write_parameters(self, ctx, formatter)
        _write_example(self, formatter)

    def list_commands(self, _ctx: click.Context) -> list[str]:
        """Return the commands, as they are listed in the sources: the first first."""
        return list(self.commands)


class Commands(Several):
    """The group of all commands; the one that is called is imported, no other."""

    def __init__(self, **settings: Any) -> None:  # noqa: ANN401 - as click's own
        """Take what click takes, and list every command by its entry."""
        super().__init__("traceq", context_settings=_SETTINGS, **settings)
        self.commands = {
            name: click.Command(name, help=entry.help)
            for name, entry in COMMANDS.items()
        }

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that is called, imported, and the rest of the line."""
        if args[0] not in self.commands and not ctx.resilient_parsing:
            ctx.fail(_unknown(args[0]))
        name, command, rest = super().resolve_command(ctx, args)
        return name, imported(name) if name else command, rest


def _unknown(word: str) -> str:
    from difflib import get_close_matches

    near = get_close_matches(word, COMMANDS, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return f"No such command {word!r}.{hint}"


def imported(name: str) -> click.Command:
    """Return a command with its options."""
    entry = COMMANDS[name]
    module, _, attribute = entry.place.partition(":")
    called = getattr(import_module(f"traceq.cli.{module}"), attribute)
    if callable(called):
        return _command(name, called, entry.example)
    return _several(name, called, entry)


def _command(name: str, function: Callable[..., None], example: str) -> click.Command:
    parser = getattr(function, "parser", Command)
    parameters, call = parameters_of(function)
    return parser(
        name,
        callback=call,
        params=parameters,
        help=function.__doc__,
        epilog=example,
        context_settings=_SETTINGS,
    )


def _several(
    name: str, functions: Mapping[str, Callable[..., None]], entry: Entry
) -> click.Group:
    group = Several(
        name,
        help=entry.help,
        epilog=entry.example,
        no_args_is_help=True,
        context_settings=_SETTINGS,
    )
    for one, function in functions.items():
        group.add_command(_command(one, function, f"traceq {name} {one}"))
    return group


def _write_parameters(
    command: click.Command, ctx: click.Context, formatter: click.HelpFormatter
) -> None:
    """Write what may be given: arguments first."""
    sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
    for one in command.get_params(ctx):
        name = "Arguments" if isinstance(one, click.Argument) else "Options"
        if record := one.get_help_record(ctx):
            sections[name].append(record)
    for name, rows in sections.items():
        if rows:
            with formatter.section(name):
                formatter.write_dl(rows)


def _write_example(command: click.Command, formatter: click.HelpFormatter) -> None:
    """Write the example on a line of its own, which is copied whole."""
    with formatter.section("Example"):
        formatter.write(f"  {command.epilog}\n")
