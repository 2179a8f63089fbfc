"""CPY001: copies take a large share of the GPU's time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base import assumptions
from traceq.analysis.patterns import kv_cache
from traceq.analysis.patterns.copies import PARTS
from traceq.analysis.patterns.weights_stored import scaled_after
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
    at_function,
    dataclass,
    dtype_name,
    inputs,
    option,
    text,
)

from ._needless import (
    cast_round_trips,
    layout_round_trips,
    unwritten_clones,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from traceq.linter import Finding

_NOUNS = {part.name: part.noun for part in PARTS}
# What is known about a part; of the others nothing is in general.
_HINTS = {
    "optimizer": "needed",
    "transfer": "needed",
    "collective": "see NET001",
    "pageable": "see CPY003",
    "conv layout": "see LAY001",
    "weights": "see CPY006",
    "loss": "see LOS001",
    "cast": "CPY002 reports those that are undone",
    "autocast": "by autocast, or for the dtype that the op computes in",
    "dequantized": "dequantize them once",
    "backward": "part of the backward pass",
    "layout": "CPY005 reports those that are needless",
}
_NEEDED = ("optimizer", "transfer")
_DEQUANTIZE = (
    "start with {noun}: dequantize them once, if there is memory for them in {dtype};"
    " or compile the model, which casts and scales in one kernel; or use a matmul that"
    " reads 8 bits, as torchao's"
)

_BIG = inputs([[64, 64], [64, 64], []], ["float", "float", "Scalar"])


@dataclass(frozen=True)
class CopyShare(Rule):
    """Copies take a large share of the GPU's time.

    ## What it does

    Adds up everything that only moves data: transfers, casts, layout changes, joins.
    Each copy is attributed to what asks for it (the program, autocast, another op, the
    optimizer or the backward pass), with the lines that ask for most. Copies that
    another rule reports are listed with its code, and their saving is reported there.
    The saving here is half of the program's remaining casts and layout changes, if
    these alone exceed the share, and all of the casts of weights that are stored in 8
    bits, with the multiplication by their scale.

    ## Why is this bad?

    A copy computes nothing. It uses memory bandwidth, which bounds most steps.

    ## How to fix it

    Start with the largest part that is not needed. Casts: keep tensors in one dtype.
    Layouts: transpose once, as late as possible. The backward of ``unbind`` or
    ``chunk`` joins gradients: use separate projections, or a kernel that takes the
    packed tensor. Weights that are stored in 8 bits and cast in every call: dequantize
    them once if there is memory for it, or compile the model, which casts and scales in
    one kernel.

    ```diff
    - x = self.mlp(x.transpose(1, 2).contiguous())
    + x = self.mlp(x.transpose(1, 2))
    ```

    ## When it is wrong

    The optimizer's copies, and transfers from pinned memory, count as needed. If
    nothing else is left, the finding is for information only.

    ## Measured

    On an H200, in ms a step. Clones, layout changes, casts and pageable copies all
    gone, and autocast too: ``copies`` 13.2 → 3.5.

    A decoder of 12 layers with int8 weights, 8 tokens of 8 requests (torch 2.11): 41 to
    50, measured twice, → 20 with the weights dequantized once, 34 with its layers
    compiled. The kernels of one weight [8192,2048] for 8 rows, in µs of one recorded
    call: cast, scale and matmul 96, compiled 21, dequantized once 7, and
    ``torch._weight_int8pack_mm`` 320. torchao was not tried.
    """

    code = "CPY001"
    several_fixes = True
    since = "0.1.0"
    see = ("torch.autocast", "torch.Tensor.contiguous")
    residual = True
    needs = frozenset({Need.GPU, Need.OPS})

    min_share: float = option(
        0.1, "Copies below this share of the GPU's time are not reported."
    )

    seen = Seen(
        of="fixtures/copies",
        text="""
        CPY001 copy-share
          copies take a large share of the GPU's time, mainly pageable transfers,
            then contiguous, clone and reshape
          share  76% of the GPU's time
          part   pageable transfers 7.93 ms a step (see CPY003; step
                 (dev_cases.py:154)) ×1
          part   contiguous, clone and reshape 825 µs a step (CPY005 reports those
                 that are needless; forward (dev_cases.py:137)) ×18
          part   casts in the program 445 µs a step (CPY002 reports those that are
                 undone; forward (dev_cases.py:137)) ×12
          part   casts inside other ops 389 µs a step (by autocast, or for the dtype
                 that the op computes in; forward (dev_cases.py:137)) ×11
          part   casts of weights and their gradients by autocast 153 µs a step (see
                 CPY006; forward (dev_cases.py:137)) ×24
          part   the backward of views, slices and joins 33.3 µs a step (part of the
                 backward pass; step (dev_cases.py:154)) ×1
          fix    start with pageable transfers (see CPY003)
        """,
    )

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
                "copies take a large share of the GPU's time, mainly contiguous, clone"
                " and reshape",
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
        """Divide all copies into parts, if together they take enough time."""
        # What a KV cache that grows by cat copies is SRV007's.
        grown = kv_cache.cache_cats(view.trace)["id"]
        moved = view.copies.filter(~pl.col("op").is_in(grown.implode()))
        busy, copied = int(view.kernels["dur"].sum()), int(moved["dur"].sum())
        if not copied or copied < self.min_share * busy:
            return
        parts = (
            moved.group_by(text("part"))
            .agg(time=pl.col("dur").sum(), calls=pl.len())
            .sort("time", "part", descending=[True, False])
        )
        needed = int(parts.filter(pl.col("part").is_in(_NEEDED))["time"].sum())
        rest = _unexplained(view)
        matters = int(rest["dur"].sum()) >= self.min_share * busy
        scales = _scales(view, rest)
        yield self.finding(
            "copies take a large share of the GPU's time, mainly "
            + ", then ".join(_NOUNS[name] for name in parts["part"].head(2)),
            subject="copies",
            count=moved.height / view.steps,
            fix=_fixes(rest, scales) if matters else (),
            severity=Severity.warning if matters else Severity.info,
            evidence=[
                _share("share", copied / busy),
                *([_share("needed", needed / busy)] if needed else []),
                *(_part(view, row) for row in parts.iter_rows(named=True)),
                *_scale_line(view, scales),
            ],
            data={
                "share": round(copied / busy, 4),
                "needed": round(needed / busy, 4),
                "parts": {
                    name: spent // view.steps for name, spent, _ in parts.iter_rows()
                },
            },
            advice=_advice(moved, parts.filter(~pl.col("part").is_in(_NEEDED))["part"]),
            kernels=moved["id"],
        )


def _unexplained(view: View) -> pl.DataFrame:
    """Return the program's own casts and layouts that no other rule reports."""
    moved = view.copies
    undone = layout_round_trips(moved, view.kernels)
    reported = [
        cast_round_trips(view.trace, moved).select("request"),
        undone.select("request"),
        undone.select(request="back"),
        unwritten_clones(view.trace, moved).select("request"),
    ]
    return (
        moved.filter(pl.col("part").is_in(["cast", "layout", "dequantized"]))
        .with_columns(request=pl.coalesce("origin", "request"))
        .join(pl.concat(reported), on="request", how="anti")
    )


def _scales(view: View, rest: pl.DataFrame) -> pl.DataFrame:
    """Return the kernels that scale weights which were dequantized just before."""
    dequantized = rest.filter(pl.col("part") == "dequantized")
    if not dequantized.height:
        return view.kernels.clear()
    scales = scaled_after(view.trace, dequantized)
    return view.kernels.filter(pl.col("op").is_in(scales.implode()))


def _fixes(rest: pl.DataFrame, scales: pl.DataFrame) -> list[Fix]:
    stored = pl.col("part") == "dequantized"
    others, dequantized = rest.filter(~stored), rest.filter(stored)
    ops = pl.concat([dequantized["request"], scales["op"]]).drop_nulls().unique()
    return [
        Fix(kernels=others["id"], kernel_share=assumptions.REMOVABLE_COPIES),
        Fix(kernels=pl.concat([dequantized["id"], scales["id"]]), ops=ops),
    ]


def _scale_line(view: View, scales: pl.DataFrame) -> list[Evidence]:
    """Return what the multiplication by the scale takes, which is no copy."""
    if not scales.height:
        return []
    return [
        Evidence(
            "scale",
            value=int(scales["dur"].sum()) / view.steps,
            unit="ns",
            note="a step, of weights that were dequantized",
            count=scales.height / view.steps,
        )
    ]


def _share(label: str, value: float) -> Evidence:
    return Evidence(label, value=value, unit="share", note="of the GPU's time")


def _part(view: View, row: Mapping[str, Any]) -> Evidence:
    """Return what one part takes, with the lines that ask for most of it."""
    places = (
        view.copies.filter(pl.col("part") == row["part"])
        .drop_nulls("file")
        .group_by("file", "line", "function")
        .agg(time=pl.col("dur").sum())
        .sort("time", "file", "line", descending=[True, False, False])
        .head(2)
    )
    lines = [at_function(*row[:3]) for row in places.iter_rows()]
    hint = _HINTS.get(row["part"])
    notes = "; ".join([*([hint] if hint else []), *lines])
    return Evidence(
        "part",
        _NOUNS[row["part"]],
        value=row["time"] / view.steps,
        unit="ns",
        note="a step" + (f" ({notes})" if notes else ""),
        count=row["calls"] / view.steps,
    )


def _advice(moved: pl.DataFrame, parts: pl.Series) -> str:
    if not len(parts):
        return "all of them are needed: overlap the transfers with compute"
    noun, hint = _NOUNS[parts[0]], _HINTS.get(parts[0])
    if parts[0] == "dequantized":
        dequantized = moved["dst"].filter(moved["part"] == "dequantized")
        return _DEQUANTIZE.format(noun=noun, dtype=dtype_name(dequantized[0]))
    return f"start with {noun}" + (f" ({hint})" if hint else "")
