"""The table of recorded programs in the docs."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[1]


def load_table() -> Any:  # noqa: ANN401 - a script, not a package
    path = _ROOT / "benchmarks" / "recordings" / "table.py"
    spec = importlib.util.spec_from_file_location("recordings_table", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_shows_the_results_as_they_were_measured() -> None:
    page = (_ROOT / "docs" / "record.md").read_text(encoding="utf-8")
    assert load_table().table() in page
