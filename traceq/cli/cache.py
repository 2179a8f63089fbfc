"""`traceq cache`: size, place and removal of cached tables and findings."""

from __future__ import annotations

from traceq.cli import output


def info() -> None:
    """Show where the cache is and how large it is."""
    from traceq.cache import store
    from traceq.common import units
    from traceq.common.words import counted

    every = (*store.entries(), *store.answers(), *store.fetched())
    size = units.size(sum(size for _, size, _ in every))
    traces = counted(len(list(store.entries())), "trace")
    output.write(
        f"{store.directory()}: {traces}{_others()}, {size}"
        f" of at most {units.size(store.size_limit())}\n"
    )


def clear() -> None:
    """Clear the cache; a trace is read and linted again when it is needed again."""
    from traceq.cache import store
    from traceq.common import units
    from traceq.common.words import counted

    others = _others()
    count, size = store.clear()
    traces = counted(count, "trace")
    output.write(f"removed the tables of {traces}{others}, {units.size(size)}\n")


def _others() -> str:
    from traceq.cache import store
    from traceq.common.words import counted

    parts = (
        (len(list(store.answers())), "lint result"),
        (len(list(store.fetched())), "fetched file"),
    )
    counts = [counted(count, what) for count, what in parts if count]
    return f" and {', '.join(counts)}" if counts else ""


COMMANDS = {"info": info, "clear": clear}
