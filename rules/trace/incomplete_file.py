"""TRC004: part of the trace is missing or unreadable."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceq.linter import Bad, Evidence, Good, Rule, Seen, View, dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.linter import Finding


@dataclass(frozen=True)
class IncompleteFile(Rule):
    """Part of the trace file is missing or unreadable.

    ## What it does

    Reports what could not be read: a file that ends too early, a damaged gzip stream,
    events that are not JSON, events of which the profiler lost the times and wrote 0.

    ## Why is this bad?

    The profiler writes operators first and GPU work last. A file that ends early has
    operators whose kernels are missing, and looks as if the GPU had been idle.

    ## How to fix it

    Write the trace again and let the program end by itself: the profiler writes
    ``NAME.tmp`` and renames it when it is complete. Check for a full disk, an
    interrupted copy, or a limit on time or memory that ended the program. Times were
    seen to be lost where a recording was exported after the next one had begun: export
    it first.

    ```diff
    - prof.export_chrome_trace("/tmp/trace.json")
    - os._exit(0)
    + prof.export_chrome_trace("trace.json.gz")
    ```

    ## When it is wrong

    A few unreadable events among many thousands change no finding.
    """

    code = "TRC004"
    several_fixes = True
    since = "0.1.0"
    see = ("torch.profiler.profile",)
    priced = False

    seen = Seen(
        text="""
        TRC004 incomplete-file
          part of the trace is missing or unreadable
          damage  the file ends before the trace does; what came before was read
          damage  1 event of 3 could not be read (63 bytes)
          fix     record it again, export it before another recording begins, and
                  let the program end by itself so that the profiler can finish the
                  file; what is missing looks like idle time
        """,
    )

    examples = (
        Bad(
            """
            host   [ProfilerStep#1       ]
            host    [aten::mm      ]
            gpu 7            [gemm
            """,
            finds=("part of the trace is missing or unreadable",),
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
        """Pass on what could not be read."""
        facts = view.trace.facts
        if facts.damage:
            yield self.finding(
                "part of the trace is missing or unreadable",
                subject="damage",
                evidence=[Evidence("damage", sentence) for sentence in facts.damage],
                data={"damage": list(facts.damage), "events": facts.events},
                advice="record it again, export it before another recording begins, and"
                " let the program end by itself so that the profiler can finish the"
                " file; what is missing looks like idle time",
            )
