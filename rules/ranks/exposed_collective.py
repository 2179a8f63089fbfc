"""RNK005: transfers are not overlapped with compute."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from traceq.linter import (
    Bad,
    Evidence,
    Good,
    Need,
    Rule,
    Seen,
    dataclass,
    often,
    option,
)

from ._shared import EARLY, HIDDEN, saving

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from traceq.linter import Finding

_TENSOR_PARALLEL = (
    "these are activations of tensor parallelism, which the next op needs: fix a late"
    " rank first, then sequence parallelism and AsyncTP"
    " (torch._inductor.config._micro_pipeline_tp) overlap them with their matmuls"
)
_PEERS = (
    "start it before work that does not need it (isend and irecv ahead), or choose a"
    " schedule with more micro-batches in flight, as interleaved 1F1B"
)
# Of the kinds that do not reduce whole gradients: what they move, and how to hide it.
_BY_KIND = {
    "all_to_all": (
        "split the batch in two and compute one half while the other is sent"
        " (async_op=True); of embeddings, fetch the next batch's meanwhile, as"
        " TorchRec's TrainPipelineSparseDist does; send less: 16 bits or fewer"
    ),
    "all_gather": (
        "fetch the next layer's weights while this one computes: FSDP's prefetch; send"
        " less: weights in bf16"
    ),
    "reduce_scatter": (
        "reduce a layer's gradients while the backward of the next runs: FSDP does if"
        " each layer is wrapped; send less: gradients in bf16, and only in the last of"
        " several micro-batches"
    ),
    "send": _PEERS,
    "recv": _PEERS,
    "send_recv": _PEERS,
}


@dataclass(frozen=True)
class ExposedCollective(Rule):
    """A collective's transfer, waiting taken out, is not overlapped with compute.

    ## What it does

    Adds up, over all ranks, the time in which a collective transfers, no rank is
    awaited any more, and the GPU computes nothing. The saving is by replay of all ranks
    with these transfers hidden, and so the most that overlap can save; it is less than
    what is exposed where the ranks then wait for something else.

    ## Why is this bad?

    The links between GPUs and the GPU's cores are different hardware and can work at
    the same time. If they take turns, a step takes as long as both together. NET001
    says so of one rank, and cannot tell transfer from waiting; this rule can.

    ## How to fix it

    Start a collective as soon as its input is ready and wait for it as late as
    possible: DDP's buckets, FSDP's prefetch, ``async_op=True`` in code of your own.
    Send less: gradients in bf16, ``no_sync()`` between micro-batches.

    ```diff
    - dist.all_reduce(grads)
    + work = dist.all_reduce(grads, async_op=True)
      loss = backward_of_the_layer_before()
    + work.wait()
    ```

    ## When it is wrong

    The last collective of a backward pass has nothing left to overlap with. Time spent
    waiting for ranks that are not among the traces counts as transfer.
    """

    code = "RNK005"
    since = "0.2.0"
    see = (
        "torch.nn.parallel.DistributedDataParallel",
        "torch.distributed.fsdp.fully_shard",
    )
    needs = frozenset({Need.JOB})
    advice = (
        "start it as soon as its input is ready and wait() where its result is used:"
        " DDP's buckets, FSDP's prefetch, or async_op=True; send less: bf16 gradients,"
        " no_sync() between micro-batches"
    )

    min_share: float = option(
        0.05, "Exposed transfers below this share of the time are not reported."
    )

    seen = Seen(
        text="""
        RNK005 exposed-collective  saves 31.0 µs/step (51%)
          all_reduce once a step while no rank waits and no GPU computes
          exposed  31.0 µs a step and rank
          waiting  0% of its time is waiting, and not counted here
          fix      start it as soon as its input is ready and wait() where its
                   result is used: DDP's buckets, FSDP's prefetch, or async_op=True;
                   send less: bf16 gradients, no_sync() between micro-batches
        """,
    )

    examples = (
        Bad(
            "",
            finds="all_reduce once a step while no rank waits and no GPU computes",
            args={"ncclAllReduce": {"Collective name": "allreduce"}},
            ranks=(EARLY, EARLY, EARLY),
        ),
        Good("", ranks=(HIDDEN, HIDDEN, HIDDEN)),
    )

    def check_job(self, job: Any) -> Iterator[Finding]:  # noqa: ANN401 - see Rule
        """Report each kind of collective whose transfers are exposed."""
        rows = _exposed(job) if job.job.has_gpus else pl.DataFrame()
        for row in rows.iter_rows(named=True):
            if row["exposed"] < self.min_share * job.job.window_ns:
                continue
            calls = row["calls"]
            finding = self.finding(
                f"{row['kind']} {_times(job, calls)} while no rank waits and no GPU"
                " computes",
                subject=row["kind"],
                count=calls,
                advice=_advice(row),
                example=None if _advice(row) is None else "",
                evidence=[
                    Evidence(
                        "exposed",
                        value=row["exposed"] / job.steps,
                        unit="ns",
                        note="a step and rank" if job.job.step_ns else "on each rank",
                    ),
                    Evidence(
                        "waiting",
                        value=row["wait"] / row["length"],
                        unit="share",
                        note="of its time is waiting, and not counted here",
                    ),
                ],
            )
            yield saving(finding, job, _saved(job, row["kind"]))


def _times(job: Any, calls: float) -> str:  # noqa: ANN401 - see Rule
    """Return how often a kind is called: in a step, or in all if none is known."""
    return often(calls) if job.job.step_ns else f"{calls:.0f} times"


def _advice(row: Mapping[str, Any]) -> str | None:
    """Return what to do, if that is not what helps DDP's gradients."""
    if row["tensor_parallel"]:
        return _TENSOR_PARALLEL
    return _BY_KIND.get(row["kind"])


def _exposed(job: Any) -> pl.DataFrame:  # noqa: ANN401 - see Rule
    """Return the collectives by kind: how long they are exposed, on a rank."""
    whole = job.job.collectives.filter(pl.col("missing").fill_null(0) == 0)
    cells = job.job.inside.join(whole.select("instance"), on="instance", how="semi")
    return (
        cells.group_by("kind")
        .agg(
            exposed=(pl.col("exposed") - pl.col("waited_exposed")).sum()
            / pl.col("rank").n_unique(),
            tensor_parallel=pl.col("tensor_parallel").mean() > 1 / 2,
            wait=pl.col("wait").sum(),
            length=(pl.col("end") - pl.col("start")).sum(),
        )
        .join(job.job.calls, on="kind", how="left")
        .sort("exposed", "kind", descending=[True, False])
    )


def _saved(job: Any, kind: str) -> float:  # noqa: ANN401 - see Rule
    """Return what the job's time is less by with these transfers hidden, by replay."""
    alone = job.job.cells.group_by("instance").agg(
        share=(
            (pl.col("exposed") - pl.col("waited_exposed")) / pl.col("sending").clip(1)
        )
        .clip(0, 1)
        .mean()
    )
    shares = dict(alone.iter_rows())
    kinds = job.job.collectives["kind"].to_list()
    instances = job.job.collectives["instance"].to_list()
    transfers = [
        transfer * (1 - shares.get(instance, 0.0)) if one == kind else transfer
        for transfer, instance, one in zip(
            job.whatifs.transfers, instances, kinds, strict=True
        )
    ]
    took = job.whatifs.replay.run(job.whatifs.own, job.whatifs.issue, transfers)
    return max(0.0, job.whatifs.took - took)
