"""TRC004: a part of the file is missing or cannot be read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from traceq.lint import Bad, Good, Rule, View

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.lint import Finding


@dataclass(frozen=True)
class IncompleteFile(Rule):
    """A part of the trace is missing or cannot be read.

    ## What it does

    Says what the reader could not read: a file that ends too early, a gzip stream that
    is damaged, events that are no JSON.

    ## Why is this bad?

    The profiler writes operators first and the GPU's work last. A file that ends early
    has operators whose kernels are missing, and looks as if the GPU had been idle.

    ## How to fix it

    Write the trace again and let the program end by itself: it writes ``NAME.tmp`` and
    renames it when it is complete. Look for a full disk, a copy that was broken off, a
    limit on time or memory that ended the program.

    ## When it is wrong

    A few unreadable events of many thousands change no finding.
    """

    code = "TRC004"
    since = "0.1.0"
    priced = False

    examples = (
        Bad(
            """
            host   [ProfilerStep#1       ]
            host    [aten::mm      ]
            gpu 7            [gemm
            """,
            finds=("a part of the trace is missing",),
        ),
        Good(
            """
            host   [ProfilerStep#1       ]
            host    [aten::mm      ]
            gpu 7            [gemm       ]
            """
        ),
    )

    def check(self, view: View) -> Iterator[Finding]:
        """Pass on what the reader says."""
        facts = view.trace.facts
        if facts.damage:
            yield self.finding(
                "a part of the trace is missing",
                subject="damage",
                evidence=[("damage", sentence) for sentence in facts.damage],
                data={"damage": list(facts.damage), "events": facts.events},
                advice="record it again, and let the program end by itself so that the"
                " profiler can finish the file; what is missing looks like idle time",
            )
