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
    sizes = [size for _, size, _ in (*cache.entries(), *cache.fetched())]
    traces = counted(len(list(cache.entries())), "trace")
    output.write(
        f"{cache.directory()}: {traces}{_copies()}, {units.size(sum(sizes))}"
        f" of at most {units.size(cache.size_limit())}\n"
    )


@app.command("clear", epilog="Example:  [bold]traceq cache clear[/bold]")
def clear() -> None:
    """Clear the cache; tables are made again when a trace is read again."""
    copies = _copies()
    count, size = cache.clear()
    traces = counted(count, "trace")
    output.write(f"removed the tables of {traces}{copies}, {units.size(size)}\n")


def _copies() -> str:
    count = len(list(cache.fetched()))
    return f" and {counted(count, 'fetched file')}" if count else ""
