"""MEM011: activations are computed again although memory has room for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
    counted,
    dataclass,
    kernel_lines,
    module_line,
    option,
    size,
)

from ._recomputation import (
    Memory,
    checkpoint_place,
    memory_of,
    recomputed_kernels,
    recomputed_regions,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    import polars as pl

    from traceq.linter import Finding

_FORWARD = {"Sequence number": 1, "Fwd thread id": 0}
_AGAIN = {"Sequence number": 2, "Fwd thread id": 0}
_BACKWARD = {"Sequence number": 1, "Fwd thread id": 1}
_CALL = (
    "call the module itself instead of checkpoint(module, …); the results stay the same"
)
_SWITCH = (
    "gradient_checkpointing_disable() of the model, or gradient_checkpointing=False of"
    " the Trainer; the results stay the same"
)
_UNKNOWN = (
    "if memory has room, which profile_memory=True would show (so does traceq collect),"
    " "
)
_MANY_RANKS = "; do it on all ranks, if all have room"


@dataclass(frozen=True)
class UnneededRecomputation(Rule):
    """Activation checkpointing computes the forward twice with memory to spare.

    ## What it does

    Looks for ops of a forward inside the backward: in ``CheckpointFunctionBackward``,
    or where a node of autograd unpacks what ``checkpoint(use_reentrant=False)`` did not
    save. What a region allocates when it runs again is what it would keep without
    checkpointing. If the peak with all of it leaves ``spare`` of the GPU's memory free,
    there is a finding; if it does not, there is none.

    ## Why is this bad?

    Checkpointing pays for memory with time: a forward costs about half as much as a
    backward, so a step in which all layers are checkpointed takes a third longer, more
    where the host bounds it. Without need for the memory, this is lost.

    ## How to fix it

    Call the layers without ``checkpoint()``, or checkpoint fewer of them. The results
    stay the same.

    ```diff
      for layer in self.layers:
    -     x = checkpoint(layer, x, use_reentrant=False)
    +     x = layer(x)
    ```

    ## When it is wrong

    If other steps are larger than the recorded ones, as with longer sequences, they may
    need the memory: compare the peak of the run (``torch.cuda.max_memory_allocated()``)
    with that of the recording. Where allocations or the GPU's memory were not recorded,
    it is unknown whether the model fits; the finding says so and is minor.
    """

    code = "MEM011"
    since = "0.2.0"
    see = ("torch.utils.checkpoint.checkpoint",)
    needs = frozenset({Need.GPU, Need.OPS})

    # Heuristic threshold: the CUDA context, fragmentation and libraries need some, too.
    spare: float = option(0.15, "The share of the GPU's memory that has to stay free.")

    seen = Seen(
        text="""
        MEM011 unneeded-recomputation (uncertain)
          saves 11.5 µs/step (37%), 9.28 µs to 13.0 µs
          the backward computes 1 region of the forward again
          gpu     13.0 µs
          memory  not recorded: whether the model fits is unknown
          kernel  gemm ×1
          fix     if memory has room, which profile_memory=True would show (so does
                  traceq collect), call the module itself instead of
                  checkpoint(module, …); the results stay the same
        """,
    )

    examples = (
        Bad(
            """
            host   [ProfilerStep#1                                                  ]
            host    [aten::linear      ]
            host     [cudaLaunchKernel>1]
            host 2                        [AddmmBackward0                          ]
            host 2                         [aten::linear.2      ][aten::mm          ]
            host 2                          [cudaLaunchKernel>2] [cudaLaunchKernel>3]
            gpu 7                [gemm<1 ]           [gemm<2     ]           [gemm<3 ]
            """,
            finds="the backward computes 1 region of the forward again",
            args={
                "aten::linear": _FORWARD,
                "aten::linear.2": _AGAIN,
                "AddmmBackward0": _BACKWARD,
            },
        ),
        Good(
            """
            host   [ProfilerStep#1                                                  ]
            host    [aten::linear      ]
            host     [cudaLaunchKernel>1]
            host 2                        [AddmmBackward0                          ]
            host 2                                               [aten::mm          ]
            host 2                                               [cudaLaunchKernel>3]
            gpu 7                [gemm<1 ]                                   [gemm<3 ]
            """,
            args={"aten::linear": _FORWARD, "AddmmBackward0": _BACKWARD},
        ),
    )

    def check(self, view: View) -> Iterator[Finding]:
        """Compare the memory that the regions save with what is free."""
        regions = recomputed_regions(view)
        kernels = recomputed_kernels(view, regions)
        if kernels.is_empty():
            return
        memory = memory_of(view, regions)
        left = memory.left()
        if left is not None and left < self.spare:
            return
        place = checkpoint_place(view, regions)
        count = regions.height / view.steps
        yield self.finding(
            f"the backward computes {counted(count, 'region')} of the forward again"
            + _free(memory),
            subject="checkpoint",
            place=place,
            count=count,
            fix=Fix(kernels=kernels["id"], spans=regions.select("start", "end")),
            evidence=[
                Evidence(
                    "gpu", value=int(kernels["dur"].sum()) / view.steps, unit="ns"
                ),
                *_memory_lines(memory),
                *kernel_lines(view, kernels["id"]),
                *module_line(_modules(view, regions)),
            ],
            advice=_advice(view, place.via, is_known=left is not None),
            severity=Severity.info if left is None else None,
            data={
                "saved_bytes": memory.saved,
                "peak_bytes": memory.peak,
                "device_bytes": memory.device,
            },
        )


def _free(memory: Memory) -> str:
    return "" if memory.free is None else f", with {size(memory.free)} of memory free"


def _memory_lines(memory: Memory) -> Iterator[Evidence]:
    """Yield what checkpointing saves, and whether the model fits without it."""
    saved, peak, device = memory.saved, memory.peak, memory.device
    if saved is None or peak is None:
        yield Evidence("memory", "not recorded: whether the model fits is unknown")
        return
    yield Evidence("saves", value=saved, unit="bytes", note="of activations")
    limit = f"of {size(device)}" if device else "of an unknown memory"
    without = f"{size(peak + saved)} without checkpointing"
    yield Evidence("peak", f"{size(peak)}, {without}, {limit}")


def _advice(view: View, via: str | None, *, is_known: bool) -> str:
    """Return how to call the layers without checkpoint()."""
    switch = _SWITCH if via and "transformers/" in via else _CALL
    ranks = _MANY_RANKS if view.distributed else ""
    return ("" if is_known else _UNKNOWN) + switch + ranks


def _modules(view: View, regions: pl.DataFrame) -> list[str]:
    """Return the modules that the regions run, in order."""
    modules = view.trace.ops["module"][regions["ops"].explode()]
    return [str(module) for module in modules.drop_nulls().unique(maintain_order=True)]
