"""The folder of a trial: blocks of each run, logs, and labelled recordings."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ..shared import additions, manifest
from . import complete_run, run_folder, slowest_rank

BLOCKS = "blocks"
PLAIN = "plain"  # the recording without remedies


def open_folder(chosen: Any) -> Path:
    """Return the trial's folder: a new one, or the one of this name to continue."""
    if chosen.name is not None:
        known = Path(chosen.out, chosen.name)
        if (known / "try.json").is_file():
            return known
    return run_folder.create(Path(chosen.out), chosen.name, chosen.command, None)


class TrialFolder:
    """Files of the runs of one trial, which they write and read of each other."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.runs = len(list(place.glob(f"{BLOCKS}*")))
        """Runs of earlier commands."""
        self.blocks = self._free()
        """Name of the folder of this run's blocks."""

    def begin_run(self) -> None:
        """Name a new folder for the blocks of another run."""
        self.blocks = self._free()

    def _free(self) -> str:
        number = 1
        while (self.place / _numbered(BLOCKS, number)).exists():
            number += 1
        return _numbered(BLOCKS, number)

    @property
    def log(self) -> Path:
        """Errors that this run of the program printed."""
        return self.place / f"{self.blocks.replace(BLOCKS, 'stderr')}.log"

    def last_line(self) -> str:
        """Return the last line of the log."""
        try:
            lines = self.log.read_text(errors="replace").strip().splitlines()
        except OSError:
            return ""
        return lines[-1].strip()[:300] if lines else ""

    def newest_state(self) -> str:
        """Return the newest file with what a run has measured; empty if none has."""
        files = sorted(self.place.glob(f"{BLOCKS}*/rank-0.json"), key=os.path.getmtime)
        return str(files[-1]) if files else ""

    def state_file(self) -> Path:
        """Return the file of the first rank of this run."""
        files = self._files()
        return files[0] if files else self.place / self.blocks / "none"

    def states(self, previous: str) -> list[dict[str, Any]]:
        """Return what the ranks of this run measured, or the run before has."""
        files = self._files()
        if not files and previous:  # a restarted program made no steps
            files = [Path(previous)]
        states = [state for state in map(manifest.read, files) if state]
        order = sorted(states, key=lambda state: -len(state.get("blocks", [])))
        return slowest_rank.merged(order)

    def _files(self) -> list[Path]:
        return sorted((self.place / self.blocks).glob("rank-*.json"))

    def complete_recordings(self, facts: dict[str, Any]) -> None:
        """Write the run file of each recording, labelled with its remedy."""
        for folder in sorted(self.place.iterdir()):
            files = sorted(folder.glob("rank-*.json")) if folder.is_dir() else []
            if files and not folder.name.startswith(BLOCKS):
                _complete(folder, files, facts)


def _numbered(name: str, number: int) -> str:
    return name if number == 1 else f"{name}-{number}"


def _complete(folder: Path, files: list[Path], known: dict[str, Any]) -> None:
    ranks = [complete_run.complete_manifest(file) for file in files]
    ranks = [rank for rank in ranks if rank.get("name")]
    for rank in ranks:
        complete_run.complete_if_killed(rank)
        complete_run.complete_if_not_written(rank, folder)
        additions.remove(folder, rank["name"])
    labels = {} if folder.name == PLAIN else {"remedy": folder.name}
    facts = {
        **known,
        "name": folder.name,
        "labels": {**known["labels"], **labels},
        "state": "finished",
        "ended": manifest.now(),
        "world_size": max((rank["world_size"] for rank in ranks), default=None),
        "ranks": ranks,
    }
    manifest.write(folder / "run.json", facts)
