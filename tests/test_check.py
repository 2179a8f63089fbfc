"""Fixtures are held to what is expected of them; what is broken on purpose is red."""

from __future__ import annotations

import gzip
import json
import re
import shutil
from typing import TYPE_CHECKING, Any

import pytest
from command import Answer, traceq
from conftest import ROOT
from goldens import assert_block
from linting import bundled_rules

from traceq.check.budgets import Budget, read_budgets
from traceq.check.expected import read_expected
from traceq.check.fixture import find_fixtures, read_fixture
from traceq.common import toml
from traceq.errors import ConfigError
from traceq.inputs.load_trace import load
from traceq.linter.config import find_config

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from traceq.model.trace import Trace

FIXTURES = ROOT / "fixtures"
CLEAN = FIXTURES / "twins" / "copies_fixed"
SICK = FIXTURES / "copies"
PAGE = (ROOT / "docs" / "check.md").read_text(encoding="utf-8")
LOADED: dict[tuple[bytes, str], Trace] = {}
OOM = FIXTURES / "twins" / "oom_fragmented"


@pytest.fixture(autouse=True)
def _not_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)


@pytest.fixture(autouse=True)
def _loaded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read a trace once, whichever copy of its fixture it is in."""
    monkeypatch.setattr("traceq.check.fixture.load", load_once)


def load_once(path: Path, **options: Any) -> Trace:  # noqa: ANN401 - passed on
    key = (path.read_bytes(), repr(options))
    if key not in LOADED:
        LOADED[key] = load(path, **options)
    return LOADED[key]


@pytest.fixture
def fixture(tmp_path: Path) -> Path:
    """Return a copy of a real fixture, to break."""
    return copied(CLEAN, tmp_path)


@pytest.fixture
def sick(tmp_path: Path) -> Path:
    return copied(SICK, tmp_path)


def copied(source: Path, folder: Path) -> Path:
    target = folder / "fixtures" / source.name
    shutil.copytree(source, target)
    return target


def replace_in(file: Path, old: str, new: str) -> None:
    text = file.read_text(encoding="utf-8")
    assert old in text
    file.write_text(text.replace(old, new, 1), encoding="utf-8")


def change_trace(fixture: Path, change: Callable[[list[dict[str, Any]]], None]) -> None:
    file = fixture / "trace.json.gz"
    document = json.loads(gzip.decompress(file.read_bytes()))
    change(document["traceEvents"])
    file.write_bytes(gzip.compress(json.dumps(document).encode()))


def is_red(answer: Answer, *words: str) -> bool:
    text = " ".join(answer.out.split())
    return answer.status == 1 and all(word in text for word in words)


def test_every_fixture_has_all_its_parts() -> None:
    paths = find_fixtures([FIXTURES])

    assert len(paths) >= 20
    for folder in paths:
        assert str(read_fixture(folder).origin["program"]).strip()
        assert read_expected(folder / "findings.json") is not None
        assert len(read_budgets(folder / "traceq.toml"))


@pytest.mark.parametrize("folder", find_fixtures([FIXTURES]), ids=lambda one: one.name)
def test_messages_and_names_hold_no_times_and_no_shares(folder: Path) -> None:
    measured = re.compile(r"\d\s?(?:ns|µs|ms|s|%)(?![A-Za-z])")

    for expected in read_expected(folder / "findings.json"):
        texts = [expected.message, *(entry.name for entry in expected.evidence)]
        assert [text for text in texts if measured.search(text)] == [], expected.code


def test_every_change_is_held_to_the_fixtures() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")

    assert "$(BIN)/traceq check --no-run --no-cache fixtures\n" in makefile
    assert "\n\t$(MAKE) --jobs 2 check tests\n" in makefile
    assert "make test" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def test_a_fixture_as_it_should_be_is_green(fixture: Path) -> None:
    answer = traceq("check", fixture)

    assert answer.status == 0
    assert answer.out.endswith("1 fixture, all as expected\n")


def test_fixtures_are_looked_for_in_their_usual_folder(
    fixture: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(fixture.parents[1])

    assert traceq("check").out.startswith("fixtures/copies_fixed: 3 findings as")


def test_hidden_folders_have_no_fixtures(fixture: Path) -> None:
    shutil.copytree(fixture, fixture.parent / ".cache" / "old")

    assert find_fixtures([fixture.parent]) == [fixture]


# Breaking a rule.


def with_rule(monkeypatch: pytest.MonkeyPatch, code: str, check: object) -> None:
    """Have the command run a rule that looks in another way."""
    rules = dict(bundled_rules())
    rules[code] = type(rules[code].__name__, (rules[code],), {"check": check})
    monkeypatch.setattr("traceq.linter.pack.load_rules", lambda _: rules)


def test_a_rule_that_finds_nothing_any_more_is_red(
    fixture: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_rule(monkeypatch, "CPY001", lambda _, __: iter(()))

    assert is_red(traceq("check", fixture), "gone CPY001 copy-share")


def test_a_rule_that_finds_too_much_is_red(
    fixture: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def everything(self: Any, _: object) -> Iterator[object]:  # noqa: ANN401
        yield self.finding("something is wrong", subject="everything")

    with_rule(monkeypatch, "ATT001", everything)

    assert is_red(traceq("check", fixture), "new ATT001", "something is wrong")


def test_a_rule_that_counts_otherwise_is_red(
    fixture: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = bundled_rules()["CPY001"].check

    def twice(self: Any, view: Any) -> Iterator[object]:  # noqa: ANN401
        for finding in original(self, view):
            yield finding
            yield finding

    with_rule(monkeypatch, "CPY001", twice)

    assert is_red(traceq("check", fixture), "changed CPY001", "count was 4, is 8")


def test_a_rule_that_crashes_is_red(
    fixture: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: object, __: object) -> Iterator[object]:
        msg = "oops"
        raise ValueError(msg)

    with_rule(monkeypatch, "ATT001", broken)

    assert is_red(traceq("check", fixture), "error ATT001", "ValueError: oops")


# Breaking a fixture.


def test_a_trace_with_a_kernel_less_is_red(fixture: Path) -> None:
    def less(events: list[dict[str, Any]]) -> None:
        kernel = next(event for event in events if event.get("cat") == "kernel")
        number = kernel["args"]["correlation"]
        removed = [
            event
            for event in events
            if event.get("args", {}).get("correlation") == number
        ]
        events[:] = [event for event in events if event not in removed]

    change_trace(fixture, less)

    assert is_red(traceq("check", fixture), "budget launches 56.5, the budget is 57")


def test_a_trace_that_is_cut_off_is_red(fixture: Path) -> None:
    file = fixture / "trace.json.gz"
    file.write_bytes(file.read_bytes()[:-4000])

    assert is_red(traceq("check", fixture), "new TRC004")


def test_a_trace_that_is_none_is_red(fixture: Path) -> None:
    (fixture / "trace.json.gz").write_bytes(b"nonsense")

    assert is_red(traceq("check", fixture), "error", "is not a trace")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("trace.json.gz", "has no trace.json.gz"),
        ("origin.toml", "missing origin.toml"),
        ("findings.json", "missing findings.json"),
        ("traceq.toml", "missing budgets"),
    ],
)
def test_a_part_that_is_missing_is_red(name: str, words: str, fixture: Path) -> None:
    (fixture / name).unlink()

    assert is_red(traceq("check", fixture), words)


def test_an_origin_that_does_not_name_the_program_is_red(fixture: Path) -> None:
    (fixture / "origin.toml").write_text('gpu = "H200"\n')

    assert is_red(traceq("check", fixture), "does not name the program")


@pytest.mark.parametrize("name", ["origin.toml", "findings.json", "traceq.toml"])
def test_a_part_that_cannot_be_read_is_red(name: str, fixture: Path) -> None:
    (fixture / name).write_text("= nonsense")

    answer = traceq("check", fixture, "--format", "json")

    assert is_red(answer, '"kind": "error"', f"copies_fixed/{name} is not ")


@pytest.mark.parametrize(
    ("was", "becomes"),
    [
        ('"code": "CPY001"', '"code": 0'),
        ('"line": ', '"line": "x'),
        ('"count": ', '"count": {}, "x": '),
        ('"label": "', '"label": ["'),
    ],
)
def test_findings_of_other_types_are_red(was: str, becomes: str, sick: Path) -> None:
    text = (sick / "findings.json").read_text()
    (sick / "findings.json").write_text(text.replace(was, becomes))

    assert is_red(traceq("check", sick), "is not a list of findings")


def test_a_broken_fixture_does_not_hide_the_others(fixture: Path) -> None:
    other = copied(OOM, fixture.parents[1])
    (fixture / "trace.json.gz").write_bytes(b"nonsense")

    answer = traceq("check", fixture.parent)

    assert is_red(answer, f"{other}: 1 finding as expected", "2 fixtures, 1 not as")


def test_an_expectation_of_what_is_not_there_is_red(fixture: Path) -> None:
    replace_in(fixture / "findings.json", '"CPY001"', '"CPY003"')

    assert is_red(traceq("check", fixture), "changed CPY001")


def test_the_evidence_of_a_finding_is_expected_too(sick: Path) -> None:
    replace_in(sick / "findings.json", '"autocast in aten::linear"', '"cast in mm"')

    words = ("changed CPY002", "back was cast in mm, is autocast in aten")
    assert is_red(traceq("check", sick), *words)


def test_the_words_of_a_finding_are_not_expected(sick: Path) -> None:
    replace_in(sick / "findings.json", '"message": "', '"message": "In other words, ')

    assert traceq("check", sick).status == 0


def test_expected_findings_of_an_older_version_are_written_again_by_update(
    sick: Path,
) -> None:
    replace_in(sick / "findings.json", '"version": 2', '"version": 1')
    replace_in(sick / "traceq.toml", "syncs = ", "syncs = { tolerance = 0.25, value = ")
    text = (sick / "traceq.toml").read_text()
    text = re.sub(r"(syncs = \{.*)", r"\1 }", text)
    (sick / "traceq.toml").write_text(text)

    before = traceq("check", sick)
    written = traceq("check", sick, "--update")

    assert is_red(before, "is of version 1, not 2: write it again with traceq check")
    assert written.status == 0
    assert read_expected(sick / "findings.json")
    # What is wrong with the findings does not touch the budgets.
    assert read_budgets(sick / "traceq.toml").limits["syncs"].tolerance == 0.25


def test_the_place_of_a_finding_is_expected_too(sick: Path) -> None:
    replace_in(sick / "findings.json", '"line": 154', '"line": 155')

    assert is_red(traceq("check", sick), "changed CPY003", "line was 155, is 154")


# Breaking a budget.


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("launches = 57", "launches = 50", "launches 57, the budget is 50"),
        ("launches = 57", "launches = 60", "launches 57, the budget is 60"),
        ("syncs = 0", "syncs = 1", "syncs 0, the budget is 1"),
        ("captures = 0", "captures = 2", "captures 0, the budget is 2"),
        ("recompiles = 0", "recompiles = 1", "recompiles 0, the budget is 1"),
        ("copies = 4", "copies = 3", "copies 4, the budget is 3"),
        (
            "peak-bytes = 9",
            "peak-bytes = 8",
            "peak-bytes 957,430,784 (913 MiB), the budget is 8",
        ),
        ("value = 3.487", "value = 2.487", "step-ms 3.487, the budget is 2.487 ± 10%"),
        ('"cublas"', '"cutlass"', "Copier/Linear: kernels of aten, cublas, driver"),
        ("{ kernels = 18", "{ kernels = 17", "Copier: 18 kernels, the budget is 17"),
        (
            "[budgets.layers]\n",
            '[budgets.layers]\n"A" = { kernels = 1 }\n',
            "A is not a",
        ),
    ],
)
def test_a_budget_that_is_not_kept_is_red(
    old: str, new: str, words: str, fixture: Path
) -> None:
    replace_in(fixture / "traceq.toml", old, new)

    assert is_red(traceq("check", fixture), f"budget {words}")


def test_a_number_may_be_off_by_its_tolerance(fixture: Path) -> None:
    replace_in(fixture / "traceq.toml", "value = 3.487", "value = 3.6")

    assert traceq("check", fixture).status == 0


def test_a_budget_of_what_was_not_recorded_is_red(tmp_path: Path) -> None:
    fixture = copied(OOM, tmp_path)
    replace_in(fixture / "traceq.toml", "[budgets]\n", "[budgets]\nlaunches = 5\n")

    assert is_red(traceq("check", fixture), "launches was not recorded")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("launchs = 5", "did you mean 'launches'"),  # codespell:ignore
        ('launches = "5"', "must be a number of 0 or more"),
        ("launches = -1", "must be a number of 0 or more"),
        ("launches = nan", "must be a number of 0 or more"),
        ("launches = { most = 5 }", "unknown key 'most'"),
        ("layers = 5", "must be a table"),
        ("layers = { A = 5 }", "must be a table with kernels"),
        ('layers = { A = { kernels = 5, backends = "x" } }', "must be a list"),
    ],
)
def test_a_budget_that_makes_no_sense_is_an_error(
    text: str, why: str, tmp_path: Path
) -> None:
    file = tmp_path / "traceq.toml"
    file.write_text(f"[budgets]\n{text}\n")

    with pytest.raises(ConfigError, match=why):
        read_budgets(file)


def test_budgets_of_a_fixture_are_no_settings(fixture: Path) -> None:
    (fixture.parents[1] / "traceq.toml").write_text('ignore = ["CPY001"]\n')

    assert find_config(fixture).ignore == ("CPY001",)


# Updating.


def test_update_writes_what_is_found_and_shows_it(fixture: Path) -> None:
    replace_in(fixture / "traceq.toml", "launches = 57", "launches = 50")
    (fixture / "findings.json").unlink()

    answer = traceq("check", fixture, "--update")

    assert answer.status == 0
    assert "findings.json, traceq.toml written" in answer.out
    assert "new       CPY001 copy-share" in answer.out
    assert "budget    launches 57, the budget is 50" in answer.out
    for name in ("findings.json", "traceq.toml"):
        assert (fixture / name).read_bytes() == (CLEAN / name).read_bytes()


def test_update_keeps_which_budgets_there_are_and_how_strict(fixture: Path) -> None:
    text = "[budgets]\nlaunches = { value = 1, tolerance = 0.5 }\n"
    (fixture / "traceq.toml").write_text(text)

    traceq("check", fixture, "--update")

    budgets = read_budgets(fixture / "traceq.toml")
    assert budgets.limits == {"launches": Budget(57, 0.5)}
    assert not budgets.layers


def test_update_is_refused_in_ci_and_writes_nothing(
    fixture: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", "true")
    (fixture / "findings.json").unlink()

    answer = traceq("check", fixture, "--update")

    assert answer.status == 2
    assert "--update is refused where CI is set" in answer.err
    assert not (fixture / "findings.json").exists()


def test_update_does_not_make_a_fixture_of_a_broken_one(fixture: Path) -> None:
    (fixture / "origin.toml").unlink()
    (fixture / "findings.json").unlink()

    assert is_red(traceq("check", fixture, "--update"), "missing origin.toml")
    assert not (fixture / "findings.json").exists()


def test_an_update_without_a_program_says_what_is_missing(fixture: Path) -> None:
    replace_in(fixture / "origin.toml", "program = ", "was = ")
    (fixture / "findings.json").unlink()

    answer = traceq("check", fixture, "--update")

    words = 'does not name the program: write program = "..." into it'
    assert is_red(answer, words, "so --update has written nothing")
    assert "write it with --update" not in answer.out


def test_an_update_of_what_is_right_changes_nothing(fixture: Path) -> None:
    answer = traceq("check", fixture, "--update")

    assert answer.out.endswith("1 fixture, all as expected\n")


# Against a new run.


def test_the_same_run_is_as_its_fixture(fixture: Path) -> None:
    answer = traceq("check", fixture, "--against", CLEAN / "trace.json.gz")

    assert answer.status == 0
    assert "step-ms is not compared" in answer.out


def test_a_step_time_can_be_given_for_a_trace(fixture: Path) -> None:
    trace = CLEAN / "trace.json.gz"

    answer = traceq("check", fixture, "--against", trace, "--step-ms", "9.5")

    assert is_red(answer, "budget step-ms 9.5, the budget is 3.487 ± 10%")


def test_times_are_compared_only_if_the_gpu_is_the_same(fixture: Path) -> None:
    replace_in(fixture / "origin.toml", 'gpu = "NVIDIA H200"', 'gpu = "NVIDIA A100"')
    replace_in(fixture / "traceq.toml", "gpu-ms = { value = 3", "gpu-ms = { value = 1")

    answer = traceq("check", fixture, "--against", CLEAN / "trace.json.gz")

    assert answer.status == 0
    assert "times are not compared: NVIDIA H200, not NVIDIA A100" in answer.out


def test_another_backend_of_matmuls_is_red(fixture: Path) -> None:
    with (fixture / "traceq.toml").open("a") as stream:
        stream.write('\n[budgets.backends]\ngemm = ["cutlass"]\n')

    answer = traceq("check", fixture)

    assert is_red(answer, "budget gemm: kernels of cublas instead of cutlass")


def test_a_run_that_is_worse_than_its_fixture_is_red(fixture: Path) -> None:
    answer = traceq("check", fixture, "--against", SICK / "trace.json.gz")

    assert is_red(
        answer,
        "new CPY003 pageable-host-copy",
        "budget launches 114, the budget is 57",
        "budget gpu-ms",
    )


def test_a_run_that_is_better_than_its_fixture_is_green(sick: Path) -> None:
    (sick / "traceq.toml").write_text("[budgets]\nlaunches = 114\nsyncs = 1\n")

    answer = traceq("check", sick, "--against", CLEAN / "trace.json.gz")

    assert answer.status == 0
    assert "copies: nothing worse, " in answer.out
    assert "(gone)    CPY003 pageable-host-copy" in answer.out
    assert "(budget)  launches 57, the budget is 114" in answer.out


def test_lines_that_moved_are_no_difference_to_a_new_run(sick: Path) -> None:
    replace_in(sick / "findings.json", '"line": 154', '"line": 150')

    assert traceq("check", sick, "--against", SICK / "trace.json.gz").status == 0


def test_a_finding_that_happens_more_often_in_a_new_run_is_red(sick: Path) -> None:
    replace_in(sick / "findings.json", '"count": 5', '"count": 4')

    answer = traceq("check", sick, "--against", SICK / "trace.json.gz")

    assert is_red(answer, "changed CPY002", "4 times a step became 5")


def test_times_of_another_gpu_are_not_compared(fixture: Path) -> None:
    replace_in(fixture / "origin.toml", "NVIDIA H200", "Tesla T4")

    answer = traceq("check", fixture, "--against", CLEAN / "trace.json.gz")

    assert answer.status == 0
    assert "times are not compared: NVIDIA H200, not Tesla T4" in answer.out


def test_a_new_run_needs_an_expectation_to_be_held_to(fixture: Path) -> None:
    (fixture / "findings.json").unlink()

    answer = traceq("check", fixture, "--against", CLEAN / "trace.json.gz")

    assert is_red(answer, "missing findings.json")


def test_a_new_run_is_held_to_one_fixture() -> None:
    answer = traceq("check", FIXTURES, "--against", CLEAN / "trace.json.gz")

    assert answer.status == 2
    assert "--against takes one fixture" in answer.err


def test_update_and_against_do_not_go_together(fixture: Path) -> None:
    answer = traceq("check", fixture, "--update", "--against", fixture)

    assert answer.status == 2


# Words.


def test_json_says_all_of_it(fixture: Path) -> None:
    replace_in(fixture / "traceq.toml", "launches = 57", "launches = 50")

    document = json.loads(traceq("check", fixture, "--format", "json").out)

    assert (document["version"], document["failing"]) == (2, 1)
    (one,) = document["fixtures"][0]["differences"]
    assert one["kind"] == "budget"
    assert one["text"] == "launches 57, the budget is 50"


def test_markdown_is_a_table_of_differences(fixture: Path) -> None:
    replace_in(fixture / "traceq.toml", "launches = 57", "launches = 50")

    lines = traceq("check", fixture, "--format", "markdown").lines

    assert lines[0] == "### traceq check: 1 fixture, 1 not as expected"
    assert "budget" in lines[-1]


@pytest.mark.parametrize("form", ["text", "json", "markdown"])
def test_what_a_file_says_cannot_act_on_the_terminal(form: str, fixture: Path) -> None:
    hostile = "\\u001b[2J\\u202e<script>|"
    replace_in(fixture / "findings.json", '"subject": "', f'"subject": "{hostile}')
    replace_in(fixture / "findings.json", '"message": "', f'"message": "{hostile}')

    out = traceq("check", fixture, "--format", form).out

    assert "\x1b" not in out
    assert "\u202e" not in out
    assert form != "markdown" or "<script>" not in out


@pytest.mark.parametrize("width", [20, 60, 80, 120])
def test_no_line_is_wider_than_the_terminal(width: int, sick: Path) -> None:
    (sick / "findings.json").write_text('{"version": 2, "findings": []}')

    lines = traceq("check", sick, width=width).lines

    differences = [line for line in lines if line.startswith("  ")]
    assert differences
    assert all(len(line) <= max(width, 24) for line in differences)


def test_a_folder_without_fixtures_is_an_error(tmp_path: Path) -> None:
    assert "has no fixture in it" in traceq("check", tmp_path).err
    assert "is not a folder of fixtures" in traceq("check", tmp_path / "x").err


@pytest.mark.golden
def test_the_readme_shows_what_check_prints(
    sick: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(sick.parents[1])
    (sick.parents[1] / "traceq.toml").write_text('ignore = ["CPY003"]\n')
    replace_in(sick / "traceq.toml", "launches = 114", "launches = 100")

    assert_block("check", traceq("check", width=80).out)


def test_the_budgets_that_the_readme_shows_are_accepted(tmp_path: Path) -> None:
    exact, with_limits = re.findall(
        r"^```toml\n(\[budgets\].*?)^```$", PAGE, re.DOTALL | re.MULTILINE
    )
    file = tmp_path / "traceq.toml"
    file.write_text(with_limits)
    assert read_budgets(file).layers["LM/LSTM"].kernels.limits == (293, 565)
    file.write_text(exact)

    assert read_budgets(file).limits == read_budgets(CLEAN / "traceq.toml").limits


def test_the_hook_runs_on_every_part_of_a_fixture() -> None:
    hooks = (ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8")
    (pattern,) = re.findall(r"^  files: (.+)$", hooks, re.MULTILINE)

    assert re.search(pattern, "fixtures/x/cpu.json")
    for file in find_fixtures([FIXTURES])[0].iterdir():
        assert re.search(pattern, f"fixtures/x/{file.name}")
    assert not re.search(pattern, "pyproject.toml")


def test_names_that_need_quotes_get_them() -> None:
    assert toml.lines({"a-b": True, "LM/Block": 'x"y', "": 1}) == [
        "a-b = true",
        '"LM/Block" = "x\\"y"',
        '"" = 1',
    ]


def test_a_fixture_has_its_steps_from_what_the_configuration_says(
    fixture: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(fixture.parent)
    (fixture.parent / "traceq.toml").write_text('steps-by = "none"\n')

    assert is_red(traceq("check", fixture), "TRC002")
