"""Native code: one C extension, and the decision whether it is used.

Every native function has a pure twin in Python or Polars, which is the reference.
TRACEQ_PURE=1 uses the twins for everything; so does an installation without the
extension, or with one that was built from other sources.
"""

from __future__ import annotations

import os

try:
    from traceq.native import _native
except ImportError:  # not built
    _native = None  # type: ignore[assignment]  # a module where it was built

INTERFACE = 1
"""The interface that Python expects; module.c has the one that was built."""


def available() -> bool:
    """Return whether native code is used; the pure twins are otherwise."""
    if _native is None or os.environ.get("TRACEQ_PURE"):
        return False
    return _native.INTERFACE == INTERFACE
