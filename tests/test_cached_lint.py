"""Cached lint results: equal to a new lint, and used only as long as they are valid.

A result whose rules were not loaded came from the cache.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import sys
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import pytest
from command import traceq
from conftest import ROOT
from linting import linted, outcome
from msgspec import structs
from recordings import CAPTURES, loaded
from test_lint import FINDS, WAITS, write_config, write_rule, write_trace

from traceq.api import settings
from traceq.api.lint import lint
from traceq.cache import store
from traceq.cache.findings import decode, encode, storable
from traceq.inputs.discovery import Program
from traceq.inputs.options import LoadOptions
from traceq.linter import cache_key as kept_outcomes
from traceq.linter.config import Config, read_config
from traceq.model.finding import CodeFrame, Evidence, Finding
from traceq.model.lint_report import Allow, Allowed
from traceq.model.recording import Recording
from traceq.report.lint import concise, github, html, markdown, sarif
from traceq.testing import load_drawn, load_history

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from traceq.api.lint import LintResult
    from traceq.model.lint_report import RecordingReport

pytestmark = pytest.mark.real

FORMATS = ("full", "concise", "json", "sarif", "github", "markdown", "html")
COPIES = ROOT / "fixtures" / "copies" / "trace.json.gz"
OTHER = WAITS.replace("aten::item", "aten::adds")


def found_in(*paths: Path, **settings: Any) -> LintResult:  # noqa: ANN401 - as lint's
    """Lint as the command does, and wait until the outcome is kept."""
    result = lint(paths, tables=False, **settings)
    store.finish()
    return result


def was_kept(lint_result: LintResult) -> bool:
    return lint_result.loaded is None


def answer(folder: Path) -> Path:
    (file,) = (folder / "answers").iterdir()
    return file


def assert_same(finding: Finding, other: Finding) -> None:
    """Compare all but the fixes: what findings are seen by is no part of ``==``."""
    for item in fields(Finding):
        if item.name != "fixes":
            assert getattr(finding, item.name) == getattr(other, item.name), item.name


def assert_comes_back(outcome: RecordingReport) -> None:
    known, notes = decode(encode(outcome, ["a note"]))

    assert notes == ("a note",)
    assert structs.replace(known, bound=None) == structs.replace(outcome, bound=None)
    for finding, other in zip(known.findings, outcome.findings, strict=True):
        assert_same(finding, other)
    for was, now in zip(outcome.allowed, known.allowed, strict=True):
        assert_same(was.finding, now.finding)
    assert known.bound == storable(outcome).bound


def test_the_outcome_of_every_fixture_comes_back(fixture_trace: Path) -> None:
    assert_comes_back(linted(fixture_trace))


def test_an_outcome_with_everything_in_it_comes_back() -> None:
    log = loaded(CAPTURES.trace("attn_flash"))
    report = outcome(
        Recording("all", log, snapshots={0: load_history("x [ 1 MiB ]")}),
        allow=(Allow("SYN001", "meant"),),
    )
    (finding, *_) = outcome(Recording("waits", load_drawn(WAITS))).findings
    finding = replace(
        finding,
        evidence=(Evidence("kernel", "k", 1.5, "ns", 2, "each"), Evidence("op", "a")),
        data={"shapes": [[1, 2], []], "share": 0.25, "none": None, "deep": {"a": True}},
        explains=frozenset({"SYN001"}),
        confirmed_by=frozenset({"SYN002"}),
        frame=CodeFrame(3, ("x = 1", "\ty"), 4),
        ops=frozenset({3, 1}),
        kernels=frozenset({5}),
        calls=frozenset({7}),
    )
    everything = structs.replace(
        report,
        findings=(finding,),
        allowed=(Allowed(finding, "meant", Allow("SYN001", "meant", "a*", "*")),),
        in_baseline=2,
    )

    assert report.memory is not None
    assert_comes_back(everything)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), (1, 2), {1: 2}])
def test_what_json_cannot_hold_is_refused(value: Any) -> None:  # noqa: ANN401 - anything
    known = outcome(Recording("waits", load_drawn(WAITS)))
    first = replace(known.findings[0], data={"x": value})

    with pytest.raises((ValueError, TypeError)):
        encode(structs.replace(known, findings=(first,)), ())


def test_data_nested_too_deeply_is_refused() -> None:
    known = outcome(Recording("waits", load_drawn(WAITS)))
    deep: list[Any] = []
    for _ in range(sys.getrecursionlimit()):
        deep = [deep]
    first = replace(known.findings[0], data={"x": deep})

    with pytest.raises(ValueError, match="recursion"):
        encode(structs.replace(known, findings=(first,)), ())


@pytest.mark.parametrize("change", [b"null", b'{"outcome": {}}', b"[" * 100_000])
@pytest.mark.slow
def test_a_cached_answer_of_another_form_leads_to_a_new_lint(
    change: bytes, tmp_path: Path, own_cache: Path
) -> None:
    path = write_trace(tmp_path)
    first = found_in(path)
    answer(own_cache).write_bytes(store._sum(change) + change)  # noqa: SLF001 - hostile

    second = found_in(path)

    assert not was_kept(second)
    assert second.json() == first.json()


@pytest.mark.slow
@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("form", FORMATS)
def test_every_format_of_the_command_is_the_same_from_the_cache(
    form: str, tmp_path: Path
) -> None:
    trace = write_trace(tmp_path)
    lines = ("lint", trace, "--format", form)
    fresh = traceq(*lines, "--no-cache")
    assert traceq(*lines) == fresh

    assert traceq(*lines) == fresh
    assert was_kept(found_in(trace))


@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("name", ["attn_mask_fmha", "graph_replay", "python_in_step"])
def test_every_report_of_a_real_trace_is_the_same_from_the_cache(name: str) -> None:
    path = ROOT / "fixtures" / name
    first, second = found_in(path), found_in(path)

    assert was_kept(second)
    assert second.text(width=100, color=True) == first.text(width=100, color=True)
    assert second.json() == first.json()
    assert second._repr_html_() == first._repr_html_()
    for report in (concise, github, html, markdown):
        assert report.render(second.report) == report.render(first.report)
    assert sarif.render(second.report, second.rules, ROOT) == sarif.render(
        first.report, first.rules, ROOT
    )


@pytest.mark.usefixtures("own_cache")
def test_a_run_that_is_not_kept_has_its_tables_if_they_are_wanted() -> None:
    found_in(COPIES)

    assert found_in(COPIES).recordings == ()
    (recording,) = lint(COPIES).recordings
    assert recording.trace is not None


@pytest.mark.usefixtures("own_cache")
def test_a_file_that_changed_is_linted_again(tmp_path: Path) -> None:
    path = write_trace(tmp_path)
    before = found_in(path)
    assert was_kept(found_in(path))
    size, date = path.stat().st_size, path.stat().st_mtime_ns
    write_trace(tmp_path, OTHER)
    os.utime(path, ns=(date, date))
    assert path.stat().st_size == size, "as it seems"

    after = found_in(path)

    assert not was_kept(after)
    assert after.json() != before.json()


@pytest.mark.usefixtures("own_cache")
def test_a_file_that_was_touched_is_not_linted_again(tmp_path: Path) -> None:
    path = write_trace(tmp_path)
    before = found_in(path)
    os.utime(path, (1, 1))

    after = found_in(path)

    assert was_kept(after)
    assert after.json() == before.json()


@pytest.mark.usefixtures("own_cache")
def test_a_file_that_was_moved_is_called_by_its_new_name(tmp_path: Path) -> None:
    path = write_trace(tmp_path)
    found_in(path)
    moved = path.rename(tmp_path / "moved.json")

    (known,) = found_in(moved).report.outcomes

    assert known.name == str(moved)
    assert known.facts is not None
    assert known.facts.path == str(moved)


CONFIGURED = (
    "",
    'select = ["SYN"]',
    'ignore = ["SYN001"]',
    "min-cost-us = 1e9",
    "[rules.SYN001]\nmin-wait-us = 500",
    "[rules.SYN001]\nmin-wait-us = 501",
    '[[allow]]\nrule = "SYN001"\nreason = "meant"',
    '[[allow]]\nrule = "SYN001"\nreason = "not meant"',
    'own-code = ["torch"]',
    'steps-by = "none"',
)


def key(path: Path, config: Config, step_ns: int | None = None, **asked: Any) -> str:  # noqa: ANN401 - as settings'
    """Return the name of the outcome of a lint like this one."""
    log = asked.pop("log", None)
    subject = kept_outcomes.Subject(Program(str(path), trace=path), log, step_ns)
    options = settings.load_options(config, **asked)
    question = kept_outcomes.question(subject, "code", config, options)
    assert question is not None
    return question.key()


def test_another_configuration_is_another_question(tmp_path: Path) -> None:
    path = write_trace(tmp_path)
    keys = {key(path, read_config(write_config(tmp_path, text))) for text in CONFIGURED}

    assert len(keys) == len(CONFIGURED)


def test_what_only_the_report_asks_for_and_a_moved_configuration_are_the_same_question(
    tmp_path: Path,
) -> None:
    path = write_trace(tmp_path)
    moved = write_config(tmp_path, 'fail-on = "error"', "moved.toml")

    assert key(path, read_config(moved)) == key(path, Config())


def test_other_options_are_another_question(tmp_path: Path) -> None:
    path, other = write_trace(tmp_path), write_trace(tmp_path, name="other.json")
    keys = [
        key(path, Config()),
        key(other, Config()),
        key(path, Config(), step_ns=1),
        key(path, Config(), own=["torch"]),
        key(path, Config(), steps_by="none"),
        key(path, Config(), captures=[other]),
        key(path, Config(), log=other),
    ]

    assert len({*keys}) == len(keys)


def test_with_a_folder_of_generated_code_nothing_is_kept(tmp_path: Path) -> None:
    program = Program("trace", trace=write_trace(tmp_path))
    subject, options = (
        kept_outcomes.Subject(program),
        LoadOptions(inductor_code=tmp_path),
    )

    assert not kept_outcomes.question(subject, "code", Config(), options)


@pytest.mark.usefixtures("own_cache")
def test_other_rules_are_run_when_they_are_asked_for(tmp_path: Path) -> None:
    path = write_trace(tmp_path)
    found_in(path)

    other = found_in(path, select="TRC")

    assert not was_kept(other)
    assert other.json() == lint(path, select="TRC", cache=False).json()
    assert was_kept(found_in(path, select="TRC"))


@pytest.mark.usefixtures("own_cache")
def test_what_only_the_report_asks_for_is_no_other_question(tmp_path: Path) -> None:
    path = write_trace(tmp_path)
    first = found_in(path, fail_on="error")
    baseline = tmp_path / "baseline.json"
    assert traceq("lint", path, "--write-baseline", baseline).status == 0

    hidden = found_in(path, fail_on="info", baseline=baseline, root=tmp_path)

    assert first.findings
    assert was_kept(hidden)
    assert not hidden.findings
    assert hidden.report.outcomes[0].in_baseline == len(first.findings)


@pytest.mark.usefixtures("own_cache")
def test_entries_of_the_configuration_that_allow_nothing_are_named_again(
    tmp_path: Path,
) -> None:
    path = write_trace(tmp_path)
    config = write_config(
        tmp_path,
        """
        [[allow]]
        rule = "ATT001"
        reason = "never there"
        """,
    )
    first, second = (found_in(path, config=config) for _ in "12")

    assert was_kept(second)
    assert len(second.report.unused) == 1
    assert second.report.unused == first.report.unused


def test_a_rule_that_is_edited_runs_again(tmp_path: Path, own_cache: Path) -> None:
    path, pack = write_trace(tmp_path), write_rule(tmp_path / "pack")
    found_in(path, rules=pack)
    assert was_kept(found_in(path, rules=pack))
    write_rule(tmp_path / "pack", body=FINDS.replace("wrong", "worse"))

    result = found_in(path, rules=pack)

    assert "worse" in [finding.message for finding in result.findings]
    assert len(list((own_cache / "answers").iterdir())) == 2


def test_a_change_of_traceqs_own_code_is_another_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_outcomes, "bundled", lambda _: tmp_path)
    monkeypatch.setattr(store, "_UNSETTLED_NS", 0)
    file = tmp_path / "rule.py"
    file.write_text("a = 1")
    before = kept_outcomes.code_of(())
    assert kept_outcomes.code_of(()) == before

    file.write_text("a = 2")

    assert kept_outcomes.code_of(()) not in ("", before)


def test_code_that_was_changed_just_now_may_change_unnoticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_outcomes, "bundled", lambda _: tmp_path)
    (tmp_path / "rule.py").write_text("a = 1")

    assert kept_outcomes.code_of(()) == ""


def test_an_outcome_with_a_crashed_rule_is_not_kept(
    tmp_path: Path, own_cache: Path
) -> None:
    pack = write_rule(tmp_path / "pack", body="raise ValueError(1)")

    assert found_in(write_trace(tmp_path), rules=pack).report.crashed
    assert not (own_cache / "answers").exists()


def test_a_damaged_byte_anywhere_is_noticed(tmp_path: Path, own_cache: Path) -> None:
    question = store.Question.of([write_trace(tmp_path)], "")
    store.keep_answer(question, lambda: b"the answer")
    store.finish()
    assert store.find_answer(question) == b"the answer"
    file = answer(own_cache)
    whole = file.read_bytes()

    for at in range(len(whole)):
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])

        assert store.find_answer(question) is None, at
        assert not file.exists(), "it is out of the way"


@pytest.mark.parametrize("length", [5, -1])
@pytest.mark.slow
def test_an_outcome_that_is_cut_is_found_again(
    length: int, tmp_path: Path, own_cache: Path
) -> None:
    path = write_trace(tmp_path)
    first = found_in(path)
    file = answer(own_cache)
    file.write_bytes(file.read_bytes()[:length])

    second = found_in(path)

    assert not was_kept(second)
    assert second.json() == first.json()
    assert was_kept(found_in(path))


def test_without_the_cache_no_outcome_is_read_or_written(
    tmp_path: Path, own_cache: Path
) -> None:
    path = write_trace(tmp_path)
    assert not was_kept(found_in(path, cache=False))
    assert not own_cache.exists()
    found_in(path)

    assert not was_kept(found_in(path, cache=False))


@pytest.mark.usefixtures("own_cache")
def test_what_was_said_of_a_file_is_said_again(tmp_path: Path) -> None:
    path = tmp_path / "cut.json.gz"
    with gzip.open(COPIES, "rb") as whole:
        content = whole.read()
    path.write_bytes(gzip.compress(content[: len(content) // 2]))
    fresh = traceq("lint", path, "--no-cache")
    assert "is incomplete" in fresh.err

    assert traceq("lint", path) == fresh
    assert traceq("lint", path) == fresh
    assert was_kept(found_in(path))


@pytest.mark.usefixtures("own_cache")
@pytest.mark.slow
def test_of_several_recordings_only_the_changed_one_is_linted_again(
    tmp_path: Path,
) -> None:
    path, two = write_trace(tmp_path), write_trace(tmp_path, name="two.json")
    found_in(path, two)
    write_trace(tmp_path, OTHER)

    result = found_in(path, two)

    assert not was_kept(result)
    assert result.json() == lint([path, two], cache=False).json()
    assert was_kept(found_in(two))


@pytest.mark.usefixtures("own_cache")
def test_a_log_that_changed_is_read_again(tmp_path: Path) -> None:
    path, log = write_trace(tmp_path), tmp_path / "train.log"
    log.write_text("nothing\n")
    found_in(path, log=log)
    assert was_kept(found_in(path, log=log))
    log.write_text("something\n")

    assert not was_kept(found_in(path, log=log))


def _of_run(folder: Path) -> dict[str, Any]:
    manifest: dict[str, Any] = json.loads((folder / "run.json").read_text())
    return manifest


def _edit_log(run: Path) -> None:
    (run / "stderr.log").write_text("another\n")


def _edit_manifest(run: Path) -> None:
    (run / "run.json").write_text(json.dumps(_of_run(run) | {"labels": {}}))


def _add_file(run: Path) -> None:
    (run / "sources").mkdir()
    (run / "sources" / "train.py").write_text("x = 1\n")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    ranks = [
        {"name": f"rank-{n}", "rank": n, "trace": {"file": f"{n}.json"}} for n in (0, 1)
    ]
    manifest = {"format": 1, "command": ["x"], "ranks": ranks, "labels": {"a": "b"}}
    log = {"log": {"file": "stderr.log"}}
    (folder / "run.json").write_text(json.dumps(manifest | log))
    (folder / "stderr.log").write_text("a warning\n")
    for n in (0, 1):
        write_trace(folder, name=f"{n}.json")
    return folder


@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("edit", [_edit_log, _edit_manifest, _add_file])
@pytest.mark.slow
def test_a_run_folder_that_changed_is_linted_again(
    edit: Callable[[Path], None], run: Path
) -> None:
    found_in(run)
    assert was_kept(found_in(run))
    edit(run)

    assert not was_kept(found_in(run))


@pytest.mark.usefixtures("own_cache")
def test_the_trace_of_another_rank_is_not_hashed_for_lint(run: Path) -> None:
    found_in(run)
    write_trace(run, OTHER, "1.json")

    assert was_kept(found_in(run))


@pytest.mark.usefixtures("own_cache")
def test_a_snapshot_that_changed_is_read_again(tmp_path: Path) -> None:
    first, second = sorted((ROOT / "fixtures" / "captures").glob("*.snapshot.*"))[:2]
    path = tmp_path / "snapshot.pickle.gz"
    shutil.copy(first, path)
    found_in(path)
    assert was_kept(found_in(path))
    shutil.copy(second, path)

    assert not was_kept(found_in(path))


@pytest.mark.usefixtures("own_cache")
@pytest.mark.slow
def test_a_report_of_what_was_kept_loads_neither_polars_nor_rules(
    tmp_path: Path,
) -> None:
    found_in(path := write_trace(tmp_path))
    code = """
import sys
from traceq.cli import main
try:
    main()
finally:
    heavy = ("polars", "networkx", "jinja2", "_traceq_pack0", "traceq.analysis")
    print([one for one in heavy if one in sys.modules], file=sys.stderr)
"""
    for form in ("full", "json", "concise", "github", "markdown"):
        done = subprocess.run(
            [sys.executable, "-c", code, "lint", path, "--format", form],
            capture_output=True, text=True, check=False,
        )  # fmt: skip

        assert done.stdout, form
        assert done.stderr.splitlines()[-1] == "[]", form


@pytest.mark.slow
def test_processes_that_lint_at_once_all_succeed(
    tmp_path: Path, own_cache: Path
) -> None:
    line = [sys.executable, "-m", "traceq", "lint", str(write_trace(tmp_path))]
    running = [subprocess.Popen(line, stdout=subprocess.PIPE) for _ in range(3)]

    said = {process.communicate()[0] for process in running}

    assert len(said) == 1
    assert {process.returncode for process in running} == {1}
    assert answer(own_cache).exists()
    assert not list(own_cache.glob("traceq-new-*")), "nothing is left aside"
    assert subprocess.run(line, capture_output=True, check=False).stdout in said


def test_the_outcomes_unused_for_longest_go_when_the_bound_is_reached(
    tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found_in(write_trace(tmp_path))
    old = answer(own_cache)
    os.utime(old, (1, 1))
    filler = own_cache / "answers" / f"1-{'0' * 64}.json"
    filler.write_bytes(bytes(1 << 20))
    monkeypatch.setenv("TRACEQ_CACHE_MB", "1")

    found_in(write_trace(tmp_path, OTHER, "two.json"))

    assert not old.exists()
    assert not filler.exists()


def test_outcomes_are_counted_and_cleared(tmp_path: Path, own_cache: Path) -> None:
    found_in(write_trace(tmp_path))
    assert answer(own_cache).exists()

    assert ": 1 trace and 1 lint result, " in traceq("cache", "info").out
    cleared = traceq("cache", "clear").out

    assert cleared.startswith("removed the tables of 1 trace and 1 lint result, ")
    assert not list(own_cache.iterdir())
