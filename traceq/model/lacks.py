"""Sentences on what an export of Nsight Systems lacks, each with its remedy."""

from __future__ import annotations

NO_GPU_WORK = "recorded without --trace=cuda: no GPU work"
NO_OPERATORS = "recorded without --pytorch=autograd-shapes-nvtx: no operators"
NO_SHAPES = "recorded without --pytorch=autograd-shapes-nvtx: no shapes"
NO_LINES = "recorded without --python-backtrace=cuda: no source lines"
NO_STEPS = "recorded without torch.cuda.nvtx.range_push('step') in the loop: no steps"
NO_VALUES = "only PyTorch's profiler records values and strides of inputs"
WHOLE_GRAPHS = (
    "CUDA graphs were traced as a whole, so that their kernels are not visible: record"
    " with --cuda-graph-trace=node"
)
NO_GRAPHS = (
    "kernels of CUDA graphs were not traced: record with --cuda-graph-trace=node"
)
NO_MESSAGES = "exported without --include-blobs=true: no sizes of NCCL's messages"
NO_GPU_NAME = (
    "the GPU's name was not exported, so its peaks are unknown: export the whole report"
    " with nsys export"
)
UNKNOWN_OVERHEAD = (
    "how much Nsight Systems slows the host down is not known: the host's time counts"
    " as recorded, less the overhead that it reports; --step-ms takes the time of a"
    " step that was measured without it"
)
