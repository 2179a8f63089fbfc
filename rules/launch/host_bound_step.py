"""LCH002: the GPU waits for the host, and no other finding explains it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base import assumptions, ownership
from traceq.analysis.patterns import optimizers
from traceq.analysis.time import host_activity, serving
from traceq.linter import (
    Bad,
    Evidence,
    Fix,
    Good,
    Need,
    Rule,
    Seen,
    Severity,
    View,
    at_function,
    cached_per_trace,
    counted,
    dataclass,
    fill_false,
    has_like,
    option,
    text,
    time,
)

from ._graph_obstacles import HARD, UNCOMPILED, graph_obstacles
from ._graphed_model import OUTER_MODULE, accumulates, graphed_model

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from traceq.analysis.replay.host_account import HostAccount
    from traceq.linter import Finding, Trace

    from ._graph_obstacles import Obstacle
    from ._graphed_model import GraphedModel

_MOST_ENTRIES = 4
# If the other findings explain all but this share of the idle time, they are enough.
# Chosen by judgement.
_LITTLE_LEFT = 0.2
# Less outside of the model is the loss, mostly. Chosen by judgement.
_MUCH_AROUND = 0.1
_CALLS = (
    host_activity.LAUNCHES,
    "copies and sets",
    "allocating memory",
    "other runtime calls",
)
# What a model that runs as a CUDA graph does not do any more; its Python goes with it.
_OF_OPS = (host_activity.DISPATCH, host_activity.ENGINE, *_CALLS)
_OF_MODEL = (
    *_OF_OPS,
    host_activity.MODULES,
    host_activity.LIBRARY,
    host_activity.NO_STACKS,
)
_FORBIDS = {
    "shapes": "sizes that are new in every step",
    "launches": "steps that launch another number of kernels",
    "values": "data-dependent sizes",
    "branches": "branches on values that only the GPU has",
    "syncs": "syncs in the model",
    "copies": "copies from the host in the model",
    "cache": "a KV cache that grows by cat (SRV007)",
    "replaced": "weights that lie elsewhere in every step (`.data = …`)",
    "sparse": "sparse gradients, with which compiling ends in an error",
    "passes": "several backward passes a step, which are not alike",
    "between": "syncs between modules of one forward pass",
    "backwards": "overwrites the gradients of several backward passes a step",
    "rnn": "does not capture nn.LSTM, nn.GRU and nn.RNN",
    "loop": "unrolls a loop of the model (LCH001), which may take minutes",
}
_FIRST = {
    "shapes": "pad or bucket the sizes that change to a few",
    "launches": "make loops and branches that depend on data the same in every step",
    "values": "avoid data-dependent sizes, as with torch.where instead of nonzero",
    "branches": "decide on the GPU with torch.where, and check values less often",
    "cache": "write the KV cache in place, at a fixed size",
    "replaced": "write into the weights, with lerp_ or copy_, and do not replace them",
    "sparse": "make them dense (sparse=False), if the tables are small",
    "between": "read no value on the host between modules",
    "syncs": "take the syncs out of the model",
    "copies": "make the tensors of the model on the GPU",
}
_GRAPHED = (
    "torch.cuda.make_graphed_callables(model, (batch,)) replays a CUDA graph for each"
    " {passes}, for batches of one size; or give each launch more to do with a larger"
    " batch"
)
# Trainers by a call that they make: how they are told to compile, and an example.
_TRAINERS = (
    (
        r"(^|/)transformers/trainer\.py\(",
        "torch_compile=True and torch_compile_mode="
        '"reduce-overhead" in TrainingArguments replay a CUDA graph',
        "- args = TrainingArguments(output_dir)\n"
        "+ args = TrainingArguments(output_dir, torch_compile=True,\n"
        '+                          torch_compile_mode="reduce-overhead")',
    ),
    (
        r"(^|/)(lightning/pytorch|pytorch_lightning)/",
        'torch.compile(net, mode="reduce-overhead") of the network in the'
        " LightningModule replays a CUDA graph",
        "- self.net = Net()\n"
        '+ self.net = torch.compile(Net(), mode="reduce-overhead")  # in __init__',
    ),
)
_FUNCTION = (
    'torch.compile(mode="reduce-overhead") of the function that calls the modules, each'
    " too small alone, replays a CUDA graph"
)
_TOO_SMALL = (
    "give each launch more to do, with a larger batch: a call of a compiled model would"
    " take the host as long as the few kernels of this one do"
)
_LOOK = (
    "record with stacks, profile(with_stack=True), to see what the host does in the"
    " gaps: it may load data, compile, or wait for another process"
)


def _drawn(launches: int, kernel: str) -> str:
    """Draw a step of this many ops, each with a launch and a kernel."""
    numbers = range(1, launches + 1)
    width = 21 * launches
    return "\n".join(
        (
            f"host  [ProfilerStep#1{' ' * (width - 10)}]",
            "host   " + "[aten::add          ]" * launches,
            "host    " + "".join(f"[cuLaunchKernel>{n}]".ljust(21) for n in numbers),
            "gpu 7          " + "".join(kernel.format(n=n).ljust(21) for n in numbers),
        )
    )


_WAITING = """
    host  [ProfilerStep#1                                                        ]
    host   [train.py(3): main                                                   ]
    host    [train.py(9): tokenise                         ] [aten::mm           ]
    host                                                      [cudaLaunchKernel>1]
    gpu 7                                                                 [gemm<1]
"""


@dataclass(frozen=True)
class HostBoundStep(Rule):
    """The GPU waits for the host, and no other finding explains it.

    ## What it does

    Reports what remains after the other findings: in a host-bound step, the time in
    which the GPU idles and which no other fix removes, with what the host does in it:
    the largest entries of its account. States what ``torch.compile`` with CUDA graphs
    would save of the step, with a range, and what forbids a graph.

    The saving is that of a graph of the model, whatever else is fixed: the host's time
    for the operators, launches, modules and Python of its modules and of their
    backward, and as much of their kernels as the gaps between them take. Each call of
    the compiled model takes the host as long as 10 of its kernels did, each backward as
    15: a model of fewer saves nothing. Where each module is too small, as in a loop
    over layers, the function that calls them is taken for the model. What is outside of
    modules stays, as the loss, averaged weights and a trainer; operators there are
    listed under ``around`` if they take a tenth of the step. So does the accumulation
    of gradients. The saving is nothing if steps differ in their shapes or launches, in
    data-dependent sizes or in many branches, since no graph can be replayed then. Where
    graphs are replayed already, it is the host's time for what launches beside them.
    What is left of the step with all findings fixed is at the end of ``traceq lint``.

    ## Why is this bad?

    Each operator costs the host 5 to 15 µs, whatever its size. If kernels are shorter
    than that, a faster GPU or a better kernel does not help: the step takes as long as
    the host needs to call its operators. Whatever else the host does while the GPU has
    no work is in the step in full, too.

    ## How to fix it

    First fix the other findings. Then look at the entries: Python that is not needed in
    the step, work that can be done by another process, sizes that change. Then launch
    less: ``torch.compile(model, mode="reduce-overhead")`` fuses operators and replays
    the remaining kernels as one CUDA graph, which leaves about the GPU's own time, or
    less: a small Llama took 24.1 ms with 3.9 ms of kernels, and 3.0 ms as a graph
    (H200, torch 2.11). Or give each launch more to do, with a larger batch. Without the
    mode there is no graph: of 16 host-bound programs eight got slower so. What is under
    ``around`` goes only if the function that runs it is compiled with the model.

    A graph is the same launches every time. What is listed under ``forbids`` and
    ``first`` must change before: otherwise a graph is captured in every step, which
    takes longer than the step did (134 ms became 302 ms in a model with a loop that
    depends on data; 10.1 ms became 34.3 where ``weight.data = …`` put weights elsewhere
    in every step). Backward passes that are not alike, as those of a GAN, overwrite
    each other's gradients and activations. A value that the host reads between modules,
    as the token that a decoder goes on with, ends what one graph can run.

    ``torch.compile`` does not capture ``nn.LSTM``, ``nn.GRU`` and ``nn.RNN``, ends with
    an error where gradients of several backward passes accumulate, and unrolls loops.
    ``torch.cuda.make_graphed_callables(model, (batch,))`` replays all three, without
    fusing operators: for batches of one size, with each forward pass followed by its
    backward.

    ```diff
    - loss = model(batch)
    + model = torch.compile(model, mode="reduce-overhead")  # once, before the loop
    + loss = model(batch)
    ```

    The Trainer of transformers compiles the model itself if it is told to, and of a
    LightningModule the network inside is compiled: the fix says so where one runs.

    ## When it is wrong

    Recording stacks makes the host 1.5 to 3 times slower, so a GPU-bound step may look
    host-bound; where that is possible the message says "likely", and the finding is
    minor. Give the true step time with ``--step-ms``, or record without stacks. Without
    stacks the model is what runs from the first operator with weights to the last one,
    in either pass, called once. Python in between counts as the model's, but for gaps
    of over 200 µs, and of over 50 µs where a trainer gives the optimizer a closure:
    these are of the program around it. An operator of torch's that takes the host over
    1 ms itself computes there, or starts something: a graph does not remove that.

    ## Measured

    On an H200, in ms a step. ``torch.compile(mode="reduce-overhead")``:
    ``llama_small_compiled`` 30.6 → 4.2; training of a small BERT 15.7 → 4.7, ViT 15.8 →
    5.5, T5 18.2 → 6.7 and MobileNet 11.2 → 3.0; inference of a small Llama 5.0 → 0.6,
    of ResNet-18 2.7 → 0.3; RAFT 23.5 → 2.1; training of a video ResNet 8.7 → 4.1, CLIP
    23.1 → 5.7, DeepLab with autocast 25.8 → 9.4, XLNet 24.7 → 4.5, a Llama with LoRA
    85.4 → 9.5, and 26 embedding tables 7.8 → 2.5; inference of Swin 8.3 → 1.7, 20 steps
    of a diffusion model 73.1 → 12.1.
    ``make_graphed_callables``: an LSTM 5.0 → 1.6, where compiling changed nothing, a
    GRU 4.6 → 2.3, MobileNet with two passes a step 30.0 → 7.5. Compiled, a GAN ended
    with an error or was no faster, in all of five ways. The two GRUs of a decoder that
    reads each token, graphed: 27.7 → 21.1. PPO: 70.0 → 72.5 with both modules compiled,
    45.5 with the method that calls them. A graph network with
    data-dependent sizes: 5.5 → 7.0, and 7.5 → 6.8 in another run. A tree search that
    reads the model's answer 30 times a step: 36.2 → 11.8. The networks of a NeRF, with
    the rendering around them as it was: 15.8 → 11.9; that of a Lightning module which
    logs metrics: 17.3 → 12.5. Embeddings with ``sparse=True``: an error.
    A small GPT with checkpointing and autocast 21.1 → 6.0. With a trainer or logging
    around the model: Lightning with an MLP 11.5 → 9.3, with a Transformer 19.6 → 8.2,
    the Trainer of transformers 12.6 → 7.1, accelerate 15.9 → 5.7, loops of one's own
    14.6 → 5.6, 9.4 → 3.2 and 24.1 → 7.8; a small U-Net with averaged weights 8.6 → 4.8.
    Of nine programs that nothing was fitted to, these shares of a step were promised
    with stacks, and saved: EfficientNet 77% (75%), a BERT that serves 74% (72%), a VAE
    54% (45%), DistilBERT with the Trainer 52% (57%), two towers 50% (50%), ConvNeXt and
    a U-Net with averaged weights 48% (56%) and 44% (41%), an autoencoder with Lightning
    34% (37%), an actor and critic whose returns are computed outside 7% (4%). The
    function that calls small modules was compiled for PPO alone.
    """

    code = "LCH002"
    since = "0.1.0"
    see = (
        "torch.compile",
        "torch.cuda.make_graphed_callables",
        "torch.cuda.graph",
    )
    residual = True
    needs = frozenset({Need.GPU, Need.OPS, Need.WARM})

    # Chosen by judgement: less is not what bounds the step.
    min_share: float = option(
        0.1,
        "Smaller shares of the step are not reported; twice that where CUDA graphs are"
        " replayed already.",
    )

    seen = Seen(
        of="fixtures/python_in_step",
        text="""
        LCH002 host-bound-step
          saves 1.98 ms/step (28%), on what remains after the others
          the GPU waits for the host to launch 90 kernels a step
          remains  53% of the step is idle once the other findings are fixed
          waits    2.10 ms in 816 operators (most in aten::mm in forward
                   (python_in_step.py:43))
          waits    445 µs in autograd engine (most in torch in step
                   (python_in_step.py:60))
          waits    405 µs in Python (most in forward (python_in_step.py:43))
          waits    266 µs in Python of the optimizer (most in torch in step
                   (python_in_step.py:60))
          kernels  3.68 µs each at the median
          fix      torch.compile(mode="reduce-overhead") of the function that calls
                   the modules, each too small alone, replays a CUDA graph instead;
                   or give each launch more to do with a larger batch
        """,
    )

    examples = (
        Bad(
            _drawn(8, "[k<{n}]"),
            finds=("the GPU waits for the host to launch 8 kernels a step",),
        ),
        Bad(
            _WAITING,
            finds=("the GPU waits for the host: mostly Python with its libraries",),
        ),
        Good(_drawn(8, "[k<{n}                 ]")),
    )

    def check(self, view: View) -> Iterator[Finding]:
        """Report what the host does in the idle time that other fixes leave."""
        if view.bound.by != "host" or not self._matters(view):
            return
        waits = view.waits
        # What nobody recorded may be anything: no graph removes it.
        unknown = _mostly_gaps(view)
        obstacles = [] if unknown else graph_obstacles(view.trace, view.steady)
        forbidden = unknown or any(one.reason in HARD for one in obstacles)
        fixes = [] if forbidden else _fixes(view, obstacles)
        launches = (
            _removed(view, pl.col("kind") == host_activity.LAUNCHES).height / view.steps
        )
        found = self.finding(
            _message(view, launches),
            subject="launches",
            count=launches,
            fix=fixes,
            gpu_idle_ns=_idle_ns(view),
            evidence=_evidence(view, obstacles, fixes),
            data={
                "launches": launches,
                "idle_ns": round(waits.idle_ns),
                "forbids": [one.reason for one in obstacles],
            },
            advice=_LOOK if unknown else _advice(view, obstacles, fixes),
            severity=None if view.bound.sure else Severity.info,
        )
        # The example compiles a model that is not compiled yet.
        unfit = (
            not fixes
            or serving.serving(view.trace)
            or _replayed(view)
            or _uncompiled(obstacles)
            or graphed_model(view.trace, view.steady).is_function
        )
        if trainer := _trainer(view):
            found = replace(found, example=trainer[1])
        elif not _trains(view):
            found = replace(found, example=found.example.replace("loss =", "y ="))
        yield replace(found, example="") if unfit else found

    def _matters(self, view: View) -> bool:
        """Return whether enough of the step is idle and not explained."""
        all_ns = view.bound.waits.idle_ns if view.bound.waits else 0.0
        least = self.min_share * (2 if _replayed(view) else 1) * view.bound.step_ns
        if view.waits.idle_ns < max(least, _LITTLE_LEFT * all_ns):
            return False
        return view.waits.kinds.height > 0


def _idle_ns(view: View) -> float:
    """Return how long the GPU idled as recorded, in the share that is not explained."""
    before = view.bound.waits.idle_ns if view.bound.waits else 0.0
    # Of gaps between kernels; a step may also begin or end with the GPU idle.
    steady = view.steady
    idle_ns = view.host_account.idle_ns or steady.time - steady.gpu_busy
    recorded = idle_ns / view.steps
    return recorded * view.waits.idle_ns / before if before else 0.0


def _replayed(view: View) -> bool:
    """Return whether CUDA graphs are replayed in the steps."""
    return bool((view.runtime["call"] == "graph launch").any())


def _message(view: View, launches: float) -> str:
    likely = "" if view.bound.sure else "likely "
    kinds = view.waits.kinds
    largest = kinds["kind"][0]
    if _replayed(view):
        return (
            f"the GPU {likely}waits for the host around CUDA graphs: mostly {largest}"
        )
    of_ops = kinds.filter(pl.col("kind").is_in(_OF_OPS))["time"].sum()
    mostly = largest in _OF_OPS or of_ops > view.waits.idle_ns / 2
    if mostly and launches:
        kernels = counted(round(launches) or launches, "kernel")
        return f"the GPU {likely}waits for the host to launch {kernels} a step"
    return f"the GPU {likely}waits for the host: mostly {largest}"


_IS_TORCH = text("library").str.contains("^(torch|<)").fill_null(value=True)


def _of(kinds: Sequence[str]) -> pl.Expr:
    """Return which things a graph removes of these kinds: no Python outside modules."""
    removed = pl.col("kind").is_in(list(kinds))
    if host_activity.LIBRARY in kinds:
        # What a trainer does around the model, as logging, stays.
        around = pl.col("module").is_null() & ~_IS_TORCH
        removed &= ~((pl.col("kind") == host_activity.LIBRARY) & around)
    if host_activity.MODULES in kinds:
        python = pl.col("kind").is_in(
            [host_activity.PYTHON, host_activity.WITH_LIBRARIES]
        )
        removed |= python & pl.col("module").is_not_null()
    return removed


def _removed(view: View, things: pl.Expr) -> pl.DataFrame:
    """Return when the host is at things, but for those that the optimizer does."""
    return _without_optimizer(
        view.trace, view.host_account.of(things, "start", "end", "op")
    )


def _without_optimizer(trace: Trace, found: pl.DataFrame) -> pl.DataFrame:
    stays = fill_false(trace.ops["phase"] == "optimizer")[found["op"]]
    return found.select("start", "end").filter(~fill_false(stays))


@cached_per_trace
def _in_graph(trace: Trace, account: HostAccount, model: GraphedModel) -> pl.DataFrame:
    """Return when the host is at what the model does not do any more as a graph."""
    columns = ("start", "end", "op", "kind")
    if model.modules is not None:
        mine = OUTER_MODULE.is_in(model.modules.implode())
        found = account.of(_of(_OF_MODEL) & mine, *columns)
    else:
        found = account.of(
            _of(_OF_MODEL) & (pl.col("kind") != host_activity.ENGINE), *columns
        )
        found = found.filter(model.are_in_windows(trace, found))
    return _only_dispatch(trace, account, found)


@cached_per_trace
def _outside_optimizer(trace: Trace, account: HostAccount) -> pl.DataFrame:
    """Return when the host is at ops and their Python, in a model or around it."""
    found = account.of(_of(_OF_MODEL), "start", "end", "op", "kind")
    return _only_dispatch(trace, account, found)


def _only_dispatch(
    trace: Trace, account: HostAccount, found: pl.DataFrame
) -> pl.DataFrame:
    """Return what only calls kernels: no gaps, and no work on the host."""
    longest = (
        assumptions.MOST_IN_TRAINER_NS
        if optimizers.closures(trace).height
        else assumptions.MOST_OF_MODEL_NS
    )
    slow = account.calls.filter(
        pl.col("own") > assumptions.MOST_DISPATCH_NS,
        pl.col("name").str.starts_with("aten::"),
    )
    working = fill_false(pl.col("op").is_in(slow["op"].implode()))
    return _without_optimizer(trace, found.filter(~_is_gap(longest), ~working))


@cached_per_trace
def _one_by_one(trace: Trace, account: HostAccount) -> pl.DataFrame:
    """Return when the host is at ops that launch beside graphs which are replayed.

    What is around a replay, as guards and wrappers of compiled code, stays.
    """
    calls = trace.runtime.filter(pl.col("kernels") > 0)
    replays = calls["call"] == "graph launch"
    launching, around = (
        calls["op"].filter(chosen).drop_nulls().unique()
        for chosen in (~replays, replays)
    )
    outermost = ownership.outermost_ops(trace)
    apart = outermost[launching].unique()
    apart = apart.filter(~apart.is_in(outermost[around].implode()))
    found = account.of(_of(_OF_OPS), "start", "end", "op")
    op = found["op"]
    chosen = outermost[op].is_in(apart.implode()) | op.is_in(launching.implode())
    return _without_optimizer(trace, found.filter(fill_false(chosen)))


def _is_gap(most_ns: int = assumptions.MOST_BETWEEN_OPS_NS) -> pl.Expr:
    """Return whether unrecorded time is too long to be Python of the model."""
    long = pl.col("end") - pl.col("start") > most_ns
    return long & (pl.col("kind") == host_activity.NO_STACKS)


@cached_per_trace
def _gaps(trace: Trace, account: HostAccount) -> tuple[int, float]:  # noqa: ARG001 - it is kept for the trace
    """Return how often nothing was recorded for too long, and for how long in all."""
    if not (account.described.things["kind"] == host_activity.NO_STACKS).any():
        return 0, 0.0
    columns = ("start", "end", "kind", "estimated")
    gaps = account.of(pl.col("kind") == host_activity.NO_STACKS, *columns).filter(
        _is_gap()
    )
    return gaps.height, float(gaps["estimated"].sum())


def _mostly_gaps(view: View) -> bool:
    _, gaps_ns = _gaps(view.trace, view.host_account)
    return gaps_ns / view.steps > view.waits.idle_ns / 2


def _fixes(view: View, obstacles: Sequence[Obstacle]) -> list[Fix]:
    """Return what a graph removes: the host's part, and the gaps between kernels."""
    trace, account = view.trace, view.host_account
    if _replayed(view):
        return [
            Fix(
                spans=_one_by_one(trace, account),
                host_share=assumptions.GRAPH_HOST_SAVED,
            )
        ]
    gaps_ns = float(view.replay.work["gap"].sum())
    share = min(
        1 - assumptions.COMPILED_GPU_SHARE, gaps_ns / max(1, view.steady.gpu_busy)
    )
    if view.compiled or _uncompiled(obstacles):
        # It is compiled, and calls take what they take; or it is not to be compiled.
        spans = _outside_optimizer(trace, account)
        kernels = view.kernels.filter(~fill_false(view.kernels["phase"] == "optimizer"))
        return [
            Fix(spans=spans, host_share=assumptions.GRAPH_HOST_SAVED),
            Fix(kernels=kernels["id"], kernel_share=share),
        ]
    model = graphed_model(trace, view.steady)
    if not model.host_share:
        return []
    engine = _removed(view, pl.col("kind") == host_activity.ENGINE)
    return [
        Fix(spans=_in_graph(trace, account, model), host_share=model.host_share),
        Fix(spans=engine, host_share=model.host_share * model.node_share),
        Fix(kernels=model.kernels, kernel_share=share),
    ]


def _evidence(
    view: View, obstacles: Sequence[Obstacle], fixes: Sequence[Fix]
) -> Iterator[Evidence]:
    waits, step_ns = view.waits, view.bound.step_ns
    share = min(1.0, waits.idle_ns / step_ns)
    if view.fixed:
        note = "of the step is idle once the other findings are fixed"
        yield Evidence("remains", value=share, unit="share", note=note)
    else:
        yield Evidence("idle", value=share, unit="share", note="of the step")
    for kind, ns, calls in waits.kinds.head(_MOST_ENTRIES).iter_rows():
        first = (waits.lines["kind"] == kind).arg_max()
        line = waits.lines.row(first, named=True)
        place = at_function(line["file"], line["line"], line["function"])
        name = None if place and line["name"] == line["function"] else line["name"]
        most = " in ".join(filter(None, (name, place)))
        named = (
            counted(round(calls) or calls, "operator")
            if kind == host_activity.DISPATCH
            else kind
        )
        note = f"in {named} (most in {most})" if most else f"in {named}"
        yield Evidence("waits", value=ns, unit="ns", note=note)
    gaps, gaps_ns = _gaps(view.trace, view.host_account)
    if gaps:
        often = counted(gaps / view.steps, "gap")
        longest = time(assumptions.MOST_BETWEEN_OPS_NS)
        note = f"a step in {often} of over {longest}, unrecorded"
        yield Evidence("gaps", value=gaps_ns / view.steps, unit="ns", note=note)
    # CUPTI may have lost those of the steps, and have others.
    if not view.kernels.is_empty():
        median = float(view.kernels.select(pl.col("dur").median()).item())
        yield Evidence("kernels", value=median, unit="ns", note="each at the median")
    stays_ns = _around_ns(view) if fixes else 0.0
    if stays_ns > _MUCH_AROUND * step_ns:
        note = "in operators outside of modules, which compiling the model leaves"
        yield Evidence("around", value=stays_ns, unit="ns", note=note)
    for one in obstacles:
        place = at_function(one.file, one.line, one.function)
        place = f" in {place}" if place else ""
        of = f" (most in {one.name}{place})" if one.name else ""
        label = "forbids" if one.reason in HARD else "first"
        if one.reason in UNCOMPILED:
            label = "compile"
        yield Evidence(label, f"{_FORBIDS[one.reason]}{of}", count=one.count)
    if not view.bound.sure:
        yield Evidence(
            "caveat", "recording stacks makes the host 1.5 to 3 times slower"
        )


def _around_ns(view: View) -> float:
    """Return how long the host is at ops outside of the model in a step."""
    if _replayed(view) or view.compiled:
        return 0.0
    model = graphed_model(view.trace, view.steady)
    if model.modules is None:
        return 0.0
    mine = OUTER_MODULE.is_in(model.modules.implode())
    ops = pl.col("kind").is_in([host_activity.DISPATCH, host_activity.LAUNCHES])
    found = view.host_account.of(ops & ~fill_false(mine), "op", "estimated")
    phase = view.trace.ops["phase"][found["op"]]
    accumulated = accumulates(view.trace, found["op"])
    stays = ~fill_false(phase == "optimizer") & ~accumulated
    return float(found["estimated"].filter(stays).sum()) / view.steps


def _uncompiled(obstacles: Sequence[Obstacle]) -> bool:
    return any(one.reason in UNCOMPILED for one in obstacles)


def _trainer(view: View) -> tuple[str, str] | None:
    """Return how the trainer that calls the model compiles it, and an example of it."""
    for name, told, example in _TRAINERS:
        if has_like(view.trace.frames, name):
            return told, example
    return None


def _trains(view: View) -> bool:
    """Return whether there is a backward pass or an update: not a forward alone."""
    seen = view.ops["phase"].is_in(["backward", "optimizer"]).any()
    return bool(seen) or has_like(view.trace.frames, "run_backward")


def _advice(view: View, obstacles: Sequence[Obstacle], fixes: Sequence[Fix]) -> str:
    compiled = view.compiled
    if any(one.reason in HARD for one in obstacles):
        cure = "see the entries under waits: a CUDA graph cannot be replayed as it is"
    elif _uncompiled(obstacles):
        passes = "forward and backward pass" if _trains(view) else "forward pass"
        cure = _GRAPHED.format(passes=passes)
    elif _replayed(view):
        cure = "capture what is still launched one by one in the CUDA graph as well"
    elif compiled:
        cure = 'compile with mode="reduce-overhead", which replays a CUDA graph'
    elif not fixes:
        cure = _TOO_SMALL
    else:
        graph = 'torch.compile(model, mode="reduce-overhead") replays a CUDA graph'
        if graphed_model(view.trace, view.steady).is_function:
            graph = _FUNCTION
        elif trainer := _trainer(view):
            graph = trainer[0]
        cure = f"{graph} instead; or give each launch more to do with a larger batch"
    reasons = (one.reason for one in obstacles)
    first = "; ".join(_FIRST[reason] for reason in reasons if reason in _FIRST)
    return f"{cure}; first {first}" if first else cure
