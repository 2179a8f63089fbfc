"""GPU-bound or host-bound: the one answer that all commands print.

It describes the step without the profiler, which slows the host down: measured if that
step time is known, else estimated by the replay. A trace without GPU work is taken as
recorded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base.assumptions import GPU_BOUND
from traceq.analysis.base.cached import cached_per_trace
from traceq.analysis.base.steady import steady_steps
from traceq.analysis.replay.bottleneck import bottleneck, gpu_busy
from traceq.analysis.replay.calibration import Calibration, calibrate
from traceq.analysis.replay.host_account import REPLAY_STAGES, HostAccount, host_account
from traceq.analysis.replay.host_costs import costs_of
from traceq.analysis.replay.idle_account import IdleAccount, idle_account
from traceq.analysis.replay.model import build_model
from traceq.analysis.replay.profiler_free_searches import unslowed
from traceq.analysis.replay.simulation import AS_RECORDED, NO_SPANS, Replay
from traceq.analysis.replay.unseen_stalls import without_time, without_unseen
from traceq.analysis.time.host_pauses import longest_timed
from traceq.analysis.time.op_calls import op_calls
from traceq.common.parallel import run_both
from traceq.common.progress import report_progress
from traceq.model.lint_report import Bound, By, StepFrom

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceq.analysis.replay.simulation import Change
    from traceq.model.trace import Trace

# From this share of the recorded time on, a replayed step is as long as recorded.
_ALL = 0.99


def bound_by(busy: float) -> By:
    """Return the bound of a step in which the GPU has work for this fraction."""
    return "gpu" if busy >= GPU_BOUND else "host"


@cached_per_trace
def replay_of(trace: Trace) -> Replay:
    """Return the replay of a trace's steady-state steps."""
    report_progress("replay", 0, REPLAY_STAGES)
    # The calls are needed next, and take longer than the model.
    model, _ = run_both(
        lambda: build_model(trace, steady_steps(trace), costs_of(trace)),
        lambda: op_calls(trace),
    )
    report_progress("replay", 1, REPLAY_STAGES)
    model = without_unseen(unslowed(model, trace), trace)
    replay = Replay(model)
    pauses = _unseen_pauses(trace, replay)
    return Replay(without_time(model, pauses)) if pauses.height else replay


def _unseen_pauses(trace: Trace, replay: Replay) -> pl.DataFrame:
    """Return the pauses that the timed steps do not have, ``start`` and ``end``.

    They are looked for only where recorded steps differ by as much: that takes time.
    """
    seen = longest_timed(trace)
    times = trace.steps["time"].filter(trace.steps["averaged"])
    if len(times) < 2 or int(times.max() - times.min()) <= seen:  # noqa: PLR2004
        return NO_SPANS
    pauses = host_account(trace, replay, AS_RECORDED).pauses
    return pauses.filter(pl.col("end") - pl.col("start") > seen)[["start", "end"]]


@cached_per_trace
def calibration_of(trace: Trace, step_ns: int | None) -> Calibration:
    """Return host and GPU speed; ``step_ns`` is measured without the profiler."""
    replay = replay_of(trace)
    report_progress("replay", 2, REPLAY_STAGES)
    return calibrate(replay, step_ns)


@cached_per_trace
def host_account_of(trace: Trace, step_ns: int | None) -> HostAccount:
    """Return the host account; ``step_ns`` is as for the calibration."""
    return host_account(trace, replay_of(trace), calibration_of(trace, step_ns).likely)


@cached_per_trace
def waits_after(
    trace: Trace, step_ns: int | None, changes: Sequence[Change] = ()
) -> IdleAccount:
    """Return the host's activity while the GPU waits, after these changes."""
    return idle_account(
        trace,
        replay_of(trace),
        calibration_of(trace, step_ns).likely,
        host_account_of(trace, step_ns),
        changes,
    )


@cached_per_trace
def bound_of(trace: Trace, step_ns: int | None) -> Bound:
    """Return the bound of a step; ``step_ns`` is measured without the profiler."""
    if not trace.facts.gpu:
        return _without_gpu(trace, step_ns)
    replay, calibration = replay_of(trace), calibration_of(trace, step_ns)
    by_cause = bottleneck(trace, replay, calibration.likely)
    busy = gpu_busy(trace, replay, calibration.likely)
    others = calibration.scales[1:]
    if not calibration.measured:
        others += (AS_RECORDED,)
    both = False
    if calibration.other is not None:
        others += calibration.other.scales
        other = bound_by(gpu_busy(trace, replay, calibration.other.likely))
        both = other != bound_by(busy)
    return Bound(
        by=bound_by(busy),
        sure=all(
            bound_by(gpu_busy(trace, replay, scale)) == bound_by(busy)
            for scale in others
        ),
        step_ns=step_ns or by_cause.step_ns,
        step_from=_step_from(trace, step_ns, by_cause.step_ns),
        recorded_step_ns=_recorded(trace),
        gpu_busy=busy,
        gpu_idle=1 - busy,
        bottleneck=by_cause,
        stepped=bool(trace.steps.height),
        waits=waits_after(trace, step_ns) if bound_by(busy) == "host" else None,
        both=both,
    )


def _step_from(trace: Trace, step_ns: int | None, replayed_ns: float) -> StepFrom:
    if step_ns:
        return "measured"
    # The slowdown by other profilers than PyTorch's is not known, but what they report
    # as their own time is left out.
    as_recorded = replayed_ns >= _ALL * _recorded(trace)
    return "recorded" if trace.facts.recorder and as_recorded else "estimated"


def _without_gpu(trace: Trace, step_ns: int | None) -> Bound:
    return Bound(
        by="host",
        sure=True,
        step_ns=step_ns or _recorded(trace),
        step_from="measured" if step_ns else "recorded",
        recorded_step_ns=_recorded(trace),
        gpu_busy=0.0,
        gpu_idle=1.0,
        bottleneck=None,
        stepped=bool(trace.steps.height),
    )


def _recorded(trace: Trace) -> float:
    steady = steady_steps(trace)
    return steady.time / steady.count
