"""Lint as a function, for tests: which findings a recording has."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from importlib import import_module
from textwrap import dedent
from typing import TYPE_CHECKING

from recordings import CAPTURES, loaded, path_of, read

from traceq.formats.log import log_lines, read_log
from traceq.linter.config import Config
from traceq.linter.engine import lint
from traceq.linter.library_findings import with_libraries
from traceq.linter.pack import load_rules
from traceq.linter.run import Views, run, run_rule, worst_first
from traceq.linter.select import selected
from traceq.model.recording import Recording
from traceq.model.run import Rank
from traceq.testing import load_drawn, load_history
from traceq.testing.examples import drawn, drawn_job

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from typing import Any

    from traceq.linter import Finding
    from traceq.linter.pack import Rules
    from traceq.model.lint_report import RecordingReport
    from traceq.model.snapshot import Snapshot


@cache
def bundled_rules() -> Rules:
    """Return traceq's own rules."""
    return load_rules()


def rule_module(name: str) -> Any:  # noqa: ANN401 - a module
    """Return a module that rules of a family share, as ``launch._graphed_model``."""
    bundled_rules()
    return import_module(f"_traceq_pack0.{name}")


def outcome(
    recording: Recording,
    *codes: str,
    brief: bool = False,
    **config: Any,  # noqa: ANN401 - what Config takes
) -> RecordingReport:
    """Return what rules say of one recording; without codes, all rules.

    It is brief where only the findings count, not what the report says beside them.
    """
    wanted = Config(select=codes or ("ALL",), **config)
    return lint([recording], bundled_rules(), wanted, brief=brief).outcomes[0]


@cache
def example_findings(code: str, number: int) -> tuple[Finding, ...]:
    """Return what a rule finds in one of its examples, once."""
    rule = bundled_rules()[code]
    example = rule.examples[number]
    return tuple(run_rule(rule(), Views(drawn(example), job=drawn_job(example))))


def findings_of(recording: Recording, *codes: str) -> tuple[Finding, ...]:
    """Return what rules find in a recording, without what that costs.

    To replay the steps takes longer than the rules do. A rule that reports what remains
    after the others needs the replay.
    """
    rules = bundled_rules()
    chosen = selected(rules, codes, ())
    if any(rule.residual for rule in chosen.values()):
        return outcome(recording, *codes, brief=True).findings
    ready = [rule() for rule in chosen.values()]
    ran = with_libraries(run(ready, Views(recording)), recording.trace)
    assert not ran.crashed
    return tuple(sorted(ran.findings, key=worst_first))


def drawn_findings(
    drawing: str,
    *codes: str,
    args: Mapping[str, Mapping[str, Any]] | None = None,
    log: str | None = None,
) -> tuple[Finding, ...]:
    """Return the findings in a drawn trace, without what they cost."""
    if log or not codes:
        return priced_findings(drawing, *codes, args=args, log=log)
    return findings_of(Recording("drawn", load_drawn(drawing, args)), *codes)


def priced_findings(
    drawing: str,
    *codes: str,
    args: Mapping[str, Mapping[str, Any]] | None = None,
    log: str | None = None,
) -> tuple[Finding, ...]:
    """Return the findings in a drawn trace, with what their fixes remove and save."""
    recording = Recording(
        "drawn", load_drawn(drawing, args), log_lines(log) if log else None
    )
    return outcome(recording, *codes, brief=True).findings


def sourced_findings(
    drawing: str,
    sources: Mapping[str, str],
    *codes: str,
    args: Mapping[str, Mapping[str, Any]] | None = None,
) -> tuple[Finding, ...]:
    """Return the findings in a drawn trace with the source files of its program."""
    texts = {name: dedent(text).strip() + "\n" for name, text in sources.items()}
    rank = Rank("rank-0", 0, "done", None, None, None, (), sources=texts)
    trace = replace(load_drawn(drawing, args), rank=rank)
    return outcome(Recording("drawn", trace), *codes, brief=True).findings


def placed(
    lanes: dict[str, list[tuple[int, int, str]]], length: int, steps: int = 1
) -> str:
    """Draw spans by start, length and text, once for each step; {} is its number."""
    drawn = []
    for name, spans in lanes.items():
        line = f"{name.strip():<6}"
        for step in range(steps):
            for start, long, text in spans:
                line = line.ljust(6 + length * step + start)
                line += f"[{text.format(step + 1):<{long - 2}}]"
        drawn.append(line)
    return "\n".join(drawn)


def log_findings(log: str, *codes: str) -> tuple[Finding, ...]:
    """Return the findings in a log alone."""
    return outcome(Recording("log", log=log_lines(log)), *codes).findings


def case_findings(
    file: str, *codes: str, measured: bool = False, log: bool = False
) -> tuple[Finding, ...]:
    """Return the findings in the trace of a capture, or of public/, or skip.

    Those of a capture may know what its step takes, measured without the profiler.
    """
    path = path_of(file)
    name = file.removesuffix(".trace.json.gz")
    step_ns = CAPTURES.step_ns(name) if measured else None
    if log:
        # What a log says goes to the findings it explains: those that were asked for.
        written = read_log(path_of(file.replace(".trace.json.gz", ".log"))).lines
        recording = Recording(file, loaded(path), written, step_ns)
        return outcome(recording, *codes, brief=True).findings
    findings = linted(path, step_ns, brief=True).findings
    return tuple(finding for finding in findings if finding.code.startswith(codes))


def mentions(finding: Finding, *facts: object) -> bool:
    """Return whether a finding mentions all of these: numbers, shapes, ops, functions.

    The words around them may change.
    """
    around = r"(?<![\w.,\[]){}(?!\w|[.,]\d)"
    return all(
        re.search(around.format(re.escape(str(fact))), finding.message)
        for fact in facts
    )


def says(finding: Finding, what: str, often: str = "") -> bool:
    """Say whether a finding is of something, so often; other words of it may change.

    Its whole sentence is held by the examples of its rule and by goldens.
    """
    return finding.message.startswith(what) and finding.message.endswith(often)


@cache
def linted(
    path: Path, step_ns: int | None = None, *, brief: bool = False
) -> RecordingReport:
    """Return what all rules say of a trace, once."""
    return outcome(Recording(path.name, loaded(path), step_ns=step_ns), brief=brief)


def case_snapshot(file: str) -> Snapshot:
    """Return the snapshot of a capture, or of public/, or skip."""
    return read(path_of(file))


def memory_findings(snapshot: Snapshot | str, *codes: str) -> tuple[Finding, ...]:
    """Return the findings in a snapshot, or in a drawn one."""
    known = load_history(snapshot) if isinstance(snapshot, str) else snapshot
    return outcome(Recording("memory", snapshots={0: known}), *codes).findings
