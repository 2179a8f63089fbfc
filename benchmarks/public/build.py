"""Corpus of public programs: each from its repository, with the edits of its recipe.

    python benchmarks/public/build.py CORPUS [--mirror FOLDER] [NAME ...]

A recipe is a folder in recipes/ with ``recipe.toml`` and files of ours (synthetic data,
stand-ins for packages) that are copied beside the program's. CORPUS/NAME is then what
benchmarks/fresh/record.py runs. Repositories are cloned from GitHub, or taken from
FOLDER/OWNER+NAME/repo. Needs git, and Python 3.11 alone.
"""

from __future__ import annotations

import argparse
import io
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import tomllib  # type: ignore[import-not-found]  # Python 3.11 has it

RECIPES = Path(__file__).resolve().parent / "recipes"


def _repository(url: str, mirror: Path | None, scratch: Path) -> Path:
    """Return a repository with git's objects, without a work tree."""
    owner, name = url.rstrip("/").split("/")[-2:]
    if mirror is not None:
        return mirror / f"{owner}+{name}" / "repo"
    clone = scratch / name
    words = ["git", "clone", "--quiet", "--bare", "--filter=blob:none", url, str(clone)]
    subprocess.run(words, check=True)
    return clone


def _extract(repository: Path, recipe: dict[str, Any], target: Path) -> None:
    """Write the files of the recipe's commit, or those of its ``folder``."""
    paths = recipe.get("paths", [])
    words = ["git", "-C", str(repository), "archive", recipe["commit"], *paths]
    archive = subprocess.run(words, check=True, stdout=subprocess.PIPE).stdout
    with tempfile.TemporaryDirectory() as scratch:
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            tar.extractall(scratch, filter="data")
        shutil.copytree(Path(scratch, recipe.get("folder", ".")), target)


def _edit(target: Path, edit: dict[str, str]) -> None:
    file = target / edit["file"]
    text = file.read_text(encoding="utf-8")
    if edit["old"] not in text:
        sys.exit(f"{file}: {edit['old']!r} is not in it")
    file.write_text(text.replace(edit["old"], edit["new"]), encoding="utf-8")


def build(folder: Path, corpus: Path, mirror: Path | None) -> None:
    """Write the program of one recipe to ``corpus``, in place of an earlier one."""
    recipe = tomllib.loads((folder / "recipe.toml").read_text(encoding="utf-8"))
    target = corpus / folder.name
    if target.exists() and not (target / "program.toml").exists():
        sys.exit(f"{target} is not of a recipe: name another folder")
    shutil.rmtree(target, ignore_errors=True)
    with tempfile.TemporaryDirectory() as scratch:
        repository = _repository(recipe["repository"], mirror, Path(scratch))
        _extract(repository, recipe, target)
    for edit in recipe.get("edits", []):
        _edit(target, edit)
    shutil.copytree(folder, target, dirs_exist_ok=True)
    (target / "recipe.toml").rename(target / "program.toml")


def main() -> None:
    """Build the programs that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--mirror", type=Path, help="folder of bare repositories")
    options = parser.parse_intermixed_args()
    options.corpus.mkdir(parents=True, exist_ok=True)
    for folder in sorted(path.parent for path in RECIPES.glob("*/recipe.toml")):
        if not options.names or folder.name in options.names:
            build(folder, options.corpus, options.mirror)
            print(folder.name, flush=True)


if __name__ == "__main__":
    main()
