"""The recording that a program makes of itself: ``traceq.profile`` and the callbacks.

The agent records, as it does in a program that the launcher has started; this writes
what the launcher would: the run folder and the run file.
"""

from __future__ import annotations

import atexit
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Mapping

import torch

from ..agent import process_facts
from ..agent.session import Session
from ..launcher import options, run_facts, run_folder
from ..launcher import overhead as overhead_of
from ..shared import additions, manifest, own_numbers, redact, status_files

TOOL = "traceq.profile"
NAME_S = 30.0  # how long a rank waits for rank 0 to name the run
_AGENT = "_traceq_agent"
_recording: list[Recording] = []  # the one that runs, if one does
_named = 0  # how many runs this process has named


class RefusedError(Exception):
    """A recording that cannot be made, in one sentence."""


class Recording:
    """A run folder, from ``start`` to ``stop``.

    Nothing here may harm the program: between the two, no error of ours is raised.
    """

    def __init__(  # noqa: PLR0913 - the options of the command
        self,
        *,
        out: str | os.PathLike[str] = options.DEFAULT_OUT,
        name: str | None = None,
        labels: Mapping[str, object] | None = None,
        steps_by: str = "auto",
        warmup: int = 10,
        timed: int = 20,
        active: int = 3,
        memory_steps: int = 2,
        memory: bool = True,
        stacks: bool = True,
        source: bool = True,
        compiled: bool = True,
        captures: bool = True,
        oom: bool = True,
        ranks: str | None = None,
        keep_slow: float | None = None,
        max_mb: int = 1000,
        overhead: bool = True,
        keep_paths: bool = False,
    ) -> None:
        values = {
            "out": os.fspath(out),
            "name": name,
            "steps-by": steps_by,
            "warmup": warmup,
            "timed": timed,
            "active": active,
            "memory-steps": memory_steps,
            "ranks": ranks,
            "keep-slow": keep_slow,
            "max-mb": max_mb,
        }
        switches = {
            "no-memory": not memory,
            "no-stack": not stacks,
            "no-source": not source,
            "no-compiled": not compiled,
            "no-captures": not captures,
            "no-oom": not oom,
            "no-overhead": not overhead,
            "keep-paths": keep_paths,
        }
        words = [f"--{key}={one}" for key, one in values.items() if one is not None]
        words += [f"--{key}" for key, on in switches.items() if on]
        self.options = _chosen(words)
        for key, value in (labels or {}).items():
            self.options.label.append((key, str(value)))
        self.folder: Path | None = None
        self.missing: list[str] = []
        self._session: Session | None = None
        self._facts: dict[str, Any] = {}
        self._index: int | None = None
        self._began = 0.0
        self._process = 0

    def start(self) -> None:
        """Create the run folder and count steps; raise ``RefusedError`` if not."""
        why = _why_not()
        if why:
            raise RefusedError(why)
        index = run_folder.launch_index([], os.environ)
        self._index = index
        out, command = Path(self.options.out), self.options.command
        try:
            folder = run_folder.create(out, _name(self.options), command, index)
            self._facts = run_facts.at_start(self.options, folder.name, index)
            self._facts["tool"] = TOOL
            manifest.write(folder / run_folder.run_file(index), self._facts)
        except run_folder.TakenError as error:
            raise RefusedError(str(error).replace("--name", "name")) from None
        except OSError as error:
            where, why = error.filename or out, error.strerror or str(error)
            msg = f"nothing can be recorded in {where}: {why}"
            raise RefusedError(msg) from None
        self.folder = folder.resolve()  # the program may go elsewhere
        self._process = os.getpid()
        self._began = time.monotonic()
        settings = {
            "folder": str(self.folder),
            "launch": index or 0,
            "options": run_facts.shown_options(self.options),
        }
        self._session = Session(settings)
        self._session.arm()
        own_numbers.start(str(self.folder))
        _recording.append(self)
        atexit.register(self.stop)

    @property
    def done(self) -> bool:
        """True if the recording is complete, or cannot go on."""
        return self._session is None or self._session.off

    def step(self) -> None:
        """End a step; does nothing once all is recorded."""
        session = self._session
        if session is not None and not session.off:
            session.step()
            if session.off:  # so that it is there even if the program is killed
                try:
                    self._write()
                except OSError as error:
                    self.missing.append(f"the run file: {error.strerror}")

    def stop(self, what: str = "the program ended") -> None:
        """Write what there is: ``what`` has ended, early or not."""
        session, self._session = self._session, None
        # A forked process ends, too: its parent records.
        if session is None or os.getpid() != self._process:
            return
        atexit.unregister(self.stop)
        _recording.remove(self)
        try:
            session.end(what)
            session.actions.wait()
            own_numbers.stop()
            self._add_log(session.compile_log.text())
            self._write()
            self._measure_overhead()
        except Exception as error:  # noqa: BLE001 - the program must continue
            self.missing.append(f"the run file: {type(error).__name__}: {error}")

    def _write(self) -> None:
        """Write the run file with what this process has recorded so far."""
        folder = self.folder
        if folder is None:
            return
        ranks = [
            rank
            for file in sorted(folder.glob("rank-*.json"))
            for rank in [manifest.read(file)]
            if rank.get("launch") == (self._index or 0)
        ]
        for rank in ranks:
            if additions.add(rank, folder):
                manifest.write(folder / f"{rank['name']}.json", rank)
        nothing = {"what": "ranks", "why": _NO_STEPS}
        if process_facts.rank()[2] > 1 and self.options.ranks:
            nothing["why"] = f"this rank is not one of ranks={self.options.ranks}"
        self._facts.update(
            state="finished",
            ended=manifest.now(),
            seconds=round(time.monotonic() - self._began, 3),
            world_size=max((rank["world_size"] for rank in ranks), default=None),
            ranks=ranks,
            numbers={
                name: own_numbers.summary(values)
                for name, values in own_numbers.read(folder).items()
            },
            missing=[] if ranks else [nothing],
        )
        entries = [entry for rank in ranks for entry in rank["missing"]]
        self.missing = [
            f"no {entry['what'].replace('_', ' ')}: {entry['why']}"
            for entry in [*entries, *self._facts["missing"]]
        ]
        manifest.write(folder / run_folder.run_file(self._index), self._facts)

    def _add_log(self, text: str) -> None:
        """Keep what torch.compile logged; what the program prints is not ours here."""
        if not text or self.folder is None:
            return
        file = self.folder / run_folder.log_file(self._index)
        data = redact.log(text).encode("utf-8", "replace")
        file.write_bytes(data)
        self._facts["log"] = {"file": file.name, "bytes": len(data), "truncated": False}

    def _measure_overhead(self) -> None:
        """Measure what recording costs, or note why not."""
        ranks = self._facts["ranks"]
        if self.options.no_overhead or not ranks or self.folder is None:
            return
        rank = overhead_of.measured_rank(ranks)
        why = overhead_of.why_not({"signal": None}, rank, sys.executable)
        result = None
        if not why:
            with tempfile.TemporaryDirectory(prefix="traceq-") as place:
                file = Path(place, "overhead.json")
                why = overhead_of.wait(overhead_of.start(sys.executable, rank, file))
                result = manifest.read(file) or None
        if result is None:
            why = why or "the measurement wrote nothing"
            self._facts["missing"].append({"what": "recorder_overhead", "why": why})
        self._facts["recorder_overhead"] = result
        manifest.write(self.folder / run_folder.run_file(self._index), self._facts)


_NO_STEPS = (
    "no steps found: call step() at the end of each, or let an optimizer make them"
)


def _chosen(words: list[str]) -> Any:
    command = list(getattr(sys, "orig_argv", None) or [sys.executable, *sys.argv])
    try:
        result = options.chosen(words, command)
    except ValueError as error:
        raise RefusedError(str(error)) from None
    if result.steps_by == "time":
        msg = "--steps-by time is not for a loop, which has steps: call step()"
        raise RefusedError(msg)
    return result


def _why_not() -> str:
    """Return why this process cannot record itself now, if so."""
    if _AGENT in sys.modules and status_files.settings():
        return "traceq collect records this program already: leave out one of the two"
    if _recording:
        return "this program records itself already: end that recording first"
    enabled = getattr(torch.autograd, "_profiler_enabled", None)
    if enabled is not None and enabled():
        return "torch's profiler is running already: leave out one of the two"
    return ""


def _name(chosen: Any) -> str | None:
    """Return the name of the run; of a job the one that rank 0 gives it."""
    global _named  # noqa: PLW0603 - one count a process
    _named += 1
    rank, _, world_size = process_facts.rank()
    dist: Any = torch.distributed
    if chosen.name is not None or world_size == 1:
        return chosen.name
    if not dist.is_available() or not dist.is_initialized():
        return None
    key = f"traceq/name/{_named}"
    try:
        store = dist.distributed_c10d._get_default_store()  # noqa: SLF001
        if rank == 0:
            store.set(key, run_folder.default_name(chosen.command))
        else:
            store.wait([key], _seconds(NAME_S))
        return str(store.get(key).decode())
    except Exception:  # noqa: BLE001 - private to torch; without it, a name of its own
        return None


def _seconds(seconds: float) -> Any:
    from datetime import timedelta  # noqa: PLC0415 - only in jobs

    return timedelta(seconds=seconds)
