"""LAY: transposes around convolutions, on real traces."""

from __future__ import annotations

import pytest
from linting import case_findings


@pytest.mark.parametrize(
    ("case", "count"), [("a100_nccl", 211), ("mi300_resnet_checkpoint", 235)]
)
def test_transposes_around_convolutions_are_one_finding(case: str, count: int) -> None:
    (finding,) = case_findings(f"public/{case}.json.gz", "LAY")

    assert (finding.code, finding.count) == ("LAY001", count)


def test_float32_convolutions_without_tensor_cores_have_no_finding() -> None:
    assert not case_findings("public/v100_resnet50_workers0.json.gz", "LAY")
