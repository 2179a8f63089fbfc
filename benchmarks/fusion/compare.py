"""GPU time of compiled programs, predicted from their eager traces.

    python benchmarks/fusion/compare.py [FOLDER] [--leave-out]

A folder has NAME.eager.json.gz and NAME.compiled.json.gz, recorded with shapes; by
default it is this one. For each pair two times of the compiled step are compared with
those of the eager step less what fused chains save: the GPU's busy time, and that of
the fused parts, its memory-bound kernels. These are all but matmuls, convolutions,
attention, optimizers and copies of the driver; the softmaxes of attention that the
compiler took apart are attention.

With ``--leave-out`` the constants are fitted once for each program, on the others.
"""

from __future__ import annotations

import statistics
import sys
from inspect import unwrap
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import polars as pl
from traceq import load
from traceq.analysis.base.assumptions import Efficiency
from traceq.analysis.base.steady import steady_steps
from traceq.analysis.time import fused_bytes, fusible_chains

if TYPE_CHECKING:
    from traceq.model.trace import Trace

_MS = 1e6
_APART = (
    r"gemm|nvjet|conv|xmma|cutlass|fprop|dgrad|wgrad|fmha|flash|sdpa|attention"
    r"|multi_tensor|splitK|cudnn|cublas|Memcpy|Memset|nhwc|init_device|dot_do_o"
)
_TAKEN_APART = r"_softmax"
_LOSS = r"log_softmax"
# Values that are tried: bandwidth, and the factors of chains that only stream, that
# have two orders, and that have a norm over a batch or over groups.
_TRIED = ((0.66, 0.72, 0.78), (0.85, 1.0), (1.0, 1.5, 1.9, 2.3), (1.0, 1.3, 1.6, 1.9))


Values = tuple[float, float, float, float]


class Times(NamedTuple):
    """Times of a step in ms: busy, and of the fused parts."""

    busy: float
    parts: float


class Pair(NamedTuple):
    """An eager trace, and the times of its step and of the compiled one."""

    name: str
    trace: Trace
    eager: Times
    compiled: Times

    def saved(self) -> float:
        """Return what fusion saves of a step, without the cache of the analysis."""
        chains = unwrap(fusible_chains.fusible_chains)(self.trace)
        return chains.saved_ns / steady_steps(self.trace).count / _MS


def _times(trace: Trace) -> Times:
    steady = steady_steps(trace)
    name = pl.col("name").cast(pl.String)
    generated = name.str.starts_with("triton")
    attention = name.str.contains(_TAKEN_APART) & ~name.str.contains(_LOSS)
    parts = steady.kernels.filter(
        pl.when(generated).then(~attention).otherwise(~name.str.contains(_APART))
    )
    scale = steady.count * _MS
    return Times(steady.gpu_busy / scale, float(parts["dur"].sum()) / scale)


def read(folder: Path) -> list[Pair]:
    """Return the pairs of a folder."""
    pairs = []
    for file in sorted(folder.glob("*.eager.json.gz")):
        name = file.name.partition(".")[0]
        eager = load(file)
        compiled = load(folder / f"{name}.compiled.json.gz")
        pairs.append(Pair(name, eager, _times(eager), _times(compiled)))
    return pairs


def errors(pair: Pair, saved: float) -> Times:
    """Return the relative errors of a pair's compiled step."""
    return Times(
        *(
            (now - saved) / then - 1
            for now, then in zip(pair.eager, pair.compiled, strict=True)
        )
    )


def report(rows: list[tuple[Pair, float]]) -> None:
    """Print the times and errors of each pair, and the median and the largest."""
    result = []
    for pair, saved in rows:
        error = errors(pair, saved)
        result.append(error)
        busy, parts = (now - saved for now in pair.eager)
        print(
            f"{pair.name:12} busy {pair.eager.busy:6.2f} -> {busy:6.2f} ms, compiled"
            f" {pair.compiled.busy:6.2f}, {error.busy:+4.0%}; fused parts"
            f" {pair.eager.parts:6.2f} -> {parts:6.2f}, {pair.compiled.parts:6.2f},"
            f" {error.parts:+4.0%}"
        )
    for what, values in zip(Times._fields, zip(*result, strict=True), strict=True):
        sizes = [abs(value) for value in values]
        print(
            f"{what}: median {statistics.median(sizes):.0%}, largest {max(sizes):.0%}"
        )


def _set(values: Values) -> None:
    bandwidth, streams, orders, twice = values
    for module, name, value in (
        (fusible_chains, "FUSED_EFFICIENCY", Efficiency(bandwidth=bandwidth)),
        (fusible_chains, "FUSED_POINTWISE", streams),
        (fused_bytes, "FUSED_TRANSPOSED", orders),
        (fused_bytes, "FUSED_TWICE", twice),
    ):
        setattr(module, name, value)


def leave_out(pairs: list[Pair]) -> list[tuple[Pair, float]]:
    """Return each pair with what constants that were fitted on the others predict."""
    saved = {}
    for values in product(*_TRIED):
        _set(values)
        saved[values] = [pair.saved() for pair in pairs]
    rows = []
    for at, pair in enumerate(pairs):
        others = [index for index in range(len(pairs)) if index != at]

        def loss(values: Values, others: list[int] = others) -> float:
            sizes = [abs(errors(pairs[k], saved[values][k]).parts) for k in others]
            return statistics.mean(size * size for size in sizes)

        best = min(saved, key=loss)
        print(f"{pair.name:12} fitted without it: {best}")
        rows.append((pair, saved[best][at]))
    return rows


if __name__ == "__main__":
    paths = [argument for argument in sys.argv[1:] if not argument.startswith("--")]
    all_pairs = read(Path(paths[0]) if paths else Path(__file__).parent)
    if "--leave-out" in sys.argv:
        report(leave_out(all_pairs))
    else:
        report([(pair, pair.saved()) for pair in all_pairs])
