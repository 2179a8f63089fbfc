"""Record a loop of this program: ``traceq.profile``."""

from __future__ import annotations

from importlib import import_module
from sys import modules
from typing import TYPE_CHECKING, Any

from traceq.common.import_folder import mount
from traceq.common.locations import bundled
from traceq.errors import InputError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from types import TracebackType

    from traceq.api.lint import LintResult
    from traceq.api.result import Name

_PACKAGE = "_traceq_inline"


class Profile:
    """A loop that is being recorded, and the run folder of it."""

    def __init__(self, **options: Any) -> None:  # noqa: ANN401 - those of profile
        inline = collected("inline.recording")
        self._refused: Any = inline.RefusedError
        try:
            self._recording: Any = inline.Recording(**options)
        except self._refused as error:
            raise UsageError(str(error)) from None
        self.step = self._recording.step
        """Call it at the end of each step; without, the optimizer tells them."""

    def __enter__(self) -> Profile:  # noqa: PYI034 - Self is of Python 3.11
        try:
            self._recording.start()
        except self._refused as error:
            raise UsageError(str(error)) from None
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        ended = f"the loop raised {kind.__name__}" if kind else "the loop ended"
        self._recording.stop(ended)

    @property
    def folder(self) -> Path:
        """The run folder, which all commands read."""
        folder: Path | None = self._recording.folder
        if folder is None:
            msg = "nothing is recorded yet: write `with traceq.profile() as run:`"
            raise UsageError(msg)
        return folder

    @property
    def done(self) -> bool:
        """True if all is recorded, so that the loop may end."""
        return bool(self._recording.done)

    @property
    def missing(self) -> tuple[str, ...]:
        """Sentences on what was not recorded, and why."""
        return tuple(self._recording.missing)

    def lint(self, **options: Any) -> LintResult:  # noqa: ANN401 - those of lint
        """Return what is wrong in what was recorded; options as of ``traceq.lint``."""
        from traceq.api.lint import lint  # noqa: PLC0415 - not while it records

        if not any(self.folder.glob("rank-*.*.gz")):
            why = "; ".join(self.missing) or "the loop has not ended"
            msg = f"{self.folder} has nothing to lint: {why}"
            raise InputError(msg)
        return lint(self.folder, **options)

    def __repr__(self) -> str:
        lacks = f" ({'; '.join(self.missing)})" if self.missing else ""
        return f"<traceq.profile: {self._recording.folder}{lacks}>"


def profile(
    *,
    out: Name = "traceq-runs",
    name: str | None = None,
    labels: Mapping[str, object] | None = None,
    steps_by: str = "auto",
    warmup: int = 10,
    timed: int = 20,
    active: int = 3,
    memory_steps: int = 2,
    memory: bool = True,
    stacks: bool = True,
    source: bool = True,
    compiled: bool = True,
    captures: bool = True,
    ranks: str | None = None,
    max_mb: int = 1000,
    overhead: bool = True,
    keep_paths: bool = False,
) -> Profile:
    """Record a few steps of a loop into a run folder, as ``traceq collect`` does.

    ::

        with traceq.profile(warmup=5) as run:
            for batch in loader:
                train(batch)
                run.step()
        print(run.lint())

    After ``warmup`` steps, and once nothing is compiled any more, ``timed`` steps are
    timed without the profiler, ``active`` ones traced with shapes and, if ``stacks``,
    Python stacks, and, if ``memory``, the allocator's history of ``memory_steps`` more
    is kept; then the loop goes on as if nothing were there. Without ``run.step()``
    steps are found as ``steps_by`` says: ``"auto"``, ``"optimizer"``, ``"forward"`` or
    ``"mark"``. The other options are those of the command: ``out`` the folder for run
    folders, ``name`` that of the run folder, ``labels`` to store with it, ``source``
    whether your own source files are copied, ``compiled`` and ``captures`` whether what
    torch.compile makes and captures of CUDA graphs are kept, ``ranks`` those of a job
    that record, ``max_mb`` the largest trace, ``overhead`` whether the cost of
    recording is measured at the end, and ``keep_paths`` whether full paths are stored.

    Errors of the loop pass; what was recorded until then is kept. Raises
    :class:`traceq.errors.UsageError` where another profiler runs.
    """
    return Profile(
        out=out,
        name=name,
        labels=labels,
        steps_by=steps_by,
        warmup=warmup,
        timed=timed,
        active=active,
        memory_steps=memory_steps,
        memory=memory,
        stacks=stacks,
        source=source,
        compiled=compiled,
        captures=captures,
        ranks=ranks,
        max_mb=max_mb,
        overhead=overhead,
        keep_paths=keep_paths,
    )


def collected(module: str) -> Any:  # noqa: ANN401 - a module of collect/
    """Return a module of ``collect/``, which needs torch."""
    try:
        import_module("torch")
    except ImportError:
        msg = "torch is not installed here, and without it there is nothing to record"
        raise UsageError(msg) from None
    if _PACKAGE not in modules:
        mount(bundled("collect"), _PACKAGE)
    return import_module(f"{_PACKAGE}.{module}")
