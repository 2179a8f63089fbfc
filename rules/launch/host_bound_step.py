"""LCH002: the GPU waits for the host, and no other finding explains it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.time import host_activity, serving
from traceq.linter import Bad, Good, Need, Rule, Seen, Severity, View, dataclass, option

from ._graph_obstacles import graph_obstacles
from ._graphed_model import graphed_model
from ._host_bound_advice import advice_for, evidence, message, trains
from ._host_bound_examples import WAITING, drawn
from ._host_bound_fixes import (
    fixes_of_graph,
    mostly_gaps,
    removed_time,
    replayed,
    uncompiled,
    unexplained_idle_ns,
)
from ._obstacle import HARD
from ._trainers import trainer_of
from ._whole_update import only_passes, update_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.linter import Finding

# If the other findings explain all but this fraction of the idle time, they are enough.
# Heuristic threshold.
_LITTLE_LEFT = 0.2
_LOOK = (
    "record with stacks, profile(with_stack=True), to see what the host does in the"
    " gaps: it may load data, compile, or wait for another process"
)


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
    A kernel's first launch that loads its code passes by itself, and does not count.
    What is left of the step with all findings fixed is at the end of ``traceq lint``.

    ## Why is this bad?

    Each operator costs the host 5 to 15 µs, whatever its size. If kernels are shorter
    than that, a faster GPU or a better kernel does not help: the step takes as long as
    the host needs to call its operators. Whatever else the host does while the GPU has
    no work is in the step in full, too.

    ## How to fix it

    First fix the other findings. Then look at the entries: Python that is not needed in
    the step, work that can be done by another process, sizes that change. Then launch
    less: ``model.compile(mode="reduce-overhead")`` fuses operators and replays the
    remaining kernels as one CUDA graph, which leaves about the GPU's own time, or less;
    ``torch.compile(model)`` does too, but names the weights of a checkpoint otherwise
    (``_orig_mod.``). A small Llama took 24.1 ms with 3.9 ms of kernels, and 3.0 ms as a
    graph (H200, torch 2.11). Or give each launch more to do, with a larger batch.
    Without the mode there is no graph: of 16 host-bound programs eight got slower so.
    What is under ``around`` goes only if the function that runs it is compiled with the
    model.

    A graph is the same launches every time. What is listed under ``forbids`` and
    ``needs`` must change before: otherwise a graph is captured in every step, which
    takes longer than the step did (134 ms became 302 ms in a model with a loop that
    depends on data; 10.1 ms became 34.3 where ``weight.data = …`` put weights elsewhere
    in every step). Backward passes that are not alike, as those of a GAN, overwrite
    each other's gradients and activations. A value that the host reads between modules,
    as the token that a decoder goes on with, ends what one graph can run. torch.compile
    replays no graph of a model that writes into its inputs (``coord += …``).

    Where one function calls several models, as the update of an agent or of a GAN,
    ``update`` is the step with one graph of all that it runs; where passes forbid a
    graph of each model, the saving is of that one.

    ``torch.compile`` does not capture ``nn.LSTM``, ``nn.GRU`` and ``nn.RNN``, ends with
    an error where gradients of several backward passes accumulate, and unrolls loops.
    ``torch.cuda.make_graphed_callables(model, (batch,))`` replays all three, without
    fusing operators: for batches of one size, with each forward pass followed by its
    backward.

    ```diff
    + model.compile(mode="reduce-overhead")  # once, before the loop
      loss = model(batch)
    ```

    The Trainer of transformers compiles the model itself if it is told to, and of a
    LightningModule the network inside is compiled: the fix says so where one runs.

    ## When it is wrong

    Graphs of steps with collectives, as of DDP and FSDP, were not tried: there is no
    saving, and the fix says so.
    Recording stacks makes the host 1.5 to 3 times slower, so a GPU-bound step may look
    host-bound; where that is possible the message says "likely", and the finding is
    minor. Give the true step time with ``--step-ms``, or record without stacks. Without
    stacks the model is what runs from the first operator with weights to the last one,
    in either pass, called once. Python in between counts as the model's, but for gaps
    of over 200 µs, and of over 50 µs where a trainer gives the optimizer a closure:
    these are of the program around it. An operator of torch's that takes the host over
    1 ms itself computes there, or starts something: a graph does not remove that.
    """

    code = "LCH002"
    effort = "rewrite"
    since = "0.1.0"
    see = (
        "torch.compile",
        "torch.cuda.make_graphed_callables",
        "torch.cuda.graph",
    )
    residual = True
    general = True
    needs = frozenset({Need.GPU, Need.OPS, Need.WARM})

    # Heuristic threshold: less is not what bounds the step.
    min_share: float = option(
        0.1,
        "Smaller shares of the step are not reported; twice that where CUDA graphs are"
        " replayed already.",
    )

    seen = Seen(
        of="fixtures/python_in_step",
        text="""
        LCH002 host-bound-step
          saves 1.98 ms/step (28%), 1.58 ms to 4.05 ms, once the other findings are
            fixed
          the GPU waits for the host to launch 90 kernels a step
          remains  53% of the step is idle once the other findings are fixed
          waits    2.10 ms in 816 operators (most in aten::mm in forward
                   (python_in_step.py:43))
          waits    445 µs in the autograd engine (most in torch in step
                   (python_in_step.py:60))
          waits    405 µs in Python code (most in forward (python_in_step.py:43))
          waits    266 µs in Python code of the optimizer (most in torch in step
                   (python_in_step.py:60))
          kernels  3.68 µs each at the median
          fix      torch.compile(mode="reduce-overhead") of the function that calls
                   the modules, each too small alone, replays a CUDA graph instead;
                   or give each launch more to do with a larger batch
        """,
    )

    examples = (
        Bad(
            drawn(8, "[k<{n}]"),
            finds=("the GPU waits for the host to launch 8 kernels a step",),
        ),
        Bad(
            WAITING,
            finds=(
                "the GPU waits for the host: mostly Python code and the libraries it"
                " calls",
            ),
        ),
        Good(drawn(8, "[k<{n}                 ]")),
    )

    def check(self, view: View) -> Iterator[Finding]:
        """Report what the host does in the idle time that other fixes leave."""
        if view.bound.by != "host" or not self._matters(view):
            return
        waits = view.waits
        # What nobody recorded may be anything: no graph removes it.
        unknown = mostly_gaps(view)
        obstacles = [] if unknown else graph_obstacles(view.trace, view.steady)
        forbidden = unknown or any(obstacle.reason in HARD for obstacle in obstacles)
        # What a graph of a step with collectives saves was never measured.
        forbidden |= view.distributed
        fixes = [] if forbidden else fixes_of_graph(view, obstacles)
        update = None if unknown else update_of(view, obstacles)
        if update and only_passes(obstacles):
            fixes = update.fixes
        elif not fixes:
            update = None
        launches = (
            removed_time(view, pl.col("kind") == host_activity.LAUNCHES).height
            / view.steps
        )
        finding = self.finding(
            message(view, launches),
            subject="launches",
            count=launches,
            fix=fixes,
            gpu_idle_ns=unexplained_idle_ns(view),
            evidence=evidence(view, obstacles, fixes, update),
            data={
                "launches": launches,
                "idle_ns": round(waits.idle_ns),
                "forbids": [obstacle.reason for obstacle in obstacles],
            },
            advice=_LOOK if unknown else advice_for(view, obstacles, fixes, update),
            severity=None if view.bound.sure else Severity.info,
        )
        # The example compiles a model that is not compiled yet.
        unfit = (
            not fixes
            or only_passes(obstacles)
            or serving.serving(view.trace)
            or replayed(view)
            or view.compiled
            or uncompiled(obstacles)
            or graphed_model(view.trace, view.steady).is_function
        )
        if trainer := trainer_of(view):
            finding = replace(finding, example=trainer[1])
        elif not trains(view):
            finding = replace(finding, example=finding.example.replace("loss =", "y ="))
        yield replace(finding, example="") if unfit else finding

    def _matters(self, view: View) -> bool:
        """Return whether enough of the step is idle and not explained."""
        all_ns = view.bound.waits.idle_ns if view.bound.waits else 0.0
        least = self.min_share * (2 if replayed(view) else 1) * view.bound.step_ns
        waits = view.waits.lasting
        return waits.height > 0 and waits["time"].sum() >= max(
            least, _LITTLE_LEFT * all_ns
        )
