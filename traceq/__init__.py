"""traceq, the linter for GPU traces.

``traceq.load(path)`` returns a ``Trace``: what PyTorch's profiler recorded, as Polars
frames that are linked with each other. ``traceq.lint(path)``, ``diff``, ``summary``,
``memory``, ``regions``, ``roofline`` and ``job`` answer what the commands of that name
do (``job`` what ``traceq ranks`` does), ``with traceq.profile() as run:`` records a
loop, and ``traceq.record(loss=...)`` numbers of the program.
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing takes milliseconds that Ctrl-C could interrupt

__version__ = "0.2.0"
__all__ = [
    "Trace",
    "__version__",
    "diff",
    "job",
    "lint",
    "load",
    "memory",
    "profile",
    "record",
    "regions",
    "roofline",
    "summary",
]

if TYPE_CHECKING:
    from typing import Any

    from traceq.api.diff import diff
    from traceq.api.job import job
    from traceq.api.lint import lint
    from traceq.api.memory import memory
    from traceq.api.profile import profile
    from traceq.api.record import record
    from traceq.api.regions import regions
    from traceq.api.roofline import roofline
    from traceq.api.summary import summary
    from traceq.inputs.load_trace import load
    from traceq.model.trace import Trace

# No module of the package may have one of these names: it would take its place.
_MODULES = {
    "Trace": "traceq.model.trace",
    "diff": "traceq.api.diff",
    "job": "traceq.api.job",
    "lint": "traceq.api.lint",
    "load": "traceq.inputs.load_trace",
    "memory": "traceq.api.memory",
    "profile": "traceq.api.profile",
    "record": "traceq.api.record",
    "regions": "traceq.api.regions",
    "roofline": "traceq.api.roofline",
    "summary": "traceq.api.summary",
}


def __getattr__(name: str) -> Any:  # noqa: ANN401 - a module attribute can be anything
    # Imported on first use: `traceq --version` need not wait for Polars.
    if name not in _MODULES:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    from importlib import import_module  # noqa: PLC0415

    return getattr(import_module(_MODULES[name]), name)
