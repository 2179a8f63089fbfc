"""JIT002: torch.compile compiles code again while the program runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.patterns.compilation import (
    CALL,
    REGION,
    changing_inputs,
    compilations,
    settled,
)
from traceq.lint import Bad, Good, Need, Rule, View
from traceq.words import counted, listed, shape, time

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from traceq.lint import Finding

_FRAME = r"^(!?\d+)"
_VERSION = r"(\d+)$"
# From this version on torch may give up and run the frame without compiling it.
_LIMIT = 8


@dataclass(frozen=True)
class Recompilation(Rule):
    """Code that torch.compile had compiled before is compiled again in a step.

    ## What it does

    Looks for compilations in steps after warm-up whose id says that it is not the
    first version of the code (``compile_id=0/4``, or ``Torch-Compiled Region: 0/4``
    right after it), or that come back in more than one step. With shapes it names
    the inputs that changed. The cost is the time of the compilations.

    ## Why is this bad?

    A compilation takes seconds, or a good part of one even with its results cached,
    and the GPU idles meanwhile. After eight versions torch gives up on the function
    and runs it without compiling, silently but for one warning.

    ## How to fix it

    Mark sizes that vary (``torch._dynamo.mark_dynamic(x, 1)``), or compile with
    ``dynamic=True``, or pad to few sizes. Keep numbers and flags that change out of
    the compiled code, or pass them as tensors. ``TORCH_LOGS=recompiles`` prints which
    guard failed.

    ## When it is wrong

    Where a few versions are meant, as one for training and one for evaluation, and
    the recorded steps are the first that need the second one.
    """

    code = "JIT002"
    needs = frozenset({Need.OPS})

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
            finds=("frame 0 is compiled again in 2 of 2 steps",),
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
        found = compilations(view.trace, view.steady).with_columns(
            frame=pl.col("compile_id").str.extract(_FRAME),
            version=pl.col("compile_id").str.extract(_VERSION).cast(pl.Int64),
        )
        again = pl.col("version") > 0
        returns = (
            pl.col("step").n_unique().over("frame", "file", "line", "function") > 1
        )
        unknown = pl.col("version").is_null() & returns
        rows = (
            settled(found.filter(again.fill_null(value=False) | unknown), view.steady)
            .group_by(
                "frame", "file", "line", "function", "module", maintain_order=True
            )
            .agg(
                ids=pl.col("compile_id").drop_nulls().unique(maintain_order=True),
                newest=pl.col("version").max(),
                steps=pl.col("step").n_unique(),
                calls=pl.len(),
                time=pl.col("dur").sum(),
                ops="id",
            )
        )
        for row in rows.iter_rows(named=True):
            shapes = _shapes(view, row["frame"])
            what = f"frame {row['frame']}" if row["frame"] else "code"
            yield self.finding(
                f"{what} is compiled again in {_steps(view, row['steps'])}",
                subject="recompilation",
                place=view.place(row),
                count=row["calls"] / view.steps,
                gpu_ns=row["time"] * view.host_scale / view.steps,
                host_ns=row["time"] / view.steps,
                evidence=[
                    ("compiled", listed(row["ids"], 6)),
                    (
                        "shapes",
                        "; ".join(
                            _words(position, one) for position, one in shapes[:3]
                        ),
                    ),
                    ("host", f"{time(row['time'] / row['calls'])} for each"),
                ],
                data={
                    "ids": row["ids"],
                    "shapes": [[list(one) for one in every] for _, every in shapes],
                },
                advice=_advice(shapes, row["newest"]),
                ops=row["ops"],
            )


def _steps(view: View, found: int) -> str:
    if not view.trace.steps.height:
        return "this trace"
    return f"{found} of {counted(view.steps, 'step')}"


def _shapes(view: View, frame: str | None) -> list[tuple[int, list[list[int]]]]:
    """Return the inputs that differ between the versions of a frame that ran."""
    if frame is None:
        return []
    name = pl.col("name").cast(pl.String)
    region = name.str.contains(REGION) & name.str.contains(f": {frame}/")
    inside = view.trace.ops.filter(
        view.roots(region).is_not_null(), pl.col("name") == CALL
    )
    found = changing_inputs(view.with_inputs(inside))
    return list(found.iter_rows())


def _words(position: int, shapes: Sequence[Sequence[int]]) -> str:
    return f"input {position}: " + listed([shape(one) for one in shapes], 4)


def _advice(shapes: list[tuple[int, list[list[int]]]], newest: int | None) -> str:
    limit = (
        "; torch gives up and runs it uncompiled at 8 versions"
        if newest is not None and newest < _LIMIT
        else ""
    )
    dims = _changing_dims(shapes[0][1]) if shapes else []
    if dims:
        marks = listed([f"torch._dynamo.mark_dynamic(x, {dim})" for dim in dims])
        return (
            f"call {marks} on the input that is {shape(shapes[0][1][0])}, compile with"
            f" dynamic=True, or pad it to few sizes{limit}"
        )
    return (
        "run with TORCH_LOGS=recompiles to see which guard fails; compile with"
        f" dynamic=True if it is a size{limit}"
    )


def _changing_dims(shapes: list[list[int]]) -> list[int]:
    """Return the dimensions that differ, if the shapes have the same number of them."""
    if len({len(one) for one in shapes}) != 1:
        return []
    return [
        dim
        for dim, sizes in enumerate(zip(*shapes, strict=True))
        if len(set(sizes)) > 1
    ]
