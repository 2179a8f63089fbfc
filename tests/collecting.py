"""Programs run under `collect/`, as a user would, and what they leave behind."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import warnings
from dataclasses import dataclass
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, module_from_spec
from typing import TYPE_CHECKING, Any

import pytest
from conftest import ROOT

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

COLLECT = ROOT / "collect"
WITH_TORCH = [
    pytest.mark.collect,
    pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed"),
]
QUICK = ("--no-overhead", "--warmup", "2", "--timed", "3", "--active", "2")

LOOP = """
import torch
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def step():
    optimizer.zero_grad()
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
"""


def module(name: str) -> Any:  # noqa: ANN401 - a module of collect/, by path
    """Import a module of collect/ the way the launcher does: by a private name."""
    package = "_traceq_collect"
    if package not in sys.modules:
        spec = ModuleSpec(package, loader=None, is_package=True)
        spec.submodule_search_locations = [str(COLLECT)]
        sys.modules[package] = module_from_spec(spec)
    return import_module(f"{package}.{name}")


class Late:
    """A module that is imported when it is first used: torch takes seconds."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever it holds
        if name.startswith("__") or name == "_mock_name":
            # pytest asks whatever a test module holds whether it is a fixture.
            raise AttributeError(name)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # those of torch's own import
            import_module("torch")
        module_type = (
            sys.modules["torch"] if self._name == "torch" else module(self._name)
        )
        return getattr(module_type, name)


@dataclass(frozen=True)
class Run:
    """A program that was run under collect/, and ended."""

    status: int
    out: str
    err: str
    folder: Path

    @property
    def facts(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads((self.folder / "run.json").read_text())
        return document

    @property
    def rank(self) -> dict[str, Any]:
        (rank,) = self.facts["ranks"]
        result: dict[str, Any] = rank
        return result

    @property
    def files(self) -> set[str]:
        return {file.name for file in self.folder.iterdir()}

    def events(self, name: str = "rank-0") -> list[dict[str, Any]]:
        file = self.folder / f"{name}.trace.json.gz"
        with gzip.open(file) as stream:
            result: list[dict[str, Any]] = json.load(stream)["traceEvents"]
        return result

    def annotations(self) -> list[dict[str, Any]]:
        result = [
            event for event in self.events() if event.get("cat") == "user_annotation"
        ]
        return sorted(result, key=lambda one: one["ts"])

    def step_names(self) -> list[str]:
        """Return what the manifest says the steps are called in the trace."""
        trace = self.rank["trace"]
        return [f"{trace['step_name']}#{number}" for number in trace["steps"]]

    def why_missing(self, what: str) -> str:
        (why,) = [
            entry["why"] for entry in self.rank["missing"] if entry["what"] == what
        ]
        return str(why)


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return an environment in which torch is quick to start and leaves cores free."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "80", **(extra or {})}


def words(
    folder: Path, command: list[str], options: tuple[str, ...] = QUICK
) -> list[str]:
    """Return the command line that records ``command`` as the run ``run``."""
    out = ["--out", str(folder / "out"), "--name", "run"]
    return [sys.executable, str(COLLECT), *out, *options, "--", *command]


def collect(
    folder: Path,
    command: list[str],
    options: tuple[str, ...] = QUICK,
    env: Mapping[str, str] | None = None,
) -> Run:
    """Run ``command`` in ``folder`` under collect/ and return what came of it."""
    done = subprocess.run(
        words(folder, command, options),
        cwd=folder,
        env=environment(env),
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    return Run(done.returncode, done.stdout, done.stderr, folder / "out" / "run")


def collect_program(
    folder: Path,
    program: str,
    options: tuple[str, ...] = QUICK,
    env: Mapping[str, str] | None = None,
) -> Run:
    """Run the text of a program under collect/."""
    (folder / "program.py").write_text(program)
    return collect(folder, [sys.executable, "program.py"], options, env)
