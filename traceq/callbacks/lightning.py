"""``TraceqCallback`` for the Trainer of Lightning."""

from __future__ import annotations

from traceq.api.profile import collected

TraceqCallback = collected("callbacks.lightning").TraceqCallback
