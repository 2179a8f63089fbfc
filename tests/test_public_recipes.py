"""Recipes of public programs: complete, and built from a repository's commit."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from conftest import ROOT

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(sys.version_info < (3, 11), reason="the script has tomllib"),
]

PUBLIC = ROOT / "benchmarks" / "public"
RECIPES = sorted((PUBLIC / "recipes").glob("*/recipe.toml"))


def read(file: Path) -> dict[str, Any]:
    import tomllib  # type: ignore[import-not-found]  # noqa: PLC0415 - since 3.11

    return tomllib.loads(file.read_text(encoding="utf-8"))


@pytest.mark.parametrize("file", RECIPES, ids=lambda file: file.parent.name)
def test_a_recipe_says_where_its_program_comes_from(file: Path) -> None:
    recipe = read(file)

    assert recipe["repository"].startswith("https://github.com/")
    assert re.fullmatch("[0-9a-f]{40}", recipe["commit"])
    assert recipe["license"]
    assert recipe["changed"]
    assert recipe["command"][0] == "python3"


def git(repository: Path, *words: str) -> str:
    own = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
    return subprocess.run(
        ["git", "-C", str(repository), *own, *words],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    """Return the folder of a recipe of a program in a mirror beside it."""
    repository = tmp_path / "mirror" / "someone+program" / "repo"
    (repository / "src").mkdir(parents=True)
    git(repository, "init", "--quiet")
    (repository / "src" / "train.py").write_text("steps = 10\nprint(steps)\n")
    git(repository, "add", ".")
    git(repository, "commit", "--quiet", "--message", "first")
    commit = git(repository, "rev-parse", "HEAD")
    (repository / "src" / "train.py").write_text("steps = 20\n")
    folder = tmp_path / "program"
    folder.mkdir()
    (folder / "data.py").write_text("SIZE = 8\n")
    (folder / "recipe.toml").write_text(
        'repository = "https://github.com/someone/program"\n'
        f'commit = "{commit}"\nfolder = "src"\ncommand = ["python3", "train.py"]\n'
        '[[edits]]\nfile = "train.py"\nold = "steps = 10"\nnew = "steps = 30"\n'
    )
    return folder


def build(recipe: Path) -> Path:
    """Return the program that the recipe makes."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); from pathlib import Path;"
        " from build import build; build(*map(Path, sys.argv[2:]))"
    )
    corpus = recipe.parent / "corpus"
    words = [recipe, corpus, recipe.parent / "mirror"]
    subprocess.run(
        [sys.executable, "-c", code, str(PUBLIC), *map(str, words)], check=True
    )
    return corpus / recipe.name


def test_a_program_is_that_of_its_commit_with_edits_and_our_files(recipe: Path) -> None:
    program = build(recipe)

    assert (program / "train.py").read_text() == "steps = 30\nprint(steps)\n"
    assert {file.name for file in program.iterdir()} == {
        *("data.py", "program.toml", "train.py")
    }


def test_an_edit_of_what_is_not_there_is_refused(recipe: Path) -> None:
    file = recipe / "recipe.toml"
    file.write_text(file.read_text().replace("steps = 10", "steps = 11"))

    with pytest.raises(subprocess.CalledProcessError):
        build(recipe)


def test_a_folder_that_is_not_of_a_recipe_is_left_alone(recipe: Path) -> None:
    work = recipe.parent / "corpus" / recipe.name / "notes.txt"
    work.parent.mkdir(parents=True)
    work.write_text("mine")

    with pytest.raises(subprocess.CalledProcessError):
        build(recipe)
    assert work.exists()


def test_a_program_is_built_again_in_place_of_itself(recipe: Path) -> None:
    build(recipe)

    assert (build(recipe) / "program.toml").exists()
