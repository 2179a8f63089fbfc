"""Programs that `traceq check` runs by itself, and those it runs only with --run."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest
from command import traceq
from conftest import ROOT

from traceq.check.fixture import read_fixture
from traceq.check.own_program import is_own, whose_change, why_not_as_in
from traceq.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

NEEDS_TORCH = pytest.mark.skipif(find_spec("torch") is None, reason="needs torch")
CLEAN = ROOT / "fixtures" / "twins" / "copies_fixed"
EMPTY = '{"version":1,"torch":"","stacks":true,"calls":[]}'


def git(folder: Path, *words: str) -> str:
    named = ("-c", "user.name=a", "-c", "user.email=a@b")
    done = subprocess.run(
        ["git", *named, *words], cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


class Project:
    """A repository with a fixture whose program leaves a file behind if it runs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.fixture = folder / "fixtures" / "train"
        shutil.copytree(CLEAN, self.fixture)
        (self.fixture / "cpu.json").write_text(EMPTY)
        (folder / "train.py").write_text("open('ran', 'w')\n")
        self.write_origin("train.py")
        git(folder, "init", "--quiet")

    def write_origin(self, program: str) -> None:
        output = (CLEAN / "origin.toml").read_text(encoding="utf-8")
        command = json.dumps([sys.executable, program])
        text = f"command = {command}\n{output}"
        (self.fixture / "origin.toml").write_text(text, encoding="utf-8")

    def commit(self) -> str:
        git(self.folder, "add", ".")
        git(self.folder, "commit", "--quiet", "--message", "x")
        return git(self.folder, "rev-parse", "HEAD")

    @property
    def ran(self) -> bool:
        return (self.folder / "ran").exists()


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    for name in ("CI", "GITHUB_ACTIONS", "GITLAB_CI"):
        monkeypatch.delenv(name, raising=False)
    made = Project(tmp_path / "mine")
    monkeypatch.chdir(made.folder)
    return made


@NEEDS_TORCH
def test_a_program_of_this_repository_is_run(project: Project) -> None:
    project.commit()

    answer = traceq("check")

    assert project.ran
    assert "running" in answer.err
    # It made no steps, and so there was nothing to compare.
    assert answer.status == 2


def test_no_run_runs_nothing_and_says_nothing_of_it(project: Project) -> None:
    project.commit()

    answer = traceq("check", "--no-run")

    assert (answer.status, project.ran) == (0, False)


@NEEDS_TORCH
def test_a_fixture_that_git_does_not_have_is_only_linted(project: Project) -> None:
    answer = traceq("check")

    assert (answer.status, project.ran) == (0, False)
    text = " ".join(answer.out.split())
    assert "linted 1 committed trace; ran no program: git has no origin.toml" in text


@NEEDS_TORCH
def test_a_fixture_of_another_repository_is_only_linted(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.commit()
    other = tmp_path / "other"
    other.mkdir()
    git(other, "init", "--quiet")
    monkeypatch.chdir(other)

    answer = traceq("check", project.fixture)

    assert (answer.status, project.ran) == (0, False)


def test_a_link_to_another_repository_is_not_our_own(
    project: Project, tmp_path: Path
) -> None:
    project.commit()
    other = tmp_path / "other"
    other.mkdir()
    git(other, "init", "--quiet")
    (other / "fixtures").symlink_to(project.folder / "fixtures")
    git(other, "add", ".")

    assert not is_own(other / "fixtures" / "train", other)


@NEEDS_TORCH
def test_a_change_of_a_fork_is_only_linted(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.commit()
    event = project.folder / "event.json"
    event.write_text(pull_request("stranger/mine", "me/mine"))
    for name, value in github("pull_request", event).items():
        monkeypatch.setenv(name, value)

    answer = traceq("check")

    assert (answer.status, project.ran) == (0, False)
    assert "this is a pull request of a fork" in " ".join(answer.out.split())


def test_run_runs_what_is_not_in_the_repository(project: Project) -> None:
    traceq("check", "--run")

    assert project.ran


def test_run_that_runs_nothing_is_not_green(
    project: Project,
) -> None:
    shutil.copy(CLEAN / "origin.toml", project.fixture / "origin.toml")

    answer = traceq("check", "--run")

    assert answer.status == 2
    assert "no program was run" in answer.err


def test_json_says_why_a_program_was_not_run(project: Project) -> None:
    shutil.copy(CLEAN / "origin.toml", project.fixture / "origin.toml")

    (result,) = json.loads(traceq("check", "--format", "json").out)["fixtures"]

    assert result["not_run"] == "origin.toml has no command"


# The base of a pull request.


def test_base_runs_what_the_commit_defines(project: Project) -> None:
    commit = project.commit()
    # The program is what a change is about.
    (project.folder / "train.py").write_text("open('ran', 'w').write('changed')\n")

    traceq("check", "--run", "--base", commit)

    assert project.ran


def test_base_does_not_run_another_command(project: Project) -> None:
    commit = project.commit()
    (project.folder / "other.py").write_text("open('ran', 'w')\n")
    project.write_origin("other.py")
    project.commit()

    answer = traceq("check", "--run", "--base", commit)

    assert (answer.status, project.ran) == (2, False)
    assert "not run: origin.toml is not the one of" in " ".join(answer.out.split())


@pytest.mark.parametrize("commit", ["nowhere", "--batch", "HEAD:"])
def test_base_that_is_no_commit_runs_nothing(commit: str, project: Project) -> None:
    project.commit()

    assert why_not_as_in(commit, read_fixture(project.fixture))


def test_base_needs_a_repository(tmp_path: Path) -> None:
    (tmp_path / "origin.toml").write_text('command = "true"\n')

    with pytest.raises(UsageError, match="no git repository"):
        why_not_as_in("HEAD", read_fixture(tmp_path))


# Whose change it is.


def pull_request(head: str | None, base: str) -> str:
    repositories = {
        "head": {"repo": head and {"full_name": head}},
        "base": {"repo": {"full_name": base}},
    }
    return json.dumps({"pull_request": repositories})


def github(event: str, path: Path) -> dict[str, str]:
    return {
        "CI": "true",
        "GITHUB_ACTIONS": "true",
        "GITHUB_EVENT_NAME": event,
        "GITHUB_EVENT_PATH": str(path),
    }


@pytest.mark.parametrize(
    ("event", "head", "is_ours"),
    [
        ("push", None, True),
        ("pull_request", "me/mine", True),
        ("pull_request", "stranger/mine", False),
        ("pull_request", None, False),  # a fork that was deleted
        ("pull_request_target", "me/mine", False),
        ("workflow_run", "me/mine", False),
    ],
)
def test_a_change_on_github_is_known_by_its_repository(
    *, event: str, head: str | None, is_ours: bool, tmp_path: Path
) -> None:
    file = tmp_path / "event.json"
    file.write_text(pull_request(head, "me/mine"))

    assert (whose_change(github(event, file)) == "") == is_ours


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"pull_request": 1}'])
def test_an_event_that_says_nothing_is_of_a_stranger(
    content: str, tmp_path: Path
) -> None:
    file = tmp_path / "event.json"
    file.write_text(content)

    assert whose_change(github("pull_request", file))


@pytest.mark.parametrize(
    ("known", "is_ours"),
    [
        ({}, True),
        ({"CI": "1"}, False),
        ({"CI": "1", "GITLAB_CI": "1"}, True),
        (
            {
                "CI": "1",
                "GITLAB_CI": "1",
                "CI_MERGE_REQUEST_SOURCE_PROJECT_ID": "7",
                "CI_MERGE_REQUEST_PROJECT_ID": "3",
            },
            False,
        ),
    ],
)
def test_other_ci_is_ours_if_it_says_so(
    *, known: dict[str, str], is_ours: bool
) -> None:
    assert (whose_change(known) == "") == is_ours
