"""Peaks of GPUs: dense matmul rates and memory bandwidth."""

from __future__ import annotations

import re
from typing import TypeAlias

from msgspec import Struct, field

TERA = 1e12
GIGA = 1e9


class Peak(Struct, frozen=True):
    """The vendor's figures for one GPU, without sparsity."""

    pattern: str
    sms: int
    bandwidth: float
    """Bytes per second."""
    flops: dict[str, float] = field(default_factory=dict)
    """Operations per second, by dtype, as bf16."""


def _peak(pattern: str, sms: int, gigabytes: float, **teraflops: float) -> Peak:
    rates = {dtype: rate * TERA for dtype, rate in teraflops.items()}
    if "bf16" in rates:
        rates.setdefault("fp16", rates["bf16"])
    return Peak(pattern, sms, gigabytes * GIGA, rates)


# The first pattern that matches decides, so specific ones come before general ones.
# Each of a MI250's two dies is a device of its own.
PEAKS = (
    _peak(r"V100.*PCIE", 80, 900, fp32=14, fp16=112),
    _peak(r"V100", 80, 900, fp32=15.7, fp16=125),
    _peak(r"Tesla T4|\bT4\b", 40, 320, fp32=8.1, fp16=65),
    _peak(r"A100.*80GB PCIe", 108, 1935, fp32=19.5, tf32=156, bf16=312),
    _peak(r"A100.*80GB", 108, 2039, fp32=19.5, tf32=156, bf16=312),
    _peak(r"A100", 108, 1555, fp32=19.5, tf32=156, bf16=312),
    _peak(r"A10G", 80, 600, fp32=31.2, tf32=35, bf16=70),
    _peak(r"\bA10\b", 72, 600, fp32=31.2, tf32=62.5, bf16=125),
    _peak(r"\bA30\b", 56, 933, fp32=10.3, tf32=82, bf16=165),
    _peak(r"\bA40\b", 84, 696, fp32=37.4, tf32=75, bf16=150),
    _peak(r"RTX A6000", 84, 768, fp32=38.7, tf32=77, bf16=155),
    _peak(r"GH200", 132, 4000, fp32=67, tf32=495, bf16=989, fp8=1979),
    _peak(r"H200 NVL", 132, 4800, fp32=60, tf32=418, bf16=835, fp8=1671),
    _peak(r"H200", 132, 4800, fp32=67, tf32=495, bf16=989, fp8=1979),
    _peak(r"H100 PCIe", 114, 2039, fp32=51, tf32=378, bf16=756, fp8=1513),
    _peak(r"H100 NVL", 132, 3938, fp32=60, tf32=418, bf16=835, fp8=1671),
    _peak(r"H100|H800", 132, 3352, fp32=67, tf32=495, bf16=989, fp8=1979),
    _peak(r"\bH20\b", 78, 4000, fp32=44, tf32=74, bf16=148, fp8=296),
    _peak(r"GB200", 152, 8000, fp32=80, tf32=1250, bf16=2500, fp8=5000, fp4=10000),
    _peak(r"B300", 148, 8000, fp32=75, tf32=1125, bf16=2250, fp8=4500, fp4=13500),
    _peak(r"B200", 148, 8000, fp32=75, tf32=1125, bf16=2250, fp8=4500, fp4=9000),
    _peak(r"\bL4\b", 58, 300, fp32=30.3, tf32=60, bf16=121, fp8=242),
    _peak(r"L40S", 142, 864, fp32=91.6, tf32=183, bf16=362, fp8=733),
    _peak(r"\bL40\b", 142, 864, fp32=90.5, tf32=90.5, bf16=181, fp8=362),
    _peak(r"RTX 3090", 82, 936, fp32=35.6, tf32=35.6, bf16=71),
    _peak(r"RTX 4090", 128, 1008, fp32=82.6, tf32=82.6, bf16=165, fp8=330),
    _peak(r"RTX 5090", 170, 1792, fp32=104.8, tf32=104.8, bf16=209.5, fp8=419),
    _peak(r"RTX PRO 6000", 188, 1792, fp32=120, tf32=250, bf16=500, fp8=1000),
    _peak(r"MI210", 104, 1638, fp32=45.3, bf16=181),
    _peak(r"MI250X", 110, 1638, fp32=47.9, bf16=191.5),
    _peak(r"MI250", 104, 1638, fp32=45.3, bf16=181),
    _peak(r"MI300X", 304, 5300, fp32=163.4, tf32=653.7, bf16=1307, fp8=2615),
    _peak(r"MI325X", 304, 6000, fp32=163.4, tf32=653.7, bf16=1307, fp8=2615),
    _peak(r"MI350X", 256, 8000, fp32=144, bf16=2307, fp8=4614),
    _peak(r"MI355X", 256, 8000, fp32=157, bf16=2517, fp8=5033),
)


_Units: TypeAlias = tuple[int | None, int | None, int | None]
# Compute capability and number of compute units of AMD's GPUs, with GiB of memory: the
# driver may know no name, or call all of them Radeon Graphics. MI210 and a die of an
# MI250 have the same rates.
_AMD_MODELS: dict[tuple[_Units, int], str] = {
    ((9, 0, 104), 64): "AMD Instinct MI210 or MI250",
    ((9, 0, 110), 64): "AMD Instinct MI250X",
    ((9, 4, 304), 192): "AMD Instinct MI300X",
    ((9, 4, 304), 256): "AMD Instinct MI325X",
}
_NO_MODEL = ("", "AMD Radeon Graphics")


def amd_name(name: str, units: _Units, memory: int | None) -> str:
    """Return the name of a GPU by AMD: by its properties, where it has none.

    >>> amd_name("", (9, 4, 304), 206_141_652_992)
    'AMD Instinct MI300X'
    """
    if name not in _NO_MODEL:
        return name
    gibibytes = round((memory or 0) / (1 << 30))
    return _AMD_MODELS.get((units, gibibytes), name)


def peak_of(name: str, sms: int | None) -> Peak | None:
    """Return the peaks of a GPU, scaled if it is a MIG slice; None if unknown."""
    for peak in PEAKS:
        if re.search(peak.pattern, name):
            break
    else:
        return None
    # A MIG slice has the GPU's name and fewer multiprocessors.
    share = min(1.0, sms / peak.sms) if sms else 1.0
    return Peak(
        peak.pattern,
        sms or peak.sms,
        peak.bandwidth * share,
        {dtype: rate * share for dtype, rate in peak.flops.items()},
    )
