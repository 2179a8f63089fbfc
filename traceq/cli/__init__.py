"""The command line: parses, calls, prints, exits. Nothing else in traceq prints."""

from __future__ import annotations

import atexit
import gc
import sys

from traceq.cli import fast_exit, interruption, malloc, streams

__all__ = ["main"]

_OBJECTS_UNTIL_COLLECTED = 1_000_000


def main() -> None:
    """Run the command line; exit 2 if traceq could not do its work."""
    interruption.watch()
    # Imports make many objects and no garbage: the collector would walk over them
    # again and again. Against 100,000, lint of a small trace takes 6% less CPU time.
    gc.set_threshold(_OBJECTS_UNTIL_COLLECTED)
    if sys.argv[1:2] != ["collect"]:  # it runs a program that may use Polars, too
        malloc.free_soon()
    streams.open_closed()
    # First of all, and so called last.
    atexit.register(fast_exit.at_once)
    fast_exit.noting(_call)


def _call() -> None:
    interruption.call(_run)


def _run() -> None:
    # Imports take longest, and may be interrupted too.
    try:
        from traceq.cli.app import run
    except ImportError:
        _refuse_if_shadowed()
        raise
    run()


def _refuse_if_shadowed() -> None:
    """Exit 2 if another package has replaced files of ours."""
    from traceq.cli.shadow import shadowed

    if warning := shadowed():
        sys.stderr.write(f"traceq: {warning}\n")
        sys.exit(2)
