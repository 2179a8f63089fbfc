"""`traceq cache`: the tables that were kept."""

from __future__ import annotations

import typer

from traceq import cache, units
from traceq.cli import output

app = typer.Typer(
    help="Look at, or clear, the tables kept of traces that were read before.",
    no_args_is_help=True,
    epilog="Example:  [bold]traceq cache clear[/bold]",
)


@app.command("info", epilog="Example:  [bold]traceq cache info[/bold]")
def info() -> None:
    """Say where the tables are kept and how much room they take."""
    sizes = [size for _, size, _ in cache.entries()]
    traces = "trace" if len(sizes) == 1 else "traces"
    output.write(
        f"{cache.directory()}: {len(sizes)} {traces}, {units.size(sum(sizes))}"
        f" of at most {units.size(cache.size_limit())}\n"
    )


@app.command("clear", epilog="Example:  [bold]traceq cache clear[/bold]")
def clear() -> None:
    """Remove all kept tables; they are made again when a trace is read again."""
    count, size = cache.clear()
    traces = "trace" if count == 1 else "traces"
    output.write(f"removed the tables of {count} {traces}, {units.size(size)}\n")
