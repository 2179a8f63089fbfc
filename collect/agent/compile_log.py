"""Log of torch.compile's graph breaks and recompilations, for the run folder only.

TORCH_LOGS=recompiles,graph_breaks would print them on the user's screen. Logs that the
user has switched on are left as they are.
"""

from __future__ import annotations

import logging
import re
import sys
from typing import Any, Callable

from .after_import import AfterImport

MOST = 300_000  # characters
_AFTER = "torch._dynamo.convert_frame"  # by then the loggers are there
_KINDS = ("recompiles", "graph_breaks")
_QUOTED = re.compile(r'(^[- ]*File ".+", line \d+, in .+$)\n.*', re.MULTILINE)
_QUOTED_GUARD = re.compile(r"(?<=  # ).*(?=  # .+:\d+ in )")


class CompileLog(logging.Handler):
    """Keeps the messages of two kinds of torch's loggers, up to a limit."""

    def __init__(self, *, quotes: bool) -> None:
        super().__init__(logging.DEBUG)
        self.cut = False  # whether there were more
        self._quotes = quotes  # whether lines of the program may be quoted
        self._kept: list[str] = []
        self._size = 0
        self._finder = AfterImport(_AFTER, self._attach)
        self._undo: list[Callable[[], None]] = []

    def install(self) -> None:
        """Listen, as soon as the program has imported the compiler."""
        self._finder.wait()

    def remove(self) -> None:
        """Listen no longer."""
        self._finder.stop()
        while self._undo:
            self._undo.pop()()

    def text(self) -> str:
        """Return the log so far, as torch would have printed it."""
        return "".join(self._kept)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a message."""
        try:
            text = self.format(record)
        except Exception:  # noqa: BLE001 - torch's own format, and no must
            text = record.getMessage()
        if self._size + len(text) > MOST:
            self.cut = True
            return
        self._size += len(text) + 1
        self._kept.append(text + "\n")

    def format(self, record: logging.LogRecord) -> str:
        """Return the lines of a message, without those of the program if unwanted."""
        if not self._quotes:
            text = _QUOTED.sub(r"\1", record.getMessage())
            record.msg, record.args = _QUOTED_GUARD.sub("", text), ()
        return super().format(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's
        """Print nothing: an error here is ours, not the program's."""

    def _attach(self) -> None:
        try:
            internal: Any = sys.modules["torch._logging._internal"]
            self.setFormatter(internal.TorchLogsFormatter())
            for name in sorted(internal.log_registry.get_artifact_log_qnames()):
                if name.endswith(tuple(f".__{kind}" for kind in _KINDS)):
                    self._listen(logging.getLogger(name))
            self._enable(internal.log_state)
        except Exception:  # noqa: BLE001 - private to torch, and the manifest has most of it
            self.remove()

    def _listen(self, logger: logging.Logger) -> None:
        if logger.isEnabledFor(logging.DEBUG):
            return  # the user's own
        level, passed_on = logger.level, logger.propagate

        def undo() -> None:
            logger.removeHandler(self)
            logger.setLevel(level)
            logger.propagate = passed_on

        logger.addHandler(self)
        logger.setLevel(logging.DEBUG)
        logger.propagate = False  # not to the screen
        self._undo.append(undo)

    def _enable(self, state: Any) -> None:
        """Have dynamo say why it compiles again, which it looks up at that time."""
        if state.is_artifact_enabled(_KINDS[0]):
            return
        state.enable_artifact(_KINDS[0])
        self._undo.append(lambda: state.artifact_names.discard(_KINDS[0]))
