"""Frames of a memory snapshot's stacks: owner and meaning.

A stack mixes Python and C++: Python's frames have a line, those of C++ have none. The
patterns are in the syntax of Rust's regex crate and are matched against the distinct
frames of a snapshot, not against its events.
"""

from __future__ import annotations

import polars as pl

from traceq.model.owners import NOBODY, Owners, is_own

# What an allocation is certainly for if such a frame is on its stack: patterns of the
# file and of the function.
_BACKWARD = (
    r"torch/autograd/(__init__|graph)\.py$",
    r"^torch::autograd::(Engine|python::PythonEngine)::|^_engine_run_backward$",
)
_OPTIMIZER = (
    r"(^|/)torch/optim/|torch/nn/utils/clip_grad\.py$|torch/(cuda/)?amp/grad_scaler\.py$"
    r"|(^|/)(apex/optimizers|bitsandbytes/optim|torchao/optim|deepspeed/ops/\w+)/"
    r"|(^|/)megatron/core/optimizer/",
    r"^at::_ops::_(fused|foreach)_(adam|sgd|adagrad)",
)
_MODULE_CALL = (r"(^|/)torch/nn/modules/module\.py$", r"^_call_impl$")
_PARAMETERS = (
    r"(^|/)torch/nn/(parameter|init)\.py$|(^|/)safetensors/",
    r"^(load_state_dict|_load_from_state_dict|from_pretrained|reset_parameters)$"
    r"|^(_?init|load|create)_weights?(_list)?$",
)
# Module.to and its like; a module's forward may call functions of these names.
_MODULE_MOVE = (r"(^|/)torch/nn/modules/module\.py$", r"^(_apply|to|cuda|convert)$")
_COMMUNICATION = (
    r"torch/distributed/(distributed_c10d|_functional_collectives)\.py$"
    r"|torch/distributed/fsdp/(_flat_param|_fully_shard/_fsdp_collectives)\.py$"
    r"|(^|/)deepspeed/comm/",
    r"^c10d::|ProcessGroupNCCL|^_?nccl",
)
_LOSS = (
    r"(^|/)torch/nn/modules/loss\.py$|(^|/)liger_kernel/ops/\w*cross_entropy",
    r"(?i)^at::_ops::\w*(log_softmax|nll_loss|cross_entropy|_loss)\w*::"
    r"|\b(LogSoftmax|NllLoss\w*|CrossEntropy\w*|\w+Loss)Backward\d*\b"
    r"|^\w*(cross_?entropy|nll_loss)\w*$",
)
_SOFTMAX = (
    r"",
    r"^at::_ops::(_softmax|softmax_int|_safe_softmax|_masked_softmax|_softmax_backward_data)::"
    r"|::(Softmax|SafeSoftmax)Backward\d*\b|^(masked_)?softmax$",
)
_BATCHED_MATMUL = (r"", r"^at::_ops::(bmm|baddbmm)::")

_CAPTURE = (
    r"torch/cuda/graphs\.py$|cudagraph\w*\.py$|cuda_graph\w*\.py$",
    r"^at::cuda::CUDAGraph::",
)
# Scratch space that cuBLAS never frees.
_WORKSPACE = (r"", r"^at::cuda::(blas::)?\(?.*[wW]orkspace|getCUDABlas\w*Workspace")

_FLAGS = {
    "backward": _BACKWARD,
    "optimizer": _OPTIMIZER,
    "forward": _MODULE_CALL,
    "parameters": _PARAMETERS,
    "moved": _MODULE_MOVE,
    "communication": _COMMUNICATION,
    "loss": _LOSS,
    "softmax": _SOFTMAX,
    "batched_matmul": _BATCHED_MATMUL,
    "capture": _CAPTURE,
    "workspace": _WORKSPACE,
}
# Both the file and the function must match for these; for the others one is enough.
_BOTH = ("forward", "moved")
FLAGS = tuple(_FLAGS)

# An operator's name is followed by that of its overload, if it has one.
_OP = (
    r"^at::_ops::(\w+?)(?:_(?:Tensor|Scalar|self|int|dim|default|dtype|device|low|out"
    r"|other|names|generator|memory_format|correction|source|indices)\w*)?"
    r"::(?:call|redispatch)"
)
_NODE = r"(\w+Backward\d*)(?:_apply_functional|::apply)"


def describe_frames(frames: pl.DataFrame, owners: Owners = NOBODY) -> pl.DataFrame:
    """Return for each frame whether it is ``python``, the user's ``own``, its meaning.

    ``op`` is its ATen operator and ``node`` its autograd node, if any; the other
    columns are ``FLAGS``.
    """
    file = pl.col("file").cast(pl.String)
    function = pl.col("function").cast(pl.String)
    python = (pl.col("line") > 0) & file.str.contains(r"\.py$|^<")
    return frames.select(
        "id",
        python=python,
        own=python & is_own(file, owners, function),
        op=function.str.extract(_OP),
        node=function.str.extract(_NODE),
        **{
            flag: _fits(patterns, both=flag in _BOTH)
            for flag, patterns in _FLAGS.items()
        },
    )


def _fits(patterns: tuple[str, str], *, both: bool) -> pl.Expr:
    columns = zip(("file", "function"), patterns, strict=True)
    parts = [
        pl.col(name).cast(pl.String).str.contains(pattern)
        for name, pattern in columns
        if pattern
    ]
    return pl.all_horizontal(parts) if both else pl.any_horizontal(parts)
