"""Commands on exports of Nsight Systems."""

from __future__ import annotations

import gzip
import json
import re
import sqlite3
from typing import TYPE_CHECKING, Any

import pytest
from command import traceq
from nsys_tables import PROCESS, write_export
from recordings import NSYS, exports, path_of

from traceq.analysis.patterns.step_kinds import step_kinds
from traceq.formats.chrome import read as read_chrome
from traceq.inputs.load_trace import load

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_REAL = exports()
_SECOND = (1 << 48) | (1235 << 24)
_SECRETS = ("/home/alice/train.py", "HF_TOKEN=hf_abc123", "gpu-node-17")


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An export with shapes, whose second rank has the same work later."""
    file = tmp_path_factory.mktemp("export") / "report.sqlite"
    write_export(file, read_chrome(path_of("copies_fixed.trace.json.gz")))
    connection = sqlite3.connect(file)
    for table, column in (
        ("CUPTI_ACTIVITY_KIND_KERNEL", "globalPid"),
        ("CUPTI_ACTIVITY_KIND_MEMCPY", "globalPid"),
        ("CUPTI_ACTIVITY_KIND_RUNTIME", "globalTid"),
        ("NVTX_EVENTS", "globalTid"),
    ):
        names = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
        later = {
            column: f"{column} - {PROCESS} + {_SECOND}",
            "deviceId": "deviceId + 1",
            "start": "start + 100",
            "end": "end + 100",
        }
        chosen = ", ".join(later.get(name, name) for name in names)
        connection.execute(f"INSERT INTO {table} SELECT {chosen} FROM {table}")  # noqa: S608 - of this file
    command, variable, host = _SECRETS
    connection.execute("CREATE TABLE TARGET_INFO_SYSTEM_ENV (name, nameEnum, value)")
    connection.execute(
        "INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES ('Hostname', 9, ?)", [host]
    )
    connection.executemany(
        "INSERT INTO META_DATA_CAPTURE VALUES (?, ?)",
        [("COMMAND", command), ("ENVIRONMENT", variable)],
    )
    connection.commit()
    connection.close()
    return file


def linted(file: Path, *options: str) -> dict[str, Any]:
    answer = traceq("lint", "--no-cache", "--format", "json", *options, file)
    recording: dict[str, Any] = json.loads(answer.out)["recordings"][0]
    return recording


def without_ops(export: Path, tmp_path: Path) -> Path:
    """Copy an export, without its operators."""
    file = tmp_path / "without_ops.sqlite"
    file.write_bytes(export.read_bytes())
    connection = sqlite3.connect(file)
    connection.execute("DELETE FROM NVTX_EVENTS")
    connection.commit()
    connection.close()
    return file


def without_shapes(tmp_path: Path) -> Path:
    file = tmp_path / "without_shapes.sqlite"
    raw = read_chrome(path_of("copies_fixed.trace.json.gz"))
    write_export(file, raw, shapes=False)
    return file


def test_the_json_counts_the_rules_that_missing_shapes_skip(tmp_path: Path) -> None:
    recording = linted(without_shapes(tmp_path))
    codes = {
        code
        for group in recording["skipped"]
        if "autograd-shapes-nvtx" in group["reason"]
        and "values and strides" not in group["reason"]
        for code in group["rules"]
    }
    expected = f"no shapes; {len(codes)} rules skipped"
    assert codes
    assert any(text.endswith(expected) for text in recording["facts"]["lacks"])


def test_the_screen_counts_the_rules_that_missing_shapes_skip(tmp_path: Path) -> None:
    screen = traceq("lint", "--no-cache", without_shapes(tmp_path)).out
    (line,) = (item for item in screen.splitlines() if "no shapes" in item)
    assert re.fullmatch(
        r"note: recorded without --pytorch=autograd-shapes-nvtx: no shapes; \d+ rules"
        " skipped",
        line,
    )


def test_what_is_missing_is_reported_once(tmp_path: Path) -> None:
    answer = traceq("lint", "--no-cache", without_shapes(tmp_path))
    assert (answer.out + answer.err).count("recorded without --pytorch") == 1


def test_a_cached_answer_counts_them_too(tmp_path: Path) -> None:
    file = without_shapes(tmp_path)
    first, second = (traceq("lint", file).out for _ in range(2))
    assert "rules skipped" in first
    assert first == second


def test_rules_that_no_flag_runs_do_not_count_for_flags(export: Path) -> None:
    lacks = linted(export)["facts"]["lacks"]
    assert any(
        text.startswith("only PyTorch's profiler records values") for text in lacks
    )
    assert not any("no shapes" in text for text in lacks)


def test_without_operators_all_rules_on_operators_count(
    export: Path, tmp_path: Path
) -> None:
    recording = linted(without_ops(export, tmp_path))
    (text,) = (lack for lack in recording["facts"]["lacks"] if "no operators" in lack)
    codes = {
        code
        for group in recording["skipped"]
        if "autograd-shapes-nvtx" in group["reason"]
        and "values and strides" not in group["reason"]
        for code in group["rules"]
    }
    assert text.endswith(f"; {len(codes)} rules skipped")


def test_findings_that_rest_on_dtypes_say_that_they_are_inferred(
    tmp_path: Path,
) -> None:
    file = tmp_path / "report.sqlite"
    write_export(file, read_chrome(path_of("attn_fp32.trace.json.gz")))
    marked = {
        finding["code"]
        for finding in linted(file)["findings"]
        if {"label": "dtypes", "name": "inferred from kernel names"}
        in finding["evidence"]
    }
    assert {"GEM001", "ATT002"} <= marked


def test_findings_of_pytorch_do_not_say_that_dtypes_are_inferred() -> None:
    findings = linted(path_of("attn_fp32.trace.json.gz"))["findings"]
    evidence = [entry for finding in findings for entry in finding["evidence"]]
    assert evidence
    assert not any("inferred" in entry.get("name", "") for entry in evidence)


def test_the_roofline_says_that_dtypes_are_inferred(export: Path) -> None:
    assert "inferred from kernel names" in traceq("roofline", "--no-cache", export).out


def test_the_roofline_is_of_inferred_dtypes_in_json(export: Path) -> None:
    answer = traceq("roofline", "--no-cache", "--format", "json", export)
    assert json.loads(answer.out)["dtypes_inferred"] is True


def test_the_summary_says_that_dtypes_are_inferred(tmp_path: Path) -> None:
    file = tmp_path / "report.sqlite"
    write_export(file, read_chrome(path_of("copies_fixed.trace.json.gz")))
    screen = traceq("summary", "--no-cache", file).out
    assert "dtypes are inferred from kernel names" in screen


def test_the_roofline_of_no_shapes_names_the_flag(tmp_path: Path) -> None:
    answer = traceq("roofline", "--no-cache", without_shapes(tmp_path))
    assert answer.status == 2
    assert "nsys profile --pytorch=autograd-shapes-nvtx" in answer.err


def test_no_advice_is_on_options_of_pytorchs_profiler(tmp_path: Path) -> None:
    advice = [
        finding["advice"] for finding in linted(without_shapes(tmp_path))["findings"]
    ]
    assert advice
    assert not [entry for entry in advice if re.search(r"(?<!nsys )\bprofile\(", entry)]


def test_the_notice_names_the_rank_that_is_read(export: Path) -> None:
    err = traceq("lint", "--no-cache", export).err
    assert "has 2 ranks, and rank 0 is read: --rank N reads another one" in err


_OF_ONE = (
    ("regions",),
    ("roofline",),
    ("query", "SELECT count(*) FROM kernels"),
    ("annotate",),
    ("report",),
    ("shrink",),
)


@pytest.mark.parametrize("command", _OF_ONE, ids=lambda command: command[0])
@pytest.mark.slow
def test_a_command_on_one_trace_takes_a_rank(
    command: tuple[str, ...], export: Path, tmp_path: Path
) -> None:
    name, *rest = command
    written = {"annotate": "a.json", "report": "r.html", "shrink": "fixture"}
    if name in written:
        rest += ["--output", str(tmp_path / written[name])]
    cache = [] if name == "shrink" else ["--no-cache"]
    answer = traceq(name, *cache, export, *rest, "--rank", "1")
    assert answer.status == 0, answer.err
    assert "rank 0 is read" not in answer.err


@pytest.mark.parametrize("name", ["regions", "roofline", "lint", "diff"])
def test_a_rank_that_is_not_there_is_named(name: str, export: Path) -> None:
    files = [export] * (2 if name == "diff" else 1)
    answer = traceq(name, "--no-cache", *files, "--rank", "5")
    assert answer.status == 2
    assert "has no rank 5, the ranks are 0, 1" in answer.err


def test_a_query_is_on_the_rank_that_was_asked_for(export: Path) -> None:
    sql = "SELECT DISTINCT device FROM kernels"
    out = traceq(
        "query", "--no-cache", export, sql, "--rank", "1", "--format", "csv"
    ).out
    assert out.split() == ["device", "1"]


def test_the_summary_of_an_export_has_a_row_for_each_rank(export: Path) -> None:
    rows = traceq("summary", "--no-cache", export).out
    assert "report rank 0" in rows
    assert "report rank 1" in rows


def test_the_same_export_twice_has_no_change(export: Path) -> None:
    out = traceq("diff", "--no-cache", export, export).out
    assert "before and after: no change" in out


def test_two_ranks_of_an_export_are_compared(export: Path) -> None:
    assert "2 ranks" in traceq("ranks", "--no-cache", export).out


def test_an_annotated_export_is_a_trace(export: Path, tmp_path: Path) -> None:
    file = tmp_path / "annotated.json.gz"
    traceq("annotate", "--no-cache", export, "-o", file)
    kernels = load(export, cache=False).kernels
    assert load(file, cache=False).kernels["dur"].sum() == kernels["dur"].sum()


def _shrunk(export: Path, folder: Path) -> Iterator[str]:
    answer = traceq("shrink", export, "-o", folder, "--max-kb", "4000")
    assert answer.status == 0, answer.err
    for file in folder.rglob("*"):
        if file.is_file():
            content = file.read_bytes()
            packed = file.suffix == ".gz"
            yield (gzip.decompress(content) if packed else content).decode()


@pytest.fixture(scope="module")
def shrunk(
    export: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[str]]:
    """The fixture that is made of the export, and its texts."""
    folder = tmp_path_factory.mktemp("shrunk") / "fixture"
    return folder, [*_shrunk(export, folder)]


@pytest.mark.parametrize("secret", _SECRETS)
@pytest.mark.slow
def test_a_shrunk_export_has_no_private_data(
    secret: str, shrunk: tuple[Path, list[str]]
) -> None:
    _, texts = shrunk
    assert texts
    assert not [text for text in texts if secret in text]


def test_a_shrunk_export_has_the_same_findings(
    export: Path, shrunk: tuple[Path, list[str]]
) -> None:
    folder, _ = shrunk
    before, after = linted(export), linted(folder)
    assert [finding["fingerprint"] for finding in after["findings"]] == [
        finding["fingerprint"] for finding in before["findings"]
    ]


# Words that any trace has, or that tell nobody who recorded it.
_HARMLESS = re.compile(
    r"nsight|systems|nvidia|geforce|kernels?$|device|unknown|program|profiler|events"
    r"|python|launch|memory|[\d.]+$",
    re.IGNORECASE,
)


@pytest.mark.parametrize(
    "file",
    [
        pytest.param(path, id=name, marks=[pytest.mark.slow] * (name != "mock"))
        for name, path in NSYS.items()
    ],
)
@pytest.mark.slow
def test_a_shrunk_recording_has_no_word_of_the_environment(
    file: Path, tmp_path: Path
) -> None:
    connection = sqlite3.connect(f"file:{file}?mode=ro&immutable=1", uri=True)
    values = [
        str(value)
        for table in ("META_DATA_CAPTURE", "TARGET_INFO_SYSTEM_ENV")
        for (value,) in connection.execute(f"SELECT value FROM {table}")  # noqa: S608 - as above
    ]
    connection.close()
    words = {
        word
        for value in values
        for word in re.split(r"[\s=:;,/\"]+", value)
        if len(word) >= 6 and not _HARMLESS.match(word)
    }
    text = "\n".join(_shrunk(file, tmp_path / "fixture"))
    assert len(words) > 20
    assert not {word for word in words if word in text}


@pytest.mark.parametrize("file", _REAL)
@pytest.mark.parametrize("command", ["lint", "summary", "regions", "diff", "query"])
def test_a_real_export_is_read_or_refused_in_a_sentence(
    command: str, file: Path
) -> None:
    more: dict[str, tuple[str | Path, ...]] = {
        "diff": (file,),
        "query": ("SELECT count(*) FROM kernels",),
    }
    answer = traceq(command, "--no-cache", file, *more.get(command, ()))
    assert bool(answer.out) == (answer.status != 2)


@pytest.mark.slow
def test_an_export_is_checked_against_its_fixture(export: Path, tmp_path: Path) -> None:
    folder = tmp_path / "fixture"
    traceq("shrink", export, "-o", folder, "--program", "copies", "--max-kb", "4000")
    traceq("check", "--update", "--no-cache", folder)
    answer = traceq("check", "--no-cache", folder, "--against", export)
    assert answer.status == 0, answer.out


def test_the_last_steps_without_kernels_are_not_averaged() -> None:
    if "h100_2gpu_1s" not in NSYS:
        pytest.skip("the export is not ours to give away, and ../shared is not there")
    steps = load(NSYS["h100_2gpu_1s"], cache=False).steps
    averaged = steps.filter("averaged")
    assert averaged.height < steps.height
    assert (averaged["kernels"] > 0).all()


def test_steps_without_recorded_kernels_are_no_kind_of_step() -> None:
    if "h100_2gpu_1s" not in NSYS:
        pytest.skip("the export is not ours to give away, and ../shared is not there")

    kinds = step_kinds(load(NSYS["h100_2gpu_1s"], cache=False))

    assert kinds is not None
    assert (kinds.recorded, kinds.recorded_long) == (13, 1)
