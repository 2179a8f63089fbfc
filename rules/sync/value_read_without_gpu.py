"""SYN003: a step reads values of tensors, for which the host would wait on a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base import callers
from traceq.analysis.patterns.host_calls import value_reads
from traceq.linter import (
    Bad,
    Evidence,
    Good,
    Need,
    Rule,
    Seen,
    Severity,
    View,
    dataclass,
    module_line,
    often,
    option,
    same_place,
)

from ._known_waits import known_wait
from ._reads import ACTED, advice_by_use, use_of
from ._shared import IN_LIBRARY, library_of
from ._written import INNER, WRITTEN

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.linter import Finding


@dataclass(frozen=True)
class ValueReadWithoutGpu(Rule):
    """A step reads values of tensors: with them on a GPU, the host would wait.

    ## What it does

    Looks only at recordings without GPU work, as of a laptop or of a CI machine. Finds
    ops that need a value of a tensor in Python, or a size that depends on its values:
    ``.item()``, ``if tensor``, ``nonzero``, a boolean index. Reads that the data loader
    and the optimizer make are left out, as they differ from device to device, and so
    are integers that are not read by a method: they may index data on the host. Once
    there is GPU work in the trace, SYN001 reports the waits themselves.

    ## Why is this bad?

    On the CPU such a read costs nothing, so nobody sees it. On a GPU the host waits
    until all work that was launched before is done, launches nothing in the meantime,
    and the GPU is idle afterwards. A CPU recording cannot tell where a tensor will
    live, so no saving is stated: a tensor that stays on the CPU is read for free. A
    single read a step is reported as minor.

    ## How to fix it

    Keep the value on the GPU, and read it only once in many steps.

    ```diff
    - total += loss.item()
    + total += loss.detach()
    ```

    ## When it is wrong

    If the program never runs on a GPU, or the tensor stays on the CPU there.
    """

    code = "SYN003"
    since = "0.2.0"
    see = ("torch.Tensor.item", "torch.Tensor.detach")
    needs = frozenset({Need.NO_GPU, Need.OPS, Need.LINES})
    several_fixes = True
    priced = False

    min_reads: float = option(0.5, "Fewer reads a step are not reported.")

    seen = Seen(
        text="""
        SYN003 value-read-without-gpu
          `.item()` reads a value of a tensor once a step: if it is on a GPU, the
            host waits each time
          in   main (train.py:12)
          op   aten::item
          fix  what is only logged can stay on the GPU for many steps; what decides,
               or is a size, take from what the host knows, as the lengths of a
               batch before they are sent
        """,
    )

    examples = (
        Bad(
            """
            host   [ProfilerStep#1                                              ]
            host    [train.py(12): main                                        ]
            host     [aten::mm           ] [aten::item                ]
            host                            [aten::_local_scalar_dense]
            """,
            finds=(
                "`.item()` reads a value of a tensor once a step: if it is on a GPU,"
                " the host waits each time",
            ),
        ),
        Good(
            """
            host   [ProfilerStep#1                                              ]
            host    [train.py(12): main                                        ]
            host     [aten::mm           ] [aten::detach              ]
            """
        ),
        Good(
            """
            host   [ProfilerStep#1                                              ]
            host    [aten::mm           ] [aten::item                ]
            host     [cudaLaunchKernel>1]  [aten::_local_scalar_dense]
            gpu 7                [gemm<1                        ]
            """
        ),
    )

    def check(self, view: View) -> Iterator[Finding]:
        """Group the reads by the op that the program calls, and by place."""
        reads = value_reads(view.trace, view.steady).with_columns(
            pl.col("what").replace(INNER)
        )
        # The backward of an op that reads a value is reported with the op.
        forward = pl.col("phase").ne_missing("backward")
        reads = reads.filter(forward | pl.col("what").is_in(list(WRITTEN)))
        reads = reads.with_columns(callers.innermost_calls(view.trace.frames, reads))
        places = reads.group_by(
            "what", *same_place(), "call_line", maintain_order=True
        ).agg(
            pl.col("inner_file", "inner_function").first(),
            pl.col("module").first(),
            modules=pl.col("module").cast(pl.String).drop_nulls().unique().sort(),
            ops="id",
        )
        for row in places.iter_rows(named=True):
            count = len(row["ops"]) / view.steps
            if count < self.min_reads:
                continue
            written, advice = WRITTEN.get(
                row["what"], (row["what"], "keep the result on the GPU")
            )
            wait = known_wait(row["inner_file"], row["inner_function"], row["what"])
            if wait:
                written, advice = wait.written, wait.advice
            elif library := library_of(row["via"]):
                advice = IN_LIBRARY.format(library, advice)
            else:
                read = {"cause": row["what"], "method": None, "copies": None}
                use = use_of(view, {**row, **read, "selects": True})
                if use == ACTED:
                    continue
                advice = advice_by_use(use, row["what"], row["modules"]) or advice
            yield self.finding(
                f"{written} reads a value of a tensor {often(count)}: if it is on a"
                " GPU, the host waits each time",
                subject=row["what"],
                place=view.place(row),
                count=count,
                # Once a step is what most programs do to log; in a loop it adds up.
                severity=None if count > 1 else Severity.info,
                evidence=[Evidence("op", row["what"]), *module_line(row["modules"])],
                advice=advice,
                ops=row["ops"],
            )
