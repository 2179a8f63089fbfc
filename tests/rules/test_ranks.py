"""RNK: what is advised on a job's collectives depends on what they move."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from linting import bundled_rules

from traceq.linter import Bad
from traceq.linter.config import Config
from traceq.ranks.findings import lint_job
from traceq.testing.examples import drawn_job

if TYPE_CHECKING:
    from traceq.model.finding import Finding

_RANK = """
    host   [ProfilerStep#1                                     ]
    host    [cuLaunch>1] [cuLaunch>2] [cuLaunch>3]
    gpu 7          [gemm<1  ]                         [adam<3 ]
    gpu 20                    [ncclDevKernel_X<2    ]
"""


def _exposed(collective: str) -> Finding:
    """Return the finding on a collective that no rank's compute hides."""
    job = drawn_job(
        Bad(
            "",
            finds="",
            args={"ncclDevKernel_X": {"Collective name": collective}},
            ranks=(_RANK, _RANK, _RANK),
        )
    )
    assert job is not None
    (outcome,) = lint_job("drawn", job, bundled_rules(), Config()).outcomes
    (finding,) = [item for item in outcome.findings if item.code == "RNK005"]
    return finding


@pytest.mark.parametrize(
    ("collective", "advised"),
    [
        ("all_to_allv", "next batch's"),
        ("_allgather_base", "weights"),
        ("_reduce_scatter_base", "FSDP"),
        ("send", "1F1B"),
    ],
)
def test_only_reduced_gradients_are_advised_on_as_such(
    collective: str, advised: str
) -> None:
    finding = _exposed(collective)

    assert advised in finding.advice
    assert "DDP" not in finding.advice
    assert not finding.example


def test_reduced_gradients_are_put_into_buckets() -> None:
    finding = _exposed("allreduce")

    assert "DDP's buckets" in finding.advice
    assert "all_reduce" in str(finding.example)


def test_without_steps_nothing_is_called_so_often_a_step() -> None:
    marked = "host   [ProfilerStep#1                                     ]\n"
    assert marked in _RANK
    job = drawn_job(
        Bad("", finds="", ranks=(_RANK.replace(marked, "host   [ ]\n"),) * 3)
    )
    assert job is not None
    (outcome,) = lint_job("drawn", job, bundled_rules(), Config()).outcomes

    assert job.job.step_ns is None
    assert "RNK005" in [finding.code for finding in outcome.findings]
    assert "a step" not in " ".join(finding.message for finding in outcome.findings)
