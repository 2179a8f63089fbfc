"""Figures of a job: what is compute, how long the replay takes, one basis for all."""

from __future__ import annotations

import re

import pytest
import ranking

from traceq.ranks.analysis import analyse
from traceq.ranks.collectives import host_compute
from traceq.report.ranks.content import content, verdict
from traceq.testing import load_drawn

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

    said = re.search(r"would be ([\d.]+) ms", verdict(analysis))

    assert table.rows[0][0] == "2"
    assert saved == pytest.approx(worst.saved_ns / analysis.steps / 1e6, abs=0.01)
    assert said
    assert float(said.group(1)) == pytest.approx(saved, rel=0.01)
