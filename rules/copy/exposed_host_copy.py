"""CPY007: the GPU computes nothing while a pinned batch is copied to it."""

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
    counted,
    dataclass,
    inputs,
    kernel_lines,
    often,
    option,
    overlap,
    same_place,
    size,
    spans,
    tensor,
    text,
)
from traceq.model import names

from ._transfers import TO_GPU, direction

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from traceq.linter import Finding

_ADVICE = (
    "copy the next batch on a stream of its own while this one is computed, and let the"
    " computing stream wait for it before it is used"
)
_BATCH = inputs([[512, 1024], [512, 1024], []], ["float", "float", "Scalar"])
_BYTES = {"bytes": 2097152}


@dataclass(frozen=True)
class ExposedHostCopy(Rule):
    """A pinned copy to the GPU is not overlapped with compute.

    ## What it does

    Looks for copies of at least ``min-kib`` from pinned host memory to the GPU, on a
    stream that also runs kernels, while no kernel runs, grouped by the line that asks
    for them. The saving is what the step
    gains when they run beside its kernels, at most as long as those take. Copies from
    pageable memory are CPY003's.

    ## Why is this bad?

    A stream does one thing after the other. A batch that is copied on the stream that
    computes keeps the GPU from computing, though copies have engines of their own.
    ``non_blocking=True`` frees the host only.

    ## How to fix it

    Copy one batch ahead, on another stream. ``record_stream`` keeps the allocator from
    reusing the batch's memory while the computing stream still reads it.

    ```diff
    + def sent_ahead(batches):
    +     side, ready = torch.cuda.Stream(), []
    +     for batch in batches:
    +         with torch.cuda.stream(side):
    +             sent = batch.to("cuda", non_blocking=True)
    +         yield from ready
    +         torch.cuda.current_stream().wait_stream(side)
    +         sent.record_stream(torch.cuda.current_stream())
    +         ready = [sent]
    +     yield from ready
    - for batch in loader:
    -     x = batch.to("cuda", non_blocking=True)
    + for x in sent_ahead(loader):
          loss = model(x)
    ```

    Send less as well: integers as they are stored (uint8 images, normalised on the
    GPU), floats in the dtype that the model computes in.

    ## When it is wrong

    A batch that is made from what this step computed cannot be sent ahead. A program
    that never has the next batch in time has to load faster first (DAT001). ROCm does
    not record which kind of memory was used, so nothing is said there.
    """

    code = "CPY007"
    since = "0.2.0"
    see = ("torch.cuda.Stream", "torch.Tensor.record_stream", "torch.Tensor.to")
    preview = True
    needs = frozenset({Need.GPU, Need.STEPS})

    min_kib: int = option(1024, "Copies smaller than this are not counted.")
    min_share: float = option(
        0.02, "Exposed time below this share of the step is not reported."
    )

    seen = Seen(
        of="fixtures/twins/copies_fixed",
        text="""
        CPY007 exposed-host-copy (preview)
          saves 707 µs/step (20%), nothing to 728 µs
          a bfloat16 [16,512,2048] of 32.0 MiB is copied to the GPU once a step, and
            no kernel runs meanwhile
          in       step (dev_cases.py:154)
          kernel   Memcpy HtoD (Pinned -> Device) ×1
          rate     45.4 GB/s
          exposed  740 µs a step
          fix      copy the next batch on a stream of its own while this one is
                   computed, and let the computing stream wait for it before it is
                   used
        """,
    )

    examples = (
        Bad(
            """
            host  [ProfilerStep#1                                                    ]
            host   [train.py(9): step                                               ]
            host    [aten::to             ]  [aten::mm          ]
            host     [aten::copy_        ]    [cudaLaunchKernel>2]
            host      [cudaMemcpyAsync>1]
            gpu 7          [Memcpy HtoD (Pinned -> Device)<1][gemm<2                 ]
            """,
            finds=(
                "a float32 [512,1024] of 2.00 MiB is copied to the GPU once a step,"
                " and no kernel runs meanwhile",
            ),
            args={"aten::copy_": _BATCH, "Memcpy HtoD (Pinned -> Device)": _BYTES},
        ),
        Good(
            """
            host    [ProfilerStep#1                                                  ]
            host     [train.py(9): step                                             ]
            host      [aten::mm           ] [aten::to            ]
            host       [cudaLaunchKernel>2]  [aten::copy_        ]
            host                              [cudaMemcpyAsync>1]
            gpu 7               [gemm<2                                              ]
            gpu 20                               [Memcpy HtoD (Pinned -> Device)<1]
            """,
            args={"aten::copy_": _BATCH, "Memcpy HtoD (Pinned -> Device)": _BYTES},
        ),
    )

    def check(self, view: View) -> Iterator[Finding]:
        """Group the exposed copies by place; all of them hide behind the kernels."""
        transfers = view.copies.filter(view.copies["part"] == "transfer")
        if not transfers.height:
            return
        sent = transfers.filter(
            text("name").str.contains(names.PINNED),
            direction() == TO_GPU,
            pl.col("bytes") >= self.min_kib * 1024,
        )
        if not sent.height:
            return
        kernels = view.kernels[["device", "stream", "ts", "dur"]].filter(
            view.kernels["activity"] == "kernel"
        )
        # On a stream of their own they are sent ahead already, or wait for the host.
        sent = sent.join(kernels, on=["device", "stream"], how="semi")
        hidden = overlap(spans(sent), spans(kernels))
        groups = (
            sent.with_columns(exposed=pl.col("dur") - hidden)
            .sort("bytes", "ts", descending=[True, False])
            .group_by(*same_place(), maintain_order=True)
            .agg(
                "id",
                pl.col("op").drop_nulls(),
                pl.col("dims", "dst").first(),
                text("module").head(1),
                pl.col("bytes", "exposed").sum(),
                calls=pl.len(),
                time=pl.col("dur").sum().clip(lower_bound=1),
            )
            .filter(pl.col("exposed") >= self.min_share * view.steady.time)
        )
        # What the kernels of a step can hide, all groups together.
        room = float(kernels["dur"].sum()) / max(1.0, float(groups["exposed"].sum()))
        for row in groups.iter_rows(named=True):
            yield self._finding(view, row, min(1.0, room))

    def _finding(self, view: View, row: Mapping[str, Any], room: float) -> Finding:
        calls = row["calls"] / view.steps
        return self.finding(
            f"{_what(row, calls)}, and no kernel runs meanwhile",
            subject="prefetch",
            place=view.place_of_group(row),
            count=calls,
            fix=Fix(
                kernels=row["id"], kernel_share=room * row["exposed"] / row["time"]
            ),
            evidence=[
                *kernel_lines(view, row["id"]),
                Evidence("rate", value=row["bytes"] / row["time"], note="GB/s"),
                Evidence(
                    "exposed",
                    value=row["exposed"] / view.steps,
                    unit="ns",
                    note="a step",
                ),
            ],
            data={"bytes": row["bytes"] // view.steps},
            advice=_ADVICE,
            ops=row["op"],
        )


def _what(row: Mapping[str, Any], calls: float) -> str:
    if calls <= 1 and row["dims"]:
        each = size(row["bytes"] / row["calls"])
        what = tensor(row["dst"], row["dims"])
        return f"{what} of {each} is copied to the GPU {often(calls)}"
    total = size(row["bytes"] / row["calls"] * calls)
    verb = "is" if calls == 1 else "are"
    return (
        f"{counted(calls, 'tensor')} of {total} in all {verb} copied to the GPU in a"
        " step"
    )
