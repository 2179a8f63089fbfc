"""Blocks of a kernel that a GPU runs at once, and multiprocessors that have none.

As in CUDA's occupancy calculator: a multiprocessor runs as many blocks at once as its
warps, registers and shared memory allow. A kernel with more of them runs in waves, and
the last may fill a part of the GPU only.
"""

from __future__ import annotations

from functools import reduce
from operator import mul
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

if TYPE_CHECKING:
    from traceq.analysis.base.device import Gpu


class Limits(NamedTuple):
    """Limits of a multiprocessor: blocks, warps, and bytes of shared memory."""

    blocks: int
    warps: int
    shared_memory: int


# CUDA C++ Programming Guide, technical specifications by compute capability.
LIMITS = {
    (7, 0): Limits(32, 64, 96 << 10),
    (7, 5): Limits(16, 32, 64 << 10),
    (8, 0): Limits(32, 64, 164 << 10),
    (8, 6): Limits(16, 48, 100 << 10),
    (8, 9): Limits(24, 48, 100 << 10),
    (9, 0): Limits(32, 64, 228 << 10),
    (10, 0): Limits(32, 64, 228 << 10),
    (12, 0): Limits(32, 48, 100 << 10),
}
_WARP = 32
# A multiprocessor has four parts with registers of their own; a warp gets them by 256.
_PARTS, _REGISTERS_OF_PART, _REGISTERS_AT_ONCE = 4, 16_384, 256
# From compute capability 8.0 on a block has this much shared memory for the system.
_RESERVED, _RESERVED_FROM = 1024, (8, 0)


def size(column: str) -> pl.Expr:
    """Return the number of blocks of a grid, or of threads of a block."""
    return reduce(
        mul, (pl.col(column).list.get(at, null_on_oob=True) for at in range(3))
    )


def blocks_at_once(gpu: Gpu) -> pl.Expr:
    """Return how many blocks of a kernel a multiprocessor runs; none if not known."""
    limits = LIMITS.get(gpu.capability)
    if limits is None or gpu.amd:
        return pl.lit(None, pl.Int64)
    warps = _up(size("block"), _WARP) // _WARP
    registers = _up(pl.col("registers") * _WARP, _REGISTERS_AT_ONCE)
    held = _PARTS * (_REGISTERS_OF_PART // registers.clip(_REGISTERS_AT_ONCE))
    reserved = _RESERVED if gpu.capability >= _RESERVED_FROM else 0
    shared = (pl.col("shared_memory").fill_null(0) + reserved).clip(1)
    return pl.min_horizontal(
        pl.lit(limits.blocks),
        limits.warps // warps,
        pl.when(pl.col("registers") > 0).then(held // warps),
        limits.shared_memory // shared,
    )


def occupancy(gpu: Gpu) -> pl.Expr:
    """Return the share of a multiprocessor's warps that a kernel can have at once."""
    limits = LIMITS.get(gpu.capability)
    if limits is None:
        return pl.lit(None, pl.Float64)
    warps = _up(size("block"), _WARP) // _WARP
    return blocks_at_once(gpu) * warps / limits.warps


def idle_share(gpu: Gpu) -> pl.Expr:
    """Return the share of the GPU that has no block, over a kernel's time.

    That is of the last wave, if there are several; of the only one, it is the
    multiprocessors without a block.
    """
    if not gpu.sms:
        return pl.lit(None, pl.Float64)
    blocks = size("grid")
    waves = blocks / (blocks_at_once(gpu) * gpu.sms)
    return (
        pl.when(blocks < gpu.sms)
        .then(1 - blocks / gpu.sms)
        .when(waves > 1)
        .then(1 - waves / waves.ceil())
        .when(waves.is_not_null())
        .then(0.0)
    )


def _up(value: pl.Expr, to: int) -> pl.Expr:
    return (value + to - 1) // to * to
