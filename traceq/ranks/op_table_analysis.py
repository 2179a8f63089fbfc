"""Analysis of an op table: which stage, group or worker slows the job down, by replay.

As ByteDance's StragglerAnalysis defines it: the slowdown is the step's time over that
with every op at the mean of its type, and a worker, a stage or a type of op explains
the share of it that goes if its ops alone are at the mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base.assumptions import STRAGGLER, TOGETHER
from traceq.ranks.op_table import BOUNDS

if TYPE_CHECKING:
    from traceq.ranks.op_table import OpTable

# Workers that are tried alone: those whose stage and group slow the job down most.
_TRIED = 16
_STAGE, _GROUP, _WORKER, _OP = "stage", "dp_rank", "rank", "optype"


@dataclass(frozen=True)
class Explained:
    """A part of the job, and what a step gets shorter by if it is at the mean."""

    of: str
    """``stage``, ``dp_rank``, ``rank`` or ``optype``."""
    name: str
    saved_ns: float
    share: float
    """Of the slowdown; more than 1 if other parts are faster than the mean."""


@dataclass(frozen=True)
class OpTableAnalysis:
    """A job's slowdown, and what it is made of."""

    ranks: int
    stages: int
    steps: int
    step_ns: float
    """Mean of the steps, without gaps."""
    ideal_ns: float
    """The same with every op at the mean of its type."""
    parts: tuple[Explained, ...]
    """Of each kind the one that explains most first."""

    @property
    def slowdown(self) -> float:
        """The step's time, relative to the ideal."""
        return self.step_ns / self.ideal_ns if self.ideal_ns else 1.0

    @property
    def culprit(self) -> Explained | None:
        """The worker, or else the stage, that explains most of a slowdown."""
        if self.step_ns - self.ideal_ns < STRAGGLER * self.step_ns:
            return None
        for of in (_WORKER, _STAGE, _GROUP):
            worst = next((part for part in self.parts if part.of == of), None)
            if worst is not None and worst.share >= TOGETHER:
                return worst
        return None


def analyse_op_table(table: OpTable) -> OpTableAnalysis:
    """Replay the job with each of its parts at the mean."""
    took, ideal = (table.step_ns(pl.lit(value=value)) for value in (False, True))
    meetings = table.meetings
    slower = {
        (column, value): table.step_ns(pl.col(column) != value)
        for column in (_STAGE, _GROUP)
        for value in meetings[column].unique().sort()
    }
    workers = meetings.select("rank", "dp_rank", "stage").unique().sort("rank").rows()
    scores = {
        rank: min(slower[_GROUP, group], slower[_STAGE, stage])
        for rank, group, stage in workers
    }
    tried = sorted(scores, key=lambda rank: (-scores[rank], rank))[:_TRIED]
    types = pl.concat([table.compute[_OP], meetings[_OP]]).unique().sort()
    types = types.filter(~types.is_in(BOUNDS))
    candidates = [
        *((_STAGE, value) for value in meetings[_STAGE].unique().sort()),
        *((_GROUP, value) for value in meetings[_GROUP].unique().sort()),
        *((_WORKER, rank) for rank in tried),
        *((_OP, name) for name in types),
    ]
    parts = [
        Explained(
            of,
            str(value),
            took - without,
            (took - without) / (took - ideal) if took > ideal else 0.0,
        )
        for of, value in candidates
        for without in [table.step_ns(pl.col(of) == value)]
    ]
    order = {of: at for at, of in enumerate((_STAGE, _GROUP, _WORKER, _OP))}
    return OpTableAnalysis(
        len(workers),
        meetings[_STAGE].n_unique(),
        len(table.replays),
        took,
        ideal,
        tuple(
            sorted(parts, key=lambda explained: (order[explained.of], -explained.share))
        ),
    )
