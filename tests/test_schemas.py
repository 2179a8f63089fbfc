"""The published JSON schemas describe what traceq writes: all of it, and no less."""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Any

import pytest
from command import traceq
from conftest import ROOT
from linting import bundled_rules
from ranking import NAMES as JOBS
from ranking import Works, real_job, write_job

from traceq.check.cpu import cpu_part, write_cpu_part
from traceq.inputs.load_trace import load
from traceq.linter.config import Config
from traceq.ranks.analysis import analyse
from traceq.ranks.findings import lint_job
from traceq.report.ranks import json as ranks_json

if TYPE_CHECKING:
    from pathlib import Path

jsonschema = pytest.importorskip("jsonschema", reason="validates JSON")

SCHEMAS = ROOT / "docs" / "schemas"
FIXTURES = ROOT / "fixtures"
NAMES = sorted(file.stem for file in SCHEMAS.glob("*.json"))
SNAPSHOTS = sorted(FIXTURES.rglob("snapshot.pickle.gz"))

Json = dict[str, Any]


def schema(name: str) -> Json:
    document: Json = json.loads((SCHEMAS / f"{name}.json").read_text())
    return document


def strict(part: Any) -> Any:  # noqa: ANN401 - any JSON
    """Return a schema that takes no field that it does not name.

    Readers must ignore such fields, but here each of them lacks a description.
    """
    if isinstance(part, list):
        return [strict(entry) for entry in part]
    if not isinstance(part, dict):
        return part
    result = {key: strict(value) for key, value in part.items()}
    if isinstance(result.get("properties"), dict) and "type" in result:
        result["additionalProperties"] = False
    return result


def errors(name: str, document: Any) -> list[str]:  # noqa: ANN401 - any JSON
    checker = jsonschema.Draft202012Validator(strict(schema(name)))
    return [
        f"{'/'.join(map(str, error.absolute_path))}: {error.message[:200]}"
        for error in checker.iter_errors(document)
    ]


def written(*arguments: str | Path) -> Json:
    document: Json = json.loads(traceq(*map(str, arguments), "--format", "json").out)
    return document


def trace(name: str) -> Path:
    return FIXTURES / name / "trace.json.gz"


@pytest.mark.parametrize("name", NAMES)
def test_a_schema_is_one_of_draft_2020_12(name: str) -> None:
    result = schema(name)

    assert result["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert (
        result["$id"] == f"urn:traceq:{name}:{result['properties']['version']['const']}"
    )
    jsonschema.Draft202012Validator.check_schema(result)


@pytest.mark.parametrize("name", NAMES)
def test_a_document_that_lacks_a_field_does_not_fit(name: str) -> None:
    assert errors(name, {"version": 0})


@pytest.mark.real
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("lint", ["lint", trace("python_in_step")]),
        ("lint", ["lint", trace("recompile")]),
        ("lint", ["lint", SNAPSHOTS[0]]),
        ("summary", ["summary", trace("copies"), "--host", "--critical-path"]),
        ("regions", ["regions", trace("copies"), trace("twins/copies_fixed")]),
        ("roofline", ["roofline", trace("copies")]),
        ("memory", ["memory", *SNAPSHOTS[:2]]),
        ("diff", ["diff", trace("copies"), trace("twins/copies_fixed")]),
        ("diff_memory", ["diff", SNAPSHOTS[0], SNAPSHOTS[1]]),
        ("check", ["check", FIXTURES / "copies", "--no-cache"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_a_command_writes_fits_its_schema(
    name: str, arguments: list[str | Path]
) -> None:
    assert errors(name, written(*arguments)) == []


def test_a_schema_notices_a_field_of_another_type() -> None:
    document = written("lint", trace("copies"))
    assert errors("lint", document) == []

    broken = copy.deepcopy(document)
    broken["recordings"][0]["findings"][0]["place"]["line"] = "42"
    assert errors("lint", broken)


@pytest.mark.parametrize(
    "file",
    sorted(FIXTURES.rglob("findings.json")),
    ids=lambda file: str(file.parent.relative_to(FIXTURES)),
)
def test_the_expectation_of_a_fixture_fits_its_schema(file: Path) -> None:
    assert errors("findings", json.loads(file.read_text())) == []


def test_the_report_of_a_job_fits_its_schema() -> None:
    job = analyse(real_job(JOBS[0]))
    report = lint_job("job", job, bundled_rules(), Config())

    assert errors("ranks", json.loads(ranks_json.render(job, report))) == []


@pytest.mark.real
@pytest.mark.parametrize(
    "ranks", [[Works()] * 3, [Works(), Works(sleep=300), Works(compute=1500)]]
)
@pytest.mark.slow
def test_the_comparison_of_two_jobs_fits_its_schema(
    tmp_path: Path, ranks: list[Works]
) -> None:
    before = write_job(tmp_path / "before", [Works(), Works(), Works(sleep=400)])
    after = write_job(tmp_path / "after", ranks)

    assert errors("diff_jobs", written("diff", before, after)) == []


def test_a_baseline_fits_its_schema(tmp_path: Path) -> None:
    file = tmp_path / "baseline.json"
    traceq("lint", str(trace("copies")), "--write-baseline", str(file))

    assert errors("baseline", json.loads(file.read_text())) == []


def test_the_cpu_part_of_a_fixture_fits_its_schema() -> None:
    part = cpu_part(load(trace("copies")))

    assert errors("cpu", json.loads(write_cpu_part(part))) == []


def test_every_schema_is_named_in_the_documentation() -> None:
    page = (SCHEMAS / "README.md").read_text()

    assert NAMES
    assert [name for name in NAMES if f"]({name}.json)" not in page] == []
