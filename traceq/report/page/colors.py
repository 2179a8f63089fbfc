"""Colours of the causes of a step's time, the same in all charts of the page.

A colour is named after its meaning; the page's style defines it, for light and dark.
"""

from __future__ import annotations

from traceq.analysis.replay import host_account
from traceq.analysis.time import gpu_causes, host_activity, idle_causes

OTHER = "other"

_COLORS = {
    gpu_causes.COMPUTING: "computing",
    gpu_causes.MOVING: "moving",
    gpu_causes.COMMUNICATING: "network",
    gpu_causes.COPYING: "copying",
    gpu_causes.BETWEEN: "between",
    host_activity.DISPATCH: "ops",
    host_account.NEW_SHAPE: "ops",
    host_account.SLOW: "ops",
    idle_causes.OPERATORS: "ops",
    host_activity.LAUNCHES: "launch",
    idle_causes.LAUNCHING: "launch",
    host_activity.PYTHON: "python",
    host_activity.WITH_LIBRARIES: "python",
    host_activity.NO_STACKS: "python",
    host_activity.LIBRARY: "python",
    host_activity.MODULES: "python",
    host_activity.HOOKS: "python",
    host_activity.OPTIMIZER: "python",
    host_activity.ENGINE: "python",
    host_activity.PAUSED: "python",
    host_activity.COMPILED: "python",
    idle_causes.PYTHON: "python",
    host_activity.DATA: "data",
    host_activity.BLOCKED: "data",
    host_activity.COMPILING: "compile",
    host_activity.CAPTURING: "compile",
    host_activity.LOADING: "compile",
    host_activity.SYNC: "sync",
    host_activity.BLOCKING: "sync",
    idle_causes.ALLOCATING: "memory",
    idle_causes.COMMUNICATING: "network",
}


def color(cause: str) -> str:
    """Return the name of a cause's colour."""
    return _COLORS.get(cause, OTHER)
