"""`traceq cache`: what is kept of traces that were read before."""

from __future__ import annotations

from traceq.cli import output


def info() -> None:
    """Show where the cache is and how large it is."""
    from traceq import cache, units
    from traceq.words import counted

    every = (*cache.entries(), *cache.answers(), *cache.fetched())
    size = units.size(sum(size for _, size, _ in every))
    traces = counted(len(list(cache.entries())), "trace")
    output.write(
        f"{cache.directory()}: {traces}{_others()}, {size}"
        f" of at most {units.size(cache.size_limit())}\n"
    )


def clear() -> None:
    """Clear the cache; a trace is read and linted again when it is needed again."""
    from traceq import cache, units
    from traceq.words import counted

    others = _others()
    count, size = cache.clear()
    traces = counted(count, "trace")
    output.write(f"removed the tables of {traces}{others}, {units.size(size)}\n")


def _others() -> str:
    from traceq import cache
    from traceq.words import counted

    parts = (
        (len(list(cache.answers())), "lint result"),
        (len(list(cache.fetched())), "fetched file"),
    )
    found = [counted(count, what) for count, what in parts if count]
    return f" and {', '.join(found)}" if found else ""


COMMANDS = {"info": info, "clear": clear}
