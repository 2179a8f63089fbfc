"""Findings of a trial's recordings: what is predicted, and what a remedy removed."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any, Collection

from .. import remedies
from . import try_options

LINT_S = 120.0  # for the findings of a recording


class Linter:
    """A process that lints a run folder and writes what it finds to a file."""

    def __init__(self, command: list[str], folder: Path, place: Path) -> None:
        self.file = place / f"lint-{folder.name}.json"
        self.passed = False
        with self.file.open("wb") as output:
            self._process = subprocess.Popen(
                [*command, str(folder)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.DEVNULL,
            )

    def ended(self) -> bool:
        """Return whether it has ended."""
        return self._process.poll() is not None

    def wait(self, seconds: float) -> None:
        """Wait for its end; kill it after ``seconds``."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def read(self) -> bool:
        """Return whether it has written a report."""
        try:
            try_options.predictions(str(self.file))
        except (OSError, ValueError, KeyError, AttributeError):
            return False
        return True

    def predictions(self) -> dict[str, dict[str, Any]]:
        """Return what it predicts; nothing if it failed."""
        return try_options.predictions(str(self.file)) if self.read() else {}


def prove(
    state: dict[str, Any],
    folder: Path,
    predictions: dict[str, dict[str, Any]],
    command: list[str],
    place: Path,
) -> None:
    """Lint the recordings with remedies: what they address has to be gone.

    ``command`` lints a run folder, and ``place`` is for what it writes.
    """
    for name, facts in state.get("remedies", {}).items():
        rules = [*remedies.addressed(name, predictions)]
        if not rules or not (folder / name / "run.json").is_file():
            continue
        linter = Linter(command, folder / name, place)
        linter.wait(LINT_S)
        if linter.read():
            left = remedies.addressed(name, linter.predictions())
            facts["proof"] = _proof(facts.get("proof"), rules, left)


def _proof(
    known: dict[str, Any] | None, rules: list[str], left: Collection[str]
) -> dict[str, Any]:
    """Return what is proved of a remedy if these findings are left with it."""
    proof = known or {"applied": True, "text": ""}
    stay = [rule for rule in rules if rule in left]
    applied = bool(proof["applied"]) and len(stay) < len(rules)
    return {**proof, "rules": rules, "stay": stay, "applied": applied}
