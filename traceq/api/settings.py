"""Load options from the caller's arguments and from the configuration."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from traceq.common.units import NS_PER_MS
from traceq.inputs.options import (
    restored,
    use_captures,
    use_kernels,
    use_own_code,
    use_steps,
)
from traceq.linter.config import find_config, own_names, read_config
from traceq.linter.trust import with_trusted_packs

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from traceq.linter.config import Config


def use_own(
    names: Sequence[str] | None,
    config: Config | None = None,
    steps_by: str | None = None,
) -> None:
    """Take these, and what the configuration names, for the user's own code.

    Take steps from what the user says, else from what the configuration says.
    """
    here = Path.cwd()
    config = config or find_config(here)
    use_own_code(own_names(names or (), here) | config.own_code)
    use_steps(steps_by or config.steps_by)


@contextmanager
def asked(
    config: Config | None = None,
    *,
    own: Sequence[str] | None = None,
    steps_by: str | None = None,
    captures: Iterable[Path] | None = None,
    kernels: Path | None = None,
) -> Iterator[None]:
    """Let this hold for what is loaded inside."""
    with restored():
        use_own(own, config, steps_by)
        use_captures(captures)
        use_kernels(kernels)
        yield


def configuration(file: Path | None, *, packs: bool = True) -> Config:
    """Return the configuration in a file, else the nearest one with packs to trust.

    Without ``packs`` it names none, whoever trusts them.
    """
    found = read_config(file) if file else find_config(Path.cwd())
    if not packs:
        return replace(found, packs=())
    return found if file else with_trusted_packs(found)


def nanoseconds(step_ms: float | None) -> int | None:
    """Return a step time that was given in milliseconds."""
    return round(step_ms * NS_PER_MS) if step_ms else None
