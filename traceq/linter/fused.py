"""Fixes that replace several kernels, for rule packs; see ``fused_fix``."""

from __future__ import annotations

from traceq.linter.fused_fix import (
    fused_fixes,
)

__all__ = [
    "fused_fixes",
]
