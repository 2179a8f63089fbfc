"""The recording of one training, whichever library runs it."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from ..inline.recording import Recording, RefusedError


class Training:
    """Records while a library trains; what cannot be recorded is no reason to stop."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._recording = Recording(**options)
        self._options = options

    @property
    def folder(self) -> Path | None:
        """The run folder; none before the training begins."""
        return self._recording.folder

    @property
    def missing(self) -> list[str]:
        """Parts that were not recorded, each with the reason."""
        return self._recording.missing

    def begin(self) -> None:
        """Record from here."""
        if self._recording.folder is not None:  # of a training before this one
            self.end("the training did not end")
            self._recording = Recording(**self._options)
        try:
            self._recording.start()
        except RefusedError as error:
            warnings.warn(f"traceq records nothing: {error}", stacklevel=2)

    def step(self) -> None:
        """End a step of the optimizer."""
        self._recording.step()

    def end(self, what: str = "the training ended") -> None:
        """Write what was recorded."""
        self._recording.stop(what)
