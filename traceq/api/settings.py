"""Options of a request, from the caller's arguments and from the configuration."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct, structs

from traceq.common.units import NS_PER_MS
from traceq.inputs.options import LoadOptions
from traceq.linter.config import find_config, own_names, read_config, severity
from traceq.linter.trust import with_trusted_packs

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from traceq.inputs.labels import Labels
    from traceq.linter.config import Config


class LintOptions(Struct, frozen=True, kw_only=True):
    """Options for linting, from the caller and the configuration."""

    config: Config
    """Configuration, with what the caller selects, ignores and adds."""
    load: LoadOptions
    log: Path | None = None
    """Log of the program."""
    step_ns: int | None = None
    """Step time measured without the profiler."""
    labels: Labels | None = None
    """Labels of recordings, with such a time for each."""
    baseline: Path | None = None
    """File of findings to hide."""
    root: Path | None = None
    """Folder of the source; the git repository around the working directory if none."""
    tables: bool = True
    """Load the recordings into the result, and read no findings from the cache."""


def load_options(
    config: Config | None = None,
    *,
    own: Sequence[str] | None = None,
    steps_by: str | None = None,
    captures: Iterable[Path] | None = None,
    kernels: Path | None = None,
    rank: int | None = None,
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
        rank=rank,
        use_cache=cache,
    )


def configuration(file: Path | None, *, packs: bool = True) -> Config:
    """Return the configuration in a file, else the nearest one with packs to trust.

    Without ``packs`` it names none, whoever trusts them.
    """
    config = read_config(file) if file else find_config(Path.cwd())
    if not packs:
        return structs.replace(config, packs=())
    return config if file else with_trusted_packs(config)


def overridden(
    config: Config,
    *,
    select: Sequence[str] | None = None,
    ignore: Sequence[str] | None = None,
    fail_on: str | None = None,
    rules: Iterable[Path] | None = None,
) -> Config:
    """Return the configuration with the caller's options in it.

    ``rules`` are folders of rules, which run beside those that it names.
    """
    if select:
        config = structs.replace(config, select=_split(select))
    if ignore:
        config = structs.replace(config, ignore=config.ignore + _split(ignore))
    if fail_on:
        config = structs.replace(config, fail_on=severity(fail_on, "--fail-on"))
    return structs.replace(config, packs=(*config.packs, *(rules or ())))


def _split(texts: Sequence[str]) -> tuple[str, ...]:
    return tuple(part.strip() for text in texts for part in text.split(",") if part)


def nanoseconds(step_ms: float | None) -> int | None:
    """Return a step time that was given in milliseconds."""
    return round(step_ms * NS_PER_MS) if step_ms else None
