"""Completion of a run folder after the program's end."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

from ..shared import additions, manifest

if TYPE_CHECKING:
    from pathlib import Path


def complete_if_killed(rank: dict[str, Any]) -> None:
    """Complete the manifest of a process that was killed before it could."""
    if rank["state"] != "recording":
        return
    rank["state"] = "killed"
    for what in ("step_time", "trace", "memory"):
        if rank[what] is None:
            why = "the process was killed before it could be written"
            rank["missing"].append({"what": what, "why": why})


def complete_manifest(file: Path) -> dict[str, Any]:
    """Return a rank's manifest with what is known since its files were written."""
    rank = manifest.read(file)
    if rank and additions.add(rank, file.parent):
        manifest.write(file, rank)
        additions.remove(file.parent, rank["name"])
    return rank


def complete_if_not_written(rank: dict[str, Any], place: Path) -> None:
    """Note which files are missing: the process that wrote them was ended."""
    for what in ("trace", "memory"):
        if rank[what] and not (place / rank[what]["file"]).exists():
            rank[what] = None
            why = "the process that wrote it was ended before it was complete"
            rank["missing"].append({"what": what, "why": why})


def exit_facts(status: int, *, stopped: bool) -> dict[str, Any]:
    """Return how the command ended, for the run file."""
    return {
        "status": 128 - status if status < 0 else status,
        "signal": _signal_name(-status) if status < 0 else None,
        "stopped_by_traceq": stopped,
    }


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


def remove_partial_files(place: Path, names: list[str]) -> None:
    """Remove files that were being written when their process was killed.

    Other nodes may still write theirs into the same folder.
    """
    for name in names:
        for file in place.glob(f".{name}.*"):
            if file.is_file():
                file.unlink()


def folder_bytes(place: Path) -> int:
    """Return the bytes of the complete files of a folder."""
    return sum(
        file.stat().st_size
        for file in place.iterdir()
        if not file.name.startswith(".")  # another node may rename it meanwhile
    )


def readable_bytes(size: int) -> str:
    """Return a size in MB or kB."""
    megabytes = f"{size / 1e6:.1f} MB"
    return megabytes if megabytes != "0.0 MB" else f"{size / 1e3:.1f} kB"
