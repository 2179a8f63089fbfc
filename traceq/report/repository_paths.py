"""Findings in the user's repository: paths from its root, and the lines around them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from msgspec import structs

from traceq.common.words import counted
from traceq.model.finding import CodeFrame

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from traceq.common.git_repository import Repository
    from traceq.model.finding import Finding, Place
    from traceq.model.lint_report import RecordingReport, Report

_AROUND = 1


def located(report: Report, repository: Repository) -> tuple[Report, str]:
    """Give places the files of the repository, and say which were not found in it.

    The sentence is empty where all were found, or nothing was.
    """
    missing: dict[str, None] = {}
    outcomes = tuple(
        _outcome(outcome, repository, missing) for outcome in report.outcomes
    )
    return structs.replace(report, outcomes=outcomes), _sentence(
        list(missing), repository
    )


def with_sources(report: Report, sources: Mapping[str, Mapping[str, str]]) -> Report:
    """Show the lines as they ran, from the source files that run folders have.

    ``sources`` are by the name of the recording, then by the file's in the trace.
    """
    outcomes = tuple(
        structs.replace(
            outcome,
            findings=tuple(
                _from_copy(finding, sources.get(outcome.name, {}))
                for finding in outcome.findings
            ),
        )
        for outcome in report.outcomes
    )
    return structs.replace(report, outcomes=outcomes)


def _from_copy(finding: Finding, files: Mapping[str, str]) -> Finding:
    place = finding.place
    text = files.get(place.file or "")
    if text is None or place.line is None:
        return finding
    frame = _around(text.splitlines(), place.line, exact=place.exact)
    return replace(finding, frame=frame)


def _around(lines: Sequence[str], line: int, *, exact: bool) -> CodeFrame | None:
    """Return three lines: around an exact one, or from where a function begins."""
    first = max(1, line - _AROUND) if exact else line
    shown = tuple(lines[first - 1 : first + 2 * _AROUND])
    return CodeFrame(first, shown, line) if shown else None


def located_finding(finding: Finding, repository: Repository) -> Finding:
    """Return a finding with the file of the repository, and the lines around it."""
    return _finding(finding, repository, {})


def _sentence(missing: list[str], repository: Repository) -> str:
    if not missing:
        return ""
    which = f"{missing[0]}, for example, is" if len(missing) > 1 else f"{missing[0]} is"
    return (
        f"{counted(len(missing), 'file')} of findings not found under"
        f" {repository.root}: {which} in no file there, or in several; --root DIR says"
        " where the source is"
    )


def _outcome(
    outcome: RecordingReport, repository: Repository, missing: dict[str, None]
) -> RecordingReport:
    findings = tuple(
        _finding(finding, repository, missing) for finding in outcome.findings
    )
    entry = outcome.entry and _place(outcome.entry, None, repository)
    return structs.replace(outcome, findings=findings, entry=entry)


def _finding(
    finding: Finding, repository: Repository, missing: dict[str, None]
) -> Finding:
    place = _place(finding.place, finding.frame, repository)
    if place.file and not place.path:
        missing[place.file] = None
    return replace(
        finding, place=place, frame=finding.frame or _frame(place, repository)
    )


def _place(place: Place, frame: CodeFrame | None, repository: Repository) -> Place:
    if not place.file:
        return place
    begins = place.begins if place.exact else place.line
    path = repository.find(place.file, place.function, begins)
    if path and frame and not _has_some_of(repository.lines(path), frame):
        path = None
    return replace(place, path=path)


def _has_some_of(lines: Sequence[str], frame: CodeFrame) -> bool:
    """Return whether a file has a line of those that ran, wherever it stands."""
    known = {line.strip() for line in lines}
    return any(line.strip() in known for line in frame.lines if line.strip())


def _frame(place: Place, repository: Repository) -> CodeFrame | None:
    """Return the lines around a place, if its function is where it was recorded."""
    if not place.path or place.line is None:
        return None
    if place.exact:
        same = repository.holds(place.path, place.function, place.line)
        if place.begins is not None:
            same &= repository.begins(place.path, place.function, place.begins)
    else:
        same = repository.begins(place.path, place.function, place.line)
    lines = repository.lines(place.path) if same else ()
    return _around(lines, place.line, exact=place.exact)
