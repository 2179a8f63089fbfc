"""Tasks for the executors of traceq.ranks.executors, importable in other processes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any


def die_once(file: str) -> str:
    """Kill this process, but not the one that does it again."""
    if Path(file).exists():
        return "the second time"
    Path(file).touch()
    os._exit(9)


def raise_what_cannot_be_sent() -> None:
    """Raise an exception that cannot be pickled."""

    class Local(Exception):  # noqa: N818 - its name is what the test looks for
        pass

    raise Local


def echo(value: Any) -> Any:  # noqa: ANN401 - whatever it is
    """Return what it is given."""
    return value
