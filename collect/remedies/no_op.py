"""The A/A control: nothing is changed, in the same schedule as the remedies."""

from __future__ import annotations

from typing import Any

from .base import Base, Counts


class Remedy(Base):
    """No change; what it seems to save is noise."""

    name = "no_op"
    summary = "nothing is changed: the control"

    def why_not(self, program: Any) -> str:  # noqa: ARG002
        return ""

    def apply(self, program: Any) -> None:
        """Change nothing."""

    def undo(self, program: Any) -> None:
        """Have nothing to take back."""

    def proof(self, before: Counts, after: Counts) -> str:  # noqa: ARG002
        return ""
