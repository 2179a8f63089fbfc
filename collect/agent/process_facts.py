"""Facts about a recording process: versions, devices, torch's settings, its rank."""

from __future__ import annotations

import hashlib
import os
import platform
import sys
import warnings
from pathlib import Path
from typing import Any, Callable

import torch

gpu: Any = torch.cuda  # parts of it have no types

# No other variable is stored: an environment is full of secrets.
VARIABLES = (
    "CUBLAS_WORKSPACE_CONFIG",
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_MODULE_LOADING",
    "CUDA_VISIBLE_DEVICES",
    "KMP_AFFINITY",
    "MKL_NUM_THREADS",
    "NCCL_ALGO",
    "NCCL_DEBUG",
    "NCCL_IB_DISABLE",
    "NCCL_P2P_DISABLE",
    "NCCL_PROTO",
    "NVIDIA_TF32_OVERRIDE",
    "OMP_NUM_THREADS",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_HIP_ALLOC_CONF",
    "PYTORCH_NO_CUDA_MEMORY_CACHING",
    "TORCHDYNAMO_DISABLE",
    "TORCHINDUCTOR_CUDAGRAPHS",
    "TORCHINDUCTOR_FREEZING",
    "TORCHINDUCTOR_MAX_AUTOTUNE",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "TORCH_BLAS_PREFER_CUBLASLT",
    "TORCH_COMPILE_DISABLE",
    "TORCH_CUDNN_SDPA_ENABLED",
    "TORCH_CUDNN_V8_API_DISABLED",
    "TORCH_LOGS",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "TORCH_NCCL_BLOCKING_WAIT",
)

# Rank, local rank and world size, by torchrun, mpirun and srun.
_RANK_VARIABLES = (
    ("RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID"),
    ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID"),
    ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS"),
)


def environment() -> dict[str, str]:
    """Return those of VARIABLES that are set."""
    return {name: os.environ[name] for name in VARIABLES if name in os.environ}


def versions() -> dict[str, str | None]:
    """Return the versions of Python, torch and the libraries below it."""
    return {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "cuda": _text(torch.version.cuda),
        "hip": _text(getattr(torch.version, "hip", None)),
        "cudnn": _text(_try(torch.backends.cudnn.version)),
        "nccl": _try(_nccl) if gpu.is_initialized() else None,
        "triton": _triton(),
    }


def devices() -> list[dict[str, Any]]:
    """Return the GPUs visible to the process; none if it does not use CUDA."""
    if not gpu.is_initialized():
        return []
    results = []
    for index in range(gpu.device_count()):
        seen = gpu.get_device_properties(index)
        results.append(
            {
                "index": index,
                "name": seen.name,
                "capability": f"{seen.major}.{seen.minor}",
                "memory_bytes": seen.total_memory,
                "multiprocessors": seen.multi_processor_count,
            }
        )
    return results


def switches() -> dict[str, Any]:
    """Return torch's settings that influence which kernels run."""
    cuda: Any = torch.backends.cuda
    cudnn = torch.backends.cudnn
    getters: dict[str, Callable[[], Any]] = {
        "float32_matmul_precision": torch.get_float32_matmul_precision,
        "matmul_allow_tf32": lambda: cuda.matmul.allow_tf32,
        "cudnn_allow_tf32": lambda: cudnn.allow_tf32,
        "cudnn_enabled": lambda: cudnn.enabled,
        "cudnn_benchmark": lambda: cudnn.benchmark,
        "cudnn_deterministic": lambda: cudnn.deterministic,
        "deterministic": torch.are_deterministic_algorithms_enabled,
        "flash_sdp": cuda.flash_sdp_enabled,
        "mem_efficient_sdp": cuda.mem_efficient_sdp_enabled,
        "math_sdp": cuda.math_sdp_enabled,
        "cudnn_sdp": lambda: cuda.cudnn_sdp_enabled(),  # noqa: PLW0108 - since 2.5
        "anomaly_detection": torch.is_anomaly_enabled,
        "cpu_threads": torch.get_num_threads,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer torch deprecates these queries of TF32
        return {name: _try(ask) for name, ask in getters.items()}


def cores() -> int | None:
    """Return the number of cores that the process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count()


def rank() -> tuple[int, int, int]:
    """Return rank, local rank and world size."""
    dist = torch.distributed
    rank, local, world = (
        _first_number(names, default)
        for names, default in zip(_RANK_VARIABLES, (0, 0, 1))
    )
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), local, dist.get_world_size()
    return rank, local, max(world, rank + 1)


def machine() -> str | None:
    """Return a name for this machine since it was started, its clock; never its own."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_bytes()
    except OSError:
        return None
    return hashlib.sha256(boot).hexdigest()[:12]


def _first_number(names: tuple[str, ...], default: int) -> int:
    """Return the value of the first of these variables that is a number."""
    # In a script of sbatch, outside of srun, SLURM's are not of this process.
    by_slurm = "SLURM_STEP_ID" in os.environ
    for name in names:
        text = os.environ.get(name, "")
        if text.isdigit() and (by_slurm or not name.startswith("SLURM_")):
            return int(text)
    return default


def _nccl() -> str:
    return ".".join(str(part) for part in gpu.nccl.version())


def _triton() -> str | None:
    return _text(getattr(sys.modules.get("triton"), "__version__", None))


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _try(ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except Exception:  # noqa: BLE001 - not in this torch
        return None
