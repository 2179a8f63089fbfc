"""JIT002: torch.compile compiles code again in steps after warm-up."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base.gpu_idle import idle_gaps
from traceq.analysis.patterns import compilation, compile_reasons
from traceq.linter import (
    Bad,
    Evidence,
    Fix,
    Good,
    Need,
    Rule,
    Seen,
    Severity,
    View,
    dataclass,
    fill_false,
    listed,
    overlap,
    shape,
    share_of_steps,
    spans,
)

from ._changed_inputs import advice, changed_inputs, versions_before

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from traceq.linter import Finding

_FRAME = r"^(!?\d+)"
_VERSION = r"(\d+)$"
_MOST_INPUTS = 3


@dataclass(frozen=True)
class Recompilation(Rule):
    """torch.compile compiles code again in steps after warm-up.

    ## What it does

    Looks for compilations in steps after warm-up that are not the first version of
    their code (``compile_id=0/4``, or ``Torch-Compiled Region: 0/4`` right after), or
    that happen in more than one step. Where the steps compile nothing and run a late
    version (``Torch-Compiled Region: 8/4``), it was recompiled before them: that is
    reported without a saving, from the third version on, as automatic dynamic shapes
    make a second one. With shapes it names the inputs that changed;
    with the log, or in a run of ``traceq collect``, the guard that failed. The fix
    removes the host time of these compilations.

    ## Why is this bad?

    A compilation takes seconds, or a large part of one even if its results are cached,
    and the GPU idles meanwhile. At eight versions torch gives up on the function and
    runs it uncompiled, with a single warning.

    ## How to fix it

    Mark the sizes that vary (``torch._dynamo.mark_dynamic(x, 1)``), compile with
    ``dynamic=True``, or pad to a few sizes. Keep numbers and flags that change out of
    compiled code, or pass them as tensors. ``TORCH_LOGS=recompiles`` prints which guard
    failed.

    ```diff
    - loss = compiled(tokens)  # another length in every step
    + torch._dynamo.mark_dynamic(tokens, 1)
    + loss = compiled(tokens)
    ```

    ## When it is wrong

    If several versions are intended, such as one for training and one for evaluation,
    and the recorded steps are the first that need the second one.
    """

    code = "JIT002"
    several_fixes = True
    since = "0.1.0"
    see = ("torch.compile", "torch._logging.set_logs")
    needs = frozenset({Need.OPS})

    seen = Seen(
        of="fixtures/recompile",
        text="""
        JIT002 recompilation  saves 411 ms/step (89%), 342 ms to 411 ms
          frame 0 is recompiled in 2 of 2 steps
          versions  0/3, 0/4
          shapes    [1,320], [1,384] of input 1
          host      390 ms each, as recorded
          fix       call torch._dynamo.mark_dynamic(x, 1) on the input of shape
                    [1,320], compile with dynamic=True, or pad it to a few sizes; at
                    8 versions torch gives up and runs it uncompiled
        """,
    )

    examples = (
        Bad(
            """
            host   [ProfilerStep#1                ][ProfilerStep#2                ]
            host    [entire_frame_compile     ]     [entire_frame_compile     ]
            host      [@x_data: compile_id=0/3]       [@x_data: compile_id=0/4]
            host                               [f]                             [f]
            host                               [CompiledFunction]
            gpu 7                               [triton_poi_fused_add_0]
            """,
            finds=("frame 0 is recompiled in 2 of 2 steps",),
        ),
        Good(
            """
            host   [ProfilerStep#1                ][ProfilerStep#2                ]
            host    [entire_frame_compile     ]     [Torch-Compiled Region: 0/0]
            host      [@x_data: compile_id=0/0]
            """
        ),
    )

    def check(self, view: View) -> Iterator[Finding]:
        """Group the compilations by frame and by where it was called."""
        compilations = compilation.compilations(view.trace, view.steady)
        if compilations.height:
            yield from self._compiled(view, compilations)
        seen = compilations["compile_id"].str.extract(_FRAME).to_list()
        for row in versions_before(view):
            if row["frame"] not in seen:
                yield self._earlier(view, row)

    def _compiled(self, view: View, compilations: pl.DataFrame) -> Iterator[Finding]:
        compilations = compilations.with_columns(
            frame=pl.col("compile_id").str.extract(_FRAME),
            version=pl.col("compile_id").str.extract(_VERSION).cast(pl.Int64),
        )
        again = fill_false(pl.col("version") > 0)
        returns = (
            pl.col("step").n_unique().over("frame", "file", "line", "function") > 1
        )
        unknown = pl.col("version").is_null() & returns
        compilations = compilation.settled(
            compilations.filter(again | unknown), view.steady
        )
        rows = (
            compilations.with_columns(
                idle=overlap(spans(compilations), idle_gaps(view.trace))
            )
            .group_by(
                "frame", "file", "line", "function", "module", maintain_order=True
            )
            .agg(
                pl.col("idle").sum(),
                ids=pl.col("compile_id").drop_nulls().unique(maintain_order=True),
                newest=pl.col("version").max(),
                steps=pl.col("step").n_unique(),
                calls=pl.len(),
                host=pl.col("dur").mean(),
                ops="id",
            )
        )
        for row in rows.iter_rows(named=True):
            yield self._finding(view, row)

    def _earlier(self, view: View, row: Mapping[str, Any]) -> Finding:
        inputs = changed_inputs(view, row["frame"])
        return self.finding(
            f"frame {row['frame']} was recompiled before these steps, which run its"
            f" version {row['version']}",
            subject="recompiled before",
            place=view.place(row),
            count=row["calls"] / view.steps,
            severity=Severity.info,
            evidence=_evidence(row, inputs),
            data={"ids": row["ids"], "frames": [row["frame"]], "shapes": []},
            advice=advice(inputs, row["version"]),
            ops=row["ops"],
        )

    def _finding(self, view: View, row: Mapping[str, Any]) -> Finding:
        inputs = changed_inputs(view, row["frame"])
        reasons = _reasons(view)
        what = f"frame {row['frame']}" if row["frame"] else "code"
        return self.finding(
            f"{what} is recompiled in {share_of_steps(view, row['steps'])}",
            subject="recompilation",
            place=view.place(row),
            count=row["calls"] / view.steps,
            fix=Fix(ops=row["ops"]),
            gpu_idle_ns=row["idle"] / view.steps,
            evidence=[
                *(Evidence("reason", reason.text) for reason in reasons[:_MOST_INPUTS]),
                *_evidence(row, inputs),
            ],
            data={
                "ids": row["ids"],
                "frames": [row["frame"]] if row["frame"] else [],
                "shapes": [
                    [list(item) for item in shapes] for shapes in inputs.values()
                ],
            },
            advice=reasons[0].advice
            if reasons and not inputs
            else advice(inputs, row["newest"]),
        )


def _reasons(view: View) -> list[compile_reasons.Reason]:
    """Return the guards that failed, if the recording knows them of one function.

    It does not know which number torch gave to a function.
    """
    recompiles = compilation.recompiles(view.trace)
    if len({(recompile.file, recompile.function) for recompile in recompiles}) != 1:
        return []
    named = {
        reason.key: reason
        for reason in (
            compile_reasons.guard_reason(recompile.why) for recompile in recompiles
        )
    }
    return list(named.values())


def _evidence(
    row: Mapping[str, Any], inputs: Mapping[int, list[list[int]]]
) -> Iterator[Evidence]:
    if row["ids"]:
        yield Evidence("versions", listed(row["ids"], 6))
    for position in list(inputs)[:_MOST_INPUTS]:
        shapes = [shape(item) for item in inputs[position]]
        yield Evidence("shapes", listed(shapes, 4), note=f"of input {position}")
    if "host" not in row:
        return
    yield Evidence("host", value=row["host"], unit="ns", note="each, as recorded")
