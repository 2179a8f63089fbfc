"""Loading of a rank of an Nsight Systems export: read, link, infer dtypes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from traceq.common.progress import report_progress
from traceq.formats.facts import read_devices, read_facts
from traceq.formats.nsys.read import read
from traceq.graph.deep import cut
from traceq.graph.inferred_dtypes import with_inferred_dtypes
from traceq.graph.link import link
from traceq.model.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import polars as pl

    from traceq.formats.chrome import RawTrace
    from traceq.formats.nsys.read import Recorded
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
    report_progress("graph")
    facts, devices = _facts(file, recorded), read_devices(recorded.raw)
    linked = link(_taken(recorded.raw), owners, steps_by)
    steps, damage = linked.steps, facts.damage
    if linked.too_deep:
        damage = (*damage, cut(linked.too_deep))
    facts = replace(
        facts, steps_from=steps.source, steps_sure=steps.sure, damage=damage
    )
    tables = with_inferred_dtypes(linked.tables)
    return Trace.of(facts, {**tables, "devices": devices})


def _taken(raw: RawTrace) -> dict[str, pl.DataFrame]:
    """Return the tables, and leave none: they are freed as soon as they are linked."""
    tables = {**raw.tables}
    raw.tables.clear()
    return tables


def _facts(file: Path, recorded: Recorded) -> Facts:
    """Return the facts, but for the steps."""
    facts = read_facts(file, recorded.raw, "", "")
    stacks = recorded.raw.tables["ops"]["call_stack"].is_not_null().any()
    return replace(
        facts,
        stacks=bool(stacks),
        lacks=recorded.capture.missing,
    )
