"""RNK001: a rank holds the others up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from traceq.linter import Bad, Good, Need, Rule, Seen, dataclass

from ._shared import EARLY, LATE, hold, late_lines, ranks, saving

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.linter import Finding

# By what the ranks' time is more than their peers': what it is, and what to do.
_CAUSES = {
    "host": (
        "the GPU idles for the host",
        "look at what the host does there on this rank alone: logging, checkpoints,"
        " evaluation and Python that only one rank runs belong on all ranks or off the"
        " step; compare its machine's CPU clock and load with the others'",
    ),
    "data": (
        "data is loaded more slowly than elsewhere",
        "give the ranks batches of equal cost, more workers to its DataLoader, and look"
        " at the storage of its machine",
    ),
    "allocation": (
        "GPU memory is allocated or freed in the step",
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, and batches of one size:"
        " this rank's differ from step to step",
    ),
    "sync": (
        "the host waits for the GPU where others do not",
        "remove .item(), .cpu() and prints that only this rank runs",
    ),
    "stalled": (
        "the GPU does not begin work that is queued",
        "look for another process on its GPU with nvidia-smi",
    ),
    "unattributed": (
        "no single part of the time explains it",
        "lint the trace of that rank beside another one's: traceq diff",
    ),
}


@dataclass(frozen=True)
class Straggler(Rule):
    """A rank comes late to the collectives, and all others wait for it.

    ## What it does

    Matches the collectives of all ranks, puts their clocks in line, and compares what
    each rank does between two collectives with the median of its peers. The saving is
    by replay of all ranks: what the job's step is shorter by if this rank is as its
    peers. Ranks whose kernels are slower, or that have more to compute, are RNK002 and
    RNK003.

    ## Why is this bad?

    A collective ends when the last rank has come. One rank that is 5% late makes the
    step of thousands of GPUs 5% longer, and each of the others shows a long collective
    that no overlap makes shorter.

    ## How to fix it

    Look at the line that is named, on this rank. What only one rank does in a step
    (logging, checkpoints, evaluation) is the most frequent cause, then a slow machine.

    ```diff
      loss.backward()
    - if rank == 0:
    + if rank == 0 and step % 100 == 0:
          log.write(f"{step} {loss.item()} {histograms(model)}")
      optimizer.step()
    ```

    ## When it is wrong

    Where ranks take turns in being late, none of them is a straggler, and noise is the
    cause. A rank that is slow by design, as the one that holds an embedding, is right.
    """

    code = "RNK001"
    several_fixes = True
    since = "0.2.0"
    see = ("torch.nn.parallel.DistributedDataParallel",)
    needs = frozenset({Need.JOB})

    seen = Seen(
        text="""
        RNK001 straggler  saves 9.88 µs/step (16%)
          rank 1 holds the others up: the GPU idles for the host
          late  12.0 µs a step, more than its peers
          host  12.0 µs of it
          last  in 2 of 2 collectives
          fix   look at what the host does there on this rank alone: logging,
                checkpoints, evaluation and Python that only one rank runs belong on
                all ranks or off the step; compare its machine's CPU clock and load
                with the others'
        """,
    )

    examples = (
        Bad(
            "",
            finds="rank 1 holds the others up: the GPU idles for the host",
            ranks=(EARLY, LATE, EARLY),
        ),
        Good("", ranks=(EARLY, EARLY, EARLY)),
    )

    def check_job(self, job: Any) -> Iterator[Finding]:  # noqa: ANN401 - see Rule
        """Report those whose time differs by anything but their kernels or links."""
        for straggler in job.stragglers:
            if straggler.cause.cause not in _CAUSES:
                continue
            why, advice = _CAUSES[straggler.cause.cause]
            if straggler.cause.cause == "host" and not job.job.has_gpus:
                why = "the host takes longer"
            finding = self.finding(
                f"{ranks(job, straggler.ranks)} {hold(straggler.ranks)} the others"
                f" up: {why}",
                subject=straggler.cause.cause,
                place=straggler.cause.place,
                evidence=late_lines(job, straggler),
                advice=advice,
            )
            yield saving(finding, job, straggler.saved_ns)
