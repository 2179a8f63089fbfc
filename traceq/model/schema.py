"""Schema of every table: each column with its type, its unit and its meaning.

``traceq schema`` prints this page, the reader takes from it which argument of an
event fills which column, and the tests hold every loaded trace against it.

Times are integer nanoseconds, ``ts`` counted from the start of the trace
(``Facts.start_ns``); sizes are bytes. An ``id`` is the row number of its table,
so that ``kernels.op`` can be joined with ``ops.id``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import polars as pl
from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Mapping

Dtype: TypeAlias = pl.DataType | type[pl.DataType]

PHASES = ("forward", "backward", "optimizer", "data", "other")
ACTIVITIES = ("kernel", "memcpy", "memset")
KINDS = (
    "gemm",
    "attention",
    "conv",
    "norm",
    "softmax",
    "elementwise",
    "reduction",
    "fused",
    "copy",
    "embedding",
    "sort",
    "pooling",
    "routing",
    "optimizer",
    "communication",
    "memory",
    "other",
    "unknown",
)
"""Work of kernels: fused is of elementwise ops and reductions by torch.compile,
embedding any indexing, routing brings tokens to experts and back, memory fills; other
is known but none of these, and unknown is in no family of model/kernel_families.py."""
CALLS = (
    "launch",
    "graph launch",
    "copy",
    "set",
    "sync",
    "allocation",
    "capture",
    "other",
)

ID = pl.UInt32()
NS = pl.Int64()
NUMBER = pl.Int64()
TEXT = pl.Categorical()


class Column(Struct, frozen=True):
    """One column: what it holds, in which unit, and where a trace says it."""

    dtype: Dtype
    meaning: str
    unit: str = ""
    arg: str = ""
    """The key in the event's ``args`` that the reader takes the value from."""
    of_collectives: bool = False
    """True if only kernels of collectives have it."""


def _points_to(table: str, meaning: str) -> Column:
    return Column(ID, meaning, unit=f"{table}.id")


def _of_collective(dtype: Dtype, meaning: str, arg: str) -> Column:
    return Column(dtype, meaning, arg=arg, of_collectives=True)


_NUMBERS = pl.List(pl.Int64())
_ROW = Column(ID, "Row number; other tables point here.")
_TS = Column(NS, "Start, since the start of the trace.", "ns")
_DUR = Column(NS, "Duration.", "ns")
_THREAD = _points_to("threads", "The thread it ran on.")
_STEP = Column(NUMBER, "Number of the step it belongs to, as in ProfilerStep#N.")
_PHASE = Column(pl.Enum(PHASES), "Part of the step: " + ", ".join(PHASES) + ".")
_CORRELATION = Column(
    NUMBER, "Ties a runtime call to the GPU work it started.", arg="correlation"
)

_SOURCE = {
    "module": Column(TEXT, "Path of nn.Modules around it, as Net_0/Block_3/Linear_7."),
    "file": Column(TEXT, "The user's own source file; for backward, the forward's."),
    "line": Column(
        ID,
        "Line in that file at which the function begins; none where the function was"
        " running when the profiler started and is called nowhere else.",
    ),
    "function": Column(TEXT, "The user's function."),
    "via": Column(
        TEXT,
        "The library's function that the user's one called and that it runs in, as"
        " forward (transformers/models/llama/modeling_llama.py:51); none for torch's.",
    ),
    "call_line": Column(
        ID,
        "Line of the function that runs it, for backward the forward's; none where it"
        " is not known, as without collect or the source.",
    ),
}

OPS = {
    "id": _ROW,
    "name": Column(TEXT, "Name of the operator, as aten::mm."),
    "thread": _THREAD,
    "ts": _TS,
    "dur": _DUR,
    "self_dur": Column(NS, "Time in which no op inside it was running.", "ns"),
    "parent": _points_to("ops", "The op that called it; none for an outermost op."),
    "depth": Column(ID, "How many ops are around it."),
    "children": Column(ID, "How many ops it called directly."),
    "step": _STEP,
    "phase": _PHASE,
    **_SOURCE,
    "forward": _points_to("ops", "For a backward op: the forward op it belongs to."),
    "inputs": _points_to("inputs", "Shapes, types, strides and values of its inputs."),
    "compiling": Column(pl.Boolean(), "Ran while torch.compile was compiling."),
    "captured": Column(
        pl.Boolean(),
        "Ran while a CUDA graph was captured, so that its kernels run in the replays."
        " For each replay there is a copy, with a ts below 0: the host did not run it.",
    ),
    "sequence": Column(
        NUMBER,
        "Autograd's number; a backward op has its forward's.",
        arg="Sequence number",
    ),
    "forward_thread": Column(
        NUMBER,
        "Autograd's number of the thread that ran the forward; 0 on forward ops.",
        arg="Fwd thread id",
    ),
}

KERNELS = {
    "id": _ROW,
    "name": Column(TEXT, "Name of the kernel, or Memcpy, Memset with its kinds."),
    "activity": Column(pl.Enum(ACTIVITIES), "What the GPU recorded it as."),
    "kind": Column(pl.Enum(KINDS), "What it computes: " + ", ".join(KINDS) + "."),
    "dtype": Column(TEXT, "Dtype read from the kernel's name, if it has one."),
    "library": Column(TEXT, "Where the kernel comes from, as cublas, triton, aten."),
    "device": Column(NUMBER, "The GPU's ordinal.", arg="device"),
    "stream": Column(NUMBER, "The GPU stream.", arg="stream"),
    "ts": _TS,
    "dur": _DUR,
    "launch": _points_to("runtime", "The call that started it, if it is in the file."),
    "op": _points_to(
        "ops",
        "The innermost op around its launch; for a replayed CUDA graph the copy of the"
        " op that was captured, where that is known.",
    ),
    "certain": Column(
        pl.Boolean(),
        "Whether the captured op of a replayed kernel can be no other; else it may be"
        " another call of the same op. None where no captured op is known.",
    ),
    "step": Column(NUMBER, "Number of the step that launched it."),
    "phase": _PHASE,
    **_SOURCE,
    "bytes": Column(NUMBER, "Size of a copy or set.", "bytes", arg="bytes"),
    "grid": Column(pl.List(pl.Int64()), "Thread blocks in x, y, z.", arg="grid"),
    "block": Column(pl.List(pl.Int64()), "Threads of a block in x, y, z.", arg="block"),
    "registers": Column(NUMBER, "Registers per thread.", arg="registers per thread"),
    "shared_memory": Column(
        NUMBER, "Shared memory of a block.", "bytes", arg="shared memory"
    ),
    "blocks_per_sm": Column(
        pl.Float64(), "Blocks per multiprocessor.", arg="blocks per SM"
    ),
    "occupancy": Column(
        NUMBER, "Estimated occupancy.", "%", arg="est. achieved occupancy %"
    ),
    "graph_id": Column(NUMBER, "CUDA graph it ran in; torch 2.12 on.", arg="graph id"),
    "graph_node": Column(
        NUMBER, "Node of that graph, the same in every replay.", arg="graph node id"
    ),
    "collective": Column(
        TEXT, "Collective that it carries out.", arg="Collective name"
    ),
    "group_size": Column(NUMBER, "Ranks in the collective.", arg="Group size"),
    "elements": Column(NUMBER, "Elements the collective sends.", arg="In msg nelems"),
    "elements_out": _of_collective(NUMBER, "Elements it receives.", "Out msg nelems"),
    "sent_dtype": _of_collective(TEXT, "Dtype of these elements.", "dtype"),
    "splits_in": _of_collective(
        _NUMBERS, "Elements, or rows, sent to each rank, if unequal.", "In split size"
    ),
    "splits_out": _of_collective(
        _NUMBERS, "Elements, or rows, received from each rank.", "Out split size"
    ),
    "group": _of_collective(TEXT, "Name of its process group.", "Process Group Name"),
    "group_use": _of_collective(
        TEXT, "What the group is for, as default_pg.", "Process Group Description"
    ),
    "group_ranks": _of_collective(
        _NUMBERS, "Ranks of the group, the first 30 of many.", "Process Group Ranks"
    ),
    "source": _of_collective(NUMBER, "Rank that sends to this one.", "Src Rank"),
    "destination": _of_collective(NUMBER, "Rank that it sends to.", "Dst Rank"),
    "number": _of_collective(
        NUMBER, "Number of the collective in its group; torch 2.12 on.", "Seq"
    ),
    "comms_id": _of_collective(
        TEXT, "The same on all ranks of a collective; torch 2.13 on.", "Comms Id"
    ),
    "correlation": _CORRELATION,
}

RUNTIME = {
    "id": _ROW,
    "name": Column(TEXT, "Name of the CUDA or HIP function."),
    "call": Column(pl.Enum(CALLS), "What it does: " + ", ".join(CALLS) + "."),
    "thread": _THREAD,
    "ts": _TS,
    "dur": _DUR,
    "op": _points_to("ops", "The innermost op around it."),
    "kernels": Column(ID, "How much GPU work it started."),
    "step": _STEP,
    "phase": _PHASE,
    **_SOURCE,
    "kernel": Column(TEXT, "Name of the kernel it launches; ROCm.", arg="kernel"),
    "grid": Column(_NUMBERS, "Thread blocks of that kernel; ROCm.", arg="grid"),
    "correlation": _CORRELATION,
}

ANNOTATIONS = {
    "id": _ROW,
    "name": Column(
        TEXT, "Text of the region, as FORWARD or Optimizer.step#AdamW.step."
    ),
    "on_gpu": Column(pl.Boolean(), "The GPU's span of a region instead of the host's."),
    "thread": _points_to("threads", "The thread, or the GPU's stream, it was on."),
    "ts": _TS,
    "dur": _DUR,
    "step": _STEP,
}

STEPS = {
    "step": Column(NUMBER, "Number, as in ProfilerStep#N."),
    "ts": Column(NS, "Start on the host.", "ns"),
    "dur": Column(NS, "Duration on the host.", "ns"),
    "start": Column(NS, "When the GPU is done with earlier steps.", "ns"),
    "end": Column(NS, "When host and GPU are done with this one.", "ns"),
    "time": Column(NS, "end - start: how long the step took.", "ns"),
    "gpu_busy": Column(NS, "Time in which work of this step ran on the GPU.", "ns"),
    "gpu_idle": Column(NS, "Time of the step in which nothing ran on the GPU.", "ns"),
    "kernels": Column(ID, "Pieces of GPU work that the step launched."),
    "launches": Column(ID, "Calls that launched kernels or CUDA graphs."),
    "warmup": Column(pl.Boolean(), "An outlier at the start; left out of averages."),
    "averaged": Column(pl.Boolean(), "Whether averages include it."),
}

FRAMES = {
    "id": _ROW,
    "name": Column(TEXT, "As recorded, less the addresses of objects."),
    "file": Column(TEXT, "Source file; none for built-ins and modules."),
    "line": Column(
        ID,
        "Line at which the function begins, if that is known; of a file's own"
        " statements the one that ran when the recording started.",
    ),
    "function": Column(TEXT, "Function."),
    "own": Column(pl.Boolean(), "The user's own code, not a library's."),
    "call_line": Column(ID, "Line of its caller that calls it, if collect wrote it."),
    "thread": _THREAD,
    "ts": _TS,
    "dur": Column(
        NS, "Duration; until the call around it ends if no return was recorded.", "ns"
    ),
}

MEMORY = {
    "id": _ROW,
    "ts": _TS,
    "thread": _THREAD,
    "bytes": Column(
        NUMBER, "Size of the block; negative when it is freed.", "bytes", arg="Bytes"
    ),
    "address": Column(NUMBER, "Address of the block.", arg="Addr"),
    "allocated": Column(
        NUMBER, "Allocated on the device after this.", "bytes", arg="Total Allocated"
    ),
    "reserved": Column(
        NUMBER, "Held by the allocator after this.", "bytes", arg="Total Reserved"
    ),
    "device_type": Column(NUMBER, "0 CPU, 1 CUDA or ROCm, 12 XPU.", arg="Device Type"),
    "device": Column(NUMBER, "The device's ordinal; -1 for the CPU.", arg="Device Id"),
    "out_of_memory": Column(pl.Boolean(), "The allocation failed."),
    "op": _points_to("ops", "The innermost op around it."),
    "step": _STEP,
    "phase": _PHASE,
}

DEVICES = {
    "device": Column(NUMBER, "The GPU's ordinal."),
    "name": Column(pl.String(), "The GPU's name."),
    "memory": Column(NUMBER, "Memory.", "bytes"),
    "sms": Column(NUMBER, "Multiprocessors (NVIDIA) or compute units (AMD)."),
    "compute_major": Column(NUMBER, "Compute capability, major."),
    "compute_minor": Column(NUMBER, "Compute capability, minor."),
    "used": Column(pl.Boolean(), "GPU work of this trace ran on it."),
}

THREADS = {
    "id": _ROW,
    "pid": Column(pl.String(), "Process id, or the GPU's ordinal."),
    "tid": Column(pl.String(), "Thread id, or the GPU's stream."),
    "name": Column(pl.String(), "Name of the thread, if the trace gives one."),
}

INPUTS = {
    "id": _ROW,
    "dims": Column(
        pl.List(pl.List(pl.Int64())),
        "Shape of each input; empty for scalars, none for a list of tensors.",
    ),
    "types": Column(
        pl.List(pl.String()), "Type of each input; empty where none was given."
    ),
    "strides": Column(
        pl.List(pl.List(pl.Int64())), "Strides of each input; torch 2.4 on."
    ),
    "values": Column(pl.List(pl.String()), "Value of each scalar input; torch 2.1 on."),
    "dims_text": Column(pl.String(), "The shapes as recorded, tensor lists in full."),
}

FUSED = {
    "id": _ROW,
    "op": _points_to(
        "ops", "The op that ran the kernel; none for C++, which leaves no event."
    ),
    "kernel": Column(TEXT, "Name of the generated kernel."),
    "graph": Column(TEXT, "Number of the compiled graph, as 0/0."),
    "node": Column(TEXT, "Name of an op that the kernel computes, in that graph."),
    "computes": Column(TEXT, "What that op is, as gelu or aten.mul."),
    **_SOURCE,
    "bytes": Column(
        NUMBER,
        "Bytes that the op would read and write by itself; estimated from shapes.",
        "bytes",
    ),
    "share": Column(
        pl.Float64(), "Its share of the kernel's time, by bytes: an estimate."
    ),
}

OTHER = {
    "id": _ROW,
    "name": Column(TEXT, "Name of the event."),
    "category": Column(TEXT, "Its category, as overhead or cuda_sync."),
    "thread": _THREAD,
    "ts": _TS,
    "dur": _DUR,
    "args": Column(pl.String(), "Its arguments, as recorded."),
}


ACCOUNT_PARTS = (
    "work",
    "memory traffic that fusion avoids",
    "casts and copies",
    "layout changes",
    "wider dtype than needed",
    "misaligned shapes",
    "slow algorithm",
    "low occupancy or a partial wave",
    "launch-bound kernels",
    "contention between streams",
    "transfers and collectives",
    "unknown",
)
BOUNDS = ("compute", "bandwidth", "latency")

GPU_ACCOUNT = {
    "kernel": _points_to("kernels", "The kernel that the time is of."),
    "op": _points_to("ops", "The op whose operations and bytes are known, if any."),
    "part": Column(
        pl.Enum(ACCOUNT_PARTS),
        "What the time goes to: work is what operations and bytes need at the rate that"
        " kernels of this class reach, the others are losses.",
    ),
    "time": Column(
        NS, "Time; an instant of several kernels is of the first of them.", "ns"
    ),
    "bound": Column(
        pl.Enum(BOUNDS),
        "What sets the op's lower bound: operations, bytes, or that it is so small.",
    ),
    "name": Column(TEXT, "Name of the op, or of the kernel where none is known."),
    **{name: _SOURCE[name] for name in ("file", "line", "function", "module")},
}


class Table(Struct, frozen=True):
    """One table: what a row is, and its columns."""

    meaning: str
    columns: Mapping[str, Column]

    @property
    def dtypes(self) -> dict[str, Dtype]:
        """The type of each column, in order."""
        return {name: column.dtype for name, column in self.columns.items()}

    def shaped(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Return a frame with these columns, in this order, in these types."""
        # Column by column: most have their type, and no query is planned.
        result = {column.name: column for column in frame.iter_columns()}
        return pl.DataFrame(
            [
                result[name]
                if result[name].dtype == dtype
                else result[name].cast(dtype)
                for name, dtype in self.dtypes.items()
            ]
        )


TABLES = {
    "ops": Table("Operators that the host ran, one row a call.", OPS),
    "kernels": Table("What the GPU did: kernels, copies and sets.", KERNELS),
    "runtime": Table("Calls of the CUDA or HIP runtime and driver.", RUNTIME),
    "annotations": Table(
        "Regions named by record_function, on host and GPU.", ANNOTATIONS
    ),
    "steps": Table("The profiler's steps.", STEPS),
    "frames": Table("Python calls, where stacks were recorded.", FRAMES),
    "memory": Table("Allocations and frees, where memory was recorded.", MEMORY),
    "devices": Table("The machine's GPUs.", DEVICES),
    "threads": Table("Host threads and GPU streams.", THREADS),
    "inputs": Table("Distinct sets of op inputs; ops point here.", INPUTS),
    "fused": Table("Ops that kernels of torch.compile compute, in each run.", FUSED),
    "other": Table("Events that fit no table, with their arguments.", OTHER),
}

ANALYSES = {
    "gpu_account": Table(
        "The GPU's busy time of the steady steps, each kernel's by what it goes to.",
        GPU_ACCOUNT,
    ),
}
"""Frames that analyses return, beside the tables of a trace."""
