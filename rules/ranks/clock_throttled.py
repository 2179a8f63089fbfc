"""RNK002: the same kernels take longer on one rank."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from traceq.linter import Bad, Evidence, Good, Need, Rule, Seen, dataclass

from ._shared import EARLY, MORE, SLOW, hold, late_lines, ranks, saving

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.linter import Finding


@dataclass(frozen=True)
class ClockThrottled(Rule):
    """A rank runs the same kernels more slowly than the others, and they wait for it.

    ## What it does

    Compares the kernels of a rank that holds the others up with those of its peers: the
    same kernel for the same shapes in the same module. If each takes longer, the GPU is
    slower, not its work more. The saving is by replay of all ranks.

    ## Why is this bad?

    A GPU lowers its clocks when it is too hot, over its power limit, or told to. One of
    them makes the step of the whole job longer, for as long as it is in the job.

    ## How to fix it

    Look at the clocks and the reason why they are low, while the job runs. Leave the
    node out, or have its cooling, power limit or clocks put in order.

    ```diff
      # nvidia-smi -q -d PERFORMANCE,CLOCK says SW Thermal Slowdown: Active
    - srun --nodes 64 torchrun train.py
    + srun --nodes 63 --exclude node17 torchrun train.py
    ```

    ## When it is wrong

    Another process on the same GPU, and other GPUs in the same job (an A100 among
    H100), look alike. Kernels whose time depends on values, as with sparse inputs, may
    take longer for the same shapes.
    """

    code = "RNK002"
    since = "0.2.0"
    see = ("torch.cuda.clock_rate",)
    needs = frozenset({Need.JOB})
    advice = (
        "look at this GPU while the job runs: nvidia-smi -q -d PERFORMANCE,CLOCK says"
        " whether heat, power or a setting keeps its clocks low; leave the node out"
        " until it is repaired"
    )

    seen = Seen(
        text="""
        RNK002 clock-throttled  saves 3.00 µs/step (5%)
          rank 1 holds the others up: the same kernels take longer
          late     3.00 µs a step, more than its peers
          compute  3.00 µs of it
          last     in 2 of 2 collectives
          slower   120% at the median of its kernels
          kernel   gemm
          fix      look at this GPU while the job runs: nvidia-smi -q -d
                   PERFORMANCE,CLOCK says whether heat, power or a setting keeps its
                   clocks low; leave the node out until it is repaired
        """,
    )

    examples = (
        Bad(
            "",
            finds="rank 1 holds the others up: the same kernels take longer",
            ranks=(EARLY, SLOW, EARLY),
        ),
        Good("", ranks=(EARLY, MORE, EARLY)),
    )

    def check_job(self, job: Any) -> Iterator[Finding]:  # noqa: ANN401 - see Rule
        """Report the ranks whose kernels are slower."""
        for straggler in job.stragglers:
            if straggler.cause.cause != "slower kernels":
                continue
            work = straggler.cause.work
            finding = self.finding(
                f"{ranks(job, straggler.ranks)} {hold(straggler.ranks)} the others"
                " up: the same kernels take longer",
                subject="slower kernels",
                evidence=[
                    *late_lines(job, straggler),
                    *(
                        [
                            Evidence(
                                "slower",
                                value=work.ratio - 1,
                                unit="share",
                                note="at the median of its kernels",
                            ),
                            Evidence("kernel", work.kernel or ""),
                        ]
                        if work
                        else ()
                    ),
                ],
            )
            yield saving(finding, job, straggler.saved_ns)
