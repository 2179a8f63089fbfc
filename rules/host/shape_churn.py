"""HST001: shapes that are new in every step cost the host a search each."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from traceq.analysis.base import ownership
from traceq.linter import (
    Bad,
    Evidence,
    Fix,
    Good,
    Need,
    Rule,
    Seen,
    View,
    counted,
    dataclass,
    inputs,
    listed,
    located_advice,
    module_line,
    often,
    option,
    share_of_steps,
    text,
)

from ._shared import launches, own_time, settled

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

    from traceq.linter import Finding

_MOST_SIZES = 4
_MATMUL, _CONVOLUTION, _ATTENTION = "matmul", "convolution", "attention"
_OTHER = "operator"
# What the library does for a new shape, by kind of op.
_KINDS = (
    (_ATTENTION, r"_cudnn_attention", "cuDNN builds a plan for attention"),
    (_CONVOLUTION, r"conv", "cuDNN chooses an algorithm for a convolution"),
    ("FFT", r"_fft_", "cuFFT builds a plan for an FFT"),
    (_MATMUL, r"mm$", "cuBLAS chooses an algorithm for a matmul"),
    (_OTHER, r"", "an operator prepares itself"),
)
_NO_PLANS = (
    "use an SDPA backend that makes no plans, with"
    " torch.backends.cuda.enable_cudnn_sdp(False); or "
)
_GROUPED = (
    "; or compute all experts by one torch.nn.functional.grouped_mm, which takes any"
    " number of tokens for each"
)
_DYNAMIC = (
    "; torch._dynamo.mark_dynamic keeps one compiled graph for the sizes that are left"
)
_BENCHMARK = "; and set torch.backends.cudnn.benchmark = False, which tries algorithms"
# What padding does to results.
_CHECK = {
    _MATMUL: "cut the padded rows off again before anything adds or averages over them",
    _ATTENTION: "mask the padding in attention, and leave it out of the loss",
    _CONVOLUTION: "padding shows at the border and in norms: resizing, or batches of"
    " one size, avoids that",
}
_CHECK_OTHER = "check that the padding does not change the result"
# Multiples to round up to; the largest is taken that adds no more than this share to
# the sizes on average. On an H200 64 to 256 helped alike (2026-11): repetition does it.
_MULTIPLES = (8, 16, 32, 64, 128, 256)
_MOST_PADDING = 0.15
# This many sizes in one step, of one line, are experts or the like.
_EXPERTS = 4
# New shapes must be slow this many times as often as known ones.
_CLEARLY = 3
# This many sizes in a few steps are not those of a first or last batch. Chosen by
# judgement.
_MANY_SIZES = 3
# Trying algorithms launches this many times as much as one of them.
_TRIES = 4
_COMPILED = r"^(Torch-Compiled Region|CompiledFunction)"


class _Varying(NamedTuple):
    """What varies in the shapes of an op."""

    text: str
    sizes: tuple[int, ...]
    dims: int
    per_step: float
    """How many sizes one step has."""


_NOTHING = _Varying("its shapes were not seen before", (), 1, 0)
_ROWS = {
    "aten::mm": inputs([[317, 64], [64, 64]], ["c10::BFloat16"] * 2),
    "aten::addmm": inputs([[64], [411, 64], [64, 64]], ["c10::BFloat16"] * 3),
}
_LONG = " " * 300
# Two steps: the matmul of the first takes long, and so does that of the second.
_SEARCH = f"""
            host   [ProfilerStep#1 {_LONG}   ] [ProfilerStep#2 {_LONG}       ]
            host    [aten::mm {_LONG} ]         [aten::addmm {_LONG}]
            host     [cudaLaunchKernel>1]        [cudaLaunchKernel>2]
            gpu 7                  [gemm<1]                     [gemm<2]
"""
_FIRST_ONLY = f"""
            host   [ProfilerStep#1 {_LONG}   ] [ProfilerStep#2                  ]
            host    [aten::mm {_LONG} ]         [aten::mm           ]
            host     [cudaLaunchKernel>1]        [cudaLaunchKernel>2]
            gpu 7                  [gemm<1]                     [gemm<2]
"""
# A call on inputs that are new, which takes far longer than the usual.
_SLOW = pl.col("new") & (pl.col("excess") > 0)


@dataclass(frozen=True)
class ShapeChurn(Rule):
    """Shapes that are new in every step make libraries choose algorithms on the host.

    ## What it does

    Looks for matmuls, convolutions, cuDNN attention, FFTs and other operators whose
    first call on a shape takes the host several times as long as a call on a shape that
    was seen before, in half of the steady-state steps and at least two; in fewer where
    sizes vary from step to step, as then any step may bring a new one. What is counted
    is the op's own time beyond the usual: launches, waits and ops inside it are not.
    Compilation and CUDA graph capture, with what runs in them, are left to JIT001 and
    JIT002.

    ## Why is this bad?

    For each new shape cuBLAS, cuDNN or cuFFT searches for an algorithm or builds a
    plan, on the host, while the GPU waits: about 0.2 ms for a 16-bit matmul, 2 ms for
    a convolution, 30 ms for an FFT, 40 ms and more for cuDNN attention (H200, torch
    2.11). Now and then a kernel is used for the first time and its code is loaded, 2 to
    5 ms more. The search comes back as long as shapes are new; loading passes by
    itself.

    ## How to fix it

    Make shapes repeat: pad the dimension that varies to a few sizes (buckets). For
    experts, a grouped matmul takes any number of tokens. For attention, another SDPA
    backend makes no plans. ``CUDA_MODULE_LOADING=EAGER`` was measured not to help.

    ```diff
    - tokens = pad_sequence(rows, batch_first=True)
    + tokens = pad_sequence(rows, batch_first=True)
    + tokens = F.pad(tokens, (0, -tokens.size(1) % 256))
    ```

    ## When it is wrong

    If there are few shapes, all of them have been seen after some steps and the excess
    ends by itself: record later (``traceq collect --warmup``). Padding computes more,
    which costs a GPU-bound step, and changes results unless it is masked or cut off.

    ## Measured

    On an H200, in ms a step. Lengths or sizes rounded up: ``varying_length`` 133 → 7.2,
    ``bert_lengths`` 191.5 → 22.2, ``mobilenet_sizes`` 34.3 → 21.8, images of another
    model 83.5 to 20.9. Tokens of each expert padded to multiples of 256:
    ``moe_dropless`` 36.0 → 25.6; one grouped matmul instead: ``moe_grouped`` 30.3 →
    7.3. ``enable_cudnn_sdp(False)``, while lengths were still new: a server of
    embeddings 37.8 → 11.7, a token classifier 47.8 → 16.0, DPO 100.3 → 42.1.
    """

    code = "HST001"
    several_fixes = True
    since = "0.2.0"
    see = ("torch.nn.functional.pad", "torch.backends.cudnn.benchmark")
    needs = frozenset({Need.GPU, Need.OPS, Need.SHAPES, Need.STEPS, Need.WARM})

    seen = Seen(
        of="fixtures/varying_length",
        text="""
        HST001 shape-churn  saves 142 ms/step (88%)
          cuDNN builds a plan for attention of a new shape twice a step, backward
            included: dimension 2 of input 0 of aten::_cudnn_attention_forward
            varies
          in       forward (fixtures/programs/varying_length.py:25) of
                   Sequential_0/Block_0
                   > 25 |     def forward(self, x: torch.Tensor) -> torch.Tensor:
                     26 |         batch, length, _ = x.shape
                     27 |         q, k, v = (
          ops      aten::_cudnn_attention_forward, aten::_cudnn_attention_backward
                   of 12 calls a step
          sizes    303, 773
          new      67.8 ms each, as recorded
          known    70.2 µs each, as recorded
          modules  Sequential_0/Block_0 and 1 more
          fix      in forward: use an SDPA backend that makes no plans, with
                   torch.backends.cuda.enable_cudnn_sdp(False); or pad that
                   dimension to multiples of 128 (384, 896 are left), so that shapes
                   repeat; mask the padding in attention, and leave it out of the
                   loss
        """,
    )

    examples = (
        Bad(
            _SEARCH,
            finds="cuBLAS chooses an algorithm for a matmul of a new shape once a step:"
            " its shapes were not seen before",
            args=_ROWS,
        ),
        Good(_FIRST_ONLY, args=_ROWS),
    )

    min_share: float = option(
        0.01, "Findings with a smaller share of the step, as recorded, are left out."
    )

    def check(self, view: View) -> Iterator[Finding]:
        """Group the slow first calls by kind and line, backward with its forward."""
        planned = view.host_account.calls.filter("planned")
        slow = planned.filter(_SLOW)
        # Mostly all of them together take too little.
        if int(slow["excess"].sum()) < self._least(view):
            return
        slow = _settled(view, slow)
        if not slow.height:
            return
        groups = view.by_place(
            # What varies is the user's: all functions of a library see the same.
            slow.with_columns(ownership.WHATEVER_LIBRARY),
            "kind",
            names=pl.col("name").unique(maintain_order=True),
            steps=pl.col("step").n_unique(),
            backward=(pl.col("phase") == "backward").sum(),
            usual=pl.col("usual").median(),
            **{one: pl.col(one).sum() for one in ("excess", "own", "idle", "loading")},
        )
        rows = groups.sort("excess", descending=True).iter_rows(named=True)
        found = [row for row in rows if self._matters(view, row)]
        if not found:
            return
        calls = _settled(view, planned)
        for row in found:
            mine = _same_place(calls, row)
            if not _is_of_shapes(mine):
                continue
            varying = _varying(view, mine)
            if _is_regular(view, row) or _varies(view, varying):
                yield self._finding(view, row, mine, varying)

    def _matters(self, view: View, row: Mapping[str, Any]) -> bool:
        """Return whether it costs enough."""
        return bool(row["excess"] >= self._least(view))

    def _least(self, view: View) -> float:
        return self.min_share * view.steady.time

    def _finding(
        self,
        view: View,
        row: Mapping[str, Any],
        calls: pl.DataFrame,
        found: _Varying,
    ) -> Finding:
        new = len(row["ids"]) / view.steps
        what = next(does for kind, _, does in _KINDS if kind == row["kind"])
        both = ", backward included" if 0 < row["backward"] < len(row["ids"]) else ""
        return self.finding(
            f"{what} of a new shape {often(new)}{both}: {found.text}",
            subject=f"{row['kind']} shapes",
            place=view.place(row),
            count=new,
            fix=_fix(view, row, calls),
            gpu_idle_ns=row["idle"] / view.steps,
            ops=row["ids"],
            evidence=_evidence(view, row, calls, found),
            data={"sizes": list(found.sizes), "ops": row["names"]},
            advice=located_advice(
                view, row["function"], _advice(view, row, calls, found)
            ),
        )


def _is_regular(view: View, row: Mapping[str, Any]) -> bool:
    """Return whether it comes back from step to step."""
    return bool(row["steps"] > 1 and 2 * row["steps"] >= view.steps)


def _varies(view: View, found: _Varying) -> bool:
    """Return whether sizes vary from step to step, so that any may be a new one."""
    return len(found.sizes) >= max(_MANY_SIZES, view.steps / 2)


def _fix(view: View, row: Mapping[str, Any], calls: pl.DataFrame) -> Fix:
    """Return that these calls take what one on a known shape does.

    Both as estimated without the profiler, which slows a call down but no search.
    """
    spans = own_time(view, row["ids"])
    known = own_time(view, calls.filter(~pl.col("slow"))["op"])
    took, usual = (float(one["estimated"].sum()) for one in (spans, known))
    slowed = usual / max(1, int(known["recorded"].sum())) if known.height else 1.0
    left = len(row["ids"]) * row["usual"] * slowed
    return Fix(spans=spans, host_share=max(0.0, 1 - left / took) if took else 1.0)


def _settled(view: View, calls: pl.DataFrame) -> pl.DataFrame:
    """Return calls of ops that are planned, and what they took.

    Those that compile, capture or run in a step that does are left to other rules.
    """
    found = settled(view, calls).with_columns(kind=_kind(), slow=_SLOW).sort("ts")
    search = (
        pl.col("own").filter(pl.col("slow") & ~pl.col("loads")).median().over("name")
    )
    loading = pl.when(pl.col("slow") & pl.col("loads")).then(pl.col("own") - search)
    return found.with_columns(loading=loading.clip(lower_bound=0).fill_null(0))


def _kind() -> pl.Expr:
    return pl.coalesce(
        pl.when(pl.col("name").str.contains(pattern)).then(pl.lit(kind))
        for kind, pattern, _ in _KINDS
    )


def _same_place(calls: pl.DataFrame, row: Mapping[str, Any]) -> pl.DataFrame:
    """Return all calls of a group's ops at its place, whatever they took."""
    same = (pl.col(key).eq_missing(row[key]) for key in ("kind", "file", "line"))
    return calls.filter(*same, pl.col("name").is_in(row["names"]))


def _is_of_shapes(calls: pl.DataFrame) -> bool:
    """Return whether it is new shapes that are slow: known ones hardly ever are."""
    rates = calls.select(
        new=pl.col("slow").filter("new").mean(),
        again=(pl.col("excess") > 0).filter(~pl.col("new")).mean().fill_null(0),
    )
    new, again = rates.row(0)
    return bool(new > _CLEARLY * again)


def _varying(view: View, calls: pl.DataFrame) -> _Varying:
    """Return which dimensions differ between the steps, and the sizes they take.

    The n-th call of an op in a step is the same layer in all of them, so a dimension
    that differs there varies. Of forward and backward the forward is looked at, whose
    shapes are the program's.
    """
    forward = calls.filter(pl.col("phase") != "backward")
    calls = forward if forward["slow"].any() else calls
    name = calls.filter("slow")["name"].mode().sort()[0]
    sizes = _sizes(view, calls.filter(pl.col("name") == name))
    varies = (
        sizes.group_by("input", "dim", "nth")
        .agg(distinct=pl.col("size").n_unique())
        .group_by("input", "dim")
        .agg(share=(pl.col("distinct") > 1).mean())
        .filter(pl.col("share") > 1 / 2)
        .sort("input", "dim")
    )
    if not varies.height:
        return _NOTHING
    first = varies.filter(pl.col("input") == varies["input"][0])
    dims, at = first["dim"].to_list(), first["input"][0]
    seen = _like_the_first(sizes.filter(pl.col("input") == at), dims)
    distinct = tuple(seen["size"].unique().sort())
    many = len(dims) > 1
    which = f"dimension{'s' if many else ''} {' and '.join(map(str, dims))}"
    per_step = seen.group_by("step").agg(pl.col("size").n_unique())["size"]
    return _Varying(
        f"{which} of input {at} of {name} {'vary' if many else 'varies'}",
        distinct,
        len(dims),
        float(per_step.sum()) / len(per_step),
    )


def _sizes(view: View, calls: pl.DataFrame) -> pl.DataFrame:
    """Return every size of every input: ``input``, ``dim``, ``nth`` call of a step."""
    return (
        view.with_inputs(calls.select("id", "step", "inputs"))
        .select("id", "step", "dims", nth=pl.int_range(pl.len()).over("step"))
        .explode("dims")
        .with_columns(input=pl.int_range(pl.len()).over("id"))
        .rename({"dims": "size"})
        .explode("size")
        .drop_nulls("size")
        .with_columns(dim=pl.int_range(pl.len()).over("id", "input"))
    )


def _like_the_first(sizes: pl.DataFrame, dims: Sequence[int]) -> pl.DataFrame:
    """Return the sizes of varying dimensions, of calls as the first is otherwise."""
    varies = pl.col("dim").is_in(dims)
    others = sizes.group_by("id", maintain_order=True).agg(
        rest=pl.col("size").filter(~varies).implode()
    )
    same = others.filter(pl.col("rest") == pl.col("rest").first())
    return sizes.filter(varies).join(same, on="id", how="semi")


def _evidence(
    view: View, row: Mapping[str, Any], calls: pl.DataFrame, found: _Varying
) -> Iterator[Evidence]:
    new = len(row["ids"])
    yield Evidence("ops", listed(row["names"]), note=_of_all(calls, view.steps))
    if found.sizes:
        sizes = listed([f"{size:,}" for size in found.sizes], _MOST_SIZES)
        yield Evidence("sizes", sizes)
    if not _is_regular(view, row):
        note = f"in {share_of_steps(view, row['steps'])}; each size costs this once"
        yield Evidence("seen", note)
    yield Evidence("new", value=row["own"] / new, unit="ns", note="each, as recorded")
    yield Evidence("known", value=row["usual"], unit="ns", note="each, as recorded")
    if row["loading"]:
        yield Evidence(
            "loading",
            value=row["loading"] / view.steps,
            unit="ns",
            note="a step is loading of kernels' code, which passes by itself",
        )
    yield from module_line(row["modules"])


def _of_all(calls: pl.DataFrame, steps: int) -> str:
    return f"of {counted(round(calls.height / steps), 'call')} a step"


def _advice(
    view: View, row: Mapping[str, Any], calls: pl.DataFrame, found: _Varying
) -> str:
    kind = row["kind"]
    advice = f"{_padded(found)}; {_CHECK.get(kind, _CHECK_OTHER)}"
    if kind == _ATTENTION:
        advice = _NO_PLANS + advice
    if kind == _MATMUL and found.per_step >= _EXPERTS:
        advice += _GROUPED
    if kind == _CONVOLUTION and _tries_algorithms(view, calls):
        advice += _BENCHMARK
    compiled = view.roots(text("name").str.contains(_COMPILED)).gather(row["ids"])
    return advice + (_DYNAMIC if compiled.is_not_null().any() else "")


def _padded(found: _Varying) -> str:
    """Write what to pad to: a multiple, and the sizes that are left."""
    if not found.sizes:
        return "pad the inputs to a few sizes, so that shapes repeat"
    mean = sum(found.sizes) / len(found.sizes)
    most = 2 * mean * _MOST_PADDING / found.dims
    multiple = max((one for one in _MULTIPLES if one <= most), default=_MULTIPLES[0])
    left = sorted({-(-size // multiple) * multiple for size in found.sizes})
    sizes = listed([f"{size:,}" for size in left], _MOST_SIZES)
    which = "these dimensions" if found.dims > 1 else "that dimension"
    return (
        f"pad {which} to multiples of {multiple} ({sizes} are left), so that"
        " shapes repeat"
    )


def _tries_algorithms(view: View, calls: pl.DataFrame) -> bool:
    """Return whether new shapes launch many times what known ones do."""
    found = calls.join(launches(view), on="op", how="left").with_columns(
        pl.col("launches").fill_null(0)
    )
    new, known = found.select(
        pl.col("launches").filter("slow").median().alias("new"),
        pl.col("launches").filter(~pl.col("slow")).median().alias("known"),
    ).row(0)
    return bool(known and new > _TRIES * known)
