"""The version, as ``traceq --version`` prints it."""

from __future__ import annotations

from traceq import __version__
from traceq.cli import output, shadow


def say_version() -> None:
    """Print the version, and say if another package may have replaced our files."""
    output.write(f"traceq {__version__}\n")
    if warning := shadow.shadowed():
        output.say(warning)
