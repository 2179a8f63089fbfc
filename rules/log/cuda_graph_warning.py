"""LOG008: the log says that CUDA graphs are skipped, or recorded again and again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from traceq.lint import Bad, Good, Need, Rule, Severity
from traceq.lint.log_messages import Message, findings

if TYPE_CHECKING:
    from collections.abc import Iterator

    import polars as pl

    from traceq.lint import Finding

_MESSAGES = (
    Message(
        "distinct sizes",
        r"CUDAGraph supports dynamic shapes by recording a new graph for each distinct"
        r" input size.*?We have observed (?P<count>\d+) distinct sizes",
        "a CUDA graph was recorded for each of {count} distinct input sizes",
        "pad the inputs to a few fixed sizes, or skip graphs for those that vary:"
        " torch._inductor.config.triton.cudagraph_skip_dynamic_graphs = True",
        ("JIT001",),
    ),
    Message(
        "re-recording limit",
        r"skipping cudagraph due to (?P<what>.*?) exceeding max re-recording limit"
        r" \(=(?P<count>\d+)\)",
        "CUDA graphs are off for {what} after {count} recordings",
        "find what changes between calls: sizes, the addresses of inputs that should"
        " stay, outputs that are still in use",
        ("JIT001", "JIT004"),
    ),
    Message(
        "skipped",
        r"skipping cudagraphs due to (?P<reason>[^\n]+)",
        "CUDA graphs were asked for and are skipped: {reason}",
        "remove the cause: inputs on the CPU, inputs changed in place, operations that"
        " a graph cannot hold; or use mode='default', which does not ask for graphs",
        ("JIT004",),
    ),
    Message(
        "slow path",
        r"Unable to hit fast path of CUDAGraphs because (?P<reason>[^\n]+)",
        "CUDA graphs do not run on their fast path: {reason}",
        "call torch.compiler.cudagraph_mark_step_begin() at the start of each step",
        ("JIT001", "JIT004"),
    ),
    Message(
        "overwritten output",
        r"accessing tensor output of CUDAGraphs that has been overwritten by a"
        r" subsequent run",
        "an output of a CUDA graph is read after the next run has overwritten it",
        "clone() what is kept beyond the next call, or call"
        " torch.compiler.cudagraph_mark_step_begin() before each step",
        severity=Severity.error,
    ),
    Message(
        "empty graph",
        r"The CUDA Graph is empty",
        "a CUDA graph recorded nothing",
        "capture on the stream that the work runs on: torch.cuda.graph(g) sets it",
    ),
)


@dataclass(frozen=True)
class CudaGraphWarning(Rule):
    """The log says that CUDA graphs are skipped, or recorded for too many sizes.

    ## What it does

    Looks in the program's log for what torch.compile prints about CUDA graphs: how many
    sizes were recorded, why graphs are skipped, and outputs that were overwritten.

    ## Why is this bad?

    A graph that is recorded anew for every size costs more than it saves, and one that
    is skipped saves nothing; neither shows in the results.

    ## How to fix it

    Fixed sizes for what runs in graphs; for the rest no graphs. The reason in the line
    says what stands in the way.

    ## When it is wrong

    A graph that is skipped for one small function may not matter: JIT004 says what it
    costs, from a trace.
    """

    code = "LOG008"
    since = "0.1.0"
    needs = frozenset({Need.LOG})
    priced = False

    examples = (
        Bad(
            "",
            log="W0101 torch/_inductor/cudagraph_utils.py:343] [__cudagraphs] CUDAGraph"
            " supports dynamic shapes by recording a new graph for each distinct input"
            " size. We have observed 9 distinct sizes.\n",
            finds=("a CUDA graph was recorded for each of 9 distinct input sizes",),
        ),
        Good("", log="CUDA graphs on\n"),
    )

    def check_log(self, log: pl.DataFrame) -> Iterator[Finding]:
        """Look for each message."""
        yield from findings(self, _MESSAGES, log)
