"""Fraction of a compiled program's GPU time that has a line and a module of the user.

    python benchmarks/compiled_lines.py RUN… [--eager RUN]

RUN are run folders of ``traceq collect`` of compiled programs, --eager that of the same
program without torch.compile: products, attention and convolutions are compared with
it, by phase and module.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

import polars as pl

import traceq

if TYPE_CHECKING:
    from traceq.model.trace import Trace

_HEAVY = ("gemm", "attention", "conv")
_TEMPLATE = "triton_tem_"
_KEYS = ("phase", "kind", "module", "file", "call_line")


def _kernels(trace: Trace) -> pl.DataFrame:
    steps = trace.steps.filter(~pl.col("warmup"))["step"].implode()
    return trace.kernels.filter(
        pl.col("step").is_in(steps), pl.col("activity") == "kernel"
    ).with_columns(pl.col("name", "module", "file").cast(pl.String))


def _time(rows: pl.DataFrame) -> float:
    return float(rows["dur"].sum())


def _share(kernels: pl.DataFrame, known: pl.Expr) -> str:
    total, part = _time(kernels), _time(kernels.filter(known))
    return f"{part / total:7.1%} of {total / 1e6:8.3f} ms" if total else "   none"


def _heavy(trace: Trace) -> pl.DataFrame:
    """Return the heavy ops of a step: how many of each, and their time."""
    # A generated kernel that adds the bias of a convolution is none itself.
    itself = (pl.col("library") != "triton") | pl.col("name").str.starts_with(_TEMPLATE)
    kernels = _kernels(trace).filter(pl.col("kind").is_in(_HEAVY), itself)
    steps = kernels["step"].n_unique() or 1
    return kernels.group_by(*_KEYS).agg(
        pl.col("op").n_unique() / steps, pl.col("dur").sum() / steps
    )


def _compared(trace: Trace, eager: Trace) -> dict[str, str]:
    results = {}
    rows, theirs = _heavy(trace), _heavy(eager)
    for what, keys in (("module", _KEYS[:3]), ("module and line", _KEYS)):
        both = (
            rows.filter(pl.col("module").is_not_null())
            .group_by(keys)
            .agg(pl.col("op", "dur").sum())
        )
        other = theirs.group_by(keys).agg(pl.col("op").sum())
        same = both.join(other, on=keys, nulls_equal=True).filter(
            pl.col("op") == pl.col("op_right")
        )
        results[what] = f"{_time(same) / _time(rows):7.1%}"
    return results


def main() -> None:
    """Print the shares of each run."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("runs", nargs="+", metavar="RUN")
    parser.add_argument("--eager", metavar="RUN")
    options = parser.parse_args()
    eager = traceq.load(options.eager) if options.eager else None
    for run in options.runs:
        trace = traceq.load(run)
        kernels = _kernels(trace)
        generated = kernels.filter(pl.col("library") == "triton")
        line = pl.col("call_line").is_not_null() & pl.col("file").is_not_null()
        print(f"{run}\n  Triton kernels with a line  {_share(generated, line)}")
        print(f"  all kernels with a line     {_share(kernels, line)}")
        if eager:
            for what, share in _compared(trace, eager).items():
                print(f"  heavy ops, same {what} as eager: {share}")


if __name__ == "__main__":
    main()
