"""Dtypes: as the profiler records them, as programs write them, as kernels are named.

>>> dtype_name("c10::BFloat16"), SHORT["c10::BFloat16"], SIZES["c10::BFloat16"]
('bfloat16', 'bf16', 2)
"""

from __future__ import annotations

from msgspec import Struct


class Dtype(Struct, frozen=True):
    """One dtype under its three names."""

    recorded: str
    """As the profiler records it: C++."""
    name: str
    """As a program writes it, after ``torch.``."""
    short: str
    """As kernels and peaks of GPUs are listed; both 8-bit ones are fp8."""
    size: int
    """Bytes of an element."""


_FLOATS = (
    Dtype("double", "float64", "fp64", 8),
    Dtype("float", "float32", "fp32", 4),
    Dtype("c10::BFloat16", "bfloat16", "bf16", 2),
    Dtype("c10::Half", "float16", "fp16", 2),
    Dtype("c10::Float8_e4m3fn", "float8_e4m3fn", "fp8", 1),
    Dtype("c10::Float8_e5m2", "float8_e5m2", "fp8", 1),
)
_INTEGERS = (
    Dtype("long int", "int64", "int64", 8),
    Dtype("int", "int32", "int32", 4),
    Dtype("short int", "int16", "int16", 2),
    Dtype("signed char", "int8", "int8", 1),
    Dtype("unsigned char", "uint8", "uint8", 1),
    Dtype("bool", "bool", "bool", 1),
)

FLOATING = tuple(dtype.recorded for dtype in _FLOATS)
"""The floating-point ones, as recorded, widest first."""
FLOAT32 = "float"
BFLOAT16 = "c10::BFloat16"
HALF = tuple(dtype.recorded for dtype in _FLOATS if dtype.size == 2)  # noqa: PLR2004 - bytes
"""The 16-bit ones, as recorded."""
BYTE = tuple(
    dtype.recorded
    for dtype in (*_FLOATS, *_INTEGERS)
    if dtype.size == 1 and dtype.name != "bool"
)
"""The 8-bit ones that numbers are stored in, as recorded."""
SHORT_HALF = tuple(dtype.short for dtype in _FLOATS if dtype.recorded in HALF)
"""The 16-bit ones, by their short names."""

SHORT = {dtype.recorded: dtype.short for dtype in _FLOATS}
"""Short names of floating-point dtypes, by the recorded ones."""
SIZES = {dtype.recorded: dtype.size for dtype in _FLOATS}
"""Bytes of a floating-point element, by the recorded name."""
ALL_SIZES = {dtype.recorded: dtype.size for dtype in (*_FLOATS, *_INTEGERS)} | {
    "c10::complex<float>": 8,
    "c10::complex<double>": 16,
    "long": 8,
}
"""Bytes of an element of any dtype, by the recorded name."""
SHORT_SIZES = {dtype.short: dtype.size for dtype in _FLOATS} | {"tf32": 4}
"""Bytes of an element, by the short name; TF32 is stored as float32."""
_SCALAR_TYPES = {"half": 2, "long": 8, "short": 2, "char": 1, "byte": 1, "int": 4}
SENT_SIZES = {dtype.name: dtype.size for dtype in (*_FLOATS, *_INTEGERS)} | {
    "float": 4,
    "double": 8,
    **_SCALAR_TYPES,
}
"""Bytes of an element that a collective sends, as torch names it there, in lower case.
"""

_NAMES = {dtype.recorded: dtype.name for dtype in (*_FLOATS, *_INTEGERS)}


def dtype_name(recorded: str | None) -> str:
    """Return a recorded dtype as a program writes it.

    >>> dtype_name("float"), dtype_name("long int"), dtype_name("Scalar")
    ('float32', 'int64', 'Scalar')
    """
    return _NAMES.get(recorded or "", recorded or "")
