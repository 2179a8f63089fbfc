"""Examples of the README and the docs, compared with what happens."""

from __future__ import annotations

import ast
import contextlib
import io
import re
from typing import TYPE_CHECKING

import pytest
from command import traceq
from conftest import ROOT
from goldens import assert_block

if TYPE_CHECKING:
    from pathlib import Path

README = (ROOT / "README.md").read_text(encoding="utf-8")
DOCS = {
    file.name: file.read_text(encoding="utf-8") for file in (ROOT / "docs").glob("*.md")
}
DEMO = "fixtures/attn_mask_fmha/trace.json.gz"


@pytest.fixture(autouse=True)
def _in_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


@pytest.mark.real
@pytest.mark.golden
def test_the_demo_is_what_lint_prints() -> None:
    assert_block("demo", traceq("lint", "--fail-on", "error", DEMO, width=80).out)


@pytest.mark.golden
def test_the_table_of_rules_is_what_the_rules_are() -> None:
    assert_block("rules", traceq("rules", "--format", "markdown").out)


def test_the_rule_that_the_page_on_rules_shows_passes_its_own_examples(
    tmp_path: Path,
) -> None:
    page = (ROOT / "rules" / "README.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "sort_in_step.py").write_text(code)

    assert traceq("test", tmp_path).out == "2 of 2 examples hold\n"


@pytest.mark.real
def test_the_configuration_that_the_page_on_lint_shows_is_accepted(
    tmp_path: Path,
) -> None:
    (text,) = re.findall(
        r"^```toml\n(.*?)^```$", DOCS["lint.md"], re.MULTILINE | re.DOTALL
    )
    (tmp_path / "traceq.toml").write_text(text)
    (tmp_path / "ci" / "my_rules").mkdir(parents=True)

    answer = traceq("lint", DEMO, "--config", tmp_path / "traceq.toml")

    assert "ATT001" in answer.out
    assert answer.status == 1


def test_make_demo_runs_that_lint() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")

    assert re.search(
        rf"^demo:.*\n\t\$\(BIN\)/traceq lint --fail-on error {DEMO}$",
        makefile,
        re.MULTILINE,
    )


def test_the_python_example_prints_what_its_comments_say() -> None:
    *_, code = re.findall(
        r"^```python\n(.*?)^```$", DOCS["python.md"], re.MULTILINE | re.DOTALL
    )
    said = [
        comment
        for line in code.splitlines()
        if (comment := line.partition("# ")[2]) and not line.startswith("graph")
    ]
    printed = io.StringIO()

    with contextlib.redirect_stdout(printed):
        exec(compile(code, "README.md", "exec"), {})  # noqa: S102 - our own page

    assert said
    assert printed.getvalue().splitlines() == said
    assert ast.literal_eval(said[0])


def commands() -> list[str]:
    """Return the commands that the README and the page on commands call by name."""
    called = re.findall(
        r"(?:^|`)traceq ([a-z]+(?: (?:clear|info))?)",
        README + DOCS["commands.md"],
        re.MULTILINE,
    )
    return sorted(set(called))


@pytest.mark.parametrize("command", commands())
def test_every_command_that_is_named_exists(command: str) -> None:
    assert traceq(*command.split(), "--help").status == 0


def test_the_page_on_commands_names_those_there_are() -> None:
    there = {"lint", "rules", "rule", "test", "summary", "memory", "query", "schema"}
    there |= {"check", "shrink", "ranks", "regions", "roofline", "report"}
    there |= {"annotate", "open", "demo", "try", "sweep", "fix", "agent", "history"}
    assert there | {"collect", "diff", "cache clear"} == set(commands())


def test_every_environment_variable_is_one_that_traceq_reads() -> None:
    named = set(re.findall(r"`(TRACEQ_\w+)`", DOCS["lint.md"]))
    code = "".join(
        file.read_text(encoding="utf-8")
        for folder in ("traceq", "collect")
        for file in (ROOT / folder).rglob("*.py")
    )

    assert {"TRACEQ_CACHE", "TRACEQ_CACHE_MB", "TRACEQ_TRACEBACK"} <= named
    assert all(f'"{name}"' in code for name in named)


def test_every_folder_of_the_map_exists() -> None:
    named = re.findall(
        r"^(traceq/\w+/|rules/|collect/) *", DOCS["how-it-works.md"], re.MULTILINE
    )

    assert len(named) > 5
    assert all((ROOT / name).is_dir() for name in named)


@pytest.mark.parametrize(
    "page",
    [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("rules/*.md"),
        *ROOT.glob("collect/*.md"),
        *ROOT.glob("fixtures/**/*.md"),
        *ROOT.glob("benchmarks/**/*.md"),
    ],
    ids=lambda page: page.relative_to(ROOT).as_posix(),
)
def test_every_link_within_the_repository_leads_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    linked = re.findall(r"\]\((?!https?:|#)([^)#\s]+)", text)

    # The gallery's reports are made with the pages; `make docs` holds these links.
    made = page.name == "gallery.md"
    lost = [link for link in linked if not (page.parent / link).exists()]
    assert [link for link in lost if not (made and link.startswith("gallery/"))] == []
