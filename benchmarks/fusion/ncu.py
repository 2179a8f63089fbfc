"""Counters of Nsight Compute for a step of ten programs, and traces of the same step.

    python benchmarks/fusion/ncu.py FOLDER [PROGRAM ...]

needs a GPU, torch and ncu, some programs transformers. Each program, of
fixtures/programs or of ``programs.py``, runs twice, in a process of its own: recorded
with shapes, then under ncu, up to 120 kernels of a step and 40 s.
ncu begins with the forward in every other program, with the backward in the rest.
``ncu_compare.py`` compares what comes out.
"""

from __future__ import annotations

import gzip
import runpy
import shutil
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

PROGRAMS = Path(__file__).resolve().parents[2] / "fixtures" / "programs"
NAMES = (
    "attention_with_dense_mask",
    "copies",
    "norm_dtype_mismatch",
    "vocab_misaligned",
    "llama",
    "unet",
    "vae",
    "bert",
    "hifigan",
    "gpt2",
)
METRICS = (
    "gpu__time_duration.sum",
    "dram__bytes_read.sum",
    "dram__bytes_write.sum",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
    "sm__inst_executed_pipe_tensor.sum",
)
# Their names differ by GPU: those that ncu does not list are left out.
TENSOR = tuple(
    f"sm__ops_path_tensor_src_{kind}_dst_fp32.sum" for kind in ("bf16", "fp16", "tf32")
)
KERNELS, LIMIT_S, WARM = 120, 40, 3


def run(name: str, counters: str, folder: Path) -> None:
    """Run three steps of a program, then the one that is recorded or counted."""
    import torch

    def loop(step: Callable[[int], object], _: int = 0) -> None:
        torch.manual_seed(0)
        for number in range(WARM):
            step(number)
        torch.cuda.synchronize()
        if counters:
            _counted(torch, lambda: step(WARM), counters)
        else:
            _recorded(torch, step, folder / f"{name}.eager.json")

    if not (PROGRAMS / f"{name}.py").is_file():
        sys.path.insert(0, str(Path(__file__).parent))
        _, step, eager, _ = import_module("programs").build(name)
        loop(lambda _: step(eager))
        return
    sys.path.insert(0, str(PROGRAMS))
    loops: Any = import_module("loops")
    loops.loop = loop
    sys.argv = [name]
    runpy.run_path(str(PROGRAMS / f"{name}.py"), run_name="__main__")


def _counted(torch: Any, step: Callable[[], object], counters: str) -> None:
    start = torch.cuda.cudart().cudaProfilerStart
    backward = torch.Tensor.backward

    def begin(*inputs: object, **options: object) -> object:
        start()
        return backward(*inputs, **options)

    if counters == "backward":
        torch.Tensor.backward = begin
    else:
        start()
    step()
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStop()


def _recorded(torch: Any, step: Callable[[int], object], path: Path) -> None:
    with torch.profiler.profile(
        record_shapes=True,
        schedule=torch.profiler.schedule(wait=0, warmup=1, active=2, repeat=1),
    ) as profiler:
        for number in range(3):
            step(WARM + number)
            profiler.step()
    profiler.export_chrome_trace(str(path))
    with path.open("rb") as raw, gzip.open(f"{path}.gz", "wb", 6) as packed:
        shutil.copyfileobj(raw, packed)
    path.unlink()


def _output(command: list[str]) -> str:
    """Return what a command prints; it is ended after 40 s."""
    try:
        done = subprocess.run(
            command, timeout=LIMIT_S, capture_output=True, text=True, check=False
        )
    except subprocess.TimeoutExpired:
        return f"ran past {LIMIT_S} s"
    return done.stdout + done.stderr


def main(folder: Path, names: list[str]) -> None:
    """Record and count each program; one that fails costs itself alone."""
    folder.mkdir(parents=True, exist_ok=True)
    ncu = shutil.which("ncu")
    if ncu is None:
        sys.exit("ncu is not there: install Nsight Compute, or add it to PATH")
    listed = _output([ncu, "--query-metrics"])
    metrics = [*METRICS, *(item for item in TENSOR if item.partition(".")[0] in listed)]
    for at, name in enumerate(names):
        began = time.monotonic()
        me = [sys.executable, __file__, "--run", name, str(folder)]
        part = ("forward", "backward")[at % 2]
        log = folder / f"{name}.ncu.csv"
        counted = [
            *(ncu, "--profile-from-start", "off", "--replay-mode", "kernel"),
            *("--cache-control", "none", "--clock-control", "none"),
            *(
                "--launch-count",
                str(KERNELS),
                "--kill",
                "yes",
                "--csv",
                "--page",
                "raw",
            ),
            *("--metrics", ",".join(metrics), "--log-file", str(log)),
        ]
        recorded, under_ncu = _output(me), _output([*counted, *me, part])
        for path, output in (
            (folder / f"{name}.eager.json.gz", recorded),
            (log, under_ncu),
        ):
            if not path.exists():
                print(f"{name}: no {path.name}: {output[-300:]}", flush=True)
        print(f"{name}: {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "--run":
        run(sys.argv[2], "".join(sys.argv[4:5]), Path(sys.argv[3]))
    else:
        main(Path(sys.argv[1]), sys.argv[2:] or list(NAMES))
