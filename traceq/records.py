"""The ``dataclass`` that is quick to declare, for rule packs."""

from __future__ import annotations

from traceq.common.dataclass import (
    dataclass,
)

__all__ = [
    "dataclass",
]
