"""Stand-in for matplotlib.pyplot: each function draws nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def __getattr__(name: str) -> Callable[..., None]:
    """Return a function that does nothing."""
    del name
    return lambda *_args, **_options: None
