"""Step time of a job if some of its ranks were like their peers, by replay."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from traceq.ranks.peers import IDEAL, retimed
from traceq.ranks.replay import JobReplay, job_replay
from traceq.ranks.timeline import COMPUTE, PARTS, STALLED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceq.ranks.job import Job

_OF_HOST = set(PARTS) - {COMPUTE, STALLED}


@dataclass(frozen=True)
class WhatIf:
    """One change, and what it saves."""

    of: str
    """``all``, ``rank``, ``ranks``, ``machine``, ``stage``, ``cause`` or ``link``."""
    name: str
    ranks: tuple[int, ...]
    """The rows of the ranks that are changed; none if it is all of them."""
    saved_ns: float
    """Of the window; never more than that of ``all``."""


class WhatIfs:
    """A job's replay, with the times of its peers at hand."""

    def __init__(self, job: Job, compared: pl.DataFrame) -> None:
        """Put the job in order, and run it as it was, and with all at the median."""
        self.job, self.compared = job, compared
        self.replay: JobReplay = job_replay(job.meetings, job.collectives)
        self.own, self.issue = (
            job.meetings[column].cast(pl.Float64).to_list()
            for column in ("own", "issue")
        )
        self.transfers = job.collectives["transfer"].cast(pl.Float64).to_list()
        self.usual = job.collectives["usual"].cast(pl.Float64).to_list()
        self.took = self.replay.run(self.own, self.issue, self.transfers)
        every = compared.with_columns(target=IDEAL)
        ideal = self._took(every, self.usual)
        self.ideal = min(self.took, ideal)

    @property
    def slowdown(self) -> float:
        """Duration of the job, relative to one with all ranks at the median."""
        return self.took / self.ideal if self.ideal else 1.0

    @property
    def all(self) -> WhatIf:
        """All ranks and links at the median."""
        return WhatIf("all", "all ranks", (), self.took - self.ideal)

    def ranks(self, rows: Sequence[int], of: str, name: str) -> WhatIf:
        """Return the savings if some ranks were like the median of their peers."""
        chosen = self.compared.filter(pl.col("rank").is_in(list(rows)))
        return self._with(chosen.with_columns(target=IDEAL), of, name, tuple(rows))

    def surely(self, rows: Sequence[int]) -> WhatIf:
        """Return the savings if ranks were like their peers where surely late."""
        chosen = self.compared.filter(pl.col("rank").is_in(list(rows)), "sure")
        return self._with(
            chosen.with_columns(target=IDEAL), "ranks", "late ranks", tuple(rows)
        )

    def cause(self, part: str) -> WhatIf:
        """One part of the own time of all ranks as the median of their peers."""
        target = pl.col("own") - pl.col(part) + pl.col(f"{IDEAL}_{part}")
        issue = pl.col(f"{IDEAL}_issue" if part in _OF_HOST else "issue")
        changed = self.compared.with_columns(target=target, ideal_issue=issue)
        return self._with(changed, "cause", part, ())

    def link(self) -> WhatIf:
        """All transfers as the median of their peers."""
        took = self.replay.run(self.own, self.issue, self.usual)
        return WhatIf("link", "link", (), self._saved(took))

    def causes(self) -> list[WhatIf]:
        """Each part of the own time, and the links."""
        return [*map(self.cause, PARTS), self.link()]

    def _with(
        self, targets: pl.DataFrame, of: str, name: str, rows: tuple[int, ...]
    ) -> WhatIf:
        saved = self._saved(self._took(targets, self.transfers))
        return WhatIf(of, name, rows, saved)

    def _took(self, targets: pl.DataFrame, transfers: Sequence[float]) -> float:
        times = retimed(self.job.meetings, targets)
        return self.replay.run(
            times["own"].to_list(), times["issue"].to_list(), transfers
        )

    def _saved(self, took: float) -> float:
        return max(0.0, min(self.took - took, self.took - self.ideal))
