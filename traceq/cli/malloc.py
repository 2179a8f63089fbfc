"""Allocator settings: freed memory returns to the system soon; lint needs 20% less.

Only on the command line: programs that import traceq have their own settings.
"""

from __future__ import annotations

import os
from contextlib import suppress

# How Polars allocates (jemalloc). By default it keeps what was freed apart for each
# core, and for ten seconds.
_POLARS = "_RJEM_MALLOC_CONF"
_FREE_SOON = "narenas:1,dirty_decay_ms:200,muzzy_decay_ms:0"
# What the columns of a large trace have, and the blocks that are read have not: those
# are used again and again.
_LARGE = 16 << 20


def free_soon() -> None:
    """Tell the allocators so, before Polars is imported; what a user has set stays."""
    os.environ.setdefault(_POLARS, _FREE_SOON)
    from traceq.native import _native

    # None where it was not built; without the function where other sources were.
    with suppress(AttributeError):
        _native.return_freed(_LARGE)
