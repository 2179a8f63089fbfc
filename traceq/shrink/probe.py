"""Findings of a recording, in a form that two recordings can be compared by."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import polars as pl

from traceq.check.expected import Expected, expected
from traceq.check.numbers import Numbers, numbers
from traceq.check.paths import with_short_path
from traceq.common.words import at_function, at_line
from traceq.formats.chrome import read
from traceq.formats.snapshot import read_snapshot
from traceq.inputs.load_trace import load
from traceq.linter.engine import lint
from traceq.model.recording import Recording

if TYPE_CHECKING:
    from traceq.formats.sanitize.paths import Paths
    from traceq.formats.sanitize.regions import Regions
    from traceq.linter.config import Config
    from traceq.linter.pack import Rules
    from traceq.model.finding import Finding

# A name that no entry of a configuration means.
_NAME = "fixture"
# The label of evidence that quotes a line of a log.
_QUOTE = "line"


@dataclass(frozen=True)
class Seen:
    """Findings of a recording, and the numbers that budgets limit."""

    findings: tuple[Expected, ...]
    skipped: frozenset[str]
    """Codes of rules that were skipped."""
    crashed: tuple[str, ...]
    """Codes of rules that crashed, of which nothing is known."""
    numbers: Numbers

    def lost(self, whole: Seen) -> list[str]:
        """Return the findings of another recording only, each in a few words."""
        fingerprints = {finding.fingerprint for finding in self.findings}
        more = {finding.fingerprint: finding for finding in whole.findings}
        return [_place(one) for mark, one in more.items() if mark not in fingerprints]

    def codes_only_here(self, other: Seen) -> set[str]:
        """Return the rules of findings that are not in another recording."""
        theirs = {finding.fingerprint for finding in other.findings}
        return {
            finding.code
            for finding in self.findings
            if finding.fingerprint not in theirs
        }

    def same_kinds(self, other: Seen, ignoring: str = "") -> bool:
        """Return whether the same is found, whatever its count or size.

        Findings of the code ``ignoring`` do not count.
        """
        own, theirs = (
            {
                finding.fingerprint
                for finding in seen.findings
                if finding.code != ignoring
            }
            for seen in (self, other)
        )
        return own == theirs and self.skipped == other.skipped

    def changes(self, other: Seen) -> list[str]:
        """Return the findings of this recording only, and of the other only."""
        own = {finding.fingerprint: finding for finding in self.findings}
        theirs = {finding.fingerprint: finding for finding in other.findings}
        lines = [f"{_place(own[mark])} is lost" for mark in own if mark not in theirs]
        lines += [
            f"{_place(theirs[mark])} is new" for mark in theirs if mark not in own
        ]
        if not lines:
            there = set(other.findings)
            changed = [finding for finding in self.findings if finding not in there]
            lines = [f"{_place(finding)} changes" for finding in changed]
        if rules := sorted(other.skipped - self.skipped):
            lines.append(f"{', '.join(rules)} skipped")
        return lines or ["a budget would change"]


@dataclass(frozen=True)
class Probe:
    """Lints what has not been written yet."""

    rules: Rules
    config: Config
    step_ns: int | None = None
    log: pl.DataFrame | None = None
    snapshot: bytes | None = None

    def of_content(self, trace: bytes | None) -> Seen:
        """Return the findings in a trace's content, with log and snapshot."""
        with TemporaryDirectory() as folder:
            recording = Recording(_NAME, log=self.log, step_ns=self.step_ns)
            if trace is not None:
                file = Path(folder) / "trace.json"
                file.write_bytes(trace)
                recording = replace(
                    recording, trace=load(file, own=self.config.own_code, cache=False)
                )
            if self.snapshot is not None:
                file = Path(folder) / "snapshot.pickle"
                file.write_bytes(self.snapshot)
                recording = replace(recording, snapshots={0: read_snapshot(file)})
            return self.of_recording(recording)

    def steps(self, trace: bytes) -> pl.DataFrame:
        """Return the start and end of a trace's steps on the host.

        Moments are nanoseconds, as the file counts them.
        """
        with TemporaryDirectory() as folder:
            file = Path(folder) / "trace.json"
            file.write_bytes(trace)
            steps = load(file, cache=False).steps
            start = read(file).start
        return steps.select(
            start=pl.col("ts") + start, end=pl.col("ts") + pl.col("dur") + start
        )

    def of_recording(
        self,
        recording: Recording,
        paths: Paths | None = None,
        regions: Regions | None = None,
    ) -> Seen:
        """Return the findings and numbers of a recording.

        With ``paths`` and ``regions``, as those are written.
        """
        (outcome,) = lint([recording], self.rules, self.config, brief=True).outcomes
        findings = [
            _rewritten(finding, paths, regions) if paths and regions else finding
            for finding in map(without_quotes, outcome.findings)
        ]
        return Seen(
            findings=expected(findings),
            skipped=frozenset(rule.code for rule in outcome.skipped),
            crashed=tuple(rule.code for rule in outcome.crashed),
            numbers=numbers(recording),
        )


def without_quotes(finding: Finding) -> Finding:
    """Return a finding without the lines of a log that it quotes: words may go."""
    evidence = tuple(entry for entry in finding.evidence if entry.label != _QUOTE)
    return replace(finding, evidence=evidence)


def _rewritten(finding: Finding, paths: Paths, regions: Regions) -> Finding:
    """Return a finding as it is with shorter paths and other names of regions."""
    finding, evidence = with_short_path(finding, paths), finding.evidence
    return replace(
        finding,
        message=regions.text(finding.message),
        evidence=tuple(
            replace(entry, name=regions.text(entry.name)) for entry in evidence
        ),
    )


def _place(one: Expected) -> str:
    place = one.place
    if place.file and not place.exact:
        return f"{one.code} in {at_function(place.file, place.line, place.function)}"
    where = at_line(place.file, place.line) if place.file else place.module
    return f"{one.code} at {where}" if where else one.code
