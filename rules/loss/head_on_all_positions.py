"""LOS002: a vocabulary's head computes positions that nobody reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.linter import (
    Bad,
    Evidence,
    Fix,
    Good,
    Need,
    Rule,
    Seen,
    View,
    dataclass,
    inputs,
    kernel_lines,
    located_advice,
    module_line,
    often,
    option,
    own_function,
    shape,
)

from ._head_readers import by_place, heads, readers
from ._masked_words import of_both_sides, with_loss

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.linter import Finding, Row

_SLICED = (
    "pick the positions before the head, of its input: head(hidden[:, -1:]), which"
    " computes the same logits for what is read"
)
_OF_LIBRARY = "; models of transformers take logits_to_keep=1 for the last one"
_CHECK = (
    "check how many targets the loss ignores (ignore_index, -100): a masked language"
    " model has targets at 15% of the positions; where most are ignored, pick the rest"
    " before the head, hidden[targets != -100], and give the loss their targets alone"
)
_HALF = ["c10::BFloat16"] * 2
_LOGITS = [8, 512, 32000]
_DRAWN = """
    host   [ProfilerStep#1                                                            ]
    host    [model.py(9): forward                                                    ]
    host     [aten::mm              ][aten::select][aten::argmax]
    host      [cudaLaunchKernel>1]                 [cuLaunch>2]
    gpu 7                  [nvjet_tst<1                            ][argmax<2         ]
"""
_ARGS = {
    "aten::mm": inputs([[4096, 768], [768, 32000]], _HALF),
    "aten::argmax": inputs([[8, 32000], []], ["c10::BFloat16", "Scalar"]),
}


@dataclass(frozen=True)
class HeadOnAllPositions(Rule):
    """A vocabulary's head computes positions that nobody reads.

    ## What it does

    Finds matmuls with at least ``min-vocabulary`` columns in the forward, of whose
    result the program reads at most ``max-read`` of the positions: a slice, an index or
    a select of some of them is all that follows, beside casts and pointwise ops. Where
    the loss of a training reads all, and the model is one of masked words or its
    attention sees both sides, the finding says what to check: how many targets the loss
    ignores is not in a trace.

    ## Why is this bad?

    The head is often the largest matmul of a language model, and its logits the largest
    tensor. Prefill needs the logits of the last position alone; a loss on masked words
    those of 15%.

    ## How to fix it

    Pick the positions before the head.

    ```diff
    - logits = self.head(hidden)[:, -1]
    + logits = self.head(hidden[:, -1])
    ```

    ```diff
    - loss = F.cross_entropy(self.head(hidden).flatten(0, 1), targets.flatten())
    + masked = targets != -100
    + loss = F.cross_entropy(self.head(hidden[masked]), targets[masked])
    ```

    ## When it is wrong

    What is read after the recorded steps, or by code that is not torch's, the trace
    does not show. A mask makes the host wait for how many positions it picks: a data
    loader can send their indices. The saving is the share of positions that nobody
    reads; the head's weight is read as before.
    """

    code = "LOS002"
    several_fixes = True
    since = "0.2.0"
    see = ("torch.nn.functional.cross_entropy",)
    preview = True
    needs = frozenset({Need.GPU, Need.OPS, Need.SHAPES, Need.VALUES})

    min_vocabulary: int = option(8192, "Smaller vocabularies are not reported.")
    max_read: float = option(0.5, "Where more of the positions are read, nothing is.")
    min_share: float = option(0.03, "A smaller part of the step needs no check.")

    seen = Seen(
        text="""
        LOS002 head-on-all-positions (preview)
          saves 23.9 µs/step (40%), 5.16 µs to 35.9 µs
          the head computes 32,000 logits for 4,096 positions once a step, and 8 are
            read
          in      forward (model.py:9)
          gpu     41.0 µs a step
          logits  [4096,32000]
          kernel  nvjet_tst ×1
          fix     in forward: pick the positions before the head, of its input:
                  head(hidden[:, -1:]), which computes the same logits for what is
                  read
        """,
    )

    examples = (
        Bad(
            _DRAWN,
            finds="the head computes 32,000 logits for 4,096 positions once a step, and"
            " 8 are read",
            args=_ARGS
            | {
                "aten::select": inputs(
                    [_LOGITS, [], []],
                    ["c10::BFloat16", "Scalar", "Scalar"],
                    values=["", "1", "-1"],
                )
            },
        ),
        Good(
            _DRAWN,
            args=_ARGS
            | {
                "aten::select": inputs(
                    [_LOGITS, [], []],
                    ["c10::BFloat16", "Scalar", "Scalar"],
                    values=["", "2", "0"],
                )
            },
        ),
    )

    def check(self, view: View) -> Iterator[Finding]:
        """Group the heads by place."""
        computed = heads(view, self.min_vocabulary)
        if not computed.height:
            return
        rows = readers(view, computed).with_columns(
            some=(pl.col("read") <= self.max_read * pl.col("rows")).fill_null(
                value=False
            )
        )
        for row in by_place(view, rows.filter("some")):
            yield self._sliced(view, row)
        if not view.trains:
            return
        whole = of_both_sides(view, rows.filter(~pl.col("some")))
        for row in by_place(view, with_loss(view, whole)):
            if row["gpu_ns"] >= self.min_share * view.bound.step_ns * view.steps:
                yield self._masked(view, row)

    def _sliced(self, view: View, row: Row) -> Finding:
        calls = len(row["ops"]) / view.steps
        library = "transformers" in (row["via"] or "")
        return self.finding(
            f"{_head(row)} {often(calls)}, and {row['read']:,}"
            f" {'is' if row['read'] == 1 else 'are'} read",
            subject="picked",
            place=view.place(row),
            count=calls,
            fix=[
                Fix(kernels=row["ids"], kernel_share=row["share"]),
                Fix(
                    kernels=row["beside"],
                    kernel_share=1 - row["read"] / row["rows"],
                ),
            ],
            evidence=_evidence(view, row),
            data=_data(row),
            advice=located_advice(
                view, own_function(row), _SLICED + (_OF_LIBRARY if library else "")
            ),
            ops=row["ops"],
        )

    def _masked(self, view: View, row: Row) -> Finding:
        calls = len(row["ops"]) / view.steps
        return self.finding(
            f"{_head(row)} {often(calls)}, of which the loss may ignore most",
            subject="masked",
            place=view.place(row),
            count=calls,
            evidence=_evidence(view, row),
            data=_data(row),
            advice=located_advice(view, own_function(row), _CHECK),
            example=self.example(1),
            # Its kernels stay those of findings that change them.
            ops=row["ops"],
        )


def _head(row: Row) -> str:
    return f"the head computes {row['columns']:,} logits for {row['rows']:,} positions"


def _evidence(view: View, row: Row) -> list[Evidence]:
    return [
        Evidence("gpu", value=row["gpu_ns"] / view.steps, unit="ns", note="a step"),
        Evidence("logits", shape([row["rows"], row["columns"]])),
        *kernel_lines(view, row["ids"]),
        *module_line(row["modules"]),
    ]


def _data(row: Row) -> dict[str, int | None]:
    return {key: row[key] for key in ("rows", "columns", "read")}
