"""Requirements of a rule: the data that a recording must have."""

from __future__ import annotations

from enum import Enum


class Need(Enum):
    """Data that a rule requires; the value says what is missing and what to do.

    A rule whose needs are not met is reported as skipped, never as clean.
    """

    GPU = "the trace has no GPU work"
    NO_GPU = "the trace has GPU work, which other rules look at"
    STEPS = "the trace has no steps: call prof.step() in the loop"
    WARM = (
        "the recorded step is the first that uses the GPU, and its time that of the"
        " start: record later steps"
    )
    SHAPES = "shapes were not recorded: profile(record_shapes=True)"
    VALUES = (
        "values and strides of inputs were not recorded: record with PyTorch's"
        " profile(record_shapes=True)"
    )
    STACKS = "stacks were not recorded: profile(with_stack=True)"
    LINES = (
        "stacks were not recorded, and nothing else tells the lines:"
        " profile(with_stack=True)"
    )
    OPS = "the trace has no operators: profile(activities=[CPU, CUDA])"
    LOG = "there is no log: pass --log FILE, or record with traceq collect"
    SNAPSHOT = (
        "there is no memory snapshot: pass the file that"
        " torch.cuda.memory._dump_snapshot wrote, or record with traceq collect"
    )
    HISTORY = (
        "the snapshot has no history: call torch.cuda.memory._record_memory_history()"
        " before the part of the program that it should show"
    )
    CALLERS = (
        "the snapshot has no stacks: torch.cuda.memory._record_memory_history("
        'context="all")'
    )
    OPERATORS = (
        "the snapshot has only Python stacks, which do not name operators, and there"
        " is no trace with memory events next to it:"
        ' torch.cuda.memory._record_memory_history(stacks="all")'
    )
    JOB = "this is one rank of a job: run traceq ranks on the traces of all of them"
    MEMORY_STEPS = (
        "the snapshot does not show two steps: record more, with stacks or with"
        " regions around forward, backward and optimizer"
    )


_WITH_NSYS = {
    Need.GPU: "the trace has no GPU work: nsys profile --trace=cuda,nvtx",
    Need.STEPS: (
        "the trace has no steps: torch.cuda.nvtx.range_push('step') in the loop, and"
        " range_pop() at its end"
    ),
    Need.SHAPES: (
        "shapes were not recorded: nsys profile --pytorch=autograd-shapes-nvtx"
    ),
    Need.STACKS: "stacks were not recorded: nsys profile --python-backtrace=cuda",
    Need.LINES: (
        "stacks were not recorded, and nothing else tells the lines: nsys profile"
        " --python-backtrace=cuda"
    ),
    Need.OPS: (
        "the trace has no operators: nsys profile --pytorch=autograd-shapes-nvtx"
    ),
}


def lacking(need: Need, recorder: str = "") -> str:
    """Return what is missing and what to do, for the profiler that recorded.

    >>> lacking(Need.SHAPES, "Nsight Systems 2026.2.1")
    'shapes were not recorded: nsys profile --pytorch=autograd-shapes-nvtx'
    """
    return _WITH_NSYS.get(need, need.value) if recorder else need.value
