"""`traceq cache`: the tables kept of traces."""

from __future__ import annotations

from traceq.cli import output


def info() -> None:
    """Show where the cache is and how large it is."""
    from traceq import cache, units
    from traceq.words import counted

    sizes = [size for _, size, _ in (*cache.entries(), *cache.fetched())]
    traces = counted(len(list(cache.entries())), "trace")
    output.write(
        f"{cache.directory()}: {traces}{_copies()}, {units.size(sum(sizes))}"
        f" of at most {units.size(cache.size_limit())}\n"
    )


def clear() -> None:
    """Clear the cache; tables are made again when a trace is read again."""
    from traceq import cache, units
    from traceq.words import counted

    copies = _copies()
    count, size = cache.clear()
    traces = counted(count, "trace")
    output.write(f"removed the tables of {traces}{copies}, {units.size(size)}\n")


def _copies() -> str:
    from traceq import cache
    from traceq.words import counted

    count = len(list(cache.fetched()))
    return f" and {counted(count, 'fetched file')}" if count else ""


COMMANDS = {"info": info, "clear": clear}
