"""Depth of the launch queue: launches that the host may be ahead before it blocks.

    python benchmarks/launch_queue.py

Needs an NVIDIA driver and nothing else. A kernel runs for a second while the host
launches empty ones behind it; the first launch that takes long met a full queue. The
replay assumes LAUNCH_QUEUE of traceq/analysis/base/assumptions.py.
"""

from __future__ import annotations

import ctypes
import sys
import time

_PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry spin(.param .u64 nanoseconds)
{
    .reg .u64 %begin, %now, %length;
    .reg .pred %early;
    ld.param.u64 %length, [nanoseconds];
    mov.u64 %begin, %globaltimer;
AGAIN:
    mov.u64 %now, %globaltimer;
    sub.u64 %now, %now, %begin;
    setp.lt.u64 %early, %now, %length;
    @%early bra AGAIN;
    ret;
}
"""
_SECOND = 1_000_000_000
_LONG_S = 0.01
_MOST = 20_000


class Driver:
    """The calls of libcuda that are needed, each checked."""

    def __init__(self) -> None:
        self._cuda = ctypes.CDLL("libcuda.so.1")

    def __call__(self, name: str, *arguments: object) -> None:
        """Call a function of the driver; exit with its error."""
        status = getattr(self._cuda, name)(*arguments)
        if status:
            sys.exit(f"{name} failed with CUDA error {status}")


def _launches_until_full(driver: Driver, function: ctypes.c_void_p) -> int | None:
    """Return how many launches follow a running kernel until one blocks."""
    _launch(driver, function, _SECOND)
    for count in range(_MOST):
        began = time.perf_counter()
        _launch(driver, function, 0)
        if time.perf_counter() - began > _LONG_S:
            return count
    return None


def _launch(driver: Driver, function: ctypes.c_void_p, nanoseconds: int) -> None:
    length = ctypes.c_uint64(nanoseconds)
    arguments = (ctypes.c_void_p * 1)(
        ctypes.cast(ctypes.byref(length), ctypes.c_void_p)
    )
    one = ctypes.c_uint(1)
    none = ctypes.c_uint(0)
    grid_and_block = [one] * 6
    driver("cuLaunchKernel", function, *grid_and_block, none, None, arguments, None)


def _measure() -> None:
    driver = Driver()
    device, context = ctypes.c_int(), ctypes.c_void_p()
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    name, version = ctypes.create_string_buffer(100), ctypes.c_int()
    driver("cuInit", 0)
    driver("cuDriverGetVersion", ctypes.byref(version))
    driver("cuDeviceGet", ctypes.byref(device), 0)
    driver("cuDeviceGetName", name, 100, device)
    driver("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    driver("cuCtxSetCurrent", context)
    driver("cuModuleLoadData", ctypes.byref(module), _PTX)
    driver("cuModuleGetFunction", ctypes.byref(function), module, b"spin")
    for _ in range(3):
        launches = _launches_until_full(driver, function)
        driver("cuCtxSynchronize")
        print(f"{name.value.decode()}, CUDA {version.value}: full after {launches}")


if __name__ == "__main__":
    _measure()
