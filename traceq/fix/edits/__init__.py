"""Edits, one module each: a program and a finding in, replacements out."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from traceq.fix.edit import Replacement
    from traceq.fix.program import Program
    from traceq.model.finding import Finding

NAMES = (
    "tf32",
    "fused_optimizer",
    "set_to_none",
    "pinned_copy",
    "dataloader",
    "validate_args",
    "is_causal",
    "rms_norm",
)


def load_edit(name: str) -> Callable[[Program, Finding], list[Replacement]]:
    """Return the function of an edit, imported now: it needs LibCST."""
    return import_module(f"traceq.fix.edits.{name}").edit
