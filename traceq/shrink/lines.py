"""Words of a log that rules read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceq.check.expected import expected
from traceq.formats.log import log_lines
from traceq.linter.engine import lint
from traceq.model.recording import Recording
from traceq.shrink.probe import without_quotes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from traceq.check.expected import Expected
    from traceq.linter.config import Config
    from traceq.linter.pack import Rules


def needed_lines(lines: Sequence[str], rules: Rules, config: Config) -> list[str]:
    """Return the fewest lines of a log, and words of these, in which the same is found.

    A log may hold anything, so that only what a rule has read is known to be needed.
    """

    def expectation(texts: Sequence[str]) -> tuple[Expected, ...]:
        recording = Recording("log", log=log_lines("\n".join(texts)))
        (outcome,) = lint([recording], rules, config, brief=True).outcomes
        return expected(map(without_quotes, outcome.findings))

    wanted = expectation(lines)
    needed = _fewest(lines, lambda fewer: expectation(fewer) == wanted)
    for at, line in enumerate(needed):
        before, after = needed[:at], needed[at + 1 :]

        def same(words: Sequence[str]) -> bool:
            return expectation([*before, " ".join(words), *after]) == wanted  # noqa: B023 - called before the next

        needed[at] = " ".join(_fewest(line.split(), same))
    return needed


def _fewest(entries: Sequence[str], same: Callable[[Sequence[str]], bool]) -> list[str]:
    """Return the fewest entries with which all is the same: halves first, then less."""
    fewest = list(entries)
    before = -1
    while before != len(fewest):
        before = len(fewest)
        size = len(fewest)
        while size:
            at = 0
            while at < len(fewest):
                fewer = fewest[:at] + fewest[at + size :]
                if same(fewer):
                    fewest = fewer
                else:
                    at += size
            size //= 2
    return fewest
