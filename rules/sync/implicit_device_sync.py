"""SYN001: an operator syncs with the GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base import assumptions
from traceq.analysis.time import device_syncs, serving
from traceq.linter import Bad, Evidence, Good, Need, Seen, View, dataclass, option

from ._causes import coalesced, with_causes
from ._environment import acted_on
from ._final_result import are_final
from ._reads import ACTED, advice_by_use
from ._removed import AT_ONCE, ONE_COPY, copied_in_a_row, removed_ops, removed_reads
from ._shared import DeviceSync, resolved
from ._sync_chains import explicit_places
from ._written import CONSTANT, COPYING, WRITTEN

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from traceq.linter import Finding

_COPY = (
    "compute with it on the GPU, and with what it meets, and copy only the result; if"
    " it is only logged, copy it into pinned memory with non_blocking=True and read it"
    " a step later"
)
_TO_HOST = ("`.cpu()`", _COPY)
_TO_GPU = (
    "a copy to the GPU",
    "copy from pinned memory with .to(device, non_blocking=True), or create the tensor"
    " on the GPU",
)
_INDICES = ("aten::index", "aten::index_put_")
_SEARCHES = ("aten::nonzero", "aten::where")
_INDEX_FROM = {
    "to host": "an index on the GPU into a tensor on the CPU",
    "to GPU": "an index on the CPU into a tensor on the GPU",
}
_ONE_DEVICE = "keep the index on the device of the tensor"
_ITSELF = "it reads a value on the host itself: call it less often, or another operator"
_METHODS = {
    "cpu": _TO_HOST,
    "tolist": ("`.tolist()`", _COPY),
    "numpy": ("`.numpy()`", _COPY),
    "print": ("printing a tensor", "print less often, or after the loop"),
}


@dataclass(frozen=True)
class ImplicitDeviceSync(DeviceSync):
    """An operator syncs with the GPU in the middle of a step, and the host waits.

    ## What it does

    Looks for operators, such as ``aten::item`` or ``aten::nonzero``, under which the
    host calls a blocking function of CUDA or HIP, or copies to pageable memory, within
    a step. Reading a value that is already on the CPU costs nothing and is not
    reported. The profiler's own sync at the end, and those of the allocator, of
    compilation and of CUDA graph capture, are not reported either. Large copies from
    pageable memory to the GPU, with their waits, are left to CPY003, and so are those
    to pageable memory that themselves take nearly all of the time of the wait. Waits
    for each token of a decode loop are left to SRV002 and SRV003. The fix removes
    the wait: the host runs ahead, and launches the next work while the GPU is busy.

    If a library waits on behalf of the program, the finding names its function; for
    some that have a switch (GradScaler, ``clip_grad_norm_``, the Trainer of
    transformers, distributions) it names the switch. Where the switch turns a check
    off, the operators that compute what is checked go too, and count as saved. So does
    the time of the host in which the elements of a boolean index are looked for, in the
    backward pass as well. Eight values or more that are read in a row, with nothing
    launched between, can be read at once: then all but one of the copies go.

    Where little is launched between two waits, the second waits instead if only the
    first goes. The saving is then that of removing both, if both are in the program's
    own code; where a library waits, as a trainer does, it is what is left once the
    other one waits instead. The finding names the other place.

    ## Why is this bad?

    While the host waits, it launches nothing. After the wait the GPU has run out of
    work, and it stays idle until the host is ahead again.

    ## How to fix it

    Keep the value on the GPU. Log ``loss.detach()`` and call ``.item()`` once every
    hundred steps. Replace a boolean index, whose size only the GPU knows, with
    ``torch.where``. A value that is a size, an index or a condition has advice of its
    own, where the program's source was recorded; the result of a comparison always.

    ```diff
    - log(loss.item())
    + if step % 100 == 0:
    +     log(loss.item())
    ```

    ## When it is wrong

    A wait while the GPU idles is longer as recorded than without the profiler: it is
    named, and priced with nothing. A wait at the very end of a step may be intentional,
    to time it. Raise
    ``min-wait-us``, or allow the line. An action that an environment is stepped with
    next has to be on the host: such a wait is not reported where stacks show it. Nor is
    the copy of a result at the end of a recording of one step. Where
    a mask selects a few of many elements, and much is computed from these, a boolean
    index is right.
    """

    code = "SYN001"
    several_fixes = True
    since = "0.1.0"
    see = (
        "torch.where",
        "torch.nonzero_static",
        "torch.Tensor.to",
        "torch.cuda.set_sync_debug_mode",
    )
    needs = frozenset({Need.GPU, Need.OPS})

    min_wait_us: int = option(
        assumptions.SHORT_OP_SYNC_US, "Waits shorter than this are not counted."
    )

    seen = Seen(
        of="fixtures/twins/optimizer_loop_sync",
        text="""
        SYN001 implicit-device-sync  saves 88.5 µs/step (1%), nothing to 820 µs
          `.item()` makes the host wait for the GPU once a step
          in     step (dev_cases.py:65)
          op     aten::item
          waits  10.7 µs each, as recorded
          idle   117 µs on the GPU after each, as recorded
          fix    what is only logged can stay on the GPU for many steps; what
                 decides, or is a size, take from what the host knows, as the
                 lengths of a batch before they are sent
        """,
    )

    examples = (
        Bad(
            """
            host   [ProfilerStep#1                                              ]
            host    [aten::mm           ]                            [aten::add  ]
            host     [cudaLaunchKernel>1]
            host                         [aten::item                ]
            host                          [cudaStreamSynchronize   ]
            gpu 7                [gemm<1                        ]           [add]
            """,
            finds=("`.item()` makes the host wait for the GPU once a step",),
        ),
        Good(
            """
            host   [ProfilerStep#1                                              ]
            host    [aten::mm           ]                            [aten::add  ]
            host     [cudaLaunchKernel>1]
            host                         [aten::item                ]
            gpu 7                [gemm<1                        ]           [add]
            """
        ),
    )

    def check(self, view: View) -> Iterator[Finding]:
        """Group the waits by the op that the program calls, and by place."""
        syncs = device_syncs.syncs_in_ops(view.trace, view.steady)
        long = pl.col("wait") >= self.min_wait_us * 1000
        if not syncs.select(long.any()).item():
            return
        copying = device_syncs.waits_to_copy(view.trace, view.steady).filter("copying")[
            "id"
        ]
        others = pl.concat([copying, serving.token_syncs(view.trace)])
        waits = with_causes(view.trace, syncs).filter(
            long, ~pl.col("id").is_in(others.implode())
        )
        waits = waits.filter(~acted_on(view, waits))
        waits = waits.filter(~are_final(view, waits))
        waits = waits.with_columns(method=device_syncs.written_as(view.trace, waits))
        causes = ("cause", "method", "copies", "selects")
        rows = [
            (row, _written(row))
            for row in self._by_place(view, waits, *causes)
            if row["use"] != ACTED
        ]
        of_place = explicit_places(view) | {
            place: resolved(row, row["cause"], words)[1]
            for row, words in rows
            for place in row["at"]
        }
        for row, words in rows:
            yield self._of_row(view, {**row, "of_place": of_place}, words)

    def _of_row(
        self, view: View, row: Mapping[str, Any], words: tuple[str, str]
    ) -> Finding:
        note = "and its gradient" if any(row["gradient"]) else ""
        cause = Evidence("op", row["cause"], note=note)
        written, advice = words
        if row["cause"] == "aten::_coalesce":
            written, advice = coalesced(view, row) or words
        at_once = removed_reads(view, row)
        if at_once:
            # The first of them waits still.
            first = {**row, "calls": (), "also": ()}
            advice = AT_ONCE[row["cause"] == "aten::item"]
            return self._finding(view, first, cause, (written, advice), at_once)
        removed = removed_ops(view, row, advice)
        if advice == _COPY and copied_in_a_row(view, row):
            advice = ONE_COPY
        return self._finding(view, row, cause, (written, advice), removed)


def _written(row: Mapping[str, Any]) -> tuple[str, str]:
    """Return how the wait is written in a program, and what to write instead."""
    written, advice = _by_cause(row)
    theirs = row["library"] or row["by_inner_file"]
    modules = [] if theirs else row["modules"]
    by_use = advice_by_use(row["use"], row["cause"], modules)
    asked = f" of the result of `{row['asked']}`" if row["asked"] else ""
    return f"{written}{asked}", by_use or advice


def _by_cause(row: Mapping[str, Any]) -> tuple[str, str]:
    """Return the same by the op that waits, and what it copies."""
    cause, copies = row["cause"], row["copies"]
    if row["method"] in _METHODS:
        return _METHODS[row["method"]]
    if cause in _INDICES and not row["selects"]:
        return _INDEX_FROM.get(copies, "an index on another device"), _ONE_DEVICE
    if cause in WRITTEN:
        written, advice = WRITTEN[cause]
        constant = cause in _SEARCHES and not any(row["computed"])
        return written, f"{CONSTANT}{advice}" if constant else advice
    if copies and cause not in COPYING:
        name = cause.removeprefix("aten::").removesuffix("_backward")
        gradient = "the gradient of " if cause.endswith("_backward") else ""
        return f"{gradient}`{name}`", _ITSELF
    if copies:
        return _TO_HOST if copies == "to host" else _TO_GPU
    return cause, "keep the result on the GPU"
