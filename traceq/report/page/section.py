"""Sections of the page, and the recording that they describe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from traceq.model.lint_report import RecordingReport
    from traceq.model.recording import Recording


class Link(NamedTuple):
    """Another page beside this one."""

    text: str
    href: str
    """Its address from here, of a file that traceq names."""


@dataclass(frozen=True)
class Section:
    """One part of the page: its text, as a template fills it, and data for scripts."""

    key: str
    """Its place in the page, as findings in report.html#findings."""
    title: str
    template: str
    """A file in templates/; its name is the name of the part to scripts."""
    context: Mapping[str, object]
    """Values for the template; all of them are text, whatever they hold."""
    data: Mapping[str, object] | None = None
    """Data that scripts draw: numbers, texts, and lists and objects of them."""

    @property
    def part(self) -> str:
        """Name of the part, by which its script finds it."""
        return self.template.removesuffix(".html")


@dataclass(frozen=True)
class Subject:
    """One recording and what lint found in it: what parts of the page are made of."""

    outcome: RecordingReport
    recording: Recording | None = None
    """None where only the findings are shown."""
    number: int = 0
    """Number of the recording, if the page shows several; from 1."""
    step: int | None = None
    """The step to draw; a typical one, unless given."""

    def key(self, part: str) -> str:
        """Return the key of a part of this recording."""
        return f"{part}-{self.number}" if self.number else part
