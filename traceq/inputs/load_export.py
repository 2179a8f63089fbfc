"""Loading of a rank of an Nsight Systems export: read, link, infer dtypes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from traceq.common.progress import tell
from traceq.formats.facts import read_devices, read_facts
from traceq.formats.nsys.read import read
from traceq.graph.deep import cut
from traceq.graph.inferred_dtypes import with_inferred_dtypes
from traceq.graph.link import link
from traceq.model.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from traceq.formats.nsys.read import Recorded
    from traceq.graph.steps import Steps
    from traceq.model.facts import Facts
    from traceq.model.owners import Owners


def read_export(
    file: Path,
    rank: int | None,
    owners: Owners,
    steps_by: str,
    progress: Callable[[int, int], None] | None,
) -> Trace:
    """Return the trace of one rank of an export, by default of the first."""
    recorded = read(file, rank, progress)
    tell("graph")
    linked = link(recorded.raw.tables, owners, steps_by)
    tables = with_inferred_dtypes(linked.tables)
    tables["devices"] = read_devices(recorded.raw)
    facts = _facts(file, recorded, linked.steps)
    if linked.too_deep:
        facts = replace(facts, damage=(*facts.damage, cut(linked.too_deep)))
    return Trace.of(facts, tables)


def _facts(file: Path, recorded: Recorded, steps: Steps) -> Facts:
    facts = read_facts(file, recorded.raw, steps.source, steps.sure)
    stacks = recorded.raw.tables["ops"]["call_stack"].is_not_null().any()
    return replace(
        facts,
        stacks=bool(stacks),
        lacks=recorded.capture.missing,
    )
