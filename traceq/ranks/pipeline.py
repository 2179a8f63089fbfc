"""Pipelines: stages from who sends to whom, and the bubbles that they cannot avoid."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import polars as pl

from traceq.ranks.columns import highest, total

if TYPE_CHECKING:
    from traceq.ranks.counterfactual import WhatIfs
    from traceq.ranks.job import Job

_POINT_TO_POINT = ("send", "recv")
_PAIR = 2


@dataclass(frozen=True)
class Pipeline:
    """A pipeline of stages."""

    stages: int
    micro_batches: int
    """In a step, by what the first stage sends on."""
    bubble: float
    """The share of the window that ranks wait in sends and receives."""
    expected: float
    """Bubble of a 1F1B schedule: (p - 1) / (m + p - 1)."""
    from_stragglers: float
    """The part of ``bubble`` that goes if all ranks are as the median."""


def with_stages(job: Job) -> Job:
    """Return the job with the stage of each rank, 0 where there is no pipeline."""
    stage = _stages(job)
    of_rank = pl.col("rank").replace_strict(stage, default=0, return_dtype=pl.Int32)
    return replace(
        job,
        ranks=job.ranks.with_columns(stage=of_rank),
        meetings=job.meetings.with_columns(stage=of_rank),
    )


def _pairs(job: Job) -> pl.DataFrame:
    """Return pairs of sender and receiver, as rows of ranks, with ``sends``."""
    sent = job.cells.filter(
        pl.col("kind").is_in(_POINT_TO_POINT) | pl.col("destination").is_not_null()
    )
    row = dict(job.ranks.select("number", "rank").iter_rows())
    addressed = sent.filter(pl.col("destination").is_not_null()).with_columns(
        to=pl.col("destination").replace_strict(
            row, default=None, return_dtype=pl.Int64
        )
    )
    return addressed.drop_nulls("to").group_by("rank", "to").agg(sends=pl.len())


def _stages(job: Job) -> dict[int, int]:
    """Return the stage of each rank that sends or receives.

    The pipeline begins at its lowest rank: stages are as far from it as ranks are.
    """
    pairs = _pairs(job).select("rank", "to").rows()
    if not pairs:
        return {}
    # Only jobs that are pipelines wait for it: it takes as long as Polars to import.
    import networkx as nx  # noqa: PLC0415

    graph: nx.Graph[int] = nx.Graph()
    # Graph(pairs) would try every other library's graphs first, and warn.
    graph.add_edges_from(pairs)
    stages: dict[int, int] = {}
    for part in nx.connected_components(graph):
        stages |= nx.single_source_shortest_path_length(graph, min(part))
    return stages


def pipeline(job: Job, whatifs: WhatIfs) -> Pipeline | None:
    """Return the pipeline, if the job is one."""
    stages = highest(job.ranks["stage"]) + 1
    if stages < _PAIR:
        return None
    pairs = _pairs(job).join(job.ranks.select("rank", "stage"), on="rank")
    on = pairs.filter(pl.col("stage") == 0)
    batches = max(1, round(highest(on["sends"]) / max(1, job.steps)))
    passing = pl.col("kind").is_in((*_POINT_TO_POINT, "send_recv"))
    waited = total(job.cells.filter(passing)["wait"])
    whole = job.window_ns * job.ranks.height
    bubble = waited / whole if whole else 0.0
    lost = whatifs.all.saved_ns / whatifs.took if whatifs.took else 0.0
    return Pipeline(
        stages,
        batches,
        bubble,
        (stages - 1) / (batches + stages - 1),
        min(bubble, lost),
    )
