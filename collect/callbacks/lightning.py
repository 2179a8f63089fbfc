"""A callback for the Trainer of Lightning."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from .training import Training

_NAMES = ("lightning.pytorch", "pytorch_lightning")


def _callback() -> Any:
    """Return the class of callbacks of the package that the program uses."""
    used = [name for name in _NAMES if name in sys.modules]
    for name in used:
        return import_module(name).Callback
    try:
        return import_module(_NAMES[0]).Callback
    except ImportError:
        return import_module(_NAMES[1]).Callback


class TraceqCallback(_callback()):  # type: ignore[misc]  # one of two classes
    """Records a few steps of a training: ``Trainer(callbacks=[TraceqCallback()])``.

    Options are those of ``traceq.profile``. A step is one of the optimizer, with all
    batches that it accumulates.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self._training = Training(options)
        self._steps = 0  # of the optimizers so far

    @property
    def folder(self) -> Path | None:
        """The run folder; none before the training begins."""
        return self._training.folder

    @property
    def missing(self) -> list[str]:
        """Parts that were not recorded, each with the reason."""
        return self._training.missing

    def on_train_start(self, trainer: Any, *_: Any) -> None:
        """Record from here."""
        self._steps = trainer.global_step
        self._training.begin()

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        """End a step, if the optimizer made one after this batch."""
        if trainer.global_step != self._steps:
            self._steps = trainer.global_step
            self._training.step()

    def on_train_end(self, *_: Any) -> None:
        """Write what was recorded."""
        self._training.end()

    def on_exception(self, _trainer: Any, _module: Any, error: BaseException) -> None:
        """Write what was recorded until an error of the program."""
        self._training.end(f"the training raised {type(error).__name__}")
