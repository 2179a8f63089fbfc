"""`traceq cache`: the tables kept of traces."""

from __future__ import annotations

import typer

from traceq import cache, units
from traceq.cli import output
from traceq.words import counted

app = typer.Typer(
    help="Show or clear the cache of tables of traces that were read before.",
    no_args_is_help=True,
    epilog="Example:  [bold]traceq cache clear[/bold]",
)


@app.command("info", epilog="Example:  [bold]traceq cache info[/bold]")
def info() -> None:
    """Show where the cache is and how large it is."""
    sizes = [size for _, size, _ in cache.entries()]
    output.write(
        f"{cache.directory()}: {counted(len(sizes), 'trace')}, {units.size(sum(sizes))}"
        f" of at most {units.size(cache.size_limit())}\n"
    )


@app.command("clear", epilog="Example:  [bold]traceq cache clear[/bold]")
def clear() -> None:
    """Clear the cache; tables are made again when a trace is read again."""
    count, size = cache.clear()
    output.write(
        f"removed the tables of {counted(count, 'trace')}, {units.size(size)}\n"
    )
