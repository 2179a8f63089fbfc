"""The names of ``traceq.opening.trust``, until nothing asks for them here."""

from __future__ import annotations

from traceq.opening.trust import named, with_trusted_packs

__all__ = ["named", "with_trusted_packs"]
