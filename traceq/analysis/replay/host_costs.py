"""Costs of host events: without a profiler, and the overhead of recording them."""

from __future__ import annotations

from math import sqrt
from typing import TYPE_CHECKING

from msgspec import Struct

from traceq.analysis.base.assumptions import (
    LAUNCH_CALL_COST_NS,
    OP_DISPATCH_COST_NS,
    OUTSIDE_OP_NS,
    PYTHON_CALL_COST_NS,
    QUIET_OP_DISPATCH_COST_NS,
    QUIET_PYTHON_CALL_COST_NS,
    SHAPES_NS,
    TOLERATED_OVERHEAD,
)
from traceq.model.run import HostCost

if TYPE_CHECKING:
    from traceq.model.trace import Trace


class HostCosts(Struct, frozen=True):
    """Costs of host events without the profiler, and the overhead of recording."""

    frame: HostCost = PYTHON_CALL_COST_NS
    op: HostCost = OP_DISPATCH_COST_NS
    call: HostCost = LAUNCH_CALL_COST_NS
    tolerated: float = TOLERATED_OVERHEAD
    """Time beyond this many times what its events take is the host's own work."""
    quiet_frame: HostCost = QUIET_PYTHON_CALL_COST_NS
    """A frame where nothing is asked of the GPU; time beyond is the host's own work."""
    quiet_op: HostCost = QUIET_OP_DISPATCH_COST_NS
    """An operator there, without what recording its shapes adds."""
    shapes_ns: int = SHAPES_NS
    """Time that recording shapes adds per operator there."""
    outside_op_ns: int = OUTSIDE_OP_NS
    """The part of an operator's recording time that lies outside of it."""


ASSUMED_COSTS = HostCosts()
# How much Nsight Systems slows the host down is unknown: its time counts as recorded.
_AS_RECORDED = HostCosts(
    frame=HostCost(PYTHON_CALL_COST_NS.plain_ns, 0),
    op=HostCost(OP_DISPATCH_COST_NS.plain_ns, 0),
    call=HostCost(LAUNCH_CALL_COST_NS.plain_ns, 0),
    quiet_frame=HostCost(QUIET_PYTHON_CALL_COST_NS.plain_ns, 0),
    quiet_op=HostCost(QUIET_OP_DISPATCH_COST_NS.plain_ns, 0),
    shapes_ns=0,
    outside_op_ns=0,
)


def costs_of(trace: Trace) -> HostCosts:
    """Return the assumed costs, moved halfway to those measured with the recording.

    What recording adds differs by up to two times between processes of one program, so
    that neither is the better guess: the middle of both is the geometric mean.
    """
    if trace.facts.recorder:
        return _AS_RECORDED
    measured = trace.run.recorder_overhead if trace.run else None
    if measured is None or measured.stacks != trace.facts.stacks:
        return ASSUMED_COSTS
    frame = _between(PYTHON_CALL_COST_NS, measured.frame)
    op = _between(OP_DISPATCH_COST_NS, measured.op)
    return HostCosts(
        frame=frame,
        op=op,
        call=_between(LAUNCH_CALL_COST_NS, measured.call),
        quiet_frame=_as_much(QUIET_PYTHON_CALL_COST_NS, PYTHON_CALL_COST_NS, frame),
        quiet_op=_as_much(QUIET_OP_DISPATCH_COST_NS, OP_DISPATCH_COST_NS, op),
    )


def _between(assumed: HostCost, measured: HostCost | None) -> HostCost:
    pairs = zip(assumed, measured or assumed, strict=True)
    return HostCost(*(round(sqrt(max(1, one * two))) for one, two in pairs))


def _as_much(cost: HostCost, assumed: HostCost, measured: HostCost) -> HostCost:
    """Return a cost as much larger as another one was found to be."""
    triples = zip(cost, assumed, measured, strict=True)
    return HostCost(*(round(one * after / before) for one, before, after in triples))
