"""GPU time of compiled programs, predicted from their eager traces.

    python benchmarks/fusion/compare.py [FOLDER]

A folder has NAME.eager.json.gz and NAME.compiled.json.gz, recorded with shapes; by
default it is this one. For each pair the GPU's busy time of the eager step, less what
fused chains save, is compared with that of the compiled step.
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path

from traceq import load
from traceq.analysis.base.steady import steady_steps
from traceq.analysis.time.fusible_chains import fusible_chains

_MS = 1e6


def errors(folder: Path) -> dict[str, float]:
    """Return the relative error of each pair, and print its times."""
    found = {}
    for file in sorted(folder.glob("*.eager.json.gz")):
        name = file.name.partition(".")[0]
        eager = load(file)
        compiled = steady_steps(load(folder / f"{name}.compiled.json.gz"))
        now = steady_steps(eager)
        before = now.gpu_busy / now.count / _MS
        after = before - fusible_chains(eager).saved_ns / now.count / _MS
        measured = compiled.gpu_busy / compiled.count / _MS
        found[name] = after / measured - 1
        print(
            f"{name:12} {before:7.2f} -> {after:6.2f} ms, compiled {measured:6.2f} ms,"
            f" {found[name]:+.0%}"
        )
    return found


if __name__ == "__main__":
    chosen = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    sizes = [abs(error) for error in errors(chosen).values()]
    print(f"median {statistics.median(sizes):.0%}, largest {max(sizes):.0%}")
