"""Names of the host's kinds of work, as all reports print them.

The keys are the kinds as analyses and the JSON have them; ``analysis.time`` defines
them. A kind that is not listed here is printed as it is.
"""

from __future__ import annotations

OPERATORS = "operators"
UNKNOWN = "unknown"
_NAMES = {
    OPERATORS: "operator dispatch",
    "operators on new shapes": "operator dispatch on new shapes",
    "operators slower than usual": "slow operator dispatch",
    "loading kernels": "kernel loading",
    "launches": "kernel launches",
    "launches of CUDA graphs": "CUDA graph launches",
    "Python": "Python code",
    "Python with its libraries": "Python code and the libraries it calls",
    "Python of libraries": "Python code of libraries",
    "module calls": "nn.Module call overhead",
    "Python of the optimizer": "Python code of the optimizer",
    "autograd engine": "the autograd engine",
    "loading data": "data loading",
    "pauses of few steps": "pauses in a few of the steps",
    "compiling": "compilation",
    "capturing CUDA graphs": "CUDA graph capture",
    "waiting for the GPU": "synchronization",
    "copies that block": "blocking copies",
    "waiting for locks and I/O": "locks and I/O",
    "allocating memory": "memory allocation",
    "communicating through the host": "communication through the host",
    UNKNOWN: "unknown host work",
}


def host_work_name(kind: str) -> str:
    """Return the name of a kind of host work for a report.

    >>> host_work_name("operators"), host_work_name("module hooks")
    ('operator dispatch', 'module hooks')
    """
    return _NAMES.get(kind, kind)
