"""RNK006: stages of a pipeline wait for each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from traceq.linter import Bad, Evidence, Good, Need, Rule, Seen, dataclass, option

from ._shared import EARLY, STAGE_0, STAGE_1, STAGES, saving

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.linter import Finding

# A bubble this many times as long as expected is more than the schedule's own.
_UNEVEN = 1.25
_MORE = (
    "use more micro-batches, or a schedule that interleaves stages or fills the bubble"
    " with the gradients of weights"
)
_EVEN = (
    "the stages are uneven: move layers from the stage that the others wait for, and"
    " count the embedding and the loss in"
)


@dataclass(frozen=True)
class PipelineBubble(Rule):
    """The stages of a pipeline wait for each other for a large share of the time.

    ## What it does

    Finds the stages by who sends to whom, and adds up the time that ranks wait in sends
    and receives. What stragglers cause is taken out. The rest is compared with what one
    forward, one backward cannot avoid: (p - 1) / (m + p - 1) for p stages and m
    micro-batches.

    ## Why is this bad?

    A GPU in a bubble does nothing. With as many micro-batches as stages nearly half of
    the job's time is bubble.

    ## How to fix it

    More micro-batches, smaller ones if memory is short; a schedule with interleaved
    stages, or one that fills the bubble with the gradients of weights. Where the
    bubble is more than the schedule's own, the stages are uneven: move layers.

    ```diff
    - schedule = Schedule1F1B(stage, n_microbatches=8)
    + schedule = ScheduleInterleaved1F1B(stages, n_microbatches=32)
    ```

    ## When it is wrong

    The window must have whole steps: what is cut off at its ends looks like a bubble.
    """

    code = "RNK006"
    since = "0.2.0"
    see = ("torch.distributed.pipelining",)
    needs = frozenset({Need.JOB})

    min_share: float = option(
        0.1, "Bubbles below this share of the ranks' time are not reported."
    )

    seen = Seen(
        text="""
        RNK006 pipeline-bubble
          2 stages of a pipeline wait for each other, with 1 micro-batch
          bubble    33% of the ranks' time
          expected  50% with one forward, one backward
          fix       use more micro-batches, or a schedule that interleaves stages or
                    fills the bubble with the gradients of weights
        """,
    )

    examples = (
        Bad(
            "",
            finds="2 stages of a pipeline wait for each other, with 1 micro-batch",
            args=STAGES,
            ranks=(STAGE_0, STAGE_1),
        ),
        Good("", ranks=(EARLY, EARLY)),
    )

    def check_job(self, job: Any) -> Iterator[Finding]:  # noqa: ANN401 - see Rule
        """Report a bubble that stragglers do not explain."""
        pipe = job.pipeline
        if pipe is None:
            return
        bubble = pipe.bubble - pipe.from_stragglers
        if bubble < self.min_share:
            return
        batches = f"{pipe.micro_batches} micro-batch"
        batches += "es" * (pipe.micro_batches != 1)
        uneven = bubble > _UNEVEN * pipe.expected
        # Twice as many micro-batches, or what the schedule does not explain.
        twice = (pipe.stages - 1) / (2 * pipe.micro_batches + pipe.stages - 1)
        less = bubble - (pipe.expected if uneven else min(bubble, twice))
        finding = self.finding(
            f"{pipe.stages} stages of a pipeline wait for each other, with {batches}",
            subject="pipeline",
            evidence=[
                Evidence(
                    "bubble", value=bubble, unit="share", note="of the ranks' time"
                ),
                Evidence(
                    "expected",
                    value=pipe.expected,
                    unit="share",
                    note="with one forward, one backward",
                ),
            ],
            advice=_EVEN if uneven else _MORE,
        )
        yield saving(finding, job, less * job.whatifs.took)
