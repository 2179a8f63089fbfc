"""Which colour each cause of a step's time has, the same in all pictures of the page.

A colour is named after what it means; the page's style says how it looks, in the light
and in the dark.
"""

from __future__ import annotations

from traceq.analysis.replay import host_account
from traceq.analysis.time import gpu_causes, host_kinds, idle_causes

OTHER = "other"

_COLORS = {
    gpu_causes.COMPUTING: "computing",
    gpu_causes.MOVING: "moving",
    gpu_causes.COMMUNICATING: "network",
    gpu_causes.COPYING: "copying",
    gpu_causes.BETWEEN: "between",
    host_kinds.DISPATCH: "ops",
    host_account.NEW_SHAPE: "ops",
    host_account.SLOW: "ops",
    idle_causes.OPERATORS: "ops",
    host_kinds.LAUNCHES: "launch",
    idle_causes.LAUNCHING: "launch",
    host_kinds.PYTHON: "python",
    host_kinds.WITH_LIBRARIES: "python",
    host_kinds.NO_STACKS: "python",
    host_kinds.LIBRARY: "python",
    host_kinds.MODULES: "python",
    host_kinds.HOOKS: "python",
    host_kinds.OPTIMIZER: "python",
    host_kinds.ENGINE: "python",
    host_kinds.COMPILED: "python",
    idle_causes.PYTHON: "python",
    host_kinds.DATA: "data",
    host_kinds.BLOCKED: "data",
    host_kinds.COMPILING: "compile",
    host_kinds.CAPTURING: "compile",
    host_account.LOADING: "compile",
    host_kinds.SYNC: "sync",
    host_kinds.BLOCKING: "sync",
    idle_causes.ALLOCATING: "memory",
    idle_causes.COMMUNICATING: "network",
}


def color(cause: str) -> str:
    """Return the name of a cause's colour."""
    return _COLORS.get(cause, OTHER)
