"""The manifest of a recording process, and its progress."""

from __future__ import annotations

import contextlib
import sys
import time
from pathlib import Path
from typing import Any

import torch

from ..shared import additions, manifest, status_files
from . import packages, process_facts, torch_state
from .compiled_code import CompiledCode
from .warning_log import WarningLog

REPORT_S = 0.2
_RECORDED = (
    *("state", "steps", "warmup", "step_time", "trace", "memory", "pause"),
    *("missing", "notes"),
)


class RankFile:
    """The manifest of one process; the file exists from the first step on."""

    def __init__(self, folder: Path, launch: int) -> None:
        self.folder = folder
        self.launch = launch
        self.name: str | None = None
        self.facts: dict[str, Any] = {"missing": [], "notes": [], "timeline": []}
        self.warnings = WarningLog()
        self._compiled = CompiledCode()
        self.main = "trace"
        """The product of a recording; None where nothing was recorded."""
        self._before: dict[str, Any] = {}  # what was recorded of other steps
        self._reported = 0.0
        self._phase = ""

    def claim(self) -> None:
        """Reserve the name that all files of this process start with."""
        rank, local_rank, world_size = process_facts.rank()
        self.name = manifest.claim(self.folder, rank)
        self.facts = {
            "format": manifest.FORMAT,
            "name": self.name,
            "rank": rank,
            "local_rank": local_rank,
            "world_size": world_size,
            "machine": process_facts.machine(),
            "launch": self.launch,
            "state": "recording",
            "device": None,
            "cores": process_facts.cores(),
            "versions": None,
            "devices": [],
            "switches": {},
            "packages": None,
            "environment": process_facts.environment(),
            "steps": {},
            "warmup": None,
            "step_time": None,
            "parameters": None,
            "trace": None,
            "memory": None,
            "oom": None,
            "slow_steps": None,
            "sources": [],
            "compiled": None,
            "compiled_code": None,
            "captures": [],
            "pause": None,
            "log": None,
            **self.facts,
        }
        self.warnings.open(self.path(".log"))
        # The launcher measures with the same Python; its path is not for the folder.
        status_files.mark(f"interpreter-{self.name}", sys.executable or "")

    def path(self, ending: str) -> Path:
        """Return the path of one of this process's files."""
        return self.folder / f"{self.name}{ending}"

    def save(self, **changes: Any) -> None:
        """Write the manifest with these changes."""
        self.facts.update(changes)
        if "state" in changes:  # later steps of the program are not what was recorded
            self.facts["compiled"] = self._compiled.facts()
        if self.name is None:
            return
        cuda = torch_state.uses_cuda()
        log = self.warnings
        self.facts.update(
            device=f"cuda:{torch.cuda.current_device()}" if cuda else "cpu",
            versions=process_facts.versions(),
            devices=process_facts.devices(),
            switches=process_facts.switches(),
            log={
                "file": f"{self.name}.log" if log.count else None,
                "warnings": log.count,
                "truncated": log.truncated,
            },
        )
        # Once, when all is imported: it looks at every module.
        if self.facts["trace"] and not self.facts["packages"]:
            self.facts["packages"] = packages.packages()
        additions.add(self.facts, self.folder)
        manifest.write(self.path(".json"), self.facts)

    def missing(self, what: str, why: str) -> None:
        """Note that something is missing from the recording, and why."""
        entry = {"what": what, "why": why}
        if entry not in self.facts["missing"]:
            self.facts["missing"].append(entry)

    def begin_again(self) -> None:
        """Record again; what there is stays until it is replaced."""
        additions.add(self.facts, self.folder)
        self._before = {key: self.facts[key] for key in _RECORDED}
        self.facts.update(dict.fromkeys(_RECORDED), missing=[], notes=[])
        self.facts["state"] = "recording"

    def keep_newer(self) -> bool:
        """Drop what was recorded before, or take it back if nothing has come since.

        Returns whether it was taken back.
        """
        before, self._before = self._before, {}
        if not before:
            return False
        if self.facts[self.main] is None:
            self.facts.update(before)
            return True
        old, new = before["memory"], self.facts["memory"]
        if old is not None and new is None:
            with contextlib.suppress(OSError):
                (self.folder / old["file"]).unlink()
        return False

    def note(self, text: str) -> None:
        """Add a note, once."""
        if text not in self.facts["notes"]:
            self.facts["notes"].append(text)

    def happened(self, what: str, step: int) -> None:
        """Add an entry to the timeline."""
        entry = {"what": what, "step": step, "at": manifest.now()}
        self.facts["timeline"].append(entry)

    def report(self, phase: str, done: int, total: int) -> None:
        """Report progress to the launcher: every phase, and a few times per second."""
        now = time.monotonic()
        if phase == self._phase and now - self._reported < REPORT_S:
            return
        self._phase = phase
        self._reported = now
        status_files.mark(f"status-{self.name}", f"{phase}\t{done}\t{total}")
