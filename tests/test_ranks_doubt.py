"""Ranks that are late by chance, or for unrecorded ranks, are not blamed."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import polars as pl
import pytest
from linting import bundled_rules
from ranking import Works, analysed, write_job

from traceq.linter.config import Config
from traceq.ranks.collectives import collectives
from traceq.ranks.digest import Digest, make_digest
from traceq.ranks.findings import lint_job
from traceq.ranks.job import assemble
from traceq.ranks.timeline import RESUME
from traceq.report.ranks.content import verdict
from traceq.testing import load_drawn

if TYPE_CHECKING:
    from pathlib import Path

    from traceq.ranks.analysis import Analysis

pytestmark = pytest.mark.real


def noisy(
    folder: Path, seed: int, *, sleep: int = 0, ranks: int = 4, steps: int = 5
) -> Analysis:
    """Return a job on a busy machine: its ranks take up to twice as long, by chance."""
    chance = random.Random(seed)  # noqa: S311 - a test
    works = [
        [
            Works(compute=round(1000 * (1 + chance.expovariate(3))), sleep=late)
            for _ in range(steps)
        ]
        for late in [0] * (ranks - 1) + [sleep]
    ]
    return analysed(write_job(folder, works))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_ranks_that_are_late_by_chance_are_not_named(tmp_path: Path, seed: int) -> None:
    analysis = noisy(tmp_path, seed)
    assert analysis.stragglers == ()
    assert verdict(analysis).startswith("No straggler")


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.slow
def test_a_rank_that_is_always_late_is_named_on_a_busy_machine(
    tmp_path: Path, seed: int
) -> None:
    (worst,) = noisy(tmp_path, seed, sleep=2500).stragglers
    assert worst.ranks == (3,)
    assert worst.cause.cause == "host"


def test_a_rank_that_is_late_once_is_said_to_be_and_not_a_straggler(
    tmp_path: Path,
) -> None:
    once = [Works(), Works(sleep=3000), *[Works()] * 4]
    analysis = analysed(write_job(tmp_path, [[Works()] * 6, once, [Works()] * 6]))
    assert analysis.stragglers == ()
    assert "rank 1 was late most" in verdict(analysis)


def test_of_two_ranks_in_one_step_none_can_be_blamed(tmp_path: Path) -> None:
    works = [[Works()] * 2, [Works(), Works(compute=1500)]]
    analysis = analysed(write_job(tmp_path, works))
    assert analysis.stragglers == ()
    assert "cannot be told" in verdict(analysis)


def test_who_waits_for_a_rank_that_was_not_recorded_is_not_late(
    tmp_path: Path,
) -> None:
    works = [Works(), Works(receives=800), Works()]
    analysis = analysed(write_job(tmp_path, works))
    assert analysis.stragglers == ()
    assert analysis.by_rank["late"].to_list() == [0, 0, 0]
    assert any(
        "rank 1" in notice and "not recorded" in notice
        for notice in analysis.job.notices
    )


def test_who_waits_elsewhere_and_sleeps_is_late_by_the_sleep_alone(
    tmp_path: Path,
) -> None:
    works = [Works(), Works(receives=800, sleep=500), Works()]
    (worst,) = analysed(write_job(tmp_path, works)).stragglers
    assert worst.ranks == (1,)
    assert worst.cause.cause == "host"
    assert worst.cause.late_ns / 3 == pytest.approx(500_000, rel=0.02)


@pytest.mark.parametrize(("sleep", "severity"), [(150, "info"), (400, "warning")])
def test_what_two_runs_differ_by_is_no_warning(
    tmp_path: Path, sleep: int, severity: str
) -> None:
    works = [Works(compute=9700), Works(compute=9700, sleep=sleep), Works(compute=9700)]
    job = analysed(write_job(tmp_path, works))
    (outcome,) = lint_job("job", job, bundled_rules(), Config()).outcomes
    (finding,) = (item for item in outcome.findings if item.code == "RNK001")
    assert finding.severity.value == severity


OVERLAPPED = """
    host     [ProfilerStep#1                                                         ]
    host      [aten::mm    ] [aten::mm            ]                     [aten::add  ]
    host 2                 [@gloo:all_reduce              ]
    host 3                                  [@gloo:all_reduce        ]
"""


def test_a_rank_computes_on_while_its_gradients_are_reduced() -> None:
    table = collectives(load_drawn(OVERLAPPED))
    assert table["stream"].n_unique() == 2
    compute_ends = 38
    assert (table["held"] / 1000).to_list() == [compute_ends, compute_ends]


def _passing(kind: str, peer: int) -> dict[str, dict[str, object]]:
    op = {"send": "c10d::send", "recv": "c10d::recv_"}[kind]
    return {op: {"Concrete Inputs": ["", "", str(peer), "0"]}}


SENDS = """
    host     [ProfilerStep#1                                                        ]
    host      [c10d::send   ]                             [c10d::allreduce_  ]
    host       [@gloo:send ]                               [@gloo:all_reduce]
"""
RECEIVES = """
    host     [ProfilerStep#1                                                        ]
    host                        [c10d::recv_  ]           [c10d::allreduce_  ]
    host                         [@gloo:recv ]             [@gloo:all_reduce]
"""


def test_what_is_sent_may_wait_for_its_receiver() -> None:
    drawn = ((SENDS, _passing("send", 1)), (RECEIVES, _passing("recv", 0)))
    traces = [
        load_drawn(text, args, job={"rank": rank, "world_size": 2})
        for rank, (text, args) in enumerate(drawn)
    ]
    job = assemble([Digest(make_digest(trace, findings=False)) for trace in traces])
    passed = job.collectives.row(by_predicate=pl.col("kind") == "recv", named=True)
    own = pl.col("instance") == passed["instance"]
    ends = job.cells.filter(own).sort("rank")["end"]
    assert ends[0] < passed["last"] < ends[1]
    assert passed["end"] == passed["soonest"] == ends[1]
    held = job.meetings.filter(own, pl.col("meeting") == RESUME)
    assert held["rank"].to_list() == [1]


# Two of 120 jobs in which nobody is late but by chance: in microseconds, by rank.
_BY_CHANCE = (
    (
        (1030, 1265, 1597, 1429, 1401),
        (1281, 1120, 1210, 1463, 1327),
        (1238, 1012, 1136, 1126, 1057),
        (1465, 1343, 1634, 2079, 1498),
        (1351, 1159, 1200, 1533, 1556),
        (1532, 1078, 1073, 1088, 1038),
    ),
    (
        (1196, 1018, 1158, 1322, 1527, 1136, 1046),
        (1483, 1003, 1207, 1321, 1360, 1087, 1373),
        (1017, 1108, 1022, 1050, 1169, 2147, 1073),
        (1192, 2087, 1962, 1824, 2043, 1560, 1248),
        (1145, 1226, 1296, 1691, 1052, 1013, 1018),
        (2002, 1008, 1389, 1010, 2505, 1163, 1206),
    ),
)


@pytest.mark.parametrize("times", _BY_CHANCE)
def test_the_latest_of_several_ranks_is_late_by_chance_more_often_than_one(
    tmp_path: Path, times: tuple[tuple[int, ...], ...]
) -> None:
    works = [[Works(compute=number) for number in rank] for rank in times]

    assert analysed(write_job(tmp_path, works)).stragglers == ()
