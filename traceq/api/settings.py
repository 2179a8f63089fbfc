"""Load options from the caller's arguments and from the configuration."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import structs

from traceq.common.units import NS_PER_MS
from traceq.inputs.options import LoadOptions
from traceq.linter.config import find_config, own_names, read_config
from traceq.linter.trust import with_trusted_packs

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from traceq.linter.config import Config


def load_options(
    config: Config | None = None,
    *,
    own: Sequence[str] | None = None,
    steps_by: str | None = None,
    captures: Iterable[Path] | None = None,
    kernels: Path | None = None,
    cache: bool = True,
) -> LoadOptions:
    """Return the options for loading: the caller's, else those of the configuration.

    Without a configuration the nearest one is read.
    """
    here = Path.cwd()
    config = config or find_config(here)
    return LoadOptions(
        own_code=frozenset(own_names(own or (), here) | config.own_code),
        captures=tuple(captures or ()),
        inductor_code=kernels,
        steps_by=steps_by or config.steps_by,
        use_cache=cache,
    )


def configuration(file: Path | None, *, packs: bool = True) -> Config:
    """Return the configuration in a file, else the nearest one with packs to trust.

    Without ``packs`` it names none, whoever trusts them.
    """
    found = read_config(file) if file else find_config(Path.cwd())
    if not packs:
        return structs.replace(found, packs=())
    return found if file else with_trusted_packs(found)


def nanoseconds(step_ms: float | None) -> int | None:
    """Return a step time that was given in milliseconds."""
    return round(step_ms * NS_PER_MS) if step_ms else None
