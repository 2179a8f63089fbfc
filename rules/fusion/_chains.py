"""Chains of memory-bound ops by line, and the calls that do the same."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base import assumptions
from traceq.linter import Evidence, Fix, counted, listed, text

from ._activations import OWN_SIGMOID

if TYPE_CHECKING:
    from traceq.linter import Row, View

_PLACE = ("file", "line", "function", "module", "via")
_MOST_OPS = 12
# A line that saves a smaller part of what the first one does is not worth naming.
_SMALL_LINE = 0.05
# Ops at one line that a call of torch's computes in one kernel.
_CALLS = {
    "F.rms_norm": ({"pow", "mean", "rsqrt"}, {"square", "mean", "rsqrt"}),
    "F.layer_norm": ({"var", "sub", "mean"}, {"var_mean", "sub"}),
    'F.gelu(x, approximate="tanh")': ({"pow", "tanh", "mul"},),
    "F.gelu": ({"erf", "mul"},),
    "F.silu": ({"sigmoid", "mul"},),
    "F.cross_entropy": ({"exp", "log", "gather"}, {"logsumexp", "gather"}),
    "F.softmax": ({"exp", "sum", "div"},),
}
_MEAN, _NUMBER = r"^aten::(mean|var|var_mean)$", re.compile(r"-?\d+")
# Batch, channels, positions.
_SEQUENCES = 3
# The code of a file that is in no function: a training loop, which nobody compiles.
_SCRIPT = "<module>"
_OUTERMOST = text("module").str.extract("^([^/]+)")
# Ops whose result the host reads, or whose size depends on values.
_BREAKS = {
    "aten::_local_scalar_dense": "a value that the host reads",
    "aten::nonzero": "a size that depends on data",
    "aten::masked_select": "a size that depends on data",
}


def by_line(view: View, kernels: pl.DataFrame) -> pl.DataFrame:
    """Return the lines of a chain's kernels, the largest saving first.

    A row has the place, ``saved`` and ``gpu``, ns of all steps. A line of the program
    may call much of a library: ``via`` and ``module`` are what saves most there.
    """
    ops = view.trace.ops[["file", "line", "function", "module", "via"]]
    own = (text("file"), "line", text("function"))
    rows = kernels.hstack(ops[kernels["op"]]).with_columns(
        saved=pl.col("dur") * pl.col("share")
    )
    inner = rows.group_by(*own, text("via"), maintain_order=True).agg(
        pl.col("module").drop_nulls().first().cast(pl.String),
        pl.col("saved", "dur").sum(),
    )
    most = pl.col("via", "module").sort_by(
        "saved", descending=True, maintain_order=True
    )
    return (
        inner.group_by("file", "line", "function", maintain_order=True)
        .agg(most.first(), pl.col("saved").sum(), gpu=pl.col("dur").sum())
        .sort("saved", "file", "line", descending=[True, False, False])
    )


def first_known(lines: pl.DataFrame) -> Row:
    """Return the line that saves most of those that are known, or else the first.

    Sums of several gradients are of no line.
    """
    known = lines.filter(pl.col("file").is_not_null() | pl.col("module").is_not_null())
    return (known if known.height else lines).row(0, named=True)


def worth_naming(lines: pl.DataFrame, most: int) -> pl.DataFrame:
    """Return the first lines, without those that save next to nothing."""
    known = pl.col("file").is_not_null() | pl.col("module").is_not_null()
    enough = pl.col("saved") >= _SMALL_LINE * pl.col("saved").max()
    return lines.filter(known, enough).head(most)


def host_fix(view: View, kernels: pl.DataFrame) -> list[Fix]:
    """Return what fusing removes of the host's time: most of ops that are fused whole.

    That is of a GPU-bound step, which the host would else bound once it is fused; of
    one that the host bounds, what compiling saves depends on its overhead.
    """
    if view.bound.by != "gpu":
        return []
    trace = view.trace
    ran = view.kernels.select("id", root=view.outermost_ops[view.kernels["op"]])
    fused = pl.col("id").is_in(kernels["kernel"].implode())
    whole = (
        ran.drop_nulls("root").group_by("root").agg(fused.all()).filter("id")["root"]
    )
    ran_by_host = whole.filter(trace.ops["ts"][whole] >= 0)
    return [Fix(ops=ran_by_host.sort(), host_share=assumptions.FUSED_OPS_HOST_SAVED)]


def host_line(view: View, fixes: list[Fix]) -> list[Evidence]:
    """Return what goes on the host, which counts where the host bounds what is left."""
    goes = sum(
        fix.host_share * int(view.trace.ops["dur"][[*fix.ops]].sum()) for fix in fixes
    )
    note = "a step less, as recorded"
    return (
        [Evidence("host", value=goes / view.steps, unit="ns", note=note)]
        if goes
        else []
    )


def longest_chain(view: View, kernels: pl.DataFrame, line: Row) -> list[Evidence]:
    """Return the ops of the chain with the largest saving at a line, in order."""
    forward = kernels.filter(~pl.col("back"))
    if not forward.height:
        return []
    saved = (pl.col("dur") * pl.col("share")).sum()
    here = kernels.filter(_at(view, kernels, line))
    here = here.filter(pl.col("chain").is_in(forward["chain"].implode()))
    known = here.group_by("chain").agg(saved=saved)
    longest = known.sort("saved", "chain")["chain"].last()
    rows = forward.filter(pl.col("chain").eq_missing(pl.lit(longest)))
    if longest is None or not rows.height:
        return []
    names = view.trace.ops["name"][rows["op"].unique(maintain_order=True)]
    plain = [str(name).removeprefix("aten::") for name in names]
    return [Evidence("chain", listed(plain, _MOST_OPS))]


def _at(view: View, kernels: pl.DataFrame, line: Row) -> pl.Series:
    """Return which kernels are of ops at a line, by way of the same library's."""
    places = view.trace.ops[["file", "line", "function", "via"]][kernels["op"]]
    alike = (
        text(key).eq_missing(pl.lit(line[key], pl.String))
        for key in ("file", "function", "via")
    )
    same_line = pl.col("line").eq_missing(pl.lit(line["line"]))
    return places.select(pl.all_horizontal(*alike, same_line)).to_series()


def fused_calls(view: View, kernels: pl.DataFrame, line: Row) -> str:
    """Return the calls that compute what the ops of a line do, if there are any."""
    ops = view.trace.ops
    own = kernels["op"].filter(~kernels["back"]).unique()
    rows = ops[["name", "inputs", "file", "line", "function", "call_line"]][own]
    here = rows.filter(
        *(text(key).eq_missing(pl.lit(line[key])) for key in ("file", "function")),
        pl.col("line").eq_missing(pl.lit(line["line"])),
    )
    if line["file"] is None:
        return ""
    names = {str(name).removeprefix("aten::").rstrip("_") for name in here["name"]}
    calls = [
        call
        for call, kinds in _CALLS.items()
        if any(some <= names for some in kinds)
        and (call != "F.silu" or _gates_itself(view, line["file"], here))
    ]
    over = _averaged(view, here)
    # torch's RMSNorm is over the last dims alone.
    of_torch = {"F.layer_norm": _norm_over(*over)} if over else {}
    if over and over[0] != {over[1] - 1}:
        of_torch["F.rms_norm"] = ""
    calls = [of_torch.get(call, call) for call in calls]
    return listed([f"`{call}`" for call in calls if call])


def _averaged(view: View, ops: pl.DataFrame) -> tuple[set[int], int] | None:
    """Return the dims of the first mean, and how many its input has, if known."""
    means = ops.filter(text("name").str.contains(_MEAN))["inputs"]
    if not len(means):
        return None
    dims, values = view.trace.inputs[["dims", "values"]].row(means[0])
    rank = len((dims or [[]])[0] or [])
    numbers = _NUMBER.findall("".join((values or [])[1:2]))
    return ({int(at) % rank for at in numbers}, rank) if rank and numbers else None


def _norm_over(dims: set[int], rank: int) -> str:
    """Return the call of torch's norm over dims of an input, if there is one."""
    if dims == {rank - 1}:
        return "F.layer_norm"
    if dims == {*range(1, rank)}:
        return "F.group_norm(x, 1, weight, bias)"
    images = rank > _SEQUENCES and dims == {*range(2, rank)}
    return "F.instance_norm" if images else ""


def _gates_itself(view: View, file: str, ops: pl.DataFrame) -> bool:
    """Return whether the source shows that a value is multiplied by its own sigmoid."""
    rank = view.trace.rank
    source = (rank.sources if rank else {}).get(file, "").splitlines()
    lines = ops["call_line"].drop_nulls().unique()
    return any(
        OWN_SIGMOID.search(source[at - 1]) for at in lines if 0 < at <= len(source)
    )


def graph_breaks(view: View, kernels: pl.DataFrame) -> list[Evidence]:
    """Return what ends a graph of the compiled code, with its count in the forward.

    That is code below the outermost modules of chains; where no module was recorded,
    the functions of chains. What a training loop reads beside the model ends no graph.
    """
    names = [name for name in _BREAKS if view.has_op([name])]
    if not names:
        return []
    ops = view.ops.filter(text("phase") == "forward", text("name").is_in(names))
    chained = view.trace.ops[["file", "function", "module"]][kernels["op"].unique()]
    if view.trace.ops["module"].null_count() < view.trace.ops.height:
        compiled, keys = chained.drop_nulls("module"), [_OUTERMOST]
    else:
        in_function = text("function") != _SCRIPT
        compiled, keys = chained.filter(in_function), [text("file"), text("function")]
    ops = ops.join(compiled.select(keys).unique(), on=keys, how="semi")
    counts = ops.group_by(text("name")).len().sort("name")
    return [
        Evidence(
            "breaks",
            f"{name}: {_BREAKS[name]}",
            note=f"{counted(count / view.steps, 'time')} a step",
        )
        for name, count in counts.iter_rows()
    ]
