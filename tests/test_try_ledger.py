"""The ledger of trials: predicted and measured savings by rule."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import trials

if TYPE_CHECKING:
    from pathlib import Path


def write(folder: Path, outcome: str, ms: float) -> Path:
    file = folder / f"{outcome.replace(' ', '-')}.json"
    predicted = {"rule": "GEM001", "ms": 15.0, "bound": "gpu"}
    one = {"predicted": predicted, "n": 4, "outcome": outcome, "ms": ms}
    content = {"tool": trials.TOOL, "as_it_is": {"ms": 100.0}, "remedies": [one]}
    file.write_text(json.dumps(content))
    return file


def test_the_error_is_a_share_of_the_step(tmp_path: Path) -> None:
    files = [write(tmp_path, "faster", -14.0), write(tmp_path, "no difference", 0.0)]

    assert trials.errors(files) == {
        ("GEM001", "gpu"): [pytest.approx(0.01), pytest.approx(0.15)]
    }


def test_what_was_not_concluded_does_not_count(tmp_path: Path) -> None:
    assert not trials.errors([write(tmp_path, "inconclusive", -14.0)])
