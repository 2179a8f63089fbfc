"""CPY003: a copy between host and GPU uses pageable memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base import callers
from traceq.analysis.time import device_syncs
from traceq.linter import (
    Bad,
    Good,
    Need,
    Rule,
    Seen,
    Severity,
    View,
    dataclass,
    fill_false,
    inputs,
    kernel_lines,
    option,
    overlap,
    same_place,
    spans,
    text,
)
from traceq.linter.minor import WORTH_FIXING

from ._pageable import message, rates
from ._sent import (
    KINDS,
    OTHER,
    PINNED,
    advice_for,
    countable,
    fix_of,
    many,
    sent_in_groups,
    with_origins,
)
from ._transfers import TO_GPU, TO_HOST, direction, pinned_rate

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from traceq.linter import Finding

# In the order of the page.
_SAVE = (
    "torch.save copies them: save less often; or copy the state into pinned memory and"
    " write it in another thread or process, as torch.distributed.checkpoint.async_save"
    " does"
)
_EXAMPLES = (TO_GPU, TO_HOST)
_BATCH = inputs([[512, 1024], [512, 1024], []], ["float", "float", "Scalar"])
_BYTES = {"bytes": 2097152}


@dataclass(frozen=True)
class PageableHostCopy(Rule):
    """A copy between host and GPU uses pageable memory.

    ## What it does

    Looks for ``Memcpy HtoD (Pageable -> Device)`` and ``DtoH (Device -> Pageable)`` of
    at least ``min-kib``, grouped by the line that asks for them, and for several
    smaller ones to the GPU whose calls take the host 1% of the step. The saving on the
    GPU is estimated from the rate of pinned copies in the same trace, else from the
    usual PCIe rate of this generation of GPUs. Copies that overlap with kernels cost
    the GPU nothing. Where the host also waits for what the GPU does before a copy to
    the host, the wait is left to SYN001: here counts only what pinned memory makes
    faster, if that is 1% of the step.

    ## Why is this bad?

    The GPU cannot read pageable memory directly. The driver first copies it piece by
    piece into a pinned buffer, which takes several times as long, blocks the host and
    cannot overlap with kernels. ``non_blocking=True`` alone changes nothing.

    ## How to fix it

    ``DataLoader(..., pin_memory=True)`` and ``.to(device, non_blocking=True)``. The
    DataLoader pins tensors, and those in lists, tuples and dicts. Of a batch of any
    other class it calls ``pin_memory()``; a class without that method is not pinned.

    ```diff
    - loader = DataLoader(data, batch_size=64)
    - x = x.to("cuda")
    + loader = DataLoader(data, batch_size=64, pin_memory=True)
    + x = x.to("cuda", non_blocking=True)
    ```

    To the host: copy into a pinned buffer that is allocated once.

    ```diff
    + buffer = torch.empty(y.shape, dtype=y.dtype, pin_memory=True)  # once
    - y = y.cpu()
    + buffer.copy_(y, non_blocking=True)
    + torch.cuda.current_stream().synchronize()  # only before buffer is read
    ```

    What the program makes on the host just before, as an index or a mask, is better
    made on the GPU, and many arrays are sent in one copy: the finding says which it is.

    ## When it is wrong

    A trace without steps may contain the start of the program, where weights go to the
    GPU once; the finding is then for information only. ROCm does not record which kind
    of memory was used.
    """

    code = "CPY003"
    since = "0.1.0"
    see = ("torch.Tensor.pin_memory", "torch.utils.data.DataLoader")
    needs = frozenset({Need.GPU, Need.WARM})

    min_kib: int = option(64, "Copies smaller than this are not counted.")

    seen = Seen(
        of="fixtures/copies",
        text="""
        CPY003 pageable-host-copy  saves 6.40 ms/step (49%), 6.02 ms to 8.26 ms
          a float32 [16,512,2048] of 64.0 MiB is copied from pageable memory to the
            GPU once a step
          in      step (dev_cases.py:154)
          kernel  Memcpy HtoD (Pageable -> Device) ×1
          rate    8.46 GB/s
          pinned  40 GB/s
          saved   6.25 ms on the GPU a step
          fix     pin the tensor where it is created, if that is ahead of the copy,
                  before the loop or in a thread that loads, and copy it with
                  .to(device, non_blocking=True); one that is new in each step is
                  better written into a pinned buffer that is allocated once, when
                  its last copy has ended; what is the same in each step can stay on
                  the GPU
        """,
    )

    examples = (
        Bad(
            """
            host  [ProfilerStep#1                                              ]
            host   [train.py(9): step                                         ]
            host    [aten::to                           ]
            host     [aten::_to_copy                   ]
            host      [aten::copy_                    ]
            host       [cudaMemcpyAsync>1            ]
            gpu 7          [Memcpy HtoD (Pageable -> Device)<1]
            """,
            finds=(
                "a float32 [512,1024] of 2.00 MiB is copied from pageable memory"
                " to the GPU once a step",
            ),
            args={"aten::copy_": _BATCH, "Memcpy HtoD (Pageable -> Device)": _BYTES},
        ),
        Good(
            """
            host  [ProfilerStep#1                                              ]
            host   [train.py(9): step                                         ]
            host    [aten::to                           ]
            host     [aten::_to_copy                   ]
            host      [aten::copy_                    ]
            host       [cudaMemcpyAsync>1            ]
            gpu 7          [Memcpy HtoD (Pinned -> Device)<1]
            """,
            args={"aten::copy_": _BATCH, "Memcpy HtoD (Pinned -> Device)": _BYTES},
        ),
    )

    def check(self, view: View) -> Iterator[Finding]:
        """Group the pageable copies by place, direction and what is sent."""
        copies = view.copies.filter(pl.col("part") == "pageable")
        copies = copies.with_columns(direction=direction())
        copies = countable(view, copies, self.min_kib * 1024)
        if not copies.height:
            return
        work = view.kernels["activity"] == "kernel"
        hidden = overlap(spans(copies), spans(view.kernels[["ts", "dur"]].filter(work)))
        # Those of which SYN001 reports the wait.
        waits = device_syncs.waits_to_copy(view.trace, view.steady).filter(
            ~pl.col("copying")
        )
        groups = (
            with_origins(view, copies)
            .with_columns(
                alone=pl.col("dur") - hidden,
                waits=fill_false(pl.col("op").is_in(waits["op"].implode())),
                saved=_saved_to_file(view, copies),
                host=view.trace.ops["dur"][copies["request"]],
            )
            .sort("bytes", "ts", descending=[True, False])
            .group_by(*same_place(), "direction", "saved", "sent", maintain_order=True)
            .agg(
                "id",
                pl.col("op").drop_nulls(),
                pl.col("dims", "dst").first(),
                text("module").head(1),
                pl.col("bytes", "alone", "host").sum(),
                pl.col("waits").any(),
                requests=pl.col("request").drop_nulls(),
                others=pl.col("request").filter(~pl.col("step").is_first_distinct()),
                largest=pl.col("bytes").max(),
                calls=pl.len(),
                time=pl.col("dur").sum().clip(lower_bound=1),
            )
            .filter(many(view, self.min_kib * 1024))
            .with_columns(sent_in_groups(view))
        )
        for row in groups.iter_rows(named=True):
            yield from self._finding_at(view, row)

    def _finding_at(self, view: View, row: Mapping[str, Any]) -> Iterator[Finding]:
        rate = pinned_rate(view.copies, view.gpu, row["direction"])
        saved = max(0.0, row["alone"] - row["bytes"] / rate)
        # SYN001 reports the wait: a minor finding would say little more of its line.
        if row["waits"] and saved / view.steps < WORTH_FIXING * view.bound.step_ns:
            return
        pinned = row["sent"] == OTHER and not row["saved"]
        advice = _SAVE if row["saved"] else advice_for(view, row)
        yield self.finding(
            message(row, view.steps) + KINDS[row["sent"]],
            subject=row["sent"] or row["direction"],
            place=view.place_of_group(row),
            count=row["calls"] / view.steps,
            fix=fix_of(view, row, saved / row["time"]),
            severity=Severity.warning if view.trace.steps.height else Severity.info,
            evidence=[
                *kernel_lines(view, row["id"]),
                *rates(row, rate, saved if pinned else 0, view.steps),
            ],
            data={"bytes": row["bytes"] // view.steps, "direction": row["direction"]},
            advice=advice,
            effort="edit" if row["direction"] == TO_GPU else None,
            example=self.example(_EXAMPLES.index(row["direction"]))
            if advice == PINNED[row["direction"]]
            else "",
            ops=row["op"],
        )


def _saved_to_file(view: View, copies: pl.DataFrame) -> pl.Series:
    """Return which copies torch.save makes, as far as stacks tell."""
    calls = view.trace.ops[["thread", "ts"]][copies["op"]]
    file = callers.innermost_calls(view.trace.frames, calls)["inner_file"]
    return fill_false(file.str.contains(r"(^|/)torch/storage\.py$"))
