"""The wheel: one top-level name, with rules/ and collect/ inside it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest
from collecting import LOOP, QUICK
from conftest import ROOT

from traceq import __version__
from traceq.common import toml
from traceq.common.locations import bundled, demo_recordings
from traceq.errors import ConfigError

FOLDERS = ("rules", "collect")
with_bin = pytest.mark.skipif(os.name != "posix", reason="bin/ is called otherwise")
SOURCES = sorted((ROOT / "traceq").rglob("*.c"))
COMPILER, HEADERS = shutil.which("cc"), Path(sysconfig.get_path("include"))
compiled = pytest.mark.skipif(
    COMPILER is None or not (HEADERS / "Python.h").exists(),
    reason="there is no C compiler, or no header of Python",
)
NO_NETWORK = ("No matching distribution found", "Could not find a version")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel, as `pip install .` does."""
    folder = tmp_path_factory.mktemp("wheel")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "--no-deps",
            "--wheel-dir",
            folder,
            ROOT,
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if any(sentence in done.stderr for sentence in NO_NETWORK):
        pytest.skip("pip finds no hatchling to build with: there is no network")
    assert done.returncode == 0, done.stderr
    (built,) = folder.glob("*.whl")
    return built


def test_the_sdist_has_no_recordings_but_the_demo() -> None:
    content = toml.read(ROOT / "pyproject.toml", ConfigError)
    included = content["tool"]["hatch"]["build"]["targets"]["sdist"]["only-include"]

    files = [
        file
        for name in included
        for file in [ROOT / name, *(ROOT / name).rglob("*")]
        if file.is_file() and "__pycache__" not in file.parts
    ]

    assert {"traceq", "rules", "collect", "hatch_build.py"} <= {*included}
    assert sum(file.stat().st_size for file in files) < 8 << 20
    recordings = [file for file in files if file.suffix in {".gz", ".pickle"}]
    # Those of `traceq demo` are a part of the program.
    assert {file.parent for file in recordings} == {*demo_recordings().values()}


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel into an empty environment; return the environment."""
    environment = tmp_path_factory.mktemp("environment")
    venv.create(environment, with_pip=False)
    python = f"python{sys.version_info.major}.{sys.version_info.minor}"
    target = environment / "lib" / python / "site-packages"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(target)
    return environment


def run_installed(environment: Path, *arguments: str | Path, status: int = 0) -> str:
    """Run Python there, with the libraries of here, but not with this traceq."""
    done = subprocess.run(
        [environment / "bin" / "python", *arguments],
        # An editable install is found through a .pth file, which is not read here.
        env=os.environ
        | {
            "PYTHONPATH": sysconfig.get_path("purelib"),
            "OMP_NUM_THREADS": "1",
        },
        cwd=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == status, done.stderr
    return done.stdout


def files_below(folder: Path) -> set[str]:
    """Return the files in a folder, without what tools leave there."""
    paths = {file.relative_to(folder) for file in folder.rglob("*") if file.is_file()}
    left = ("__pycache__", ".ruff_cache", ".mypy_cache")
    return {file.as_posix() for file in paths if not set(file.parts) & set(left)}


@pytest.mark.slow
def test_the_wheel_has_one_top_level_name(wheel: Path) -> None:
    tops = {name.partition("/")[0] for name in zipfile.ZipFile(wheel).namelist()}

    assert tops == {"traceq", f"torch_traceq-{__version__}.dist-info"}


@pytest.mark.slow
@pytest.mark.parametrize("name", FOLDERS)
def test_the_wheel_carries_the_folder_whole(name: str, wheel: Path) -> None:
    inside = f"traceq/_bundled/{name}/"
    carried = {
        entry.removeprefix(inside)
        for entry in zipfile.ZipFile(wheel).namelist()
        if entry.startswith(inside)
    }

    assert carried == files_below(ROOT / name)


@pytest.mark.slow
def test_the_wheel_carries_the_templates_and_assets_of_pages(wheel: Path) -> None:
    carried = set(zipfile.ZipFile(wheel).namelist())

    for name in ("templates", "assets"):
        inside = f"traceq/report/page/{name}"
        files = files_below(ROOT / inside)
        assert files
        assert {f"{inside}/{file}" for file in files} <= carried


@pytest.mark.slow
def test_the_wheel_starts_the_command_line(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        scripts = archive.read(f"torch_traceq-{__version__}.dist-info/entry_points.txt")

    assert b"traceq = traceq.cli:main" in scripts


@pytest.mark.slow
@with_bin
def test_an_installed_copy_runs(installed: Path) -> None:
    out = run_installed(installed, "-m", "traceq", "--version")

    assert out == f"traceq {__version__}\n"


@pytest.mark.slow
@with_bin
@pytest.mark.parametrize("name", FOLDERS)
def test_an_installed_copy_finds_its_own_folder(name: str, installed: Path) -> None:
    code = f"from traceq.common.locations import bundled; print(bundled({name!r}))"

    path = Path(run_installed(installed, "-c", code).strip())

    assert path.is_relative_to(installed)
    assert files_below(path) == files_below(ROOT / name)


# What does not compile is left out, and all that needs it is then skipped.
@compiled
@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.stem)
def test_compiled_code_compiles_without_a_warning(source: Path) -> None:
    done = subprocess.run(
        [
            str(COMPILER),
            *("-fsyntax-only", "-Wall", "-Wextra", "-Werror"),
            *("-I", str(HEADERS), str(source)),
        ],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@compiled
def test_the_wheel_carries_all_compiled_code(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = [Path(name).name for name in archive.namelist()]
    built = {name.partition(".")[0] for name in names if name.endswith((".so", ".pyd"))}

    assert built == {"_native"}


@pytest.mark.parametrize("name", FOLDERS)
def test_a_checkout_finds_the_folder_next_door(name: str) -> None:
    assert bundled(name) == ROOT / name  # type: ignore[arg-type]  # one of the two


@with_bin
def test_a_copy_without_its_folders_does_not_take_those_of_a_stranger(
    tmp_path: Path,
) -> None:
    for file in (ROOT / "traceq").rglob("*.py"):
        target = tmp_path / file.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(file.read_bytes())
    (tmp_path / "rules").mkdir()
    code = "from traceq.common.locations import bundled; bundled('rules')"

    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    assert "traceq is installed without its rules/ folder; reinstall it" in done.stderr


@pytest.fixture(scope="module")
def fixtures(installed: Path) -> Path:
    """Return fixtures that are nowhere near a checkout."""
    folder = installed / "work" / "fixtures"
    for name in ("copies", "twins/copies_fixed", "twins/oom_fragmented"):
        shutil.copytree(ROOT / "fixtures" / name, folder / Path(name).name)
    return folder


@pytest.mark.slow
@with_bin
def test_an_installed_copy_lints(installed: Path, fixtures: Path) -> None:
    trace = fixtures / "copies" / "trace.json.gz"

    out = run_installed(installed, "-m", "traceq", "lint", trace, status=1)

    assert re.search(r"^CPY003 ", out, re.MULTILINE)


@pytest.mark.slow
@with_bin
def test_an_installed_copy_checks(installed: Path, fixtures: Path) -> None:
    out = run_installed(installed, "-m", "traceq", "check", fixtures)

    assert out.endswith("3 fixtures, all as expected\n")


@pytest.mark.slow
@with_bin
def test_an_installed_copy_compares(installed: Path, fixtures: Path) -> None:
    before, after = (
        fixtures / name / "trace.json.gz" for name in ("copies", "copies_fixed")
    )

    out = run_installed(installed, "-m", "traceq", "diff", before, after)

    assert "CPY003" in out


@pytest.mark.slow
@with_bin
def test_an_installed_copy_looks_at_memory(installed: Path, fixtures: Path) -> None:
    snapshot = fixtures / "oom_fragmented" / "snapshot.pickle.gz"

    out = run_installed(installed, "-m", "traceq", "memory", snapshot)

    assert "GiB" in out


@pytest.mark.slow
@with_bin
def test_an_installed_copy_shrinks(installed: Path, fixtures: Path) -> None:
    fixture, small = fixtures / "copies_fixed", installed / "work" / "small"

    run_installed(installed, "-m", "traceq", "shrink", fixture, "-o", small)

    name = "trace.json.gz"
    assert (small / name).read_bytes() == (fixture / name).read_bytes()


@pytest.mark.slow
@with_bin
@pytest.mark.collect
def test_an_installed_copy_records_and_lints_what_it_recorded(installed: Path) -> None:
    program = installed / "work" / "program.py"
    program.parent.mkdir(exist_ok=True)
    program.write_text(LOOP + "for _ in range(20):\n    step()\n")
    python = installed / "bin" / "python"
    words = ("--out", installed / "runs", "--name", "run", *QUICK, "--", python)

    run_installed(installed, "-m", "traceq", "collect", *words, program)
    run = installed / "runs" / "run"
    out = run_installed(installed, "-m", "traceq", "lint", "--fail-on", "error", run)

    assert "rules ran" in out
