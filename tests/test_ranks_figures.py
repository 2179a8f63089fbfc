"""Figures of a job: what is compute, how long the replay takes, one basis for all."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
import ranking

from traceq.inputs.load_trace import load
from traceq.ranks.analysis import analyse
from traceq.ranks.collectives import host_compute
from traceq.ranks.digest import Digest, make_digest
from traceq.ranks.job import assemble
from traceq.report.ranks.content import content, verdict
from traceq.testing import load_drawn

if TYPE_CHECKING:
    from pathlib import Path

    from traceq.ranks.job import Job

_JOBS = ("torchrec_a2a_4", "torchrec_a2a_5", "dlrm", "resnet18", "torchrec_a2a")


def test_communication_through_shared_memory_is_no_compute() -> None:
    trace = load_drawn("""
        host   [ProfilerStep#1                                   ]
        host    [aten::mm] [_C::shm_allreduce ] [aten::add]
    """)

    (product, total), ops = host_compute(trace).rows(), trace.ops["ts"].to_list()

    assert [product[0], total[0]] == [ops[0], ops[2]]


def test_an_op_computes_before_and_after_its_communication() -> None:
    trace = load_drawn("""
        host   [ProfilerStep#1                                   ]
        host    [vllm::all_reduce                            ]
        host          [_C::shm_allreduce ]
    """)
    outer, inner = trace.ops.select("ts", end=trace.ops["ts"] + trace.ops["dur"]).rows()

    pieces = host_compute(trace).rows()

    assert pieces == [(outer[0], inner[0]), (inner[1], outer[1])]


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.parametrize("name", _JOBS)
def test_the_replay_takes_as_long_as_the_job(name: str) -> None:
    job = ranking.real_job(name)

    assert analyse(job).whatifs.took == pytest.approx(job.window_ns, rel=0.004)


@pytest.mark.real
@pytest.mark.parametrize("name", ["torchrec_a2a_4", "torchrec_a2a"])
def test_a_straggler_saves_the_same_in_the_verdict_and_in_the_table(name: str) -> None:
    analysis = analyse(ranking.real_job(name))
    (worst,) = analysis.stragglers
    table = content(analysis).screen.tables[0]
    saved = float(table.rows[0][4].replace(",", ""))

    match = re.search(r"would be ([\d.]+) ms", verdict(analysis))

    assert table.rows[0][0] == "2"
    assert saved == pytest.approx(worst.saved_ns / analysis.steps / 1e6, abs=0.01)
    assert match
    assert float(match.group(1)) == pytest.approx(saved, rel=0.01)


def _job_with_a_step(folder: Path, at: int, by: int) -> Job:
    """Return a job of 24 steps in which the clock of rank 1 is set."""
    ranking.write_job(folder, [ranking.Works()] * 3, steps=24)
    digests = [
        Digest(make_digest(load(path, cache=False), findings=False))
        for path in sorted(folder.glob("*.json"))
    ]
    digests[1] = ranking.stepped(digests[1], at, by)
    return assemble(digests)


@pytest.mark.parametrize("by", [-40_000, 15_000, 100_000])
def test_a_clock_that_was_set_is_put_right(tmp_path: Path, by: int) -> None:
    job = _job_with_a_step(tmp_path, 16_000_000, by)

    assert job.ranks["clock_step"].to_list() == pytest.approx([0, by, 0], abs=1000)
    assert job.ranks["clock_step_at"][1] == pytest.approx(16_000_000, abs=1_500_000)
    assert job.cells["end"].n_unique() == job.collectives.height
    assert job.ranks["error"].to_list() == [0, 0, 0]


def test_the_screen_says_that_a_clock_was_set(tmp_path: Path) -> None:
    job = _job_with_a_step(tmp_path, 16_000_000, 40_000)
    facts = dict(content(analyse(job)).screen.facts)

    assert "that of rank 1 was set by 40.0 µs in the recording" in facts["clocks"]


def test_a_clock_set_at_the_very_end_widens_the_error(tmp_path: Path) -> None:
    job = _job_with_a_step(tmp_path, 29_000_000, 40_000)

    assert job.ranks["clock_step"].to_list() == [0, 0, 0]
    assert job.ranks["error"][1] >= 40_000


def test_a_clock_that_drifts_was_not_set(tmp_path: Path) -> None:
    ranking.write_job(tmp_path, [ranking.Works(compute=45_000)] * 3, steps=24)
    digests = [
        Digest(make_digest(load(path, cache=False), findings=False))
        for path in sorted(tmp_path.glob("*.json"))
    ]
    digests[1] = ranking.shifted(digests[1], 0, 50e-6)
    ranks = assemble(digests).ranks

    assert ranks["clock_step"].to_list() == [0, 0, 0]
    assert ranks["drift"][1] == pytest.approx(50e-6, rel=0.05)


@pytest.mark.real
@pytest.mark.parametrize("name", ["torchrec_a2a_5", "dlrm", "resnet18"])
@pytest.mark.slow
def test_the_verdict_and_the_table_state_the_same_share_of_the_same_time(
    name: str,
) -> None:
    analysis = analyse(ranking.real_job(name))
    first = content(analysis).screen.tables[1].rows[0]

    match = re.search(r"would be ([\d.]+) (µs|ms) \((\S+)\) shorter", verdict(analysis))

    assert match
    saved = float(match.group(1)) / (1 if match.group(2) == "ms" else 1000)
    assert first[0] == "all ranks"
    assert saved == pytest.approx(float(first[1]), abs=0.005)
    assert match.group(3) == first[2]


@pytest.mark.real
def test_a_rank_that_is_late_and_costs_little_is_said_to() -> None:
    text = verdict(analyse(ranking.real_job("torchrec_a2a_5")))

    assert text.startswith("No straggler")
    assert re.search(r"; rank 2 is late by 21\.\d ms \(8%\), but costs only 1\.6", text)


@pytest.mark.real
def test_collectives_that_some_ranks_did_not_record_are_not_said_to_be_of_all() -> None:
    facts = dict(content(analyse(ranking.real_job("torchrec_a2a_5"))).screen.facts)

    assert facts["matched"] == (
        "32 collectives by order, 30 of them on all of their ranks"
    )


@pytest.mark.real
def test_a_step_has_the_collective_that_opens_the_window() -> None:
    job = ranking.real_job("resnet18")

    assert job.collectives.height == 12
    assert job.calls.rows() == [("all_to_all", 4.0)]
