"""Phrases that findings share: counts, durations, sizes, layer names."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from traceq.common.units import number, share, size, time

if TYPE_CHECKING:
    from collections.abc import Sequence

    import polars as pl

__all__ = [
    "at_function",
    "at_line",
    "counted",
    "layer_name",
    "layer_names",
    "listed",
    "often",
    "shape",
    "share",
    "size",
    "time",
    "times",
]

# Rarer than this is not written as a number of steps.
MODULE_LEVEL = "<module>"
"""Python's name of the function that holds a file's top-level statements."""
_MOST_STEPS = 1000
# The number of an instance, in the syntax that Python and Polars share.
_INSTANCE = r"_[0-9]+(/|$)"


def at_line(file: str, line: int | None) -> str:
    """Write a line of a file; the file alone if the line is not known.

    >>> at_line("model.py", 42), at_line("train.py", None)
    ('model.py:42', 'train.py')
    """
    return file if line is None else f"{file}:{line}"


def at_function(file: str | None, line: int | None, function: str | None) -> str:
    """Write a function by where it begins: not a line that runs.

    >>> at_function("model.py", 42, "forward"), at_function("train.py", None, "main")
    ('forward (model.py:42)', 'main (train.py)')

    A file's own statements begin nowhere, and a trace has some line that ran:

    >>> at_function("train.py", 248, "<module>")
    '<module> (train.py)'
    """
    if not file:
        return ""
    if function == "<module>":
        line = None
    return f"{function} ({at_line(file, line)})" if function else file


def times(count: float) -> str:
    """Write how often something happens.

    >>> times(1), times(2), times(0.5), times(1234.0)
    ('once', 'twice', '0.5 times', '1,234 times')
    """
    if count in (1, 2):
        return "once" if count == 1 else "twice"
    return f"{number(count)} times"


def often(count: float) -> str:
    """Write how often something happens in a step, in whole numbers if less than once.

    >>> often(1), often(2.5), often(1 / 3), often(0.4)
    ('once a step', '2.5 times a step', 'once in 3 steps', 'twice in 5 steps')
    """
    if not 0 < count < 1:
        return f"{times(count)} a step"
    from fractions import Fraction  # noqa: PLC0415 - few need it, and it takes long

    part = Fraction(count).limit_denominator(_MOST_STEPS)
    if not part:
        return f"less than once in {_MOST_STEPS:,} steps"
    return f"{times(part.numerator)} in {counted(part.denominator, 'step')}"


def counted(count: float, what: str) -> str:
    """Write a number of things.

    >>> counted(1, "kernel"), counted(5200, "launch"), counted(3, "copy")
    ('1 kernel', '5,200 launches', '3 copies')
    """
    written = number(count)
    if count == 1:
        return f"1 {what}"
    if what.endswith("y") and not what.endswith(("ay", "ey", "oy")):
        return f"{written} {what[:-1]}ies"
    return f"{written} {what}" + (
        "es" if what.endswith(("s", "ch", "sh", "x")) else "s"
    )


def shape(dims: Sequence[int] | None) -> str:
    """Write the shape of one tensor.

    >>> shape([8, 64])
    '[8,64]'
    """
    return "[" + ",".join(map(str, dims or ())) + "]"


def listed(texts: Sequence[str], most: int = 3) -> str:
    """Write some things, and how many more there are.

    >>> listed(["a", "b"]), listed(["a", "b", "c", "d", "e"])
    ('a, b', 'a, b, c and 2 more')
    """
    first = ", ".join(texts[:most])
    rest = len(texts) - most
    return f"{first} and {rest} more" if rest > 0 else first


def rule_name(of_class: str) -> str:
    """Return how a rule is called whose class is called this.

    >>> rule_name("ImplicitDeviceSync")
    'implicit-device-sync'
    """
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", of_class).lower()


def layer_name(module: str) -> str:
    """Return a module without the numbers of its instances: all layers are one.

    >>> layer_name("LM_0/Block_11/Linear_2")
    'LM/Block/Linear'
    """
    return re.sub(_INSTANCE, r"\1", module)


def layer_names(module: pl.Expr) -> pl.Expr:
    """Return ``layer_name`` of a column."""
    return module.cast(str).str.replace_all(_INSTANCE, "$1")
