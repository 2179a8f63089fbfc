"""The lines of a log that rules read, and no others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceq.check.expected import expected
from traceq.formats.log import log_lines
from traceq.lint.engine import lint
from traceq.recording import Recording

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceq.check.expected import Expected
    from traceq.lint.config import Config
    from traceq.lint.pack import Rules


def needed_lines(lines: Sequence[str], rules: Rules, config: Config) -> list[str]:
    """Return the fewest lines of a log in which the same is found.

    A log may hold anything, so that only what a rule has read is known to be needed.
    """

    def found(texts: Sequence[str]) -> tuple[Expected, ...]:
        recording = Recording("log", log=log_lines("\n".join(texts)))
        return expected(
            lint([recording], rules, config, brief=True).outcomes[0].findings
        )

    wanted, kept = found(lines), list(lines)
    before = -1
    while before != len(kept):
        before = len(kept)
        size = len(kept)
        while size:
            at = 0
            while at < len(kept):
                fewer = kept[:at] + kept[at + size :]
                if found(fewer) == wanted:
                    kept = fewer
                else:
                    at += size
            size //= 2
    return kept
