"""``TraceqCallback`` for the Trainer of Hugging Face's transformers."""

from __future__ import annotations

from traceq.api.profile import collected

TraceqCallback = collected("callbacks.transformers").TraceqCallback
