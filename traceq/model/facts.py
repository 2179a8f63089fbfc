"""Facts about a trace: its recording, its origin and its completeness."""

from __future__ import annotations

from dataclasses import dataclass, field, fields


def _fact(meaning: str) -> dict[str, str]:
    return {"meaning": meaning}


@dataclass(frozen=True)
class Facts:
    """One trace's facts; ``traceq schema`` prints what each one means."""

    path: str = field(metadata=_fact("The file, as it was given."))
    unpacked_bytes: int = field(metadata=_fact("Size of the file, unpacked."))
    events: int = field(metadata=_fact("Events in the file, of all kinds."))
    flows: int = field(metadata=_fact("Arrows between events, which are not kept."))
    start_ns: int | None = field(
        metadata=_fact("When ts is 0, in nanoseconds of Unix time, if the file says.")
    )
    torch_from: str = field(metadata=_fact("Oldest torch that writes such a file."))
    torch_to: str = field(metadata=_fact("Newest torch that writes such a file."))
    shapes: bool = field(metadata=_fact("Shapes of inputs were recorded."))
    stacks: bool = field(metadata=_fact("Python calls were recorded."))
    memory: bool = field(metadata=_fact("Allocations were recorded."))
    gpu: bool = field(metadata=_fact("There is work of a GPU in it."))
    steps_from: str = field(
        metadata=_fact("What the steps were taken from; empty if there are none.")
    )
    rank: int | None = field(metadata=_fact("Rank of the process."))
    world_size: int | None = field(metadata=_fact("How many ranks there are."))
    backend: str = field(metadata=_fact("Communication backend, as nccl."))
    runtime_version: str = field(metadata=_fact("CUDA or HIP runtime, as CUDA 12.8."))
    damage: tuple[str, ...] = field(
        metadata=_fact("What could not be read; empty if everything was.")
    )
    machine: str = field(
        default="",
        metadata=_fact("Which machine, as a short hash of its name; torch 2.12 on."),
    )
    steps_sure: str = field(
        default="",
        metadata=_fact("Confidence in the steps: certain, likely, guess; else empty."),
    )
    recorder: str = field(
        default="",
        metadata=_fact("Profiler that wrote it with its version, if not PyTorch's."),
    )
    lacks: tuple[str, ...] = field(
        default=(),
        metadata=_fact("What was not recorded, with the option that records it."),
    )
    origin_ns: int = field(
        default=0,
        metadata=_fact("When ts is 0, in nanoseconds as the file counts them."),
    )

    @property
    def dtypes_inferred(self) -> bool:
        """True if dtypes of inputs were inferred: Nsight Systems records none."""
        return bool(self.recorder) and self.shapes

    @property
    def incomplete(self) -> bool:
        """True if a part of the trace could not be read."""
        return bool(self.damage)

    @property
    def torch(self) -> str:
        """The versions of torch that the trace can be of, as text."""
        if self.torch_from == self.torch_to != "":
            return f"torch {self.torch_from}"
        if self.torch_from and self.torch_to:
            return f"torch {self.torch_from} to {self.torch_to}"
        if self.torch_from:
            return f"torch {self.torch_from} or later"
        return f"torch {self.torch_to} or earlier" if self.torch_to else "torch unknown"


FACTS = {
    item.name: (str(item.type), item.metadata["meaning"]) for item in fields(Facts)
}
"""Type and meaning of each fact."""
