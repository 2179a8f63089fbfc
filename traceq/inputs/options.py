"""Load options of a recording, as one value."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from pathlib import Path


class LoadOptions(Struct, frozen=True, kw_only=True):
    """Options for loading, from the caller and the configuration."""

    own_code: frozenset[str] = frozenset()
    """Packages and modules that are the user's own code."""
    captures: tuple[Path, ...] = ()
    """Traces in which the CUDA graphs were captured that a trace replays."""
    inductor_code: Path | None = None
    """Folder with the code that inductor generated, for traces without a run folder."""
    steps_by: str = ""
    """Source of the steps, one of ``graph.steps.SOURCES``; empty for the first."""
    rank: int | None = None
    """Rank to load of a run folder or an Nsight Systems export; the lowest if none."""
    use_cache: bool = True
    """True if tables are read from the cache, and written to it."""


UNCACHED = LoadOptions(use_cache=False)
"""Default options, without the cache."""
