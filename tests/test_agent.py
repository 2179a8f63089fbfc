"""Formats for agents and editors, the guide and the skill."""

from __future__ import annotations

import ast
import json
import re
import shlex
import shutil
from functools import cache
from typing import TYPE_CHECKING, Any, get_args

import pytest
from command import traceq
from conftest import ROOT
from msgspec.structs import replace
from recordings import by_trace

import traceq as package
from traceq.agent.skill_files import NAMES, skill
from traceq.model.finding import Doubt, Place
from traceq.report.base.tokens import cut, most_tokens
from traceq.report.lint import agent, sarif
from traceq.report.lint.next_steps import by_finding, verify

if TYPE_CHECKING:
    from pathlib import Path

    from traceq.api.lint import LintResult

FIXTURES = sorted(file.parent for file in (ROOT / "fixtures").rglob("findings.json"))
BY_NAME = by_trace(
    {path.relative_to(ROOT / "fixtures").as_posix(): path for path in FIXTURES}
)
LOOP = ROOT / "fixtures" / "lines" / "optimizer_loop_sync"


def root_of(folder: Path) -> Path:
    """Return where the source of a fixture is."""
    return folder if (folder / "train.py").exists() else ROOT


@cache
def linted(folder: Path) -> LintResult:
    return package.lint(folder, root=root_of(folder), tables=False)


def data(folder: Path) -> list[dict[str, Any]]:
    """Return the findings of a fixture in JSON."""
    (recording,) = json.loads(linted(folder).json())["recordings"]
    result: list[dict[str, Any]] = recording["findings"]
    return result


def exact_tokens(text: str) -> int:
    """Return the tokens of a text in cl100k_base; skip without its vocabulary."""
    tiktoken: Any = pytest.importorskip("tiktoken")
    try:
        return len(tiktoken.get_encoding("cl100k_base").encode(text))
    except Exception as error:  # noqa: BLE001 - of the network
        pytest.skip(f"no vocabulary: {type(error).__name__}")


@pytest.mark.real
@pytest.mark.parametrize("folder", BY_NAME)
def test_a_finding_takes_at_most_300_tokens_and_five_2000(folder: Path) -> None:
    result = linted(folder)
    (outcome,), (edits,) = (
        result.report.outcomes,
        by_finding(result.report, result.proposals()),
    )
    texts = [
        agent.finding_text(1, finding, outcome, edits.get(finding.fingerprint))
        for finding in outcome.findings
    ]

    assert max(map(most_tokens, texts)) <= 300
    assert most_tokens(result.agent()) <= 2_000


@pytest.mark.real
@pytest.mark.parametrize("folder", BY_NAME)
def test_the_estimate_of_tokens_is_no_less_than_they_are(folder: Path) -> None:
    text = linted(folder).agent(top=20)

    assert exact_tokens(text) <= most_tokens(text)


@pytest.mark.real
@pytest.mark.parametrize("folder", BY_NAME)
def test_a_certain_edit_is_of_the_file_and_parses(folder: Path) -> None:
    for finding in data(folder):
        edit = finding["edit"]
        if not edit or edit["kind"] != "certain":
            continue
        for hunk in (edit, *edit.get("also", ())):
            text = (root_of(folder) / hunk["file"]).read_text(encoding="utf-8")
            lines, before = text.splitlines(), hunk["before"].splitlines()
            first = hunk["line"] - 1
            assert lines[first : first + len(before)] == before
            lines[first : first + len(before)] = hunk["after"].splitlines()
            ast.parse("\n".join(lines))


@pytest.mark.slow
def test_json_is_at_most_two_and_a_half_times_the_text() -> None:
    sizes = [
        (len(result.json().encode()), len(result.text(verbose=True).encode()))
        for result in map(linted, FIXTURES)
    ]

    # What JSON has of each recording is more than half of a text of one small finding.
    larger = [data / text for data, text in sizes if text > 2_500]
    assert max(larger) <= 2.5
    assert sum(size for size, _ in sizes) <= 2.2 * sum(size for _, size in sizes)


@pytest.mark.real
def test_sarif_of_three_findings_is_small() -> None:
    result = linted(ROOT / "fixtures" / "attn_mask_fmha")
    text = sarif.render(result.report, result.rules, ROOT, result.proposals())

    assert len(result.findings) == 3
    assert len(text) <= 40_000


@pytest.mark.real
def test_certain_edits_are_fixes_in_sarif() -> None:
    result = linted(LOOP)
    text = sarif.render(result.report, result.rules, ROOT, result.proposals())
    (run,) = json.loads(text)["runs"]

    (fixed,) = [item for item in run["results"] if "fixes" in item]
    ((change,),) = [fix["artifactChanges"] for fix in fixed["fixes"]]
    (replacement,) = change["replacements"]
    region = replacement["deletedRegion"]
    line = (ROOT / change["artifactLocation"]["uri"]).read_text().splitlines()[20]
    assert fixed["ruleId"] == "LCH003"
    assert (region["startLine"], region["endColumn"]) == (21, len(line) + 1)
    assert "fused=True" in replacement["insertedContent"]["text"]


@pytest.mark.real
def test_findings_say_how_to_prove_their_fix() -> None:
    by_code = {entry["code"]: entry for entry in data(LOOP)}

    assert by_code["LCH003"]["remedy"] == "fused_optimizer"
    assert by_code["LCH003"]["verify"].startswith("traceq check ")
    assert by_code["SYN001"]["remedy"] is None


@pytest.mark.real
def test_a_remedy_is_tried_and_anything_else_compared(tmp_path: Path) -> None:
    trace = shutil.copy(LOOP / "trace.json.gz", tmp_path)
    result = package.lint(trace, root=ROOT, tables=False)
    (recording,) = json.loads(result.json())["recordings"]
    proofs = {finding["code"]: finding["verify"] for finding in recording["findings"]}

    assert proofs["LCH003"] == (
        "traceq try --only LCH003 -- python fixtures/programs/optimizer_loop_sync.py"
    )
    assert proofs["SYN001"] == f"traceq diff {trace} NEW_RUN"


@pytest.mark.real
@pytest.mark.parametrize(
    ("command", "program"),
    [
        (["python3", "my train.py", "--size", "8"], "python3 'my train.py' --size 8"),
        (
            ["torchrun", "--nproc-per-node=2", "t.py"],
            "torchrun --nproc-per-node=2 t.py",
        ),
        (["python", "-c", "import os"], "PROGRAM"),
        (["rm", "-rf", "x"], "PROGRAM"),
        (None, "PROGRAM"),
    ],
)
def test_a_program_is_tried_as_it_was_recorded(
    tmp_path: Path, command: list[str] | None, program: str
) -> None:
    manifest = {"format": 1} | ({"command": command} if command else {})
    (tmp_path / "run.json").write_text(json.dumps(manifest), encoding="utf-8")
    (outcome,) = linted(LOOP).report.outcomes
    (finding,) = [item for item in outcome.findings if item.code == "LCH003"]
    inside = Place("scheduler.py", 1, "run_scheduler")
    of_run = replace(outcome, name=str(tmp_path), entry=inside)

    assert verify(finding, of_run) == f"traceq try --only LCH003 -- {program}"


@pytest.mark.real
@pytest.mark.slow
def test_the_most_valuable_findings_come_first() -> None:
    text = linted(ROOT / "fixtures" / "tutorial" / "0").agent(top=3)

    assert re.findall(r"^\[\d\] (\w+)", text, re.MULTILINE) == [
        "CPY003",
        "CPY002",
        "LCH004",
    ]
    assert "findings: 7, 4 not shown (--top), 3 minor" in text


@pytest.mark.real
@pytest.mark.slow
def test_the_text_for_agents_is_always_the_same() -> None:
    once, again = (package.lint(LOOP, root=ROOT, cache=False).agent() for _ in range(2))

    assert once == again
    assert once.endswith(f"next: traceq fix {LOOP} --only LCH003 --diff\n")


def test_top_is_of_the_format_for_agents() -> None:
    assert traceq("lint", LOOP, "--top", "3").status == 2


@pytest.mark.real
def test_what_could_not_be_checked_is_said(tmp_path: Path) -> None:
    trace = shutil.copy(ROOT / "fixtures" / "recompile" / "trace.json.gz", tmp_path)

    assert "\nnot checked: " in package.lint(trace, tables=False).agent()


@pytest.mark.parametrize(
    ("text", "most"), [("one two three four five", 4), ("ä ä ä ä ä", 9)]
)
def test_a_text_is_cut_to_its_tokens(text: str, most: int) -> None:
    shown = cut(text, most)

    assert shown.endswith("…")
    assert most_tokens(shown) <= most


def page() -> str:
    return (ROOT / "docs" / "agents.md").read_text(encoding="utf-8")


def block_of(mark: str) -> str:
    (block,) = re.findall(rf"<!-- {mark} -->\n```\w+\n(.*?)```", page(), re.DOTALL)
    return str(block)


@cache
def concise_lines() -> list[str]:
    return traceq("lint", LOOP, "--format", "concise", "--root", ROOT).lines


@pytest.mark.real
def test_a_problem_matcher_reads_every_finding() -> None:
    block = block_of("problem-matcher")
    pattern = json.loads(block)["tasks"][0]["problemMatcher"]["pattern"]
    matches = [re.match(pattern["regexp"], line) for line in concise_lines()]
    result = [match for match in matches if match]

    keys = ("file", "line", "column", "code")
    assert [tuple(match[pattern[key]] for key in keys) for match in result] == [
        ("fixtures/programs/optimizer_loop_sync.py", "29", "9", "LCH003"),
        ("fixtures/programs/optimizer_loop_sync.py", "1", "1", "LCH002"),
        ("fixtures/programs/optimizer_loop_sync.py", "30", "9", "SYN001"),
    ]
    assert result[0][pattern["message"]].startswith("AdamW updates 48 parameters")


@pytest.mark.real
def test_an_errorformat_of_vim_reads_every_finding() -> None:
    (form,) = re.findall(r"set errorformat=(.*)", block_of("errorformat"))
    first, rest = form.replace("\\ ", " ").split(",")
    parts = {"%f": r"(?P<f>.+?)", "%l": r"(?P<l>\d+)", "%c": r"(?P<c>\d+)"}
    pattern = re.escape(first).replace(re.escape("%m"), "(?P<m>.+)")
    for name, expression in parts.items():
        pattern = pattern.replace(re.escape(name), expression)
    matches = [re.fullmatch(pattern, line) for line in concise_lines()]

    assert rest == "%-G%.%#"
    assert [match["l"] for match in matches if match] == ["29", "1", "30"]


def test_the_guide_is_one_screen() -> None:
    lines = traceq("agent", "guide").lines

    assert 10 < len(lines) <= 40
    assert all(len(line) <= 120 for line in lines)


def test_a_skill_is_installed_once(tmp_path: Path) -> None:
    statuses = [traceq("agent", "install", tmp_path).status for _ in range(2)]

    assert statuses == [0, 0]
    assert sorted(path.name for path in (tmp_path / "traceq").iterdir()) == sorted(
        NAMES
    )


def test_a_changed_skill_is_not_overwritten(tmp_path: Path) -> None:
    traceq("agent", "install", tmp_path)
    (tmp_path / "traceq" / "SKILL.md").write_text("mine", encoding="utf-8")
    answer = traceq("agent", "install", tmp_path)

    assert answer.status == 2
    assert (tmp_path / "traceq" / "SKILL.md").read_text(encoding="utf-8") == "mine"


def test_the_fields_of_the_skill_are_those_of_the_page() -> None:
    rows = {re.split(r" \| ", line)[0] for line in page().splitlines()}
    fields = skill()["fields.md"].decode().splitlines()

    assert {re.split(r" \| ", line)[0] for line in fields if line[:3] == "| `"} <= rows


def test_the_fields_explain_every_doubt() -> None:
    (row,) = [line for line in page().splitlines() if line.startswith("| `doubt:`")]

    assert all(f"`{doubt}`" in row for doubt in get_args(Doubt) if doubt)


@pytest.mark.real
def test_an_edit_that_saves_only_after_others_is_not_next() -> None:
    text = linted(ROOT / "fixtures" / "twins" / "forward_hooks_fixed").agent()

    assert "\ndoubt: later\n" in text
    assert "\nedit: certain fixtures/programs/forward_hooks.py" in text
    assert "\nnext: fix [1], then traceq check " in text


@pytest.mark.real
@pytest.mark.slow
def test_the_commands_of_the_skill_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "traceq-runs" / "first"
    shutil.copytree(ROOT / "tests" / "data" / "compiled" / "transformer", run)
    (tmp_path / ".git").mkdir()
    monkeypatch.chdir(tmp_path)
    text = "\n".join(item.decode() for item in skill().values())
    blocks = re.findall(r"```\n(.*?)```", text, re.DOTALL)
    lines = [line.strip() for block in blocks for line in block.strip().splitlines()]

    assert len(lines) >= 9
    for line in lines:
        words = [str(run) if "RUN" in part else part for part in shlex.split(line)[1:]]
        answer = traceq(*words)
        assert answer.status in (0, 1), f"{line}: {answer.err}"
