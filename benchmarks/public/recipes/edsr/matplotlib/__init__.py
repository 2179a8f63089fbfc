"""Stand-in for matplotlib: the plots after an epoch are not drawn."""

from __future__ import annotations


def use(backend: str) -> None:
    """Accept a backend."""
