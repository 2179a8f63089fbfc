"""traceq, the linter for GPU traces.

``traceq.load(path)`` returns a ``Trace``: what PyTorch's profiler recorded, as Polars
frames that are linked with each other.
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing takes milliseconds that Ctrl-C could interrupt

__version__ = "0.1.0"
__all__ = ["Trace", "__version__", "load"]

if TYPE_CHECKING:
    from typing import Any

    from traceq.loading import load
    from traceq.trace import Trace


def __getattr__(name: str) -> Any:  # noqa: ANN401 - a module attribute can be anything
    # Imported on first use: `traceq --version` need not wait for Polars.
    if name == "load":
        from traceq.loading import load  # noqa: PLC0415

        return load
    if name == "Trace":
        from traceq.trace import Trace  # noqa: PLC0415

        return Trace
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)
