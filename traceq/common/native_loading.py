"""Compiled code next to its Python equivalent, used where it was built and is wanted.

There is little of it, each a loop that Polars cannot do at the speed of the rest. The
Python is the reference; TRACEQ_PURE=1 uses it for everything.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from traceq.common.dataclass import dataclass

if TYPE_CHECKING:
    from types import ModuleType


def usable(module: ModuleType | None, interface: int) -> bool:
    """Return whether a compiled module was built, of this state of its source."""
    if module is None or os.environ.get("TRACEQ_PURE"):
        return False
    return bool(interface == module.INTERFACE)


@dataclass(frozen=True)
class Arrow:
    """Columns that compiled code made, as Arrow's C data interface hands them over."""

    schema: object
    array: object

    def __arrow_c_array__(
        self, requested_schema: object = None
    ) -> tuple[object, object]:
        return self.schema, self.array
