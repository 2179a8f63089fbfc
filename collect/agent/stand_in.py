"""The module ``traceq`` of a recorded program on a machine where it is not installed.

It has ``record`` alone, so that a program that records its numbers needs no change.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from ..shared import own_numbers

NAME = "traceq"


def record(**numbers: Any) -> None:
    """Record numbers of the program: ``traceq.record(loss=loss, tokens=8192)``."""
    own_numbers.record(numbers)


class StandIn:
    """Finds ``traceq`` after all others have not: an installed one comes first."""

    def find_spec(self, name: str, *_: Any) -> ModuleSpec | None:
        """Return the module's spec, if it is asked for."""
        return ModuleSpec(NAME, self) if name == NAME else None  # type: ignore[arg-type]

    def create_module(self, _spec: ModuleSpec) -> ModuleType | None:
        """Let Python create the module."""
        return None

    def exec_module(self, module: ModuleType) -> None:
        """Put ``record`` into the module."""
        module.record = record  # type: ignore[attr-defined]


def install() -> None:
    """Offer the stand-in, after every other way to find a module."""
    sys.meta_path.append(StandIn())
