"""Digests of recordings, jobs and the JSON of lint."""

from __future__ import annotations

from statistics import stdev
from typing import TYPE_CHECKING, Any

import polars as pl
from msgspec import Struct

from traceq import __version__
from traceq.analysis.base.steady import steady_steps
from traceq.analysis.memory.history import History
from traceq.analysis.memory.trace_peak import peak_memory
from traceq.analysis.replay.bound import bound_of
from traceq.differ.calibration import scale_of
from traceq.differ.compare import Half, examine, slowed
from traceq.differ.jobs import JobSide, job_numbers, meetings_of, step_of_job
from traceq.differ.kernels import family
from traceq.differ.metrics import numbers_of
from traceq.differ.steps import measured_step, recorded_step
from traceq.errors import InputError
from traceq.history.digest import (
    Cause,
    Digest,
    DigestFinding,
    Held,
    Memory,
    StepFrom,
    StepTime,
    Work,
)
from traceq.linter.same_finding import extent, matched

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from traceq.differ.calibration import Scale
    from traceq.differ.steps import Step
    from traceq.model.finding import Finding
    from traceq.model.lint_report import RecordingReport
    from traceq.model.recording import Recording
    from traceq.model.trace import Trace
    from traceq.ranks.analysis import Analysis

# Rows that are kept: of a large model they have all but a thousandth of its time.
_MOST_WORK, _MOST_HELD, _MOST_CAUSES = 200, 40, 20
# Between the tenth and the ninetieth percentile of a normal distribution.
_USUAL_RANGE = 2.563
_LONGEST = 200
_LINT_VERSION = 3
_ROW = ("phase", "module", "where", "op", "role")


class Origin(Struct, frozen=True):
    """Facts of a run beside its recording."""

    name: str
    series: str
    at_ns: int
    commit: str = ""
    dirty: bool = False


def digest_of_recording(
    recording: Recording, outcome: RecordingReport, origin: Origin
) -> Digest:
    """Return the digest of a recording that was linted."""
    memory = _memory(recording, outcome)
    trace = recording.trace
    if trace is None:
        return _digest(origin, findings=_findings(outcome.findings), memory=memory)
    half = examine(recording, outcome)
    measured = measured_step(recording)
    step = measured or recorded_step(trace)
    scale = scale_of(half.parts, step, stacks=slowed(trace))
    numbers = numbers_of(trace, half.parts, step, scale)
    bound = bound_of(trace, recording.step_ns)
    return _digest(
        origin,
        gpu=_gpu(trace),
        versions=_versions(trace),
        step=_step_time(recording, trace, step),
        by=bound.by if trace.facts.gpu else "",
        busy_ns=numbers.get("gpu busy"),
        idle_ns=numbers.get("idle"),
        causes=_causes(bound.bottleneck.rows if bound.bottleneck else ()),
        kernels=numbers.get("kernels"),
        syncs=numbers.get("syncs"),
        findings=_findings(outcome.findings),
        work=_work(half, scale),
        memory=memory,
    )


def digest_of_job(
    analysis: Analysis, outcome: RecordingReport, origin: Origin
) -> Digest:
    """Return the digest of a job of several ranks: numbers are of a rank, on average.

    Its work is the collectives, with the time that ranks wait in them as idle time.
    """
    step = step_of_job(analysis)
    numbers = job_numbers(JobSide(origin.name, analysis, step))
    names = analysis.job.ranks["device"].drop_nulls().unique().sort()
    work = [
        Work(
            "",
            "",
            "",
            kind,
            "collective",
            kind,
            meetings.count,
            meetings.count,
            meetings.ns - meetings.waiting_ns,
            meetings.waiting_ns,
            0.0,
            0.0,
        )
        for kind, meetings in meetings_of(analysis).items()
    ]
    parts = {name: numbers.get(name) for name in ("waiting", "transfer")}
    source: StepFrom = "measured" if step and step.measured else "recorded"
    return _digest(
        origin,
        gpu=", ".join(names),
        ranks=analysis.job.ranks.height,
        step=StepTime(step.ns, 0.0, step.count, source) if step else None,
        causes=_causes((name, ns) for name, ns in parts.items() if ns is not None),
        idle_ns=numbers.get("waiting"),
        findings=_findings(outcome.findings),
        work=tuple(work[:_MOST_WORK]),
    )


def digests_of_lint(document: Any, origin: Origin) -> list[Digest]:  # noqa: ANN401 - any JSON
    """Return the digests of the recordings in the JSON of ``traceq lint``."""
    try:
        if document["version"] != _LINT_VERSION:
            msg = (
                f"{origin.name} is JSON of version {document['version']} of lint, and"
                f" this traceq reads {_LINT_VERSION}"
            )
            raise InputError(msg)
        return [_of_outcome(recording, origin) for recording in document["recordings"]]
    except (LookupError, TypeError, ValueError, AttributeError):
        msg = f"{origin.name} is JSON, but not of traceq lint --format json"
        raise InputError(msg) from None


def _of_outcome(outcome: Mapping[str, Any], origin: Origin) -> Digest:
    facts, bound, memory = (outcome[name] for name in ("facts", "bound", "memory"))
    step = bound["step_ns"] if bound else outcome["step_ns"]
    versions = {}
    if facts:
        versions = (
            {"CUDA": str(facts["runtime_version"])} if facts["runtime_version"] else {}
        )
        if facts["torch_from"] == facts["torch_to"] != "":
            versions["torch"] = str(facts["torch_from"])
    causes = bound["causes"] if bound and bound.get("causes") else []
    return _digest(
        Origin(
            f"{origin.name}: {outcome['name']}",
            origin.series,
            origin.at_ns,
            origin.commit,
            origin.dirty,
        ),
        ranks=int((facts or {}).get("world_size") or 1),
        versions=versions,
        step=StepTime(
            float(step),
            0.0,
            int(outcome["steps"]),
            bound["step_from"] if bound else "recorded",
        )
        if step
        else None,
        by=str(bound["by"]) if bound else "",
        busy_ns=float(bound["gpu_busy"]) * step if bound else None,
        idle_ns=float(bound["gpu_idle"]) * step if bound else None,
        causes=_causes((str(cause["cause"]), float(cause["ns"])) for cause in causes),
        findings=_findings_of_json(outcome["findings"]),
        memory=Memory(int(memory["allocated"]), int(memory["reserved"]))
        if memory
        else None,
    )


def _digest(origin: Origin, **values: Any) -> Digest:  # noqa: ANN401 - fields of a digest
    return Digest(
        traceq=__version__,
        name=origin.name[-_LONGEST:],
        series=origin.series[:_LONGEST],
        at_ns=origin.at_ns,
        commit=origin.commit,
        dirty=origin.dirty,
        **values,
    )


def _step_time(recording: Recording, trace: Trace, step: Step) -> StepTime:
    if not step.measured:
        windows = steady_steps(trace).windows
        lengths = (windows["end"] - windows["start"]).to_list()
        spread = stdev(lengths) if len(lengths) > 1 else 0.0
        return StepTime(step.ns, spread, step.count, "recorded")
    timed = trace.rank.step_time if trace.rank else None
    known = timed is not None and timed.ns == recording.step_ns
    usual = timed.usual_range_ns if timed and known else 0
    return StepTime(step.ns, usual / _USUAL_RANGE, step.count, "measured")


def _causes(rows: Iterable[tuple[str, float]]) -> tuple[Cause, ...]:
    return tuple(Cause(name, round(ns)) for name, ns in [*rows][:_MOST_CAUSES])


def _findings(findings: Iterable[Finding]) -> tuple[DigestFinding, ...]:
    """Return a row for each fingerprint, in the order of the findings."""
    rows = []
    for _, group in matched((), findings):
        first, size = group[0], extent(group)
        rows.append(
            DigestFinding(
                first.fingerprint,
                first.code,
                first.name,
                (first.place.key or first.subject)[:_LONGEST],
                first.subject[:_LONGEST],
                size.count,
                size.saves_ns or 0,
                size.cost_bytes,
            )
        )
    return tuple(rows)


def _findings_of_json(
    findings: Iterable[Mapping[str, Any]],
) -> tuple[DigestFinding, ...]:
    rows: dict[str, DigestFinding] = {}
    for finding in findings:
        place = finding["place"]
        where = f"{place.get('file', '')}:{place.get('function', '')}".strip(":")
        row = DigestFinding(
            str(finding["fingerprint"]),
            str(finding["code"]),
            str(finding["name"]),
            (where or str(place.get("module") or finding["subject"]))[:_LONGEST],
            str(finding["subject"])[:_LONGEST],
            int(finding["count"]),
            int(finding["saves_ns"]),
            int(finding["cost_bytes"]),
        )
        # Times of two findings of one fingerprint add up, as those of a recording do.
        if same := rows.get(row.fingerprint):
            row = DigestFinding(
                *(row.fingerprint, row.code, row.name, row.where, row.subject),
                row.count + same.count,
                row.saves_ns + same.saves_ns,
                row.cost_bytes + same.cost_bytes,
            )
        rows[row.fingerprint] = row
    return tuple(rows.values())


def _work(half: Half, scale: Scale) -> tuple[Work, ...]:
    """Return the work of a step without shapes and lines, most GPU time first."""
    where = pl.concat_str(
        pl.col("file").fill_null(""), pl.col("function").fill_null(""), separator=":"
    ).str.strip_chars(":")
    # Without a GPU the time is that of ops, which are no kernels.
    launched = half.parts.kernels.clear() if half.parts.on_host else half.parts.kernels
    rows = half.parts.rows.with_columns(
        *(
            pl.col(name).cast(pl.String).fill_null("")
            for name in ("phase", "module", "op", "role")
        ),
        where=where,
    )
    grouped = rows.group_by(_ROW).agg(
        calls=pl.col("calls").sum(),
        kernels=pl.col("kernels").sum(),
        gpu_ns=pl.col("gpu_ns").sum() * scale.gpu,
        idle_ns=pl.col("launch_idle_ns").sum() * scale.idle,
        syncs=pl.col("syncs").sum(),
        sync_ns=pl.col("sync_idle_ns").sum() * scale.idle,
    )
    longest = (
        launched.join(rows.select("row", *_ROW), on="row")
        .group_by(*_ROW, "name")
        .agg(pl.col("gpu_ns").sum())
        .sort("gpu_ns", "name", descending=[True, False])
        .group_by(_ROW)
        .agg(pl.col("name").first())
    )
    table = grouped.join(longest, on=_ROW, how="left").sort(
        pl.col("gpu_ns") + pl.col("idle_ns") + pl.col("sync_ns"),
        *_ROW,
        descending=[True, *[False] * len(_ROW)],
    )
    return tuple(map(_row_of_work, table.head(_MOST_WORK).iter_rows(named=True)))


def _row_of_work(row: Mapping[str, Any]) -> Work:
    phase, module, where, op, role = (str(row[name])[:_LONGEST] for name in _ROW)
    return Work(
        phase=phase,
        module=module,
        where=where,
        op=op,
        role=role,
        kernel=family(row["name"])[:_LONGEST] if row["name"] else "",
        calls=_short(row["calls"]),
        kernels=_short(row["kernels"]),
        gpu_ns=round(row["gpu_ns"]),
        idle_ns=round(row["idle_ns"]),
        syncs=_short(row["syncs"]),
        sync_ns=round(row["sync_ns"]),
    )


def _short(count: float) -> float:
    """Return a count per step without digits that say nothing."""
    return round(count, 3)


def _memory(recording: Recording, outcome: RecordingReport) -> Memory | None:
    if not recording.snapshots:
        peak = peak_memory(recording.trace) if recording.trace else None
        return Memory(peak.allocated, peak.reserved) if peak else None
    rank = min(recording.snapshots)
    history = History(recording.snapshots[rank], recording.trace)
    known = outcome.memory
    if known is None:
        return None
    live = history.at_peak.filter(pl.col("device") == known.device)
    held = (
        live.group_by(
            category=pl.col("category").cast(pl.String),
            where=pl.concat_str(
                pl.col("file").fill_null(""),
                pl.col("function").fill_null(""),
                separator=":",
            ).str.strip_chars(":"),
        )
        .agg(pl.col("size").sum())
        .sort("size", "category", "where", descending=[True, False, False])
    )
    return Memory(
        known.allocated,
        known.reserved,
        tuple(
            Held(category, where[:_LONGEST], size)
            for category, where, size in held.head(_MOST_HELD).iter_rows()
        ),
    )


def _gpu(trace: Trace) -> str:
    return ", ".join(trace.devices.filter("used")["name"].drop_nulls().unique().sort())


def _versions(trace: Trace) -> dict[str, str]:
    manifest: Any = trace.run.manifest if trace.run else {}
    versions: dict[str, str] = {}
    for rank in manifest.get("ranks") or ():
        versions |= {
            str(name): str(text)
            for name, text in (rank.get("versions") or {}).items()
            if text
        }
    if driver := manifest.get("driver"):
        versions["driver"] = str(driver)
    facts = trace.facts
    if not versions:
        if facts.torch_from == facts.torch_to != "":
            versions["torch"] = facts.torch_from
        if facts.runtime_version:
            versions["CUDA"] = facts.runtime_version
    return versions
