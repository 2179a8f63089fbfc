"""Waits of libraries that have a switch: by the function that waits, and its op."""

from __future__ import annotations

import re
from typing import NamedTuple

_ASKED = "aten::is_nonzero"
ARGUMENTS = "the check of a distribution's arguments"
"""Of what is constructed at one place, and asked for at others."""
_UNCHECKED = (
    "pass validate_args=False where the distribution is made, once the program is"
    " right; or turn off the checks of all:"
    " torch.distributions.Distribution.set_default_validate_args(False)"
)


class KnownWait(NamedTuple):
    """A wait by the innermost function, as ``file: function``."""

    function: str
    """A pattern."""
    op: str | None
    """The op that waits; any if none."""
    written: str
    advice: str
    checks: tuple[str, ...] = ()
    """The ops that only compute what is asked for, and go with the wait."""
    is_check: bool = False
    """True if all ops of the function do."""
    around: str = ""
    """A pattern: the call that is made less often, with all that it does."""

    def removes(self) -> bool:
        """Return whether more goes than the wait."""
        return self.is_check or bool(self.checks or self.around)


_WAITS = (
    KnownWait(
        r"(^|/)torch/_tensor\.py: __format__$",
        None,
        "formatting a tensor",
        "format it (f-string, format, logging) once in many steps, or after the loop",
    ),
    KnownWait(
        r"(^|/)torch/storage\.py: cpu$",
        None,
        "saving tensors of the GPU (`torch.save`)",
        "save less often; or copy the state into pinned memory and write it in another"
        " thread or process, as torch.distributed.checkpoint.async_save does",
        around=r"(^|/)torch/serialization\.py\(\d+\): save$",
    ),
    KnownWait(
        r"(^|/)torch/optim/optimizer\.py: _get_value$",
        None,
        "the optimizer's step counter, which is on the GPU,",
        "pass fused=True to the optimizer, or capturable=True: both read it on the GPU;"
        " it is there where tensors are made on the GPU by default"
        " (torch.set_default_device, set_default_tensor_type)",
    ),
    KnownWait(
        r"(^|/)torch/(cuda/)?amp/grad_scaler\.py: (_maybe_opt_step|<genexpr>)$",
        None,
        "GradScaler's check of the gradients",
        "use an optimizer with fused=True (Adam, AdamW, SGD), which checks on the"
        " GPU; or train in bfloat16, which needs no GradScaler",
    ),
    KnownWait(
        r"(^|/)torch/(cuda/)?amp/grad_scaler\.py: get_scale$",
        None,
        "`scaler.get_scale()`",
        "read the scale once in many steps",
    ),
    KnownWait(
        r"(^|/)torch/nn/utils/clip_grad\.py: ",
        _ASKED,
        "the error check of `clip_grad_norm_`",
        "pass error_if_nonfinite=False, and look at the norm that it returns once in"
        " many steps",
        checks=("aten::isnan", "aten::isinf", "aten::logical_or", _ASKED),
    ),
    KnownWait(
        r"(^|/)transformers/trainer\.py: ",
        _ASKED,
        "the Trainer's filter of NaN losses",
        "set logging_nan_inf_filter=False in TrainingArguments: it only concerns the"
        " loss that is logged",
        checks=("aten::isnan", "aten::isinf", _ASKED),
    ),
    KnownWait(
        r"(^|/)transformers/trainer\.py: _maybe_log_save_evaluate$",
        None,
        "the Trainer's logging",
        "raise logging_steps in TrainingArguments",
    ),
    KnownWait(
        r"(^|/)torch/distributions/distribution\.py: ",
        _ASKED,
        ARGUMENTS,
        _UNCHECKED,
        is_check=True,
    ),
    KnownWait(
        r"(^|/)torch/distributions/(constraints|continuous_bernoulli|geometric)\.py: ",
        _ASKED,
        ARGUMENTS,
        _UNCHECKED,
    ),
    KnownWait(
        r"(^|/)torch/distributions/normal\.py: sample$",
        "aten::normal",
        "`sample()` of a normal distribution",
        "take dist.rsample().detach(): sample() asks whether any deviation is negative,"
        " and rsample() does not",
    ),
    KnownWait(
        r"(^|/)transformers/masking_utils\.py: find_packed_sequence_indices$",
        None,
        "the check for packed sequences",
        "compile the model, which skips the check: nothing else turns it off for a"
        " batch without attention_mask",
    ),
    KnownWait(
        r"(^|/)transformers/masking_utils\.py: _ignore_[a-z]+_mask_sdpa$",
        None,
        "the check whether any token is padded",
        "leave attention_mask out where none is, or compile the model, which skips the"
        " check",
    ),
    KnownWait(
        r"(^|/)torch_geometric/utils/_scatter\.py: scatter$",
        None,
        "counting the groups of a scatter",
        "pass their number: size= of a global pooling, dim_size= of a scatter, as the"
        " batch knows it (num_graphs)",
    ),
    KnownWait(
        r"(^|/)torch/nn/modules/transformer\.py: _detect_is_causal_mask$",
        None,
        "the check whether a mask is causal",
        "pass is_causal=True or False along with the mask",
        is_check=True,
    ),
)
# Functions of torch that do what their caller asks, as a method written in Python.
_PLUMBING = (
    r"(^|/)torch/((functional|_tensor|_tensor_str|_jit_internal|overrides|_ops"
    r"|_compile|storage)\.py|utils/(_contextlib|_device|_python_dispatch)\.py"
    r"|cuda/(__init__|streams)\.py|nn/modules/module\.py|autograd/|_dynamo/"
    r"|_inductor/|_functorch/|profiler/)"
)
_TORCH = r"(^|.*/)(?=torch/)"


def known_wait(file: str | None, function: str | None, op: str) -> KnownWait | None:
    """Return what is known of a wait in this function."""
    where = f"{file}: {function}"
    for wait in _WAITS:
        if wait.op in (None, op) and re.search(wait.function, where):
            return wait
    return None


def known_as(written: str) -> KnownWait:
    """Return what is known of waits that are written like this.

    Of several it is one that also removes what a check computes.
    """
    waits = [wait for wait in _WAITS if wait.written == written]
    return max(waits, key=KnownWait.removes)


def torch_file(file: str | None) -> str | None:
    """Return a file of torch as in its package; none if it is not what waits."""
    if file is None or re.search(_PLUMBING, file) or not re.match(_TORCH, file):
        return None
    return re.sub(_TORCH, "", file, count=1)
