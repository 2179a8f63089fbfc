"""Retired rules. A code is never used twice: old configurations name it."""

from __future__ import annotations

RETIRED: dict[str, str] = {}
"""Code, and one sentence on when it was retired and what finds the same now."""
