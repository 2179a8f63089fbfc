"""The command line: parses, calls, prints, exits. Nothing else in traceq prints."""

from __future__ import annotations

from traceq.cli.app import main

__all__ = ["main"]
