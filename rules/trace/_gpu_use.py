"""Signs that a program used a GPU, where its trace has no GPU work."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceq.analysis.time.launch_overhead import launches_outside_captures
from traceq.linter import counted, named_like

if TYPE_CHECKING:
    from traceq.linter import Trace

MISSING = "GPU work"
"""Its name in a run folder."""
_INCOMPLETE = "incomplete"
_CPU_DEVICE = 0
# Only GPUs have these; the CPU's attention has names of its own, as ..._for_cpu, and an
# LSTM asks on any device whether cuDNN would do.
_GPU_OPS = (
    r"^aten::(_?cudnn_([^i]|init)|_?miopen_|_(flash|efficient|cudnn)_attention_"
    r"|_scaled_dot_product_(flash|efficient|cudnn)_attention(_backward)?$)|^nccl:"
)
_GPU_CALLS = ("copy", "set")


def sign_of_gpu(trace: Trace) -> str:
    """Return the evidence that the program used a GPU; empty if there is none.

    A GPU of the machine is no sign: programs run on the CPU beside one, and the
    profiler itself waits for it when it stops.
    """
    rank = trace.rank
    if rank and rank.device.startswith("cuda"):
        return f"its steps ran on {rank.device}"
    if rank and (rank.state == _INCOMPLETE or MISSING in rank.reasons):
        return "traceq collect saw it use CUDA"
    launches = launches_outside_captures(trace.runtime).height
    if launches:
        return f"it made {counted(launches, 'launch')}"
    copies = int(trace.runtime["call"].is_in(_GPU_CALLS).sum())
    if copies:
        return f"it called for {counted(copies, 'copy')}"
    types = trace.memory["device_type"].drop_nulls()
    if (types != _CPU_DEVICE).any():
        return "it allocated memory on it"
    ops = trace.ops["name"].filter(named_like(trace.ops[["name"]], _GPU_OPS))
    return f"it ran {ops[0]}" if len(ops) else ""
