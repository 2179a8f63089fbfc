"""CPY001: copies take a large share of the GPU's time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.patterns.copies_needless import (
    cast_round_trips,
    layout_round_trips,
    unwritten_clones,
)
from traceq.lint import Bad, Good, Need, Rule, Severity, View, inputs, option
from traceq.words import counted, share, time

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from traceq.lint import Finding

# What the parts of all copies are called, and what to look at.
_NAMES = {
    "optimizer": ("the optimizer", "needed"),
    "transfer": ("transfers between host and GPU", "needed"),
    "pageable": ("transfers of pageable memory", "see CPY003"),
    "conv layout": ("layout changes around convolutions", "see LAY001"),
    "weights": ("casts of weights and their gradients by autocast", "see CPY006"),
    "loss": ("casts for the loss", "see LOS001"),
    "cast": ("casts that the program asks for", "see CPY002 for those it undoes"),
    "autocast": (
        "casts that ops make inside",
        "by autocast, or by a dtype that the op is given",
    ),
    "backward": ("the backward of views, slices and joins", "part of the backward"),
    "join": ("cat and stack", ""),
    "layout": ("contiguous, clone and reshape", "see CPY005 for those it undoes"),
    "inside": ("copies that other ops make inside", ""),
    "other": ("copies without a known op", ""),
}
_NEEDED = ("optimizer", "transfer")
# Not every copy that a program asks for can go.
_SAVED = 0.5

_BIG = inputs([[64, 64], [64, 64], []], ["float", "float", "Scalar"])


@dataclass(frozen=True)
class CopyShare(Rule):
    """Copies take a large share of the GPU's time.

    ## What it does

    Adds up all that only moves data: transfers, casts, changes of layout, joins. Each
    copy is given to who asks for it, the program, autocast, an op, the optimizer or the
    backward pass, with the lines that ask for most. What has a rule of its own
    is named with it, and costs there; here only the rest costs: half of the program's
    own casts and layouts, if they alone exceed the share.

    ## Why is this bad?

    A copy computes nothing. It reads and writes memory, which is what most steps wait
    for.

    ## How to fix it

    Begin with the largest part that is not needed. Casts: let tensors stay in one
    type. Layouts: transpose as late as possible, and once. The backward of ``unbind``
    or ``chunk`` joins gradients: use separate projections, or a kernel that takes the
    packed tensor.

    ## When it is wrong

    The optimizer's copies, and transfers from pinned memory, are counted as needed;
    if nothing else is left the finding is for information only.
    """

    code = "CPY001"
    residual = True
    needs = frozenset({Need.GPU, Need.OPS})

    min_share: float = option(0.1, "Share of the GPU's time from which copies matter.")

    examples = (
        Bad(
            """
            host  [ProfilerStep#1                                      ]
            host   [aten::mm              ] [aten::contiguous         ]
            host                             [aten::clone            ]
            host                              [aten::copy_          ]
            host    [cudaLaunchKernel>1]      [cudaLaunchKernel>2]
            gpu 7              [gemm<1         ][direct_copy_kernel<2]
            """,
            finds=(
                "copies take 56% of the GPU's time: 56% contiguous, clone and reshape",
            ),
            args={"aten::copy_": _BIG},
        ),
        Good(
            """
            host  [ProfilerStep#1                                                   ]
            host   [aten::mm                                     ] [aten::contiguous]
            host                                                    [aten::clone   ]
            host                                                     [aten::copy_ ]
            host    [cudaLaunchKernel>1]                              [cudaLaunch>2]
            gpu 7              [gemm<1                                         ][cp<2]
            """,
            args={"aten::copy_": _BIG},
        ),
    )

    def check(self, view: View) -> Iterator[Finding]:
        """Say what the parts of all copies are, if together they are many."""
        moved = view.copies
        busy, copied = int(view.kernels["dur"].sum()), int(moved["dur"].sum())
        if not copied or copied < self.min_share * busy:
            return
        parts = (
            moved.group_by(part=pl.col("part").cast(pl.String))
            .agg(time=pl.col("dur").sum(), calls=pl.len())
            .sort("time", "part", descending=[True, False])
            .rows()
        )
        needed = sum(spent for name, spent, _ in parts if name in _NEEDED)
        rest = _rest(view, moved)
        matters = rest >= self.min_share * busy
        yield self.finding(
            f"copies take {share(copied, busy)} of the GPU's time: "
            + ", ".join(
                f"{share(spent, busy)} {_NAMES[name][0]}"
                for name, spent, _ in parts[:2]
            )
            + (f"; {share(needed, busy)} is needed" if needed else ""),
            subject="copies",
            count=moved.height / view.steps,
            gpu_ns=_SAVED * rest / view.steps if matters else 0,
            severity=Severity.warning if matters else Severity.info,
            evidence=[_line(view, part, busy) for part in parts],
            data={
                "share": round(copied / busy, 4),
                "needed": round(needed / busy, 4),
                "parts": {name: spent // view.steps for name, spent, _ in parts},
            },
            advice=_advice([name for name, _, _ in parts if name not in _NEEDED]),
            kernels=moved["id"],
        )


def _rest(view: View, moved: pl.DataFrame) -> int:
    """Return the time of what the program asks for and no other rule has found."""
    found = [
        cast_round_trips(view.trace, moved).select("request"),
        layout_round_trips(moved).select("request"),
        layout_round_trips(moved).select(request="back"),
        unwritten_clones(view.trace, moved).select("request"),
    ]
    rest = moved.filter(pl.col("part").is_in(["cast", "layout"])).with_columns(
        request=pl.coalesce("origin", "request")
    )
    return int(rest.join(pl.concat(found), on="request", how="anti")["dur"].sum())


def _line(view: View, row: tuple[str, int, int], busy: int) -> tuple[str, str]:
    part, spent, calls = row
    name, hint = _NAMES[part]
    places = (
        view.copies.filter(pl.col("part") == part)
        .drop_nulls("file")
        .group_by("file", "line")
        .agg(time=pl.col("dur").sum())
        .sort("time", "file", "line", descending=[True, False, False])
        .head(2)
    )
    where = ", ".join(f"{file}:{line}" for file, line, _ in places.iter_rows())
    notes = "; ".join(note for note in (hint, where) if note)
    text = f"{share(spent, busy)} {name}, {time(spent / view.steps)} in"
    text += f" {counted(calls / view.steps, 'kernel')}"
    return "part", text + (f" ({notes})" if notes else "")


def _advice(parts: Sequence[str]) -> str:
    if not parts:
        return "nothing to do, but to overlap transfers with computing"
    name, hint = _NAMES[parts[0]]
    return f"begin with {name}" + (f" ({hint})" if hint else "")
