"""A callback for the Trainer of Hugging Face's transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from .training import Training


class TraceqCallback(TrainerCallback):  # type: ignore[misc]  # not read by mypy
    """Records a few steps of a training: ``Trainer(callbacks=[TraceqCallback()])``.

    Options are those of ``traceq.profile``. A step is one of the optimizer, with all
    batches that it accumulates.
    """

    def __init__(self, **options: Any) -> None:
        self._training = Training(options)

    @property
    def folder(self) -> Path | None:
        """The run folder; none before the training begins."""
        return self._training.folder

    @property
    def missing(self) -> list[str]:
        """Parts that were not recorded, each with the reason."""
        return self._training.missing

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """Record from here."""
        self._training.begin()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """End a step."""
        self._training.step()

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """Write what was recorded."""
        self._training.end()
