"""Reduction of a recording: cut, lint, and accept the cut if the findings stay."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import polars as pl
from msgspec import structs

from traceq.check.whole import Whole, beyond, extents
from traceq.errors import UsageError
from traceq.formats.log import log_lines
from traceq.formats.sanitize.paths import Paths
from traceq.formats.sanitize.regions import Regions
from traceq.formats.sanitize.snapshot import clean_snapshot
from traceq.formats.sanitize.trace import Written, read_written
from traceq.formats.snapshot import read_snapshot
from traceq.formats.unmodified_file import unchanged
from traceq.inputs.load_trace import load, with_compiled_code, with_sources
from traceq.model.owners import NOBODY, Owners
from traceq.model.recording import Recording
from traceq.shrink.cuts import REMOVABLE, Removable, keeping_steps
from traceq.shrink.line_texts import with_lines
from traceq.shrink.lines import needed_lines
from traceq.shrink.probe import Probe, Seen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from traceq.check.expected import Expected
    from traceq.linter.config import Config
    from traceq.linter.pack import Rules
    from traceq.model.snapshot import Snapshot
    from traceq.model.trace import Trace

# Numbers of steps to try before keeping all of them.
_STEPS = (2, 3, 5, 10, 20)
# In how many parts of the run, at most, to look for more than the kept steps show.
_PARTS = 4
OTHER_STEPS = "events of other steps"
# A finding of every trace of a single step.
_SINGLE = "TRC002"


@dataclass(frozen=True)
class ShrinkInput:
    """The recording to shrink: a trace, a snapshot, or both."""

    trace: Path | None
    snapshot: Path | None = None
    log: pl.DataFrame | None = None
    step_ns: int | None = None
    """Duration of a step without the profiler, where that is known."""
    sources: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Source files of the program, by their names in the trace; they are not kept."""
    compiled: Path | None = None
    """Output of torch.compile, which is not kept, either."""
    owners: Owners = NOBODY
    recording: Recording | None = None
    """The same as check reads it, with what else is known of the run."""
    keep_regions: bool = False
    """True if regions keep their texts."""

    @property
    def name(self) -> Path | None:
        """The file that errors name."""
        return self.trace or self.snapshot


@dataclass(frozen=True)
class Shrunk:
    """A recording made small, with nothing private in it."""

    trace: bytes | None
    """Content of trace.json.gz."""
    snapshot: bytes | None
    """Content of snapshot.pickle.gz."""
    log: str | None
    """Content of log.txt."""
    seen: Seen
    """Findings and numbers of the small recording, equal to those of the whole."""
    loaded: Trace | None
    """The whole."""
    run: Whole
    """Numbers and findings of the whole that the small recording does not show."""
    unseen: tuple[str, ...] = ()
    """Findings of the whole, in words, that need more than a trace."""
    steps: tuple[int, int] = (0, 0)
    """Number of steps that were kept, and of all."""
    events: tuple[int, int] = (0, 0)
    """The same of events."""
    dropped: dict[str, int] = field(default_factory=dict)
    """Number of removed events, by kind."""
    stays: dict[str, list[str]] = field(default_factory=dict)
    """Parts that could not be removed, and the changes that removing them would
    make."""


@dataclass(frozen=True)
class _Clean:
    """The trace as read, and without what may be private."""

    loaded: Trace | None
    memory: dict[int, Snapshot]
    written: Written | None
    snapshot: bytes | None
    paths: Paths
    regions: Regions


def shrink(
    source: ShrinkInput,
    rules: Rules,
    config: Config,
    *,
    limit: int,
    progress: Callable[[int, int], None] | None = None,
) -> Shrunk:
    """Return a recording made small, in which the same is found.

    What is never missed is removed first, what may be missed only while the packed
    trace is larger than ``limit`` bytes. What is small already stays as it is. Raises
    ``UsageError`` if a finding would be lost with private data.
    """
    clean = _read(source, config, progress)
    lines = _log(source, clean.paths, rules, config)
    whole = Probe(rules, config, source.step_ns)
    probe = replace(
        whole, log=None if lines is None else log_lines(lines), snapshot=clean.snapshot
    )
    before = _before(source, clean, whole)
    start = _without_private(source, clean, probe, before)
    if clean.written is None or clean.loaded is None:
        run = beyond(Whole(before.numbers), start.numbers, start.findings)
        return Shrunk(None, clean.snapshot, lines, start, clean.loaded, run)
    work = _Shrinking(clean.written, start, probe, limit)
    work.run()
    checked = (
        whole.of_recording(source.recording, clean.paths, clean.regions)
        if source.recording
        else before
    )
    small = Shrunk(
        trace=work.trace.gzipped,
        snapshot=clean.snapshot,
        log=lines,
        seen=work.seen,
        loaded=clean.loaded,
        run=_beyond(work, before, checked),
        unseen=tuple(before.lost(checked)),
    )
    return _counted(small, work, clean.written, clean.loaded)


def _read(
    source: ShrinkInput, config: Config, progress: Callable[[int, int], None] | None
) -> _Clean:
    """Read the files, and write them again without what may be private."""
    # Both are read twice, and must be the same both times.
    with ExitStack() as same:
        for path in filter(None, (source.trace, source.snapshot)):
            same.enter_context(unchanged(path))
        bare = (
            load(source.trace, own=config.own_code, cache=False)
            if source.trace
            else None
        )
        loaded = _with_program(bare, source, config) if bare else None
        memory = {0: read_snapshot(source.snapshot)} if source.snapshot else {}
        files = {
            name for item in memory.values() for name in item.frames["file"].unique()
        }
        keep = source.keep_regions
        written = None
        if source.trace:
            written = read_written(source.trace, progress, files, keep_regions=keep)
        if written and bare and loaded:
            written = with_lines(written, bare.ops, loaded.ops)
        paths = written.paths if written else Paths(sorted(files))
        regions = written.regions if written else Regions(paths, keep=keep)
        snapshot = None
        if source.snapshot:
            snapshot = clean_snapshot(source.snapshot, paths, regions)
    return _Clean(loaded, memory, written, snapshot, paths, regions)


def _with_program(bare: Trace, source: ShrinkInput, config: Config) -> Trace:
    """Return the trace with the program's source, and with what was compiled of it."""
    loaded = with_sources(bare, source.sources)
    if not source.compiled:
        return loaded
    owners = structs.replace(source.owners, said=frozenset(config.own_code))
    return with_compiled_code(loaded, source.compiled, owners)


def _log(source: ShrinkInput, paths: Paths, rules: Rules, config: Config) -> str | None:
    """Return the lines of the log that rules read."""
    if source.log is None:
        return None
    texts = needed_lines(source.log["text"].to_list(), rules, config)
    return "".join(paths.text(line) + "\n" for line in texts)


def _before(source: ShrinkInput, clean: _Clean, whole: Probe) -> Seen:
    """Return what is found in the whole; refuse it if a rule crashes on it."""
    recording = Recording(
        "fixture", clean.loaded, source.log, source.step_ns, clean.memory
    )
    before = whole.of_recording(recording, clean.paths, clean.regions)
    if before.crashed:
        crashed = ", ".join(before.crashed)
        msg = f"{source.name} cannot be shrunk: {crashed} crashed on it;"
        msg += f" {_without(before.crashed)}"
        raise UsageError(msg)
    return before


def _without_private(
    source: ShrinkInput, clean: _Clean, probe: Probe, before: Seen
) -> Seen:
    """Return what is found without private data; refuse to lose a finding."""
    start = probe.of_content(clean.written.json() if clean.written else None)
    if not before.same_kinds(start):
        lost = "; ".join(before.changes(start))
        msg = f"{source.name} cannot be shrunk: without what may be private, {lost}; "
        msg += _advice(before, start, keep_regions=source.keep_regions)
        raise UsageError(msg)
    return start


def _beyond(work: _Shrinking, before: Seen, checked: Seen) -> Whole:
    """Return what of the whole cannot be seen in the small trace."""
    parts = [before.findings, checked.findings, *work.parts()]
    codes = {expected.fingerprint: expected.code for part in parts for expected in part}
    everything = Whole(checked.numbers, extents(parts), codes)
    return beyond(everything, work.seen.numbers, work.seen.findings)


def _counted(
    small: Shrunk, work: _Shrinking, written: Written, loaded: Trace
) -> Shrunk:
    """Return the result with the numbers of steps and events that were kept."""
    dropped = {"arrows between events": written.arrows, **work.dropped}
    if written.unreadable:
        dropped["events that are not JSON"] = written.unreadable
    return replace(
        small,
        steps=(work.steps or loaded.steps.height, loaded.steps.height),
        events=(work.trace.events.height, loaded.facts.events),
        dropped={what: count for what, count in dropped.items() if count},
        stays=work.stays,
    )


def _advice(before: Seen, after: Seen, *, keep_regions: bool) -> str:
    codes = sorted(before.codes_only_here(after) | after.codes_only_here(before))
    regions = (
        "" if keep_regions else "keep the names of regions with --keep-regions, or "
    )
    return f"{regions}{_without(codes)}"


def _without(codes: Iterable[str]) -> str:
    listed = ", ".join(f'"{code}"' for code in codes)
    return f"leave rules out with ignore = [{listed}] in traceq.toml"


@dataclass
class _Shrinking:
    """A trace on its way to being small."""

    trace: Written
    seen: Seen
    probe: Probe
    limit: int
    steps: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    stays: dict[str, list[str]] = field(default_factory=dict)
    whole: Written | None = None
    """The trace with all its steps, once some of them are gone."""

    def parts(self) -> Iterator[tuple[Expected, ...]]:
        """Yield the findings in parts of the run: a few steps each, evenly spaced."""
        whole = self.whole or self.trace
        windows = self.probe.steps(whole.json())
        length = self.steps or _STEPS[0]
        last = windows.height - length
        for at in sorted({round(last * index / _PARTS) for index in range(_PARTS + 1)}):
            # The last part is what was kept.
            if at < 0 or (self.steps and at == last) or not windows.height:
                continue
            part = windows.slice(at, length)
            smaller = keeping_steps(whole, part["start"][0], part["end"][-1])
            yield self.probe.of_content(smaller.json()).findings

    def run(self) -> None:
        """Cut until nothing more can be removed, or the trace is small enough.

        Each cut may make another one possible, so all are tried again after one that
        was kept: then a second run of all this has nothing to do.
        """
        while True:
            while self._cut_steps() or any(
                self._cut(cut) for cut in REMOVABLE if cut.always
            ):
                pass
            if len(self.trace.gzipped) <= self.limit:
                return
            smaller = any(self._cut(cut) for cut in REMOVABLE if not cut.always)
            # A single step stands for nothing but itself, so it is the last resort.
            if not smaller and not self._cut_steps((1,)):
                return

    def _cut(self, cut: Removable) -> bool:
        """Try a cut, and keep it if the same is seen."""
        removed = cut.gone(self.trace)
        if not removed.any():
            return False
        smaller = self.trace.keeping(pl.lit(~removed))
        seen = self.probe.of_content(smaller.json())
        if seen != self.seen:
            self.stays[cut.what] = self.seen.changes(seen)
            return False
        self.stays.pop(cut.what, None)
        self.dropped[cut.what] = self.dropped.get(cut.what, 0) + int(removed.sum())
        self.trace = smaller
        return True

    def _cut_steps(self, counts: tuple[int, ...] = _STEPS) -> bool:
        """Keep the last few steps, if they show what all of them do."""
        windows = self.probe.steps(self.trace.json())
        for count in counts:
            if count >= windows.height:
                return False
            last_windows = windows.tail(count)
            first, last = last_windows["start"][0], last_windows["end"][-1]
            smaller = keeping_steps(self.trace, first, last)
            seen = self.probe.of_content(smaller.json())
            if seen.same_kinds(self.seen, ignoring=_SINGLE):
                removed = self.trace.events.height - smaller.events.height
                self.whole = self.whole or self.trace
                self.dropped[OTHER_STEPS] = self.dropped.get(OTHER_STEPS, 0) + removed
                self.trace, self.seen, self.steps = smaller, seen, count
                return True
            self.stays[f"steps before the last {count}"] = self.seen.changes(seen)
        return False
