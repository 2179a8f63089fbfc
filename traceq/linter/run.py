"""Run rules on a recording: skip with a reason, survive a crash, merge duplicates."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import polars as pl
from msgspec import Struct, structs

from traceq.analysis.base.ops_as_kernels import with_ops_as_kernels
from traceq.common.progress import report_progress
from traceq.linter.finding_lines import with_function, with_line
from traceq.linter.need import Need, lacking
from traceq.linter.snapshot_view import SnapshotView, snapshot_views
from traceq.linter.view import View, WithoutGpu
from traceq.model.finding import Evidence, Severity
from traceq.model.lint_report import Crashed, Skipped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from traceq.analysis.replay.simulation import Change
    from traceq.linter.rule import Rule
    from traceq.model.finding import Finding
    from traceq.model.recording import Recording

# More would hold more of a large trace in memory at once.
_MOST_AT_ONCE = 4
# A log may name a hundred graph breaks; the first few explain a finding.
_MOST_REASONS = 3

_PART_OF_A_STEP = re.compile(r"\b(in|of) a step\b")
_A_STEP = re.compile(r"\ba step\b")
_NO_TRACE = "there is no trace"
# Labels of evidence that is about the GPU's work, which the CPU did.
_OF_GPU = frozenset(
    ("kernel", "kernels", "gpu", "launches", "idle", "forward", "backward", "time")
)


class Views(Struct, frozen=True, dict=True):
    """A recording as rules see it; each view is made once."""

    recording: Recording
    fixed: tuple[Change, ...] = ()
    """Changes of the fixes so far, for rules that report what remains after the
    others."""
    named: frozenset[int] = frozenset()
    """Kernels that the others are about, likewise."""
    changed: frozenset[int] = frozenset()
    """Kernels that their fixes change, likewise."""
    job: Any = None
    """All ranks of the job, analysed, where there are several."""

    @cached_property
    def trace(self) -> View | None:
        """The steady steps of its trace."""
        recording = self.recording
        if recording.trace is None:
            return None
        step_ns, named = recording.step_ns, self.named
        return View(recording.trace, step_ns, self.fixed, named, self.changed)

    @cached_property
    def without_gpu(self) -> View | None:
        """The steady steps of a trace without GPU work, its ops as kernels."""
        recorded = self.trace
        if recorded is None or recorded.trace.facts.gpu:
            return None
        return WithoutGpu(
            with_ops_as_kernels(recorded.trace), recorded.step_ns, recorded=recorded
        )

    def after(
        self,
        fixed: tuple[Change, ...],
        named: frozenset[int],
        changed: frozenset[int] = frozenset(),
    ) -> Views:
        """Return the same for rules that report what remains after the others."""
        if not (fixed or named):
            return self
        return structs.replace(self, fixed=fixed, named=named, changed=changed)

    @cached_property
    def memory(self) -> tuple[SnapshotView, ...]:
        """Its memory snapshots, one a rank."""
        return snapshot_views(self.recording)


class Ran(Struct, frozen=True):
    """Findings of the rules that ran, and the rules that were skipped or crashed."""

    findings: tuple[Finding, ...]
    skipped: tuple[Skipped, ...]
    crashed: tuple[Crashed, ...]

    def __add__(self, other: Ran) -> Ran:
        """Return the results of both."""
        return Ran(
            self.findings + other.findings,
            self.skipped + other.skipped,
            self.crashed + other.crashed,
        )


def run(rules: Iterable[Rule], views: Views) -> Ran:
    """Run rules, some of them at once; one that crashes does not stop the others.

    Most of what a rule asks keeps a single core busy, and Polars lets go of Python.
    """
    every = list(rules)
    ran = Ran((), (), ())
    for done, (rule, result) in enumerate(_at_once(every, views)):
        if rule.residual:
            report_progress("the rest", 0, 1, rule.code)
        else:
            report_progress("rules", done, len(every), rule.code)
        ran += result()
    return ran


def _at_once(
    rules: Sequence[Rule], views: Views
) -> Iterator[tuple[Rule, Callable[[], Ran]]]:
    """Yield each rule, in order, with a future for its result."""
    cores = pl.thread_pool_size()
    if cores == 1 or len(rules) == 1:
        yield from ((rule, partial(_ran, rule, views)) for rule in rules)
        return
    # One more than there are cores: some wait for what another one works out.
    with ThreadPoolExecutor(min(_MOST_AT_ONCE, 1 + cores)) as pool:
        pool.submit(_ahead, views)
        futures = [(rule, pool.submit(_ran, rule, views)) for rule in rules]
        try:
            yield from ((rule, future.result) for rule, future in futures)
        finally:
            # Whoever does not want all of them waits for none.
            pool.shutdown(wait=False, cancel_futures=True)


def _ahead(views: Views) -> None:
    """Work out what bounds the step: it takes longest, and all findings need it."""
    with suppress(Exception):  # who needs it will be told
        _ = views.trace and views.trace.bound


def _ran(rule: Rule, views: Views) -> Ran:
    """Return the findings of one rule, or why it was skipped or crashed."""
    if reason := _why_skipped(rule, views):
        return Ran((), (Skipped(rule.code, rule.name(), reason),), ())
    try:
        return Ran(tuple(run_rule(rule, views)), (), ())
    except Exception as error:  # noqa: BLE001 - the other rules go on
        return Ran((), (), (crashed(rule, error),))


def run_rule(rule: Rule, views: Views) -> list[Finding]:
    """Return the findings of one rule, in an order independent of the file's."""
    log = views.recording.log
    findings: Iterable[Finding] = ()
    cpu_only = views.trace is not None and not views.trace.trace.facts.gpu
    if Need.JOB in rule.needs:
        findings = rule.check_job(views.job)
    elif Need.SNAPSHOT in rule.needs:
        findings = _across_ranks(rule, views.memory)
    elif Need.LOG not in rule.needs and views.trace is not None:
        if rule.without_gpu and views.without_gpu is not None:
            findings = rule.check_without_gpu(views.without_gpu)
        else:
            findings = rule.check(views.trace)
        if cpu_only and (rule.without_gpu or Need.NO_GPU in rule.needs):
            findings = map(_would_matter, findings)
        if not views.trace.trace.steps.height:
            findings = map(_of_the_trace, findings)
    elif log is not None:
        findings = rule.check_log(log)
    merged: Iterable[Finding] = _merged(findings)
    if views.trace is not None:
        trace = views.trace.trace
        placed = with_function if rule.of_function else with_line
        merged = (placed(finding, trace) for finding in merged)
    return sorted(merged, key=worst_first)


def _would_matter(finding: Finding) -> Finding:
    """Return a finding of a program without a GPU: it claims no time of a GPU."""
    return replace(
        finding,
        would_matter_on_gpu=True,
        severity=Severity.info,
        fixes=(),
        gpu_idle_ns=0,
        kernels=frozenset(),
        evidence=tuple(
            entry for entry in finding.evidence if entry.label not in _OF_GPU
        ),
    )


def _of_the_trace(finding: Finding) -> Finding:
    """Return a finding in words for a trace without steps, which counts as one."""
    evidence = tuple(
        replace(item, note=_without_steps(item.note)) for item in finding.evidence
    )
    return replace(finding, message=_without_steps(finding.message), evidence=evidence)


def _without_steps(text: str) -> str:
    """Rewrite a sentence about a step for a trace without steps.

    >>> _without_steps("copied twice a step"), _without_steps("in a step")
    ('copied twice in the trace', 'in the trace')
    """
    return _A_STEP.sub("in the trace", _PART_OF_A_STEP.sub(r"\1 the trace", text))


def crashed(rule: Rule, error: Exception) -> Crashed:
    """Return that a rule has crashed, with the first line of why."""
    text = f"{type(error).__name__}: {error}".partition("\n")[0]
    return Crashed(rule.code, rule.name(), text)


def worst_first(finding: Finding) -> tuple[object, ...]:
    """Return a key that sorts findings: worst first, then always the same way."""
    place = finding.place
    info = finding.severity is Severity.info
    return (
        bool(finding.minor),
        finding.severity is not Severity.error,
        not finding.leads or info,
        # They save what they do on what remains: in a plan they are after the others.
        bool(finding.after),
        finding.residual and finding.saves_ns > 0,
        -finding.saves_ns,
        -finding.gpu_ns,
        -finding.host_ns,
        -finding.cost_bytes,
        info,
        finding.code,
        place.file or "",
        place.line or 0,
        place.module or "",
        finding.subject,
        finding.message,
    )


def _why_skipped(rule: Rule, views: Views) -> str:
    """Return the reason why a rule cannot run; empty if it can."""
    if Need.JOB in rule.needs:
        return "" if views.job is not None else Need.JOB.value
    if Need.LOG in rule.needs:
        return "" if views.recording.log is not None else Need.LOG.value
    if Need.SNAPSHOT in rule.needs:
        if not views.memory:
            return Need.SNAPSHOT.value
        # One rank that has all is enough.
        return min(
            ("; ".join(view.lacks(rule.needs)) for view in views.memory), key=len
        )
    trace = views.trace
    if trace is None:
        return _NO_TRACE
    requested = trace if not rule.without_gpu else views.without_gpu or trace
    missing = {need for need in rule.needs if not requested.meets(need)}
    recorder = trace.trace.facts.recorder
    return "; ".join(lacking(need, recorder) for need in Need if need in missing)


def _across_ranks(rule: Rule, memory: Sequence[SnapshotView]) -> Iterator[Finding]:
    """Yield each finding of any rank once: that of the rank where it holds the most."""
    by_key: dict[tuple[str, str], list[tuple[int, Finding]]] = {}
    for view in memory:
        if not view.lacks(rule.needs):
            for finding in _merged(rule.check_snapshot(view)):
                # Ranks differ in bytes, and so in sentences, but not in lines.
                key = (finding.fingerprint, repr(finding.place))
                by_key.setdefault(key, []).append((view.rank, finding))
    for entries in by_key.values():
        rank, worst = max(entries, key=lambda entry: (entry[1].cost_bytes, -entry[0]))
        if len(memory) > 1:
            ranks = sorted({number for number, _ in entries})
            named = ", ".join(map(str, ranks))
            text = f"{named}; highest on {rank}" if len(ranks) > 1 else named
            worst = replace(worst, evidence=(*worst.evidence, Evidence("ranks", text)))
        yield worst


def _merged(findings: Iterable[Finding]) -> Iterator[Finding]:
    """Make one of findings that say the same of the same place."""
    groups: dict[tuple[str, object, str, str], list[Finding]] = {}
    for finding in findings:
        key = (finding.fingerprint, finding.place, finding.message, finding.advice)
        groups.setdefault(key, []).append(finding)
    for first, *others in groups.values():
        everything = [first, *others]
        yield replace(
            first,
            count=sum(each.count for each in everything),
            gpu_idle_ns=sum(each.gpu_idle_ns for each in everything),
            cost_bytes=sum(each.cost_bytes for each in everything),
            ops=first.ops.union(*(each.ops for each in others)),
            kernels=first.kernels.union(*(each.kernels for each in others)),
            calls=first.calls.union(*(each.calls for each in others)),
            fixes=tuple(fix for each in everything for fix in each.fixes),
        )


def unconfirmed(
    findings: Iterable[Finding], rules: Iterable[Rule], ran: Ran, views: Views
) -> list[Finding]:
    """Doubt findings of a log that rules on the trace should see, and do not.

    Rules that did not run confirm nothing, and contradict nothing.
    """
    if views.trace is None:
        return list(findings)
    not_run = {rule.code for rule in ran.skipped} | {rule.code for rule in ran.crashed}
    silent = {rule.code for rule in rules} - not_run
    silent -= {finding.code for finding in ran.findings}
    if not views.trace.trace.facts.gpu:
        silent -= {rule.code for rule in rules if rule.without_gpu}
    return [
        _contradicted(finding)
        if finding.confirmed_by and finding.confirmed_by <= silent
        else finding
        for finding in findings
    ]


def _contradicted(finding: Finding) -> Finding:
    codes = ", ".join(sorted(finding.confirmed_by))
    seen = Evidence("trace", f"shows nothing of it ({codes})")
    evidence = (*finding.evidence, seen)
    return replace(
        finding, severity=Severity.info, doubt="uncertain", evidence=evidence
    )


def explained(findings: Sequence[Finding]) -> list[Finding]:
    """Give findings the log lines that explain them; these are not findings then."""
    reasons = [
        reason
        for reason in findings
        if any(_explains(reason, finding) for finding in findings)
    ]
    remaining = []
    for finding in findings:
        if finding in reasons:
            continue
        explaining = [reason for reason in reasons if _explains(reason, finding)]
        remaining.append(_with_reasons(finding, explaining[:_MOST_REASONS]))
    return remaining


def _explains(reason: Finding, finding: Finding) -> bool:
    """Return whether a line of the log is on this finding: same code, same function.

    What torch compiles has a number, which both may know; else both may know the place.
    """
    if finding.code not in reason.explains:
        return False
    numbers = _frames(reason), _frames(finding)
    if all(numbers):
        return bool(numbers[0] & numbers[1])
    places = reason.place, finding.place
    if not any(numbers) or not all(place.file for place in places):
        return True
    ours, theirs = ((PurePath(place.file or "").name, place.line) for place in places)
    return ours == theirs


def _frames(finding: Finding) -> set[str]:
    frames = finding.data.get("frames")
    return set(map(str, frames)) if isinstance(frames, list) else set()


def _with_reasons(finding: Finding, reasons: Sequence[Finding]) -> Finding:
    """Return a finding with what the log says on it: the reason decides the advice."""
    evidence = list(finding.evidence)
    for reason in reasons:
        if "why" in reason.data:
            why = Evidence("reason", str(reason.data["why"]))
            lines = [
                why,
                *(entry for entry in reason.evidence if entry.label != "line"),
            ]
            finding = replace(
                finding,
                advice=reason.advice,
                place=finding.place if finding.place.file else reason.place,
            )
        else:
            lines = [Evidence("log", reason.message), *reason.evidence]
        evidence += [line for line in lines if line not in evidence]
    return replace(finding, evidence=tuple(evidence))
