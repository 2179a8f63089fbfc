"""Source files of a recording, named as its fixture names them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import polars as pl
from msgspec import structs

from traceq.common.expressions import text
from traceq.formats.sanitize.paths import Paths

if TYPE_CHECKING:
    from traceq.model.finding import Finding
    from traceq.model.lint_report import RecordingReport
    from traceq.model.recording import Recording

_FILE = r"^(.+)\(\d+\): "


def with_short_path(finding: Finding, paths: Paths) -> Finding:
    """Return a finding without the folders of a machine."""
    file = finding.place.file
    if not file or paths.short(file) == file:
        return finding
    return replace(finding, place=replace(finding.place, file=paths.short(file)))


def with_short_paths(outcome: RecordingReport, recording: Recording) -> RecordingReport:
    """Return the findings of a recording with the paths that its fixture has."""
    if not any(Paths.shortens(finding.place.file) for finding in outcome.findings):
        return outcome
    paths = Paths(sorted(_source_files(recording)))
    findings = tuple(with_short_path(finding, paths) for finding in outcome.findings)
    return structs.replace(outcome, findings=findings)


def _source_files(recording: Recording) -> set[str]:
    columns = [snapshot.frames["file"] for snapshot in recording.snapshots.values()]
    if recording.trace is not None:
        frames, ops = recording.trace.frames, recording.trace.ops
        columns.append(frames.select(text("name").str.extract(_FILE)).to_series())
        columns.append(ops.select(text("file")).to_series())
    return {
        file
        for column in columns
        for file in column.cast(pl.String).unique().drop_nulls().to_list()
    }
