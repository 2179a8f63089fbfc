"""The command line: parses, calls, prints, exits. Nothing else in traceq prints."""

from __future__ import annotations

from traceq.cli import interruption, streams

__all__ = ["main"]


def main() -> None:
    """Run the command line; exit 2 if traceq could not do its work."""
    interruption.watch()
    streams.open_closed()
    interruption.call(_run)


def _run() -> None:
    # Imports take longest, and may be interrupted too.
    from traceq.cli.app import run

    run()
