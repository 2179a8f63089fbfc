"""Savings of a fix: the step replayed with it, compared with the step without it.

A rule returns what its fix removes: GPU work, host time, calls that block.
Here that becomes changes of the replay, alone and together with others.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from math import inf
from typing import TYPE_CHECKING, Literal

import polars as pl
from msgspec import structs

from traceq.analysis.base.assumptions import (
    GPU_BOUND,
    HIDDEN_AS_EXPECTED,
    HOST_RUN_SPREAD,
    LEAST_LEFT,
    MEASURED_SPREAD,
    SAVING_ERROR_OF_STEP,
    SAVING_ERRORS,
)
from traceq.analysis.replay.bottleneck import gpu_busy
from traceq.analysis.replay.bound import bound_by
from traceq.analysis.replay.simulation import NO_SPANS, Change, TimeScale
from traceq.common.intervals import count_until, disjoint, merged, overlap, without
from traceq.common.progress import report_progress
from traceq.linter.minor import WORTH_FIXING, weighed
from traceq.linter.need import Need
from traceq.linter.run import crashed
from traceq.model.finding import Fix, Severity
from traceq.model.lint_report import CombinedFix, Crashed

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from traceq.linter.rule import Rule
    from traceq.linter.view import View
    from traceq.model.finding import Finding
    from traceq.model.lint_report import Memory

# Unexplained idle time of this share of the step, or more, matters. Heuristic
# threshold: a step in which the GPU idles less is GPU-bound.
LARGE_IDLE = 1 - GPU_BOUND
# A fix that removes this share of an op removes the op's blocking calls too; of a step,
# it may be why the step takes longer than recorded.
_MOSTLY = 0.5
_MOST_TOGETHER = 20
# A fix of the host's part may make kernels faster by this many times what is predicted,
# as a compiler that fuses more. Heuristic.
_MOST_OF_KERNEL_SHARE = 1.5


def price(
    findings: Iterable[Finding],
    rules: Mapping[str, Rule],
    savings: Savings | None,
    peak: Memory | None,
) -> tuple[list[Finding], list[Crashed]]:
    """Return the findings with what they cost, and rules whose fix cannot be priced.

    A finding that costs too little is minor. One on what remains saves what its fix
    does once those of the others that are not minor are made.
    """
    priced: list[Finding] = []
    crashes: dict[str, Crashed] = {}
    every = list(findings)

    def once(finding: Finding, others: Sequence[Finding]) -> Finding:
        rule = rules[finding.code]
        report_progress("savings", len(priced), len(every), finding.code)
        try:
            return _priced(finding, rule, savings, peak, others)
        except Exception as error:  # noqa: BLE001 - the finding is there nevertheless
            crashes[rule.code] = crashed(rule, error)
            return replace(finding, severity=Severity.info, doubt="uncertain")

    priced += [once(finding, ()) for finding in every if not finding.residual]
    left = [finding for finding in every if finding.residual]
    while left:
        # Of several, the one that saves most comes first, as in reports.
        others = to_fix(priced)
        tried = [once(finding, others) for finding in left]
        first = max(range(len(left)), key=lambda at: tried[at].saves_ns)
        before = tuple(finding.code for finding in others if finding.residual)
        most = tried[first]
        priced.append(replace(most, after=before) if most.saves_ns else most)
        del left[first]
    return priced, list(crashes.values())


def to_fix(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings that save time, without those that are minor."""
    return [
        finding for finding in findings if not finding.minor and finding.saves_ns > 0
    ]


def in_turn(
    findings: Iterable[Finding], together: Sequence[CombinedFix], step_ns: int
) -> Iterator[Finding]:
    """Yield the findings with what each saves after those before it in the list."""
    left = {fix.findings: fix.step_ns for fix in together} | {0: step_ns}
    fixed = 0
    for finding in findings:
        if not to_fix([finding]):
            yield finding
            continue
        fixed += 1
        known = fixed in left and fixed - 1 in left
        after = left[fixed - 1] - left[fixed] if known else None
        yield replace(finding, saves_after_ns=after)


def _priced(
    finding: Finding,
    rule: Rule,
    savings: Savings | None,
    peak: Memory | None,
    others: Sequence[Finding],
) -> Finding:
    if peak and Need.SNAPSHOT in rule.needs:
        return weighed(finding, reserved=peak.reserved, priced=rule.priced)
    if finding.would_matter_on_gpu:
        return finding
    if savings is None:
        return weighed(finding)
    finding = savings.removed(finding)
    if rule.priced:
        finding = savings.of(finding, others)
    idles = savings.idles(finding)
    return weighed(finding, step_ns=savings.step_ns, priced=rule.priced, idles=idles)


class Savings:
    """The replay of a trace's steps, asked about findings."""

    def __init__(self, view: View, *, brief: bool = False) -> None:
        """Keep the view; what is slow is computed when it is asked for."""
        self._view = view
        self._brief = brief
        self._known: dict[Fix, Change] = {}
        self._gpu_ns: dict[Change, float] = {}
        self._host_part: dict[Change, Change] = {}
        self._host_changes: dict[tuple[Fix, ...], tuple[Change, ...]] = {}

    @cached_property
    def _scales(self) -> tuple[tuple[TimeScale, TimeScale | None], ...]:
        """The likely host speed, then a fast and a slow one unless it is brief.

        Each with that of the other calibration, near the balance of host and GPU.
        """
        calibration, other = self._view.calibration, self._view.calibration.other
        pairs: list[tuple[TimeScale, TimeScale | None]]
        if other is None:
            pairs = [(scale, None) for scale in calibration.scales]
        else:
            pairs = [
                (calibration.likely, other.likely),
                (calibration.fast, other.fast),
                (calibration.slow, other.slow),
            ]
        return tuple(pairs[:1] if self._brief else pairs)

    @cached_property
    def _before(self) -> list[float]:
        return self._steps_after(())

    def _steps_after(self, changes: Sequence[Change], most: int = 3) -> list[float]:
        """Return the step after changes, likely and with a fast and a slow host.

        Near the balance of host and GPU it is a mean of both calibrations, by their
        weights, so that a step measured a little longer is predicted a little longer.
        """
        weight, steps = self._view.calibration.other_weight, []
        for scale, other in self._scales[:most]:
            step = self._step_after(changes, scale)
            if other is not None:
                step += weight * (self._step_after(changes, other) - step)
            steps.append(step)
        return steps

    def _step_after(self, changes: Sequence[Change], scale: TimeScale) -> float:
        """Return the step after changes, with the host at this speed.

        A measured step tells only about launches that the GPU waits for. Those behind
        which it was busy may take what their events should: what faster kernels save
        before they wait for these, too, is the mean of both.
        """
        run = self._view.replay.run
        step = run(changes, scale).step_ns
        faster = any(change.kernels and change.kernel_share for change in changes)
        # Where the GPU takes the rest of the step, the host's speed is not fitted.
        measured = self._view.calibration.measured
        fitted = measured and scale.gpu == 1
        if changes and measured and not (faster or fitted):
            return self._with_recorded_gpu(step, changes, scale)
        if not (faster and fitted) or scale.host == 1:
            return step
        on_host = self._host_parts(changes)
        saved, expected = (
            run(on_host, speed).step_ns - run(changes, speed).step_ns
            for speed in (scale, structs.replace(scale, host=1.0))
        )
        return step - HIDDEN_AS_EXPECTED * (expected - saved)

    def _with_recorded_gpu(
        self, step: float, changes: Sequence[Change], scale: TimeScale
    ) -> float:
        """Return a step without waits of the host, which leaves the GPU's work.

        Of a step that the GPU bounds no more goes than the time in which it idles,
        whose work takes what it took as recorded.
        """
        run = self._view.replay.run
        work = run(changes, TimeScale(host=0)).step_ns
        return max(step, min(work, run(scale=scale).step_ns))

    def _host_parts(self, changes: Sequence[Change]) -> list[Change]:
        """Return what changes do on the host, less those that do nothing there."""
        for change in changes:
            if change not in self._host_part:
                self._host_part[change] = Change(
                    spans=change.spans, host_share=change.host_share, syncs=change.syncs
                )
        parts = (self._host_part[change] for change in changes)
        return [part for part in parts if part.syncs or part.spans.height]

    @property
    def step_ns(self) -> float:
        """Duration of a step: as measured, else as the replay estimates it."""
        return self._view.bound.step_ns

    def removed(self, finding: Finding) -> Finding:
        """Return the finding with the time that its fix removes per step."""
        if not finding.fixes:
            return finding
        changes = self._changes(finding)
        host_ns = sum(
            fix.host_share * _length(change.spans)
            for fix, change in zip(finding.fixes, changes, strict=True)
        )
        return replace(
            finding,
            kernel_ns=round(sum(map(self._kernel_ns, changes)) / self._view.steps),
            host_ns=round(host_ns / self._view.steps),
        )

    def of(self, finding: Finding, others: Sequence[Finding] = ()) -> Finding:
        """Return the finding with what its fix saves per step, after others'."""
        if not finding.fixes:
            return finding
        changes = self._changes(finding)
        made = [change for other in others for change in self._changes(other)]
        saved = self._saved(changes, 1, made)
        worth = WORTH_FIXING * self.step_ns
        # Where it is not sure what bounds the step, a fix of the GPU's part may help.
        gpu_ns = sum(map(self._kernel_ns, changes)) / self._view.steps
        if saved[0] >= worth or (gpu_ns >= worth and not self._view.bound.sure):
            saved = self._saved(changes, made=made)
        low, high = min(saved), max(saved)
        if saved[0] >= worth:
            low, high = self._range(saved[0], low, high)
        high = min(high, max(saved[0], self._most(changes, made)))
        return replace(finding, saves_ns=saved[0], saves_low_ns=low, saves_high_ns=high)

    def saved_after(self, finding: Finding, others: Sequence[Finding]) -> int:
        """Return what a finding's fix likely saves per step, after others'."""
        made = [change for other in others for change in self._changes(other)]
        return self._saved(self._changes(finding), 1, made)[0]

    def shares(self, finding: Finding, other: Finding) -> bool:
        """Return whether the fix of another removes most of what this one's does.

        That is most of the calls that block, of the kernels, or of the host's time.
        """
        changes, theirs = (self._changes(item) for item in (finding, other))
        syncs, kernels = _rows_of(changes)
        other_syncs, other_kernels = _rows_of(theirs)
        # Of a copy and the wait after it, as one, only the wait is in the replay.
        syncs &= set(self._view.replay.model.waits["id"])
        if syncs and len(syncs & other_syncs) > _MOSTLY * len(syncs):
            return True
        if kernels and len(kernels & other_kernels) > _MOSTLY * len(kernels):
            return True
        spans, other_spans = (
            pl.concat([NO_SPANS, *(change.spans for change in some)])
            for some in (changes, theirs)
        )
        length = _length(spans)
        both = length + _length(other_spans) - _length(pl.concat([spans, other_spans]))
        return both > _MOSTLY * length

    def step_after(self, findings: Sequence[Finding]) -> float:
        """Return how long a step likely is with these findings fixed."""
        changes = [change for finding in findings for change in self._changes(finding)]
        return self.step_ns - max(0.0, self._saved(changes, 1)[0])

    def idles(self, finding: Finding) -> bool:
        """Return whether it is on time that matters though no fix is known.

        That is idle time of the GPU, or ``unexplained_ns`` of its busy time.
        """
        recorded_ns = self._view.bound.recorded_step_ns
        unexplained = finding.data.get("unexplained_ns")
        lost = unexplained if isinstance(unexplained, (int, float)) else 0
        large = max(finding.gpu_idle_ns, lost) >= LARGE_IDLE * recorded_ns
        return finding.residual and large

    def host_changes(self, findings: Iterable[Finding]) -> tuple[Change, ...]:
        """Return the host's part of the changes by the fixes of all these findings.

        A finding whose fix cannot be read changes nothing; pricing reports it. The
        same fixes are the same changes, so that what was asked of them is known.
        """
        readable: dict[Fix, Change] = {}
        for finding in findings:
            with suppress(Exception):
                readable |= zip(finding.fixes, self._changes(finding), strict=True)
        key = tuple(readable)
        if key not in self._host_changes:
            self._host_changes[key] = tuple(_on_host(readable.values()))
        return self._host_changes[key]

    def _kernel_ns(self, change: Change) -> float:
        if change not in self._gpu_ns:
            removed = change.kernel_share * self._time_of(change.kernels)
            self._gpu_ns[change] = removed
        return self._gpu_ns[change]

    def _time_of(self, kernels: Collection[int]) -> int:
        return int(self._view.trace.kernels["dur"][_ids(kernels)].sum())

    def together(self, findings: Sequence[Finding]) -> Iterator[CombinedFix]:
        """Yield the step with the first, the first two, … of these findings fixed."""
        counts = [*range(1, min(len(findings), _MOST_TOGETHER) + 1)]
        if len(findings) > _MOST_TOGETHER:
            counts.append(len(findings))
        step_ns = round(self.step_ns)
        for done, count in enumerate(counts):
            report_progress("fixes together", done, len(counts))
            left = self._left(findings[:count], last=count == len(findings))
            # One more fix makes no step longer, though a replay may differ by a little.
            step_ns = min(step_ns, left.step_ns)
            low_ns = min(step_ns, left.step_low_ns)
            yield structs.replace(left, step_ns=step_ns, step_low_ns=low_ns)

    def _left(self, findings: Sequence[Finding], *, last: bool) -> CombinedFix:
        """Return the step with these findings fixed; the range only for all of them."""
        changes = [change for finding in findings for change in self._changes(finding)]
        view = self._view
        steps = self._steps_after(changes, 3 if last else 1)
        saved = [
            round(max(0.0, before - after))
            for before, after in zip(self._before, steps, strict=False)
        ]
        step = self.step_ns - saved[0]
        low = high = saved[0]
        busy = 1.0
        if last:
            low, high = self._range(saved[0], min(saved), max(saved))
            # The step after them is compared with one of another run.
            between_runs = round(MEASURED_SPREAD * self.step_ns)
            high = min(high, max(saved[0], self._most(changes) + between_runs))
            scale, _ = self._scales[0]
            busy = gpu_busy(view.trace, view.replay, scale, changes)
        by = bound_by(busy)
        # Whatever the fixes do not save, a step is not longer than before them.
        longest = max(self.step_ns, *self._before) * (1 + _between_runs(by))
        return CombinedFix(
            findings=len(findings),
            step_ns=round(step),
            # Where no step was measured, the steps of a fast and a slow host differ.
            step_low_ns=round(min(self.step_ns - high, *steps[1:], step)),
            step_high_ns=round(min(max(self.step_ns - low, *steps[1:], step), longest)),
            by=by,
            gpu_ns=round(min(1.0, busy) * step) if last else None,
        )

    def _range(self, likely: int, low: int, high: int) -> tuple[int, int]:
        """Return the range of a saving, at least as wide as from low to high.

        It contains 80% of the savings that were measured. Where it is not sure what
        bounds the step, the errors of host-bound steps count, which are larger.
        """
        bound = self._view.bound
        least, most = SAVING_ERRORS[bound.by if bound.sure else "host"]
        base = likely + SAVING_ERROR_OF_STEP * self.step_ns
        most_ns = likely + (1 - LEAST_LEFT) * (self.step_ns - likely)
        return (
            max(0, min(low, round(likely + least * base))),
            round(min(max(high, likely + most * base), most_ns)),
        )

    def _most(self, changes: Sequence[Change], made: Sequence[Change] = ()) -> int:
        """Return the most that changes may save after others that are made before.

        That is what they remove, and what leaves the GPU the work that stays.
        """
        return round(min(self._removed_ns(changes), self._above_gpu(changes, made)))

    def _removed_ns(self, changes: Sequence[Change]) -> float:
        """Return the time that changes remove a step, if no call is left to wait.

        It is the host's as recorded, and all of the kernels that they are in. A call
        that does not block any more may have waited longer than was recorded.
        """
        if any(change.syncs for change in changes):
            return self.step_ns
        parts = [change.spans for change in changes if change.host_share]
        host_ns = _length(pl.concat([NO_SPANS, *parts]))
        scale, _ = self._scales[0]
        _, touched = _rows_of(changes)
        work = self._view.replay.work
        gone = work.filter(pl.col("id").is_in(_ids(touched).implode()))
        gpu_ns = scale.gpu * float((gone["dur"] + gone["gap"]).sum())
        return (host_ns + gpu_ns) / self._view.steps

    def _above_gpu(self, changes: Sequence[Change], made: Sequence[Change]) -> float:
        """Return how much longer a step is than the GPU's work that changes leave.

        What is left of a step is no shorter than that, at the mean without overlap.
        Where the GPU bounds the step, nothing of a faster kernel is sure to be left.
        """
        step_ns = self.step_ns
        if made:
            step_ns -= self._saved(made, 1)[0]
        bound = self._view.bound
        faster = inf if bound.by == "gpu" and bound.sure else _MOST_OF_KERNEL_SHARE
        kernels = self._view.kernels[["id", "dur"]]
        left = kernels.with_columns(left=pl.col("dur").cast(pl.Float64))
        for part, more in ((made, 1.0), (changes, faster)):
            for change in part:
                if not change.kernel_share:
                    continue
                share = 1 - min(1.0, more * change.kernel_share)
                chosen = pl.col("id").is_in(_ids(change.kernels).implode())
                fraction = pl.when(chosen).then(share).otherwise(1.0)
                left = left.with_columns(pl.col("left") * fraction)
        alone = self._view.steady.gpu_busy / max(1, int(kernels["dur"].sum()))
        scale, _ = self._scales[0]
        # A fix of the host alone leaves the GPU's work as it was recorded.
        faster_gpu = any(change.kernel_share for change in changes if change.kernels)
        speed = scale.gpu if faster_gpu else max(1.0, scale.gpu)
        rest = float(left["left"].sum()) * alone * speed / self._view.steps
        return max(0.0, step_ns - rest)

    def _saved(
        self, changes: Sequence[Change], most: int = 3, made: Sequence[Change] = ()
    ) -> list[int]:
        """Return the savings of changes: likely, and with a fast and a slow host.

        ``made`` are changes that are made before.
        """
        before = self._steps_after(made, most) if made else self._before
        after = self._steps_after([*made, *changes], most)
        scale, _ = self._scales[0]
        waits = not any(change.kernels for change in changes)
        if made and waits and self._view.calibration.measured and scale.gpu != 1:
            # As of the waits alone: the GPU's work stays as it was recorded.
            work = self._view.replay.run([*made, *changes], TimeScale(host=0)).step_ns
            after = [
                max(other, min(one, work))
                for one, other in zip(before, after, strict=False)
            ]
        return [
            max(0, round(one - other))
            for one, other in zip(before, after, strict=False)
        ]

    def _changes(self, finding: Finding) -> list[Change]:
        for fix in finding.fixes:
            if fix not in self._known:
                self._known[fix] = self._changed(fix)
        return [self._known[fix] for fix in finding.fixes]

    def _changed(self, fix: Fix) -> Change:
        host_time = _host_time(self._view, fix)
        parts = merged(host_time) if host_time.height else host_time
        parts = self._without_pauses(parts)
        syncs = frozenset(fix.syncs)
        if parts.height and fix.host_share >= _MOSTLY:
            syncs |= set(_calls_in(self._view.replay.model.waits, parts))
        return self._as_recorded(
            Change(
                kernels=frozenset(fix.kernels),
                kernel_share=fix.kernel_share,
                spans=parts,
                host_share=fix.host_share,
                syncs=syncs,
            )
        )

    def _without_pauses(self, parts: pl.DataFrame) -> pl.DataFrame:
        """Return host time without pauses of few steps, unless it is nothing else.

        What stops the host there, the fix of a loop or of an optimizer around it does
        not remove.
        """
        if not parts.height:
            return parts
        pauses = self._view.host_account.pauses[["start", "end"]]
        paused = int(overlap(parts, pauses).sum())
        if not paused or paused == _length(parts):
            return parts
        return without(parts, pauses)

    def _as_recorded(self, change: Change) -> Change:
        """Return a change that saves no more time than what it removes was recorded.

        The host's scale explains a longer measured step with all that the host does,
        though little takes longer without the profiler. What is most of the step may,
        and so may calls that wait for the GPU.
        """
        scale, _ = self._scales[0]
        if scale.host <= 1 or not change.spans.height or change.syncs:
            return change
        host_ns = change.host_share * _length(change.spans)
        removed = host_ns + scale.gpu * self._kernel_ns(change)
        (saved,) = self._saved([change], 1)
        if saved > _MOSTLY * self.step_ns:
            return change
        share = min(1.0, removed / max(1, saved * self._view.steps))
        return structs.replace(change, host_share=share * change.host_share)


def _rows_of(changes: Iterable[Change]) -> tuple[set[int], set[int]]:
    """Return the calls that changes let go on, and the kernels that they shorten."""
    every = list(changes)
    return (
        {call for change in every for call in change.syncs},
        {
            kernel
            for change in every
            if change.kernel_share
            for kernel in change.kernels
        },
    )


def _length(spans: pl.DataFrame) -> int:
    """Return the time that spans cover; each instant counts once."""
    covers = disjoint(spans)
    return int((covers["end"] - covers["start"]).sum())


def removed_host_time(view: View, fix: Fix) -> pl.DataFrame:
    """Return the host time that the fix removes; each instant counts once."""
    return disjoint(_host_time(view, fix))


def _host_time(view: View, fix: Fix) -> pl.DataFrame:
    """Return the host time that the fix removes, as spans that may overlap."""
    if fix.spans is not None:
        times = fix.spans[["start", "end"]]
    else:
        tables = ((view.trace.ops, fix.ops), (view.trace.runtime, fix.calls))
        parts = [_when(table, _ids(rows)) for table, rows in tables if len(rows)]
        if not parts:
            return NO_SPANS
        times = pl.concat(parts)
    # The host does not run what a CUDA graph replays, which lies before the trace.
    ran = (times["end"] > times["start"]) & (times["start"] >= 0)
    return times if ran.all() else times.filter(ran)


def _when(table: pl.DataFrame, rows: pl.Series) -> pl.DataFrame:
    """Return the spans of events: ``start`` and ``end``."""
    start = table["ts"][rows]
    return pl.DataFrame({"start": start, "end": start + table["dur"][rows]})


def _on_host(changes: Iterable[Change]) -> Iterator[Change]:
    """Yield the changes of the host's time, those of one share merged."""
    by_share: dict[float, list[Change]] = {}
    for change in changes:
        by_share.setdefault(change.host_share, []).append(change)
    for share, some in by_share.items():
        yield Change(
            spans=pl.concat(change.spans for change in some),
            host_share=share,
            syncs=frozenset[int]().union(*(change.syncs for change in some)),
        )


def _between_runs(by: Literal["gpu", "host"]) -> float:
    """Return the relative difference between steps of two runs of a program."""
    return HOST_RUN_SPREAD if by == "host" else MEASURED_SPREAD


def _ids(rows: Collection[int]) -> pl.Series:
    """Return ids, which are the rows of their table."""
    return pl.Series(list(rows), dtype=pl.UInt32)


def _calls_in(waits: pl.DataFrame, parts: pl.DataFrame) -> pl.Series:
    """Return the blocking calls that begin in these spans, which do not overlap."""
    # Where one has begun that has not ended.
    begun = count_until(parts["start"], waits["start"])
    ended = count_until(parts["end"], waits["start"])
    return waits["id"].filter(begun > ended)
