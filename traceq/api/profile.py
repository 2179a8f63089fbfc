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
    oom: bool = True,
    ranks: str | None = None,
    keep_slow: float | None = None,
    max_mb: int = 1000,
    overhead: bool = True,
    keep_paths: bool = False,
) -> Profile:
    """Record a few steps of a loop into a run folder, as ``traceq collect`` does.

    Args:
        out: Folder for run folders.
        name: Name of the run folder.
        labels: Labels to store with the run.
        steps_by: Origin of the steps without ``run.step()``: ``auto``, ``optimizer``,
            ``forward`` or ``mark``.
        warmup: Steps to skip, and more while something is compiled.
        timed: Steps to time without the profiler.
        active: Steps to trace with shapes.
        memory_steps: Steps of the allocator's history.
        memory: Record the allocator's history.
        stacks: Record Python stacks.
        source: Copy your own source files.
        compiled: Store what torch.compile generates.
        captures: Profile captures of CUDA graphs.
        oom: Keep the memory history from the start, for when memory runs out.
        ranks: Ranks of a job that record, as ``0,8-15``.
        keep_slow: Watch the whole loop, and store steps this many times as long as
            the running median, as 1.5.
        max_mb: Largest trace per rank, in MB before compression.
        overhead: Measure the cost of recording at the end.
        keep_paths: Store host name and full paths.

    Raises:
        UsageError: Another profiler runs. Errors of the loop pass; what was recorded
            until then stays.

    Examples:
        ```
        with traceq.profile(warmup=5) as run:
            for batch in loader:
                train(batch)
                run.step()
        print(run.lint())
        ```

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
        oom=oom,
        ranks=ranks,
        keep_slow=keep_slow,
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
