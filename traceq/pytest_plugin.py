"""The pytest plugin: ``def test_step(traceq): traceq.check(step, budget={...})``.

pytest imports it whenever it starts: it loads nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from traceq.testing.step import StepChecker


@pytest.fixture
def traceq(request: pytest.FixtureRequest, tmp_path: Path) -> StepChecker:
    """Hold what a step costs against a budget: ``traceq.check(step, budget={...})``."""
    from traceq.testing.step import StepChecker  # noqa: PLC0415 - Polars, only if used

    return StepChecker(tmp_path, request.config.rootpath)
