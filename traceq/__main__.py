"""``python -m traceq``."""

from __future__ import annotations

from traceq.cli import main

main()
