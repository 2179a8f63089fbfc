"""`traceq fix`: diffs, files that it writes, and what it refuses to touch."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from command import traceq
from conftest import ROOT
from fixing import FILE, Case, finding_of, proposal

from traceq.common.git_repository import read_repository
from traceq.fix.diff import render
from traceq.fix.propose import RecordedProgram, combine, propose
from traceq.fix.remedies import EDITS
from traceq.model.finding import Place
from traceq.report.repository_paths import located_finding

if TYPE_CHECKING:
    from pathlib import Path

    from traceq.fix.edit import Proposal
    from traceq.fix.propose import Changed

TUTORIAL = ROOT / "fixtures" / "tutorial" / "0"
ADAMW = Case(
    "",
    "LCH004",
    "opt.step()",
    "import torch\nopt = torch.optim.AdamW(ps)\nopt.step()\n",
)
LOADER = Case(
    "",
    "DAT001",
    "for x in",
    "from torch.utils.data import DataLoader\n"
    "loader = DataLoader(data, num_workers=2)\n"
    "for x in loader:\n"
    "    x = x.to('cuda')\n",
)


def git(folder: Path, *words: str) -> None:
    names = ("-c", "user.name=x", "-c", "user.email=x@x")
    subprocess.run(["git", "-C", folder, *names, *words], check=True)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return a repository with a program and its recording."""
    folder = tmp_path / "project"
    folder.mkdir()
    for name in ("train.py", "trace.json.gz"):
        shutil.copy(TUTORIAL / name, folder / name)
    git(folder, "init", "--quiet")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "Start")
    return folder


def fix(project: Path, *words: str) -> tuple[int, str, str]:
    trace = project / "trace.json.gz"
    answer = traceq("fix", trace, "--root", project, *words)
    return answer.status, answer.out, answer.err


def edited(folder: Path, case: Case, copy: str | None = None) -> Proposal:
    """Return the edit of the program that is in a folder."""
    text = (folder / FILE).read_text(encoding="utf-8") if copy is None else copy
    repository = read_repository(folder)
    finding = located_finding(finding_of(case, text), repository)
    return propose([finding], repository, RecordedProgram({FILE: text}))[0]


def together(folder: Path, *cases: Case) -> tuple[list[Proposal], list[Changed]]:
    text = (folder / FILE).read_text(encoding="utf-8")
    repository = read_repository(folder)
    findings = [located_finding(finding_of(case, text), repository) for case in cases]
    return combine(propose(findings, repository, RecordedProgram({FILE: text})), folder)


def test_the_diff_is_one_that_git_applies(project: Path) -> None:
    _, diff, _ = fix(project, "--only", "LCH004")
    (project / "fix.patch").write_text(diff, encoding="utf-8")
    git(project, "apply", "fix.patch")

    assert "lr=1e-4, fused=True)" in (project / FILE).read_text(encoding="utf-8")


def test_a_diff_changes_no_file(project: Path) -> None:
    before = (project / FILE).read_bytes()
    fix(project, "--diff", "--only", "LCH004")

    assert (project / FILE).read_bytes() == before


def test_write_edits_one_line(project: Path) -> None:
    before = (project / FILE).read_text(encoding="utf-8").splitlines()
    status, out, _ = fix(project, "--write", "--only", "LCH004")
    after = (project / FILE).read_text(encoding="utf-8").splitlines()

    changed = [one for one, other in zip(before, after, strict=True) if one != other]
    assert (status, out) == (0, "train.py: 1 edit, LCH004 fused_optimizer\n")
    assert len(changed) == 1


def test_an_edit_that_is_refused_is_named_and_fails(project: Path) -> None:
    status, _, err = fix(project)

    assert status == 1
    assert "CPY003 not edited: `batch` in train.py is not a batch" in err


def test_write_refuses_a_changed_tree(project: Path) -> None:
    text = (project / FILE).read_text(encoding="utf-8")
    (project / FILE).write_text(f"{text}# more\n", encoding="utf-8")
    status, _, err = fix(project, "--write", "--only", "LCH004")

    assert status == 2
    assert "needs a clean git tree: commit or stash train.py first" in err


def test_write_refuses_a_file_that_git_cannot_restore(project: Path) -> None:
    git(project, "rm", "--quiet", "--cached", "train.py")
    git(project, "commit", "--quiet", "--message", "Forget it")
    status, _, err = fix(project, "--write", "--only", "LCH004")

    assert status == 2
    assert "train.py is not in it" in err


def test_write_needs_a_repository(project: Path) -> None:
    shutil.rmtree(project / ".git")
    status, _, err = fix(project, "--write", "--only", "LCH004")

    assert status == 2
    assert "is in no repository" in err


def test_diff_and_write_exclude_each_other(project: Path) -> None:
    assert fix(project, "--write", "--diff")[0] == 2


@pytest.mark.parametrize(
    ("name", "words"),
    [("MEM999", "no finding has this"), ("CPY002", "its fix needs a decision")],
)
def test_only_names_a_finding_with_an_edit(
    project: Path, name: str, words: str
) -> None:
    status, _, err = fix(project, "--only", name)

    assert status == 2
    assert words in err


def test_only_takes_names_of_edits(project: Path) -> None:
    assert "fused=True" in fix(project, "--only", "fused_optimizer")[1]


def test_a_missing_package_is_named(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "libcst", None)
    status, _, err = fix(project)

    assert status == 2
    assert "pip install 'torch-traceq[fix]'" in err


def test_a_function_that_moved_is_refused(project: Path) -> None:
    text = (project / FILE).read_text(encoding="utf-8")
    moved = text.replace("def main", "\n" * 30 + "def main")
    (project / FILE).write_text(moved, encoding="utf-8")
    status, out, err = fix(project, "--only", "LCH004")

    assert (status, out) == (1, "")
    assert "record it again" in err


@pytest.mark.parametrize("code", EDITS)
def test_a_finding_without_a_file_has_no_edit(tmp_path: Path, code: str) -> None:
    finding = finding_of(replace(ADAMW, code=code), ADAMW.before)
    nowhere = replace(finding, place=Place(), advice="pass validate_args=False")
    (edit,) = propose([nowhere], read_repository(tmp_path))

    assert not edit.hunks
    assert edit.refusal.startswith("the recording does not s")


def test_a_file_that_changed_since_it_ran_is_refused(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(ADAMW.before + "# more\n", encoding="utf-8")

    refused = edited(tmp_path, ADAMW, ADAMW.before).refusal

    assert refused == "train.py has changed since it was recorded: record it again"


def test_line_ends_are_kept(tmp_path: Path) -> None:
    case = replace(ADAMW, before=ADAMW.before.replace("ps", "\n    ps,\n"))
    text = case.before.replace("\n", "\r\n")
    (tmp_path / FILE).write_bytes(text.encode())

    (changed,) = together(tmp_path, case)[1]

    assert changed.content.count(b"\r\n") == changed.content.count(b"\n")
    assert b"    ps,\r\n    fused=True,\r\n)" in changed.content


@pytest.mark.parametrize(
    ("head", "encoding"),
    [("# coding: latin-1\n# ü\n", "latin-1"), ("\ufeff# ü\n", "utf-8")],
)
def test_encodings_are_kept(tmp_path: Path, head: str, encoding: str) -> None:
    text = head + ADAMW.before
    (tmp_path / FILE).write_bytes(text.encode(encoding))
    repository = read_repository(tmp_path)
    finding = located_finding(finding_of(ADAMW, text), repository)

    _, (changed,) = combine(
        propose([finding], repository, RecordedProgram({FILE: text})), tmp_path
    )

    assert changed.content == text.replace("(ps)", "(ps, fused=True)").encode(encoding)


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"# \xff\n" + ADAMW.before.encode())

    assert "encoding" in edited(tmp_path, ADAMW, f"\n{ADAMW.before}").refusal


def test_a_link_out_of_the_project_is_refused(tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    (tmp_path / "other.py").write_text(ADAMW.before, encoding="utf-8")
    (inside / FILE).symlink_to("../other.py")

    assert "outside of" in edited(inside, ADAMW).refusal


def test_a_link_inside_of_the_project_stays_one(project: Path) -> None:
    (project / "real.py").write_bytes((project / FILE).read_bytes())
    (project / FILE).unlink()
    (project / FILE).symlink_to("real.py")
    git(project, "add", "--all")
    git(project, "commit", "--quiet", "--message", "Link")

    status, _, _ = fix(project, "--write", "--only", "LCH004")

    assert status == 0
    assert (project / FILE).is_symlink()
    assert "fused=True" in (project / "real.py").read_text(encoding="utf-8")


def test_the_mode_of_a_file_is_kept(project: Path) -> None:
    (project / FILE).chmod(0o755)
    git(project, "commit", "--quiet", "--all", "--message", "Executable")
    fix(project, "--write", "--only", "LCH004")

    assert (project / FILE).stat().st_mode & 0o777 == 0o755


def test_a_program_is_never_run(tmp_path: Path) -> None:
    text = f"open({str(tmp_path / 'ran')!r}, 'w')\n{ADAMW.before}"
    (tmp_path / FILE).write_text(text, encoding="utf-8")

    assert not edited(tmp_path, replace(ADAMW, before=text)).refusal
    assert not (tmp_path / "ran").exists()


def test_a_file_with_wrong_syntax_is_refused(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(f"{ADAMW.before})\n", encoding="utf-8")

    assert "cannot be parsed" in edited(tmp_path, ADAMW).refusal


def test_two_edits_of_one_call_are_made_together(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(LOADER.before, encoding="utf-8")
    copies = replace(LOADER, code="CPY003", at="x.to(")

    proposals, (changed,) = together(tmp_path, LOADER, copies)

    assert not any(item.refusal for item in proposals)
    assert (
        "DataLoader(data, num_workers=2, persistent_workers=True, pin_memory=True)"
        in changed.after
    )
    assert "x.to('cuda', non_blocking=True)" in changed.after


def test_a_line_without_an_end_is_marked_in_the_diff(tmp_path: Path) -> None:
    case = replace(ADAMW, at="opt.zero", before="opt.zero_grad()", torch="1.13")
    made, _ = proposal(replace(case, code="LCH002"), tmp_path)

    assert made.hunks[0].after == "opt.zero_grad(set_to_none=True)"
    (changed,) = combine([made], tmp_path)[1]
    assert render([changed]).count("No newline at end of file") == 2
