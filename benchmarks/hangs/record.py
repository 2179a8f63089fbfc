"""Record the flight recorder's dumps in tests/data/hangs again, without a GPU.

Runs every scenario of benchmarks/hangs/hangs.py with gloo ranks on this machine, and
writes their dumps without the folders that Python and torch are installed in.

    python benchmarks/hangs/record.py [SCENARIO...]
"""

from __future__ import annotations

import gzip
import os
import pickletools
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TO = ROOT / "tests" / "data" / "hangs"
RANKS = {
    "missing": 4,
    "size": 2,
    "dtype": 2,
    "order": 4,
    "order_async": 3,
    "skipped": 3,
    "circle": 2,
    "slow": 3,
    "even": 3,
}
# The machine's own folders, and what stands for them.
_LIBRARIES = (re.compile(r"^.*/(?=lib/python3)"), "/usr/")
_PROGRAM = (re.compile(r"^.*/(?=hangs\.py$)"), "/job/")


def main() -> None:
    """Record the named scenarios, or all."""
    for scenario in sys.argv[1:] or RANKS:
        record(scenario)


def record(scenario: str) -> None:
    """Run the ranks of a scenario, and keep their dumps."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copy(ROOT / "benchmarks" / "hangs" / "hangs.py", folder)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        world = RANKS[scenario]
        ranks = [start(folder, scenario, rank, world, port) for rank in range(world)]
        for process in ranks:
            process.wait(120)
        to = TO / scenario
        shutil.rmtree(to, ignore_errors=True)
        to.mkdir(parents=True)
        for rank in range(world):
            dump = without_folders((folder / f"rank_{rank}").read_bytes())
            (to / f"rank_{rank}.pickle.gz").write_bytes(gzip.compress(dump, mtime=0))
    print(scenario, sum(file.stat().st_size for file in to.iterdir()), "bytes")


def start(
    folder: Path, scenario: str, rank: int, world: int, port: int
) -> subprocess.Popen[bytes]:
    """Start a rank as torchrun does, which would put its own folders into stacks."""
    environment = os.environ | {
        "RANK": str(rank),
        "WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCH_FR_BUFFER_SIZE": "2000",
    }
    command = [sys.executable, "hangs.py", scenario, "."]
    return subprocess.Popen(command, cwd=folder, env=environment)


def without_folders(dump: bytes) -> bytes:
    """Return a pickle without the folders of this machine."""
    parts = []
    operations = list(pickletools.genops(dump))
    ends = [at for _, _, at in operations[1:]] + [len(dump)]
    for (operation, value, at), end in zip(operations, ends, strict=True):
        if operation.name == "BINUNICODE":
            text = str(value)
            for folder, instead in (_LIBRARIES, _PROGRAM):
                text = folder.sub(instead, text)
            encoded = text.encode()
            parts.append(b"X" + len(encoded).to_bytes(4, "little") + encoded)
        else:
            parts.append(dump[at:end])
    return b"".join(parts)


if __name__ == "__main__":
    main()
