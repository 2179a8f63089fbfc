"""Small compiled programs, each with one thing to tell: logs of them lie beside.

    python tests/data/torch_trace/program.py

runs all of them with ``TORCH_TRACE`` on the CPU and writes NAME.log.gz, and of the
one called lines a trace too. Records of the log that are large and that traceq does not
read are left out, and folders of the machine are renamed.
"""

from __future__ import annotations

import gzip
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from torch.nn.functional import gelu

_HERE = Path(__file__).parent
_LEFT_OUT = re.compile(
    r'^[^{]*\{"(chromium_event|describe_\w+|aot_\w+|dynamo_cpp_guards_str|create_\w+'
    r'|guard_added\w*|artifact": \{"name": "(fx_graph_runnable|before_\w+|after_pre'
    r"|compiled_f\w+|backward_\w+|runtime_wrapper|torch\._functorch|\w+_BYTECODE"
    r"|aot_\w+))"
)


def block(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return a product, activated twice."""
    hidden = gelu(x @ weight)
    waves = hidden.sin() + 1
    return (waves * hidden).sum(-1)


def scaled(x: torch.Tensor, by: float) -> torch.Tensor:
    """Return values times a number."""
    return (x * by).relu()


def printing(x: torch.Tensor) -> torch.Tensor:
    """Return values, and print amid their computation."""
    y = x.sin()
    print(end="")  # noqa: T201 - the graph break
    return y.cos()


def branching(x: torch.Tensor) -> torch.Tensor:
    """Return values that depend on a value of a tensor."""
    if x.sum() > 0:
        return x + 1
    return x - 1


def clean() -> None:
    """Compile once."""
    compiled = torch.compile(scaled)
    for _ in range(3):
        compiled(torch.ones(8), 2.0)


def sizes() -> None:
    """Compile again, as a size changes."""
    compiled = torch.compile(scaled)
    for size in (8, 9, 10):
        compiled(torch.ones(size), 2.0)


def number() -> None:
    """Compile again for each number."""
    compiled = torch.compile(lambda x, by: scaled(x, len(by)))
    for by in ("a", "ab", "abc"):
        compiled(torch.ones(8), by)


def printed() -> None:
    """Break the graph by a print."""
    compiled = torch.compile(printing)
    compiled(torch.ones(8))


def branched() -> None:
    """Break the graph by a branch on a tensor."""
    compiled = torch.compile(branching)
    compiled(torch.ones(8))


def lines() -> None:
    """Train, and trace three steps."""
    compiled = torch.compile(block)
    weight = torch.randn(64, 64, requires_grad=True)
    compiled(torch.randn(8, 64), weight).sum().backward()
    with torch.profiler.profile(record_shapes=True) as profiler:
        for _ in range(3):
            compiled(torch.randn(8, 64), weight).sum().backward()
            profiler.step()
    profiler.export_chrome_trace(os.environ["TRACE"])


PROGRAMS = (clean, sizes, number, printed, branched, lines)


def _record(name: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        trace = place / "trace.json"
        paths = {
            "TORCH_TRACE": str(place / "log"),
            "TORCHINDUCTOR_CACHE_DIR": str(place / "cache"),
            "TRACE": str(trace),
        }
        subprocess.run(
            [sys.executable, __file__, name],
            check=True,
            env={**os.environ, **paths, "INDUCTOR_PROVENANCE": "1"},
        )
        text = next((place / "log").iterdir()).read_text()
        packed = gzip.compress(_short(text, folder).encode(), mtime=0)
        (_HERE / f"{name}.log.gz").write_bytes(packed)
        if trace.exists():
            content = trace.read_text().replace(str(_HERE), "/src")
            packed = gzip.compress(content.encode(), mtime=0)
            (_HERE / f"{name}.trace.json.gz").write_bytes(packed)


def _short(text: str, folder: str) -> str:
    """Return a log without the records that are not read and without own folders."""
    records = re.split(r"(?m)^(?!\t)", text)
    some = (one for one in records if not _LEFT_OUT.search(one.partition("\n")[0]))
    installed = str(Path(torch.__file__).parents[1])
    short = "".join(some).replace(installed, "/site-packages")
    short = short.replace(folder, "/run").replace(str(_HERE), "/src")
    return short.replace(str(Path.cwd()), "/src")


if __name__ == "__main__":
    if named := sys.argv[1:]:
        {one.__name__: one for one in PROGRAMS}[named[0]]()
    else:
        for program in PROGRAMS:
            _record(program.__name__)
