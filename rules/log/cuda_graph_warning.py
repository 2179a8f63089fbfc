"""LOG008: the log reports skipped CUDA graphs, or captures for too many sizes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceq.linter import Bad, Good, Need, Rule, Seen, Severity, dataclass

from ._messages import Message, findings

if TYPE_CHECKING:
    from collections.abc import Iterator

    import polars as pl

    from traceq.linter import Finding

_MESSAGES = (
    Message(
        "distinct sizes",
        r"CUDAGraph supports dynamic shapes by recording a new graph for each distinct"
        r" input size.*?We have observed (?P<count>\d+) distinct sizes",
        "a CUDA graph was captured for each of {count} distinct input sizes",
        "pad the inputs to a few fixed sizes, or skip graphs for those that vary:"
        " torch._inductor.config.triton.cudagraph_skip_dynamic_graphs = True",
        ("JIT001",),
        to_confirm=True,
    ),
    Message(
        "recapture limit",
        r"skipping cudagraph due to (?P<what>.*?) exceeding max re-recording limit"
        r" \(=(?P<count>\d+)\)",
        "CUDA graphs are off for {what} after {count} captures",
        "find what changes between calls: sizes, addresses of inputs that should not"
        " move, outputs that are still in use",
        ("JIT001", "JIT004"),
    ),
    Message(
        "skipped",
        r"skipping cudagraphs due to (?P<reason>[^\n]+)",
        "CUDA graphs were requested but are skipped: {reason}",
        "remove the cause: inputs on the CPU, inputs changed in place, operations that"
        " cannot be captured; or use mode='default', which requests no graphs",
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
        "an output of a CUDA graph is read after the next replay has overwritten it",
        "clone() what is kept beyond the next call, or call"
        " torch.compiler.cudagraph_mark_step_begin() before each step",
        severity=Severity.error,
    ),
    Message(
        "empty graph",
        r"The CUDA Graph is empty",
        "a captured CUDA graph is empty",
        "capture on the stream that the work runs on: torch.cuda.graph(g) sets it",
    ),
)


@dataclass(frozen=True)
class CudaGraphWarning(Rule):
    """The log reports CUDA graphs that are skipped, or captured for too many sizes.

    ## What it does

    Looks in the program's log for what torch.compile prints about CUDA graphs: for how
    many sizes one was captured, why graphs are skipped, and which outputs were
    overwritten.

    ## Why is this bad?

    A graph that is captured again for every size costs more than it saves, and one that
    is skipped saves nothing. Neither shows in the results.

    ## How to fix it

    Use fixed sizes for what runs in graphs, and no graphs for the rest. The line names
    what is in the way.

    ```diff
    - batch = tokenizer(texts, padding="longest")
    + batch = tokenizer(texts, padding="longest", pad_to_multiple_of=256)
    ```

    ## When it is wrong

    A graph that is skipped for one small function may not matter: JIT004 estimates its
    cost from a trace. Graphs that were captured for many sizes are minor where a trace
    captures none in its steps (JIT001).
    """

    code = "LOG008"
    several_fixes = True
    since = "0.1.0"
    see = ("torch.compiler.cudagraph_mark_step_begin", "torch.cuda.graph")
    needs = frozenset({Need.LOG})
    priced = False

    seen = Seen(
        of="fixtures/captures/graph_rerecord.log",
        text="""
        LOG008 cuda-graph-warning
          a CUDA graph was captured for each of 9 distinct input sizes
          line  torch/_inductor/cudagraph_utils.py:343] [__cudagraphs] CUDAGraph
                supports dynamic shapes by recording a new graph for each distinct
                input size. Recording too many CUDAGraphs may lead to extra overhead
                … (line 5) ×2
          fix   pad the inputs to a few fixed sizes, or skip graphs for those that
                vary: torch._inductor.config.triton.cudagraph_skip_dynamic_graphs =
                True
        """,
    )

    examples = (
        Bad(
            "",
            log="W0101 torch/_inductor/cudagraph_utils.py:343] [__cudagraphs] CUDAGraph"
            " supports dynamic shapes by recording a new graph for each distinct input"
            " size. We have observed 9 distinct sizes.\n",
            finds=("a CUDA graph was captured for each of 9 distinct input sizes",),
        ),
        Good("", log="CUDA graphs on\n"),
    )

    def check_log(self, log: pl.DataFrame) -> Iterator[Finding]:
        """Look for each message."""
        yield from findings(self, _MESSAGES, log)
