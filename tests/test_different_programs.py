"""Diff of recordings of two programs: refused unless it is forced."""

from __future__ import annotations

import pytest
from command import traceq
from recordings import ROOT

BEFORE, AFTER = (str(ROOT / "fixtures" / item) for item in ("copies", "attn_mask_fmha"))


@pytest.mark.real
def test_two_programs_are_refused_in_a_sentence() -> None:
    done = traceq("diff", BEFORE, AFTER)

    assert done.status == 2
    assert "are different programs" in done.err


@pytest.mark.real
def test_two_programs_are_compared_by_force() -> None:
    done = traceq("diff", "--force", "--format", "concise", BEFORE, AFTER)

    assert done.status == 0
