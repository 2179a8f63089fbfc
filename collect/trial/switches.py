"""Remedies of a trial: which of them apply, and those that are on."""

from __future__ import annotations

from typing import Any

import torch

from .. import remedies
from ..remedies.base import BETWEEN_STEPS, CHANGES_RESULTS
from ..shared import status_files
from .program import Program

ACTIVE = "trial-active"  # the status file that names what is on


class Switches:
    """The remedies of one process, switched on and off between steps."""

    def __init__(self, program: Program, wanted: list[str], *, allow: bool) -> None:
        self.program = program
        self.facts: dict[str, dict[str, Any]] = {}
        """State of each remedy, for the trial's file."""
        self.on: tuple[str, ...] = ()
        self._made: dict[str, Any] = {}
        for name in [remedies.CONTROL, *wanted]:
            self._make(name, allow=allow)

    def _make(self, name: str, *, allow: bool) -> None:
        entry: dict[str, Any] = {"why": "", "error": "", "proof": None}
        self.facts[name] = entry
        try:
            one = self._made[name] = remedies.load(name)
            if one.kind == CHANGES_RESULTS and not allow:
                entry["why"] = "it changes results: --allow tries it"
            else:
                entry["why"] = one.why_not(self.program)
        except Exception as error:  # noqa: BLE001 - the program must continue
            entry["error"] = error_line(error)

    def adopt(self, name: str, remedy: Any, error: str) -> None:
        """Add a remedy that is on since the start of the process."""
        self._made[name] = remedy
        self.facts[name] = {"why": "", "error": error, "proof": None}
        self.on = (*self.on, name)

    def __getitem__(self, name: str) -> Any:
        return self._made[name]

    def usable(self) -> list[str]:
        """Return the remedies that can be switched on between steps, in order."""
        return [
            name
            for name, one in self._made.items()
            if one.when == BETWEEN_STEPS and self.is_usable(name)
        ]

    def is_usable(self, name: str) -> bool:
        """Return whether nothing has spoken against a remedy so far."""
        facts = self.facts[name]
        return not facts["why"] and not facts["error"]

    def set(self, names: tuple[str, ...]) -> None:
        """Switch these on, and all others off; what fails is noted and stays off."""
        for name in reversed(self.on):
            if name not in names:
                self._undo(name)
        for name in names:
            if name not in self.on and self.is_usable(name):
                self._apply(name)
        status_files.mark(ACTIVE, ",".join(self.on))

    def _apply(self, name: str) -> None:
        one = self._made[name]
        try:
            with torch.inference_mode(mode=False):  # which the program may be in
                one.apply(self.program)
            self.on = (*self.on, name)
        except Exception as error:  # noqa: BLE001 - the program must continue
            self.facts[name]["error"] = error_line(error)
            self._undo(name)

    def _undo(self, name: str) -> None:
        try:
            with torch.inference_mode(mode=False):
                self._made[name].undo(self.program)
        except Exception as error:  # noqa: BLE001 - the program must continue
            self.facts[name]["error"] = f"it could not be undone: {error_line(error)}"
        self.on = tuple(item for item in self.on if item != name)

    def step(self) -> None:
        """Have what is on do what it does at the end of each step."""
        for name in self.on:
            self._made[name].step()


def error_line(error: BaseException) -> str:
    """Return an error in one line."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return text[:300]
