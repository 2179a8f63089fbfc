"""`traceq sweep`: run a program over a grid, and report on it."""

from __future__ import annotations

import sys
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer
from typer.main import get_command

from traceq.cli import output
from traceq.cli.collect import UnparsedCommand, collect_function
from traceq.cli.deliver import deliver, refuse_to_lose
from traceq.cli.lazy_group import SETTINGS, example
from traceq.cli.options import NoCache, OutputFile, Overwrite, format_option
from traceq.errors import UsageError

if TYPE_CHECKING:
    from traceq.report.sweeps.shown import ShownSweep


class SweepFormat(str, Enum):
    """Formats of the report on a sweep."""

    text = "text"
    json = "json"
    csv = "csv"
    markdown = "markdown"
    latex = "latex"
    html = "html"


def command(context: typer.Context) -> None:
    """Run a program over a grid of configurations, measure each, and compare them.

    `traceq sweep report DIR` reports on what was measured.
    """
    if context.args[:1] == ["report"]:
        subcommand = report_command()
        name = "traceq sweep report"
        with subcommand.make_context(name, context.args[1:]) as inner:
            subcommand.invoke(inner)
        return
    sys.exit(collect_function("sweep")(context.args, "traceq sweep"))


def report_command() -> Any:  # noqa: ANN401 - of a private type
    """Return `traceq sweep report` as a command of its own."""
    app = typer.Typer(add_completion=False, context_settings=SETTINGS)
    epilog = example("traceq sweep report traceq-runs/attention --format html")
    app.command("report", epilog=epilog)(report)
    return get_command(app)


class SweepCommand(UnparsedCommand):
    """Command of words that collect/ parses, with a report that Typer does."""

    @property
    def commands(self) -> dict[str, Any]:
        """The subcommand, for the reference of commands."""
        return {"report": report_command()}


COMMAND_CLASS = SweepCommand


def report(
    folder: Annotated[
        Path,
        typer.Argument(help="Folder of a sweep.", metavar="DIR", show_default=False),
    ],
    *,
    over: Annotated[
        str | None,
        typer.Option(
            help="Label that numbers are drawn over; that of numbers, unless named.",
            metavar="LABEL",
        ),
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(
            help="Label whose values are drawn as series, over each other.",
            metavar="LABEL",
        ),
    ] = None,
    number: Annotated[
        list[str] | None,
        typer.Option(
            help="Number to draw, as step, peak_memory, tokens_per_s, mfu or one of"
            " the program's own; repeatable. All of them, unless named.",
            metavar="NAME",
        ),
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(
            help="Show ratios to the configurations with this label, as"
            " attention=dense.",
            metavar="LABEL=VALUE",
        ),
    ] = None,
    log: Annotated[
        str,
        typer.Option(
            help="Log axes of the charts: auto, none, x, y or xy.", metavar="AXES"
        ),
    ] = "auto",
    peak_tflops: Annotated[
        float | None,
        typer.Option(
            help="Peak of the GPU for MFU, in place of what the sweep says.",
            metavar="N",
            min=0.001,
        ),
    ] = None,
    no_lint: Annotated[
        bool,
        typer.Option(
            "--no-lint", help="Do not read the traces: no findings, no FLOPs of them."
        ),
    ] = False,
    form: Annotated[SweepFormat, format_option(SweepFormat)] = SweepFormat.text,
    file: OutputFile = None,
    overwrite: Overwrite = False,
    no_cache: NoCache = False,
) -> None:
    """Compare the configurations of a sweep: tables, charts, ratios, what grows.

    A table as text, Markdown, CSV or LaTeX, all numbers as JSON, or a page with
    charts. A run that failed is a row with its reason.
    """
    from traceq.api.sweep_report import ReportOptions, sweep_report
    from traceq.report.page.error_bars import Log

    if log not in get_args(Log):
        msg = f"--log {log}: choose one of {', '.join(get_args(Log))}"
        raise UsageError(msg)
    if form is SweepFormat.html and file is None:
        file = Path("sweep.html")
    refuse_to_lose(file, [], overwrite=overwrite)
    shown = sweep_report(
        folder,
        ReportOptions(
            over=over,
            by=by,
            numbers=number or (),
            baseline=baseline,
            peak_tflops=peak_tflops,
            lint=not no_lint,
            cache=not no_cache,
        ),
    )
    deliver(_rendered(shown, form, file, log), file)
    if file is not None:
        output.say(f"written to {file}")


def _rendered(
    shown: ShownSweep,
    form: SweepFormat,
    file: Path | None,
    log: Any,  # noqa: ANN401 - one of Log, as checked
) -> str:
    from traceq.report.sweeps import table

    if form is SweepFormat.html:
        from traceq.report.page.page import render
        from traceq.report.page.parts.sweep_table import sections

        return render(f"Sweep {shown.sweep.folder.name}", sections(shown, log))
    if form is SweepFormat.json:
        from traceq.report.sweeps.json import json

        return json(shown)
    if form is SweepFormat.text:
        width = None if file else output.width()
        return table.text(shown, width=width, color=not file and output.color())
    write = {"csv": table.csv, "markdown": table.markdown, "latex": table.latex}
    return write[form.value](shown)
