"""Recordings of a few steps as they are and with a remedy, as proof of its effect."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, Iterator

from ..agent import torch_state
from ..agent.actions import Actions
from ..agent.profiler import _PYTHON_CALL, Trace
from ..agent.rank_file import RankFile
from ..agent.schedule import LEAD_IN
from ..agent.trace_size import TraceSize
from ..shared import status_files

# Calls of the CUDA runtime, which come and go with the host's pace.
_RUNTIME = ("cuda", "cuLaunch", "Lazy Function", "Activity Buffer", "[memory]")
_MOST_BOUNDARIES = 12  # of one recording, after which it is given up


class _NamingActions(Actions):
    """The recorder's actions, which also count the names of what was traced."""

    names: Counter[str] | None = None

    def _keep(self, trace: Trace) -> None:
        steps = max(1, len(trace.steps))
        counted = Counter(
            name
            for event in trace._events()  # noqa: SLF001 - of the same room
            for name in [event.name()]
            if not _PYTHON_CALL.match(name)
            and "#" not in name
            and not name.startswith(_RUNTIME)
        )
        self.names = Counter({name: -(-n // steps) for name, n in counted.items()})
        super()._keep(trace)


class Recording:
    """A run folder with a few steps; ``steps`` is a generator that ends a step each."""

    def __init__(self, session: Any, folder: Path, facts: dict[str, Any]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.session = session
        self.rank = RankFile(folder, session.settings["launch"])
        self.rank.facts.update(facts)
        self.actions = _NamingActions(session.options, self.rank, session.others)
        self.actions._step_name = session.step_name  # noqa: SLF001 - found once
        self.why = ""  # it has no trace

    @property
    def names(self) -> Counter[str] | None:
        """Names of ops and kernels with their number per step."""
        return self.actions.names

    def steps(self, count: int, *, stacks: bool) -> Iterator[None]:
        """Record; each ``yield`` waits for the end of a step."""
        actions, source = self.actions, self.session.source
        self.rank.claim()
        actions.size = TraceSize(count, stacks=stacks)
        actions.seen = self.session.schedule.seen
        source.traced(on=True)
        try:
            actions.do("begin trace")
            left = LEAD_IN + count
            for _ in range(_MOST_BOUNDARIES):
                if actions.refused or not actions.tracing:
                    break
                yield
                actions.seen = self.session.schedule.seen
                actions.step_ended(torch_state.compilations())
                left -= 1
                actions.do("trace step" if left else "end trace")
                if actions.restarted:
                    left = LEAD_IN + count
            if actions.tracing:
                self.why = "the steps could not be traced"
                actions.drop_all()
        finally:
            source.traced(on=False)
        self._conclude()

    def end(self) -> None:
        """Write what there is: the program ends while its steps are traced."""
        if self.actions.tracing:
            self.actions.end_early()
            self._conclude()

    def _conclude(self) -> None:
        actions, source, facts = self.actions, self.session.source, self.rank.facts
        self.session.step_name = actions._step_name  # noqa: SLF001
        for process in actions.background._writers.values():  # noqa: SLF001
            status_files.mark(f"writer-{self.rank.folder.name}", str(process))
        if facts.get("trace") is None and not self.why:
            lacking = [entry["why"] for entry in facts["missing"]]
            self.why = lacking[0] if lacking else "nothing was traced"
        by = {"by": self.session.steps_by(), "of": source.of}
        self.rank.save(
            steps={**by, "seen": self.session.schedule.seen},
            state="incomplete" if actions.incomplete or self.why else "done",
        )
