"""The GPU's clock, temperature and other processes, from NVML without a package."""

from __future__ import annotations

import ctypes
from typing import Any

import torch

from ..agent import torch_state

_SM_CLOCK = 1
_SLOWED = 0x08 | 0x20 | 0x40  # by hardware, software thermal, hardware thermal
_TOO_SMALL = 7  # the list of processes: the count is set


class Machine:
    """One GPU as NVML sees it; without NVML, nothing is known."""

    def __init__(self) -> None:
        self._library: Any = None
        self._handle = ctypes.c_void_p()
        if torch_state.uses_cuda():
            try:
                self._open()
            except (OSError, AttributeError):
                self._library = None

    def _open(self) -> None:
        library = ctypes.CDLL("libnvidia-ml.so.1")
        if library.nvmlInit_v2():
            return
        index = torch.cuda.current_device()
        name = getattr(torch.cuda.get_device_properties(index), "uuid", None)
        handle = ctypes.byref(self._handle)
        failed = True
        if name is not None:
            text = f"GPU-{name}".encode()
            failed = bool(library.nvmlDeviceGetHandleByUUID(text, handle))
        if failed:
            failed = bool(library.nvmlDeviceGetHandleByIndex_v2(index, handle))
        self._library = None if failed else library

    def state(self) -> dict[str, Any]:
        """Return clock, temperature, slow-down and processes; empty without NVML."""
        library = self._library
        if library is None:
            return {}
        return {
            "clock_mhz": self._number("nvmlDeviceGetClockInfo", _SM_CLOCK),
            "temperature_c": self._number("nvmlDeviceGetTemperature", 0),
            "slowed": self._slowed(),
            "processes": self._processes(),
        }

    def _number(self, function: str, which: int) -> int | None:
        value = ctypes.c_uint()
        call = getattr(self._library, function)
        failed = call(self._handle, ctypes.c_int(which), ctypes.byref(value))
        return None if failed else int(value.value)

    def _slowed(self) -> bool | None:
        value = ctypes.c_ulonglong()
        call = getattr(self._library, "nvmlDeviceGetCurrentClocksThrottleReasons", None)
        if call is None or call(self._handle, ctypes.byref(value)):
            return None
        return bool(value.value & _SLOWED)

    def _processes(self) -> int | None:
        count = ctypes.c_uint(0)
        call = getattr(self._library, "nvmlDeviceGetComputeRunningProcesses_v3", None)
        if call is None:
            return None
        status = call(self._handle, ctypes.byref(count), None)
        return int(count.value) if status in (0, _TOO_SMALL) else None


def why_discarded(state: dict[str, Any], first: dict[str, Any]) -> str:
    """Return why a block cannot be compared with the others; empty if it can."""
    if state.get("slowed"):
        return "the GPU was slowed down by heat or power"
    if state.get("processes") != first.get("processes"):
        return "other processes came to the GPU, or left it"
    return ""
