"""Kinds of work in Python: what a function's calls look like, and the advice for it."""

from __future__ import annotations

import polars as pl

from traceq.linter import text
from traceq.model import names

ADVICE = (
    "replace loops over elements with operators of torch or NumPy on whole arrays, make"
    " what does not change once and keep it, or move what the step does not need out of"
    " it"
)
_OF_LOG = "do it once in many steps"
_OF_BATCH = (
    "make batches ahead of the step that needs them, in the DataLoader's workers or in"
    " a process of its own; and replace loops over elements with operators on whole"
    " arrays"
)
# What a function is for, by its name.
_LOGS = (
    r"(?i)^_*(log|print|describe|report|format|summary|summari[sz]e|monitor)"
    r"|_(log|print|report)"
)
_MAKES_BATCH = (
    r"(?i)^_*(get|make|next|load|sample|build|create|prepare|fetch|draw|read)\w*"
    r"(batch|example)|collate|augment|preprocess|tokeni[sz]|^__getitem__$"
)
_VECTOR = (
    "make it once before the loop, if it is the same in each step; else with operators"
    " on the GPU, as torch.arange(n, device=…) < lengths[:, None], or of one array of"
    " the list, torch.from_numpy(np.array(…))"
)
_TRITON = (
    "each launch goes through Triton's launcher in Python: launch fewer, larger"
    " kernels; make the kernel an operator (torch.library.triton_op) and compile the"
    " model, whose code launches it directly; or replay it in a CUDA graph"
)
_RECEIVED = (
    "it waits for the processes that send it, or unpickles what they sent: start more"
    " of them where its queue is often empty, and send smaller messages, as one array"
    " for a batch instead of many objects, or tensors by torch.multiprocessing, which"
    " shares their memory"
)
# What a function looks like by what it calls, and what to do about it.
LOOKS = (
    (
        "formats tensors",
        r"_tensor_str\.py|_tensor\.py\(\d+\): __(format|repr|str)__",
        "keep the tensor, and format it once in many steps",
    ),
    (
        "receives what other processes send",
        r"^(torch/)?multiprocessing/(queues|connection|managers|pool)\.py",
        _RECEIVED,
    ),
    ("launches Triton kernels", r"^triton/(runtime|backends|compiler)/", _TRITON),
    ("calls `.tolist()`", r"method tolist of", "keep the values on the GPU"),
    (
        "writes logs",
        r"^logging/|^(wandb|tensorboard|tensorboardX|mlflow|tqdm)/|function print>",
        "write once in many steps",
    ),
    (
        "works on text",
        r"tokeniz|sentencepiece|tiktoken|^re/|method (split|strip|lower|upper|join"
        r"|replace|encode|decode|format) of (str|bytes) object",
        f"{ADVICE}; tokenise before training",
    ),
    (
        "makes tensors of lists",
        r"method (tensor|as_tensor) of type",
        _VECTOR,
    ),
    (
        "loops over a tensor",
        r"method (__getitem__|unbind|select|item|__iter__) of Tensor|__iter__",
        "replace the loop with operators on the whole tensor",
    ),
    ("reads or writes JSON", r"^json/", ADVICE),
    ("copies objects", r"^copy\.py|deepcopy", "copy once, before the loop"),
)
WORKS = "works in Python"
# A smaller fraction of a function's time does not describe it. Heuristic threshold.
_LEAST_OF_FUNCTION = 0.1
# What runs in a model's forward has to run in every step, and no worker can do it.
_IN_FORWARD = (
    "it runs in the model's forward, in every step: replace loops with operators, make"
    " what does not change (as a mask or an index) once and keep it in a buffer, or"
    " compile the model"
)
_ENVIRONMENT = (
    "it is of the environment, which every step needs: run several environments at"
    " once in processes of their own (gymnasium.vector.AsyncVectorEnv), drop wrappers"
    " that nothing reads, or take an environment that runs on the GPU"
)


def in_forward(segments: pl.DataFrame) -> bool:
    """Return whether a function mostly runs inside of modules."""
    inside = segments.filter(pl.col("module").is_not_null())
    return 2 * int(inside["recorded"].sum()) > int(segments["recorded"].sum())


def every_step(segments: pl.DataFrame) -> bool:
    """Return whether a function has to run in every step."""
    return in_forward(segments) or of_environment(segments)


def looks_like(segments: pl.DataFrame) -> tuple[str, str]:
    """Return what a function does, by what takes longest of what is known."""
    looks, advice = _looks_like(segments)
    if ADVICE not in advice:
        return looks, advice
    if of_environment(segments):
        return looks, _ENVIRONMENT
    if in_forward(segments):
        return looks, _IN_FORWARD
    for named, better in ((_LOGS, _OF_LOG), (_MAKES_BATCH, _OF_BATCH)):
        if _is_named(segments, named):
            return looks, advice.replace(ADVICE, better)
    return looks, advice


def logs(segments: pl.DataFrame) -> bool:
    """Return whether a function is there to log, which need not be in every step."""
    seldom = looks_like(segments)[0] in ("formats tensors", "writes logs")
    return (seldom or _is_named(segments, _LOGS)) and not every_step(segments)


def _is_named(segments: pl.DataFrame, pattern: str) -> bool:
    named = text("function").str.contains(pattern)
    return bool(segments.select(named.any()).item())


def of_environment(segments: pl.DataFrame) -> bool:
    """Return whether a function is in a file of an environment."""
    files = text("file").str.contains(names.ENVIRONMENT_FILE)
    return bool(segments.select(files.any()).item())


def _looks_like(segments: pl.DataFrame) -> tuple[str, str]:
    name = pl.coalesce("library", "called")
    looks = pl.coalesce(
        pl.when(name.str.contains(pattern)).then(pl.lit(kind))
        for kind, pattern, _ in LOOKS
    )
    matches = (
        segments.with_columns(looks=looks)
        .drop_nulls("looks")
        .group_by("looks")
        .agg(pl.col("estimated").sum())
        .sort(-pl.col("estimated"), "looks")
    )
    least = _LEAST_OF_FUNCTION * float(segments["estimated"].sum())
    if not matches.height or matches["estimated"][0] < least:
        return WORKS, ADVICE
    best = matches["looks"][0]
    return best, next(advice for kind, _, advice in LOOKS if kind == best)
