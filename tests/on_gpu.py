"""Runs of the CPU as they would be on a GPU: each op of torch launches a kernel.

What a program does in each of its steps is as recorded; the GPU is drawn.
"""

from __future__ import annotations

import gzip
import json
import shutil
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

_READS = "aten::_local_scalar_dense"
_COPIES = ("aten::copy_", "aten::_to_copy")
_MATMULS = ("aten::addmm", "aten::mm", "aten::bmm", "aten::matmul")
_CONVOLUTIONS = ("aten::mkldnn_convolution", "aten::convolution_backward")
_FREE = {
    *("aten::view", "aten::t", "aten::transpose", "aten::as_strided", "aten::expand"),
    *("aten::slice", "aten::select", "aten::detach", "aten::reshape", "aten::empty"),
    *("aten::unsqueeze", "aten::permute", "aten::split", "aten::item", "aten::alias"),
    *("aten::_unsafe_view", "aten::empty_like", "aten::empty_strided", "aten::unbind"),
    *("aten::narrow", "aten::resize_", "aten::result_type", "aten::is_nonzero"),
    *("aten::expand_as", "aten::flatten", "aten::squeeze", "aten::chunk", "aten::to"),
    *("aten::_reshape_alias", "aten::resolve_conj", "aten::resolve_neg"),
}
_NAMES = dict.fromkeys(_MATMULS, "sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_cublas")
_NAMES |= dict.fromkeys(
    _COPIES,
    "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda>",
)
_NAMES |= dict.fromkeys(_CONVOLUTIONS, "cudnn::cnn::conv2d_grouped_direct_kernel")
_DEVICE = {"id": 0, "name": "NVIDIA H200", "totalGlobalMem": 150 << 30, "numSms": 132}
_TENTH = 0.1


def run_on_gpu(run: Path, folder: Path) -> Path:
    """Copy a run folder, whose trace has work on a GPU then; return the copy."""
    shutil.copytree(run, folder)
    file = folder / "rank-0.trace.json.gz"
    trace = json.loads(gzip.decompress(file.read_bytes()))
    file.write_bytes(gzip.compress(json.dumps(on_gpu(trace)).encode()))
    return folder


def on_gpu(trace: dict[str, Any]) -> dict[str, Any]:
    """Return a trace of the CPU with a kernel for each innermost op of torch."""
    events = trace["traceEvents"]
    ops = [
        event
        for event in events
        if event.get("cat") == "cpu_op"
        and event["name"].startswith("aten::")
        and event["name"] not in _FREE
    ]
    done, added = 0.0, []
    for number, op in enumerate(_innermost(ops), start=1):
        result = list(_work(op, number, max(done, op["ts"] + op["dur"])))
        done = result[1]["ts"] + result[1]["dur"]
        added += result
    return trace | {"deviceProperties": [_DEVICE], "traceEvents": events + added}


def _innermost(ops: list[dict[str, Any]]) -> list[dict[str, Any]]:
    by_start = sorted(ops, key=lambda one: (one["tid"], one["ts"], -one["dur"]))
    following = [*by_start[1:], None]
    inner = [
        op
        for op, after in zip(by_start, following, strict=True)
        if after is None
        or after["tid"] != op["tid"]
        or after["ts"] >= op["ts"] + op["dur"]
    ]
    return sorted(inner, key=lambda one: float(one["ts"]))


def _casts(op: dict[str, Any]) -> bool:
    """Return whether an op copies from one dtype to another, which is a kernel."""
    return len({*op["args"].get("Input type", ())[:2]}) > 1


def _work(op: dict[str, Any], number: int, start: float) -> list[dict[str, Any]]:
    """Return the call of the runtime, what it starts, and the wait for it, if any."""
    host = {"ph": "X", "pid": op["pid"], "tid": op["tid"], "cat": "cuda_runtime"}
    ids = {"correlation": number, "External id": op["args"].get("External id")}
    on_stream = {"ph": "X", "pid": 0, "tid": 7, "ts": start, "dur": 1.0}
    placed = {"args": ids | {"device": 0, "stream": 7}}
    tenth = op["dur"] * _TENTH
    call = host | {"ts": op["ts"] + tenth, "dur": tenth, "args": ids}
    if op["name"] == _READS:
        return [
            call | {"name": "cudaMemcpyAsync"},
            on_stream
            | {"cat": "gpu_memcpy", "name": "Memcpy DtoH (Device -> Pageable)"}
            | placed,
            call | {"name": "cudaStreamSynchronize", "ts": op["ts"] + 3 * tenth},
        ]
    if op["name"] in _COPIES and not _casts(op):
        kernel = {"cat": "gpu_memcpy", "name": "Memcpy DtoD (Device -> Device)"}
        return [call | {"name": "cudaMemcpyAsync"}, on_stream | kernel | placed]
    name = _NAMES.get(op["name"], f"at::native::{op['name'][6:]}_kernel_cuda")
    kernel = {"cat": "kernel", "name": name}
    return [call | {"name": "cudaLaunchKernel"}, on_stream | kernel | placed]
