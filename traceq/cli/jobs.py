"""The names of ``traceq.opening.jobs``, until nothing asks for them here."""

from __future__ import annotations

from traceq.opening.jobs import analysed, analysed_job, is_job

__all__ = ["analysed", "analysed_job", "is_job"]
