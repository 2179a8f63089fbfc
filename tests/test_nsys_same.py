"""One program in both formats: Kineto's and Nsight Systems' give the same findings."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import polars as pl
import pytest
from linting import outcome
from nsys_tables import write_export
from recordings import CAPTURES, path_of

from traceq.formats.chrome import read
from traceq.formats.facts import read_devices, read_facts
from traceq.graph.cuda_graphs.captures import mapped
from traceq.graph.link import link
from traceq.inputs.load_trace import load
from traceq.model.recording import Recording
from traceq.model.trace import Trace

if TYPE_CHECKING:
    from pathlib import Path

    from traceq.formats.chrome import RawTrace
    from traceq.linter import Finding

_USUAL = {"copies_fixed", "attn_fp32"}
_NAMES = [
    pytest.param(name, marks=[] if name in _USUAL else [pytest.mark.slow])
    for name in sorted(CAPTURES.paths(".trace.json.gz"))
]
# Rules whose findings or savings rest on values of inputs, which are not recorded: of
# the first whether attention is causal; without the second the third finds the same.
_WITHOUT_DATA = {"ATT002", "KRN002", "KRN008"}


def as_kineto_without_stacks(file: Path, raw: RawTrace, *, shapes: bool) -> Trace:
    """Return what Nsight Systems can record of a capture, read from Kineto's tables.

    The host's time counts as recorded, as in an export: Kineto's overhead is not that
    of Nsight Systems.
    """
    tables = dict(raw.tables)
    tables |= {name: tables[name].clear() for name in ("frames", "memory")}
    without = [pl.lit(None, pl.Categorical).alias(name) for name in _TEXTS]
    if not shapes:
        without.append(pl.lit(None, pl.UInt32).alias("inputs"))
    tables["ops"] = tables["ops"].with_columns(without)
    linked = link(tables)
    facts = read_facts(file, raw, linked.steps.source, linked.steps.sure)
    facts = replace(
        facts,
        recorder="Nsight Systems",
        shapes=shapes and facts.shapes,
        stacks=False,
        memory=False,
    )
    trace = Trace.of(facts, {**linked.tables, "devices": read_devices(raw)})
    if not (trace.runtime["call"] == "capture").any():
        return trace
    return replace(trace, **mapped(trace.frames_by_name(), []))  # type: ignore[arg-type]  # tables are its fields


_TEXTS = ("caller", "call_stack")


def findings(trace: Trace) -> dict[tuple[str | None, ...], Finding]:
    """Return the findings by rule, place and subject."""
    return {
        (
            finding.code,
            finding.place.module,
            finding.place.file,
            finding.subject,
        ): finding
        for finding in outcome(Recording("one", trace)).findings
        if finding.code not in _WITHOUT_DATA
    }


@pytest.mark.parametrize("shapes", [True, False], ids=["shapes", "names"])
@pytest.mark.parametrize("name", _NAMES)
def test_both_formats_give_the_same_findings(
    name: str, tmp_path: Path, *, shapes: bool
) -> None:
    file = path_of(f"{name}.trace.json.gz")
    raw = read(file)
    export = tmp_path / "report.sqlite"
    write_export(export, raw, shapes=shapes)
    kineto = findings(as_kineto_without_stacks(file, raw, shapes=shapes))
    nsys = findings(load(export, cache=False))
    assert sorted(map(str, nsys)) == sorted(map(str, kineto))
    saved = {
        key: (finding.saves_ns or 0, nsys[key].saves_ns or 0)
        for key, finding in kineto.items()
    }
    assert {
        key: both
        for key, both in saved.items()
        if abs(both[0] - both[1]) > _OFF * max(both)
    } == {}


_OFF = 0.1
